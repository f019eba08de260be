//! Capabilities of programs, as `security.capability`: a change of the contents takes them away, by whomever.

mod common;

use common::*;
use weft_meta::{At, Caller, MemEngine, MetaError, Namespace, NewFile, SetAttr, WriteReport, XattrMode};

const NAME: &[u8] = b"security.capability";

/// A file with capabilities, of user 7, that session 1 has open for writing.
fn program(ns: &mut Namespace<MemEngine>, small: bool) -> u64 {
    let new = NewFile { mode: 0o755, small, ..NewFile::default() };
    let path = format!("program{small}");
    let made = run(ns, |op| op.create(&user(7), now(1), S1, at(&path), &new, WRITE)).unwrap();
    give(ns, made.attr.ino);
    made.attr.ino
}

fn give(ns: &mut Namespace<MemEngine>, ino: u64) {
    let set = run(ns, |op| {
        let root = Caller::root();
        op.set_xattr(&root, now(2), At::ino(ino), false, NAME, b"all of them", XattrMode::Any)?;
        op.set_xattr(&root, now(2), At::ino(ino), false, b"user.note", b"stays", XattrMode::Any)
    });
    set.unwrap();
    assert!(has_it(ns, ino));
}

fn has_it(ns: &mut Namespace<MemEngine>, ino: u64) -> bool {
    let names = ns.begin().list_xattrs(&Caller::root(), At::ino(ino), false).unwrap();
    assert!(names.contains(&b"user.note".to_vec()));
    sound(ns);
    names.contains(&NAME.to_vec())
}

#[test]
fn writes_truncations_and_a_new_owner_take_them_away() {
    let mut ns = mem();
    let ino = program(&mut ns, false);
    let nothing = WriteReport { max_end: 0, mtime: None };
    run(&mut ns, |op| op.report_write(now(3), S1, ino, &nothing)).unwrap();
    assert!(has_it(&mut ns, ino), "nothing was written");
    let mode = SetAttr { mode: Some(0o711), ..SetAttr::default() };
    run(&mut ns, |op| op.setattr(&user(7), now(3), At::ino(ino), false, &mode)).unwrap();
    assert!(has_it(&mut ns, ino));

    let written = WriteReport { max_end: 100, mtime: Some(now(4)) };
    run(&mut ns, |op| op.report_write(now(4), S1, ino, &written)).unwrap();
    assert!(!has_it(&mut ns, ino));
    give(&mut ns, ino);
    run(&mut ns, |op| op.close(now(5), S1, ino, true, Some(&written))).unwrap();
    assert!(!has_it(&mut ns, ino));
    give(&mut ns, ino);
    run(&mut ns, |op| op.truncate_begin(&Caller::root(), now(6), S1, At::ino(ino), 4)).unwrap();
    assert!(!has_it(&mut ns, ino));
    give(&mut ns, ino);
    let owner = SetAttr { uid: Some(8), ..SetAttr::default() };
    run(&mut ns, |op| op.setattr(&Caller::root(), now(7), At::ino(ino), false, &owner)).unwrap();
    assert!(!has_it(&mut ns, ino));
}

#[test]
fn a_small_file_loses_them_with_its_first_write() {
    let mut ns = mem();
    let ino = program(&mut ns, true);
    run(&mut ns, |op| op.write_small(now(3), ino, 0, b"other contents")).unwrap();
    assert!(!has_it(&mut ns, ino));
}

#[test]
fn a_writer_that_died_may_have_written() {
    let mut ns = mem();
    let ino = program(&mut ns, false);
    run(&mut ns, |op| op.session_gone(S1)).unwrap();
    assert!(has_it(&mut ns, ino));
    let epoch = ns.begin().getattr(ino).unwrap().epoch;
    run(&mut ns, |op| op.settle(ino, 10, Some(now(4)), epoch)).unwrap();
    assert!(!has_it(&mut ns, ino));
}

#[test]
fn who_may_write_may_take_them_away_and_nothing_more() {
    let mut ns = mem();
    let ino = program(&mut ns, false);
    let remove = |ns: &mut Namespace<MemEngine>, caller: &Caller, name: &[u8]| -> Result<(), MetaError> {
        run(ns, |op| op.remove_xattr(caller, now(3), At::ino(ino), false, name))
    };
    assert_eq!(outcome(remove(&mut ns, &user(9), NAME)), "Access");
    assert_eq!(outcome(remove(&mut ns, &user(7), b"security.other")), "NotPermitted");
    let set =
        run(&mut ns, |op| op.set_xattr(&user(7), now(3), At::ino(ino), false, NAME, b"more", XattrMode::Any));
    assert_eq!(outcome(set), "NotPermitted");
    assert!(has_it(&mut ns, ino));
    remove(&mut ns, &user(7), NAME).unwrap();
    assert!(!has_it(&mut ns, ino));
    assert_eq!(outcome(remove(&mut ns, &user(7), NAME)), "NoXattr");
}
