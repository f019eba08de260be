//! What the table does, by examples and beside the model; and how much it looks at for that.

use super::model::Model;
use super::*;
use proptest::prelude::*;

const INO: u64 = 7;
const BYTES: u64 = 12;

fn owner(id: u64) -> Owner {
    Owner { session: SessionId([id as u8 / 2; 16]), id }
}

fn range(id: u64, exclusive: bool, first: u64, last: u64) -> Wanted {
    Wanted { owner: owner(id), whole: false, exclusive, first, last, pid: id as u32 }
}

fn whole(id: u64, exclusive: bool) -> Wanted {
    Wanted { whole: true, ..range(id, exclusive, 0, 0) }
}

fn granted(table: &mut LockTable) -> Vec<Ticket> {
    table.take_ended().into_iter().filter(|(_, granted)| *granted).map(|(ticket, _)| ticket).collect()
}

fn queued(outcome: Outcome) -> Ticket {
    match outcome {
        Outcome::Queued(ticket) => ticket,
        other => panic!("{other:?} instead of a place in the queue"),
    }
}

#[test]
fn waits_are_granted_in_order_of_arrival() {
    let mut table = LockTable::default();
    assert_eq!(table.lock(INO, &range(0, true, 0, 9), false), Outcome::Granted);
    let first = queued(table.lock(INO, &range(2, true, 0, 4), true));
    let second = queued(table.lock(INO, &range(4, true, 3, 6), true));
    let third = queued(table.lock(INO, &range(6, true, 8, 9), true));
    assert_eq!(queued(table.lock(INO, &range(2, true, 0, 4), true)), first, "it keeps its place");
    assert_eq!(table.counts(), (1, 3));
    table.unlock(INO, &range(0, true, 0, 9));
    assert_eq!(granted(&mut table), [first, third], "the second overlaps the first");
    table.unlock_owner(INO, owner(2));
    assert_eq!(granted(&mut table), [second]);
    assert_eq!(table.counts(), (2, 0));
}

#[test]
fn circles_of_two_and_three_are_refused_and_chains_are_not() {
    for owners in [2, 3] {
        let mut table = LockTable::default();
        for id in 0..owners {
            assert_eq!(table.lock(INO + id, &range(id, true, 0, 0), true), Outcome::Granted);
        }
        for id in 0..owners - 1 {
            queued(table.lock(INO + id + 1, &range(id, true, 0, 0), true));
        }
        let last = range(owners - 1, false, 0, 0);
        assert_eq!(table.lock(INO, &last, true), Outcome::Deadlock);
        assert!(matches!(table.lock(INO, &last, false), Outcome::Locked(_)), "who does not wait is told why");
        // One that gives up what the others wait for ends the circle.
        table.unlock_owner(INO + owners - 1, owner(owners - 1));
        assert_eq!(granted(&mut table).len(), 1);
        queued(table.lock(INO, &last, true));
    }
}

#[test]
fn two_that_upgrade_at_once_are_a_circle_for_ranges_and_none_for_whole_files() {
    let mut table = LockTable::default();
    for id in [0, 2] {
        assert_eq!(table.lock(INO, &range(id, false, 0, 9), true), Outcome::Granted);
        assert_eq!(table.lock(INO, &whole(id, false), true), Outcome::Granted);
    }
    queued(table.lock(INO, &range(0, true, 0, 9), true));
    assert_eq!(table.lock(INO, &range(2, true, 0, 9), true), Outcome::Deadlock);
    let first = queued(table.lock(INO, &whole(0, true), true));
    let second = table.lock(INO, &whole(2, true), true);
    assert_eq!(second, Outcome::Granted, "the first gave up its shared lock to wait");
    table.unlock(INO, &whole(2, true));
    assert_eq!(granted(&mut table), [first]);
}

#[test]
fn ranges_and_whole_files_do_not_know_of_each_other() {
    let mut table = LockTable::default();
    assert_eq!(table.lock(INO, &whole(0, true), false), Outcome::Granted);
    assert_eq!(table.lock(INO, &range(2, true, 0, u64::MAX), false), Outcome::Granted);
    assert!(matches!(table.lock(INO, &whole(2, false), false), Outcome::Locked(_)));
    assert!(matches!(table.lock(INO, &range(0, false, 5, 5), false), Outcome::Locked(_)));
}

