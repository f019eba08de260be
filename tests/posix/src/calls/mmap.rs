//! mmap: shared and private.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use libc::{MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE};

const PAGE: usize = 4096;

/// Three pages, each byte telling where it is.
fn three_pages() -> Vec<u8> {
    (0..3 * PAGE).map(|at| (at % 251) as u8).collect()
}

pub fn define(table: &mut Table) {
    for (name, flags) in [("shared", MAP_SHARED), ("private", MAP_PRIVATE)] {
        table.case(format!("{name}: the file's bytes are in memory"), move || {
            file_with("f", &three_pages());
            let fd = ok(open("f", libc::O_RDONLY));
            let map = ok(Mapping::new(&fd, 3 * PAGE, PROT_READ, flags, 0));
            assert!(map.bytes(0, 3 * PAGE) == three_pages(), "other bytes");
            let map = ok(Mapping::new(&fd, PAGE, PROT_READ, flags, 2 * PAGE as i64));
            assert!(map.bytes(0, PAGE) == three_pages()[2 * PAGE..], "other bytes in the third page");
        });
        table.case(format!("{name}: after the end of the file, its last page has zeros"), move || {
            file_with("f", &[9; 100]);
            let fd = ok(open("f", libc::O_RDONLY));
            let map = ok(Mapping::new(&fd, PAGE, PROT_READ, flags, 0));
            assert_eq!(map.bytes(90, 20), [[9; 10], [0; 10]].concat());
        });
        table.case(format!("{name}: stays when descriptor and name are gone"), move || {
            file_with("f", &three_pages());
            let fd = ok(open("f", libc::O_RDONLY));
            let map = ok(Mapping::new(&fd, 3 * PAGE, PROT_READ, flags, 0));
            ok(close(fd));
            ok(unlink("f"));
            assert!(map.bytes(0, 3 * PAGE) == three_pages(), "other bytes");
        });
        table.case(format!("{name}: EACCES where the file is only open to write"), move || {
            file_with("f", b"x");
            let fd = ok(open("f", libc::O_WRONLY));
            err(Mapping::new(&fd, PAGE, PROT_READ, flags, 0).map(drop), libc::EACCES);
        });
        table.case(format!("{name}: EINVAL for an offset within a page, or no bytes"), move || {
            file_with("f", b"x");
            let fd = ok(open("f", libc::O_RDONLY));
            err(Mapping::new(&fd, PAGE, PROT_READ, flags, 100).map(drop), libc::EINVAL);
            err(Mapping::new(&fd, 0, PROT_READ, flags, 0).map(drop), libc::EINVAL);
        });
        table.case(format!("{name}: ENODEV for a directory"), move || {
            dir("d");
            let fd = ok(open("d", libc::O_RDONLY));
            err(Mapping::new(&fd, PAGE, PROT_READ, flags, 0).map(drop), libc::ENODEV);
        });
        table.case(format!("{name}: what is written to the file before is seen"), move || {
            file_with("f", &three_pages());
            let fd = ok(open("f", libc::O_RDWR));
            ok(pwrite(&fd, b"fresh", 5000));
            let map = ok(Mapping::new(&fd, 3 * PAGE, PROT_READ, flags, 0));
            assert_eq!(map.bytes(5000, 5), b"fresh");
        });
    }
    table.case("shared: EACCES for writing where the file is only open to read", || {
        file_with("f", b"x");
        let fd = ok(open("f", libc::O_RDONLY));
        err(Mapping::new(&fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0).map(drop), libc::EACCES);
        ok(Mapping::new(&fd, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0).map(drop));
    });
    table.case("shared: what is stored is read from the file", || {
        file_with("f", &three_pages());
        let fd = ok(open("f", libc::O_RDWR));
        let map = ok(Mapping::new(&fd, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
        map.set(PAGE - 2, b"over");
        assert_eq!(ok(pread(&fd, 4, PAGE as i64 - 2)), b"over");
        ok(map.sync(libc::MS_SYNC));
        drop(map);
        assert_eq!(&contents("f")[PAGE - 2..PAGE + 2], b"over");
    });
    for (name, flags) in [("mapped and ", libc::O_APPEND), ("", 0)] {
        table.case(
            format!("shared: what is stored has its place where the file is {name}open to append"),
            move || {
                file_with("f", &three_pages());
                let fd = ok(open("f", libc::O_RDWR | flags));
                let _appending = ok(open("f", libc::O_RDWR | libc::O_APPEND));
                let map = ok(Mapping::new(&fd, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
                map.set(PAGE + 2, b"here");
                ok(map.sync(libc::MS_SYNC));
                map.set(2 * PAGE, b"there");
                drop(map);
                let mut expected = three_pages();
                expected[PAGE + 2..][..4].copy_from_slice(b"here");
                expected[2 * PAGE..][..5].copy_from_slice(b"there");
                assert!(contents("f") == expected, "other bytes");
            },
        );
    }
    table.case("shared: what is written to the file later is seen", || {
        file_with("f", &three_pages());
        let fd = ok(open("f", libc::O_RDWR));
        let map = ok(Mapping::new(&fd, 3 * PAGE, PROT_READ, MAP_SHARED, 0));
        assert_eq!(map.get(1), 1);
        ok(pwrite(&fd, b"later", 0));
        assert_eq!(map.bytes(0, 5), b"later");
    });
    table.case("shared: another process sees what is stored", || {
        file_with("f", &three_pages());
        let fd = ok(open("f", libc::O_RDWR));
        let map = ok(Mapping::new(&fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
        in_process(|| {
            let own = ok(Mapping::new(&fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
            own.set(7, b"child");
        });
        assert_eq!(map.bytes(7, 5), b"child");
    });
    table.case("shared: storing in the last page does not make the file longer", || {
        file_with("f", &[1; 100]);
        let fd = ok(open("f", libc::O_RDWR));
        let map = ok(Mapping::new(&fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
        map.set(98, &[2; 6]);
        ok(map.sync(libc::MS_SYNC));
        drop(map);
        assert_eq!(ok(fstat(&fd)).size, 100);
        assert_eq!(contents("f")[97..], [1, 2, 2]);
    });
    table.case("shared: storing moves the modification time by msync", || {
        file_with("f", &[1; 100]);
        let fd = ok(open("f", libc::O_RDWR));
        let map = ok(Mapping::new(&fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
        touches("f", true, || {
            map.set(0, &[2]);
            ok(map.sync(libc::MS_SYNC));
        });
    });
    table.case("shared: unlinked, it still keeps what is stored", || {
        file_with("f", &three_pages());
        let fd = ok(open("f", libc::O_RDWR));
        let map = ok(Mapping::new(&fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
        ok(unlink("f"));
        map.set(0, b"kept");
        ok(map.sync(libc::MS_SYNC));
        drop(map);
        assert_eq!(ok(pread(&fd, 4, 0)), b"kept");
    });
    table.case("shared: a file grown by ftruncate can be stored into", || {
        let fd = ok(open_mode("f", libc::O_RDWR | libc::O_CREAT, 0o600));
        ok(ftruncate(&fd, 1 << 20));
        let map = ok(Mapping::new(&fd, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
        for at in (0..1 << 20).step_by(PAGE) {
            map.set(at, &[at as u8 ^ (at >> 8) as u8, 0xee]);
        }
        ok(map.sync(libc::MS_SYNC));
        drop(map);
        let all = contents("f");
        for at in (0..1 << 20).step_by(PAGE) {
            assert_eq!(all[at..at + 3], [at as u8 ^ (at >> 8) as u8, 0xee, 0], "at {at}");
        }
    });
    table.case("private: what is stored stays out of the file", || {
        file_with("f", &three_pages());
        let fd = ok(open("f", libc::O_RDWR));
        let map = ok(Mapping::new(&fd, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0));
        map.set(10, b"mine");
        assert_eq!(map.bytes(10, 4), b"mine");
        drop(map);
        assert!(contents("f") == three_pages(), "the file changed");
    });
    table.case("private: a child's stores are its own", || {
        file_with("f", &three_pages());
        let fd = ok(open("f", libc::O_RDONLY));
        let map = ok(Mapping::new(&fd, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0));
        in_process(|| map.set(0, b"child"));
        assert_eq!(map.get(1), 1);
    });
    table.case("a file can be copied from its own mapping", || {
        file_with("f", &three_pages());
        let fd = ok(open("f", libc::O_RDWR));
        let map = ok(Mapping::new(&fd, 3 * PAGE, PROT_READ, MAP_SHARED, 0));
        ok(pwrite(&fd, &map.bytes(0, PAGE), 3 * PAGE as i64));
        assert_eq!(contents("f")[3 * PAGE..], three_pages()[..PAGE]);
    });
}
