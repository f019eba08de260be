//! Files that were removed while somebody may be about to open them.

mod common;
use common::*;
use weft_meta::{
    At, Caller, Engine, MemEngine, MetaError, Namespace, Owner, ROOT_INO, RenameMode, ToRemove, WriteReport,
};

/// A file with bytes in it, of which there is garbage when it goes.
fn written<E: Engine>(ns: &mut Namespace<E>, name: &str) -> u64 {
    let ino = create(ns, S1, name, WRITE).unwrap().attr.ino;
    let report = WriteReport { max_end: 100, mtime: Some(now(3)) };
    run(ns, |op| op.close(now(3), S1, ino, true, Some(&report))).unwrap();
    ino
}

/// Renames `from` to `to` before somebody's eyes.
fn replace<E: Engine>(ns: &mut Namespace<E>, from: &str, to: &str, expected: (u64, u64)) {
    let (root, mode) = (Caller::root(), RenameMode::Replace);
    run(ns, |op| {
        op.rename_keeping(&root, now(5), at(from), at(to), mode, |dir, ino| {
            assert_eq!((dir, ino), expected);
            true
        })
    })
    .unwrap();
}

fn open<E: Engine>(ns: &mut Namespace<E>, caller: &Caller, ino: u64) -> Result<(), MetaError> {
    run(ns, |op| op.open(caller, S2, At::ino(ino), READ)).map(drop)
}

fn garbage<E: Engine>(ns: &mut Namespace<E>) -> Vec<u64> {
    ns.begin().garbage(0, 9).unwrap().iter().map(|(ino, _)| *ino).collect()
}

fn two_files() -> (Namespace<MemEngine>, u64, u64) {
    let mut ns = mem();
    let (replaced, new) = (written(&mut ns, "f"), written(&mut ns, "new"));
    (ns, replaced, new)
}

#[test]
fn what_was_replaced_is_there_by_number_for_one_to_two_turns() {
    let (mut ns, replaced, new) = two_files();
    replace(&mut ns, "new", "f", (ROOT_INO, replaced));
    assert_eq!(stat(&mut ns, "f").unwrap().ino, new);
    let attr = ns.begin().getattr(replaced).unwrap();
    assert_eq!((attr.nlink, attr.size, attr.ctime), (0, 100, now(5)));
    assert_eq!(outcome(open(&mut ns, &user(7), replaced)), "ok", "its mode lets others read");
    run(&mut ns, |op| op.close(now(7), S2, replaced, false, None)).unwrap();
    assert_eq!(outcome(open(&mut ns, &user(7), replaced)), "ok", "nor is it gone at a close");
    run(&mut ns, |op| op.session_gone(S2)).unwrap();
    sound(&ns);
    assert_eq!((ns.let_go_of_removed(9).unwrap(), ns.statfs().lately_removed), (0, 1));
    ns.turn_removed();
    assert_eq!(outcome(open(&mut ns, &user(7), replaced)), "ok");
    run(&mut ns, |op| op.close(now(7), S2, replaced, false, None)).unwrap();
    assert_eq!(garbage(&mut ns), []);
    assert_eq!((ns.let_go_of_removed(9).unwrap(), ns.statfs().lately_removed), (1, 0));
    assert_eq!(outcome(open(&mut ns, &user(7), replaced)), "Stale");
    assert_eq!(garbage(&mut ns), [replaced]);
    sound(&ns);
}

#[test]
fn permissions_are_as_before() {
    let (mut ns, replaced, _) = two_files();
    let private = weft_meta::SetAttr { mode: Some(0o600), ..Default::default() };
    run(&mut ns, |op| op.setattr(&Caller::root(), now(4), at("f"), true, &private)).unwrap();
    replace(&mut ns, "new", "f", (ROOT_INO, replaced));
    assert_eq!(outcome(open(&mut ns, &user(7), replaced)), "Access");
    let linked = run(&mut ns, |op| op.link(&Caller::root(), now(6), At::ino(replaced), false, at("again")));
    assert_eq!(outcome(linked), "NotFound", "it has no name, and gets none any more");
}

#[test]
fn who_has_it_open_when_the_moment_is_over_keeps_it() {
    let (mut ns, replaced, _) = two_files();
    run(&mut ns, |op| op.unlink_keeping(&Caller::root(), now(5), at("f"), |_, _| true)).unwrap();
    open(&mut ns, &Caller::root(), replaced).unwrap();
    ns.turn_removed();
    ns.let_go_of_removed(9).unwrap();
    sound(&ns);
    assert_eq!((ns.statfs().lately_removed, garbage(&mut ns)), (0, vec![]));
    run(&mut ns, |op| op.close(now(7), S2, replaced, false, None)).unwrap();
    assert_eq!(garbage(&mut ns), [replaced]);
    sound(&ns);
}

