//! Clients that cache what they are told, and how they hear of changes before these are acknowledged to whoever made them.
//!
//! ```text
//!   mount B                      server                              mount A
//!   Lookup d/x ───────────────►  lease: B on d, and on x
//!   Watch(epoch 5, 0) ────────►  waits …
//!                                                        ◄────────── Unlink d/x      committed; B believes otherwise
//!             ◄── changes 1-2 ─                                      (A waits)
//!   forgets d/x
//!   Watch(epoch 5, 2) ────────►  acknowledged ──────────────────────► reply to Unlink
//! ```
//!
//! **Bounds.** The author of a change waits for nobody longer than until the lease ends, so a client that is stopped, cut off or dead
//! holds others up once, for the rest of its lease. Nor does it help a client to ask on without acknowledging: its leases end
//! [`LEASE`] after its last `Watch` that acknowledged all it had been told, however often it asks for something else, and it
//! believes nothing for longer than [`weft_wire::limits::LEASE_MS`] from when it sent that. Who has let others wait for so
//! long in all, by not acknowledging or by doing so late, may not watch for [`SILENT`].
//!
//! **Epochs.** A watch whose changes could not be kept (too many, or the server is a new process) goes on with another epoch: the
//! client is told to forget everything, and what it does not acknowledge counts as believed until then.
//!
//! **After a restart** nobody knows what watching clients believe. Their sessions are stored; changes wait until each of them has
//! watched again in the new epoch, which they do after forgetting, or until all leases of before are over.

use super::leases::{Concerned, LEASE, Leases};
use super::{Call, MetaPart, translate as t};
use crate::answer::{Answer, Refusal};
use crate::spent::{self, Part, during};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_meta::{Engine, Op, SessionId, Touched};
use weft_reactor::Event;
use weft_wire::Status;
use weft_wire::limits::CHANGES_PER_MESSAGE_MAX;
use weft_wire::messages::{At, Attr, Change, WatchReply, WatchRequest, changed};

/// A watch is answered at the latest after this, so that both ends know that the other is there.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// An acknowledgement that takes longer is late.
const LATE: Duration = Duration::from_secs(1);
/// Lateness of one client is added up for so long; when it comes to [`LEASE`], the client may not watch for as long.
const SILENT: Duration = Duration::from_secs(60);
/// Changes that wait to be acknowledged by one client before it is told to forget everything.
const QUEUE_MAX: usize = 8192;

/// One client's changes, numbered from 1.
struct Watcher {
    epoch: u64,
    /// Number of the last change before those in the queue.
    base: u64,
    acknowledged: u64,
    queue: VecDeque<Change>,
    /// Set when the request that waits is to be answered.
    bell: Rc<Event>,
    waiters: Vec<(u64, Rc<Event>)>,
    /// No lease of this client lasts longer.
    leased_until: Instant,
    /// When it last asked having acknowledged all that it was told.
    heard_at: Instant,
    /// Number of the last change that it was told in this epoch; `None`: it does not know of the epoch.
    delivered: Option<u64>,
    /// Since when it has something to acknowledge.
    behind_since: Option<Instant>,
    /// By how much it was late, and since when that is added up.
    late: Duration,
    late_since: Instant,
    /// It was late too often.
    silent_until: Option<Instant>,
}

impl Watcher {
    fn new(epoch: u64, now: Instant) -> Watcher {
        Watcher {
            epoch,
            base: 0,
            acknowledged: 0,
            queue: VecDeque::new(),
            bell: Rc::new(Event::new()),
            waiters: Vec::new(),
            leased_until: now,
            heard_at: now,
            delivered: None,
            behind_since: None,
            late: Duration::ZERO,
            late_since: now,
            silent_until: None,
        }
    }

    fn last(&self) -> u64 {
        self.base + self.queue.len() as u64
    }

