//! Counters of open files: each number once, whoever adds, and nothing is left of an open that has ended.

mod common;
use common::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use weft_meta::{
    At, COUNTER_MAX, Caller, CounterChange, CounterId, Engine, MemEngine, MetaError, Namespace, Once,
    SessionId,
};

fn counter(ino: u64, session: SessionId, number: u64) -> CounterId {
    CounterId { ino, session, number }
}

fn change<E: Engine>(ns: &mut Namespace<E>, id: CounterId, change: CounterChange) -> Result<u64, MetaError> {
    run(ns, |op| op.fetch_counter(id, change, true))
}

fn add<E: Engine>(ns: &mut Namespace<E>, id: CounterId, by: i64) -> Result<u64, MetaError> {
    change(ns, id, CounterChange::Add(by))
}

fn open<E: Engine>(ns: &mut Namespace<E>, session: SessionId, ino: u64) {
    run(ns, |op| op.open(&Caller::root(), session, At::ino(ino), READ)).unwrap();
}

/// What the server does at the close of an open with this number.
fn close<E: Engine>(ns: &mut Namespace<E>, id: CounterId) {
    run(ns, |op| {
        op.drop_counter(id);
        op.close(now(50), id.session, id.ino, false, None)
    })
    .unwrap();
}

fn restart(ns: &Namespace<MemEngine>) -> Namespace<MemEngine> {
    Namespace::open(ns.engine().fork(), options()).unwrap()
}

/// Records of counters in the store.
fn stored<E: Engine>(ns: &Namespace<E>) -> usize {
    ns.engine().scan(b"c", b"d").count()
}

#[test]
fn numbers_follow_each_other_and_each_open_has_its_own() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", READ).unwrap().attr.ino;
    open(&mut ns, S1, ino);
    open(&mut ns, S2, ino);
    let [first, second, other] = [counter(ino, S1, 1), counter(ino, S1, 2), counter(ino, S2, 1)];
    assert_eq!(add(&mut ns, first, 10).unwrap(), 0);
    assert_eq!(add(&mut ns, first, 5).unwrap(), 10);
    assert_eq!((add(&mut ns, second, 1).unwrap(), add(&mut ns, other, 1).unwrap()), (0, 0));
    assert_eq!(change(&mut ns, first, CounterChange::Set(7)).unwrap(), 15);
    assert_eq!(add(&mut ns, first, -7).unwrap(), 7);
    assert_eq!((add(&mut ns, first, 0).unwrap(), stored(&ns)), (0, 3));
    assert_eq!(ns.statfs().counters, 3);
    sound(&ns);
}

#[test]
fn a_counter_does_not_leave_its_range() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", READ).unwrap().attr.ino;
    let id = counter(ino, S1, 1);
    assert_eq!(outcome(add(&mut ns, id, -1)), "Counter");
    assert_eq!(change(&mut ns, id, CounterChange::Set(COUNTER_MAX - 1)).unwrap(), 0);
    for refused in [CounterChange::Add(2), CounterChange::Add(i64::MIN), CounterChange::Set(COUNTER_MAX + 1)]
    {
        let error = change(&mut ns, id, refused).unwrap_err();
        assert!(error.to_string().starts_with("the counter is 9223372036854775806, and "), "{error}");
    }
    assert_eq!(add(&mut ns, id, 1).unwrap(), COUNTER_MAX - 1);
    assert_eq!(add(&mut ns, id, -i64::MAX).unwrap(), COUNTER_MAX);
    assert_eq!(add(&mut ns, id, 0).unwrap(), 0);
}

#[test]
fn who_does_not_have_the_file_open_has_no_counter_and_nobody_too_many() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", READ).unwrap().attr.ino;
    assert_eq!(outcome(add(&mut ns, counter(ino, S2, 1), 1)), "Stale");
    assert_eq!(outcome(add(&mut ns, counter(ino + 1, S1, 1), 1)), "Stale");
    (0..1024).for_each(|number| assert_eq!(add(&mut ns, counter(ino, S1, number), 1).unwrap(), 0));
    assert_eq!(outcome(add(&mut ns, counter(ino, S1, 1024), 1)), "TooManyCounters");
    assert_eq!(add(&mut ns, counter(ino, S1, 1023), 1).unwrap(), 1);
    open(&mut ns, S2, ino);
    assert_eq!(add(&mut ns, counter(ino, S2, 1024), 1).unwrap(), 0);
}

