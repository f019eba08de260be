//! mkdir and mkdirat.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    paths::creating(table, "mkdir", |path| mkdir(path, 0o755));
    paths::refuses_existing(table, "mkdir", |path| mkdir(path, 0o755));
    paths::owned(table, "mkdir", |path| mkdir(path, 0o755));
    paths::at(table, "mkdirat", None, |fd, path| mkdirat(fd, path, 0o755));
    table.case("a new directory has two links and is empty", || {
        dir("d");
        let stat = ok(lstat("d"));
        assert_eq!((stat.kind, stat.nlink), (Kind::Directory, 2));
        assert_eq!(ok(list("d")), [] as [&str; 0]);
    });
    table.case("the directory above has a link more for each", || {
        dir("d");
        for number in 0..5 {
            assert_eq!(ok(lstat("d")).nlink, 2 + number);
            dir(format!("d/{number}"));
        }
        file("d/file");
        assert_eq!(ok(lstat("d")).nlink, 7);
    });
    table.case("all times of a new directory are now, and equal", || {
        dir("before");
        tick();
        dir("d");
        let stat = ok(lstat("d"));
        assert!(stat.mtime > ok(lstat("before")).mtime);
        assert_eq!((stat.atime, stat.mtime), (stat.mtime, stat.ctime));
    });
    table.case("set-group-id passes on to directories below", || {
        dir("d");
        ok(lchown("d", ALICE.uid, ALICE.gid));
        ok(chmod("d", 0o2777));
        as_user(BOB, || dir("d/e"));
        let made = ok(lstat("d/e"));
        assert_eq!((made.mode, made.gid), (0o2755, ALICE.gid));
        as_user(BOB, || dir("d/e/f"));
        assert_eq!(ok(lstat("d/e/f")).mode, 0o2755);
    });
    for mode in [0, 0o500, 0o755, 0o777, 0o1777] {
        table.case(format!("mode {mode:o} is what the directory has"), move || {
            dir_mode("d", mode);
            assert_eq!(ok(lstat("d")).mode, mode);
        });
    }
    table.case("set-id bits of the mode are left out", || {
        dir_mode("d", 0o6755);
        assert_eq!(ok(lstat("d")).mode, 0o755);
    });
    table.case("a slash may follow the new name", || {
        dir("d/");
        dir("e///");
        assert_eq!(ok(list(".")), ["d", "e"]);
    });
    table.case("a dangling symbolic link is not followed, even with a slash", || {
        ok(symlink("target", "link"));
        err(mkdir("link", 0o755), libc::EEXIST);
        err(mkdir("link/", 0o755), libc::EEXIST);
        assert!(!exists("target"));
    });
    table.case("`..` and `.` lead where they should", || {
        dir("d");
        dir("d/e");
        assert_eq!(ok(lstat("d/e/..")).ino, ok(lstat("d")).ino);
        assert_eq!(ok(lstat("d/e/.")).ino, ok(lstat("d/e")).ino);
        assert_eq!(ok(lstat("d/e/../..")).ino, ok(lstat(".")).ino);
    });
}
