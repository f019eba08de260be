//! Extended attributes: user, trusted and security.

use super::paths;
use crate::check::*;
use crate::sys::*;
use crate::table::Table;
use libc::{XATTR_CREATE, XATTR_REPLACE};

const NAME_SPACES: [&str; 3] = ["user", "trusted", "security"];

pub fn define(table: &mut Table) {
    paths::existing(table, "setxattr", Kind::File, |path| setxattr(path, "user.a", b"1", 0));
    paths::follows(table, "setxattr", Kind::File, |path| setxattr(path, "user.a", b"1", 0));
    paths::existing(table, "listxattr", Kind::File, |path| listxattr(path).map(drop));
    paths::follows(table, "listxattr", Kind::File, |path| listxattr(path).map(drop));
    paths::existing(table, "getxattr", Kind::Directory, |path| match getxattr(path, "user.a") {
        Err(Errno(libc::ENODATA)) => Ok(()),
        outcome => outcome.map(drop),
    });
    values(table);
    permissions(table);
    others(table);
}

fn values(table: &mut Table) {
    for space in NAME_SPACES {
        for kind in [Kind::File, Kind::Directory] {
            table.case(format!("{space}: set, got, listed and removed on a {kind:?}"), move || {
                make(kind, "x");
                let (a, b) = (format!("{space}.a"), format!("{space}.b"));
                err(getxattr("x", &a), libc::ENODATA);
                ok(setxattr("x", &a, b"one", 0));
                ok(setxattr("x", &b, b"", 0));
                assert_eq!(ok(getxattr("x", &a)), b"one");
                assert_eq!(ok(getxattr("x", &b)), b"");
                assert_eq!(own_names(ok(listxattr("x"))), [&*a, &*b]);
                ok(setxattr("x", &a, b"another value", 0));
                assert_eq!(ok(getxattr("x", &a)), b"another value");
                ok(removexattr("x", &a));
                err(getxattr("x", &a), libc::ENODATA);
                err(removexattr("x", &a), libc::ENODATA);
                assert_eq!(own_names(ok(listxattr("x"))), [&*b]);
            });
        }
        table.case(format!("{space}: XATTR_CREATE and XATTR_REPLACE"), move || {
            file("f");
            let name = format!("{space}.a");
            err(setxattr("f", &name, b"1", XATTR_REPLACE), libc::ENODATA);
            ok(setxattr("f", &name, b"1", XATTR_CREATE));
            err(setxattr("f", &name, b"2", XATTR_CREATE), libc::EEXIST);
            assert_eq!(ok(getxattr("f", &name)), b"1");
            ok(setxattr("f", &name, b"3", XATTR_REPLACE));
            assert_eq!(ok(getxattr("f", &name)), b"3");
        });
        for bytes in [0usize, 1, 100, 1000, 2000] {
            table.case(format!("{space}: a value of {bytes} bytes, any bytes"), move || {
                file("f");
                let value: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
                ok(setxattr("f", &format!("{space}.a"), &value, 0));
                assert_eq!(ok(getxattr("f", &format!("{space}.a"))), value);
            });
        }
        table.case(format!("{space}: names of 255 bytes, ERANGE beyond"), move || {
            file("f");
            let name = |bytes: usize| format!("{space}.{}", name_of(bytes - space.len() - 1));
            ok(setxattr("f", &name(255), b"1", 0));
            assert_eq!(ok(getxattr("f", &name(255))), b"1");
            err(setxattr("f", &name(256), b"1", 0), libc::ERANGE);
        });
        table.case(format!("{space}: EINVAL for a name space without a name"), move || {
            file("f");
            err_of(setxattr("f", &format!("{space}."), b"1", 0), &[libc::EINVAL, libc::EOPNOTSUPP]);
        });
    }
    table.case("setting and removing move ctime only", || {
        file("f");
        touches("f", false, || ok(setxattr("f", "user.a", b"1", 0)));
        touches("f", false, || ok(setxattr("f", "user.a", b"2", 0)));
        touches("f", false, || ok(removexattr("f", "user.a")));
    });
    table.case("ERANGE for too small a buffer, the length for none", || {
        file("f");
        ok(setxattr("f", "user.a", b"12345", 0));
        err(getxattr_into("f", "user.a", 4), libc::ERANGE);
        assert_eq!(ok(getxattr_into("f", "user.a", 0)), 5);
        assert_eq!(ok(getxattr_into("f", "user.a", 5)), 5);
        err(listxattr_into("f", 3), libc::ERANGE);
        assert!(ok(listxattr_into("f", 0)) >= "user.a\0".len());
    });
    table.case("E2BIG for a value of more than 64 KiB", || {
        file("f");
        err(setxattr("f", "user.a", &vec![1; 65_537], 0), libc::E2BIG);
    });
    table.case("EINVAL for flags that do not exist", || {
        file("f");
        err(setxattr("f", "user.a", b"1", 64), libc::EINVAL);
    });
    table.case("twenty attributes keep their values apart", || {
        file("f");
        for number in 0..20 {
            ok(setxattr("f", &format!("user.{number:02}"), &[number; 30], 0));
        }
        for number in 0..20 {
            assert_eq!(ok(getxattr("f", &format!("user.{number:02}"))), [number; 30]);
        }
        assert_eq!(own_names(ok(listxattr("f"))).len(), 20);
    });
    table.case("names are told apart by every byte", || {
        file("f");
        for (value, name) in ["user.a", "user.A", "user.a.b", "user.a ", "user.ä"].iter().enumerate() {
            ok(setxattr("f", name, &[value as u8], 0));
        }
        assert_eq!(ok(getxattr("f", "user.A")), [1]);
        assert_eq!(own_names(ok(listxattr("f"))).len(), 5);
    });
}

