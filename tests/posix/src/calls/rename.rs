//! rename and renameat.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use std::os::fd::AsRawFd;

/// A rename of `source`, which is made where it is missing.
fn rename_to(path: &str) -> Outcome {
    let _ = open_mode("source", libc::O_CREAT | libc::O_WRONLY, 0o666);
    rename("source", path)
}

pub fn define(table: &mut Table) {
    paths::existing(table, "rename of a file", Kind::File, |path| rename(path, "new"));
    paths::existing(table, "rename of a directory", Kind::Directory, |path| rename(path, "new"));
    paths::creating(table, "rename to a new name", rename_to);
    paths::at(table, "renameat from", Some(Kind::File), |fd, path| renameat(fd, path, libc::AT_FDCWD, "new"));
    paths::at(table, "renameat to", None, |fd, path| {
        file("source");
        renameat(libc::AT_FDCWD, "source", fd, path)
    });
    kinds(table);
    directories(table);
    permissions(table);
    contents_and_times(table);
}

fn kinds(table: &mut Table) {
    for from in KINDS {
        table.case(format!("a {from:?} has the new name only, and is the same inode"), move || {
            make(from, "a");
            let before = ok(lstat("a"));
            ok(rename("a", "b"));
            assert!(!exists("a"));
            let after = ok(lstat("b"));
            assert_eq!((after.ino, after.kind, after.nlink), (before.ino, from, before.nlink));
            dir("d");
            ok(rename("b", "d/c"));
            assert_eq!(ok(lstat("d/c")).ino, before.ino);
            assert_eq!(ok(list(".")), ["d"]);
        });
        table.case(format!("a {from:?} renamed to itself stays"), move || {
            make(from, "a");
            ok(rename("a", "a"));
            ok(rename("a", "./a"));
            assert!(exists("a"));
        });
        for to in KINDS {
            table.case(format!("a {from:?} in the place of a {to:?}"), move || {
                make(from, "a");
                make(to, "b");
                let (one, two) = (ok(lstat("a")), ok(lstat("b")));
                let outcome = rename("a", "b");
                match (from == Kind::Directory, to == Kind::Directory) {
                    (true, false) => err(outcome, libc::ENOTDIR),
                    (false, true) => err(outcome, libc::EISDIR),
                    _ => {
                        ok(outcome);
                        assert!(!exists("a"));
                        assert_eq!((ok(lstat("b")).ino, ok(lstat("b")).kind), (one.ino, from));
                        return;
                    }
                }
                assert_eq!((ok(lstat("a")).ino, ok(lstat("b")).ino), (one.ino, two.ino));
            });
        }
    }
    for kind in NOT_DIRECTORIES {
        table.case(format!("two names of one {kind:?}: nothing happens, both stay"), move || {
            make(kind, "a");
            ok(link("a", "b"));
            ok(rename("a", "b"));
            assert_eq!(ok(lstat("a")), ok(lstat("b")));
            assert_eq!(ok(lstat("a")).nlink, 2);
        });
        table.case(format!("a {kind:?} that is replaced loses a link"), move || {
            make(kind, "b");
            ok(link("b", "other"));
            file("a");
            touches("other", false, || ok(rename("a", "b")));
            assert_eq!(ok(lstat("other")).nlink, 1);
        });
    }
    table.case("a symbolic link is renamed itself, and replaced itself", || {
        file_with("f", b"text");
        ok(symlink("f", "link"));
        ok(rename("link", "moved"));
        assert_eq!(ok(lstat("moved")).kind, Kind::Symlink);
        file_with("g", b"other");
        ok(rename("g", "moved"));
        assert_eq!(contents("moved"), b"other");
        assert_eq!(contents("f"), b"text");
    });
    table.case("EBUSY or EINVAL for `.` and `..`", || {
        dir("d");
        for name in [".", "d/.", ".."] {
            err_of(rename(name, "x"), &[libc::EBUSY, libc::EINVAL]);
            err_of(rename("d", name), &[libc::EBUSY, libc::EINVAL]);
        }
    });
    table.case("a slash at the end is for directories", || {
        file("f");
        dir("d");
        err(rename("f", "g/"), libc::ENOTDIR);
        ok(rename("d/", "e/"));
        assert_eq!(ok(list(".")), ["e", "f"]);
    });
}

