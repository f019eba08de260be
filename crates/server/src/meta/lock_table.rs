//! Who has locked what, who waits for it, and who would wait for ever. Pure: nothing here waits, or knows of connections.
//!
//! ```text
//!   inode 7   owners   A: [X 0–9]   B: [S 20–29] [S 40–49]      ranges: POSIX, one owner's are replaced, cut and joined
//!             whole    A: shared    C: shared                   flock: another space, which knows nothing of ranges
//!             queue    1: C wants X 0–4    2: B wants X 5–9     in order of arrival
//!
//!   A unlocks 0–9  ─► queue from the front: what no lock is in the way of any more is granted
//!   A wants X 40–49, waiting:  A ─► B (holds it) ─► A (holds 5–9, which B waits for)     a circle: refused
//! ```
//!
//! An owner is a number chosen by a client, and the client's session. A request that conflicts with no lock *held* is granted
//! whoever waits, as in the kernel, so an owner is never held up by its own kind. Locks on whole files are no part of circles: who
//! converts one gives the old one up before it waits.

use std::collections::{HashMap, HashSet, VecDeque};
use weft_meta::SessionId;
use weft_wire::limits::LOCKS_PER_SESSION_MAX;
use weft_wire::locks::{HeldLock, HeldLocks};

/// Whose a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub session: SessionId,
    pub id: u64,
}

/// A lock on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub owner: Owner,
    /// The whole file; `first` and `last` say nothing then.
    pub whole: bool,
    pub exclusive: bool,
    pub first: u64,
    /// Inclusive.
    pub last: u64,
    pub pid: u32,
}

impl Wanted {
    fn same_lock(&self, other: &Wanted) -> bool {
        let same_bytes = self.whole || (self.first, self.last) == (other.first, other.last);
        (self.owner, self.whole, self.exclusive) == (other.owner, other.whole, other.exclusive) && same_bytes
    }
}

/// A place in a queue.
pub(super) type Ticket = u64;

/// A lock that is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub owner: Owner,
    pub pid: u32,
    pub lock: HeldLock,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    /// Another has it.
    Locked(Holder),
    /// It waits; [`LockTable::take_ended`] will have the ticket.
    Queued(Ticket),
    /// It would wait for ever.
    Deadlock,
    /// The client has as many as it may have.
    Full,
}

/// What one owner has of one file.
#[derive(Debug, Default)]
struct Owned {
    ranges: HeldLocks,
    whole: Option<bool>,
    pid: u32,
}

impl Owned {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.whole.is_none()
    }

    fn count(&self) -> usize {
        self.ranges.len() + usize::from(self.whole.is_some())
    }

    /// A lock that conflicts with what another owner wants.
    fn conflict(&self, wanted: &Wanted) -> Option<HeldLock> {
        if wanted.whole {
            let exclusive = self.whole.filter(|exclusive| *exclusive || wanted.exclusive)?;
            return Some(HeldLock { first: 0, last: i64::MAX as u64, exclusive });
        }
        let conflicts = |lock: &&HeldLock| lock.exclusive || wanted.exclusive;
        self.ranges.overlapping(wanted.first, wanted.last).find(conflicts).copied()
    }
}

#[derive(Debug, Default)]
struct LockedFile {
    owners: HashMap<Owner, Owned>,
    queue: VecDeque<(Ticket, Wanted)>,
}

impl LockedFile {
    fn conflicts(&self, wanted: &Wanted) -> impl Iterator<Item = Holder> {
        let others = self.owners.iter().filter(|(owner, _)| **owner != wanted.owner);
        others.filter_map(move |(owner, owned)| {
            Some(Holder { owner: *owner, pid: owned.pid, lock: owned.conflict(wanted)? })
        })
    }

    /// The conflicting lock that begins first.
    fn conflict(&self, wanted: &Wanted) -> Option<Holder> {
        self.conflicts(wanted).min_by_key(|holder| (holder.lock.first, holder.owner.id))
    }
}

/// All locks of a metadata server.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    files: HashMap<u64, LockedFile>,
    /// Where each owner waits: file and ticket.
    waits: HashMap<Owner, Vec<(u64, Ticket)>>,
    /// Locks and waits of each client.
    counts: HashMap<SessionId, usize>,
    held: usize,
    next_ticket: Ticket,
    ended: Vec<(Ticket, bool)>,
}

