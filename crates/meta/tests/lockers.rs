//! Who may hold locks is in the store, so that a server that was killed knows whom to wait for.

mod common;
use common::*;
use weft_meta::{Batch, Engine, Locker, MemEngine, Namespace, SessionId, run_again};

fn locker(session: u8, member: u16) -> Locker {
    Locker { session: SessionId([session; 16]), member }
}

fn lockers<E: Engine>(ns: &Namespace<E>) -> Vec<Locker> {
    let mut lockers = ns.lockers(ns.shard()).unwrap();
    lockers.sort();
    lockers
}

#[test]
fn they_are_known_after_a_restart_and_go_with_their_session() {
    let mut ns = mem();
    let all = [locker(1, 0), locker(1, 7), locker(2, 0), locker(255, u16::MAX)];
    for one in all {
        run(&mut ns, |op| {
            op.add_locker(one);
            op.add_locker(one);
            Ok(())
        })
        .unwrap();
    }
    sound(&ns);
    let mut ns: Namespace<MemEngine> = Namespace::open(ns.engine().fork(), options()).unwrap();
    assert_eq!(lockers(&ns), all);
    assert!(!ns.has_unnamed_lockers().unwrap());
    run(&mut ns, |op| op.session_gone(SessionId([1; 16]))).unwrap();
    assert_eq!(lockers(&ns), all[2..]);
    run(&mut ns, |op| {
        op.remove_locker(all[3]);
        Ok(())
    })
    .unwrap();
    assert_eq!(lockers(&ns), all[2..3]);
    sound(&ns);
}

#[test]
fn what_an_earlier_release_has_noted_of_nobody_in_particular_is_found_and_forgotten() {
    let mut engine = mem().engine().fork();
    let mut batch = Batch::default();
    batch.put(b"slocks".as_slice(), vec![1, 1, 0, 0, 0, 0, 0, 0, 0]);
    run_again(|| engine.commit(&batch)).unwrap();
    let mut ns = Namespace::open(engine, options()).unwrap();
    assert!(ns.has_unnamed_lockers().unwrap());
    sound(&ns);
    run(&mut ns, |op| {
        op.forget_unnamed_lockers();
        Ok(())
    })
    .unwrap();
    assert!(!ns.has_unnamed_lockers().unwrap());
}