fn directories(table: &mut Table) {
    for kind in KINDS {
        table.case(format!("a directory with a {kind:?} in it is not replaced"), move || {
            dir("a");
            dir("b");
            make(kind, "b/x");
            err_of(rename("a", "b"), &[libc::ENOTEMPTY, libc::EEXIST]);
            assert!(exists("a") && exists("b/x"));
        });
    }
    table.case("EINVAL for a directory into itself or below", || {
        dir("a");
        dir("a/b");
        dir("a/b/c");
        for to in ["a/x", "a/b/x", "a/b/c/x", "a/b/c"] {
            err(rename("a", to), libc::EINVAL);
        }
        assert!(exists("a/b/c"));
    });
    table.case("ENOTEMPTY for a directory to its own parent or above", || {
        dir("a");
        dir("a/b");
        dir("a/b/c");
        for to in ["a/b", "a"] {
            err_of(rename("a/b/c", to), &[libc::ENOTEMPTY, libc::EEXIST]);
        }
    });
    table.case("`..` leads to the new parent, and link counts move along", || {
        dir("a");
        dir("b");
        dir("a/c");
        file("a/c/f");
        ok(rename("a/c", "b/d"));
        assert_eq!(ok(lstat("b/d/..")).ino, ok(lstat("b")).ino);
        assert_eq!((ok(lstat("a")).nlink, ok(lstat("b")).nlink), (2, 3));
        assert!(exists("b/d/f"));
    });
    table.case("a replaced directory's parent has a link less", || {
        dir("p");
        dir("p/a");
        dir("p/b");
        ok(rename("p/a", "p/b"));
        assert_eq!(ok(lstat("p")).nlink, 3);
        dir("c");
        ok(rename("c", "p/b"));
        assert_eq!(ok(lstat("p")).nlink, 3);
    });
    table.case("what is below a renamed directory is open on", || {
        dir("a");
        file_with("a/f", b"text");
        let fd = ok(open("a/f", libc::O_RDWR));
        ok(rename("a", "b"));
        assert_eq!(ok(read(&fd, 9)), b"text");
        assert_eq!(contents("b/f"), b"text");
        err(stat("a/f"), libc::ENOENT);
    });
    table.case("a working directory that was replaced takes nothing new", || {
        dir("a");
        dir("b");
        ok(chdir("b"));
        ok(rename("../a", "../b"));
        err(open_mode("f", libc::O_CREAT | libc::O_WRONLY, 0o644), libc::ENOENT);
    });
    table.case("ENOENT into a directory that was removed", || {
        file("f");
        dir("d");
        let fd = ok(open("d", libc::O_RDONLY));
        ok(rmdir("d"));
        err(renameat(libc::AT_FDCWD, "f", fd.as_raw_fd(), "g"), libc::ENOENT);
    });
}