#[test]
fn a_client_that_goes_leaves_nothing_and_wakes_who_waited_for_it() {
    let mut table = LockTable::default();
    // Owners 0 and 1 are of one client.
    table.lock(INO, &range(0, true, 0, 9), false);
    table.lock(INO + 1, &whole(1, true), false);
    let range_wait = queued(table.lock(INO, &range(2, true, 5, 5), true));
    let whole_wait = queued(table.lock(INO + 1, &whole(4, false), true));
    queued(table.lock(INO, &range(1, true, 0, 0), true));
    table.session_gone(owner(0).session);
    let mut granted = granted(&mut table);
    granted.sort();
    assert_eq!(granted, [range_wait, whole_wait]);
    table.session_gone(owner(2).session);
    table.session_gone(owner(4).session);
    assert_eq!(table.counts(), (0, 0));
    assert!(table.files.is_empty() && table.counts.is_empty() && table.waits.is_empty());
}

#[test]
fn who_stops_waiting_is_passed_over() {
    let mut table = LockTable::default();
    table.lock(INO, &range(0, true, 0, 9), false);
    let first = queued(table.lock(INO, &range(2, true, 0, 9), true));
    let second = queued(table.lock(INO, &range(4, true, 0, 9), true));
    table.cancel(INO, &range(2, true, 0, 9));
    assert_eq!(table.take_ended(), [(first, false)]);
    table.cancel(INO, &range(2, true, 0, 9));
    table.unlock(INO, &range(0, true, 0, 9));
    assert_eq!(granted(&mut table), [second]);
}

#[test]
fn claims_are_granted_unless_another_was_first_and_can_be_repeated() {
    let mut table = LockTable::default();
    assert!(table.claim(INO, &range(0, true, 0, 9)) && table.claim(INO, &range(0, true, 0, 9)));
    assert!(!table.claim(INO, &range(2, false, 9, 10)));
    assert!(table.holds(INO, &range(0, true, 3, 4)) && !table.holds(INO, &range(2, false, 9, 10)));
}

#[test]
fn a_client_has_a_bound() {
    let mut table = LockTable::default();
    for at in 0..LOCKS_PER_SESSION_MAX as u64 {
        assert_eq!(table.lock(at, &range(0, true, 0, 0), false), Outcome::Granted);
    }
    assert_eq!(table.lock(0, &range(1, true, 5, 5), true), Outcome::Full);
    assert_eq!(table.lock(0, &range(2, true, 5, 5), true), Outcome::Granted, "another client");
}

/// For each owner, what it has of each byte.
type Bytes = Vec<[Option<bool>; BYTES as usize]>;

fn free_in(model: &Bytes, wanted: &Wanted) -> bool {
    let bytes = wanted.first as usize..=wanted.last as usize;
    let mut others = model.iter().enumerate().filter(|(id, _)| *id as u64 != wanted.owner.id);
    others.all(|(_, theirs)| {
        theirs[bytes.clone()].iter().all(|held| held.is_none_or(|held| !held && !wanted.exclusive))
    })
}

proptest! {
    #![proptest_config(weft_test_random::cases(256))]
    /// Against a byte-array model: a request that does not wait is granted if the model allows it; a waiting one is granted
    /// later, in order; and no two owners ever hold conflicting locks.
    #[test]
    fn every_byte_is_held_as_a_model_of_bytes_has_it(
        steps in proptest::collection::vec((0u64..4, 0..BYTES, 0..BYTES, any::<Option<bool>>(), any::<bool>()), 0..80),
    ) {
        let mut table = LockTable::default();
        let mut model: Bytes = vec![[None; BYTES as usize]; 4];
        let mut waiting: Vec<(Ticket, Wanted)> = Vec::new();
        for (id, one, other, exclusive, wait) in steps {
            let wanted = range(id, exclusive.unwrap_or(false), one.min(other), one.max(other));
            let bytes = wanted.first as usize..=wanted.last as usize;
            if exclusive.is_none() {
                table.unlock(INO, &wanted);
                model[id as usize][bytes].fill(None);
            } else {
                let free = free_in(&model, &wanted);
                match table.lock(INO, &wanted, wait) {
                    Outcome::Granted => {
                        prop_assert!(free);
                        model[id as usize][bytes].fill(exclusive);
                        waiting.retain(|(_, waits)| !same_lock(waits, &wanted));
                    }
                    Outcome::Queued(ticket) => {
                        prop_assert!(!free && wait);
                        if !waiting.iter().any(|(known, _)| *known == ticket) {
                            waiting.push((ticket, wanted));
                        }
                    }
                    Outcome::Locked(_) => prop_assert!(!free && !wait),
                    Outcome::Deadlock => prop_assert!(!free && wait && !waiting.is_empty()),
                    Outcome::Full => prop_assert!(false, "far from the bound"),
                }
            }
            for ticket in granted(&mut table) {
                let at = waiting.iter().position(|(known, _)| *known == ticket);
                let (_, granted) = waiting.remove(at.expect("only who waits is granted"));
                prop_assert!(free_in(&model, &granted));
                let bytes = granted.first as usize..=granted.last as usize;
                model[granted.owner.id as usize][bytes].fill(Some(granted.exclusive));
            }
            prop_assert!(waiting.iter().all(|(_, waits)| !free_in(&model, waits)), "nobody waits for nothing");
            for (id, held) in model.iter().enumerate() {
                for (byte, held) in held.iter().enumerate() {
                    let of = |exclusive| table.holds(INO, &range(id as u64, exclusive, byte as u64, byte as u64));
                    prop_assert_eq!((of(true), of(false)), (*held == Some(true), *held == Some(false)));
                }
            }
        }
    }
}