/// Without those that security modules add.
fn own_names(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| {
        name.starts_with("user.") || name.starts_with("trusted.") || name.len() <= "security.b".len()
    });
    names
}

fn permissions(table: &mut Table) {
    for (class, user, shift) in CLASSES {
        for bits in 0..8 {
            table.case(
                format!("user: {class} reads and writes as mode bits {bits} of the class say"),
                move || {
                    alices_file("f", 0o666);
                    ok(setxattr("f", "user.a", b"1", 0));
                    ok(chmod("f", class_mode(shift, bits)));
                    let (got, set) =
                        as_user(user, || (getxattr("f", "user.a"), setxattr("f", "user.a", b"2", 0)));
                    if bits & 4 != 0 {
                        drop(ok(got))
                    } else {
                        err(got, libc::EACCES)
                    }
                    if bits & 2 != 0 { ok(set) } else { err(set, libc::EACCES) }
                },
            );
        }
    }
    table.case("trusted: hidden from who is not root, who gets EPERM for setting", || {
        alices_file("f", 0o666);
        ok(setxattr("f", "trusted.a", b"1", 0));
        as_user(ALICE, || {
            err(setxattr("f", "trusted.a", b"2", 0), libc::EPERM);
            err(removexattr("f", "trusted.a"), libc::EPERM);
            err(getxattr("f", "trusted.a"), libc::ENODATA);
            assert_eq!(own_names(ok(listxattr("f"))), [] as [&str; 0]);
        });
        assert_eq!(ok(getxattr("f", "trusted.a")), b"1");
    });
    table.case("security: set by root, read by all", || {
        alices_file("f", 0o600);
        ok(setxattr("f", "security.a", b"1", 0));
        as_user(BOB, || {
            assert_eq!(ok(getxattr("f", "security.a")), b"1");
            err(setxattr("f", "security.a", b"2", 0), libc::EPERM);
            err(removexattr("f", "security.a"), libc::EPERM);
        });
    });
    for kind in [Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block] {
        table.case(format!("user: none on a {kind:?}; trusted ones are"), move || {
            make(kind, "x");
            err(lsetxattr("x", "user.a", b"1", 0), libc::EPERM);
            err_of(lgetxattr("x", "user.a"), &[libc::ENODATA]);
            ok(lsetxattr("x", "trusted.a", b"1", 0));
            assert_eq!(ok(lgetxattr("x", "trusted.a")), b"1");
            ok(lremovexattr("x", "trusted.a"));
        });
    }
    table.case("user: in a sticky directory set by its owner only", || {
        alices_dir("d", 0o1777);
        as_user(BOB, || err(setxattr("d", "user.a", b"1", 0), libc::EPERM));
        as_user(ALICE, || ok(setxattr("d", "user.a", b"1", 0)));
        as_user(BOB, || assert_eq!(ok(getxattr("d", "user.a")), b"1"));
    });
    table.case("EOPNOTSUPP for a name space that does not exist", || {
        file("f");
        for name in ["nothing.a", "noprefix"] {
            err(setxattr("f", name, b"1", 0), libc::EOPNOTSUPP);
            err(getxattr("f", name), libc::EOPNOTSUPP);
        }
    });
}

fn others(table: &mut Table) {
    table.case("fsetxattr, fgetxattr and flistxattr work on what is open", || {
        file("f");
        let fd = ok(open("f", libc::O_RDONLY));
        ok(fsetxattr(&fd, "user.a", b"1", 0));
        assert_eq!(ok(fgetxattr(&fd, "user.a")), b"1");
        ok(unlink("f"));
        ok(fsetxattr(&fd, "user.b", b"2", 0));
        assert_eq!(own_names(ok(flistxattr(&fd))), ["user.a", "user.b"]);
    });
    table.case("attributes go with the file through links and renames", || {
        file("f");
        ok(setxattr("f", "user.a", b"1", 0));
        ok(link("f", "g"));
        ok(rename("f", "h"));
        assert_eq!((ok(getxattr("g", "user.a")), ok(getxattr("h", "user.a"))), (b"1".into(), b"1".into()));
    });
    table.case("a new file of the same name has none", || {
        file("f");
        ok(setxattr("f", "user.a", b"1", 0));
        ok(unlink("f"));
        file("f");
        err(getxattr("f", "user.a"), libc::ENODATA);
        assert_eq!(own_names(ok(listxattr("f"))), [] as [&str; 0]);
    });
    table.case("lsetxattr and llistxattr mean a symbolic link itself", || {
        file("f");
        ok(symlink("f", "link"));
        ok(lsetxattr("link", "trusted.link", b"1", 0));
        ok(setxattr("link", "trusted.file", b"1", 0));
        assert_eq!(own_names(ok(llistxattr("link"))), ["trusted.link"]);
        assert_eq!(own_names(ok(listxattr("link"))), ["trusted.file"]);
    });
    table.case("capabilities of a program fall when it is written", || {
        // Version 2 of struct vfs_cap_data: CAP_NET_RAW is permitted.
        let value = [[1, 0, 0, 2], [0, 0x20, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
        file_with("f", b"program");
        ok(setxattr("f", "security.capability", &value, 0));
        assert_eq!(ok(getxattr("f", "security.capability")), value);
        file_with("f", b"changed");
        err(getxattr("f", "security.capability"), libc::ENODATA);
    });
}
