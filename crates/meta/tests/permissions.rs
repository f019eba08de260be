//! Who may do what: tables after POSIX, one line per case.

mod common;
use common::*;
use weft_meta::{Attr, Caller, Kind, MemEngine, Namespace, OpenFlags, SetAttr, SetTime, XattrMode};

const OWNER: u32 = 10;
const MEMBER: u32 = 11;
const OTHER: u32 = 12;
const GROUP: u32 = 100;

fn caller(uid: u32) -> Caller {
    match uid {
        MEMBER => Caller { uid, gid: 50, groups: vec![7, GROUP] },
        OWNER => Caller { uid, gid: GROUP, groups: vec![] },
        _ => user(uid),
    }
}

fn setattr(
    ns: &mut Namespace<MemEngine>,
    uid: u32,
    path: &str,
    change: SetAttr,
) -> Result<Attr, &'static str> {
    let result = run(ns, |op| op.setattr(&caller(uid), now(9), at(path), true, &change));
    result.map_err(|error| outcome::<()>(Err(error)))
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn chown(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr { uid, gid, ..SetAttr::default() }
}

#[test]
fn access_by_class() {
    // mode, caller, mask -> granted
    let table = [
        (0o400, OWNER, 4, true),
        (0o400, OWNER, 2, false),
        (0o077, OWNER, 4, false), // the owner's class decides, not the others'
        (0o040, MEMBER, 4, true),
        (0o707, MEMBER, 4, false),
        (0o004, OTHER, 4, true),
        (0o770, OTHER, 1, false),
        (0o000, 0, 6, true),
        (0o000, 0, 1, false), // root executes only what somebody may
        (0o001, 0, 1, true),
        (0o640, MEMBER, 6, false), // all of the mask
        (0o000, OTHER, 0, true),   // it exists
    ];
    let mut ns = mem();
    mkfile(&mut ns, &caller(OWNER), "f", 0).unwrap();
    for (bits, uid, mask, granted) in table {
        setattr(&mut ns, OWNER, "f", mode(bits)).unwrap();
        let result = ns.begin().access(&caller(uid), at("f"), true, mask);
        assert_eq!(result.is_ok(), granted, "mode {bits:o}, caller {uid}, mask {mask}");
    }
    assert_eq!(outcome(ns.begin().access(&caller(OTHER), at("f"), true, 8)), "Invalid");
}

#[test]
fn directories_on_the_way_need_search_permission() {
    let mut ns = mem();
    mkdir(&mut ns, &caller(OWNER), "d", 0o755).unwrap();
    mkdir(&mut ns, &caller(OWNER), "d/e", 0o755).unwrap();
    mkfile(&mut ns, &caller(OWNER), "d/e/f", 0o666).unwrap();
    for (bits, uid, expected) in [
        (0o755, OTHER, "ok"),
        (0o744, OTHER, "Access"),
        (0o711, OTHER, "ok"),
        (0o600, 0, "ok"),
        (0o600, OWNER, "Access"),
    ] {
        run(&mut ns, |op| op.setattr(&Caller::root(), now(1), at("d"), true, &mode(bits))).unwrap();
        assert_eq!(outcome(ns.begin().stat(&caller(uid), at("d/e/f"), true)), expected, "{bits:o} {uid}");
    }
}

#[test]
fn changing_a_directory_needs_write_and_search() {
    let mut ns = mem();
    mkdir(&mut ns, &caller(OWNER), "d", 0o755).unwrap();
    mkfile(&mut ns, &caller(OWNER), "d/f", 0o666).unwrap();
    mkdir(&mut ns, &caller(OWNER), "d/sub", 0o777).unwrap();
    for bits in [0o755, 0o772, 0o775 & !0o1] {
        setattr(&mut ns, OWNER, "d", mode(bits)).unwrap();
        let other = caller(OTHER);
        let outcomes = [
            outcome(mkdir(&mut ns, &other, "d/new", 0o755)),
            outcome(run(&mut ns, |op| op.symlink(&other, now(1), at("d/new"), b"x"))),
            outcome(run(&mut ns, |op| op.link(&other, now(1), at("/"), true, at("d/new")))),
            outcome(run(&mut ns, |op| op.unlink(&other, now(1), at("d/f")))),
            outcome(run(&mut ns, |op| op.rmdir(&other, now(1), at("d/sub")))),
            outcome(run(&mut ns, |op| op.rename(&other, now(1), at("d/f"), at("g"), Default::default()))),
        ];
        assert_eq!(outcomes, ["Access"; 6], "{bits:o}");
    }
    sound(&ns);
}