    /// Returns whether there are too many to be kept.
    fn push(&mut self, change: Change, now: Instant) -> bool {
        self.behind_since.get_or_insert(now);
        self.queue.push_back(change);
        self.bell.set();
        self.queue.len() > QUEUE_MAX
    }

    /// Begins a new epoch: the client is to forget everything, which has a number of its own behind all that there was.
    fn begin(&mut self, epoch: u64, now: Instant) {
        self.behind_since.get_or_insert(now);
        self.delivered = None;
        self.base = self.last() + 1;
        self.queue.clear();
        self.epoch = epoch;
        self.bell.set();
    }

    /// How long its leases last that are granted now.
    fn lease_until(&self, now: Instant) -> Instant {
        now.min(self.heard_at) + LEASE
    }

    /// It has let others wait for so long. Returns whether that was too much.
    fn note_late(&mut self, took: Duration, now: Instant) -> bool {
        if now.saturating_duration_since(self.late_since) >= SILENT {
            (self.late, self.late_since) = (Duration::ZERO, now);
        }
        if took >= LATE {
            self.late += took;
        }
        let too_late = self.late >= LEASE - LATE && self.silent_until.is_none();
        if too_late {
            self.silent_until = Some(now + SILENT);
            self.bell.set();
        }
        too_late
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.silent_until.is_some_and(|until| now < until)
    }

    fn acknowledge(&mut self, request: &WatchRequest, now: Instant) {
        let knows_all = match self.delivered {
            Some(delivered) => request.epoch == self.epoch && request.acknowledged >= delivered,
            None => true,
        };
        if knows_all {
            self.heard_at = now;
        }
        if request.epoch != self.epoch {
            return;
        }
        let acknowledged = request.acknowledged.min(self.last());
        while self.base < acknowledged {
            self.queue.pop_front();
            self.base += 1;
        }
        if acknowledged > self.acknowledged {
            self.acknowledged = acknowledged;
            let still_behind = (acknowledged < self.last()).then_some(now);
            let behind = std::mem::replace(&mut self.behind_since, still_behind);
            if let Some(since) = behind {
                self.note_late(now.saturating_duration_since(since), now);
            }
        }
        self.waiters.retain(|(number, event)| {
            if *number <= acknowledged {
                event.set();
            }
            *number > acknowledged
        });
    }

    /// What there is to say to `request`, if anything.
    fn reply(&mut self, request: &WatchRequest) -> Option<WatchReply> {
        let reset = request.epoch != self.epoch;
        let changes: Vec<Change> = match reset {
            true => Vec::new(),
            false => self.queue.iter().take(CHANGES_PER_MESSAGE_MAX).cloned().collect(),
        };
        let something = reset || !changes.is_empty();
        let last = self.base + changes.len() as u64;
        self.delivered = Some(last);
        something.then_some(WatchReply { epoch: self.epoch, reset, last, changes })
    }
}

/// A client that has to forget something before a change is acknowledged.
pub(super) struct Believer {
    session: SessionId,
    number: u64,
    until: Instant,
}

struct State {
    leases: Leases,
    watchers: HashMap<SessionId, Watcher>,
    /// Sessions that have said that they watch no longer; a request of before may still be on its way.
    ended: HashSet<SessionId>,
    epochs: u64,
    /// Clients of before the start that may believe anything, and until when.
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

