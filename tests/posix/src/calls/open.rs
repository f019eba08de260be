//! open, creat and openat.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use libc::{O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};
use std::os::fd::{AsRawFd, OwnedFd};

fn create(path: &str) -> Outcome {
    open_mode(path, O_CREAT | O_WRONLY, 0o644).map(drop)
}

fn create_new(path: &str) -> Outcome {
    open_mode(path, O_CREAT | O_EXCL | O_WRONLY, 0o644).map(drop)
}

/// A file without a name in the current directory; `None` where the file system has no such files, as open(2) allows.
fn unnamed(flags: i32) -> Option<OwnedFd> {
    match open_mode(".", libc::O_TMPFILE | flags, 0o666) {
        Err(Errno(libc::EOPNOTSUPP | libc::EISDIR)) => None,
        outcome => Some(ok(outcome)),
    }
}

fn give_name(fd: &OwnedFd, name: &str) -> Outcome {
    linkat(format!("/proc/self/fd/{}", fd.as_raw_fd()), name, libc::AT_SYMLINK_FOLLOW)
}

fn without_a_name(table: &mut Table) {
    table.case("O_TMPFILE makes a file without a name, which linkat may give one", || {
        let Some(fd) = unnamed(O_RDWR) else { return };
        assert_eq!(ok(write(&fd, b"hidden")), 6);
        assert_eq!(ok(list(".")), [] as [&str; 0]);
        let before = ok(fstat(&fd));
        assert_eq!((before.nlink, before.kind, before.size), (0, Kind::File, 6));
        file("taken");
        err(give_name(&fd, "taken"), libc::EEXIST);
        ok(give_name(&fd, "f"));
        let named = ok(lstat("f"));
        assert_eq!((named.ino, named.nlink, ok(fstat(&fd)).nlink), (before.ino, 1, 1));
        ok(link("f", "g"));
        assert_eq!(ok(write(&fd, b" once")), 5);
        drop(fd);
        assert_eq!(contents("f"), b"hidden once");
        assert_eq!(contents("g"), b"hidden once");
    });
    table.case("O_TMPFILE: a name that was lost does not come back", || {
        let Some(fd) = unnamed(O_RDWR) else { return };
        ok(give_name(&fd, "f"));
        ok(unlink("f"));
        err(give_name(&fd, "f"), libc::ENOENT);
        assert_eq!(ok(write(&fd, b"gone")), 4);
    });
    table.case("O_TMPFILE with O_EXCL: the file gets no name", || {
        let Some(fd) = unnamed(O_RDWR | libc::O_EXCL) else { return };
        assert_eq!(ok(write(&fd, b"hidden")), 6);
        err(give_name(&fd, "f"), libc::ENOENT);
        assert_eq!(ok(list(".")), [] as [&str; 0]);
    });
    table.case("O_TMPFILE: the bytes stay as long as a descriptor", || {
        let Some(fd) = unnamed(O_RDWR) else { return };
        let bytes = vec![7; fewer(300_000)];
        assert_eq!(ok(pwrite(&fd, &bytes, 0)), bytes.len());
        let again = ok(dup(&fd));
        drop(fd);
        assert!(ok(pread(&again, bytes.len(), 0)) == bytes);
        ok(ftruncate(&again, 5));
        assert_eq!(ok(fstat(&again)).size, 5);
    });
    table.case("O_TMPFILE: mode, owner and group are those of a new file in the directory", || {
        alices_dir("d", 0o2777);
        ok(chown("d", ALICE.uid, BOB.gid));
        ok(chmod("d", 0o2777));
        as_user(ALICE, || {
            umask(0o027);
            let fd = match open_mode("d", libc::O_TMPFILE | O_WRONLY, 0o666) {
                Err(Errno(libc::EOPNOTSUPP | libc::EISDIR)) => return,
                outcome => ok(outcome),
            };
            let made = ok(fstat(&fd));
            assert_eq!((made.mode, made.uid, made.gid), (0o640, ALICE.uid, BOB.gid));
        });
    });
    table.case("O_TMPFILE: the directory must be one that may be written, and so must the file", || {
        if unnamed(O_RDWR).is_none() {
            return;
        }
        file("f");
        alices_dir("d", 0o555);
        err(open_mode("f", libc::O_TMPFILE | O_RDWR, 0o600), libc::ENOTDIR);
        err(open_mode("none", libc::O_TMPFILE | O_RDWR, 0o600), libc::ENOENT);
        err(open_mode(".", libc::O_TMPFILE | O_RDONLY, 0o600), libc::EINVAL);
        as_user(BOB, || err(open_mode("d", libc::O_TMPFILE | O_RDWR, 0o600), libc::EACCES));
    });
}