#[test]
fn sticky_directories_protect_entries() {
    let mut ns = mem();
    mkdir(&mut ns, &caller(OWNER), "t", 0o1777).unwrap();
    // owner of the file, who removes it
    for (file_owner, remover, expected) in
        [(OTHER, MEMBER, "NotPermitted"), (OTHER, OTHER, "ok"), (OTHER, OWNER, "ok"), (OTHER, 0, "ok")]
    {
        mkfile(&mut ns, &caller(file_owner), "t/f", 0o666).unwrap();
        mkfile(&mut ns, &caller(remover), "t/own", 0o666).unwrap();
        let who = caller(remover);
        let over = run(&mut ns, |op| op.rename(&who, now(2), at("t/own"), at("t/f"), Default::default()));
        assert_eq!(outcome(over), expected, "replacing by {remover}");
        let _ = mkfile(&mut ns, &caller(file_owner), "t/g", 0o666);
        assert_eq!(
            outcome(run(&mut ns, |op| op.unlink(&who, now(2), at("t/g")))),
            expected,
            "unlink by {remover}"
        );
        for name in ["t/f", "t/g", "t/own"] {
            let _ = run(&mut ns, |op| op.unlink(&Caller::root(), now(2), at(name)));
        }
    }
}

#[test]
fn chmod_and_chown() {
    let mut ns = mem();
    mkfile(&mut ns, &caller(OWNER), "f", 0o644).unwrap();
    assert_eq!(setattr(&mut ns, OTHER, "f", mode(0o777)), Err("NotPermitted"));
    assert_eq!(setattr(&mut ns, OWNER, "f", mode(0o6755)).unwrap().mode, 0o6755);
    assert_eq!(setattr(&mut ns, OWNER, "f", chown(Some(OTHER), None)), Err("NotPermitted"));
    assert_eq!(setattr(&mut ns, OWNER, "f", chown(None, Some(5))), Err("NotPermitted"), "not in group 5");
    assert_eq!(setattr(&mut ns, OTHER, "f", chown(None, Some(OTHER))), Err("NotPermitted"));
    let attr = setattr(&mut ns, OWNER, "f", chown(Some(OWNER), Some(GROUP))).unwrap();
    assert_eq!((attr.mode, attr.gid), (0o755, GROUP), "set-id bits fall");
    let attr = setattr(&mut ns, 0, "f", chown(Some(OTHER), Some(5))).unwrap();
    assert_eq!((attr.uid, attr.gid, attr.ctime), (OTHER, 5, now(9)));
    assert_eq!(setattr(&mut ns, OTHER, "f", mode(0o2755)).unwrap().mode, 0o755, "not in the file's group");
    mkdir(&mut ns, &caller(OWNER), "d", 0o2775).unwrap();
    assert_eq!(
        setattr(&mut ns, OWNER, "d", chown(None, Some(GROUP))).unwrap().mode,
        0o2775,
        "directories keep them"
    );
}

#[test]
fn times() {
    let mut ns = mem();
    mkfile(&mut ns, &caller(OWNER), "f", 0o646).unwrap();
    let both = |time| SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() };
    let one = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(setattr(&mut ns, OTHER, "f", both(SetTime::Now)).unwrap().mtime, now(9), "may write");
    assert_eq!(setattr(&mut ns, MEMBER, "f", both(SetTime::Now)), Err("Access"));
    assert_eq!(setattr(&mut ns, OTHER, "f", both(SetTime::At(now(3)))), Err("NotPermitted"));
    assert_eq!(setattr(&mut ns, OTHER, "f", one), Err("NotPermitted"), "one time alone is the owner's");
    let attr = setattr(&mut ns, OWNER, "f", both(SetTime::At(now(-3)))).unwrap();
    assert_eq!((attr.atime, attr.mtime, attr.ctime), (now(-3), now(-3), now(9)));
    let mut wrong = now(1);
    wrong.nanos = 1_000_000_000;
    assert_eq!(setattr(&mut ns, OWNER, "f", both(SetTime::At(wrong))), Err("Invalid"));
}

#[test]
fn set_group_id_directories_hand_their_group_down() {
    let mut ns = mem();
    mkdir(&mut ns, &caller(OWNER), "d", 0o2777).unwrap();
    mkdir(&mut ns, &caller(OTHER), "d/sub", 0o755).unwrap();
    mkfile(&mut ns, &caller(OTHER), "d/f", 0o2755).unwrap();
    let (sub, file) = (stat(&mut ns, "d/sub").unwrap(), stat(&mut ns, "d/f").unwrap());
    assert_eq!((sub.gid, sub.mode), (GROUP, 0o2755));
    assert_eq!((file.gid, file.mode), (GROUP, 0o755), "a foreign group's bit is not for the taking");
    mkfile(&mut ns, &caller(OTHER), "own", 0o2755).unwrap();
    assert_eq!(stat(&mut ns, "own").unwrap().mode, 0o2755);
}

