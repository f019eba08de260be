//! renameat2: RENAME_NOREPLACE and RENAME_EXCHANGE.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use libc::{RENAME_EXCHANGE, RENAME_NOREPLACE};

pub fn define(table: &mut Table) {
    paths::existing(table, "RENAME_NOREPLACE", Kind::File, |path| renameat2(path, "new", RENAME_NOREPLACE));
    paths::existing(table, "RENAME_EXCHANGE", Kind::File, |path| {
        let _ = open_mode("other", libc::O_CREAT | libc::O_WRONLY, 0o666);
        renameat2(path, "other", RENAME_EXCHANGE)
    });
    for from in KINDS {
        table.case(format!("RENAME_NOREPLACE gives a {from:?} a new name"), move || {
            make(from, "a");
            let ino = ok(lstat("a")).ino;
            ok(renameat2("a", "b", RENAME_NOREPLACE));
            assert_eq!((exists("a"), ok(lstat("b")).ino), (false, ino));
        });
        for to in KINDS {
            table.case(format!("RENAME_NOREPLACE of a {from:?} where a {to:?} is: EEXIST"), move || {
                make(from, "a");
                make(to, "b");
                let (one, two) = (ok(lstat("a")), ok(lstat("b")));
                err(renameat2("a", "b", RENAME_NOREPLACE), libc::EEXIST);
                assert_eq!((ok(lstat("a")), ok(lstat("b"))), (one, two));
            });
            table.case(format!("RENAME_EXCHANGE of a {from:?} with a {to:?}"), move || {
                dir("p");
                dir("q");
                make(from, "p/a");
                make(to, "q/b");
                let (one, two) = (ok(lstat("p/a")), ok(lstat("q/b")));
                ok(renameat2("p/a", "q/b", RENAME_EXCHANGE));
                assert_eq!((ok(lstat("p/a")).ino, ok(lstat("q/b")).ino), (two.ino, one.ino));
                let links = |kind| if kind == Kind::Directory { 3 } else { 2 };
                assert_eq!((ok(lstat("p")).nlink, ok(lstat("q")).nlink), (links(to), links(from)));
                if to == Kind::Directory {
                    assert_eq!(ok(lstat("p/a/..")).ino, ok(lstat("p")).ino);
                }
            });
        }
    }
    table.case("RENAME_EXCHANGE fails with ENOENT where one is missing", || {
        file("a");
        err(renameat2("a", "b", RENAME_EXCHANGE), libc::ENOENT);
        err(renameat2("b", "a", RENAME_EXCHANGE), libc::ENOENT);
        assert!(exists("a"));
    });
    table.case("RENAME_EXCHANGE takes directories that are not empty", || {
        for name in ["a", "b"] {
            dir(name);
            file(format!("{name}/of-{name}"));
        }
        ok(renameat2("a", "b", RENAME_EXCHANGE));
        assert_eq!((ok(list("a")), ok(list("b"))), (vec!["of-b".into()], vec!["of-a".into()]));
    });
    table.case("RENAME_EXCHANGE fails with EINVAL where one is above the other", || {
        dir("a");
        dir("a/b");
        dir("a/b/c");
        err(renameat2("a", "a/b/c", RENAME_EXCHANGE), libc::EINVAL);
        err_of(renameat2("a/b/c", "a", RENAME_EXCHANGE), &[libc::EINVAL, libc::ENOTEMPTY]);
    });
    table.case("RENAME_EXCHANGE of two names of one file succeeds", || {
        file("a");
        ok(link("a", "b"));
        ok(renameat2("a", "b", RENAME_EXCHANGE));
        assert_eq!(ok(lstat("a")).nlink, 2);
    });
    table.case("RENAME_EXCHANGE moves the times of both directories and both ctimes", || {
        dir("p");
        dir("q");
        file("p/a");
        file("q/b");
        let before = ["p", "q", "p/a", "q/b"].map(|path| ok(lstat(path)));
        tick();
        ok(renameat2("p/a", "q/b", RENAME_EXCHANGE));
        let after = ["p", "q", "q/b", "p/a"].map(|path| ok(lstat(path)));
        for which in 0..4 {
            assert!(after[which].ctime > before[which].ctime, "ctime {which}");
            assert_eq!(after[which].mtime > before[which].mtime, which < 2, "mtime {which}");
        }
    });
    table.case("RENAME_EXCHANGE in sticky directories is for owners of both", || {
        alices_dir("d", 0o1777);
        dir_mode("out", 0o777);
        file("d/bobs");
        ok(lchown("d/bobs", BOB.uid, BOB.gid));
        as_user(MEMBER, || {
            file("out/f");
            err(renameat2("out/f", "d/bobs", RENAME_EXCHANGE), libc::EPERM);
            err(renameat2("d/bobs", "out/f", RENAME_EXCHANGE), libc::EPERM);
        });
        as_user(BOB, || ok(renameat2("d/bobs", "out/f", RENAME_EXCHANGE)));
    });
    table.case("EINVAL for both flags, and for flags that do not exist", || {
        file("a");
        file("b");
        err(renameat2("a", "b", RENAME_NOREPLACE | RENAME_EXCHANGE), libc::EINVAL);
        err(renameat2("a", "b", 1 << 20), libc::EINVAL);
        assert!(exists("a") && exists("b"));
    });
    table.case("without flags it is rename", || {
        file_with("a", b"a");
        file("b");
        ok(renameat2("a", "b", 0));
        assert_eq!(contents("b"), b"a");
    });
}
