//! A client's session: it lives while it has connections, and for a while after, so that a client that reconnects finds its
//! files open.

use super::MetaPart;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;
use weft_meta::{Engine, SessionId};
use weft_wire::messages::OpenId;

/// How long a client may stay away before what it held is given back.
pub(crate) const SESSION_GRACE: Duration = Duration::from_secs(10);

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

impl<E: Engine + 'static> MetaPart<E> {
    /// Notes a connection of this client. Returns the run of its session.
    pub fn session_connected(&self, session: SessionId, boot_id: [u8; 16]) -> u64 {
        let next_run = &self.sessions.next_run;
        let mut table = self.sessions.table.borrow_mut();
        let connections = table.entry(session).or_insert_with(|| Connections {
            run: next_run.replace(next_run.get() + 1),
            ..Connections::default()
        });
        connections.alive += 1;
        connections.made += 1;
        connections.boot_id = boot_id;
        connections.run
    }

    /// The run of a session.
    pub(super) fn run_of(&self, session: SessionId) -> u64 {
        self.sessions.table.borrow().get(&session).map_or(0, |connections| connections.run)
    }

    /// Whether this open counts in this run of its session. `closed`: opens that end in the same operation.
    pub(super) fn counts(&self, session: SessionId, open: &OpenId, closed: &[u64]) -> bool {
        let table = self.sessions.table.borrow();
        let is_reopened =
            |known: &Connections| known.reopened.contains(&open.number) && !closed.contains(&open.number);
        let counts = |known: &Connections| known.run == open.run || is_reopened(known);
        table.get(&session).map_or(open.run == 0, counts)
    }

    /// Opens of before count from now on, and others have ended.
    pub(super) fn count_opens(&self, session: SessionId, reopened: &[u64], closed: &[u64]) {
        if reopened.is_empty() && closed.is_empty() {
            return;
        }
        if let Some(connections) = self.sessions.table.borrow_mut().get_mut(&session) {
            connections.reopened.extend(reopened);
            connections.reopened.retain(|number| !closed.contains(number));
        }
    }

    /// Whether two clients run on one host, so that one may be told the number of a process of the other.
    pub fn share_a_host(&self, one: SessionId, other: SessionId) -> bool {
        let table = self.sessions.table.borrow();
        let host = |session| table.get(&session).map(|connections| connections.boot_id);
        one == other || host(one).is_some_and(|boot_id| boot_id != [0; 16] && host(other) == Some(boot_id))
    }

    /// Notes the end of one; when it was the last and none comes within the grace, the session is over.
    pub fn session_disconnected(self: &Rc<Self>, session: SessionId) {
        let mut table = self.sessions.table.borrow_mut();
        let Some(connections) = table.get_mut(&session) else { return };
        connections.alive -= 1;
        if connections.alive > 0 {
            return;
        }
        let (part, made) = (self.clone(), connections.made);
        weft_reactor::spawn(async move {
            weft_reactor::sleep(SESSION_GRACE).await;
            part.end_session(session, made);
        });
    }

    fn end_session(&self, session: SessionId, made: u64) {
        let mut table = self.sessions.table.borrow_mut();
        if table.get(&session).is_none_or(|connections| connections.made != made) {
            return;
        }
        table.remove(&session);
        self.end_watch(session, false);
        let ended = self.namespace.borrow_mut().change(|op| op.session_gone(session));
        if let Err(error) = ended {
            crate::log::warning!("meta", "cannot end the session of a client that is gone: {error}");
        }
        drop(table);
        self.locks_of_gone(session);
        self.poke_garbage();
    }
}
