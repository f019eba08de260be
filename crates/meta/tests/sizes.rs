//! The size protocol, step by step.

mod common;
use common::*;
use weft_meta::{
    At, Caller, Engine, MemEngine, Namespace, OpenFlags, ROOT_INO, SessionId, SetAttr, SetTime, TouchedInode,
    WriteReport,
};

fn close<E: Engine>(ns: &mut Namespace<E>, session: SessionId, ino: u64, end: u64) {
    let report = WriteReport { max_end: end, mtime: (end > 0).then_some(now(end as i64)) };
    run(ns, |op| op.close(now(50), session, ino, true, Some(&report))).unwrap();
}

fn open<E: Engine>(ns: &mut Namespace<E>, session: SessionId, ino: u64, flags: OpenFlags) {
    run(ns, |op| op.open(&Caller::root(), session, At::ino(ino), flags)).unwrap();
}

fn size<E: Engine>(ns: &mut Namespace<E>, ino: u64) -> (u64, bool) {
    let attr = ns.begin().getattr(ino).unwrap();
    (attr.size, attr.size_live)
}

fn settle<E: Engine>(ns: &mut Namespace<E>, ino: u64, bytes: u64, epoch: u64) {
    run(ns, |op| op.settle(ino, bytes, None, epoch)).unwrap();
}

#[test]
fn reports_of_all_writers_make_the_size_known() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    assert_eq!(size(&mut ns, ino), (0, true));
    open(&mut ns, S2, ino, WRITE);
    close(&mut ns, S1, ino, 100);
    assert_eq!(size(&mut ns, ino), (100, true), "another writer is open");
    close(&mut ns, S2, ino, 40);
    assert_eq!(size(&mut ns, ino), (100, false));
    open(&mut ns, S1, ino, WRITE);
    let report = WriteReport { max_end: 300, mtime: Some(now(300)) };
    let attr = run(&mut ns, |op| op.report_write(now(301), S1, ino, &report)).unwrap();
    assert_eq!((attr.size, attr.size_live, attr.mtime), (300, true, now(300)));
    close(&mut ns, S1, ino, 0);
    assert_eq!(size(&mut ns, ino), (300, false));
    assert_eq!(ns.begin().getattr(ino).unwrap().mtime, now(300), "closing without a write keeps the time");
}

#[test]
fn a_report_is_a_change_of_contents_also_where_the_time_is_set_back_with_it() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    let report = WriteReport { max_end: 300, mtime: Some(now(300)) };
    let back = SetAttr { mtime: Some(SetTime::At(now(7))), ..SetAttr::default() };
    for _ in 0..2 {
        let touched = run(&mut ns, |op| {
            op.report_write(now(301), S1, ino, &report)?;
            op.setattr(&Caller::root(), now(301), At::ino(ino), false, &back)?;
            op.touched()
        });
        assert_eq!(touched.unwrap().inodes, [TouchedInode { ino, data: true }]);
    }
    let touched = run(&mut ns, |op| {
        op.setattr(&Caller::root(), now(302), At::ino(ino), false, &back)?;
        op.touched()
    });
    assert_eq!(touched.unwrap().inodes, [TouchedInode { ino, data: false }]);
}

