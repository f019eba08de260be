//! One client that watches: the changes that it has still to acknowledge, and how far it may be relied on.
//!
//! ```text
//!   number     1   2   3   4   5   6          base 2: the client has acknowledged 1 and 2
//!                      └── queue ──┘          last 6; delivered 4: it was sent 3 and 4
//! ```

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_reactor::Event;
use weft_wire::limits::CHANGES_PER_MESSAGE_MAX;
use weft_wire::messages::{Change, WatchReply, WatchRequest};

use super::leases::LEASE;
use super::penalties::Party;

/// An acknowledgement that takes longer is late.
const LATE: Duration = Duration::from_secs(1);
/// Lateness of one client is added up for so long; when it comes to [`LEASE`], the client may not watch for as long.
pub(super) const SILENT: Duration = Duration::from_secs(60);
/// Changes that wait to be acknowledged by one client before it must forget everything.
pub(super) const QUEUE_MAX: usize = 8192;

/// One client's changes, numbered from 1.
pub(super) struct Watcher {
    pub party: Party,
    pub epoch: u64,
    /// Number of the last change before those in the queue.
    base: u64,
    pub acknowledged: u64,
    queue: VecDeque<Change>,
    /// Set when the request that waits is to be answered.
    pub bell: Rc<Event>,
    pub waiters: Vec<(u64, Rc<Event>)>,
    /// No lease of this client lasts longer.
    pub leased_until: Instant,
    /// When it last asked, having acknowledged all changes that it was sent.
    pub heard_at: Instant,
    /// Number of the last change that it was sent in this epoch; `None`: it does not know of the epoch.
    delivered: Option<u64>,
    /// Since when it has something to acknowledge.
    pub behind_since: Option<Instant>,
    /// By how much it was late, and since when that is added up.
    late: Duration,
    late_since: Instant,
    /// It was late too often.
    pub silent_until: Option<Instant>,
}

impl Watcher {
    pub fn new(party: Party, epoch: u64, now: Instant) -> Watcher {
        Watcher {
            party,
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

    pub fn last(&self) -> u64 {
        self.base + self.queue.len() as u64
    }

    /// Returns whether there are too many to be kept.
    pub fn push(&mut self, change: Change, now: Instant) -> bool {
        self.behind_since.get_or_insert(now);
        self.queue.push_back(change);
        self.bell.set();
        self.queue.len() > QUEUE_MAX
    }

    /// Begins a new epoch: the client is to forget everything, which has a number of its own behind all that there was.
    pub fn begin(&mut self, epoch: u64, now: Instant) {
        self.behind_since.get_or_insert(now);
        self.delivered = None;
        self.base = self.last() + 1;
        self.queue.clear();
        self.epoch = epoch;
        self.bell.set();
    }

    /// How long its leases last that are granted now.
    pub fn lease_until(&self, now: Instant) -> Instant {
        now.min(self.heard_at) + LEASE
    }

    /// It has let others wait for so long. Returns whether that was too much.
    pub fn note_late(&mut self, took: Duration, now: Instant) -> bool {
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

    pub fn acknowledge(&mut self, request: &WatchRequest, now: Instant) {
        let knows_all = match self.delivered {
            Some(delivered) => request.epoch == self.epoch && request.acknowledged >= delivered,
            None => true,
        };
        if knows_all {
            self.heard_at = now;
        }
        self.note_acknowledged(request, now);
    }

    /// As [`Watcher::acknowledge`], without a right to leases.
    pub fn note_acknowledged(&mut self, request: &WatchRequest, now: Instant) {
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

    /// The reply to `request`, if there is something to report.
    pub fn reply(&mut self, request: &WatchRequest) -> Option<WatchReply> {
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