pub fn define(table: &mut Table) {
    paths::existing(table, "open", Kind::File, |path| open(path, O_RDONLY).map(drop));
    paths::follows(table, "open", Kind::File, |path| open(path, O_RDONLY).map(drop));
    paths::at(table, "openat", Some(Kind::File), |fd, path| openat(fd, path, O_RDONLY, 0).map(drop));
    paths::at(table, "openat with O_CREAT", None, |fd, path| {
        openat(fd, path, O_CREAT | O_WRONLY, 0o600).map(drop)
    });
    paths::creating(table, "O_CREAT", create);
    paths::owned(table, "O_CREAT", create);
    paths::creating(table, "O_CREAT with O_EXCL", create_new);
    paths::refuses_existing(table, "O_CREAT with O_EXCL", create_new);
    paths::creating(table, "creat", |path| creat(path, 0o644).map(drop));
    permissions(table);
    creation(table);
    truncation(table);
    kinds(table);
}

fn permissions(table: &mut Table) {
    let ways = [
        ("to read", O_RDONLY, 4),
        ("to write", O_WRONLY, 2),
        ("for both", O_RDWR, 6),
        ("to truncate", O_RDONLY | O_TRUNC, 6),
    ];
    for (class, user, shift) in CLASSES {
        for bits in 0..8 {
            table.case(format!("{class} opens a file as mode bits {bits} of the class say"), move || {
                alices_file("f", class_mode(shift, bits));
                for (name, flags, needed) in ways {
                    let outcome = as_user(user, || open("f", flags).map(drop));
                    match bits & needed == needed {
                        true => assert!(outcome.is_ok(), "{name}: {outcome:?}"),
                        false => assert!(outcome == Err(Errno(libc::EACCES)), "{name}: {outcome:?}"),
                    }
                }
            });
            table.case(format!("{class} uses a directory as mode bits {bits} of the class say"), move || {
                dir("d");
                file("d/f");
                ok(lchown("d", ALICE.uid, ALICE.gid));
                ok(chmod("d", class_mode(shift, bits)));
                let allowed = |needed: u32| bits & needed == needed;
                as_user(user, || {
                    assert_eq!(list("d").is_ok(), allowed(4), "listing");
                    assert_eq!(lstat("d/f").is_ok(), allowed(1), "searching");
                    assert_eq!(create("d/g").is_ok(), allowed(3), "making");
                    assert_eq!(unlink("d/f").is_ok(), allowed(3), "removing");
                });
            });
        }
    }
    table.case("root opens whatever the mode", move || {
        alices_file("f", 0);
        for (_, flags, _) in ways {
            ok(open("f", flags));
        }
    });
    table.case("a new file may be open in a way that its mode forbids", || {
        as_user(BOB, || {
            let fd = ok(open_mode("f", O_CREAT | O_RDWR, 0));
            assert_eq!(ok(write(&fd, b"x")), 1);
            assert_eq!(ok(pread(&fd, 1, 0)), b"x");
            err(open("f", O_RDONLY), libc::EACCES);
        });
    });
    table.case("O_NOATIME is for the owner", || {
        alices_file("f", 0o666);
        as_user(ALICE, || ok(open("f", O_RDONLY | libc::O_NOATIME)));
        as_user(BOB, || err(open("f", O_RDONLY | libc::O_NOATIME), libc::EPERM));
    });
    table.case("reading fails with EBADF where the file is open to write, and the other way", || {
        file_with("f", b"x");
        err(read(&ok(open("f", O_WRONLY)), 1), libc::EBADF);
        err(write(&ok(open("f", O_RDONLY)), b"y"), libc::EBADF);
    });
}

