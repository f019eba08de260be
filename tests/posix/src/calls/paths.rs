//! What holds for every call that takes a path: it is written once, and each call's file asks for its cases.
//!
//! ```text
//!   way/x   `way` missing: ENOENT, no directory: ENOTDIR, not searchable: EACCES, a loop of links: ELOOP
//!       └── of 256 bytes: ENAMETOOLONG; the call works with 255
//! ```

use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use std::os::fd::{AsRawFd, RawFd};

/// The call under test, reduced to the path that varies.
pub type Run = fn(&str) -> Outcome;
/// The same with a directory that the path starts at.
pub type RunAt = fn(RawFd, &str) -> Outcome;

/// Kinds that may stand where a directory should.
const NO_WAYS: [Kind; 5] = [Kind::File, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block];

/// How many symbolic links Linux follows in one path.
const LINKS_MAX: usize = 40;

/// The rules for a call on something that exists, made as a `kind`.
pub fn existing(table: &mut Table, call: &str, kind: Kind, run: Run) {
    common(table, call, Some(kind), run);
    table.case(format!("{call} fails with ENOENT where nothing has the name"), move || {
        err(run("missing"), libc::ENOENT);
    });
    match kind {
        Kind::Directory => table.case(format!("{call} takes a slash after a directory"), move || {
            dir("x");
            ok(run("x/"));
        }),
        Kind::File => {
            table.case(format!("{call} fails with ENOTDIR where a slash follows a file"), move || {
                file("x");
                err(run("x/"), libc::ENOTDIR);
            })
        }
        _ => {}
    }
}

/// The rules for a call that gives a new name.
pub fn creating(table: &mut Table, call: &str, run: Run) {
    common(table, call, None, run);
    table.case(format!("{call} needs permission to write the directory"), move || {
        for (mode, allowed) in [(0o300, true), (0o700, true), (0o500, false), (0o200, false), (0o077, false)]
        {
            let way = format!("way-{mode:o}");
            alices_dir(&way, mode);
            let outcome = as_user(ALICE, || run(&format!("{way}/x")));
            if allowed { ok(outcome) } else { err(outcome, libc::EACCES) }
        }
    });
    table.case(format!("{call} moves the times of the directory"), move || {
        dir("way");
        touches("way", true, || ok(run("way/x")));
    });
    table.case(format!("{call} leaves the times of the directory where it fails"), move || {
        dir("way");
        touches_not("way", || err(run(&format!("way/{}", name_of(256))), libc::ENAMETOOLONG));
    });
    table.case(format!("{call} fails with ENOENT in a directory that was removed"), move || {
        dir("way");
        ok(chdir("way"));
        ok(rmdir("../way"));
        err(run("x"), libc::ENOENT);
    });
}

/// A call that fails with EEXIST where anything has the name, also a dangling symbolic link.
pub fn refuses_existing(table: &mut Table, call: &str, run: Run) {
    for kind in KINDS {
        table.case(format!("{call} fails with EEXIST where a {kind:?} has the name"), move || {
            make(kind, "x");
            let before = ok(lstat("x"));
            err(run("x"), libc::EEXIST);
            assert_eq!(ok(lstat("x")), before);
        });
    }
    for name in [".", "..", "/", "x/.", "x/.."] {
        table.case(format!("{call} fails with EEXIST for {name}"), move || {
            dir("x");
            err_of(run(name), &[libc::EEXIST, libc::EBUSY]);
        });
    }
}

/// Who owns what a call makes: the effective user, and his group or that of a set-group-id directory.
pub fn owned(table: &mut Table, call: &str, run: Run) {
    table.case(format!("{call} gives the new inode to the effective user and group"), move || {
        as_user(BOB, || ok(run("x")));
        let made = ok(lstat("x"));
        assert_eq!((made.uid, made.gid), (BOB.uid, BOB.gid));
        as_effective(ALICE, || ok(run("y")));
        let made = ok(lstat("y"));
        assert_eq!((made.uid, made.gid), (ALICE.uid, ALICE.gid));
    });
    table.case(format!("{call} gives the group of a set-group-id directory"), move || {
        dir("way");
        ok(lchown("way", ALICE.uid, ALICE.gid));
        ok(chmod("way", 0o2777));
        as_user(BOB, || ok(run("way/x")));
        let made = ok(lstat("way/x"));
        assert_eq!((made.uid, made.gid), (BOB.uid, ALICE.gid));
    });
}

/// A call that follows a symbolic link in the last place.
pub fn follows(table: &mut Table, call: &str, kind: Kind, run: Run) {
    table.case(format!("{call} follows symbolic links"), move || {
        make(kind, "x");
        ok(symlink("x", "link"));
        ok(symlink("link", "link2"));
        ok(run("link2"));
    });
    table.case(format!("{call} fails with ENOENT at a dangling symbolic link"), move || {
        ok(symlink("missing", "link"));
        err(run("link"), libc::ENOENT);
    });
    table.case(format!("{call} fails with ELOOP at symbolic links in a loop"), move || {
        ok(symlink("self", "self"));
        ok(symlink("there", "here"));
        ok(symlink("here", "there"));
        err(run("self"), libc::ELOOP);
        err(run("here"), libc::ELOOP);
    });
}

