//! Who holds leases, and who must acknowledge a change before it is acknowledged to its author.
//!
//! ```text
//!   grant(B, [d, x])             leases of B on d and x
//!   notify(A, touched: d/x) ───► B's queue: change 1, 2; returns [B, until 2 or the end of its lease]
//!   acknowledged([B, 2])         waits
//!   turn(B, acknowledged 2) ───► wakes it
//! ```
//!
//! **Bounds.** The author of a change waits for nobody longer than until the lease ends, so a client that is stopped, cut off or dead
//! holds others up once, for the rest of its lease. Nor does it help a client to ask on without acknowledging: its leases end
//! [`LEASE`] after its last `Watch` that acknowledged all that it had been sent, however often it asks for something
//! else, and it caches nothing for longer than [`weft_wire::limits::LEASE_MS`] from when it sent that. A client that has acknowledged
//! late may not watch for a while. One that let a lease run out may not either, nor may others with its key (`penalties.rs`).
//!
//! **Epochs.** A watch whose changes could not be kept (too many, or the server is a new process) goes on with another epoch: the
//! client must forget everything, and until it has acknowledged that, its leases count.
//!
//! **After a restart** nobody knows what watching clients cache. Their sessions are stored; changes wait until each of them has
//! watched again in the new epoch, which they do after forgetting, or until all leases of before are over.

use super::leases::{Concerned, LEASE, Leases};
use super::penalties::{Party, Penalties};
use super::watcher::Watcher;
use crate::answer::Refusal;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Instant;
use weft_meta::{SessionId, Touched};
use weft_reactor::Event;
use weft_wire::Status;
use weft_wire::messages::{Change, WatchReply, WatchRequest, changed};

/// A client that has to forget something before a change is acknowledged.
pub(super) struct LeaseHolder {
    session: SessionId,
    number: u64,
    until: Instant,
}

/// Up to so many watching clients it is looked whether any but the author of a change has leases. Of more, some have.
const FEW: usize = 8;
/// From so many clients that have left on, those are forgotten whose leases are over.
const LEFT_MAX: usize = 256;

struct State {
    leases: Leases,
    watchers: HashMap<SessionId, Watcher>,
    /// When the last lease ends of clients that are no longer among `watchers`, or are there anew.
    left_until: Instant,
    /// Clients that are no longer among `watchers`, and when their last leases end.
    left: HashMap<SessionId, (Party, Instant)>,
    penalties: Penalties,
    /// Sessions that have said that they watch no longer; a request of before may still be on its way.
    ended: HashSet<SessionId>,
    epochs: u64,
    /// Clients of before the start that may hold any lease, and until when.
    awaited: HashSet<SessionId>,
    awaited_until: Instant,
}

/// All watching clients.
pub(super) struct Watchers {
    state: RefCell<State>,
    nobody_awaited: Event,
}

impl Watchers {
    /// `awaited`: the sessions that watched when the server ended before.
    pub fn new(awaited: Vec<SessionId>) -> Watchers {
        let now = Instant::now();
        let nobody_awaited = Event::new();
        if awaited.is_empty() {
            nobody_awaited.set();
        }
        let state = State {
            leases: Leases::new(now),
            watchers: HashMap::new(),
            left_until: now,
            left: HashMap::new(),
            penalties: Penalties::default(),
            ended: HashSet::new(),
            epochs: crate::clock::since_1970().as_nanos() as u64,
            awaited: awaited.into_iter().collect(),
            awaited_until: now + LEASE,
        };
        Watchers { state: RefCell::new(state), nobody_awaited }
    }

    /// Whether a change may have to wait for somebody.
    pub fn any(&self) -> bool {
        !self.state.borrow().watchers.is_empty() || !self.nobody_awaited.is_set()
    }

    /// Whether a change by `author` may concern others.
    pub fn may_concern_others(&self, author: SessionId) -> bool {
        !self.state.borrow().is_alone(Some(author), Instant::now())
    }

