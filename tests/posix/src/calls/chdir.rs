//! chdir, fchdir and getcwd.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    paths::existing(table, "chdir", Kind::Directory, |path| chdir(path));
    paths::follows(table, "chdir", Kind::Directory, |path| chdir(path));
    for kind in NOT_DIRECTORIES.into_iter().filter(|kind| *kind != Kind::Symlink) {
        table.case(format!("ENOTDIR for a {kind:?}"), move || {
            make(kind, "x");
            err(chdir("x"), libc::ENOTDIR);
        });
    }
    for (class, user, shift) in CLASSES {
        table.case(format!("search permission is all that {class} needs"), move || {
            alices_dir("d", 1 << shift);
            as_user(user, || ok(chdir("d")));
            ok(chdir(".."));
            ok(chmod("d", 0o777 & !(1 << shift)));
            as_user(user, || err(chdir("d"), libc::EACCES));
        });
    }
    table.case("relative paths start at the new directory", || {
        dir("d");
        file("d/f");
        ok(chdir("d"));
        ok(lstat("f"));
        ok(lstat("../d/f"));
    });
    table.case("getcwd tells the path from the root, also after a rename", || {
        let base = ok(getcwd());
        dir("a");
        dir("a/b");
        ok(chdir("a/b"));
        assert_eq!(ok(getcwd()), format!("{base}/a/b"));
        ok(rename("../../a", "../../c"));
        assert_eq!(ok(getcwd()), format!("{base}/c/b"));
        ok(chdir(".."));
        assert_eq!(ok(getcwd()), format!("{base}/c"));
    });
    table.case("getcwd fails with ENOENT where the directory was removed", || {
        dir("d");
        ok(chdir("d"));
        ok(rmdir("../d"));
        err(getcwd(), libc::ENOENT);
    });
    table.case("fchdir goes to an open directory", || {
        dir("d");
        file("d/f");
        let fd = ok(open("d", libc::O_RDONLY));
        ok(rename("d", "e"));
        ok(fchdir(&fd));
        ok(lstat("f"));
    });
    table.case("fchdir fails with ENOTDIR for a file", || {
        file("f");
        err(fchdir(&ok(open("f", libc::O_RDONLY))), libc::ENOTDIR);
    });
    table.case("fchdir needs search permission", || {
        alices_dir("d", 0o744);
        let fd = ok(open("d", libc::O_RDONLY));
        as_user(BOB, || err(fchdir(&fd), libc::EACCES));
        as_user(ALICE, || ok(fchdir(&fd)));
    });
}
