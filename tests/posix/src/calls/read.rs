//! read, pread and readv.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    for bytes in [0usize, 1, 511, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1_000_003] {
        table.case(format!("a file of {bytes} bytes is read as it was written, in any pieces"), move || {
            let data: Vec<u8> = (0..bytes).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
            file_with("f", &data);
            assert!(contents("f") == data, "in large pieces");
            let fd = ok(open("f", libc::O_RDONLY));
            for piece in [1000, 4096, 70_001] {
                ok(lseek(&fd, 0, libc::SEEK_SET));
                let mut all = Vec::new();
                loop {
                    let got = ok(read(&fd, piece));
                    if got.is_empty() {
                        break;
                    }
                    all.extend(got);
                }
                assert!(all == data, "in pieces of {piece}");
            }
        });
    }
    table.case("at and after the end nothing is read", || {
        file_with("f", b"abc");
        let fd = ok(open("f", libc::O_RDONLY));
        assert_eq!(ok(pread(&fd, 10, 1)), b"bc");
        assert_eq!(ok(pread(&fd, 10, 3)), b"");
        assert_eq!(ok(pread(&fd, 10, 1 << 40)), b"");
        assert_eq!(ok(pread(&fd, 0, 0)), b"");
    });
    table.case("pread leaves the offset", || {
        file_with("f", b"0123456789");
        let fd = ok(open("f", libc::O_RDONLY));
        ok(read(&fd, 2));
        assert_eq!(ok(pread(&fd, 3, 5)), b"567");
        assert_eq!(ok(read(&fd, 2)), b"23");
    });
    table.case("readv fills one part after another", || {
        file_with("f", b"0123456789");
        let fd = ok(open("f", libc::O_RDONLY));
        let (mut one, mut two, mut three) = ([0; 3], [0; 0], [0; 20]);
        assert_eq!(ok(readv(&fd, &mut [&mut one, &mut two, &mut three])), 10);
        assert_eq!((&one, &three[..8]), (b"012", &b"3456789\0"[..]));
    });
    table.case("EISDIR for a directory", || {
        dir("d");
        err(read(&ok(open("d", libc::O_RDONLY)), 10), libc::EISDIR);
    });
    table.case("EINVAL for a negative offset", || {
        file_with("f", b"abc");
        err(pread(&ok(open("f", libc::O_RDONLY)), 1, -1), libc::EINVAL);
    });
    table.case("EBADF for a descriptor of O_PATH", || {
        file_with("f", b"abc");
        err(read(&ok(open("f", libc::O_PATH)), 1), libc::EBADF);
    });
    table.case("reading leaves modification and change time", || {
        file_with("f", b"abc");
        touches_not("f", || contents("f"));
    });
    table.case("reading moves the access time of a file read the first time after a change", || {
        file_with("f", b"abc");
        if ok(statvfs(".")).f_flag & libc::ST_NOATIME != 0 {
            return;
        }
        let (before, after) = around("f", || contents("f"));
        assert!(after.atime > before.atime, "{:?}", after.atime);
    });
    table.case("a file without a name is read and written on", || {
        file_with("f", b"0123456789");
        let fd = ok(open("f", libc::O_RDWR));
        ok(unlink("f"));
        assert_eq!(ok(read(&fd, 4)), b"0123");
        assert_eq!(ok(pwrite(&fd, &[7; 100_000], 10)), 100_000);
        let stat = ok(fstat(&fd));
        assert_eq!((stat.size, stat.nlink), (100_010, 0));
        assert_eq!(ok(pread(&fd, 200_000, 9)), [&b"9"[..], &[7; 100_000]].concat());
    });
    table.case("a reader sees what a writer wrote as soon as write returned", || {
        file("f");
        let (writer, reader) = (ok(open("f", libc::O_WRONLY)), ok(open("f", libc::O_RDONLY)));
        for round in 0..50u8 {
            ok(write(&writer, &[round; 1000]));
            assert_eq!(ok(read(&reader, 2000)), [round; 1000], "round {round}");
        }
    });
    table.case("another process's write is seen", || {
        file("f");
        let reader = ok(open("f", libc::O_RDONLY));
        assert_eq!(ok(pread(&reader, 10, 0)), b"");
        in_process(|| file_with("f", b"from a child"));
        assert_eq!(ok(pread(&reader, 20, 0)), b"from a child");
    });
}
