//! For whom a metadata server waits before it gives locks again after a restart.

use super::support::{config, key_ring};
use crate::clock::now;
use crate::config::SyncMode;
use crate::meta::{Call, MetaPart};
use crate::poke::Poke;
use crate::stop::StopFlag;
use weft_meta::{Batch, Engine, Locker, MemEngine, Namespace, NamespaceOptions, SessionId, run_again};
use weft_reactor::{Reactor, ReactorOptions};
use weft_wire::messages::{FileLock, GetLockReply, GetLockRequest, LockState};
use weft_wire::security::Holder;
use weft_wire::{Header, Op, Status, body};

fn locker(session: u8, member: u16) -> Locker {
    Locker { session: SessionId([session; 16]), member }
}

/// A store whose server was killed when these may have held locks.
fn left_by(lockers: &[Locker], unnamed: bool) -> Namespace<MemEngine> {
    let mut engine = MemEngine::new();
    let uuid = config(1, SyncMode::Nosync).cluster.id.0;
    Namespace::format(&mut engine, uuid, &weft_meta::Caller::root(), now()).unwrap();
    let open = |engine| Namespace::open(engine, NamespaceOptions::default()).unwrap();
    let mut namespace = open(engine);
    namespace
        .change(|op| {
            lockers.iter().for_each(|locker| op.add_locker(*locker));
            Ok::<_, weft_meta::MetaError>(())
        })
        .unwrap();
    let mut engine = namespace.engine().fork();
    if unnamed {
        let mut batch = Batch::default();
        batch.put(b"slocks".as_slice(), vec![1, 1, 0, 0, 0, 0, 0, 0, 0]);
        run_again(|| engine.commit(&batch)).unwrap();
    }
    open(engine)
}

/// Whether it is known who has which locks: in the time of grace the question is kept back.
async fn are_given(meta: &MetaPart<MemEngine>) -> bool {
    let header = Header::request(Op::GetLock, 1);
    let (session, holder) = (SessionId([9; 16]), Holder::SERVERS);
    let call = Call { header, session, member: 0, holder, trusted_with_sizes: true };
    let lock = FileLock { ino: 7, owner: 1, whole: false, exclusive: true, first: 0, last: 1, pid: 0 };
    match meta.get_lock(&call, GetLockRequest { lock, hold_ms: 0 }).await {
        Ok(answer) => {
            let reply: GetLockReply = body::decode(&header, &answer.body).unwrap();
            assert_eq!(reply.state, LockState::Waiting);
            false
        }
        Err(refusal) => {
            assert_eq!(refusal.status, Status::Stale, "{}", refusal.text);
            true
        }
    }
}

/// Starts on what these have left, and lets `come` do what clients do; whether locks were given before and after.
fn given(lockers: &[Locker], unnamed: bool, come: impl FnOnce(&MetaPart<MemEngine>)) -> (bool, bool) {
    let namespace = left_by(lockers, unnamed);
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        let stop = StopFlag::new().unwrap();
        let meta =
            MetaPart::start(namespace, SyncMode::Nosync, key_ring(), 1, Poke::default(), stop).unwrap();
        let before = are_given(&meta).await;
        come(&meta);
        (before, are_given(&meta).await)
    })
}

#[test]
fn locks_are_given_when_all_are_back_who_may_have_some() {
    let (one, two) = (locker(1, 0), locker(1, 1));
    assert_eq!(given(&[], false, |_| {}), (true, true), "nobody has locked anything");
    assert_eq!(given(&[one], false, |_| {}), (false, false));
    assert_eq!(given(&[one], false, |meta| meta.locker_is_back(one)), (false, true));
    assert_eq!(given(&[one], false, |meta| meta.locker_is_back(two)), (false, false), "it is another");
    assert_eq!(given(&[one, two], false, |meta| meta.locker_is_back(two)), (false, false));
    let both =
        |meta: &MetaPart<MemEngine>| [one, two].into_iter().for_each(|locker| meta.locker_is_back(locker));
    assert_eq!(given(&[one, two], false, both), (false, true));
}

#[test]
fn who_is_gone_is_not_waited_for() {
    let (one, two) = (locker(1, 0), locker(1, 1));
    let one_is_gone = |meta: &MetaPart<MemEngine>| {
        meta.locker_gone(one);
        assert_eq!(meta.namespace.borrow().lockers(0).unwrap(), [two]);
        meta.locker_is_back(two);
    };
    assert_eq!(given(&[one, two], false, one_is_gone), (false, true));
    assert_eq!(given(&[one, two], false, |meta| meta.locks_of_gone(one.session)), (false, true));
}

#[test]
fn where_an_earlier_release_has_not_said_who_locks_the_time_is_waited_out() {
    let one = locker(1, 0);
    assert_eq!(given(&[], true, |meta| meta.locker_is_back(one)), (false, false));
    let some_are_gone = |meta: &MetaPart<MemEngine>| {
        meta.locker_gone(locker(2, 0));
        meta.locker_is_back(one);
        assert!(meta.namespace.borrow().has_unnamed_lockers().unwrap(), "the next run has to know it, too");
    };
    assert_eq!(given(&[one, locker(2, 0)], true, some_are_gone), (false, false));
    let time_is_over = |meta: &MetaPart<MemEngine>| {
        meta.end_lock_grace();
        assert!(!meta.namespace.borrow().has_unnamed_lockers().unwrap());
        assert!(meta.namespace.borrow().lockers(0).unwrap().is_empty(), "who did not come back");
    };
    assert_eq!(given(&[one], true, time_is_over), (false, true));
}

#[test]
fn a_server_that_is_stopped_in_order_forgets_who_holds_nothing() {
    let one = locker(1, 0);
    let stop = |meta: &MetaPart<MemEngine>| {
        meta.stop_locks();
        assert_eq!(meta.namespace.borrow().lockers(0).unwrap(), [one], "it may still come back for some");
        meta.locker_is_back(one);
        meta.stop_locks();
        assert!(meta.namespace.borrow().lockers(0).unwrap().is_empty());
    };
    given(&[one], false, stop);
}
