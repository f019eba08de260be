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
//!
//! **Cost.** Locks of a file are in trees by range (`intervals.rs`), so one that is in the way is found by walking a path. Requests
//! that want the same range in the same way are a *class*. A class hangs on one held lock that is in its way, its *blocker*, and is
//! not looked at before that lock changes:
//!
//! ```text
//!   [X 0–9 of A]  ◄── class X 0–4: tickets 1, 3, 8        A's lock is in the way of all of them but A's own requests, which
//!                 ◄── class S 5–9: tickets 2, 5           hang on blockers of their own
//!
//!   A unlocks 0–9 ─► both classes are due: ticket 1 is granted, 3 hangs on the new lock, and 8 with it unseen; 2, 5 are granted
//! ```
//!
//! What hung on a lock that is gone is made due, and waits that are due are looked at in order of arrival, a slice at a time
//! ([`LockTable::go_on`]), so that the locks of one file do not hold up other requests. Classes whose ranges differ and overlap are
//! looked at one by one each time that their blocker changes: for n of them each unlock takes n steps, in slices.

mod intervals;

use intervals::{Interval, Intervals};
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use weft_meta::SessionId;
use weft_wire::limits::LOCKS_PER_SESSION_MAX;
use weft_wire::locks::{HeldLock, HeldLocks};

/// Locks and waits that are looked at before other requests get their turn.
const SLICE: u64 = 4096;
/// Locks that are looked at to find a circle of waits.
const EDGES_MAX: u64 = 100_000;

/// Whose a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    fn class(&self) -> Class {
        let (first, last) = self.bytes();
        Class { whole: self.whole, exclusive: self.exclusive, first, last }
    }

    /// First and last byte in its space.
    fn bytes(&self) -> (u64, u64) {
        if self.whole { (0, u64::MAX) } else { (self.first, self.last) }
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

/// Requests that want the same. All wait for the same locks, but none for its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Class {
    whole: bool,
    exclusive: bool,
    first: u64,
    last: u64,
}

/// A lock that is held; of an owner and in a space, no two begin at one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Held {
    owner: Owner,
    whole: bool,
    exclusive: bool,
    first: u64,
}

/// What hangs on a blocker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hanging {
    /// All of a class, but for what the owner of the blocker wants itself.
    Class(Class),
    One(Ticket),
}

/// What one owner has of one file.
#[derive(Debug, Default)]
struct Owned {
    ranges: HeldLocks,
    /// Nothing, or all bytes.
    whole: HeldLocks,
    pid: u32,
}

impl Owned {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.whole.is_empty()
    }

    fn count(&self) -> usize {
        self.ranges.len() + self.whole.len()
    }

    fn of(&mut self, whole: bool) -> &mut HeldLocks {
        if whole { &mut self.whole } else { &mut self.ranges }
    }
}

#[derive(Debug)]
struct Waiting {
    wanted: Wanted,
    /// Where it hangs on one of its own.
    blocker: Option<Held>,
}

#[derive(Debug, Default)]
struct Members {
    tickets: BTreeSet<Ticket>,
    by_owner: HashMap<Owner, Ticket>,
    /// `None`: the first of them is due.
    blocker: Option<Held>,
}

#[derive(Debug, Default)]
struct LockedFile {
    owners: HashMap<Owner, Owned>,
    /// The same locks, by [`place`].
    held: [Intervals; 4],
    queue: HashMap<Ticket, Waiting>,
    classes: HashMap<Class, Members>,
    hanging: HashMap<Held, BTreeSet<Hanging>>,
    /// Locks that are gone, and what hung on each and is not due yet.
    releasing: Vec<(Held, BTreeSet<Hanging>)>,
    /// Waits that may have nothing in their way any more.
    due: BTreeSet<Ticket>,
}

fn place(whole: bool, exclusive: bool) -> usize {
    usize::from(whole) * 2 + usize::from(exclusive)
}

