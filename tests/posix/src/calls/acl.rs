//! POSIX access control lists, as in the attributes system.posix_acl_access and system.posix_acl_default.

use crate::check::*;
use crate::sys::*;
use crate::table::Table;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Tags of entries, as in linux/posix_acl.h.
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NOBODY: u32 = u32::MAX;

type Acl = Vec<(u16, u16, u32)>;

/// The value of the attribute: version 2, then tag, permissions and id of each entry.
fn encode(acl: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in acl {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn get(path: &str, name: &str) -> Acl {
    let bytes = ok(getxattr(path, name));
    assert_eq!(bytes[..4], 2u32.to_le_bytes());
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
    bytes[4..]
        .chunks(8)
        .map(|entry| (number(&entry[..2]) as u16, number(&entry[2..4]) as u16, number(&entry[4..])))
        .collect()
}

fn set(path: &str, name: &str, acl: &[(u16, u16, u32)]) -> Outcome {
    setxattr(path, name, &encode(acl), 0)
}

/// Owner, one named user, the group, one named group, mask and others.
fn full(owner: u16, bob: u16, group: u16, second: u16, mask: u16, other: u16) -> Acl {
    vec![
        (USER_OBJ, owner, NOBODY),
        (USER, bob, BOB.uid),
        (GROUP_OBJ, group, NOBODY),
        (GROUP, second, SECOND_GROUP),
        (MASK, mask, NOBODY),
        (OTHER, other, NOBODY),
    ]
}

/// In the second group only.
const SECOND: User = User { uid: 7005, gid: SECOND_GROUP, groups: &[] };
/// In the file's group and the second one.
const IN_BOTH: User = User { uid: 7006, gid: ALICE.gid, groups: &[SECOND_GROUP] };
/// In none.
const STRANGER: User = User { uid: 7007, gid: 7007, groups: &[] };

/// What the user can open: bits 4 and 2 of a mode.
fn can(user: User, path: &str) -> u16 {
    as_user(user, || {
        let opens = |flags| open(path, flags).is_ok();
        u16::from(opens(libc::O_RDONLY)) << 2 | u16::from(opens(libc::O_WRONLY)) << 1
    })
}

pub fn define(table: &mut Table) {
    decisions(table);
    modes(table);
    defaults(table);
    attributes(table);
}

fn decisions(table: &mut Table) {
    for bits in [0u16, 2, 4, 6] {
        let rest = 6 & !bits;
        table.case(format!("the named user has his entry's bits {bits}, whatever others have"), move || {
            alices_file("f", 0o600);
            ok(set("f", ACCESS, &full(6, bits, rest, rest, 7, rest)));
            assert_eq!(can(BOB, "f"), bits);
        });
        table.case(
            format!("the mask {bits} limits named users and groups, not owner and others"),
            move || {
                alices_file("f", 0o600);
                // Never 0: Linux takes an empty mask for no list at all, and the bits of others for those of named users.
                ok(set("f", ACCESS, &full(6, 6, 6, 6, bits | 1, 6)));
                let found = [ALICE, BOB, COLLEAGUE, MEMBER, SECOND, STRANGER].map(|user| can(user, "f"));
                assert_eq!(found, [6, bits, bits, bits, bits, 6]);
            },
        );
        table.case(format!("the named group has its entry's bits {bits}, and no others"), move || {
            alices_file("f", 0o600);
            ok(set("f", ACCESS, &full(6, rest, rest, bits, 7, rest)));
            assert_eq!(can(SECOND, "f"), bits);
        });
        table.case(format!("the file's group has its entry's bits {bits}, and no others"), move || {
            alices_file("f", 0o600);
            ok(set("f", ACCESS, &full(6, rest, bits, rest, 7, rest)));
            assert_eq!([COLLEAGUE, MEMBER].map(|user| can(user, "f")), [bits; 2]);
        });
        table.case(format!("the owner has his entry's bits {bits}, even where the mask is 0"), move || {
            alices_file("f", 0o600);
            ok(set("f", ACCESS, &full(bits, 6, 6, 6, 0, 6)));
            assert_eq!(can(ALICE, "f"), bits);
        });
    }
    table.case("who is in two groups may what one of them may, but not half by each", || {
        alices_file("f", 0o600);
        ok(set("f", ACCESS, &full(6, 0, 4, 2, 7, 0)));
        assert_eq!(can(IN_BOTH, "f"), 6);
        as_user(IN_BOTH, || err(open("f", libc::O_RDWR), libc::EACCES));
        ok(set("f", ACCESS, &full(6, 0, 0, 6, 7, 0)));
        as_user(IN_BOTH, || ok(open("f", libc::O_RDWR)));
    });
    table.case("directories are searched and changed as their list says", || {
        alices_dir("d", 0o700);
        file("d/f");
        ok(set("d", ACCESS, &full(7, 1, 0, 7, 7, 0)));
        as_user(BOB, || {
            ok(stat("d/f"));
            err(Directory::open("d").map(drop), libc::EACCES);
            err(unlink("d/f"), libc::EACCES);
        });
        as_user(STRANGER, || err(stat("d/f"), libc::EACCES));
        as_user(SECOND, || {
            ok(list("d"));
            ok(unlink("d/f"));
        });
    });
    table.case("access asks the list", || {
        alices_file("f", 0o600);
        ok(set("f", ACCESS, &full(6, 4, 0, 2, 7, 0)));
        as_user(BOB, || {
            ok(access("f", libc::R_OK));
            err(access("f", libc::W_OK), libc::EACCES);
        });
        as_user(SECOND, || {
            ok(access("f", libc::W_OK));
            err(access("f", libc::R_OK), libc::EACCES);
        });
    });
    table.case("truncate and times of the clock ask the list", || {
        alices_file("f", 0o600);
        ok(set("f", ACCESS, &full(6, 2, 0, 4, 7, 0)));
        as_user(BOB, || {
            ok(truncate("f", 3));
            ok(utime_now("f"));
        });
        as_user(SECOND, || {
            err(truncate("f", 3), libc::EACCES);
            err(utime_now("f"), libc::EACCES);
        });
    });
    table.case("root may all", || {
        alices_file("f", 0o600);
        ok(set("f", ACCESS, &full(0, 0, 0, 0, 0, 0)));
        ok(open("f", libc::O_RDWR));
    });
}

fn modes(table: &mut Table) {
    table.case("the mode shows owner, mask and others", || {
        alices_file("f", 0o600);
        ok(set("f", ACCESS, &full(7, 6, 4, 2, 5, 1)));
        assert_eq!(ok(lstat("f")).mode, 0o751);
        assert_eq!(get("f", ACCESS), full(7, 6, 4, 2, 5, 1));
    });
    table.case("chmod changes owner, mask and others, not the group's entry", || {
        alices_file("f", 0o600);
        ok(set("f", ACCESS, &full(7, 6, 4, 2, 5, 1)));
        ok(chmod("f", 0o624));
        assert_eq!(get("f", ACCESS), full(6, 6, 4, 2, 2, 4));
    });
    table.case("a list that says no more than a mode is one", || {
        alices_file("f", 0o600);
        ok(set("f", ACCESS, &[(USER_OBJ, 6, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHER, 1, NOBODY)]));
        assert_eq!(ok(lstat("f")).mode, 0o651);
        err(getxattr("f", ACCESS), libc::ENODATA);
    });
    table.case("removing the list leaves the mode", || {
        alices_file("f", 0o600);
        ok(set("f", ACCESS, &full(6, 6, 4, 2, 4, 0)));
        ok(removexattr("f", ACCESS));
        assert_eq!(ok(lstat("f")).mode, 0o640);
        assert_eq!(can(BOB, "f"), 0);
    });
    table.case("setting a list moves ctime only", || {
        alices_file("f", 0o600);
        touches("f", false, || ok(set("f", ACCESS, &full(6, 6, 4, 2, 4, 0))));
    });
    table.case("set-group-id falls with a list set by who is not in the group", || {
        file("f");
        ok(lchown("f", ALICE.uid, BOB.gid));
        ok(chmod("f", 0o2755));
        as_user(ALICE, || ok(set("f", ACCESS, &full(7, 6, 5, 5, 5, 5))));
        assert_eq!(ok(lstat("f")).mode, 0o755);
    });
}

fn defaults(table: &mut Table) {
    for kind in [Kind::File, Kind::Directory, Kind::Fifo] {
        table.case(format!("a new {kind:?} has the default list, less what its mode lacks"), move || {
            dir("d");
            ok(set("d", DEFAULT, &full(7, 6, 5, 4, 7, 5)));
            umask(0o077);
            make(kind, "d/x");
            let expected = match kind {
                Kind::Directory => (0o755, full(7, 6, 5, 4, 5, 5)),
                _ => (0o644, full(6, 6, 5, 4, 4, 4)),
            };
            assert_eq!((ok(lstat("d/x")).mode, get("d/x", ACCESS)), expected);
        });
    }
    table.case("a new directory passes the default list on", || {
        dir("d");
        ok(set("d", DEFAULT, &full(7, 6, 5, 4, 7, 5)));
        dir("d/e");
        assert_eq!(get("d/e", DEFAULT), full(7, 6, 5, 4, 7, 5));
        dir("d/e/f");
        assert_eq!(get("d/e/f", DEFAULT), full(7, 6, 5, 4, 7, 5));
    });
    table.case("a file has no default list: EACCES for setting one", || {
        file("f");
        err(set("f", DEFAULT, &full(7, 6, 5, 4, 7, 5)), libc::EACCES);
    });
    table.case("a default list without names is a mode for new files, and the umask does not count", || {
        dir("d");
        ok(set("d", DEFAULT, &[(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 6, NOBODY), (OTHER, 4, NOBODY)]));
        umask(0o777);
        file_mode("d/f", 0o777);
        assert_eq!(ok(lstat("d/f")).mode, 0o764);
        err(getxattr("d/f", ACCESS), libc::ENODATA);
    });
    table.case("the default list decides nothing about its own directory", || {
        alices_dir("d", 0o700);
        ok(set("d", DEFAULT, &full(7, 7, 7, 7, 7, 7)));
        as_user(BOB, || err(list("d"), libc::EACCES));
        assert_eq!(ok(lstat("d")).mode, 0o700);
    });
    table.case("without a default list any more the umask counts again", || {
        dir("d");
        ok(set("d", DEFAULT, &full(7, 6, 5, 4, 7, 5)));
        ok(removexattr("d", DEFAULT));
        umask(0o027);
        file_mode("d/f", 0o666);
        assert_eq!(ok(lstat("d/f")).mode, 0o640);
        err(getxattr("d/f", ACCESS), libc::ENODATA);
    });
    table.case("a symbolic link takes nothing of the default list", || {
        dir("d");
        ok(set("d", DEFAULT, &full(7, 6, 5, 4, 7, 5)));
        ok(symlink("t", "d/link"));
        assert_eq!(ok(lstat("d/link")).mode, 0o777);
    });
    table.case("the inherited list decides", || {
        dir("d");
        ok(set("d", DEFAULT, &full(6, 4, 0, 6, 7, 0)));
        file_mode("d/f", 0o666);
        assert_eq!([BOB, SECOND, STRANGER].map(|user| can(user, "d/f")), [4, 6, 0]);
    });
    table.case("moving a file into the directory does not change its list", || {
        dir("d");
        ok(set("d", DEFAULT, &full(7, 6, 5, 4, 7, 5)));
        file("f");
        ok(rename("f", "d/f"));
        err(getxattr("d/f", ACCESS), libc::ENODATA);
    });
}

fn attributes(table: &mut Table) {
    for name in [ACCESS, DEFAULT] {
        table.case(format!("{name} is set by the owner and root only"), move || {
            alices_dir("d", 0o777);
            as_user(BOB, || err(set("d", name, &full(7, 6, 5, 4, 7, 5)), libc::EPERM));
            as_user(ALICE, || ok(set("d", name, &full(7, 6, 5, 4, 7, 5))));
            as_user(BOB, || err(removexattr("d", name), libc::EPERM));
            ok(removexattr("d", name));
            err(getxattr("d", name), libc::ENODATA);
        });
        table.case(format!("{name} is listed where it is set"), move || {
            dir("d");
            assert!(!ok(listxattr("d")).iter().any(|listed| listed == name));
            ok(set("d", name, &full(7, 6, 5, 4, 7, 5)));
            assert!(ok(listxattr("d")).iter().any(|listed| listed == name));
        });
        for (what, acl) in [
            ("without the owner", vec![(GROUP_OBJ, 5, NOBODY), (OTHER, 5, NOBODY)]),
            ("without others", vec![(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 5, NOBODY)]),
            ("with a name but no mask", {
                vec![(USER_OBJ, 7, NOBODY), (USER, 7, 1), (GROUP_OBJ, 5, NOBODY), (OTHER, 5, NOBODY)]
            }),
            ("with a tag that does not exist", {
                vec![(USER_OBJ, 7, NOBODY), (3, 7, 1), (GROUP_OBJ, 5, NOBODY), (OTHER, 5, NOBODY)]
            }),
            ("with permissions that do not exist", {
                vec![(USER_OBJ, 15, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHER, 5, NOBODY)]
            }),
            ("in another order", { vec![(OTHER, 5, NOBODY), (USER_OBJ, 7, NOBODY), (GROUP_OBJ, 5, NOBODY)] }),
        ] {
            table.case(format!("{name} {what} is EINVAL"), move || {
                dir("d");
                err(set("d", name, &acl), libc::EINVAL);
                assert_eq!(ok(lstat("d")).mode, 0o755);
            });
        }
        table.case(format!("{name} of another version or length is refused"), move || {
            dir("d");
            let whole = encode(&full(7, 6, 5, 4, 7, 5));
            let mut version = whole.clone();
            version[0] = 3;
            err(setxattr("d", name, &version, 0), libc::EOPNOTSUPP);
            err(setxattr("d", name, &whole[..whole.len() - 1], 0), libc::EINVAL);
        });
    }
    table.case("many entries are kept", || {
        alices_file("f", 0o600);
        let mut acl = vec![(USER_OBJ, 6, NOBODY)];
        acl.extend((0..20).map(|number| (USER, number as u16 % 8, 8000 + number)));
        acl.extend([(GROUP_OBJ, 4, NOBODY), (MASK, 7, NOBODY), (OTHER, 0, NOBODY)]);
        ok(set("f", ACCESS, &acl));
        assert_eq!(get("f", ACCESS), acl);
    });
}
