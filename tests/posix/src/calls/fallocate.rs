//! fallocate, where the file system offers it, and posix_fallocate.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};

/// Whether the mode is offered; a file system may have none.
fn offered(fd: &std::os::fd::OwnedFd, mode: i32, offset: i64, bytes: i64) -> bool {
    match fallocate(fd, mode, offset, bytes) {
        Err(Errno(libc::EOPNOTSUPP)) => false,
        outcome => {
            ok(outcome);
            true
        }
    }
}

pub fn define(table: &mut Table) {
    for bytes in [1, 4096, 1 << 20] {
        table.case(format!("{bytes} bytes beyond the end make the file longer, with zeros"), move || {
            file_with("f", b"text");
            let fd = ok(open("f", libc::O_RDWR));
            if offered(&fd, 0, 4, bytes) {
                assert_eq!(ok(fstat(&fd)).size, 4 + bytes);
                let all = contents("f");
                assert!(all[..4] == *b"text" && all[4..].iter().all(|byte| *byte == 0));
            }
        });
    }
    table.case("within the file nothing changes", || {
        file_with("f", &[5; 10_000]);
        let fd = ok(open("f", libc::O_RDWR));
        if offered(&fd, 0, 100, 5000) {
            assert_eq!(contents("f"), [5; 10_000]);
        }
    });
    table.case("FALLOC_FL_KEEP_SIZE leaves the size", || {
        file_with("f", b"text");
        let fd = ok(open("f", libc::O_RDWR));
        if offered(&fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20) {
            assert_eq!(ok(fstat(&fd)).size, 4);
            assert_eq!(contents("f"), b"text");
        }
    });
    for (offset, bytes) in [(0, 4096), (1000, 1000), (4096, 100_000), (50_000, 1 << 20)] {
        table.case(format!("a hole of {bytes} bytes at {offset} is zeros"), move || {
            file_with("f", &[5; 200_000]);
            let fd = ok(open("f", libc::O_RDWR));
            if offered(&fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes) {
                let mut expected = vec![5; 200_000];
                let end = (offset + bytes).min(200_000) as usize;
                expected[offset as usize..end].fill(0);
                assert!(contents("f") == expected, "other contents");
            }
        });
    }
    table.case("FALLOC_FL_ZERO_RANGE leaves zeros, and may make the file longer", || {
        file_with("f", &[5; 10_000]);
        let fd = ok(open("f", libc::O_RDWR));
        if offered(&fd, FALLOC_FL_ZERO_RANGE, 5000, 10_000) {
            assert_eq!(ok(fstat(&fd)).size, 15_000);
            let all = contents("f");
            assert!(all[..5000] == [5; 5000] && all[5000..].iter().all(|byte| *byte == 0));
        }
    });
    for (name, offset, bytes) in
        [("no bytes", 0, 0), ("a negative length", 0, -1), ("a negative offset", -1, 1)]
    {
        table.case(format!("EINVAL for {name}"), move || {
            file("f");
            err(fallocate(&ok(open("f", libc::O_RDWR)), 0, offset, bytes), libc::EINVAL);
        });
    }
    table.case("EBADF where the file is open to read", || {
        file("f");
        err(fallocate(&ok(open("f", libc::O_RDONLY)), 0, 0, 1), libc::EBADF);
    });
    table.case("EFBIG beyond the last offset there is", || {
        file("f");
        err(fallocate(&ok(open("f", libc::O_RDWR)), 0, i64::MAX, 1), libc::EFBIG);
    });
    table.case("EFBIG beyond RLIMIT_FSIZE", || {
        file("f");
        let fd = ok(open("f", libc::O_RDWR));
        limit_file_bytes(1000);
        if offered(&fd, 0, 0, 1000) {
            err(fallocate(&fd, 0, 0, 1001), libc::EFBIG);
        }
    });
    table.case("posix_fallocate makes room on any file system", || {
        file("f");
        let fd = ok(open("f", libc::O_RDWR));
        ok(posix_fallocate(&fd, 10, 5000));
        assert_eq!(ok(fstat(&fd)).size, 5010);
        assert_eq!(contents("f"), [0; 5010]);
    });
}