impl LockedFile {
    /// Of the conflicting locks of other owners that are `meant`, the one with the lowest first byte.
    fn find(
        &self,
        wanted: &Wanted,
        work: &Cell<u64>,
        mut meant: impl FnMut(Owner) -> bool,
    ) -> Option<(Held, Interval)> {
        let kinds: &[bool] = if wanted.exclusive { &[true, false] } else { &[true] };
        let found = kinds.iter().filter_map(|exclusive| {
            let tree = &self.held[place(wanted.whole, *exclusive)];
            let other = |interval: &Interval| interval.owner != wanted.owner && meant(interval.owner);
            let interval = tree.find(wanted.bytes(), work, other)?;
            let (owner, first) = (interval.owner, interval.first);
            Some((Held { owner, whole: wanted.whole, exclusive: *exclusive, first }, interval))
        });
        found.min_by_key(|(held, _)| (held.first, held.owner.id))
    }

    fn blocker(&self, wanted: &Wanted, work: &Cell<u64>) -> Option<Held> {
        self.find(wanted, work, |_| true).map(|(held, _)| held)
    }

    fn conflict(&self, wanted: &Wanted, work: &Cell<u64>) -> Option<Holder> {
        let (held, interval) = self.find(wanted, work, |_| true)?;
        let last = if held.whole { i64::MAX as u64 } else { interval.last };
        let lock = HeldLock { first: held.first, last, exclusive: held.exclusive };
        Some(Holder { owner: held.owner, pid: self.owners[&held.owner].pid, lock })
    }

    /// The ticket of a request for the same lock by the same owner.
    fn ticket(&self, wanted: &Wanted) -> Option<Ticket> {
        self.classes.get(&wanted.class())?.by_owner.get(&wanted.owner).copied()
    }

    fn hang(&mut self, what: Hanging, on: Held) {
        self.hanging.entry(on).or_default().insert(what);
        match what {
            Hanging::Class(class) => self.classes.entry(class).or_default().blocker = Some(on),
            Hanging::One(ticket) => {
                if let Some(waiting) = self.queue.get_mut(&ticket) {
                    waiting.blocker = Some(on);
                }
            }
        }
    }

    fn take_down(&mut self, what: Hanging, from: Held) {
        let Some(hanging) = self.hanging.get_mut(&from) else { return };
        hanging.remove(&what);
        if hanging.is_empty() {
            self.hanging.remove(&from);
        }
    }

    /// What hangs on a lock is to be made due.
    fn release(&mut self, held: &Held) {
        if let Some(hanging) = self.hanging.remove(held) {
            self.releasing.push((*held, hanging));
        }
    }

    /// Makes due, until `end`, what hung on locks that are gone. Whether that is all.
    fn go_on_releasing(&mut self, work: &Cell<u64>, end: u64) -> bool {
        while work.get() < end
            && let Some((held, hanging)) = self.releasing.last_mut()
        {
            let held = *held;
            let Some(what) = hanging.pop_first() else {
                self.releasing.pop();
                continue;
            };
            work.set(work.get() + 1);
            self.make_due(what, held);
        }
        self.releasing.is_empty()
    }

    /// What hung on this lock hangs on none, unless it has been hung on another since.
    fn make_due(&mut self, what: Hanging, held: Held) {
        match what {
            Hanging::Class(class) => {
                if let Some(members) = self.classes.get_mut(&class).filter(|one| one.blocker == Some(held)) {
                    members.blocker = None;
                    self.due.extend(members.tickets.first());
                    self.take_down(what, held);
                }
            }
            Hanging::One(ticket) => {
                if let Some(waiting) = self.queue.get_mut(&ticket).filter(|one| one.blocker == Some(held)) {
                    waiting.blocker = None;
                    self.due.insert(ticket);
                    self.take_down(what, held);
                }
            }
        }
    }