#[test]
fn a_counter_that_may_be_lost_does_not_begin_again() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", READ).unwrap().attr.ino;
    let [known, lost] = [1, 2].map(|number| counter(ino, S1, number));
    add(&mut ns, known, 4).unwrap();
    let go_on = |ns: &mut Namespace<_>, id| run(ns, |op| op.fetch_counter(id, CounterChange::Add(1), false));
    assert_eq!(go_on(&mut ns, known).unwrap(), 4);
    assert_eq!(outcome(go_on(&mut ns, lost)), "Stale");

    // A session that is given up in the time of grace may be back before that ends.
    let mut ns = restart(&ns);
    run(&mut ns, |op| op.reopen(S1, ino, false)).unwrap();
    run(&mut ns, |op| op.session_gone(S1)).unwrap();
    run(&mut ns, |op| op.reopen(S1, ino, false)).unwrap();
    ns.reap_orphans(0).unwrap();
    assert_eq!(go_on(&mut ns, known).unwrap(), 5);
}

#[test]
fn a_counter_ends_with_its_open_the_last_open_the_session_and_the_file() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", READ).unwrap().attr.ino;
    open(&mut ns, S1, ino);
    let [first, second, unknown] = [1, 2, 9].map(|number| counter(ino, S1, number));
    for id in [first, second, unknown] {
        add(&mut ns, id, 5).unwrap();
    }
    close(&mut ns, first);
    assert_eq!((stored(&ns), add(&mut ns, second, 0).unwrap()), (2, 5), "the other open is there");
    close(&mut ns, second);
    assert_eq!(stored(&ns), 0, "the session has the file open no longer");
    assert_eq!(outcome(add(&mut ns, second, 1)), "Stale");

    open(&mut ns, S2, ino);
    add(&mut ns, counter(ino, S2, 1), 5).unwrap();
    run(&mut ns, |op| op.session_gone(S2)).unwrap();
    assert_eq!(stored(&ns), 0);

    open(&mut ns, S1, ino);
    open(&mut ns, S2, ino);
    add(&mut ns, counter(ino, S1, 3), 5).unwrap();
    run(&mut ns, |op| op.unlink(&Caller::root(), now(4), at("f"))).unwrap();
    close(&mut ns, counter(ino, S2, 1));
    assert_eq!(add(&mut ns, counter(ino, S1, 3), 1).unwrap(), 5, "it has no name, and is open");
    run(&mut ns, |op| op.session_gone(S1)).unwrap();
    assert_eq!(stored(&ns), 0);
    sound(&ns);
}

#[test]
fn a_restart_keeps_a_counter_until_nobody_has_come_back_for_its_open() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", READ).unwrap().attr.ino;
    open(&mut ns, S2, ino);
    let (kept, left) = (counter(ino, S1, 1), counter(ino, S2, 1));
    add(&mut ns, kept, 10).unwrap();
    add(&mut ns, left, 20).unwrap();
    let mut ns = restart(&ns);
    assert_eq!(add(&mut ns, kept, 1).unwrap(), 10, "by who is back before the session of the open");
    assert_eq!(add(&mut ns, counter(ino, S1, 2), 1).unwrap(), 0, "one that nobody had used");
    run(&mut ns, |op| op.reopen(S1, ino, false)).unwrap();
    ns.reap_orphans(0).unwrap();
    assert_eq!(add(&mut ns, kept, 1).unwrap(), 11);
    assert_eq!(outcome(add(&mut ns, left, 1)), "Stale");
    assert_eq!(stored(&ns), 2);
    sound(&ns);
    let mut ns = restart(&ns);
    ns.reap_orphans(0).unwrap();
    assert_eq!((stored(&ns), ns.statfs().counters), (0, 0));
}

#[test]
fn a_repeated_request_gets_the_number_it_had_also_from_a_server_that_was_killed() {
    let mut ns = mem();
    let ino = create(&mut ns, S1, "f", READ).unwrap().attr.ino;
    let id = counter(ino, S1, 1);
    let ask = |ns: &mut Namespace<MemEngine>, request: u64| {
        weft_meta::run_again(|| match ns.begin_once(now(9), S2, 4, request)? {
            Once::Replay(reply) => Ok::<_, MetaError>(reply),
            Once::Fresh(mut op) => {
                let reply = op.fetch_counter(id, CounterChange::Add(10), true)?.to_le_bytes().to_vec();
                op.commit_with_reply(&reply)?;
                Ok(reply)
            }
        })
        .unwrap()
    };
    assert_eq!(ask(&mut ns, 1), 0u64.to_le_bytes());
    assert_eq!(ask(&mut ns, 2), 10u64.to_le_bytes());
    assert_eq!(ask(&mut ns, 2), 10u64.to_le_bytes());
    let mut ns = restart(&ns);
    assert_eq!(ask(&mut ns, 2), 10u64.to_le_bytes());
    assert_eq!(ask(&mut ns, 3), 20u64.to_le_bytes());
}

