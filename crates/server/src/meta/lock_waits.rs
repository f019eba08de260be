//! The table of locks, who has some, and the requests that wait for one.

use super::lock_table::{LockTable, Ticket};
use crate::answer::Refusal;
use crate::both::either;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Instant;
use weft_meta::Locker;
use weft_reactor::Event;
use weft_wire::Status;
use weft_wire::messages::LockState;

/// The table, and the requests whose replies are kept back.
#[derive(Default)]
pub(super) struct Locks {
    pub table: RefCell<LockTable>,
    kept_back: RefCell<HashMap<Ticket, Rc<KeptBack>>>,
    /// A task looks at waits that are due.
    goes_on: Cell<bool>,
    /// Who may hold locks, as the store has it.
    pub lockers: RefCell<HashSet<Locker>>,
    /// Who may have held some before the server was started, and has not come back.
    pub awaited: RefCell<HashSet<Locker>>,
    /// An earlier release has left word that somebody may have held some, but not who.
    pub awaits_unnamed: Cell<bool>,
    /// Set when it is known who held what before the server was started.
    pub grace_over: Event,
    /// Set when the server stops.
    pub stopping: Event,
}

/// A wait, until it ends.
#[derive(Default)]
struct KeptBack {
    ended: Event,
    granted: Cell<bool>,
}

impl Locks {
    /// Waits for a place in a queue to be called up.
    pub async fn keep_back(&self, ticket: Ticket, until: Instant) -> Result<LockState, Refusal> {
        let wait = self.kept_back.borrow_mut().entry(ticket).or_default().clone();
        let time = until.saturating_duration_since(Instant::now());
        let _ = weft_reactor::timeout(time, either(wait.ended.wait(), self.stopping.wait())).await;
        match (wait.ended.is_set(), wait.granted.get()) {
            (true, true) => Ok(LockState::Granted),
            (true, false) => Ok(LockState::Cancelled),
            _ if self.stopping.is_set() => Err(Refusal::new(Status::ShuttingDown, "")),
            _ => Ok(LockState::Waiting),
        }
    }

    /// Wakes the requests whose waits are over. Where more waits are due than a slice of them, goes on between other requests.
    pub fn end_waits(self: &Rc<Self>) {
        self.wake_ended();
        if !self.table.borrow_mut().go_on() {
            return self.wake_ended();
        }
        if self.goes_on.replace(true) {
            return;
        }
        let locks = self.clone();
        weft_reactor::spawn(async move {
            while locks.table.borrow_mut().go_on() {
                locks.wake_ended();
                weft_reactor::yield_now().await;
            }
            locks.goes_on.set(false);
            locks.wake_ended();
        });
    }

    /// Waits until no waits of this file are due, which come before a new request.
    pub async fn settled(&self, ino: u64) {
        while !self.table.borrow().is_settled(ino) {
            weft_reactor::yield_now().await;
        }
    }

    fn wake_ended(&self) {
        for (ticket, granted) in self.table.borrow_mut().take_ended() {
            if let Some(wait) = self.kept_back.borrow_mut().remove(&ticket) {
                wait.granted.set(granted);
                wait.ended.set();
            }
        }
    }

    /// Waits until it is known who held what before the server was started. Returns whether it is.
    pub async fn grace_is_over_by(&self, until: Instant) -> bool {
        let time = until.saturating_duration_since(Instant::now());
        let _ = weft_reactor::timeout(time, either(self.grace_over.wait(), self.stopping.wait())).await;
        self.grace_over.is_set()
    }
}
