//! link and linkat.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

/// A link of `source`, which is made where it is missing.
fn link_to(path: &str) -> Outcome {
    let _ = open_mode("source", libc::O_CREAT | libc::O_WRONLY, 0o666);
    link("source", path)
}

pub fn define(table: &mut Table) {
    paths::existing(table, "link from", Kind::File, |path| link(path, "new"));
    paths::creating(table, "link to", link_to);
    paths::refuses_existing(table, "link", link_to);
    for kind in NOT_DIRECTORIES {
        table.case(format!("a {kind:?} has two names then, and is one inode"), move || {
            make(kind, "a");
            ok(link("a", "b"));
            let (a, b) = (ok(lstat("a")), ok(lstat("b")));
            assert_eq!(a, b);
            assert_eq!((a.nlink, a.kind), (2, kind));
            ok(unlink("a"));
            assert_eq!(ok(lstat("b")).nlink, 1);
        });
        table.case(format!("ctime of a {kind:?} moves"), move || {
            make(kind, "a");
            touches("a", false, || ok(link("a", "b")));
        });
    }
    table.case("a directory cannot have a second name", || {
        dir("d");
        err(link("d", "e"), libc::EPERM);
        alices_dir("f", 0o755);
        as_user(ALICE, || err(link("f", "g"), libc::EPERM));
    });
    table.case("names in other directories count too", || {
        dir("d");
        dir("e");
        file_with("d/a", b"text");
        ok(link("d/a", "e/b"));
        ok(link("e/b", "c"));
        assert_eq!(ok(lstat("c")).nlink, 3);
        ok(unlink("d/a"));
        assert_eq!(contents("e/b"), b"text");
        assert_eq!(ok(lstat("c")).nlink, 2);
    });
    table.case("what is written by one name is read by the other", || {
        file_with("a", b"one");
        ok(link("a", "b"));
        file_with("b", b"second");
        assert_eq!(contents("a"), b"second");
        ok(truncate("a", 2));
        assert_eq!(ok(lstat("b")).size, 2);
    });
    table.case("a symbolic link is linked itself, or its target with AT_SYMLINK_FOLLOW", || {
        file("f");
        ok(symlink("f", "s"));
        ok(link("s", "t"));
        assert_eq!(ok(lstat("t")).kind, Kind::Symlink);
        ok(linkat("s", "u", libc::AT_SYMLINK_FOLLOW));
        assert_eq!(ok(lstat("u")).ino, ok(lstat("f")).ino);
    });
    table.case("ENOENT where a slash follows the new name", || {
        file("f");
        err(link("f", "g/"), libc::ENOENT);
    });
    table.case("a failing link leaves count and times", || {
        file("f");
        dir("d");
        touches_not("f", || err(link("f", "d"), libc::EEXIST));
        assert_eq!(ok(lstat("f")).nlink, 1);
    });
    table.case("both names are the same name: EEXIST", || {
        file("f");
        err(link("f", "f"), libc::EEXIST);
    });
    table.case("hundreds of names", || {
        let count = fewer(1000);
        file("f");
        for number in 0..count {
            ok(link("f", format!("n{number}")));
        }
        assert_eq!(ok(lstat("f")).nlink, count as u64 + 1);
        for number in 0..count {
            ok(unlink(format!("n{number}")));
        }
        assert_eq!(ok(lstat("f")).nlink, 1);
    });
    table.case("a file whose last name is gone gets no new one", || {
        use std::os::fd::AsRawFd;
        file("f");
        let fd = ok(open("f", libc::O_RDWR));
        ok(unlink("f"));
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        err(linkat(path, "g", libc::AT_SYMLINK_FOLLOW), libc::ENOENT);
    });
    table.case("the owner of the file may whatever its mode", || {
        alices_file("f", 0);
        as_user(ALICE, || ok(link("f", "g")));
    });
}
