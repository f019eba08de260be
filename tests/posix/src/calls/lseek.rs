//! lseek, with holes.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    let positions: [(&str, i64, i32, i64); 7] = [
        ("SEEK_SET 0", 0, libc::SEEK_SET, 0),
        ("SEEK_SET within", 3, libc::SEEK_SET, 3),
        ("SEEK_SET beyond the end", 1 << 40, libc::SEEK_SET, 1 << 40),
        ("SEEK_CUR forwards", 2, libc::SEEK_CUR, 6),
        ("SEEK_CUR backwards", -4, libc::SEEK_CUR, 0),
        ("SEEK_END at the end", 0, libc::SEEK_END, 10),
        ("SEEK_END backwards", -10, libc::SEEK_END, 0),
    ];
    for (name, offset, whence, expected) in positions {
        table.case(format!("{name} from offset 4 of 10"), move || {
            file_with("f", b"0123456789");
            let fd = ok(open("f", libc::O_RDONLY));
            ok(read(&fd, 4));
            assert_eq!(ok(lseek(&fd, offset, whence)), expected);
            assert_eq!(ok(lseek(&fd, 0, libc::SEEK_CUR)), expected);
            let rest = b"0123456789".get(expected as usize..).unwrap_or_default();
            assert_eq!(ok(read(&fd, 100)), rest);
        });
    }
    for (name, offset, whence) in [
        ("SEEK_SET below 0", -1, libc::SEEK_SET),
        ("SEEK_CUR below 0", -5, libc::SEEK_CUR),
        ("SEEK_END below 0", -11, libc::SEEK_END),
        ("an unknown whence", 0, 99),
    ] {
        table.case(format!("EINVAL for {name}, and the offset stays"), move || {
            file_with("f", b"0123456789");
            let fd = ok(open("f", libc::O_RDONLY));
            ok(read(&fd, 4));
            err(lseek(&fd, offset, whence), libc::EINVAL);
            assert_eq!(ok(lseek(&fd, 0, libc::SEEK_CUR)), 4);
        });
    }
    table.case("seeking beyond the end does not change the file", || {
        file_with("f", b"abc");
        let fd = ok(open("f", libc::O_RDWR));
        ok(lseek(&fd, 1000, libc::SEEK_SET));
        assert_eq!(ok(fstat(&fd)).size, 3);
    });
    table.case("a write beyond the end leaves a hole of zeros", || {
        file_with("f", b"abc");
        let fd = ok(open("f", libc::O_RDWR));
        ok(lseek(&fd, 300_000, libc::SEEK_SET));
        ok(write(&fd, b"end"));
        assert_eq!(ok(fstat(&fd)).size, 300_003);
        let all = contents("f");
        assert_eq!((&all[..3], &all[300_000..]), (&b"abc"[..], &b"end"[..]));
        assert!(all[3..300_000].iter().all(|byte| *byte == 0), "zeros between");
    });
    table.case("SEEK_END sees what another descriptor wrote", || {
        file("f");
        let (one, two) = (ok(open("f", libc::O_WRONLY)), ok(open("f", libc::O_RDONLY)));
        ok(write(&one, &[1; 5000]));
        assert_eq!(ok(lseek(&two, 0, libc::SEEK_END)), 5000);
    });
    table.case("ESPIPE on a fifo", || {
        make(Kind::Fifo, "x");
        let fd = ok(open("x", libc::O_RDWR | libc::O_NONBLOCK));
        err(lseek(&fd, 0, libc::SEEK_SET), libc::ESPIPE);
    });
    table.case("SEEK_DATA and SEEK_HOLE find data where it is, and the hole at the end", || {
        file_with("f", &[1; 10_000]);
        let fd = ok(open("f", libc::O_RDONLY));
        assert_eq!(ok(lseek(&fd, 0, libc::SEEK_DATA)), 0);
        assert_eq!(ok(lseek(&fd, 5000, libc::SEEK_DATA)), 5000);
        assert_eq!(ok(lseek(&fd, 0, libc::SEEK_HOLE)), 10_000);
        assert_eq!(ok(lseek(&fd, 9999, libc::SEEK_HOLE)), 10_000);
    });
    for (name, whence) in [("SEEK_DATA", libc::SEEK_DATA), ("SEEK_HOLE", libc::SEEK_HOLE)] {
        table.case(format!("{name} fails with ENXIO at and beyond the end"), move || {
            file_with("f", &[1; 100]);
            let fd = ok(open("f", libc::O_RDONLY));
            for offset in [100, 101, 1 << 50] {
                err(lseek(&fd, offset, whence), libc::ENXIO);
            }
        });
    }
    table.case("SEEK_DATA never goes past data, SEEK_HOLE never ends within it", || {
        file("f");
        let fd = ok(open("f", libc::O_RDWR));
        ok(pwrite(&fd, &[1; 4096], 0));
        ok(pwrite(&fd, &[2; 4096], 4 << 20));
        let second = ok(lseek(&fd, 4096, libc::SEEK_DATA));
        assert!((4096..=4 << 20).contains(&second), "data at {second}");
        let hole = ok(lseek(&fd, 0, libc::SEEK_HOLE));
        assert!((4096..=4 << 20).contains(&hole) || hole == (4 << 20) + 4096, "hole at {hole}");
    });
}
