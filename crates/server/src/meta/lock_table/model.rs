//! The table as lists that are walked from one end to the other: what [`super::Model`] must do.

use super::{Holder, Outcome, Owner, Ticket, Wanted};
use std::collections::{HashMap, HashSet, VecDeque};
use weft_meta::SessionId;
use weft_wire::limits::LOCKS_PER_SESSION_MAX;
use weft_wire::locks::{HeldLock, HeldLocks};

fn is_same(one: &Wanted, other: &Wanted) -> bool {
    (one.owner, one.class()) == (other.owner, other.class())
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

    /// The conflicting lock with the lowest offset.
    fn conflict(&self, wanted: &Wanted) -> Option<Holder> {
        self.conflicts(wanted).min_by_key(|holder| (holder.lock.first, holder.owner.id))
    }
}

/// All locks of a metadata server.
#[derive(Debug, Default)]
pub(super) struct Model {
    files: HashMap<u64, LockedFile>,
    /// Where each owner waits: file and ticket.
    waits: HashMap<Owner, Vec<(u64, Ticket)>>,
    /// Locks and waits of each client.
    counts: HashMap<SessionId, usize>,
    held: usize,
    next_ticket: Ticket,
    ended: Vec<(Ticket, bool)>,
}

impl Model {
    /// Locks, where nothing is in the way; else queues if `wait`. A request that waits already keeps its place.
    pub fn lock(&mut self, ino: u64, wanted: &Wanted, wait: bool) -> Outcome {
        if self.counts.get(&wanted.owner.session).is_some_and(|count| *count >= LOCKS_PER_SESSION_MAX) {
            return Outcome::Full;
        }
        let Some(holder) = self.conflict(ino, wanted) else {
            self.leave_queue(ino, true, |_, queued| is_same(queued, wanted));
            self.set(ino, wanted, Some(wanted.exclusive));
            self.grant_waiting(ino);
            return Outcome::Granted;
        };
        if !wait {
            return Outcome::Locked(holder);
        }
        let queue = self.files.get(&ino).map(|file| &file.queue);
        let mut queued = queue.into_iter().flatten();
        if let Some((ticket, _)) = queued.find(|(_, queued)| is_same(queued, wanted)) {
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
        self.leave_queue(ino, false, |_, queued| is_same(queued, wanted));
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

    /// Gives a client back a lock that it held before the server restarted, unless another client has it. Says whether the
    /// client has it now.
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