#[test]
fn many_handles_are_given_back_in_one_commit() {
    let mut ns = mem();
    let [shared, unlinked, other] =
        ["shared", "unlinked", "other"].map(|name| create(&mut ns, S1, name, WRITE).unwrap().attr.ino);
    open(&mut ns, S1, shared, WRITE);
    open(&mut ns, S1, shared, READ);
    open(&mut ns, S1, unlinked, READ);
    run(&mut ns, |op| op.unlink(&Caller::root(), now(4), at("unlinked"))).unwrap();
    let report = |end| WriteReport { max_end: end, mtime: Some(now(end as i64)) };
    let committed = ns.committed();
    run(&mut ns, |op| {
        for (ino, write, end) in
            [(shared, true, 70), (unlinked, false, 0), (shared, true, 30), (unlinked, true, 5)]
        {
            op.close(now(50), S1, ino, write, write.then_some(&report(end)))?;
        }
        op.close(now(50), S2, other, true, Some(&report(9)))
    })
    .unwrap();
    assert_eq!(ns.committed(), committed + 1);
    assert_eq!(size(&mut ns, shared), (70, false), "the second of two writers was the last");
    assert_eq!(outcome(ns.begin().getattr(unlinked)), "Stale");
    assert_eq!(ns.begin().garbage(0, 9).unwrap().len(), 1);
    assert_eq!(size(&mut ns, other), (0, true), "it was not that session's");
    assert_eq!(ns.statfs().open_files, 2, "one is still read, one written");
    sound(&ns);
}

#[test]
fn a_handle_that_is_given_back_wrongly_keeps_no_other() {
    let mut ns = mem();
    let inos = ["a", "wrong", "b"].map(|name| create(&mut ns, S1, name, WRITE).unwrap().attr.ino);
    let ends = [10, u64::MAX, 20];
    let closed = run(&mut ns, |op| {
        let close = |(ino, max_end): (&u64, u64)| {
            outcome(op.close(now(5), S1, *ino, true, Some(&WriteReport { max_end, mtime: None })))
        };
        Ok(inos.iter().zip(ends).map(close).collect::<Vec<_>>())
    });
    let closed = closed.unwrap();
    assert_eq!(closed, ["ok", "Invalid", "ok"]);
    assert_eq!(inos.map(|ino| size(&mut ns, ino)), [(10, false), (0, true), (20, false)]);
    assert_eq!(ns.statfs().open_files, 0);
    let epoch = ns.begin().getattr(inos[1]).unwrap().epoch;
    settle(&mut ns, inos[1], 7, epoch);
    assert_eq!(size(&mut ns, inos[1]), (7, false));
}

#[test]
fn a_writer_without_a_report_leaves_the_size_live_until_settled() {
    let mut ns = mem();
    for gone in [false, true] {
        let name = format!("f{gone}");
        let ino = create(&mut ns, S1, &name, WRITE).unwrap().attr.ino;
        let during = ns.begin().getattr(ino).unwrap().epoch;
        if gone {
            run(&mut ns, |op| op.session_gone(S1)).unwrap();
        } else {
            run(&mut ns, |op| op.close(now(3), S1, ino, true, None)).unwrap();
        }
        assert_eq!(size(&mut ns, ino), (0, true));
        settle(&mut ns, ino, 11, during);
        assert_eq!(size(&mut ns, ino), (0, true), "measured while a writer was open");
        let epoch = ns.begin().getattr(ino).unwrap().epoch;
        settle(&mut ns, ino, 77, epoch);
        assert_eq!(size(&mut ns, ino), (77, false));
        settle(&mut ns, ino, 99, epoch);
        assert_eq!(size(&mut ns, ino), (77, false), "a settled size is not measured again");
    }
}

#[test]
fn a_measurement_is_void_once_a_writer_came() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    run(&mut ns, |op| op.close(now(3), S1, ino, true, None)).unwrap();
    let epoch = ns.begin().getattr(ino).unwrap().epoch;
    open(&mut ns, S2, ino, WRITE);
    settle(&mut ns, ino, 5, epoch);
    assert!(size(&mut ns, ino).1, "a writer is open");
    close(&mut ns, S2, ino, 500);
    settle(&mut ns, ino, 5, epoch);
    assert!(size(&mut ns, ino).1, "the file was dirty before: its writer's report is not all");
    let epoch = ns.begin().getattr(ino).unwrap().epoch;
    settle(&mut ns, ino, 500, epoch);
    assert_eq!(size(&mut ns, ino), (500, false));
}

