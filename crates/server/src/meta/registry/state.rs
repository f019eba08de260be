//! What is known of the storages in this run of the metadata server, besides what is in the store.

use super::judge::{Progress, Round};
use crate::shared::Confirmed;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_meta::{OwnStorage, ServerRecord, SessionId};

/// How long a restarted metadata server waits for all I/O servers that it knows, and for all that have agreed
/// to note its run.
pub(crate) const SETTLING: Duration = Duration::from_secs(1);
/// A server that was not heard of for so long is away, also where its connection seems to stand.
const SILENCE_MAX: Duration = Duration::from_secs(4);

/// What the metadata server knows of the cluster's storages, besides what is in its store.
pub(crate) struct Registry {
    pub(super) name: String,
    pub(super) own: Cell<OwnStorage>,
    /// This run of the metadata server.
    pub(super) run: [u8; 16],
    pub(super) present: RefCell<BTreeMap<u16, Presence>>,
    /// How often [`SETTLING`] has passed since the store was opened.
    waits: Cell<u32>,
    /// The same when the store's mark became this run's, rounded up.
    told_at: Cell<Option<u32>>,
    pub(super) confirmed: Confirmed,
    pub(super) restore: Restore,
}

/// Whether an operator wants a store that is older than the I/O servers know, and whether what that takes is
/// done.
#[derive(Clone, Default)]
pub(crate) struct Restore {
    pub wanted: bool,
    pub done: Rc<Cell<bool>>,
    /// Keys that I/O servers know to be revoked.
    pub revoked: Rc<RefCell<BTreeSet<[u8; 16]>>>,
}

impl Restore {
    pub(super) fn is_under_way(&self) -> bool {
        self.wanted && !self.done.get()
    }
}

/// An I/O server that has agreed in this run of the metadata server.
pub(super) struct Presence {
    /// The connection over which it was heard of last, and when; `None`: that is gone.
    pub heard: Option<(SessionId, Instant)>,
    /// It knows that missing data files of smaller inode numbers are lost.
    pub lost_below_ino: u64,
    /// It has noted this run, durably.
    pub knows_run: bool,
}

impl Presence {
    pub(super) fn is_up(&self) -> bool {
        self.heard.is_some_and(|(_, at)| at.elapsed() < SILENCE_MAX)
    }
}

impl Registry {
    /// Of a store that was just opened.
    pub fn new(
        name: String,
        own: OwnStorage,
        run: [u8; 16],
        confirmed: Confirmed,
        restore: Restore,
    ) -> Registry {
        let (own, waits, told_at) = (Cell::new(own), Cell::new(0), Cell::new(None));
        Registry { name, own, run, present: RefCell::default(), waits, told_at, confirmed, restore }
    }

    /// The store's mark is this one of this run from now on, durably.
    pub(super) fn is_at(&self, mark: u64) {
        if self.own.get().run != self.run {
            self.told_at.set(Some(self.waits.get() + 1));
        }
        self.own.set(OwnStorage { mark, run: self.run, ..self.own.get() });
    }

    /// What follows from who has come.
    pub(super) fn progress(&self, known: &[(u16, ServerRecord)]) -> Progress {
        let present = self.present.borrow();
        let has_agreed = |(id, record): &&(u16, ServerRecord)| {
            present.get(id).is_some_and(|server| server.lost_below_ino == record.lost_below_ino)
        };
        let knows_run =
            |(id, _): &&(u16, ServerRecord)| present.get(id).is_some_and(|server| server.knows_run);
        let agreed = known.iter().filter(has_agreed).count();
        let knowing = known.iter().filter(has_agreed).filter(knows_run).count();
        let is_over = |since: u32| !self.restore.wanted && self.waits.get() > since;
        let round = Round { known: known.len(), agreed, knowing };
        round.progress(is_over(0), self.told_at.get().map(is_over))
    }

    /// [`SETTLING`] has passed once more.
    pub(super) fn has_waited(&self) {
        self.waits.set(self.waits.get().saturating_add(1));
    }

    pub(super) fn is_up(&self, id: u16) -> bool {
        self.present.borrow().get(&id).is_some_and(Presence::is_up)
    }
}
