//! truncate and ftruncate.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

type Cut = fn(&str, i64) -> Outcome;

const CALLS: [(&str, Cut); 2] = [
    ("truncate", |path, bytes| truncate(path, bytes)),
    ("ftruncate", |path, bytes| ftruncate(&open(path, libc::O_WRONLY)?, bytes)),
];

const SIZES: [i64; 8] = [0, 1, 4095, 4096, 4097, 65_536, 131_073, 1_000_000];

pub fn define(table: &mut Table) {
    paths::existing(table, "truncate", Kind::File, |path| truncate(path, 10));
    paths::follows(table, "truncate", Kind::File, |path| truncate(path, 10));
    for (name, cut) in CALLS {
        for from in SIZES {
            table.case(
                format!("{name} from {from} bytes keeps what stays and fills with zeros"),
                move || {
                    for to in SIZES {
                        file_with("f", &vec![7; from as usize]);
                        ok(cut("f", to));
                        assert_eq!(ok(lstat("f")).size, to);
                        let all = contents("f");
                        let kept = from.min(to) as usize;
                        assert_eq!(all.len() as i64, to, "to {to}");
                        assert!(all[..kept].iter().all(|byte| *byte == 7), "kept, to {to}");
                        assert!(all[kept..].iter().all(|byte| *byte == 0), "zeros, to {to}");
                    }
                },
            );
        }
        table.case(format!("{name} shorter and longer again shows zeros, not what was there"), move || {
            file_with("f", &[7; 300_000]);
            ok(cut("f", 100));
            ok(cut("f", 300_000));
            let all = contents("f");
            assert!(all[..100] == [7; 100] && all[100..].iter().all(|byte| *byte == 0));
        });
        table.case(format!("{name} moves both times where the size changes"), move || {
            file_with("f", &[1; 100]);
            for bytes in [10, 1000, 0] {
                touches("f", true, || ok(cut("f", bytes)));
            }
        });
        table.case(format!("{name} to the same size leaves the contents"), move || {
            file_with("f", b"text");
            ok(cut("f", 4));
            assert_eq!(contents("f"), b"text");
        });
        table.case(format!("{name} fails with EINVAL for a negative size"), move || {
            file_with("f", b"text");
            err(cut("f", -1), libc::EINVAL);
            assert_eq!(contents("f"), b"text");
        });
        table.case(format!("{name} takes set-id bits when another than root does it"), move || {
            file_with("f", b"program");
            ok(lchown("f", ALICE.uid, ALICE.gid));
            ok(chmod("f", 0o6777));
            as_user(BOB, || ok(cut("f", 3)));
            assert_eq!(ok(lstat("f")).mode, 0o777);
        });
        table.case(format!("{name} to any size up to what the file system says with EFBIG"), move || {
            file("f");
            let mut largest = 0;
            for bits in 31..=63 {
                let bytes = (1u64 << bits).wrapping_sub(1) as i64;
                match cut("f", bytes) {
                    Ok(()) => {
                        assert_eq!(largest + 1, bits - 30, "a size between was refused");
                        largest = bits - 30;
                        assert_eq!(ok(lstat("f")).size, bytes);
                    }
                    outcome => err(outcome, libc::EFBIG),
                }
            }
            assert!(largest >= 40 - 30, "a terabyte at least");
            ok(cut("f", 0));
        });
        table.case(format!("{name} beyond RLIMIT_FSIZE fails with EFBIG"), move || {
            file_with("f", b"text");
            limit_file_bytes(1000);
            ok(cut("f", 1000));
            err(cut("f", 1001), libc::EFBIG);
            assert_eq!(ok(lstat("f")).size, 1000);
        });
    }
    for (class, user, shift) in CLASSES {
        for bits in 0..8 {
            table.case(format!("{class} truncates as mode bits {bits} of the class say"), move || {
                alices_file("f", class_mode(shift, bits));
                let outcome = as_user(user, || truncate("f", 5));
                if bits & 2 != 0 { ok(outcome) } else { err(outcome, libc::EACCES) }
            });
        }
    }
    for (kind, due) in
        [(Kind::Directory, libc::EISDIR), (Kind::Fifo, libc::EINVAL), (Kind::Socket, libc::EINVAL)]
    {
        table.case(format!("truncate fails for a {kind:?}"), move || {
            make(kind, "x");
            err(truncate("x", 0), due);
        });
    }
    table.case("ftruncate fails where the file is open to read", || {
        file_with("f", b"text");
        err_of(ftruncate(&ok(open("f", libc::O_RDONLY)), 0), &[libc::EINVAL, libc::EBADF]);
        assert_eq!(contents("f"), b"text");
    });
    table.case("ftruncate needs no permission but that of the descriptor", || {
        alices_file("f", 0o200);
        as_user(ALICE, || {
            let fd = ok(open("f", libc::O_WRONLY));
            ok(chmod("f", 0));
            ok(ftruncate(&fd, 7));
        });
        assert_eq!(ok(lstat("f")).size, 7);
    });
    table.case("ftruncate leaves the offset, a write there makes a hole", || {
        file_with("f", b"0123456789");
        let fd = ok(open("f", libc::O_RDWR));
        ok(lseek(&fd, 8, libc::SEEK_SET));
        ok(ftruncate(&fd, 2));
        ok(write(&fd, b"x"));
        assert_eq!(contents("f"), b"01\0\0\0\0\0\0x");
    });
    table.case("ftruncate works on a file without a name", || {
        file("f");
        let fd = ok(open("f", libc::O_RDWR));
        ok(unlink("f"));
        ok(ftruncate(&fd, 12345));
        assert_eq!(ok(fstat(&fd)).size, 12345);
    });
    table.case("a large sparse file takes little space, and its end can be written", || {
        let fd = ok(open_mode("f", libc::O_CREAT | libc::O_RDWR, 0o600));
        ok(ftruncate(&fd, 1 << 40));
        ok(pwrite(&fd, b"end", (1 << 40) - 3));
        assert_eq!(ok(fstat(&fd)).size, 1 << 40);
        assert_eq!(ok(pread(&fd, 10, (1 << 40) - 5)), b"\0\0end");
        assert_eq!(ok(pread(&fd, 4, 1 << 39)), [0; 4]);
        ok(fsync(&fd));
        assert!(ok(fstat(&fd)).blocks < 100_000, "{} blocks", ok(fstat(&fd)).blocks);
    });
}