#[test]
fn truncating_a_closed_file() {
    let mut ns = mem();
    let root = Caller::root();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    close(&mut ns, S1, ino, 1000);
    let begun = run(&mut ns, |op| op.truncate_begin(&root, now(9), S1, at("f"), 1000)).unwrap();
    assert!(!begun.data_work, "it has that size");
    let begun = run(&mut ns, |op| op.truncate_begin(&root, now(9), S1, at("f"), 10)).unwrap();
    assert!(begun.data_work);
    assert_eq!(size(&mut ns, ino), (1000, true), "live while it is being cut");
    settle(&mut ns, ino, 1000, begun.attr.epoch);
    assert!(size(&mut ns, ino).1, "a truncation is under way");
    let done = run(&mut ns, |op| op.truncate_commit(now(9), S1, ino, 10, begun.attr.epoch)).unwrap();
    assert_eq!((done.size, done.size_live), (10, false));
    let again = run(&mut ns, |op| op.truncate_commit(now(9), S1, ino, 10, begun.attr.epoch));
    assert_eq!(outcome(again), "Stale");
    assert_eq!(outcome(run(&mut ns, |op| op.truncate_begin(&root, now(9), S1, at("/"), 10))), "IsDirectory");
    let begun = run(&mut ns, |op| op.truncate_begin(&root, now(9), S1, at("f"), u64::MAX));
    assert_eq!(outcome(begun), "Invalid");
}

#[test]
fn a_truncation_under_a_foreign_writer_leaves_the_size_live() {
    let mut ns = mem();
    let root = Caller::root();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    let begun = run(&mut ns, |op| op.truncate_begin(&root, now(9), S2, At::ino(ino), 10)).unwrap();
    run(&mut ns, |op| op.truncate_commit(now(9), S2, ino, 10, begun.attr.epoch)).unwrap();
    close(&mut ns, S1, ino, 1000);
    assert!(size(&mut ns, ino).1, "was the 1000 written before the cut or after?");
}

#[test]
fn a_writer_that_truncates_itself_keeps_the_size_known() {
    let mut ns = mem();
    let root = Caller::root();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    close(&mut ns, S1, ino, 1000);
    run(&mut ns, |op| op.open(&root, S1, at("f"), WRITE)).unwrap();
    let truncation = run(&mut ns, |op| op.truncate_begin(&root, now(9), S1, At::ino(ino), 0)).unwrap();
    assert!(truncation.data_work);
    run(&mut ns, |op| op.truncate_commit(now(9), S1, ino, 0, truncation.attr.epoch)).unwrap();
    close(&mut ns, S1, ino, 60);
    assert_eq!(size(&mut ns, ino), (60, false));
    let empty = create(&mut ns, S1, "e", WRITE).unwrap().attr.ino;
    close(&mut ns, S1, empty, 0);
    let truncation = run(&mut ns, |op| op.truncate_begin(&root, now(9), S1, at("e"), 0)).unwrap();
    assert!(!truncation.data_work, "it was never written");
    assert_eq!(size(&mut ns, empty), (0, false));
}

#[test]
fn two_truncations_at_once_void_each_other() {
    let mut ns = mem();
    let root = Caller::root();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    close(&mut ns, S1, ino, 1000);
    let one = run(&mut ns, |op| op.truncate_begin(&root, now(9), S1, at("f"), 10)).unwrap();
    let two = run(&mut ns, |op| op.truncate_begin(&root, now(9), S2, at("f"), 20)).unwrap();
    run(&mut ns, |op| op.truncate_commit(now(9), S1, ino, 10, one.attr.epoch)).unwrap();
    let attr = run(&mut ns, |op| op.truncate_commit(now(9), S2, ino, 20, two.attr.epoch)).unwrap();
    assert!(attr.size_live);
    settle(&mut ns, ino, 10, attr.epoch);
    assert_eq!(size(&mut ns, ino), (10, false));
}