    /// Watching clients, and inodes with leases.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state.borrow();
        (state.watchers.len(), state.leases.len())
    }

    pub fn watches(&self, session: SessionId) -> bool {
        self.state.borrow().watchers.contains_key(&session)
    }

    /// `session` is told of these inodes, if it watches.
    pub fn told(&self, session: SessionId, inos: impl IntoIterator<Item = u64>) {
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
        state.leases.is_leased(ino, author, now) || state.leases.is_leased(dir, author, now)
    }

    /// Tells all but `author` of what has just been changed; returns whom to wait for.
    pub fn tell(&self, author: SessionId, touched: Touched) -> Vec<Believer> {
        if touched.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let state = &mut *self.state.borrow_mut();
        let mut believers = Vec::new();
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
                state.push(&who, change, &mut believers);
            }
        }
        for inode in touched.inodes {
            let what = if inode.data { changed::DATA | changed::ATTRIBUTES } else { changed::ATTRIBUTES };
            let of_directory =
                directories.iter().find(|(dir, _)| *dir == inode.ino).map(|(_, who)| who.clone());
            // Of a directory without changed names only attributes change, and the lease on its names goes on; a file has no
            // names, and a holder that is told of it so sixteen times is none the worse for it.
            let concerned =
                of_directory.unwrap_or_else(|| state.leases.concerned(inode.ino, author, !inode.data, now));
            for who in concerned {
                state.push(&who, Change { ino: inode.ino, what, name: Vec::new() }, &mut believers);
                if who.all_names && !inode.data {
                    let all = Change { ino: inode.ino, what: changed::ALL_NAMES, name: Vec::new() };
                    state.push(&who, all, &mut believers);
                }
            }
        }
        believers
    }

    /// All that any client has still to acknowledge: for a repeated request, of which it is not known what it changed. Who
    /// does not answer holds up repetitions no longer than the first request.
    pub fn all_believers(&self) -> Vec<Believer> {
        let state = self.state.borrow();
        let behind = |(session, watcher): (&SessionId, &Watcher)| {
            let (number, until) = (watcher.last(), watcher.leased_until);
            (watcher.acknowledged < number).then_some(Believer { session: *session, number, until })
        };
        state.watchers.iter().filter_map(behind).collect()
    }

    /// Tells all clients to forget everything; for changes of which it is not known whom they concern.
    pub fn tell_all(&self) -> Vec<Believer> {
        let state = &mut *self.state.borrow_mut();
        let now = Instant::now();
        for watcher in state.watchers.values_mut() {
            state.epochs += 1;
            watcher.begin(state.epochs, now);
        }
        let all = state.watchers.iter().map(|(session, watcher)| Believer {
            session: *session,
            number: watcher.last(),
            until: watcher.leased_until,
        });
        all.collect()
    }

    /// Waits until these have acknowledged, or believe it no longer.
    pub async fn forgotten(&self, believers: Vec<Believer>) {
        for believer in believers {
            while let Some(event) = self.event_for(&believer) {
                let left = believer.until.saturating_duration_since(Instant::now());
                if weft_reactor::timeout(left, event.wait()).await.is_err() {
                    self.has_not_answered(&believer);
                    break;
                }
            }
        }
    }

    /// The lease of the believer was waited for to its end.
    fn has_not_answered(&self, believer: &Believer) {
        let mut state = self.state.borrow_mut();
        let Some(watcher) = state.watchers.get_mut(&believer.session) else { return };
        let now = Instant::now();
        watcher.waiters.retain(|(number, _)| *number != believer.number);
        let Some(since) = watcher.behind_since.replace(now) else { return };
        watcher.note_late(now.saturating_duration_since(since), now);
    }

    /// Refuses a client that has let others wait for too long.
    fn check_silence(&self, session: SessionId) -> Result<(), Refusal> {
        let state = &mut *self.state.borrow_mut();
        let now = Instant::now();
        let Some(watcher) = state.watchers.get_mut(&session) else { return Ok(()) };
        if watcher.is_silent(now) {
            let text = format!(
                "this client did not acknowledge changes by others in time, which waited for it; it may cache nothing for {} s",
                SILENT.as_secs()
            );
            return Err(Refusal::new(Status::Busy, text));
        }
        if watcher.silent_until.is_some() {
            // Its leases are over by long.
            state.epochs += 1;
            *watcher = Watcher::new(state.epochs, now);
        }
        Ok(())
    }

    /// Set when the believer has acknowledged; `None` if that is so already. Of a client that is gone nobody will set it.
    fn event_for(&self, believer: &Believer) -> Option<Rc<Event>> {
        let mut state = self.state.borrow_mut();
        let event = Rc::new(Event::new());
        if let Some(watcher) = state.watchers.get_mut(&believer.session) {
            if watcher.acknowledged >= believer.number {
                return None;
            }
            watcher.waiters.push((believer.number, event.clone()));
        }
        Some(event)
    }

    /// Waits until nobody believes anything of before the start of this server.
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

    fn no_longer_awaited(&self, session: SessionId) {
        let mut state = self.state.borrow_mut();
        state.awaited.remove(&session);
        if state.awaited.is_empty() {
            self.nobody_awaited.set();
        }
    }

    fn has_ended(&self, session: SessionId) -> bool {
        self.state.borrow().ended.contains(&session)
    }

    /// `by_request`: the client has said so; otherwise it is gone, and there is nothing to remember.
    fn note_end(&self, session: SessionId, by_request: bool) {
        let ended = &mut self.state.borrow_mut().ended;
        let _ = if by_request { ended.insert(session) } else { ended.remove(&session) };
    }

    fn add(&self, session: SessionId) {
        let mut state = self.state.borrow_mut();
        state.epochs += 1;
        let watcher = Watcher::new(state.epochs, Instant::now());
        state.watchers.insert(session, watcher);
    }

    /// Takes a session out; whoever waits for it waits until its leases end, unless it says that it believes nothing.
    pub fn remove(&self, session: SessionId, believes_nothing: bool) {
        let watcher = self.state.borrow_mut().watchers.remove(&session);
        let Some(watcher) = watcher else { return };
        watcher.bell.set();
        if believes_nothing {
            self.state.borrow_mut().leases.end(session);
            watcher.waiters.iter().for_each(|(_, event)| event.set());
        }
    }

    /// Takes the acknowledgement, and gives the reply, or what to wait for.
    fn turn(&self, session: SessionId, request: &WatchRequest) -> Result<WatchReply, Rc<Event>> {
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
}

