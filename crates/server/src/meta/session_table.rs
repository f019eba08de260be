//! Which clients are connected, and which of their opens count.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use weft_meta::SessionId;
use weft_wire::messages::OpenId;

/// Clients, from their first connection to the end of their sessions.
pub(super) struct Sessions {
    table: RefCell<HashMap<SessionId, Connections>>,
    /// Greater than that of any session before, of earlier runs of the server too.
    next_run: Cell<u64>,
}

impl Default for Sessions {
    fn default() -> Sessions {
        let next_run = crate::clock::since_1970().as_nanos() as u64;
        Sessions { table: RefCell::default(), next_run: Cell::new(next_run) }
    }
}

#[derive(Default)]
struct Connections {
    /// See [`weft_wire::messages::ProveReply::epoch`].
    run: u64,
    /// Numbers of opens that were made before this run, and count in it.
    reopened: HashSet<u64>,
    alive: u32,
    /// Counted up with every connection, to see whether the client was here during the grace.
    made: u64,
    /// Of the client's host; zeros where it is not known.
    boot_id: [u8; 16],
}

impl Sessions {
    /// Notes a connection of this client. Returns the run of its session.
    pub fn connected(&self, session: SessionId, boot_id: [u8; 16]) -> u64 {
        let mut table = self.table.borrow_mut();
        let connections = table.entry(session).or_insert_with(|| Connections {
            run: self.next_run.replace(self.next_run.get() + 1),
            ..Connections::default()
        });
        connections.alive += 1;
        connections.made += 1;
        connections.boot_id = boot_id;
        connections.run
    }

    /// Notes the end of a connection. Where it was the last one: how many the client has made.
    pub fn disconnected(&self, session: SessionId) -> Option<u64> {
        let mut table = self.table.borrow_mut();
        let connections = table.get_mut(&session)?;
        connections.alive -= 1;
        (connections.alive == 0).then_some(connections.made)
    }

    /// Forgets a client that has made no more connections than this. Returns whether it did.
    pub fn forget(&self, session: SessionId, made: u64) -> bool {
        let mut table = self.table.borrow_mut();
        let is_away = table.get(&session).is_some_and(|connections| connections.made == made);
        is_away && table.remove(&session).is_some()
    }

    /// The run of a session.
    pub fn run_of(&self, session: SessionId) -> u64 {
        self.table.borrow().get(&session).map_or(0, |connections| connections.run)
    }

    /// Whether this open counts in this run of its session. `closed`: opens that end in the same operation.
    pub fn counts(&self, session: SessionId, open: &OpenId, closed: &[u64]) -> bool {
        let table = self.table.borrow();
        let is_reopened =
            |known: &Connections| known.reopened.contains(&open.number) && !closed.contains(&open.number);
        let counts = |known: &Connections| known.run == open.run || is_reopened(known);
        table.get(&session).map_or(open.run == 0, counts)
    }

    /// Opens of before count from now on, and others have ended.
    pub fn count_opens(&self, session: SessionId, reopened: &[u64], closed: &[u64]) {
        if reopened.is_empty() && closed.is_empty() {
            return;
        }
        if let Some(connections) = self.table.borrow_mut().get_mut(&session) {
            connections.reopened.extend(reopened);
            connections.reopened.retain(|number| !closed.contains(number));
        }
    }

    /// Whether two clients run on one host, so that one may be told the number of a process of the other.
    pub fn share_a_host(&self, one: SessionId, other: SessionId) -> bool {
        let table = self.table.borrow();
        let host = |session| table.get(&session).map(|connections| connections.boot_id);
        one == other || host(one).is_some_and(|boot_id| boot_id != [0; 16] && host(other) == Some(boot_id))
    }
}