#[test]
fn a_truncator_that_died_leaves_the_size_live() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    close(&mut ns, S1, ino, 1000);
    let begun = run(&mut ns, |op| op.truncate_begin(&Caller::root(), now(9), S2, at("f"), 10)).unwrap();
    run(&mut ns, |op| op.session_gone(S2)).unwrap();
    settle(&mut ns, ino, 1000, begun.attr.epoch);
    let attr = ns.begin().getattr(ino).unwrap();
    assert!(attr.size_live);
    settle(&mut ns, ino, 10, attr.epoch);
    assert_eq!(size(&mut ns, ino), (10, false));
}

#[test]
fn unlinked_open_files_live_until_the_last_close_and_leave_garbage_if_written() {
    let mut ns = mem();
    let root = Caller::root();
    let written = create(&mut ns, S1, "w", WRITE).unwrap().attr.ino;
    let unwritten = create(&mut ns, S1, "u", WRITE).unwrap().attr.ino;
    open(&mut ns, S2, written, READ);
    for name in ["w", "u"] {
        run(&mut ns, |op| op.unlink(&root, now(4), at(name))).unwrap();
        assert_eq!(outcome(stat(&mut ns, name)), "NotFound");
    }
    sound(&ns);
    assert_eq!(ns.begin().getattr(written).unwrap().nlink, 0);
    close(&mut ns, S1, written, 10);
    close(&mut ns, S1, unwritten, 0);
    assert_eq!(ns.begin().inodes_exist(&[written, unwritten]).unwrap(), [true, false]);
    assert_eq!(ns.begin().garbage(0, 9).unwrap(), vec![]);
    run(&mut ns, |op| op.close(now(5), S2, written, false, None)).unwrap();
    assert_eq!(outcome(ns.begin().getattr(written)), "Stale");
    let garbage = ns.begin().garbage(0, 9).unwrap();
    assert_eq!(garbage.iter().map(|(ino, _)| *ino).collect::<Vec<_>>(), [written]);
    sound(&ns);
    run(&mut ns, |op| {
        op.garbage_done(&[written]);
        Ok(())
    })
    .unwrap();
    assert_eq!(ns.begin().garbage(0, 9).unwrap(), vec![]);
    assert_eq!(ns.statfs().open_files, 0);
}

#[test]
fn a_session_that_is_gone_reaps_its_unlinked_files() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", WRITE).unwrap().attr.ino;
    run(&mut ns, |op| op.unlink(&Caller::root(), now(4), at("f"))).unwrap();
    run(&mut ns, |op| op.session_gone(S1)).unwrap();
    assert_eq!(ns.begin().inodes_exist(&[ino]).unwrap(), [false]);
    assert_eq!(ns.begin().garbage(0, 9).unwrap().len(), 1, "it may have written");
    assert_eq!(ns.statfs().sessions, 0);
    sound(&ns);
}

#[test]
fn after_a_restart_sessions_claim_their_files_and_the_rest_is_reaped() {
    let mut ns = mem();
    let root = Caller::root();
    let kept = create(&mut ns, S1, "kept", WRITE).unwrap().attr.ino;
    let lost = create(&mut ns, S2, "lost", WRITE).unwrap().attr.ino;
    let named = create(&mut ns, S1, "named", WRITE).unwrap().attr.ino;
    for name in ["kept", "lost"] {
        run(&mut ns, |op| op.unlink(&root, now(4), at(name))).unwrap();
    }
    let before = ns.begin().getattr(named).unwrap().epoch;
    let mut ns = Namespace::open(ns.engine().fork(), options()).unwrap();
    assert!(ns.in_grace());
    settle(&mut ns, named, 5, before);
    let epoch = ns.begin().getattr(named).unwrap().epoch;
    settle(&mut ns, named, 5, epoch);
    assert!(size(&mut ns, named).1, "its writer may come back");
    run(&mut ns, |op| op.unlink(&root, now(4), at("named"))).unwrap();
    run(&mut ns, |op| op.reopen(S1, kept, true)).unwrap();
    run(&mut ns, |op| op.reopen(S1, named, true)).unwrap();
    assert_eq!(ns.reap_orphans(0).unwrap(), 1);
    assert_eq!(ns.begin().inodes_exist(&[kept, lost, named]).unwrap(), [true, false, true]);
    close(&mut ns, S1, kept, 10);
    close(&mut ns, S1, named, 10);
    assert_eq!(ns.begin().inodes_exist(&[kept, named]).unwrap(), [false, false]);
    assert_eq!(ns.begin().garbage(0, 9).unwrap().len(), 3);
    assert_eq!(outcome(run(&mut ns, |op| op.reopen(S1, lost, true))), "Stale");
    sound(&ns);
}