fn same_lock(one: &Wanted, other: &Wanted) -> bool {
    (one.owner, one.class()) == (other.owner, other.class())
}

/// Something that a client does; owners 0 to 5 are of three clients.
#[derive(Debug, Clone)]
enum Step {
    Lock(Wanted, bool),
    Unlock(Wanted),
    UnlockOwner(u64),
    Cancel(Wanted),
    Close(u64),
    SessionGone(u64),
    Claim(Wanted),
}

fn wanted() -> impl Strategy<Value = Wanted> {
    (0u64..6, any::<bool>(), 0..BYTES, 0..BYTES, 0u8..4).prop_map(|(id, exclusive, one, other, kind)| {
        match kind {
            0 => whole(id, exclusive),
            // Ranges that several want are more likely than by chance.
            1 => range(id, exclusive, 2, 5),
            _ => range(id, exclusive, one.min(other), one.max(other)),
        }
    })
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let what = prop_oneof![
        12 => (wanted(), prop::bool::weighted(0.8)).prop_map(|(wanted, wait)| Step::Lock(wanted, wait)),
        6 => wanted().prop_map(Step::Unlock),
        2 => (0u64..6).prop_map(Step::UnlockOwner),
        1 => wanted().prop_map(Step::Cancel),
        1 => (0u64..6).prop_map(Step::Close),
        1 => (0u64..6).prop_map(Step::SessionGone),
        1 => wanted().prop_map(Step::Claim),
    ];
    (INO..INO + 2, what)
}

proptest! {
    #![proptest_config(weft_test_random::cases(1024))]
    #[test]
    fn all_is_decided_as_by_lists_that_are_walked_to_their_end(
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let (mut table, mut model) = (LockTable::default(), Model::default());
        for (ino, step) in steps {
            let asked = match &step {
                Step::Lock(wanted, wait) => {
                    prop_assert_eq!(table.lock(ino, wanted, *wait), model.lock(ino, wanted, *wait));
                    *wanted
                }
                // Claims come before any request waits.
                Step::Claim(_) if table.counts().1 > 0 => continue,
                Step::Claim(wanted) => {
                    prop_assert_eq!(table.claim(ino, wanted), model.claim(ino, wanted));
                    *wanted
                }
                Step::Unlock(wanted) => {
                    table.unlock(ino, wanted);
                    model.unlock(ino, wanted);
                    *wanted
                }
                Step::Cancel(wanted) => {
                    table.cancel(ino, wanted);
                    model.cancel(ino, wanted);
                    *wanted
                }
                Step::UnlockOwner(id) => {
                    table.unlock_owner(ino, owner(*id));
                    model.unlock_owner(ino, owner(*id));
                    whole(*id, false)
                }
                Step::Close(id) => {
                    table.close(ino, owner(*id).session);
                    model.close(ino, owner(*id).session);
                    range(*id, true, 0, BYTES)
                }
                Step::SessionGone(id) => {
                    table.session_gone(owner(*id).session);
                    model.session_gone(owner(*id).session);
                    range(*id, false, 0, BYTES)
                }
            };
            prop_assert!(table.is_settled(ino) && !table.go_on(), "a slice is enough for so few");
            let (mut ended, mut expected) = (table.take_ended(), model.take_ended());
            if matches!(step, Step::SessionGone(_)) {
                // Files are taken in any order.
                ended.sort();
                expected.sort();
            }
            prop_assert_eq!(ended, expected);
            prop_assert_eq!(table.counts(), model.counts());
            prop_assert_eq!(table.conflict(ino, &asked), model.conflict(ino, &asked));
            prop_assert_eq!(table.holds(ino, &asked), model.holds(ino, &asked));
            prop_assert_eq!(table.has_any(asked.owner.session), model.has_any(asked.owner.session));
        }
        for id in 0..6 {
            table.session_gone(owner(id).session);
        }
        prop_assert!(table.files.is_empty() && table.places.is_empty() && table.waits.is_empty());
        prop_assert!(table.counts.is_empty() && table.unsettled.is_empty());
    }
}

/// An owner of its own client.
fn lone(id: u64) -> Owner {
    let mut session = [0; 16];
    session[..8].copy_from_slice(&id.to_le_bytes());
    Owner { session: SessionId(session), id }
}