    /// Adds a waiting request. The table looks at it again when `blocker` changes.
    fn add(&mut self, ticket: Ticket, wanted: &Wanted, blocker: Held) {
        self.queue.insert(ticket, Waiting { wanted: *wanted, blocker: None });
        let members = self.classes.entry(wanted.class()).or_default();
        members.tickets.insert(ticket);
        members.by_owner.insert(wanted.owner, ticket);
        let is_first = members.tickets.len() == 1;
        if is_first {
            self.hang(Hanging::Class(wanted.class()), blocker);
        } else {
            self.hang_of_class(ticket, wanted, blocker);
        }
    }

    /// `blocker` is in the way of this request, which is one of several.
    fn hang_of_class(&mut self, ticket: Ticket, wanted: &Wanted, blocker: Held) {
        let class = wanted.class();
        let members = self.classes.entry(class).or_default();
        match members.blocker {
            // What the owner of the new blocker wants itself may be free.
            None => {
                let its_own = members.by_owner.get(&blocker.owner).copied();
                self.hang(Hanging::Class(class), blocker);
                let hangs = |ticket: &Ticket| self.queue.get(ticket).is_some_and(|one| one.blocker.is_some());
                self.due.extend(its_own.filter(|ticket| !hangs(ticket)));
            }
            Some(of_class) if of_class.owner == wanted.owner => self.hang(Hanging::One(ticket), blocker),
            Some(_) => {}
        }
    }

    /// A request waits no more.
    fn remove(&mut self, ticket: Ticket) -> Option<Wanted> {
        let Waiting { wanted, blocker } = self.queue.remove(&ticket)?;
        self.due.remove(&ticket);
        if let Some(blocker) = blocker {
            self.take_down(Hanging::One(ticket), blocker);
        }
        let class = wanted.class();
        let members = self.classes.get_mut(&class)?;
        members.tickets.remove(&ticket);
        members.by_owner.remove(&wanted.owner);
        let (next, blocker) = (members.tickets.first().copied(), members.blocker);
        match (next, blocker) {
            (Some(next), None) => {
                self.due.insert(next);
            }
            (Some(_), Some(_)) => {}
            (None, blocker) => {
                self.classes.remove(&class);
                if let Some(blocker) = blocker {
                    self.take_down(Hanging::Class(class), blocker);
                }
            }
        }
        Some(wanted)
    }

    /// Changes what an owner has. Returns how many locks it had, and has.
    fn set(&mut self, lock: &Wanted, exclusive: Option<bool>, work: &Cell<u64>) -> (usize, usize) {
        let owned = self.owners.entry(lock.owner).or_default();
        let count = owned.count();
        let (first, last) = lock.bytes();
        let ranges = owned.of(lock.whole);
        let near = (first.saturating_sub(1), last.saturating_add(1));
        let before: Vec<HeldLock> = ranges.overlapping(near.0, near.1).copied().collect();
        ranges.set(first, last, exclusive);
        let after: Vec<HeldLock> = ranges.overlapping(near.0, near.1).copied().collect();
        if exclusive.is_some() {
            owned.pid = lock.pid;
        }
        let counts = (count, owned.count());
        if owned.is_empty() {
            self.owners.remove(&lock.owner);
        }
        work.set(work.get() + (before.len() + after.len()) as u64);
        self.replace(lock, &before, &after, work);
        counts
    }

    /// The locks `before` of an owner are those `after`.
    fn replace(&mut self, lock: &Wanted, before: &[HeldLock], after: &[HeldLock], work: &Cell<u64>) {
        let owner = lock.owner;
        let interval = |of: &HeldLock| Interval { first: of.first, last: of.last, owner };
        let held =
            |of: &HeldLock| Held { owner, whole: lock.whole, exclusive: of.exclusive, first: of.first };
        let is_in = |list: &[HeldLock], of: &HeldLock| {
            list.binary_search_by_key(&of.first, |other| other.first).is_ok_and(|at| list[at] == *of)
        };
        let mut moved = Vec::new();
        for gone in before.iter().filter(|gone| !is_in(after, gone)) {
            self.held[place(lock.whole, gone.exclusive)].remove(&interval(gone));
            // One that has grown is in the way of all that it was in the way of.
            let at = after.partition_point(|new| new.last < gone.first);
            let grown = after.get(at).filter(|new| {
                new.exclusive == gone.exclusive && new.first <= gone.first && new.last >= gone.last
            });
            match grown {
                Some(new) => {
                    moved.extend(self.hanging.remove(&held(gone)).map(|hanging| (held(new), hanging)));
                }
                None => self.release(&held(gone)),
            }
        }
        for new in after.iter().filter(|new| !is_in(before, new)) {
            self.held[place(lock.whole, new.exclusive)].insert(interval(new));
        }
        for (new, hanging) in moved {
            for what in hanging {
                work.set(work.get() + 1);
                self.hang(what, new);
            }
        }
    }
}

