//! rmdir.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    paths::existing(table, "rmdir", Kind::Directory, |path| rmdir(path));
    paths::at(table, "unlinkat with AT_REMOVEDIR", Some(Kind::Directory), |fd, path| {
        unlinkat(fd, path, libc::AT_REMOVEDIR)
    });
    for kind in NOT_DIRECTORIES {
        table.case(format!("ENOTDIR for a {kind:?}"), move || {
            make(kind, "x");
            err(rmdir("x"), libc::ENOTDIR);
            assert!(exists("x"));
        });
    }
    for kind in KINDS {
        table.case(format!("ENOTEMPTY while a {kind:?} is in it"), move || {
            dir("d");
            make(kind, "d/x");
            touches_not("d", || err_of(rmdir("d"), &[libc::ENOTEMPTY, libc::EEXIST]));
            unmake(kind, "d/x");
            ok(rmdir("d"));
        });
    }
    table.case("EINVAL for `.`, ENOTEMPTY for `..`", || {
        dir("d");
        dir("d/e");
        err(rmdir("d/e/."), libc::EINVAL);
        err(rmdir("d/e/.."), libc::ENOTEMPTY);
    });
    table.case("a symbolic link to a directory is not followed", || {
        dir("d");
        ok(symlink("d", "link"));
        err(rmdir("link"), libc::ENOTDIR);
        err(rmdir("link/"), libc::ENOTDIR);
        assert!(exists("d"));
    });
    table.case("the directory above has a link less, and new times", || {
        dir("d");
        dir("d/e");
        assert_eq!(ok(lstat("d")).nlink, 3);
        touches("d", true, || ok(rmdir("d/e")));
        assert_eq!(ok(lstat("d")).nlink, 2);
    });
    table.case("the directory above must be writable and searchable", || {
        for (mode, allowed) in [(0o300, true), (0o500, false), (0o200, false)] {
            let above = format!("d{mode:o}");
            dir(&above);
            dir(format!("{above}/e"));
            ok(lchown(&above, ALICE.uid, ALICE.gid));
            ok(chmod(&above, mode));
            let outcome = as_user(ALICE, || rmdir(format!("{above}/e")));
            if allowed { ok(outcome) } else { err(outcome, libc::EACCES) }
        }
    });
    table.case("in a sticky directory only owners remove", || {
        alices_dir("d", 0o1777);
        as_user(BOB, || dir_mode("d/bobs", 0o777));
        as_user(MEMBER, || err(rmdir("d/bobs"), libc::EPERM));
        as_user(ALICE, || ok(rmdir("d/bobs")));
        as_user(BOB, || dir("d/bobs"));
        as_user(BOB, || ok(rmdir("d/bobs")));
    });
    table.case("permissions of the directory itself do not count", || {
        alices_dir("d", 0);
        as_user(BOB, || ok(rmdir("d")));
    });
    table.case("a removed working directory: nothing can be made in it, and it has no links", || {
        dir("d");
        ok(chdir("d"));
        ok(rmdir("../d"));
        err(mkdir("e", 0o755), libc::ENOENT);
        err(open_mode("f", libc::O_CREAT | libc::O_WRONLY, 0o644), libc::ENOENT);
        assert_eq!(ok(stat(".")).nlink, 0);
    });
    table.case("an open directory can be removed and a new one take its name", || {
        dir("d");
        let fd = ok(open("d", libc::O_RDONLY));
        ok(rmdir("d"));
        dir("d");
        assert_ne!(ok(fstat(&fd)).ino, ok(lstat("d")).ino);
        file("d/f");
    });
    table.case("an open directory that was removed has its time of change still, and no names", || {
        dir("d");
        file("d/f");
        let fd = ok(open("d", libc::O_RDONLY));
        let open = ok(Directory::open("d"));
        let names =
            |open: &Directory| ok(open.rest()).iter().filter(|entry| !entry.name.starts_with(b".")).count();
        assert_eq!(names(&open), 1);
        ok(unlink("d/f"));
        ok(futimens(&fd, (1, 2), (3, 4)));
        ok(rmdir("d"));
        let now = ok(fstat(&fd));
        assert_eq!((now.nlink, now.mtime), (0, (3, 4)));
        open.rewind();
        assert_eq!(names(&open), 0);
    });
    table.case("attributes of an open directory that was removed can be changed", || {
        dir("d");
        let fd = ok(open("d", libc::O_RDONLY));
        ok(rmdir("d"));
        ok(fchmod(&fd, 0o710));
        ok(fchown(&fd, ALICE.uid, ALICE.gid));
        ok(futimens(&fd, (1, 2), (3, 4)));
        let now = ok(fstat(&fd));
        assert_eq!((now.mode & 0o7777, now.uid, now.gid, now.mtime), (0o710, ALICE.uid, ALICE.gid, (3, 4)));
    });
}