#[test]
fn numbers_are_not_given_out_again_after_a_crash_that_lost_creates() {
    let mut ns = mem();
    ns.syncer().sync().unwrap();
    let lost = mkfile(&mut ns, &Caller::root(), "f", 0o644).unwrap();
    let mut ns = Namespace::open(ns.engine().after_crash(0), options()).unwrap();
    let ino = mkfile(&mut ns, &Caller::root(), "f", 0o644).unwrap();
    assert!(ino > lost && ns.next_ino() > ino);
    sound(&ns);
}

#[test]
fn layouts_come_from_the_request_the_directory_or_the_cluster() {
    use weft_meta::{LayoutInfo, LayoutRequest, NewFile};
    let mut ns = fresh(MemEngine::new());
    let root = Caller::root();
    mkdir(&mut ns, &root, "d", 0o755).unwrap();
    let narrow = LayoutRequest { strip_bytes: Some(8192), server_count: Some(2), first_server: Some(3) };
    run(&mut ns, |op| op.set_layout(&root, now(2), at("d"), &narrow)).unwrap();
    mkdir(&mut ns, &root, "d/sub", 0o755).unwrap();
    mkfile(&mut ns, &root, "d/sub/f", 0o644).unwrap();
    let layout = stat(&mut ns, "d/sub/f").unwrap().layout.unwrap();
    assert_eq!((layout.strip_bytes(), layout.server_count(), layout.first_server()), (8192, 2, 3));
    mkfile(&mut ns, &root, "g", 0o644).unwrap();
    let layout = stat(&mut ns, "g").unwrap().layout.unwrap();
    assert_eq!((layout.strip_bytes(), layout.server_count()), (256 * 1024, 4));
    let wide = LayoutRequest { server_count: Some(5), ..LayoutRequest::default() };
    assert_eq!(outcome(run(&mut ns, |op| op.set_layout(&root, now(2), at("g"), &wide))), "Invalid");
    let odd = LayoutRequest { strip_bytes: Some(1000), ..LayoutRequest::default() };
    assert_eq!(outcome(run(&mut ns, |op| op.set_layout(&root, now(2), at("g"), &odd))), "Invalid");
    let info = run(&mut ns, |op| op.set_layout(&root, now(2), at("g"), &narrow)).unwrap();
    assert!(matches!(info, LayoutInfo::File(layout) if layout.server_count() == 2));
    let new = NewFile { mode: 0o600, layout: Some(narrow), ..NewFile::default() };
    let opened =
        run(&mut ns, |op| op.create(&root, now(1), S1, At::new(ROOT_INO, "h"), &new, WRITE)).unwrap();
    assert_eq!(opened.attr.layout.unwrap().first_server(), 3);
    assert_eq!(outcome(run(&mut ns, |op| op.set_layout(&root, now(2), at("h"), &narrow))), "Busy");
    close(&mut ns, S1, opened.attr.ino, 0);
    run(&mut ns, |op| op.set_layout(&root, now(2), at("h"), &LayoutRequest::default())).unwrap();
}