fn permissions(table: &mut Table) {
    for (which, from_mode, to_mode, allowed) in [
        ("both writable", 0o300, 0o300, true),
        ("the old one is not writable", 0o100, 0o300, false),
        ("the new one is not writable", 0o300, 0o100, false),
        ("the old one is not searchable", 0o200, 0o300, false),
        ("the new one is not searchable", 0o300, 0o200, false),
    ] {
        table.case(format!("permissions of the directories: {which}"), move || {
            dir("a");
            file("a/f");
            dir("b");
            for (path, mode) in [("a", from_mode), ("b", to_mode)] {
                ok(lchown(path, ALICE.uid, ALICE.gid));
                ok(chmod(path, mode));
            }
            let outcome = as_user(ALICE, || rename("a/f", "b/f"));
            if allowed { ok(outcome) } else { err(outcome, libc::EACCES) }
        });
    }
    for kind in KINDS {
        table.case(format!("in a sticky directory a {kind:?} is renamed by owners only"), move || {
            alices_dir("d", 0o1777);
            dir_mode("out", 0o777);
            for (user, allowed) in [(MEMBER, false), (BOB, true), (ALICE, kind != Kind::Directory)] {
                make(kind, "d/x");
                ok(lchown("d/x", BOB.uid, BOB.gid));
                let outcome = as_user(user, || rename("d/x", "out/y"));
                match allowed {
                    true => ok(outcome),
                    // Alice may take it out, but its `..` cannot be changed without writing it.
                    false if user.uid == ALICE.uid => err(outcome, libc::EACCES),
                    false => err(outcome, libc::EPERM),
                }
                unmake(kind, if allowed { "out/y" } else { "d/x" });
            }
        });
        table.case(format!("in a sticky directory a {kind:?} is replaced by owners only"), move || {
            alices_dir("d", 0o1777);
            for (user, allowed) in [(MEMBER, false), (BOB, true), (ALICE, true)] {
                make(kind, "d/x");
                ok(lchown("d/x", BOB.uid, BOB.gid));
                as_user(user, || if kind == Kind::Directory { dir("new") } else { file("new") });
                let outcome = as_user(user, || rename("new", "d/x"));
                match allowed {
                    true => ok(outcome),
                    false => err(outcome, libc::EPERM),
                }
                let left = if kind == Kind::Directory { Kind::Directory } else { Kind::File };
                unmake(if allowed { left } else { kind }, "d/x");
                if !allowed {
                    unmake(left, "new");
                }
            }
        });
    }
    table.case("a directory that changes parents must be writable, within one it need not", || {
        alices_dir("d", 0o777);
        alices_dir("d/x", 0o555);
        dir_mode("out", 0o777);
        as_user(BOB, || {
            ok(rename("d/x", "d/y"));
            err(rename("d/y", "out/y"), libc::EACCES);
        });
        ok(chmod("d/y", 0o777));
        as_user(BOB, || ok(rename("d/y", "out/y")));
    });
    table.case("permissions of the file itself do not count", || {
        alices_file("f", 0);
        alices_file("g", 0);
        as_user(BOB, || ok(rename("f", "g")));
    });
}

fn contents_and_times(table: &mut Table) {
    table.case("both directories have new times, and the file a new ctime", || {
        dir("a");
        dir("b");
        file("a/f");
        let before = ["a", "b", "a/f"].map(|path| ok(lstat(path)));
        tick();
        ok(rename("a/f", "b/g"));
        let after = ["a", "b", "b/g"].map(|path| ok(lstat(path)));
        for which in 0..2 {
            assert!(after[which].mtime > before[which].mtime && after[which].ctime > before[which].ctime);
        }
        assert_eq!(after[2].mtime, before[2].mtime);
        assert!(after[2].ctime > before[2].ctime);
    });
    table.case("a failing rename leaves all times", || {
        dir("a");
        dir("b");
        file("b/f");
        touches_not("a", || err_of(rename("a", "b"), &[libc::ENOTEMPTY, libc::EEXIST]));
        touches_not("b", || err(rename("b/missing", "b/x"), libc::ENOENT));
    });
    table.case("a replaced file that is open lives on", || {
        file_with("a", b"new");
        file_with("b", b"old");
        let fd = ok(open("b", libc::O_RDONLY));
        ok(rename("a", "b"));
        assert_eq!(ok(read(&fd, 9)), b"old");
        assert_eq!(ok(fstat(&fd)).nlink, 0);
        assert_eq!(contents("b"), b"new");
    });
    table.case("at every moment the name leads to the old or the new file", || {
        file_with("name", b"0");
        in_process(|| {
            let name = std::ffi::CString::new("done").expect("no zero");
            // SAFETY: a child of this process, whose one thread goes on in both; it ends without running the parent's code.
            let child = unsafe { libc::fork() };
            if child == 0 {
                for number in 1..fewer(200) {
                    file_with("new", number.to_string().as_bytes());
                    ok(rename("new", "name"));
                }
                // SAFETY: the name ends with zero.
                unsafe { libc::mkdir(name.as_ptr(), 0o755) };
                // SAFETY: ends this process.
                unsafe { libc::_exit(0) };
            }
            let mut last = 0;
            while !exists("done") {
                let text = String::from_utf8(contents("name")).expect("digits");
                let number: u32 = text.parse().expect("a number, never nothing");
                assert!(number >= last, "{number} after {last}");
                last = number;
            }
        });
    });
}
