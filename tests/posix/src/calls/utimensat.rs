//! utimensat, futimens, and what other calls do to times.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

const ONE: Time = (1_000_000_000, 123_456_789);
const TWO: Time = (1_500_000_000, 987_654_321);

type Set = fn(&str, Time, Time) -> Outcome;

const CALLS: [(&str, Set); 2] = [
    ("utimensat", |path, atime, mtime| utimensat(path, atime, mtime, 0)),
    ("futimens", |path, atime, mtime| {
        futimens(&open(path, libc::O_RDONLY | libc::O_NONBLOCK)?, atime, mtime)
    }),
];

pub fn define(table: &mut Table) {
    paths::existing(table, "utimensat", Kind::File, |path| utimensat(path, ONE, TWO, 0));
    paths::follows(table, "utimensat", Kind::File, |path| utimensat(path, ONE, TWO, 0));
    for kind in KINDS {
        table.case(format!("both times of a {kind:?} can be set, to the nanosecond"), move || {
            make(kind, "x");
            tick();
            let before = ok(lstat("x"));
            tick();
            ok(utimensat("x", ONE, TWO, libc::AT_SYMLINK_NOFOLLOW));
            let stat = ok(lstat("x"));
            assert_eq!((stat.atime, stat.mtime), (ONE, TWO));
            assert!(stat.ctime > before.ctime, "ctime is the clock's");
        });
    }
    for (name, set) in CALLS {
        times(table, name, set);
        permissions(table, name, set);
    }
    table.case("a symbolic link's times are set with AT_SYMLINK_NOFOLLOW only", || {
        file("f");
        ok(symlink("f", "link"));
        ok(utimensat("link", ONE, ONE, 0));
        assert_eq!(ok(stat("f")).mtime, ONE);
        assert_ne!(ok(lstat("link")).mtime, ONE);
        ok(utimensat("link", TWO, TWO, libc::AT_SYMLINK_NOFOLLOW));
        assert_eq!((ok(lstat("link")).mtime, ok(stat("f")).mtime), (TWO, ONE));
    });
    table.case("without times both are the clock's", || {
        file("f");
        ok(utimensat("f", ONE, ONE, 0));
        ok(utime_now("f"));
        let stat = ok(lstat("f"));
        assert!(stat.mtime > TWO && stat.atime == stat.mtime);
    });
    table.case("EINVAL for flags that do not exist", || {
        file("f");
        err(utimensat("f", ONE, TWO, 0x4000_0000), libc::EINVAL);
    });
    table.case("times that were set stay when the file is closed", || {
        let fd = ok(open_mode("f", libc::O_CREAT | libc::O_WRONLY, 0o600));
        ok(write(&fd, b"text"));
        ok(futimens(&fd, ONE, TWO));
        ok(close(fd));
        assert_eq!((ok(lstat("f")).atime, ok(lstat("f")).mtime), (ONE, TWO));
    });
    table.case("a write after setting moves the modification time again", || {
        let fd = ok(open_mode("f", libc::O_CREAT | libc::O_WRONLY, 0o600));
        ok(futimens(&fd, ONE, TWO));
        ok(write(&fd, b"text"));
        ok(close(fd));
        assert!(ok(lstat("f")).mtime > TWO);
    });
}

fn times(table: &mut Table, name: &'static str, set: Set) {
    for (what, atime, mtime) in [
        ("both", ONE, TWO),
        ("access only", ONE, OMIT),
        ("modification only", OMIT, TWO),
        ("access to the clock", NOW, TWO),
        ("modification to the clock", ONE, NOW),
        ("both to the clock", NOW, NOW),
        ("access to the clock only", NOW, OMIT),
        ("modification to the clock only", OMIT, NOW),
    ] {
        table.case(format!("{name}: {what}"), move || {
            file("f");
            ok(set("f", (5, 5), (6, 6)));
            let before = ok(lstat("f"));
            tick();
            ok(set("f", atime, mtime));
            let after = ok(lstat("f"));
            for (given, old, new) in [(atime, before.atime, after.atime), (mtime, before.mtime, after.mtime)]
            {
                match given {
                    NOW => assert!(new > TWO, "{new:?} is the clock's"),
                    OMIT => assert_eq!(new, old),
                    given => assert_eq!(new, given),
                }
            }
            assert!(after.ctime > before.ctime, "ctime");
        });
    }
    table.case(format!("{name}: nothing to set changes nothing"), move || {
        file("f");
        touches_not("f", || ok(set("f", OMIT, OMIT)));
    });
    for time in [(0, 0), (0, 1), (1, 999_999_999), (-1, 0), (-1, 500_000_000), (-2_000_000_000, 7)] {
        table.case(format!("{name} to {}.{:09}", time.0, time.1), move || {
            file("f");
            ok(set("f", time, time));
            let stat = ok(lstat("f"));
            assert_eq!((stat.atime, stat.mtime), (time, time));
        });
    }
    for seconds in [i64::from(i32::MAX), i64::from(i32::MAX) + 1, i64::from(u32::MAX) + 1] {
        table.case(format!("{name} to second {seconds}, after 2038"), move || {
            file("f");
            ok(set("f", (seconds, 3), (seconds, 4)));
            assert_eq!(ok(lstat("f")).mtime, (seconds, 4));
        });
    }
    for nanoseconds in [1_000_000_000, -1, 2_000_000_000] {
        table.case(format!("{name} fails with EINVAL for {nanoseconds} nanoseconds"), move || {
            file("f");
            let bad = (1, nanoseconds);
            touches_not("f", || err(set("f", bad, ONE), libc::EINVAL));
            touches_not("f", || err(set("f", ONE, bad), libc::EINVAL));
        });
    }
}

fn permissions(table: &mut Table, name: &'static str, set: Set) {
    for (what, atime, mtime) in
        [("given times", ONE, TWO), ("one given time", ONE, OMIT), ("one time of the clock", NOW, OMIT)]
    {
        table.case(format!("{name} with {what} is for the owner and root"), move || {
            alices_file("f", 0o666);
            as_user(BOB, || err(set("f", atime, mtime), libc::EPERM));
            as_user(ALICE, || ok(set("f", atime, mtime)));
            ok(set("f", atime, mtime));
        });
    }
    table.case(format!("{name} with both times of the clock is for who may write too"), move || {
        alices_file("f", 0o646);
        as_user(BOB, || ok(set("f", NOW, NOW)));
        ok(chmod("f", 0o644));
        as_user(BOB, || err(set("f", NOW, NOW), libc::EACCES));
        ok(chmod("f", 0o444));
        as_user(ALICE, || ok(set("f", NOW, NOW)));
    });
    table.case(format!("{name} of nothing is for everybody"), move || {
        alices_file("f", 0o644);
        as_user(BOB, || ok(set("f", OMIT, OMIT)));
    });
}