impl LockTable {
    /// Locks, where nothing is in the way; else queues if `wait`. A request that waits already keeps its place.
    pub fn lock(&mut self, ino: u64, wanted: &Wanted, wait: bool) -> Outcome {
        if self.counts.get(&wanted.owner.session).is_some_and(|count| *count >= LOCKS_PER_SESSION_MAX) {
            return Outcome::Full;
        }
        let Some(holder) = self.conflict(ino, wanted) else {
            self.leave_queue(ino, true, |_, queued| queued.same_lock(wanted));
            self.set(ino, wanted, Some(wanted.exclusive));
            self.grant_waiting(ino);
            return Outcome::Granted;
        };
        if !wait {
            return Outcome::Locked(holder);
        }
        let queue = self.files.get(&ino).map(|file| &file.queue);
        let mut queued = queue.into_iter().flatten();
        if let Some((ticket, _)) = queued.find(|(_, queued)| queued.same_lock(wanted)) {
            return Outcome::Queued(*ticket);
        }
        if wanted.whole {
            self.set(ino, wanted, None);
            self.grant_waiting(ino);
        } else if self.closes_a_circle(ino, wanted) {
            return Outcome::Deadlock;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.files.entry(ino).or_default().queue.push_back((ticket, *wanted));
        self.waits.entry(wanted.owner).or_default().push((ino, ticket));
        *self.counts.entry(wanted.owner.session).or_default() += 1;
        Outcome::Queued(ticket)
    }

    /// The lock that is in the way of one.
    pub fn conflict(&self, ino: u64, wanted: &Wanted) -> Option<Holder> {
        self.files.get(&ino)?.conflict(wanted)
    }

    /// Gives a lock back, or the part of it that is held.
    pub fn unlock(&mut self, ino: u64, lock: &Wanted) {
        self.set(ino, lock, None);
        self.grant_waiting(ino);
    }

    /// Gives back all that an owner has of a file, and takes it out of the queue.
    pub fn unlock_owner(&mut self, ino: u64, owner: Owner) {
        self.forget(ino, |other| other == owner);
    }

    /// Takes a waiting request out of the queue, if it is there.
    pub fn cancel(&mut self, ino: u64, wanted: &Wanted) {
        self.leave_queue(ino, false, |_, queued| queued.same_lock(wanted));
    }

    /// Gives back all that a client has of a file.
    pub fn close(&mut self, ino: u64, session: SessionId) {
        self.forget(ino, |owner| owner.session == session);
    }

    /// Gives back all that a client has.
    pub fn session_gone(&mut self, session: SessionId) {
        if !self.counts.contains_key(&session) {
            return;
        }
        let inos: Vec<u64> = self.files.keys().copied().collect();
        inos.into_iter().for_each(|ino| self.close(ino, session));
        self.counts.remove(&session);
    }

    /// Locks what a client says that it had before the server was started again, if nobody else has it. Says whether it has
    /// it now.
    pub fn claim(&mut self, ino: u64, lock: &Wanted) -> bool {
        let free = self.conflict(ino, lock).is_none();
        if free {
            self.set(ino, lock, Some(lock.exclusive));
        }
        free
    }

    /// Whether this lock is held.
    pub fn holds(&self, ino: u64, lock: &Wanted) -> bool {
        let owned = self.files.get(&ino).and_then(|file| file.owners.get(&lock.owner));
        owned.is_some_and(|owned| match lock.whole {
            true => owned.whole == Some(lock.exclusive),
            false => owned.ranges.covers(lock.first, lock.last, lock.exclusive),
        })
    }

    /// Waits that have ended since the last call, and whether with the lock.
    pub fn take_ended(&mut self) -> Vec<(Ticket, bool)> {
        std::mem::take(&mut self.ended)
    }

    /// Whether a client has locks, or waits for some.
    pub fn has_any(&self, session: SessionId) -> bool {
        self.counts.contains_key(&session)
    }

    /// Locks held, and requests that wait.
    pub fn counts(&self) -> (usize, usize) {
        (self.held, self.waits.values().map(Vec::len).sum())
    }

    /// Changes what an owner has, and the counts.
    fn set(&mut self, ino: u64, lock: &Wanted, exclusive: Option<bool>) {
        if exclusive.is_none()
            && !self.files.get(&ino).is_some_and(|file| file.owners.contains_key(&lock.owner))
        {
            return;
        }
        let file = self.files.entry(ino).or_default();
        let owned = file.owners.entry(lock.owner).or_default();
        let before = owned.count();
        match lock.whole {
            true => owned.whole = exclusive,
            false => owned.ranges.set(lock.first, lock.last, exclusive),
        }
        if exclusive.is_some() {
            owned.pid = lock.pid;
        }
        let after = owned.count();
        if owned.is_empty() {
            file.owners.remove(&lock.owner);
        }
        self.held = self.held + after - before;
        let count = self.counts.entry(lock.owner.session).or_default();
        *count = *count + after - before;
        if *count == 0 {
            self.counts.remove(&lock.owner.session);
        }
        self.tidy(ino);
    }

    fn tidy(&mut self, ino: u64) {
        if self.files.get(&ino).is_some_and(|file| file.owners.is_empty() && file.queue.is_empty()) {
            self.files.remove(&ino);
        }
    }

    /// Gives back all of some owners' locks of a file, and their waits.
    fn forget(&mut self, ino: u64, is_meant: impl Fn(Owner) -> bool) {
        let Some(file) = self.files.get(&ino) else { return };
        let owners: Vec<Owner> = file.owners.keys().copied().filter(|owner| is_meant(*owner)).collect();
        self.leave_queue(ino, false, |_, queued| is_meant(queued.owner));
        for owner in owners {
            let all = Wanted { owner, whole: false, exclusive: false, first: 0, last: u64::MAX, pid: 0 };
            self.set(ino, &all, None);
            self.set(ino, &Wanted { whole: true, ..all }, None);
        }
        self.grant_waiting(ino);
    }

    /// Takes requests out of a queue.
    fn leave_queue(&mut self, ino: u64, granted: bool, is_meant: impl Fn(Ticket, &Wanted) -> bool) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let mut left = Vec::new();
        file.queue.retain(|(ticket, queued)| {
            let leaves = is_meant(*ticket, queued);
            if leaves {
                left.push((*ticket, queued.owner));
            }
            !leaves
        });
        for (ticket, owner) in &left {
            self.ended.push((*ticket, granted));
            if let Some(waits) = self.waits.get_mut(owner) {
                waits.retain(|(_, waiting)| waiting != ticket);
                if waits.is_empty() {
                    self.waits.remove(owner);
                }
            }
            if let Some(count) = self.counts.get_mut(&owner.session) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&owner.session);
                }
            }
        }
        self.tidy(ino);
    }

    /// Grants, from the front of the queue, what nothing is in the way of any more. A grant may be a weaker lock than the owner
    /// had, which frees others: so until nothing changes.
    fn grant_waiting(&mut self, ino: u64) {
        loop {
            let Some(file) = self.files.get(&ino) else { return };
            let mut queue = file.queue.iter();
            let Some((ticket, wanted)) = queue.find(|(_, wanted)| file.conflict(wanted).is_none()).copied()
            else {
                return;
            };
            self.set(ino, &wanted, Some(wanted.exclusive));
            self.leave_queue(ino, true, |queued, _| queued == ticket);
        }
    }

    /// Whether those who are in the way of `wanted` wait for its owner, directly or through others.
    fn closes_a_circle(&self, ino: u64, wanted: &Wanted) -> bool {
        let blockers = |ino: u64, wanted: &Wanted| -> Vec<Owner> {
            self.files
                .get(&ino)
                .into_iter()
                .flat_map(|file| file.conflicts(wanted))
                .map(|held| held.owner)
                .collect()
        };
        let mut seen = HashSet::new();
        let mut next = blockers(ino, wanted);
        while let Some(owner) = next.pop() {
            if owner == wanted.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for (ino, ticket) in self.waits.get(&owner).into_iter().flatten() {
                let queue = self.files.get(ino).map(|file| &file.queue);
                let waiting = queue.into_iter().flatten().find(|(queued, _)| queued == ticket);
                if let Some((_, waiting)) = waiting.filter(|(_, waiting)| !waiting.whole) {
                    next.extend(blockers(*ino, waiting));
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
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
            assert!(
                matches!(table.lock(INO, &last, false), Outcome::Locked(_)),
                "who does not wait is told why"
            );
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
    type Model = Vec<[Option<bool>; BYTES as usize]>;

    fn free_in(model: &Model, wanted: &Wanted) -> bool {
        let bytes = wanted.first as usize..=wanted.last as usize;
        let mut others = model.iter().enumerate().filter(|(id, _)| *id as u64 != wanted.owner.id);
        others.all(|(_, theirs)| {
            theirs[bytes.clone()].iter().all(|held| held.is_none_or(|held| !held && !wanted.exclusive))
        })
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        /// Against a byte-array model: who does not wait is granted what the model allows; who waits is granted later, in order,
        /// and nobody ever has what another has exclusively.
        #[test]
        fn every_byte_is_held_as_a_model_of_bytes_has_it(
            steps in proptest::collection::vec((0u64..4, 0..BYTES, 0..BYTES, any::<Option<bool>>(), any::<bool>()), 0..80),
        ) {
            let mut table = LockTable::default();
            let mut model: Model = vec![[None; BYTES as usize]; 4];
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
                            waiting.retain(|(_, waits)| !waits.same_lock(&wanted));
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
}