#[test]
fn opening_checks_the_bits_and_the_kind() {
    let mut ns = mem();
    mkfile(&mut ns, &caller(OWNER), "f", 0o640).unwrap();
    mkdir(&mut ns, &caller(OWNER), "d", 0o755).unwrap();
    symlink(&mut ns, "f", "l");
    let both = weft_meta::OpenFlags { read: true, ..WRITE };
    let no_follow = weft_meta::OpenFlags { no_follow: true, ..READ };
    for (uid, path, flags, expected) in [
        (OWNER, "f", both, "ok"),
        (MEMBER, "f", READ, "ok"),
        (MEMBER, "f", WRITE, "Access"),
        (OTHER, "l", READ, "Access"),
        (0, "l", both, "ok"),
        (0, "l", no_follow, "Loop"),
        (0, "d", READ, "ok"),
        (0, "d", WRITE, "IsDirectory"),
        (0, "f/", READ, "NotDirectory"),
        (0, "missing", READ, "NotFound"),
    ] {
        let result = run(&mut ns, |op| op.open(&caller(uid), S1, at(path), flags));
        assert_eq!(outcome(result), expected, "{uid} {path} {flags:?}");
    }
}

#[test]
fn extended_attributes() {
    let mut ns = mem();
    mkfile(&mut ns, &caller(OWNER), "f", 0o644).unwrap();
    symlink(&mut ns, "f", "l");
    let set = |ns: &mut Namespace<MemEngine>, uid, path, name: &str, value: &[u8], mode| {
        let who = caller(uid);
        outcome(run(ns, |op| op.set_xattr(&who, now(2), at(path), false, name.as_bytes(), value, mode)))
    };
    use XattrMode::{Any, Create, Replace};
    let long = "user.".to_string() + &"x".repeat(251);
    for (uid, path, name, value_bytes, mode, expected) in [
        (OWNER, "f", "user.a", 3, Replace, "NoXattr"),
        (OWNER, "f", "user.a", 3, Create, "ok"),
        (OWNER, "f", "user.a", 3, Create, "Exists"),
        (OWNER, "f", "user.a", 65536, Replace, "ok"),
        (OWNER, "f", "user.b", 65537, Any, "XattrTooBig"),
        (OTHER, "f", "user.b", 3, Any, "Access"),
        (OWNER, "l", "user.b", 3, Any, "NotPermitted"),
        (OWNER, "f", "trusted.t", 3, Any, "NotPermitted"),
        (0, "f", "trusted.t", 0, Any, "ok"),
        (OWNER, "f", "security.s", 3, Any, "NotPermitted"),
        (0, "l", "security.s", 3, Any, "ok"),
        (0, "f", "other.o", 3, Any, "NotSupported"),
        (0, "f", "user.", 3, Any, "Invalid"),
        (OWNER, "f", long.as_str(), 3, Any, "NameTooLong"),
    ] {
        let value = vec![7; value_bytes];
        assert_eq!(set(&mut ns, uid, path, name, &value, mode), expected, "{uid} {path} {name}");
    }
    let names = |ns: &mut Namespace<MemEngine>, uid| {
        let names = ns.begin().list_xattrs(&caller(uid), at("f"), true).unwrap();
        names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names(&mut ns, OWNER), ["user.a"]);
    assert_eq!(names(&mut ns, 0), ["trusted.t", "user.a"]);
    assert_eq!(ns.begin().get_xattr(&caller(OTHER), at("f"), true, b"user.a").unwrap().len(), 65536);
    assert_eq!(outcome(ns.begin().get_xattr(&caller(OWNER), at("f"), true, b"trusted.t")), "NoXattr");
    assert_eq!(ns.begin().get_xattr(&Caller::root(), at("f"), true, b"trusted.t").unwrap(), b"");
    sound(&ns);
    run(&mut ns, |op| op.remove_xattr(&caller(OWNER), now(3), at("f"), true, b"user.a")).unwrap();
    let again = run(&mut ns, |op| op.remove_xattr(&caller(OWNER), now(3), at("f"), true, b"user.a"));
    assert_eq!(outcome(again), "NoXattr");
    run(&mut ns, |op| op.unlink(&Caller::root(), now(3), at("f"))).unwrap();
    sound(&ns);
}

#[test]
fn devices_are_made_by_root_only() {
    let mut ns = mem();
    for (uid, kind, expected) in [
        (OWNER, Kind::Fifo, "ok"),
        (OWNER, Kind::Socket, "ok"),
        (OWNER, Kind::Char, "NotPermitted"),
        (0, Kind::Block, "ok"),
        (0, Kind::Directory, "Invalid"),
    ] {
        let path = format!("{kind:?}");
        let made = run(&mut ns, |op| op.mknod(&caller(uid), now(1), at(&path), kind, 0o600, 0x803));
        assert_eq!(outcome(made), expected, "{kind:?}");
    }
    assert_eq!(stat(&mut ns, "Block").unwrap().rdev, 0x803);
}

