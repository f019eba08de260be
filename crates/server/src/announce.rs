//! Sending I/O servers the list of revoked keys, by the metadata server.
//!
//! ```text
//!   revoke ─► announce ─► a task for each I/O server that is behind: SetRevoked ─► it confirms
//!                                        it is down: tried again every second
//!                                        it is up: sent again every 30 s, for its directory may be a new one
//! ```
//!
//! While no key is revoked nothing is sent to anybody.

use crate::current::Peers;
use crate::log;
use crate::peer::PeerError;
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_reactor::{Notify, timeout};
use weft_wire::messages::SetRevokedRequest;

/// How long a server that is down is left alone.
const RETRY: Duration = Duration::from_secs(1);
/// How often a server that is up gets the list again.
const AGAIN: Duration = Duration::from_secs(30);
/// How often it looks for servers that are new in the map.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The list, and which servers have it. Clones are the same.
#[derive(Clone)]
pub(crate) struct Announcer {
    shared: Rc<Shared>,
}

struct Shared {
    state: RefCell<State>,
    changed: Notify,
    peers: Rc<Peers>,
}

struct State {
    /// Number of the list below; 0: nothing was ever revoked.
    list: u64,
    ids: Vec<[u8; 16]>,
    /// By id.
    servers: BTreeMap<u16, Receiver>,
}

/// An I/O server that is to have the list.
struct Receiver {
    /// The list that it has confirmed.
    list: u64,
    is_being_sent: bool,
    next: Instant,
}

impl Announcer {
    /// For these servers, which know nothing; those that are joining get the list when they have come.
    pub fn new(peers: Rc<Peers>) -> Announcer {
        let state = State { list: 0, ids: Vec::new(), servers: BTreeMap::new() };
        Announcer { shared: Rc::new(Shared { state: RefCell::new(state), changed: Notify::new(), peers }) }
    }

    /// With the servers that the map has now.
    fn state(&self) -> RefMut<'_, State> {
        let mut state = self.shared.state.borrow_mut();
        for id in self.shared.peers.ids() {
            let new = || Receiver { list: 0, is_being_sent: false, next: Instant::now() };
            state.servers.entry(id).or_insert_with(new);
        }
        state
    }

    /// These keys are revoked from now on. Returns the number of the list.
    pub fn announce(&self, ids: Vec<[u8; 16]>) -> u64 {
        let mut state = self.state();
        state.list += 1;
        state.ids = ids;
        state.servers.values_mut().for_each(|server| server.next = Instant::now());
        self.shared.changed.notify();
        state.list
    }

    /// Names of servers that have not confirmed this list or a later one.
    pub fn waiting(&self, list: u64) -> Vec<String> {
        let state = self.state();
        let behind = state.servers.iter().filter(|(_, server)| server.list < list);
        behind.filter_map(|(id, _)| Some(self.shared.peers.get(*id)?.name())).collect()
    }

    /// Sends the list to whoever is to have it, as long as the reactor runs.
    pub async fn run(self) {
        loop {
            for id in self.take_due() {
                let announcer = self.clone();
                weft_reactor::spawn(async move { announcer.send(id).await });
            }
            // Without a notice it is time to look at the map again.
            let _ = timeout(LOOK_EVERY, self.shared.changed.notified()).await;
        }
    }

    /// Servers that are to get the list now, which are noted as being sent it.
    fn take_due(&self) -> Vec<u16> {
        let (mut state, now) = (self.state(), Instant::now());
        if state.list == 0 {
            return Vec::new();
        }
        let due = state.servers.iter_mut().filter(|(_, server)| !server.is_being_sent && server.next <= now);
        let take = |(id, server): (&u16, &mut Receiver)| {
            server.is_being_sent = true;
            *id
        };
        due.map(take).collect()
    }

    async fn send(&self, id: u16) {
        let (list, ids) = {
            let state = self.state();
            (state.list, state.ids.clone())
        };
        let Some(peer) = self.shared.peers.get(id) else { return };
        // A connection that has hung since is not waited for: connecting shows within seconds that a server is away.
        let sent = peer.apart().call(&SetRevokedRequest { ids }).await;
        let mut state = self.state();
        let is_current = state.list == list;
        let Some(server) = state.servers.get_mut(&id) else { return };
        server.is_being_sent = false;
        match sent {
            Ok(_) => {
                server.list = list;
                server.next = Instant::now() + if is_current { AGAIN } else { Duration::ZERO };
            }
            Err(error) => {
                server.next = Instant::now() + RETRY;
                log_failure(&peer.name(), &error);
            }
        }
        self.shared.changed.notify();
    }
}

fn log_failure(server: &str, error: &PeerError) {
    if log::once_a_minute(&format!("send {server} the revoked keys")) {
        log::warning!("meta", "cannot tell {server} which keys are revoked, will try again: {error}");
    }
}
