//! unlink and unlinkat.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    paths::existing(table, "unlink", Kind::File, |path| unlink(path));
    paths::at(table, "unlinkat", Some(Kind::File), |fd, path| unlinkat(fd, path, 0));
    for kind in NOT_DIRECTORIES {
        table.case(format!("a {kind:?} is gone, and its directory has new times"), move || {
            dir("d");
            make(kind, "d/x");
            touches("d", true, || ok(unlink("d/x")));
            err(lstat("d/x"), libc::ENOENT);
            assert_eq!(ok(list("d")), [] as [&str; 0]);
        });
        table.case(format!("a {kind:?} with another name has one link less, and a new ctime"), move || {
            make(kind, "x");
            ok(link("x", "y"));
            touches("y", false, || ok(unlink("x")));
            assert_eq!(ok(lstat("y")).nlink, 1);
        });
        table.case(format!("in a sticky directory a {kind:?} is removed by owners only"), move || {
            alices_dir("d", 0o1777);
            for (user, allowed) in [(MEMBER, false), (BOB, true), (ALICE, true)] {
                make(kind, "d/x");
                ok(lchown("d/x", BOB.uid, BOB.gid));
                let outcome = as_user(user, || unlink("d/x"));
                if allowed {
                    ok(outcome)
                } else {
                    err(outcome, libc::EPERM)
                }
                if !allowed {
                    ok(unlink("d/x"));
                }
            }
        });
    }
    table.case("EISDIR for a directory", || {
        dir("d");
        err(unlink("d"), libc::EISDIR);
        err(unlink("d/"), libc::EISDIR);
        assert!(exists("d"));
    });
    table.case("unlinkat takes a directory with AT_REMOVEDIR only, and files without it only", || {
        dir("d");
        file("f");
        err(unlinkat(libc::AT_FDCWD, "d", 0), libc::EISDIR);
        err(unlinkat(libc::AT_FDCWD, "f", libc::AT_REMOVEDIR), libc::ENOTDIR);
        err(unlinkat(libc::AT_FDCWD, "f", 1), libc::EINVAL);
    });
    table.case("a symbolic link is removed, its target stays", || {
        file("f");
        ok(symlink("f", "link"));
        ok(unlink("link"));
        assert!(exists("f"));
    });
    table.case("the directory must be writable and searchable", || {
        for (mode, allowed) in [(0o300, true), (0o500, false), (0o200, false)] {
            let above = format!("d{mode:o}");
            dir(&above);
            file(format!("{above}/f"));
            ok(lchown(&above, ALICE.uid, ALICE.gid));
            ok(chmod(&above, mode));
            let outcome = as_user(ALICE, || unlink(format!("{above}/f")));
            if allowed { ok(outcome) } else { err(outcome, libc::EACCES) }
        }
    });
    table.case("permissions of the file itself do not count", || {
        alices_file("f", 0);
        as_user(BOB, || ok(unlink("f")));
    });
    table.case("an open file lives on until it is closed", || {
        file_with("f", b"0123456789");
        let fd = ok(open("f", libc::O_RDWR));
        ok(unlink("f"));
        assert_eq!(ok(read(&fd, 10)), b"0123456789");
        assert_eq!(ok(fstat(&fd)).nlink, 0);
        ok(ftruncate(&fd, 3));
        assert_eq!(ok(pread(&fd, 10, 0)), b"012");
        assert!(!exists("f"));
    });
    table.case("a new file of the same name is another", || {
        file_with("f", b"old");
        let fd = ok(open("f", libc::O_RDWR));
        ok(unlink("f"));
        file_with("f", b"newer");
        assert_eq!(ok(read(&fd, 10)), b"old");
        assert_eq!(contents("f"), b"newer");
        assert_ne!(ok(fstat(&fd)).ino, ok(lstat("f")).ino);
    });
    table.case("a child keeps an unlinked file open", || {
        file_with("f", b"text");
        let fd = ok(open("f", libc::O_RDONLY));
        ok(unlink("f"));
        in_process(|| assert_eq!(ok(pread(&fd, 9, 0)), b"text"));
    });
    table.case("a failing unlink leaves the directory's times", || {
        dir("d");
        touches_not("d", || err(unlink("d/missing"), libc::ENOENT));
    });
    table.case("EISDIR or EPERM for `.` and `..`", || {
        err_of(unlink("."), &[libc::EISDIR, libc::EPERM]);
        err_of(unlink(".."), &[libc::EISDIR, libc::EPERM]);
    });
}