fn creation(table: &mut Table) {
    for mode in [0, 0o600, 0o644, 0o755, 0o777, 0o1644, 0o2755, 0o4755] {
        table.case(format!("O_CREAT makes a file of mode {mode:o}"), move || {
            let fd = ok(open_mode("f", O_CREAT | O_WRONLY, mode));
            let stat = ok(fstat(&fd));
            assert_eq!((stat.kind, stat.mode, stat.nlink, stat.size), (Kind::File, mode, 1, 0));
            assert_eq!(ok(lstat("f")), stat);
        });
    }
    table.case("times of a new file are now, and equal", || {
        dir("before");
        tick();
        file("f");
        let stat = ok(lstat("f"));
        assert!(stat.mtime > ok(lstat("before")).mtime);
        assert_eq!((stat.atime, stat.mtime), (stat.mtime, stat.ctime));
    });
    table.case("O_CREAT of what exists opens it as it is", || {
        alices_file("f", 0o640);
        file_with("g", b"text");
        touches_not("f", || ok(open_mode("f", O_CREAT | O_WRONLY, 0o777)));
        assert_eq!(ok(lstat("f")).mode, 0o640);
        let fd = ok(open_mode("g", O_CREAT | O_RDWR, 0o600));
        assert_eq!(ok(read(&fd, 9)), b"text");
    });
    table.case("O_CREAT of what exists needs no permission for the directory", || {
        dir("d");
        file_mode("d/f", 0o666);
        as_user(BOB, || {
            ok(create("d/f"));
            err(create("d/g"), libc::EACCES);
            err(create_new("d/g"), libc::EACCES);
            err(create_new("d/f"), libc::EEXIST);
        });
    });
    table.case("O_CREAT follows a dangling symbolic link, O_EXCL does not", || {
        ok(symlink("target", "link"));
        err(create_new("link"), libc::EEXIST);
        assert!(!exists("target"));
        ok(create("link"));
        assert_eq!(ok(lstat("target")).kind, Kind::File);
    });
    table.case("O_CREAT follows a link to another directory", || {
        dir("d");
        ok(symlink("d/target", "link"));
        ok(create("link"));
        ok(lstat("d/target"));
    });
    table.case("EISDIR where O_CREAT meets a directory or a slash at the end", || {
        dir("d");
        file("f");
        ok(symlink("nowhere", "dangling"));
        ok(symlink("loop", "loop"));
        for name in ["d", "d/", "f/", "new/", "dangling/", "loop/"] {
            err(create(name), libc::EISDIR);
        }
        assert!(!exists("new") && !exists("nowhere"));
    });
    table.case("O_EXCL without O_CREAT means nothing", || {
        file("f");
        ok(open("f", O_RDONLY | O_EXCL));
    });
    table.case("of many processes one creates with O_EXCL", || {
        for round in 0..10 {
            let name = format!("f{round}");
            let won = (0..8).filter(|_| create_new(&name).is_ok()).count();
            assert_eq!(won, 1);
        }
    });
    table.case("set-group-id directories do not pass the bit to files", || {
        dir_mode("d", 0o777);
        ok(chmod("d", 0o2777));
        file("d/f");
        assert_eq!(ok(lstat("d/f")).mode, 0o644);
    });
    table.case(
        "who is not in the group of a set-group-id directory makes no set-group-id program there",
        || {
            dir("d");
            ok(lchown("d", ALICE.uid, ALICE.gid));
            ok(chmod("d", 0o2777));
            as_user(BOB, || drop(ok(open_mode("d/f", O_CREAT | O_WRONLY, 0o2755))));
            assert_eq!(ok(lstat("d/f")).mode, 0o755);
            as_user(COLLEAGUE, || drop(ok(open_mode("d/g", O_CREAT | O_WRONLY, 0o2755))));
            assert_eq!(ok(lstat("d/g")).mode, 0o2755);
        },
    );
    for (caller, user, is_member) in
        [("root", ROOT, true), ("a member of the group", COLLEAGUE, true), ("another", BOB, false)]
    {
        for dir_mode in [0o777, 0o2777] {
            table.case(
                format!("set-group-id of what {caller} makes in a directory of mode {dir_mode:o}"),
                move || made_with_set_group_id(user, is_member, dir_mode),
            );
        }
    }
    table.case("the name may have any bytes but a slash and zero", || {
        for name in [&b"\xff\xfe"[..], b"a b", b"\n", b"-", b"...", b"\xc3\xbc", b"*", b"\\"] {
            ok(open_mode(name, O_CREAT | O_EXCL | O_WRONLY, 0o644));
            assert!(exists(name));
        }
        assert_eq!(ok(list(".")).len(), 8);
    });
}

