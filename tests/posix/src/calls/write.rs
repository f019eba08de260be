//! write, pwrite and writev.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use libc::{O_APPEND, O_CREAT, O_RDONLY, O_RDWR, O_WRONLY};

pub fn define(table: &mut Table) {
    for offset in [0i64, 1, 4095, 4096, 65_535, 65_536, 100_001] {
        for bytes in [1usize, 4096, 65_537, 200_000] {
            table.case(
                format!("{bytes} bytes at offset {offset}, over and beyond what is there"),
                move || {
                    let mut expected = vec![3; 100_000];
                    file_with("f", &expected);
                    let data: Vec<u8> = (0..bytes).map(|at| (at % 253) as u8 + 1).collect();
                    let fd = ok(open("f", O_RDWR));
                    assert_eq!(ok(pwrite(&fd, &data, offset)), bytes);
                    let end = offset as usize + bytes;
                    expected.resize(expected.len().max(end), 0);
                    expected[offset as usize..end].copy_from_slice(&data);
                    assert!(contents("f") == expected, "other contents");
                    assert_eq!(ok(fstat(&fd)).size as usize, expected.len());
                },
            );
        }
    }
    table.case("write moves the offset, pwrite does not", || {
        let fd = ok(open_mode("f", O_CREAT | O_RDWR, 0o600));
        ok(write(&fd, b"abc"));
        ok(pwrite(&fd, b"XY", 0));
        ok(write(&fd, b"def"));
        assert_eq!(ok(lseek(&fd, 0, libc::SEEK_CUR)), 6);
        assert_eq!(contents("f"), b"XYcdef");
    });
    table.case("nothing written changes nothing", || {
        file_with("f", b"text");
        let fd = ok(open("f", O_WRONLY));
        touches_not("f", || assert_eq!(ok(write(&fd, b"")), 0));
    });
    table.case("writing moves both times", || {
        file_with("f", b"text");
        let fd = ok(open("f", O_WRONLY));
        touches("f", true, || assert_eq!(ok(write(&fd, b"x")), 1));
        touches("f", true, || assert_eq!(ok(write(&fd, b"y")), 1));
    });
    table.case("O_APPEND writes at the end, wherever the offset is", || {
        file_with("f", b"base");
        let fd = ok(open("f", O_RDWR | O_APPEND));
        ok(lseek(&fd, 0, libc::SEEK_SET));
        ok(write(&fd, b"+1"));
        assert_eq!(ok(lseek(&fd, 0, libc::SEEK_CUR)), 6);
        ok(truncate("f", 2));
        ok(write(&fd, b"+2"));
        assert_eq!(contents("f"), b"ba+2");
    });
    table.case("appends of many processes are all there, whole", || {
        file("f");
        for child in 0..8u8 {
            in_process(|| {
                let fd = ok(open("f", O_WRONLY | O_APPEND));
                for _ in 0..20 {
                    ok(write(&fd, &[b'a' + child; 100]));
                }
            });
        }
        let all = contents("f");
        assert_eq!(all.len(), 8 * 20 * 100);
        assert!(all.chunks(100).all(|chunk| chunk.iter().all(|byte| *byte == chunk[0])));
    });
    table.case("two descriptors append after each other", || {
        let (one, two) = (
            ok(open_mode("f", O_CREAT | O_WRONLY | O_APPEND, 0o600)),
            ok(open_mode("f", O_CREAT | O_WRONLY | O_APPEND, 0o600)),
        );
        for _ in 0..10 {
            ok(write(&one, b"1"));
            ok(write(&two, b"2"));
        }
        assert_eq!(contents("f"), b"12".repeat(10));
    });
    table.case("writev writes one part after another", || {
        let fd = ok(open_mode("f", O_CREAT | O_RDWR, 0o600));
        assert_eq!(ok(writev(&fd, &[b"one", b"", b"+", b"three"])), 9);
        assert_eq!(contents("f"), b"one+three");
    });
    for (name, mode, left) in [
        ("both set-id bits", 0o6777, 0o777),
        ("set-user-id", 0o4777, 0o777),
        ("set-group-id", 0o2777, 0o777),
        ("set-user-id without execution", 0o4666, 0o666),
    ] {
        table.case(format!("{name} fall when another than root writes"), move || {
            alices_file("f", mode);
            for user in [BOB, ALICE] {
                ok(chmod("f", mode));
                as_user(user, || assert_eq!(ok(write(&ok(open("f", O_WRONLY)), b"x")), 1));
                assert_eq!(ok(lstat("f")).mode, left, "{user:?}");
            }
        });
    }
    table.case("set-id bits stay when root writes", || {
        alices_file("f", 0o6777);
        ok(write(&ok(open("f", O_WRONLY)), b"x"));
        assert_eq!(ok(lstat("f")).mode, 0o6777);
    });
    table.case("set-id bits that were set while the file is open fall too", || {
        alices_file("f", 0o777);
        let fd = ok(open("f", O_WRONLY));
        ok(chmod("f", 0o6777));
        as_user(BOB, || assert_eq!(ok(write(&fd, b"x")), 1));
        assert_eq!(ok(lstat("f")).mode, 0o777);
    });
    table.case("EFBIG beyond RLIMIT_FSIZE, and only what fits is written before", || {
        let fd = ok(open_mode("f", O_CREAT | O_WRONLY, 0o600));
        limit_file_bytes(1000);
        assert_eq!(ok(write(&fd, &[1; 1500])), 1000);
        err(write(&fd, b"x"), libc::EFBIG);
        assert_eq!(ok(lstat("f")).size, 1000);
    });
    table.case("EINVAL for a negative offset", || {
        let fd = ok(open_mode("f", O_CREAT | O_WRONLY, 0o600));
        err(pwrite(&fd, b"x", -1), libc::EINVAL);
    });
    table.case("EFBIG for bytes after the last offset there is", || {
        let fd = ok(open_mode("f", O_CREAT | O_WRONLY, 0o600));
        err_of(pwrite(&fd, b"xy", i64::MAX), &[libc::EFBIG, libc::EINVAL]);
    });
    table.case("EBADF where the file is open to read", || {
        file("f");
        err(write(&ok(open("f", O_RDONLY)), b"x"), libc::EBADF);
        err(write(&ok(open("f", libc::O_PATH)), b"x"), libc::EBADF);
    });
    table.case("random writes leave what the last of each byte says", || {
        let fd = ok(open_mode("f", O_CREAT | O_RDWR, 0o600));
        let (mut expected, mut draw) = (Vec::new(), 1u64);
        for round in 0..200 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (offset, bytes) = ((draw >> 33) as usize % 300_000, (draw >> 20) as usize % 20_000 + 1);
            ok(pwrite(&fd, &vec![round as u8; bytes], offset as i64));
            expected.resize(expected.len().max(offset + bytes), 0);
            expected[offset..offset + bytes].fill(round as u8);
        }
        assert!(contents("f") == expected, "other contents");
    });
}