    /// Watching clients, and inodes with leases.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state.borrow();
        (state.watchers.len(), state.leases.len())
    }

    pub fn watches(&self, session: SessionId) -> bool {
        self.state.borrow().watchers.contains_key(&session)
    }

    /// `session` gets leases on these inodes, if it watches.
    pub fn grant(&self, session: SessionId, inos: impl IntoIterator<Item = u64>) {
        let state = &mut *self.state.borrow_mut();
        if let Some(watcher) = state.watchers.get_mut(&session) {
            let now = Instant::now();
            let until = watcher.lease_until(now);
            if until > now {
                watcher.leased_until = until;
                inos.into_iter().for_each(|ino| state.leases.grant(ino, session, now, until));
            }
        }
    }

    /// Whether anybody but `author` may have walked a path by a name in `dir` to `ino`, and be about to use that.
    pub fn may_use(&self, dir: u64, ino: u64, author: Option<SessionId>) -> bool {
        let (state, now) = (self.state.borrow(), Instant::now());
        let is_leased = |ino| state.leases.is_leased(ino, author, now);
        !state.is_alone(author, now) && (is_leased(ino) || is_leased(dir))
    }

    /// Queues what has just been changed for all lease holders but `author`; returns whom to wait for.
    pub fn notify(&self, author: SessionId, touched: Touched) -> Vec<LeaseHolder> {
        if touched.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let state = &mut *self.state.borrow_mut();
        let mut holders = Vec::new();
        let mut directories: Vec<(u64, Vec<Concerned>)> = Vec::new();
        for (dir, name) in touched.names {
            if !directories.iter().any(|(known, _)| *known == dir) {
                directories.push((dir, state.leases.concerned(dir, author, true, now)));
            }
            let concerned = directories.iter().find(|(known, _)| *known == dir).map(|(_, who)| who.clone());
            for who in concerned.unwrap_or_default() {
                let change = match who.all_names {
                    true => Change { ino: dir, what: changed::ALL_NAMES, name: Vec::new() },
                    false => Change { ino: dir, what: changed::NAME, name: name.clone() },
                };
                state.push(&who, change, &mut holders);
            }
        }
        for inode in touched.inodes {
            let what = if inode.data { changed::DATA | changed::ATTRIBUTES } else { changed::ATTRIBUTES };
            let of_directory =
                directories.iter().find(|(dir, _)| *dir == inode.ino).map(|(_, who)| who.clone());
            // Of a directory without changed names only attributes change, and the lease on its names goes on; a file has no
            // names, so a holder that is notified of it sixteen times loses nothing.
            let concerned =
                of_directory.unwrap_or_else(|| state.leases.concerned(inode.ino, author, !inode.data, now));
            for who in concerned {
                state.push(&who, Change { ino: inode.ino, what, name: Vec::new() }, &mut holders);
                if who.all_names && !inode.data {
                    let all = Change { ino: inode.ino, what: changed::ALL_NAMES, name: Vec::new() };
                    state.push(&who, all, &mut holders);
                }
            }
        }
        holders
    }

    /// All that any client has still to acknowledge: for a repeated request, of which it is not known what it changed. Who
    /// does not answer holds up repetitions no longer than the first request.
    pub fn unacknowledged(&self) -> Vec<LeaseHolder> {
        let state = self.state.borrow();
        let behind = |(session, watcher): (&SessionId, &Watcher)| {
            let (number, until) = (watcher.last(), watcher.leased_until);
            (watcher.acknowledged < number).then_some(LeaseHolder { session: *session, number, until })
        };
        state.watchers.iter().filter_map(behind).collect()
    }

    /// Has all clients forget everything; for changes of which it is not known whom they concern.
    pub fn reset_all(&self) -> Vec<LeaseHolder> {
        let state = &mut *self.state.borrow_mut();
        let now = Instant::now();
        for watcher in state.watchers.values_mut() {
            state.epochs += 1;
            watcher.begin(state.epochs, now);
        }
        let all = state.watchers.iter().map(|(session, watcher)| LeaseHolder {
            session: *session,
            number: watcher.last(),
            until: watcher.leased_until,
        });
        all.collect()
    }

    /// Waits until these have acknowledged, or their leases are over.
    pub async fn acknowledged(&self, holders: Vec<LeaseHolder>) {
        for holder in holders {
            while let Some(event) = self.event_for(&holder) {
                let left = holder.until.saturating_duration_since(Instant::now());
                if weft_reactor::timeout(left, event.wait()).await.is_err() {
                    self.has_not_answered(&holder);
                    break;
                }
            }
        }
    }

    /// A change waited for the holder until its lease ended.
    fn has_not_answered(&self, holder: &LeaseHolder) {
        let state = &mut *self.state.borrow_mut();
        let now = Instant::now();
        let party = match state.watchers.get_mut(&holder.session) {
            Some(watcher) => {
                watcher.waiters.retain(|(number, _)| *number != holder.number);
                let Some(since) = watcher.behind_since.replace(now) else { return };
                watcher.note_late(now.saturating_duration_since(since), now);
                watcher.party
            }
            None => match state.left.get(&holder.session) {
                Some((party, _)) => *party,
                None => return,
            },
        };
        let Some(penalty) = state.penalties.lapse(party, now) else { return };
        if let Some(watcher) = state.watchers.get_mut(&holder.session) {
            watcher.silent_until = Some(now + penalty.time);
        }
        let of_key =
            state.watchers.values().filter(|watcher| penalty.all && watcher.party.holder == party.holder);
        of_key.for_each(|watcher| watcher.bell.set());
        crate::log::warning!(
            "meta",
            "a client with a {} key let a lease run out, so that a change waited for it: {} cached leases for {} s",
            if party.is_user { "user's" } else { "host's" },
            if penalty.all { "no client with that key gets" } else { "it gets no" },
            penalty.time.as_secs()
        );
    }

    /// Refuses a client that has let others wait for too long, or one with the same key has.
    pub fn check_silence(
        &self,
        session: SessionId,
        party: Party,
        request: &WatchRequest,
    ) -> Result<(), Refusal> {
        let state = &mut *self.state.borrow_mut();
        let now = Instant::now();
        let watcher = state.watchers.get_mut(&session);
        let of_key = state.penalties.left(party, now);
        let silent = watcher.as_ref().and_then(|watcher| watcher.silent_until);
        let of_session =
            silent.map(|until| until.saturating_duration_since(now)).filter(|left| !left.is_zero());
        if let Some(left) = of_key.max(of_session) {
            // Changes that it has heard of keep no others waiting.
            if let Some(watcher) = watcher {
                watcher.note_acknowledged(request, now);
            }
            let who = if of_key.is_some() { "a client with this key" } else { "this client" };
            let text = format!(
                "{who} did not acknowledge changes by others in time, which waited for it; it may cache nothing for {} s",
                left.as_secs() + 1
            );
            return Err(Refusal::new(Status::Busy, text));
        }
        if let (Some(watcher), Some(_)) = (watcher, silent) {
            // Its leases ended long ago.
            state.epochs += 1;
            *watcher = Watcher::new(party, state.epochs, now);
        }
        Ok(())
    }

    /// Leases that ran out since the start, and keys whose clients get none.
    pub fn penalty_counts(&self) -> (u64, usize) {
        self.state.borrow().penalties.counts(Instant::now())
    }

    /// Set when the holder has acknowledged; `None` if that is so already. Of a client that is gone nobody will set it.
    fn event_for(&self, holder: &LeaseHolder) -> Option<Rc<Event>> {
        let mut state = self.state.borrow_mut();
        let event = Rc::new(Event::new());
        if let Some(watcher) = state.watchers.get_mut(&holder.session) {
            if watcher.acknowledged >= holder.number {
                return None;
            }
            watcher.waiters.push((holder.number, event.clone()));
        }
        Some(event)
    }

    /// Waits until nobody holds a lease of before the start of this server.
    pub async fn all_returned(&self) {
        if self.nobody_awaited.is_set() {
            return;
        }
        let until = self.state.borrow().awaited_until;
        let left = until.saturating_duration_since(Instant::now());
        if weft_reactor::timeout(left, self.nobody_awaited.wait()).await.is_err() {
            self.state.borrow_mut().awaited.clear();
            self.nobody_awaited.set();
        }
    }

    pub fn no_longer_awaited(&self, session: SessionId) {
        let mut state = self.state.borrow_mut();
        state.awaited.remove(&session);
        if state.awaited.is_empty() {
            self.nobody_awaited.set();
        }
    }

    pub fn has_ended(&self, session: SessionId) -> bool {
        self.state.borrow().ended.contains(&session)
    }

    /// `by_request`: the client has said so; otherwise it is gone, and there is nothing to remember.
    pub fn note_end(&self, session: SessionId, by_request: bool) {
        let ended = &mut self.state.borrow_mut().ended;
        let _ = if by_request { ended.insert(session) } else { ended.remove(&session) };
    }

    pub fn add(&self, session: SessionId, party: Party) {
        let mut state = self.state.borrow_mut();
        state.epochs += 1;
        let watcher = Watcher::new(party, state.epochs, Instant::now());
        if let Some(before) = state.watchers.insert(session, watcher) {
            state.left_until = state.left_until.max(before.leased_until);
        }
    }

    /// Takes a session out; whoever waits for it waits until its leases end, unless it says that it caches nothing.
    pub fn remove(&self, session: SessionId, caches_nothing: bool) {
        let state = &mut *self.state.borrow_mut();
        let Some(watcher) = state.watchers.remove(&session) else { return };
        watcher.bell.set();
        if caches_nothing {
            state.leases.end(session);
            watcher.waiters.iter().for_each(|(_, event)| event.set());
        } else {
            state.left_until = state.left_until.max(watcher.leased_until);
            let now = Instant::now();
            if state.left.len() >= LEFT_MAX {
                state.left.retain(|_, (_, until)| *until + LEASE > now);
            }
            if watcher.leased_until > now {
                state.left.insert(session, (watcher.party, watcher.leased_until));
            }
        }
    }

    /// Takes the acknowledgement, and gives the reply, or what to wait for.
    pub fn turn(&self, session: SessionId, request: &WatchRequest) -> Result<WatchReply, Rc<Event>> {
        let mut state = self.state.borrow_mut();
        let Some(watcher) = state.watchers.get_mut(&session) else { return Ok(nothing(request)) };
        watcher.acknowledge(request, Instant::now());
        match watcher.reply(request) {
            Some(reply) => Ok(reply),
            None => {
                // A request before this one, whose connection may be gone, is answered.
                watcher.bell.set();
                watcher.bell = Rc::new(Event::new());
                Err(watcher.bell.clone())
            }
        }
    }

    pub fn reply(&self, session: SessionId, request: &WatchRequest) -> WatchReply {
        let mut state = self.state.borrow_mut();
        let watcher = state.watchers.get_mut(&session);
        watcher.and_then(|watcher| watcher.reply(request)).unwrap_or_else(|| nothing(request))
    }
}

