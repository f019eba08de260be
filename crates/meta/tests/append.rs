//! Places for appends: never the same twice, beyond what others have written, and none where the file was just cut.

mod common;
use common::*;
use weft_meta::{AppendPlace, At, Caller, Engine, MemEngine, Namespace, SessionId, WriteReport};

fn place<E: Engine>(
    ns: &mut Namespace<E>,
    session: SessionId,
    ino: u64,
    bytes: u64,
    size: u64,
) -> AppendPlace {
    let epoch = ns.begin().getattr(ino).unwrap().epoch;
    run(ns, |op| op.append_place(session, ino, bytes, size, epoch)).unwrap()
}

fn offset<E: Engine>(ns: &mut Namespace<E>, session: SessionId, ino: u64, bytes: u64, size: u64) -> u64 {
    place(ns, session, ino, bytes, size).offset.expect("the size is right")
}

fn open<E: Engine>(ns: &mut Namespace<E>, session: SessionId, ino: u64) {
    run(ns, |op| op.open(&Caller::root(), session, At::ino(ino), WRITE)).unwrap();
}

fn close<E: Engine>(ns: &mut Namespace<E>, session: SessionId, ino: u64) {
    run(ns, |op| op.close(now(50), session, ino, true, Some(&WriteReport::default()))).unwrap();
}

fn restart(ns: &Namespace<MemEngine>) -> Namespace<MemEngine> {
    Namespace::open(ns.engine().fork(), options()).unwrap()
}

#[test]
fn places_follow_each_other_and_what_others_write() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    open(&mut ns, S2, ino);
    assert_eq!(offset(&mut ns, S1, ino, 10, 100), 100);
    assert_eq!(offset(&mut ns, S2, ino, 5, 100), 110, "the first is still on its way");
    assert_eq!(offset(&mut ns, S1, ino, 5, 200), 200, "another writer has extended the file");
    assert_eq!(offset(&mut ns, S2, ino, 1, 200), 205);
    assert!(run(&mut ns, |op| op.append_place(SessionId([9; 16]), ino, 1, 0, 0)).is_err(), "not open");
    close(&mut ns, S2, ino);
    assert_eq!(offset(&mut ns, S1, ino, 1, 0), 206, "there is a writer left");
    close(&mut ns, S1, ino);
    open(&mut ns, S1, ino);
    assert_eq!(offset(&mut ns, S1, ino, 1, 3), 3, "what nobody wrote is forgotten with the last writer");
    assert_eq!(ns.check().unwrap(), []);
}

#[test]
fn a_size_from_before_or_during_a_truncation_places_nothing() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    assert_eq!(offset(&mut ns, S1, ino, 10, 0), 0);
    let before = ns.begin().getattr(ino).unwrap().epoch;
    let begun = run(&mut ns, |op| op.truncate_begin(&Caller::root(), now(3), S2, At::ino(ino), 4)).unwrap();
    assert!(begun.data_work);
    let stale = run(&mut ns, |op| op.append_place(S1, ino, 1, 10, before)).unwrap();
    assert_eq!(stale, AppendPlace { offset: None, epoch: begun.attr.epoch });
    assert_eq!(place(&mut ns, S1, ino, 1, 10).offset, None, "it is being cut");
    run(&mut ns, |op| op.truncate_commit(now(4), S2, ino, 4, begun.attr.epoch)).unwrap();
    let during = run(&mut ns, |op| op.append_place(S1, ino, 1, 10, begun.attr.epoch)).unwrap();
    assert_eq!(during.offset, None, "measured while it was being cut");
    assert_eq!(offset(&mut ns, S1, ino, 1, 4), 4);
}

#[test]
fn a_restart_gives_no_place_twice() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    assert_eq!(offset(&mut ns, S1, ino, 10, 100), 100);
    let mut ns = restart(&ns);
    run(&mut ns, |op| op.reopen(S2, ino, true)).unwrap();
    assert_eq!(offset(&mut ns, S2, ino, 10, 100), 110, "the first may still be on its way");
    close(&mut ns, S2, ino);
    run(&mut ns, |op| op.reopen(S1, ino, true)).unwrap();
    assert_eq!(offset(&mut ns, S1, ino, 10, 100), 120, "nor while others may come back");
    close(&mut ns, S1, ino);
    ns.reap_orphans(0).unwrap();
    open(&mut ns, S1, ino);
    assert_eq!(offset(&mut ns, S1, ino, 1, 100), 100);
}

#[test]
fn nothing_is_left_of_a_file_that_is_removed() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    assert_eq!(offset(&mut ns, S1, ino, 10, 0), 0);
    run(&mut ns, |op| op.unlink(&Caller::root(), now(4), at("f"))).unwrap();
    run(&mut ns, |op| op.session_gone(S1)).unwrap();
    assert_eq!(ns.check().unwrap(), []);
    let ns = restart(&ns);
    assert_eq!(ns.engine().scan(b"t", b"u").count(), 0);
}