/// Every way to make a file, with modes that differ in set-group-id and the group's execution. Linux takes the bit from a
/// file that the group may execute, if it gets its group from the directory and its maker is not in that group.
fn made_with_set_group_id(user: User, is_member: bool, dir_mode: u32) {
    const SET_GROUP: u32 = 0o2000;
    dir("d");
    ok(lchown("d", ALICE.uid, ALICE.gid));
    ok(chmod("d", dir_mode));
    let inherits = dir_mode & SET_GROUP != 0;
    for mode in [0o644, 0o755, 0o2644, 0o2755, 0o2710, 0o2777, 0o6755, 0o6644] {
        let stripped = inherits && !is_member && mode & (SET_GROUP | 0o010) == SET_GROUP | 0o010;
        let expected = mode & if stripped { !SET_GROUP } else { !0 };
        as_user(user, || {
            drop(ok(open_mode("d/opened", O_CREAT | O_WRONLY, mode)));
            drop(ok(creat("d/created", mode)));
            ok(mknod("d/node", libc::S_IFREG | mode, 0));
            ok(mknod("d/fifo", libc::S_IFIFO | mode, 0));
        });
        for name in ["opened", "created", "node", "fifo"] {
            let path = format!("d/{name}");
            let made = ok(lstat(&path));
            let group = if inherits { ALICE.gid } else { user.gid };
            assert_eq!((made.mode, made.gid), (expected, group), "{name} with {mode:o}");
            ok(unlink(&path));
        }
        as_user(user, || ok(mkdir("d/below", mode)));
        let made = ok(lstat("d/below"));
        let passed_on = if inherits { SET_GROUP } else { 0 };
        assert_eq!(made.mode, mode & 0o1777 | passed_on, "directory with {mode:o}");
        ok(rmdir("d/below"));
    }
}