impl State {
    /// Whether it is certain that nobody but `author` has a lease.
    fn is_alone(&self, author: Option<SessionId>, now: Instant) -> bool {
        let has_none = |(session, watcher): (&SessionId, &Watcher)| {
            Some(*session) == author || watcher.leased_until <= now
        };
        self.watchers.len() <= FEW && self.left_until <= now && self.watchers.iter().all(has_none)
    }

    fn push(&mut self, who: &Concerned, change: Change, holders: &mut Vec<LeaseHolder>) {
        let (mut number, now) = (u64::MAX, Instant::now());
        if let Some(watcher) = self.watchers.get_mut(&who.session) {
            if watcher.push(change, now) {
                self.epochs += 1;
                watcher.begin(self.epochs, now);
            }
            number = watcher.last();
        }
        match holders.iter_mut().find(|holder| holder.session == who.session) {
            Some(holder) => {
                holder.number = number;
                holder.until = holder.until.max(who.until);
            }
            None => holders.push(LeaseHolder { session: who.session, number, until: who.until }),
        }
    }
}

/// That there is nothing to report.
pub(super) fn nothing(request: &WatchRequest) -> WatchReply {
    WatchReply { epoch: request.epoch, reset: false, last: request.acknowledged, changes: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::super::watcher::QUEUE_MAX;
    use super::*;
    use std::time::Duration;
    use weft_meta::TouchedInode;

    const AUTHOR: SessionId = SessionId([1; 16]);
    const HOLDER: SessionId = SessionId([2; 16]);

    const PARTY: Party = Party { holder: weft_wire::security::Holder([7; 8]), is_user: true };

    fn check(watchers: &Watchers) -> Result<(), Refusal> {
        let request = WatchRequest { epoch: 0, acknowledged: 0, at_once: true, end: false };
        watchers.check_silence(HOLDER, PARTY, &request)
    }

    #[test]
    fn a_lease_that_runs_out_bars_the_key_also_where_the_client_has_left() {
        for leaves in [false, true] {
            let (watchers, request) = watching();
            let other = SessionId([3; 16]);
            watchers.add(other, PARTY);
            watchers.grant(HOLDER, [7]);
            let holders = watchers.notify(AUTHOR, file(7));
            if leaves {
                watchers.remove(HOLDER, false);
            }
            assert!(watchers.check_silence(other, PARTY, &request).is_ok());
            watchers.has_not_answered(&holders[0]);
            for session in [HOLDER, other, SessionId([4; 16])] {
                let refused = watchers.check_silence(session, PARTY, &request).unwrap_err();
                assert_eq!(refused.status, Status::Busy);
            }
            let stranger = Party { holder: weft_wire::security::Holder([8; 8]), ..PARTY };
            assert!(watchers.check_silence(SessionId([5; 16]), stranger, &request).is_ok());
            assert_eq!(watchers.penalty_counts(), (1, 1));
        }
    }

    /// A client that watches and has forgotten everything of before.
    fn watching() -> (Watchers, WatchRequest) {
        let watchers = Watchers::new(Vec::new());
        watchers.add(HOLDER, PARTY);
        let begin = WatchRequest { epoch: 0, acknowledged: 0, at_once: true, end: false };
        let reply = heard(&watchers, &begin);
        assert!(reply.reset);
        (watchers, WatchRequest { epoch: reply.epoch, acknowledged: reply.last, ..begin })
    }

    fn heard(watchers: &Watchers, request: &WatchRequest) -> WatchReply {
        let _ = watchers.turn(HOLDER, request);
        watchers.reply(HOLDER, request)
    }

    fn file(ino: u64) -> Touched {
        Touched { inodes: vec![TouchedInode { ino, data: true }], names: Vec::new() }
    }

    #[test]
    fn who_was_told_is_waited_for_until_he_has_acknowledged() {
        let (watchers, request) = watching();
        assert!(watchers.notify(AUTHOR, file(7)).is_empty());
        watchers.grant(HOLDER, [7]);
        assert!(watchers.notify(HOLDER, file(7)).is_empty());
        let holders = watchers.notify(AUTHOR, file(7));
        assert_eq!(holders.len(), 1);
        let reply = heard(&watchers, &request);
        assert_eq!(reply.changes.iter().map(|change| change.ino).collect::<Vec<_>>(), [7]);
        assert!(watchers.event_for(&holders[0]).is_some());
        heard(&watchers, &WatchRequest { acknowledged: reply.last, ..request });
        assert!(watchers.event_for(&holders[0]).is_none());
    }

    #[test]
    fn who_does_not_answer_is_waited_for_once_also_by_repeated_requests() {
        let (watchers, _) = watching();
        watchers.grant(HOLDER, [7, 8]);
        let first = watchers.notify(AUTHOR, file(7));
        std::thread::sleep(Duration::from_millis(2));
        let until = |holders: &[LeaseHolder]| holders.iter().map(|one| one.until).collect::<Vec<_>>();
        assert_eq!(until(&watchers.unacknowledged()), until(&first));
        assert_eq!(until(&watchers.notify(AUTHOR, file(8))), until(&first));
    }

    #[test]
    fn who_alone_holds_leases_concerns_nobody_and_one_who_has_left_counts_until_they_end() {
        let (watchers, _) = watching();
        let concerns = || watchers.may_concern_others(AUTHOR);
        assert!(!concerns(), "no lease was given");
        watchers.grant(HOLDER, [7]);
        assert!(concerns() && watchers.may_use(1, 7, Some(AUTHOR)) && watchers.may_use(1, 7, None));
        assert!(!watchers.may_concern_others(HOLDER) && !watchers.may_use(1, 7, Some(HOLDER)));
        // It watches anew, and may have what it was told before.
        watchers.add(HOLDER, PARTY);
        assert!(concerns());
        assert_eq!(watchers.notify(AUTHOR, file(7)).len(), 1);
        watchers.grant(HOLDER, [8]);
        watchers.remove(HOLDER, false);
        assert!(concerns() && watchers.may_use(1, 8, Some(AUTHOR)));
        assert_eq!(watchers.notify(AUTHOR, file(8)).len(), 1);
        watchers.state.borrow_mut().left_until = Instant::now();
        assert!(!concerns());
        watchers.add(HOLDER, PARTY);
        watchers.grant(HOLDER, [9]);
        watchers.remove(HOLDER, true);
        assert!(!concerns(), "it has said that it caches nothing");
        for number in 0..=FEW as u8 {
            watchers.add(SessionId([100 + number; 16]), PARTY);
        }
        assert!(concerns(), "of many it is not looked at");
    }

    #[test]
    fn who_never_acknowledges_has_no_lease_beyond_the_one_of_before() {
        let (watchers, _) = watching();
        watchers.grant(HOLDER, [7]);
        let first = watchers.notify(AUTHOR, file(7));
        std::thread::sleep(Duration::from_millis(2));
        watchers.grant(HOLDER, [7]);
        let again = watchers.notify(AUTHOR, file(7));
        assert_eq!(again[0].until, first[0].until, "asking again does not make a lease longer");
        let long_ago = Instant::now() - LEASE;
        watchers.state.borrow_mut().watchers.get_mut(&HOLDER).unwrap().heard_at = long_ago;
        watchers.grant(HOLDER, [8]);
        assert!(watchers.notify(AUTHOR, file(8)).is_empty());
    }

    #[test]
    fn asking_without_acknowledging_is_no_sign_of_life() {
        let (watchers, request) = watching();
        watchers.grant(HOLDER, [7]);
        watchers.notify(AUTHOR, file(7));
        let reply = heard(&watchers, &request);
        let heard_at = || watchers.state.borrow().watchers[&HOLDER].heard_at;
        let before = heard_at();
        heard(&watchers, &request);
        heard(&watchers, &WatchRequest { epoch: 0, acknowledged: 0, ..request.clone() });
        assert_eq!(heard_at(), before);
        heard(&watchers, &WatchRequest { acknowledged: reply.last, ..request });
        assert!(heard_at() > before);
    }

    #[test]
    fn who_is_late_again_and_again_may_not_watch_for_a_while() {
        let (watchers, request) = watching();
        let mut request = request;
        let mut refused_after = 0;
        while check(&watchers).is_ok() {
            refused_after += 1;
            watchers.grant(HOLDER, [7]);
            watchers.notify(AUTHOR, file(7));
            let before = Instant::now() - Duration::from_secs(3);
            watchers.state.borrow_mut().watchers.get_mut(&HOLDER).unwrap().behind_since = Some(before);
            request.acknowledged = heard(&watchers, &request).last;
            heard(&watchers, &request);
        }
        assert_eq!(refused_after, 4, "four times three seconds");
        watchers.state.borrow_mut().watchers.get_mut(&HOLDER).unwrap().silent_until = Some(Instant::now());
        assert!(check(&watchers).is_ok());
        assert!(heard(&watchers, &request).reset);
    }

    #[test]
    fn after_a_repair_every_client_forgets_everything() {
        let (watchers, request) = watching();
        watchers.grant(HOLDER, [7]);
        let holders = watchers.reset_all();
        assert_eq!(holders.len(), 1);
        let reply = heard(&watchers, &request);
        assert!(reply.reset && watchers.event_for(&holders[0]).is_some());
        heard(&watchers, &WatchRequest { epoch: reply.epoch, acknowledged: reply.last, ..request });
        assert!(watchers.event_for(&holders[0]).is_none());
    }

    #[test]
    fn who_has_lost_track_forgets_everything() {
        let (watchers, request) = watching();
        let mut holders = Vec::new();
        for ino in 0..=QUEUE_MAX as u64 {
            watchers.grant(HOLDER, [ino]);
            holders = watchers.notify(AUTHOR, file(ino));
        }
        let reply = heard(&watchers, &request);
        assert!(reply.reset && reply.changes.is_empty());
        heard(&watchers, &WatchRequest { epoch: reply.epoch, acknowledged: reply.last, ..request });
        assert!(watchers.event_for(&holders[0]).is_none());
    }
}