impl State {
    fn push(&mut self, who: &Concerned, change: Change, believers: &mut Vec<Believer>) {
        let (mut number, now) = (u64::MAX, Instant::now());
        if let Some(watcher) = self.watchers.get_mut(&who.session) {
            if watcher.push(change, now) {
                self.epochs += 1;
                watcher.begin(self.epochs, now);
            }
            number = watcher.last();
        }
        match believers.iter_mut().find(|believer| believer.session == who.session) {
            Some(believer) => {
                believer.number = number;
                believer.until = believer.until.max(who.until);
            }
            None => believers.push(Believer { session: who.session, number, until: who.until }),
        }
    }
}

fn nothing(request: &WatchRequest) -> WatchReply {
    WatchReply { epoch: request.epoch, reset: false, last: request.acknowledged, changes: Vec::new() }
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Tells a client what others have changed of what it was told; waits for it where there is nothing.
    pub async fn watch(&self, call: &Call, request: WatchRequest) -> Result<Answer, Refusal> {
        let session = call.session;
        if request.end {
            self.end_watch(session, true);
            return Ok(Answer::of(&nothing(&request)));
        }
        if self.watchers.has_ended(session) {
            return Ok(Answer::of(&nothing(&request)));
        }
        self.watchers.check_silence(session)?;
        if !self.watchers.watches(session) {
            let mut namespace = self.namespace.borrow_mut();
            let mut op = namespace.begin();
            op.add_watcher(session);
            op.commit()?;
            self.watchers.add(session);
        }
        let reply = match self.watchers.turn(session, &request) {
            Ok(reply) => reply,
            Err(bell) => {
                // The client has forgotten what it had been told by another run of this server.
                self.watchers.no_longer_awaited(session);
                if !request.at_once {
                    let _ = weft_reactor::timeout(HEARTBEAT, bell.wait()).await;
                    self.watchers.check_silence(session)?;
                }
                self.watchers.say(session, &request)
            }
        };
        Ok(Answer::of(&reply))
    }

    /// The session watches no longer.
    pub(super) fn end_watch(&self, session: SessionId, believes_nothing: bool) {
        let watched = self.watchers.watches(session);
        self.watchers.remove(session, believes_nothing);
        self.watchers.note_end(session, believes_nothing);
        if believes_nothing {
            self.watchers.no_longer_awaited(session);
        }
        if !watched {
            return;
        }
        let mut namespace = self.namespace.borrow_mut();
        let mut op = namespace.begin();
        op.remove_watcher(session);
        if let Err(error) = op.commit() {
            crate::log::warning!("meta", "cannot forget that a client watched: {error}");
        }
    }

    /// Forgets the clients that watched before a restart and never came back; what they were told is over.
    pub(super) fn forget_old_watchers(&self) {
        let mut namespace = self.namespace.borrow_mut();
        let noted = namespace.watchers().unwrap_or_default();
        let mut op = namespace.begin();
        for session in noted.into_iter().filter(|session| !self.watchers.watches(*session)) {
            op.remove_watcher(session);
        }
        if let Err(error) = op.commit() {
            crate::log::warning!("meta", "cannot forget the clients that watched before: {error}");
        }
    }

    /// Something was changed, nobody says what: waits until no client believes anything of before.
    pub(super) async fn forgotten_by_all(&self) {
        during(Part::Clients, self.watchers.all_returned()).await;
        during(Part::Mounts, self.watchers.forgotten(self.watchers.tell_all())).await;
    }

    /// A client is told of an inode by number, or of what a name in a directory leads to (or that it leads nowhere).
    pub(super) fn told(&self, call: &Call, at: Option<&At>, ino: Option<u64>) {
        let dir = at.filter(|at| !at.path.is_empty()).map(|at| at.dir);
        if let Some(about) = ino.or(dir) {
            spent::note_ino(about);
        }
        self.watchers.told(call.session, dir.into_iter().chain(ino));
    }

    /// Attributes for a client that watches, of the directory that it named by number and one name.
    pub(super) fn parent_told(
        &self,
        op: &mut Op<'_, E>,
        call: &Call,
        at: &At,
    ) -> Result<Option<Attr>, Refusal> {
        if !self.watchers.watches(call.session) || at.path.is_empty() || at.path.contains(&b'/') {
            return Ok(None);
        }
        Ok(Some(t::attr(&op.getattr(at.dir)?)))
    }
}

