//! Immutable and append-only files and directories: what they forbid to everybody, root too, and what they allow.

mod common;

use common::*;
use weft_meta::{
    APPEND_ONLY, At, Caller, IMMUTABLE, InodeFlags, LayoutRequest, MemEngine, MetaError, NO_DUMP, Namespace,
    NewFile, Op, OpenFlags, RenameMode, SetAttr, SetTime, XattrMode,
};

const NAME: &[u8] = b"weft.flags";

fn set(ns: &mut Namespace<MemEngine>, caller: &Caller, path: &str, flags: u32) -> Result<(), MetaError> {
    let value = flags.to_le_bytes();
    run(ns, |op| op.set_xattr(caller, now(2), at(path), false, NAME, &value, XattrMode::Any))
}

fn flags_of(ns: &mut Namespace<MemEngine>, path: &str) -> u32 {
    let value = ns.begin().get_xattr(&user(9), at(path), false, NAME).unwrap();
    u32::from_le_bytes(value.try_into().unwrap())
}

/// `d/f`, `d/e`, `d/sub` and `g`, of user 7; the one that is named has these flags.
fn with_flags(path: &str, flags: InodeFlags) -> Namespace<MemEngine> {
    let mut ns = mem();
    run(&mut ns, |op| op.mkdir(&Caller::root(), now(1), at("d"), 0o777)).unwrap();
    run(&mut ns, |op| op.mkdir(&user(7), now(1), at("d/sub"), 0o777)).unwrap();
    for path in ["d/f", "d/e", "g"] {
        let new = NewFile { mode: 0o666, ..NewFile::default() };
        run(&mut ns, |op| op.create(&Caller::root(), now(1), S1, at(path), &new, READ)).unwrap();
    }
    set(&mut ns, &Caller::root(), path, flags.into()).unwrap();
    ns
}

type Attempt = fn(&mut Op<'_, MemEngine>) -> Result<(), MetaError>;

fn open(op: &mut Op<'_, MemEngine>, write: bool, append: bool) -> Result<(), MetaError> {
    let flags = OpenFlags { read: !write, write, append, ..OpenFlags::default() };
    op.open(&Caller::root(), S1, at("d/f"), flags).map(drop)
}

fn change(op: &mut Op<'_, MemEngine>, change: SetAttr) -> Result<(), MetaError> {
    op.setattr(&Caller::root(), now(3), at("d/f"), false, &change).map(drop)
}

fn rename(op: &mut Op<'_, MemEngine>, from: &str, to: &str, mode: RenameMode) -> Result<(), MetaError> {
    op.rename(&Caller::root(), now(3), at(from), at(to), mode).map(drop)
}

/// What root does with `d/f`.
const WITH_A_FILE: &[(&str, Attempt)] = &[
    ("read", |op| open(op, false, false)),
    ("append", |op| open(op, true, true)),
    ("touch", |op| {
        change(op, SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() })
    }),
    ("write", |op| open(op, true, false)),
    ("truncate", |op| op.truncate_begin(&Caller::root(), now(3), S1, at("d/f"), 4).map(drop)),
    ("chmod", |op| change(op, SetAttr { mode: Some(0o600), ..SetAttr::default() })),
    ("chown", |op| change(op, SetAttr { uid: Some(8), ..SetAttr::default() })),
    ("a time", |op| change(op, SetAttr { mtime: Some(SetTime::At(now(1))), ..SetAttr::default() })),
    ("unlink", |op| op.unlink(&Caller::root(), now(3), at("d/f")).map(drop)),
    ("rename", |op| rename(op, "d/f", "h", RenameMode::Replace)),
    ("replace", |op| rename(op, "g", "d/f", RenameMode::Replace)),
    ("exchange", |op| rename(op, "g", "d/f", RenameMode::Exchange)),
    ("link", |op| op.link(&Caller::root(), now(3), at("d/f"), false, at("h")).map(drop)),
    ("an attribute", |op| {
        op.set_xattr(&Caller::root(), now(3), at("d/f"), false, b"user.a", b"1", XattrMode::Any)
    }),
    ("layout", |op| op.set_layout(&Caller::root(), now(3), at("d/f"), &LayoutRequest::default()).map(drop)),
];