/// A call whose path starts at an open directory.
pub fn at(table: &mut Table, call: &str, kind: Option<Kind>, run: RunAt) {
    let there = move |path: &str| kind.into_iter().for_each(|kind| make(kind, path));
    let open_dir = |path: &str| ok(open(path, libc::O_RDONLY | libc::O_DIRECTORY));
    table.case(format!("{call} starts at the open directory"), move || {
        dir("base");
        there("base/x");
        ok(run(open_dir("base").as_raw_fd(), "x"));
    });
    table.case(format!("{call} starts at the open directory after that was renamed"), move || {
        dir("base");
        there("base/x");
        let base = open_dir("base");
        ok(rename("base", "moved"));
        ok(run(base.as_raw_fd(), "x"));
    });
    table.case(format!("{call} starts at the working directory with AT_FDCWD"), move || {
        there("x");
        ok(run(libc::AT_FDCWD, "x"));
    });
    table.case(format!("{call} takes a whole path from the root, whatever the descriptor"), move || {
        there("x");
        ok(run(-1, &format!("{}/x", ok(getcwd()))));
    });
    table.case(format!("{call} fails with EBADF where the descriptor is not open"), move || {
        there("x");
        err(run(-1, "x"), libc::EBADF);
    });
    table.case(format!("{call} fails with ENOTDIR where the descriptor is a file's"), move || {
        file("base");
        let base = ok(open("base", libc::O_RDONLY));
        err(run(base.as_raw_fd(), "x"), libc::ENOTDIR);
    });
}

/// Where `kind` is given it is made before the call.
fn common(table: &mut Table, call: &str, kind: Option<Kind>, run: Run) {
    let there = move |path: &str| kind.into_iter().for_each(|kind| make(kind, path));
    table.case(format!("{call} fails with ENOENT for the empty path"), move || err(run(""), libc::ENOENT));
    table.case(format!("{call} fails with ENOENT where a directory on the way is missing"), move || {
        err(run("missing/x"), libc::ENOENT);
        ok(symlink("missing", "dangling"));
        err(run("dangling/x"), libc::ENOENT);
    });
    for way in NO_WAYS {
        table.case(format!("{call} fails with ENOTDIR where a {way:?} is on the way"), move || {
            make(way, "way");
            err(run("way/x"), libc::ENOTDIR);
            ok(symlink("way", "link"));
            err(run("link/x"), libc::ENOTDIR);
        });
    }
    table.case(
        format!("{call} fails with EACCES where a directory on the way is not searchable"),
        move || {
            for (class, user, shift) in CLASSES {
                let way = format!("way-of-{shift}-{}", user.uid);
                alices_dir(&way, 0o777);
                there(&format!("{way}/x"));
                ok(chmod(&way, 0o777 & !(1 << shift)));
                let outcome = as_user(user, || run(&format!("{way}/x")));
                assert!(outcome == Err(Errno(libc::EACCES)), "{class}: {outcome:?}");
            }
        },
    );
    table.case(format!("{call} goes by symbolic links on the way"), move || {
        dir("way");
        there("way/x");
        ok(symlink("way", "link0"));
        for number in 1..LINKS_MAX {
            ok(symlink(format!("link{}", number - 1), format!("link{number}")));
        }
        ok(run(&format!("link{}/x", LINKS_MAX - 1)));
    });
    table.case(format!("{call} fails with ELOOP where too many symbolic links are on the way"), move || {
        dir("way");
        there("way/x");
        ok(symlink("way", "link0"));
        for number in 1..=LINKS_MAX {
            ok(symlink(format!("link{}", number - 1), format!("link{number}")));
        }
        err(run(&format!("link{LINKS_MAX}/x")), libc::ELOOP);
        ok(symlink("loop", "loop"));
        err(run("loop/x"), libc::ELOOP);
    });
    table.case(format!("{call} takes a name of 255 bytes"), move || {
        there(&name_of(255));
        ok(run(&name_of(255)));
    });
    table.case(format!("{call} fails with ENAMETOOLONG where a name has 256 bytes"), move || {
        err(run(&name_of(256)), libc::ENAMETOOLONG);
        err(run(&format!("{}/x", name_of(256))), libc::ENAMETOOLONG);
    });
    table.case(format!("{call} takes a path of 4095 bytes"), move || {
        there("x");
        ok(run(&path_of(4095, "x")));
    });
    table.case(format!("{call} fails with ENAMETOOLONG where a path has 4096 bytes"), move || {
        there("x");
        err(run(&path_of(4096, "x")), libc::ENAMETOOLONG);
    });
}