fn settle(table: &mut LockTable) -> usize {
    while table.go_on() {}
    table.take_ended().len()
}

/// The number of looks while `count` requests, each by `want`, queue behind one lock and get theirs, each unlocking at once.
fn work_of(count: u64, want: impl Fn(u64) -> Wanted) -> u64 {
    let mut table = LockTable::default();
    let all = Wanted { owner: lone(u64::MAX), ..range(0, true, 0, u64::MAX) };
    table.lock(INO, &all, false);
    for id in 0..count {
        queued(table.lock(INO, &Wanted { owner: lone(id), ..want(id) }, true));
    }
    table.unlock(INO, &all);
    let mut granted = settle(&mut table);
    for id in 0..count {
        table.unlock_owner(INO, lone(id));
        granted += settle(&mut table);
    }
    assert_eq!((granted as u64, table.counts()), (count, (0, 0)));
    table.work.get()
}

#[test]
fn the_work_for_many_waits_grows_as_their_number() {
    type Want = fn(u64) -> Wanted;
    let kinds: [(&str, Want); 4] = [
        ("shared", |_| range(0, false, 0, 9)),
        ("exclusive, of the same bytes", |_| range(0, true, 0, 9)),
        ("exclusive, of bytes of their own", |id| range(0, true, 10 * id, 10 * id + 9)),
        ("shared, of bytes that overlap", |id| range(0, false, id, id + 1_000_000)),
    ];
    for (kind, want) in kinds {
        let (few, many) = (work_of(2_000, want), work_of(16_000, want));
        // Eight times as many, and a path of a tree is a little longer; the square would be 64 times as much.
        assert!(many < few * 16, "{kind}: {few} looks for 2,000 waits, {many} for 16,000");
        assert!(many < 16_000 * 150, "{kind}: {many} looks for 16,000 waits");
    }
}

#[test]
fn waits_for_different_bytes_that_overlap_are_granted_in_slices() {
    const COUNT: u64 = 16_000;
    let mut table = LockTable::default();
    let all = Wanted { owner: lone(u64::MAX), ..range(0, true, 0, u64::MAX) };
    table.lock(INO, &all, false);
    for id in 0..COUNT {
        queued(table.lock(INO, &Wanted { owner: lone(id), ..range(0, true, id, id + COUNT) }, true));
    }
    let mut before = table.work.get();
    table.unlock(INO, &all);
    let mut slices = 1;
    assert!(!table.is_settled(INO));
    loop {
        let now = table.work.get();
        assert!(now - before <= SLICE + 100, "{} looks in one slice", now - before);
        before = now;
        if !table.go_on() {
            break;
        }
        slices += 1;
    }
    assert!(slices > 4 && table.is_settled(INO), "{slices}");
    assert_eq!(granted(&mut table), [0], "the others overlap the first");
}

#[test]
fn a_wait_that_is_cancelled_between_slices_is_forgotten() {
    const COUNT: u64 = 3 * SLICE;
    let mut table = LockTable::default();
    let all = Wanted { owner: lone(u64::MAX), ..range(0, true, 0, u64::MAX) };
    table.lock(INO, &all, false);
    let wanted = |id| Wanted { owner: lone(id), ..range(0, true, id, id + COUNT) };
    (0..COUNT).for_each(|id| _ = queued(table.lock(INO, &wanted(id), true)));
    table.unlock(INO, &all);
    assert!(!table.is_settled(INO));
    (0..COUNT).for_each(|id| table.cancel(INO, &wanted(id)));
    while table.go_on() {}
    // Grants that came ahead of the cancellation.
    (0..COUNT).for_each(|id| table.unlock_owner(INO, lone(id)));
    assert!(table.files.is_empty() && table.waits.is_empty() && table.unsettled.is_empty());
    assert_eq!(table.counts(), (0, 0));
}

#[test]
fn the_search_for_a_circle_has_a_bound() {
    let mut table = LockTable::default();
    for id in 0..1_000 {
        table.lock(INO, &Wanted { owner: lone(id), ..range(0, false, 0, 9) }, false);
        table.lock(INO + 1, &Wanted { owner: lone(id), ..range(0, false, 0, 9) }, false);
    }
    let before = table.work.get();
    // All wait for all. Each has a range of its own, so that none is like another.
    for id in 0..1_000 {
        let wanted = Wanted { owner: lone(id), ..range(0, true, 0, 9 + id) };
        let outcome = table.lock(INO, &wanted, true);
        assert_eq!(matches!(outcome, Outcome::Queued(_)), id == 0, "{outcome:?}");
    }
    let work = table.work.get() - before;
    assert!(work < 1_000 * 2_500, "{work}");
}
