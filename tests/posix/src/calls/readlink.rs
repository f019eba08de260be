//! readlink.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    paths::existing(table, "readlink", Kind::Symlink, |path| readlink(path).map(drop));
    for kind in NOT_SYMLINKS {
        table.case(format!("EINVAL for a {kind:?}"), move || {
            make(kind, "x");
            err(readlink("x"), libc::EINVAL);
        });
    }
    table.case("too small a buffer gets the beginning", || {
        ok(symlink("0123456789", "link"));
        assert_eq!(ok(readlink_into("link", 4)), b"0123");
        assert_eq!(ok(readlink_into("link", 10)), b"0123456789");
        err(readlink_into("link", 0), libc::EINVAL);
    });
    table.case("anybody reads a link, whoever owns it", || {
        ok(symlink("target", "link"));
        ok(lchown("link", ALICE.uid, ALICE.gid));
        as_user(BOB, || assert_eq!(ok(readlink("link")), b"target"));
    });
    table.case("reading leaves modification and change time", || {
        ok(symlink("target", "link"));
        touches_not("link", || ok(readlink("link")));
    });
    table.case("a link is read anew after another took its name", || {
        ok(symlink("one", "link"));
        assert_eq!(ok(readlink("link")), b"one");
        ok(symlink("two", "new"));
        ok(rename("new", "link"));
        assert_eq!(ok(readlink("link")), b"two");
    });
}