/// The value of an access control list: owner, user `OTHER`, the group, a mask and others.
fn list(owner: u8, other_user: u8, group: u8, mask: u8, others: u8) -> Vec<u8> {
    let entries =
        [(1, owner, 0), (2, other_user, OTHER as u8), (4, group, 0), (16, mask, 0), (32, others, 0)];
    let entries = entries.map(|(tag, bits, id)| [tag, 0, bits, 0, id, 0, 0, 0]);
    [&[2, 0, 0, 0][..], entries.as_flattened()].concat()
}

fn set_list(ns: &mut Namespace<MemEngine>, uid: u32, path: &str, name: &str, value: &[u8]) -> &'static str {
    let name = name.as_bytes();
    let set = run(ns, |op| op.set_xattr(&caller(uid), now(3), at(path), true, name, value, XattrMode::Any));
    outcome(set)
}

#[test]
fn an_access_control_list_decides_instead_of_the_mode() {
    let mut ns = mem();
    mkfile(&mut ns, &caller(OWNER), "f", 0o600).unwrap();
    let value = list(6, 6, 6, 4, 0);
    assert_eq!(set_list(&mut ns, OTHER, "f", "system.posix_acl_access", &value), "NotPermitted");
    assert_eq!(set_list(&mut ns, OWNER, "f", "system.posix_acl_access", &value), "ok");
    assert_eq!(stat(&mut ns, "f").unwrap().mode, 0o640);
    for (uid, mask, granted) in
        [(OWNER, 6, true), (OTHER, 4, true), (OTHER, 2, false), (MEMBER, 4, true), (13, 4, false)]
    {
        let result = ns.begin().access(&caller(uid), at("f"), true, mask);
        assert_eq!(result.is_ok(), granted, "user {uid}, mask {mask}");
    }
    setattr(&mut ns, OWNER, "f", mode(0o620)).unwrap();
    let read = |ns: &mut Namespace<MemEngine>| {
        ns.begin().get_xattr(&Caller::root(), at("f"), true, b"system.posix_acl_access")
    };
    assert_eq!(read(&mut ns).unwrap(), list(6, 6, 6, 2, 0));
    run(&mut ns, |op| op.remove_xattr(&caller(OWNER), now(4), at("f"), true, b"system.posix_acl_access"))
        .unwrap();
    assert_eq!(outcome(read(&mut ns)), "NoXattr");
    assert!(ns.begin().access(&caller(OTHER), at("f"), true, 2).is_err());
}

#[test]
fn a_default_list_takes_the_place_of_the_umask() {
    let umask = 0o077 << weft_meta::UMASK_SHIFT;
    let mut ns = mem();
    mkdir(&mut ns, &caller(0), "d", 0o777).unwrap();
    mkfile(&mut ns, &caller(OWNER), "d/before", 0o666 | umask).unwrap();
    assert_eq!(stat(&mut ns, "d/before").unwrap().mode, 0o600);
    assert_eq!(set_list(&mut ns, 0, "d/before", "system.posix_acl_default", &list(7, 6, 4, 6, 4)), "Access");
    assert_eq!(set_list(&mut ns, 0, "d", "system.posix_acl_default", &list(7, 6, 4, 6, 4)), "ok");
    mkfile(&mut ns, &caller(OWNER), "d/after", 0o666 | umask).unwrap();
    assert_eq!(stat(&mut ns, "d/after").unwrap().mode, 0o664);
    let names = ns.begin().list_xattrs(&caller(OTHER), at("d/after"), true).unwrap();
    assert_eq!(names, [b"system.posix_acl_access"]);
    assert!(ns.begin().access(&caller(OTHER), at("d/after"), true, 6).is_ok());
}

#[test]
fn to_be_executed_a_file_needs_no_permission_to_be_read() {
    let mut ns = mem();
    mkfile(&mut ns, &caller(OWNER), "program", 0o751).unwrap();
    let executed = OpenFlags { execute: true, ..READ };
    let open = |ns: &mut Namespace<MemEngine>, uid: u32, flags: OpenFlags| {
        outcome(run(ns, |op| op.open(&caller(uid), S1, at("program"), flags)))
    };
    assert_eq!((open(&mut ns, OTHER, executed), open(&mut ns, OTHER, READ)), ("ok", "Access"));
    setattr(&mut ns, OWNER, "program", mode(0o744)).unwrap();
    assert_eq!((open(&mut ns, OTHER, executed), open(&mut ns, OTHER, READ)), ("Access", "ok"));
    setattr(&mut ns, OWNER, "program", mode(0o644)).unwrap();
    assert_eq!((open(&mut ns, 0, executed), open(&mut ns, 0, READ)), ("Access", "ok"));
}