/// What root does in `d`.
const IN_A_DIRECTORY: &[(&str, Attempt)] = &[
    ("write", |op| open(op, true, false)),
    ("create", |op| {
        let (new, root) = (NewFile { mode: 0o600, ..NewFile::default() }, Caller::root());
        op.create(&root, now(3), S1, at("d/new"), &new, WRITE).map(drop)
    }),
    ("mkdir", |op| op.mkdir(&Caller::root(), now(3), at("d/new"), 0o700).map(drop)),
    ("link", |op| op.link(&Caller::root(), now(3), at("g"), false, at("d/new")).map(drop)),
    ("rename to it", |op| rename(op, "g", "d/new", RenameMode::Replace)),
    ("unlink", |op| op.unlink(&Caller::root(), now(3), at("d/f")).map(drop)),
    ("rmdir", |op| op.rmdir(&Caller::root(), now(3), at("d/sub")).map(drop)),
    ("rename in it", |op| rename(op, "d/f", "d/new", RenameMode::Replace)),
    ("rename from it", |op| rename(op, "d/f", "h", RenameMode::Replace)),
    ("rename the directory", |op| rename(op, "d", "h", RenameMode::Replace)),
];

/// The first `allowed` of `attempts` can be done, the others cannot.
fn only_first(flagged: &str, flags: InodeFlags, attempts: &[(&str, Attempt)], allowed: usize) {
    for (number, (what, attempt)) in attempts.iter().enumerate() {
        let mut ns = with_flags(flagged, flags);
        match run(&mut ns, attempt) {
            Ok(()) => assert!(number < allowed, "{what} with flags {flags:#x}"),
            Err(error) => {
                assert!(number >= allowed, "{what} with flags {flags:#x}: {error}");
                assert!(matches!(error, MetaError::NotPermitted), "{what}: {error}");
            }
        }
        sound(&ns);
    }
}

#[test]
fn what_is_immutable_does_not_change() {
    only_first("d/f", IMMUTABLE, WITH_A_FILE, 1);
    only_first("d", IMMUTABLE, IN_A_DIRECTORY, 1);
}

#[test]
fn what_is_append_only_grows() {
    only_first("d/f", APPEND_ONLY, WITH_A_FILE, 3);
    only_first("d", APPEND_ONLY, IN_A_DIRECTORY, 5);
}

#[test]
fn other_flags_bind_nobody() {
    only_first("d/f", NO_DUMP, WITH_A_FILE, WITH_A_FILE.len());
    only_first("d", NO_DUMP, IN_A_DIRECTORY, IN_A_DIRECTORY.len());
}

#[test]
fn root_sets_what_binds_and_owners_what_does_not() {
    let mut ns = with_flags("d/sub", 0);
    let refused = |outcome: Result<(), MetaError>| matches!(outcome, Err(MetaError::NotPermitted));
    set(&mut ns, &user(7), "d/sub", NO_DUMP.into()).unwrap();
    assert!(refused(set(&mut ns, &user(8), "d/sub", 0)));
    assert!(refused(set(&mut ns, &user(7), "d/sub", (NO_DUMP | IMMUTABLE).into())));
    set(&mut ns, &Caller::root(), "d/sub", (NO_DUMP | IMMUTABLE).into()).unwrap();
    set(&mut ns, &user(7), "d/sub", IMMUTABLE.into()).unwrap();
    assert!(refused(set(&mut ns, &user(7), "d/sub", 0)));
    assert_eq!(flags_of(&mut ns, "d/sub"), u32::from(IMMUTABLE));
    let unknown = set(&mut ns, &Caller::root(), "d/sub", 0x1);
    assert!(matches!(unknown, Err(MetaError::NotSupported(_))), "{unknown:?}");
    let names = ns.begin().list_xattrs(&Caller::root(), at("d/sub"), false).unwrap();
    assert_eq!(names, Vec::<Vec<u8>>::new(), "copies do not take them along");
    set(&mut ns, &Caller::root(), "d/sub", 0).unwrap();
    run(&mut ns, |op| op.rmdir(&user(7), now(4), at("d/sub"))).unwrap();
    let fifo = run(&mut ns, |op| op.symlink(&user(7), now(4), at("l"), b"g")).unwrap().attr.ino;
    let link = ns.begin().get_xattr(&user(7), At::ino(fifo), false, NAME);
    assert!(matches!(link, Err(MetaError::NotSupported(_))), "{link:?}");
}

/// Who has a file open goes on, and the file is closed as any.
#[test]
fn a_writer_from_before_ends_as_ever() {
    let mut ns = with_flags("g", 0);
    let opened = run(&mut ns, |op| op.open(&user(7), S1, at("d/f"), WRITE)).unwrap();
    set(&mut ns, &Caller::root(), "d/f", IMMUTABLE.into()).unwrap();
    let report = weft_meta::WriteReport { max_end: 10, mtime: Some(now(3)) };
    run(&mut ns, |op| op.close(now(4), S1, opened.attr.ino, true, Some(&report))).unwrap();
    assert_eq!(ns.begin().stat(&user(7), at("d/f"), false).unwrap().size, 10);
    sound(&ns);
}