#[derive(Debug, Clone)]
enum Action {
    Open(usize, usize),
    Close(usize, usize),
    Change(usize, usize, CounterChange),
    Gone(usize),
    Remove(usize),
    /// With the sessions that come back.
    Restart(Vec<bool>),
}

const SESSIONS: usize = 3;
const FILES: usize = 2;

fn action() -> impl Strategy<Value = Action> {
    let change = prop_oneof![
        6 => (-20..100i64).prop_map(CounterChange::Add),
        1 => Just(CounterChange::Add(i64::MAX)),
        1 => (0..50u64).prop_map(CounterChange::Set),
    ];
    prop_oneof![
        4 => (0..SESSIONS, 0..FILES).prop_map(|(session, file)| Action::Open(session, file)),
        3 => (0..9usize, 0..FILES).prop_map(|(which, file)| Action::Close(which, file)),
        12 => (0..9usize, 0..FILES, change).prop_map(|(which, file, change)| Action::Change(which, file, change)),
        1 => (0..SESSIONS).prop_map(Action::Gone),
        1 => (0..FILES).prop_map(Action::Remove),
        2 => prop::collection::vec(any::<bool>(), SESSIONS).prop_map(Action::Restart),
    ]
}

/// Opens by number, with the values of their counters.
#[derive(Default)]
struct Model {
    opens: BTreeMap<CounterId, u64>,
    last_number: u64,
}

impl Model {
    fn pick(&self, which: usize, ino: u64) -> Option<CounterId> {
        let of_file: Vec<_> = self.opens.keys().filter(|id| id.ino == ino).collect();
        of_file.get(which % of_file.len().max(1)).map(|id| **id)
    }
}

proptest! {
    #![proptest_config(weft_test_random::cases(64))]
    #[test]
    fn counters_do_as_a_plain_model(actions in prop::collection::vec(action(), 1..80)) {
        let mut ns = mem();
        let session = |number: usize| SessionId([number as u8 + 1; 16]);
        let mut inos: Vec<u64> = Vec::new();
        for file in 0..FILES {
            inos.push(mkfile(&mut ns, &Caller::root(), &format!("f{file}"), 0o644).unwrap());
        }
        let mut named: BTreeSet<usize> = (0..FILES).collect();
        let mut model = Model::default();
        for action in actions {
            match action {
                Action::Open(by, file) if named.contains(&file) => {
                    open(&mut ns, session(by), inos[file]);
                    model.last_number += 1;
                    model.opens.insert(counter(inos[file], session(by), model.last_number), 0);
                }
                Action::Open(..) => {}
                Action::Close(which, file) => {
                    let Some(id) = model.pick(which, inos[file]) else { continue };
                    close(&mut ns, id);
                    model.opens.remove(&id);
                }
                Action::Change(which, file, change_by) => {
                    let Some(id) = model.pick(which, inos[file]) else { continue };
                    let value = model.opens.get_mut(&id).unwrap();
                    let after = match change_by {
                        CounterChange::Add(by) => i128::from(*value) + i128::from(by),
                        CounterChange::Set(to) => to.into(),
                    };
                    match change(&mut ns, id, change_by) {
                        Ok(before) => {
                            prop_assert_eq!(before, *value);
                            *value = u64::try_from(after).unwrap();
                        }
                        Err(_) => prop_assert!(!(0..=i128::from(COUNTER_MAX)).contains(&after)),
                    }
                }
                Action::Gone(who) => {
                    run(&mut ns, |op| op.session_gone(session(who))).unwrap();
                    model.opens.retain(|id, _| id.session != session(who));
                }
                Action::Remove(file) => {
                    if named.remove(&file) {
                        let name = format!("f{file}");
                        run(&mut ns, |op| op.unlink(&Caller::root(), now(4), at(&name))).unwrap();
                    }
                }
                Action::Restart(back) => {
                    ns = restart(&ns);
                    model.opens.retain(|id, _| back[usize::from(id.session.0[0]) - 1]);
                    for id in model.opens.keys() {
                        run(&mut ns, |op| op.reopen(id.session, id.ino, false)).unwrap();
                    }
                    ns.reap_orphans(0).unwrap();
                }
            }
            let used = model.opens.values().filter(|value| **value > 0).count();
            prop_assert!(stored(&ns) >= used && stored(&ns) <= model.opens.len());
            sound(&ns);
        }
    }
}
