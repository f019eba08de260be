//! access and faccessat.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;

pub fn define(table: &mut Table) {
    paths::existing(table, "access", Kind::File, |path| access(path, libc::F_OK));
    paths::follows(table, "access", Kind::File, |path| access(path, libc::R_OK));
    paths::at(table, "faccessat", Some(Kind::File), |fd, path| faccessat(fd, path, libc::R_OK, 0));
    const OTHERS: &[Kind] = &[Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block];
    let what =
        [("a file", &[Kind::File][..]), ("a directory", &[Kind::Directory]), ("what is neither", OTHERS)];
    for (class, user, shift) in CLASSES {
        for bits in 0..8u32 {
            for (what, kinds) in what {
                table.case(
                    format!("{class} may with {what} what mode bits {bits} of the class say, and no more"),
                    move || {
                        for &kind in kinds {
                            let path = format!("{kind:?}");
                            make(kind, &path);
                            ok(lchown(&path, ALICE.uid, ALICE.gid));
                            ok(chmod(&path, class_mode(shift, bits)));
                            for mask in 0..8u32 {
                                let outcome = as_user(user, || access(&path, mask as i32));
                                match bits & mask == mask {
                                    true => assert!(outcome.is_ok(), "{kind:?}, mask {mask}: {outcome:?}"),
                                    false => err(outcome, libc::EACCES),
                                }
                            }
                        }
                    },
                );
            }
        }
    }
    table.case("root may read and write whatever the mode", || {
        file_mode("f", 0);
        alices_dir("d", 0);
        for path in ["f", "d"] {
            ok(access(path, libc::R_OK | libc::W_OK));
        }
        ok(access("d", libc::X_OK));
    });
    table.case("root may execute a file if anybody may", || {
        file_mode("f", 0o666);
        err(access("f", libc::X_OK), libc::EACCES);
        for bit in [0o100, 0o010, 0o001] {
            ok(chmod("f", bit));
            ok(access("f", libc::X_OK));
        }
    });
    table.case("the real user counts, or with AT_EACCESS the effective one", || {
        file_mode("f", 0o600);
        as_effective(BOB, || {
            ok(access("f", libc::R_OK));
            err(faccessat(libc::AT_FDCWD, "f", libc::R_OK, libc::AT_EACCESS), libc::EACCES);
        });
    });
    table.case("EINVAL for bits that are no access", || {
        file("f");
        err(access("f", 8), libc::EINVAL);
    });
}