/// All locks of a metadata server.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    files: HashMap<u64, LockedFile>,
    /// Where each owner waits: file and ticket.
    waits: HashMap<Owner, BTreeSet<(u64, Ticket)>>,
    /// Files of which each client has, or waits for, something; and by which owners.
    places: HashMap<SessionId, BTreeSet<(u64, u64)>>,
    /// Locks and waits of each client.
    counts: HashMap<SessionId, usize>,
    held: usize,
    waiting: usize,
    next_ticket: Ticket,
    ended: Vec<(Ticket, bool)>,
    /// Files with waits that are due.
    unsettled: BTreeSet<u64>,
    /// Locks and waits that were looked at since the table was made.
    work: Cell<u64>,
}

impl LockTable {
    /// Locks, where nothing is in the way; else queues if `wait`. A request that waits already keeps its place. Where waits of the
    /// file are due, the caller is to let them go first ([`LockTable::is_settled`]).
    pub fn lock(&mut self, ino: u64, wanted: &Wanted, wait: bool) -> Outcome {
        if self.counts.get(&wanted.owner.session).is_some_and(|count| *count >= LOCKS_PER_SESSION_MAX) {
            return Outcome::Full;
        }
        let Some(holder) = self.conflict(ino, wanted) else {
            if let Some(ticket) = self.files.get(&ino).and_then(|file| file.ticket(wanted)) {
                self.leave_queue(ino, ticket, true);
            }
            self.set(ino, wanted, Some(wanted.exclusive));
            self.grant_waiting(ino);
            return Outcome::Granted;
        };
        if !wait {
            return Outcome::Locked(holder);
        }
        if let Some(ticket) = self.files.get(&ino).and_then(|file| file.ticket(wanted)) {
            return Outcome::Queued(ticket);
        }
        if wanted.whole {
            self.set(ino, wanted, None);
            self.grant_waiting(ino);
        } else if self.closes_a_circle(ino, wanted) {
            return Outcome::Deadlock;
        }
        Outcome::Queued(self.queue(ino, wanted))
    }

    fn queue(&mut self, ino: u64, wanted: &Wanted) -> Ticket {
        let (ticket, owner) = (self.next_ticket, wanted.owner);
        self.next_ticket += 1;
        let file = self.files.entry(ino).or_default();
        let blocker = file.blocker(wanted, &self.work);
        // Another owner holds the conflicting lock, so it is still there after this owner gave up its own.
        file.add(ticket, wanted, blocker.expect("something is in the way"));
        self.waits.entry(owner).or_default().insert((ino, ticket));
        self.places.entry(owner.session).or_default().insert((ino, owner.id));
        *self.counts.entry(owner.session).or_default() += 1;
        self.waiting += 1;
        ticket
    }

    /// The lock that is in the way of one.
    pub fn conflict(&self, ino: u64, wanted: &Wanted) -> Option<Holder> {
        self.files.get(&ino)?.conflict(wanted, &self.work)
    }

    /// Gives a lock back, or the part of it that is held.
    pub fn unlock(&mut self, ino: u64, lock: &Wanted) {
        self.set(ino, lock, None);
        self.grant_waiting(ino);
    }