#[test]
fn nothing_is_kept_that_has_a_name_or_that_nobody_looks_at_or_that_is_large() {
    let (mut ns, replaced, _) = two_files();
    run(&mut ns, |op| op.link(&Caller::root(), now(4), at("f"), false, at("other"))).unwrap();
    replace(&mut ns, "new", "f", (0, 0));
    run(&mut ns, |op| op.unlink(&Caller::root(), now(5), at("other"))).unwrap();
    assert_eq!((ns.statfs().lately_removed, outcome(open(&mut ns, &user(7), replaced))), (0, "Stale"));
    let large = create(&mut ns, S1, "large", WRITE).unwrap().attr.ino;
    let report = WriteReport { max_end: 1 << 40, mtime: None };
    run(&mut ns, |op| op.close(now(3), S1, large, true, Some(&report))).unwrap();
    run(&mut ns, |op| op.unlink_keeping(&Caller::root(), now(5), at("large"), |_, _| true)).unwrap();
    assert_eq!((ns.statfs().lately_removed, garbage(&mut ns)), (0, vec![replaced, large]));
    sound(&ns);
}

#[test]
fn what_a_restart_leaves_is_an_orphan_like_others() {
    let (mut ns, replaced, _) = two_files();
    replace(&mut ns, "new", "f", (ROOT_INO, replaced));
    let mut later = Namespace::open(ns.engine().fork(), options()).unwrap();
    assert_eq!(outcome(open(&mut later, &user(7), replaced)), "ok", "in the time of grace");
    run(&mut later, |op| op.close(now(7), S2, replaced, false, None)).unwrap();
    assert_eq!(later.reap_orphans(0).unwrap(), 1);
    assert_eq!(garbage(&mut later), [replaced]);
    sound(&later);
}

#[test]
fn only_what_leaves_data_behind_gives_the_remover_work() {
    let mut ns = mem();
    let unlink = |ns: &mut Namespace<MemEngine>, name| {
        run(ns, |op| op.unlink(&Caller::root(), now(4), at(name))).unwrap();
    };
    written(&mut ns, "f");
    create(&mut ns, S1, "empty", READ).unwrap();
    assert_eq!(ns.take_to_remove(), ToRemove::Nothing, "a close leaves nothing");
    unlink(&mut ns, "f");
    assert_eq!(ns.take_to_remove(), ToRemove::Now);
    assert_eq!(ns.take_to_remove(), ToRemove::Nothing, "it is said once");
    let ino = written(&mut ns, "g");
    run(&mut ns, |op| op.open(&Caller::root(), S1, At::ino(ino), READ)).unwrap();
    unlink(&mut ns, "g");
    assert_eq!(ns.take_to_remove(), ToRemove::Nothing, "it is still open");
    run(&mut ns, |op| op.close(now(7), S1, ino, false, None)).unwrap();
    assert_eq!(ns.take_to_remove(), ToRemove::Now);
    assert_eq!(garbage(&mut ns).len(), 2);
    written(&mut ns, "h");
    run(&mut ns, |op| op.unlink_keeping(&Caller::root(), now(5), at("h"), |_, _| true)).unwrap();
    assert_eq!(ns.take_to_remove(), ToRemove::Later, "it is kept for a moment");
}

#[test]
fn a_removal_is_postponed_for_each_server_and_the_file_is_gone_with_the_last() {
    let (mut ns, one, two) = two_files();
    for name in ["f", "new"] {
        run(&mut ns, |op| op.unlink(&Caller::root(), now(5), at(name))).unwrap();
    }
    assert_eq!(garbage(&mut ns), [one, two]);
    run(&mut ns, |op| {
        op.garbage_done(&[one, two]);
        op.postpone_removal(0, &[one, two]);
        op.postpone_removal(700, &[one]);
        Ok(())
    })
    .unwrap();
    assert_eq!(garbage(&mut ns), []);
    assert_eq!(ns.servers_behind().unwrap(), [0, 700]);
    sound(&ns);
    let left = |ns: &mut Namespace<MemEngine>, server, after| {
        ns.begin().postponed_removals(server, after, 9).unwrap()
    };
    assert_eq!([left(&mut ns, 0, 0), left(&mut ns, 0, one)], [vec![one, two], vec![two]]);
    assert_eq!([left(&mut ns, 1, 0), left(&mut ns, 700, 0)], [vec![], vec![one]]);
    let owners = |ns: &Namespace<MemEngine>| ns.owners(&[one, two]).unwrap();
    assert_eq!(owners(&ns), [Owner::Unsettled; 2]);
    let done = |ns: &mut Namespace<MemEngine>, server, inos: &[u64]| {
        let behind = ns.servers_behind().unwrap();
        run(ns, |op| op.postponed_done(server, inos, &behind)).unwrap()
    };
    assert_eq!(done(&mut ns, 0, &[one, two]), 1, "one has a data file on the other server");
    assert_eq!(ns.servers_behind().unwrap(), [700]);
    assert_eq!(owners(&ns), [Owner::Unsettled, Owner::Nothing]);
    assert_eq!(done(&mut ns, 700, &[one]), 1);
    assert_eq!((ns.servers_behind().unwrap(), owners(&ns)), (vec![], vec![Owner::Nothing; 2]));
}
