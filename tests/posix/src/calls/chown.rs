//! chown, lchown, fchown and fchownat.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

type Change = fn(&str, u32, u32) -> Outcome;

const CALLS: [(&str, Change); 3] = [
    ("chown", |path, uid, gid| chown(path, uid, gid)),
    ("lchown", |path, uid, gid| lchown(path, uid, gid)),
    ("fchown", |path, uid, gid| fchown(&open(path, libc::O_RDONLY | libc::O_NONBLOCK)?, uid, gid)),
];

pub fn define(table: &mut Table) {
    paths::existing(table, "chown", Kind::File, |path| chown(path, 1, 1));
    paths::follows(table, "chown", Kind::File, |path| chown(path, 1, 1));
    paths::existing(table, "lchown", Kind::File, |path| lchown(path, 1, 1));
    paths::at(table, "fchownat", Some(Kind::File), |fd, path| fchownat(fd, path, 1, 1, 0));
    for kind in KINDS {
        table.case(format!("root gives a {kind:?} to anybody, and only ctime moves"), move || {
            make(kind, "x");
            for (uid, gid) in [(1, 2), (SAME, 3), (4, SAME), (0, 0), (u32::MAX - 1, u32::MAX - 1)] {
                let before = ok(lstat("x"));
                ok(lchown("x", uid, gid));
                let after = ok(lstat("x"));
                assert_eq!(after.uid, if uid == SAME { before.uid } else { uid });
                assert_eq!(after.gid, if gid == SAME { before.gid } else { gid });
            }
            touches("x", false, || ok(lchown("x", 9, 9)));
        });
        table.case(
            format!("the owner of a {kind:?} cannot give it away, but pass it to his groups"),
            move || {
                make(kind, "x");
                ok(lchown("x", ALICE_TOO.uid, ALICE_TOO.gid));
                as_user(ALICE_TOO, || {
                    err(lchown("x", BOB.uid, SAME), libc::EPERM);
                    err(lchown("x", BOB.uid, BOB.gid), libc::EPERM);
                    err(lchown("x", SAME, BOB.gid), libc::EPERM);
                    ok(lchown("x", SAME, SECOND_GROUP));
                    ok(lchown("x", ALICE_TOO.uid, ALICE_TOO.gid));
                    ok(lchown("x", SAME, SAME));
                });
            },
        );
        table.case(format!("who does not own a {kind:?} gets EPERM"), move || {
            make(kind, "x");
            ok(lchown("x", ALICE.uid, ALICE.gid));
            for (uid, gid) in [(BOB.uid, SAME), (SAME, BOB.gid), (ALICE.uid, ALICE.gid)] {
                as_user(BOB, || touches_not("x", || err(lchown("x", uid, gid), libc::EPERM)));
            }
        });
    }
    for (name, change) in CALLS {
        for mode in [0o4755, 0o2755, 0o6755, 0o6711, 0o2710, 0o4700, 0o7777] {
            table.case(format!("{name} takes set-id bits from a file of mode {mode:o}"), move || {
                alices_file("f", mode);
                let kept = mode & 0o1777;
                as_user(ALICE, || ok(change("f", SAME, ALICE.gid)));
                assert_eq!(ok(lstat("f")).mode, kept, "by the owner");
                ok(chmod("f", mode));
                ok(change("f", 5, 6));
                assert_eq!(ok(lstat("f")).mode, kept, "by root");
            });
        }
        table.case(format!("{name} leaves set-id bits of a directory"), move || {
            dir_mode("d", 0o700);
            ok(chmod("d", 0o6755));
            ok(change("d", ALICE.uid, ALICE.gid));
            assert_eq!(ok(lstat("d")).mode, 0o6755);
        });
    }
    table.case("set-group-id without execution by the group stays for root", || {
        file("f");
        ok(chmod("f", 0o2644));
        ok(chown("f", 3, 3));
        assert_eq!(ok(lstat("f")).mode, 0o2644);
    });
    table.case("lchown changes a symbolic link itself, chown its target", || {
        file("f");
        ok(symlink("f", "link"));
        ok(lchown("link", 11, 12));
        assert_eq!((ok(lstat("link")).uid, ok(stat("link")).uid), (11, 0));
        ok(chown("link", 13, 14));
        assert_eq!((ok(lstat("link")).gid, ok(stat("link")).gid), (12, 14));
        ok(fchownat(libc::AT_FDCWD, "link", 15, 16, libc::AT_SYMLINK_NOFOLLOW));
        assert_eq!((ok(lstat("link")).uid, ok(stat("link")).uid), (15, 13));
    });
    table.case("fchown works on a file without a name", || {
        file("f");
        let fd = ok(open("f", libc::O_RDWR));
        ok(unlink("f"));
        ok(fchown(&fd, 21, 22));
        let stat = ok(fstat(&fd));
        assert_eq!((stat.uid, stat.gid), (21, 22));
    });
    table.case("fchownat with AT_EMPTY_PATH changes the descriptor's file", || {
        use std::os::fd::AsRawFd;
        file("f");
        let fd = ok(open("f", libc::O_PATH));
        ok(fchownat(fd.as_raw_fd(), "", 31, 32, libc::AT_EMPTY_PATH));
        assert_eq!(ok(lstat("f")).uid, 31);
    });
    table.case("permission goes with the file", || {
        alices_file("f", 0o600);
        as_user(BOB, || err(open("f", libc::O_RDONLY), libc::EACCES));
        ok(chown("f", BOB.uid, SAME));
        as_user(BOB, || ok(open("f", libc::O_RDONLY)));
        as_user(ALICE, || err(open("f", libc::O_RDONLY), libc::EACCES));
    });
}
