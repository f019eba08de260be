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
    /// Its first value in this run of the server.
    first_run: u64,
}

impl Default for Sessions {
    fn default() -> Sessions {
        let next_run = crate::clock::since_1970().as_nanos() as u64;
        Sessions { table: RefCell::default(), next_run: Cell::new(next_run), first_run: next_run }
    }
}

#[derive(Default)]
struct Connections {
    /// See [`weft_wire::messages::ProveReply::epoch`].
    run: u64,
    /// It began in the time of grace after a restart, so nothing of before was given up meanwhile.
    since_grace: bool,
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
    pub fn connected(&self, session: SessionId, boot_id: [u8; 16], in_grace: bool) -> u64 {
        let mut table = self.table.borrow_mut();
        let connections = table.entry(session).or_insert_with(|| Connections {
            run: self.next_run.replace(self.next_run.get() + 1),
            since_grace: in_grace,
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

    /// Whether the counter of an open that was made in `run` of its session may begin now, where none is known: not if the
    /// session was given up since then, for the counter went with it. Of a session that is away nothing is known here.
    pub fn may_begin_counter(&self, session: SessionId, run: u64) -> bool {
        let table = self.table.borrow();
        let has_been_here =
            |known: &Connections| known.run == run || run < self.first_run && known.since_grace;
        table.get(&session).is_none_or(has_been_here)
    }

    /// Whether two clients run on one host, so that one may be told the number of a process of the other.
    pub fn share_a_host(&self, one: SessionId, other: SessionId) -> bool {
        let table = self.table.borrow();
        let host = |session| table.get(&session).map(|connections| connections.boot_id);
        one == other || host(one).is_some_and(|boot_id| boot_id != [0; 16] && host(other) == Some(boot_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_does_not_begin_again_once_its_session_was_given_up() {
        let session = SessionId([1; 16]);
        let sessions = Sessions::default();
        assert!(sessions.may_begin_counter(session, 7), "nobody was here yet");
        let run = sessions.connected(session, [0; 16], false);
        assert!(sessions.may_begin_counter(session, run));
        assert!(
            !sessions.may_begin_counter(session, run - 1),
            "of before the restart; it came back too late"
        );
        let made = sessions.disconnected(session).unwrap();
        assert!(sessions.forget(session, made));
        assert!(sessions.connected(session, [0; 16], false) > run);
        assert!(!sessions.may_begin_counter(session, run));

        let sessions = Sessions::default();
        sessions.connected(session, [0; 16], true);
        assert!(sessions.may_begin_counter(session, 7), "it came back in the time of grace");
    }
}