    /// Gives back all that an owner has of a file, and takes it out of the queue.
    pub fn unlock_owner(&mut self, ino: u64, owner: Owner) {
        self.forget(ino, &[owner]);
    }

    /// Takes a waiting request out of the queue, if it is there.
    pub fn cancel(&mut self, ino: u64, wanted: &Wanted) {
        if let Some(ticket) = self.files.get(&ino).and_then(|file| file.ticket(wanted)) {
            self.leave_queue(ino, ticket, false);
            self.grant_waiting(ino);
        }
    }

    /// Gives back all that a client has of a file.
    pub fn close(&mut self, ino: u64, session: SessionId) {
        let Some(places) = self.places.get(&session) else { return };
        let ids = places.range((ino, 0)..=(ino, u64::MAX)).map(|(_, id)| *id);
        let owners: Vec<Owner> = ids.map(|id| Owner { session, id }).collect();
        if !owners.is_empty() {
            self.forget(ino, &owners);
        }
    }

    /// Gives back all that a client has.
    pub fn session_gone(&mut self, session: SessionId) {
        let inos: BTreeSet<u64> =
            self.places.get(&session).into_iter().flatten().map(|(ino, _)| *ino).collect();
        inos.into_iter().for_each(|ino| self.close(ino, session));
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
        let (first, last) = lock.bytes();
        owned.is_some_and(|owned| {
            let locks = if lock.whole { &owned.whole } else { &owned.ranges };
            locks.covers(first, last, lock.exclusive)
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
        (self.held, self.waiting)
    }

    /// Whether no waits of a file are due.
    pub fn is_settled(&self, ino: u64) -> bool {
        !self.unsettled.contains(&ino)
    }

    /// Looks at a slice of the waits that are due. Returns whether there are more.
    pub fn go_on(&mut self) -> bool {
        if let Some(ino) = self.unsettled.first().copied() {
            self.grant_waiting(ino);
        }
        !self.unsettled.is_empty()
    }

    /// Changes what an owner has, and the counts.
    fn set(&mut self, ino: u64, lock: &Wanted, exclusive: Option<bool>) {
        let owner = lock.owner;
        if exclusive.is_none() && !self.files.get(&ino).is_some_and(|file| file.owners.contains_key(&owner)) {
            return;
        }
        let file = self.files.entry(ino).or_default();
        let (before, after) = file.set(lock, exclusive, &self.work);
        self.held = self.held + after - before;
        let count = self.counts.entry(owner.session).or_default();
        *count = *count + after - before;
        if after > 0 {
            self.places.entry(owner.session).or_default().insert((ino, owner.id));
        }
        self.tidy(ino, owner);
    }

    /// Forgets what there is nothing of any more: a file, and an owner in it.
    fn tidy(&mut self, ino: u64, owner: Owner) {
        let session = owner.session;
        if self.counts.get(&session) == Some(&0) {
            self.counts.remove(&session);
        }
        let file = self.files.get(&ino);
        let waits = self.waits.get(&owner);
        let waits = waits.is_some_and(|waits| waits.range((ino, 0)..=(ino, Ticket::MAX)).next().is_some());
        if !waits && !file.is_some_and(|file| file.owners.contains_key(&owner)) {
            let places = self.places.entry(session).or_default();
            places.remove(&(ino, owner.id));
            if places.is_empty() {
                self.places.remove(&session);
            }
        }
        if file.is_some_and(|file| file.owners.is_empty() && file.queue.is_empty()) {
            self.files.remove(&ino);
            self.unsettled.remove(&ino);
        }
    }

    /// Gives back all of some owners' locks of a file, and their waits.
    fn forget(&mut self, ino: u64, owners: &[Owner]) {
        let waits = owners.iter().filter_map(|owner| self.waits.get(owner));
        let waits = waits.flat_map(|waits| waits.range((ino, 0)..=(ino, Ticket::MAX)));
        let tickets: BTreeSet<Ticket> = waits.map(|(_, ticket)| *ticket).collect();
        tickets.into_iter().for_each(|ticket| self.leave_queue(ino, ticket, false));
        for owner in owners.iter().copied() {
            let all = Wanted { owner, whole: false, exclusive: false, first: 0, last: u64::MAX, pid: 0 };
            self.set(ino, &all, None);
            self.set(ino, &Wanted { whole: true, ..all }, None);
        }
        self.grant_waiting(ino);
    }

    /// Takes a request out of a queue.
    fn leave_queue(&mut self, ino: u64, ticket: Ticket, granted: bool) {
        let Some(wanted) = self.files.get_mut(&ino).and_then(|file| file.remove(ticket)) else { return };
        let owner = wanted.owner;
        self.ended.push((ticket, granted));
        self.waiting -= 1;
        if let Some(waits) = self.waits.get_mut(&owner) {
            waits.remove(&(ino, ticket));
            if waits.is_empty() {
                self.waits.remove(&owner);
            }
        }
        if let Some(count) = self.counts.get_mut(&owner.session) {
            *count -= 1;
        }
        self.tidy(ino, owner);
    }

    /// Grants, from the front of the queue, what nothing is in the way of any more, until nothing is due or a slice is done. A
    /// grant may be a weaker lock than the owner had, which frees others.
    fn grant_waiting(&mut self, ino: u64) {
        let end = self.work.get() + SLICE;
        while let Some(file) = self.files.get_mut(&ino) {
            // All that is due must be known before the front of the queue is.
            let is_released = file.go_on_releasing(&self.work, end);
            if self.work.get() >= end && (!is_released || !file.due.is_empty()) {
                self.unsettled.insert(ino);
                return;
            }
            let Some(ticket) = file.due.pop_first() else { break };
            self.work.set(self.work.get() + 1);
            let Some(wanted) = file.queue.get(&ticket).map(|waiting| waiting.wanted) else { continue };
            match file.blocker(&wanted, &self.work) {
                Some(blocker) => file.hang_of_class(ticket, &wanted, blocker),
                None => {
                    self.set(ino, &wanted, Some(wanted.exclusive));
                    self.leave_queue(ino, ticket, true);
                }
            }
        }
        self.unsettled.remove(&ino);
    }

    /// Whether those who are in the way of `wanted` wait for its owner, directly or through others. Where that would take more
    /// than [`EDGES_MAX`], it is taken for no, and the request waits.
    fn closes_a_circle(&self, ino: u64, wanted: &Wanted) -> bool {
        let end = self.work.get() + EDGES_MAX;
        let (mut seen, mut classes) = (HashSet::new(), HashSet::new());
        let mut next = Vec::new();
        let mut closes = self.follow(ino, wanted, wanted.owner, end, &mut seen, &mut next);
        while let Some(owner) = next.pop().filter(|_| !closes && self.work.get() < end) {
            for (ino, ticket) in self.waits.get(&owner).into_iter().flatten() {
                self.work.set(self.work.get() + 1);
                let Some(waiting) = self.files.get(ino).and_then(|file| file.queue.get(ticket)) else {
                    continue;
                };
                let waiting = &waiting.wanted;
                // Others of a class wait for the same, and for the first of them, which has been seen.
                if !waiting.whole && classes.insert((*ino, waiting.class())) {
                    closes |= self.follow(*ino, waiting, wanted.owner, end, &mut seen, &mut next);
                }
            }
        }
        closes
    }

    /// Notes who is in the way of `waiting`; whether `sought` is.
    fn follow(
        &self,
        ino: u64,
        waiting: &Wanted,
        sought: Owner,
        end: u64,
        seen: &mut HashSet<Owner>,
        next: &mut Vec<Owner>,
    ) -> bool {
        let Some(file) = self.files.get(&ino) else { return false };
        let mut found = false;
        file.find(waiting, &self.work, |owner| {
            found |= owner == sought;
            if seen.insert(owner) {
                next.push(owner);
            }
            found || self.work.get() >= end
        });
        found
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