fn truncation(table: &mut Table) {
    table.case("O_TRUNC empties a file and moves both times", || {
        file_with("f", &[1; 5000]);
        touches("f", true, || drop(ok(open("f", O_WRONLY | O_TRUNC))));
        let stat = ok(lstat("f"));
        assert_eq!((stat.size, contents("f").len()), (0, 0));
    });
    table.case("O_TRUNC of an empty file moves both times too", || {
        file("f");
        touches("f", true, || drop(ok(open("f", O_WRONLY | O_TRUNC))));
    });
    table.case("creat of what exists empties it and leaves the mode", || {
        file_with("f", b"text");
        ok(chmod("f", 0o601));
        ok(creat("f", 0o777));
        let stat = ok(lstat("f"));
        assert_eq!((stat.size, stat.mode), (0, 0o601));
    });
    table.case("other descriptors see the truncation", || {
        file_with("f", b"0123456789");
        let fd = ok(open("f", O_RDWR));
        assert_eq!(ok(read(&fd, 5)).len(), 5);
        ok(open("f", O_WRONLY | O_TRUNC));
        assert_eq!(ok(read(&fd, 5)), b"");
        assert_eq!(ok(fstat(&fd)).size, 0);
        assert_eq!(ok(write(&fd, b"x")), 1);
        assert_eq!(contents("f"), b"\0\0\0\0\0x");
    });
    table.case("O_TRUNC takes set-id bits when another than root does it", || {
        file_with("f", b"program");
        ok(lchown("f", ALICE.uid, ALICE.gid));
        ok(chmod("f", 0o6777));
        as_user(BOB, || drop(ok(open("f", O_WRONLY | O_TRUNC))));
        assert_eq!(ok(lstat("f")).mode, 0o777);
    });
    table.case("what may not be opened is not truncated", || {
        file_with("f", b"text");
        as_user(BOB, || err(open("f", O_WRONLY | O_TRUNC), libc::EACCES));
        dir("d");
        err(open("d", O_WRONLY | O_TRUNC), libc::EISDIR);
        assert_eq!(contents("f"), b"text");
    });
}

fn kinds(table: &mut Table) {
    table.case("a directory opens to read only", || {
        dir("d");
        ok(open("d", O_RDONLY));
        for flags in [O_WRONLY, O_RDWR, O_RDONLY | O_CREAT] {
            err(open("d", flags), libc::EISDIR);
        }
    });
    for kind in NOT_DIRECTORIES {
        table.case(format!("O_DIRECTORY fails with ENOTDIR for a {kind:?}"), move || {
            make(kind, "x");
            let due = if kind == Kind::Symlink { libc::ENOENT } else { libc::ENOTDIR };
            err(open("x", O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK), due);
        });
    }
    table.case("O_NOFOLLOW fails with ELOOP for a symbolic link at the end only", || {
        file("f");
        ok(symlink("f", "link"));
        err(open("link", O_RDONLY | libc::O_NOFOLLOW), libc::ELOOP);
        ok(symlink(".", "here"));
        ok(open("here/f", O_RDONLY | libc::O_NOFOLLOW));
    });
    table.case("O_PATH gives a descriptor for names and attributes only", || {
        file_with("f", b"x");
        ok(chmod("f", 0));
        as_user(BOB, || {
            let fd = ok(open("f", libc::O_PATH));
            assert_eq!(ok(fstat(&fd)).size, 1);
            err(read(&fd, 1), libc::EBADF);
        });
    });
    without_a_name(table);
    table.case("O_DIRECT reads and writes whole blocks where it is offered", || {
        let Ok(fd) = open_mode("f", O_CREAT | O_RDWR | libc::O_DIRECT, 0o600) else { return };
        let map = ok(Mapping::anonymous(8192));
        map.set(0, &[5; 4096]);
        assert_eq!(ok(map.pwrite(&fd, 0, 4096, 0)), 4096);
        assert_eq!(ok(map.pread(&fd, 4096, 4096, 0)), 4096);
        assert_eq!(map.bytes(4096, 4096), [5; 4096]);
        assert_eq!(contents("f"), [5; 4096]);
    });
    table.case("a program runs, but not while it is open to write", || {
        if ok(statvfs(".")).f_flag & libc::ST_NOEXEC != 0 {
            return;
        }
        let program = std::fs::read("/bin/true").expect("a program");
        file_with("program", &program);
        ok(chmod("program", 0o755));
        let status = std::process::Command::new("./program").status().expect("it runs");
        assert!(status.success());
        let fd = ok(open("program", O_WRONLY));
        let busy = std::process::Command::new("./program").status().expect_err("open to write");
        assert_eq!(busy.raw_os_error(), Some(libc::ETXTBSY));
        drop(fd);
    });
}