impl Watchers {
    fn say(&self, session: SessionId, request: &WatchRequest) -> WatchReply {
        let mut state = self.state.borrow_mut();
        let watcher = state.watchers.get_mut(&session);
        watcher.and_then(|watcher| watcher.reply(request)).unwrap_or_else(|| nothing(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_meta::TouchedInode;

    const AUTHOR: SessionId = SessionId([1; 16]);
    const HOLDER: SessionId = SessionId([2; 16]);

    /// A client that watches and has forgotten everything of before.
    fn watching() -> (Watchers, WatchRequest) {
        let watchers = Watchers::new(Vec::new());
        watchers.add(HOLDER);
        let begin = WatchRequest { epoch: 0, acknowledged: 0, at_once: true, end: false };
        let reply = heard(&watchers, &begin);
        assert!(reply.reset);
        (watchers, WatchRequest { epoch: reply.epoch, acknowledged: reply.last, ..begin })
    }

    fn heard(watchers: &Watchers, request: &WatchRequest) -> WatchReply {
        let _ = watchers.turn(HOLDER, request);
        watchers.say(HOLDER, request)
    }

    fn file(ino: u64) -> Touched {
        Touched { inodes: vec![TouchedInode { ino, data: true }], names: Vec::new() }
    }

    #[test]
    fn who_was_told_is_waited_for_until_he_has_acknowledged() {
        let (watchers, request) = watching();
        assert!(watchers.tell(AUTHOR, file(7)).is_empty());
        watchers.told(HOLDER, [7]);
        assert!(watchers.tell(HOLDER, file(7)).is_empty());
        let believers = watchers.tell(AUTHOR, file(7));
        assert_eq!(believers.len(), 1);
        let reply = heard(&watchers, &request);
        assert_eq!(reply.changes.iter().map(|change| change.ino).collect::<Vec<_>>(), [7]);
        assert!(watchers.event_for(&believers[0]).is_some());
        heard(&watchers, &WatchRequest { acknowledged: reply.last, ..request });
        assert!(watchers.event_for(&believers[0]).is_none());
    }

    #[test]
    fn who_does_not_answer_is_waited_for_once_also_by_repeated_requests() {
        let (watchers, _) = watching();
        watchers.told(HOLDER, [7, 8]);
        let first = watchers.tell(AUTHOR, file(7));
        std::thread::sleep(Duration::from_millis(2));
        let until = |believers: &[Believer]| believers.iter().map(|one| one.until).collect::<Vec<_>>();
        assert_eq!(until(&watchers.all_believers()), until(&first));
        assert_eq!(until(&watchers.tell(AUTHOR, file(8))), until(&first));
    }

    #[test]
    fn who_never_acknowledges_has_no_lease_beyond_the_one_of_before() {
        let (watchers, _) = watching();
        watchers.told(HOLDER, [7]);
        let first = watchers.tell(AUTHOR, file(7));
        std::thread::sleep(Duration::from_millis(2));
        watchers.told(HOLDER, [7]);
        let again = watchers.tell(AUTHOR, file(7));
        assert_eq!(again[0].until, first[0].until, "asking again does not make a lease longer");
        let long_ago = Instant::now() - LEASE;
        watchers.state.borrow_mut().watchers.get_mut(&HOLDER).unwrap().heard_at = long_ago;
        watchers.told(HOLDER, [8]);
        assert!(watchers.tell(AUTHOR, file(8)).is_empty());
    }

    #[test]
    fn asking_without_acknowledging_is_no_sign_of_life() {
        let (watchers, request) = watching();
        watchers.told(HOLDER, [7]);
        watchers.tell(AUTHOR, file(7));
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
        while watchers.check_silence(HOLDER).is_ok() {
            refused_after += 1;
            watchers.told(HOLDER, [7]);
            watchers.tell(AUTHOR, file(7));
            let before = Instant::now() - Duration::from_secs(3);
            watchers.state.borrow_mut().watchers.get_mut(&HOLDER).unwrap().behind_since = Some(before);
            request.acknowledged = heard(&watchers, &request).last;
            heard(&watchers, &request);
        }
        assert_eq!(refused_after, 4, "four times three seconds");
        watchers.state.borrow_mut().watchers.get_mut(&HOLDER).unwrap().silent_until = Some(Instant::now());
        assert!(watchers.check_silence(HOLDER).is_ok());
        assert!(heard(&watchers, &request).reset);
    }

    #[test]
    fn after_a_repair_every_client_forgets_everything() {
        let (watchers, request) = watching();
        watchers.told(HOLDER, [7]);
        let believers = watchers.tell_all();
        assert_eq!(believers.len(), 1);
        let reply = heard(&watchers, &request);
        assert!(reply.reset && watchers.event_for(&believers[0]).is_some());
        heard(&watchers, &WatchRequest { epoch: reply.epoch, acknowledged: reply.last, ..request });
        assert!(watchers.event_for(&believers[0]).is_none());
    }

    #[test]
    fn who_has_lost_track_forgets_everything() {
        let (watchers, request) = watching();
        let mut believers = Vec::new();
        for ino in 0..=QUEUE_MAX as u64 {
            watchers.told(HOLDER, [ino]);
            believers = watchers.tell(AUTHOR, file(ino));
        }
        let reply = heard(&watchers, &request);
        assert!(reply.reset && reply.changes.is_empty());
        heard(&watchers, &WatchRequest { epoch: reply.epoch, acknowledged: reply.last, ..request });
        assert!(watchers.event_for(&believers[0]).is_none());
    }
}
