//! Telling I/O servers which keys are revoked, by the metadata server.
//!
//! ```text
//!   revoke ─► announce ─► a thread for each I/O server that is behind: SetRevoked ─► it confirms
//!                                        it is down: tried again every second
//!                                        it is up: told again every 30 s, for its directory may be a new one
//! ```
//!
//! While no key is revoked nothing is told to anybody.

use crate::current::CurrentMap;
use crate::key_ring::KeyRing;
use crate::log;
use crate::peer::{Peer, PeerError};
use crate::stop::StopFlag;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_wire::messages::{ServerInfo, SetRevokedRequest, server_state};

/// How long a server that is down is left alone.
const RETRY: Duration = Duration::from_secs(1);
/// How often a server that is up is told again.
const AGAIN: Duration = Duration::from_secs(30);
/// How long a wait goes on before it looks whether the server is to stop.
const WAIT_STEP: Duration = Duration::from_millis(250);

/// The list, and which servers have it. Clones are the same.
#[derive(Clone)]
pub(crate) struct Announcer {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    map: CurrentMap,
}

struct State {
    /// Number of the list below; 0: nothing was ever revoked.
    list: u64,
    ids: Vec<[u8; 16]>,
    /// Of the map of this version, by id.
    version: u32,
    servers: BTreeMap<u16, Told>,
}

struct Told {
    info: ServerInfo,
    /// The list that it has confirmed.
    list: u64,
    /// A thread is telling it.
    is_being_told: bool,
    next: Instant,
}

impl Announcer {
    /// For the servers of this map, which know nothing; those that are joining are told when they have come.
    pub fn new(map: CurrentMap) -> Announcer {
        let state = State { list: 0, ids: Vec::new(), version: 0, servers: BTreeMap::new() };
        Announcer { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), map }) }
    }

    /// With the servers that the map has now.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.version != self.shared.map.version() {
            let map = self.shared.map.get();
            state.version = map.version;
            for info in map.io_servers().filter(|server| server.state == server_state::ACTIVE) {
                let new = || Told { info: info.clone(), list: 0, is_being_told: false, next: Instant::now() };
                state.servers.entry(info.id).or_insert_with(new).info.clone_from(info);
            }
        }
        state
    }

    /// These keys are revoked from now on. Returns the number of the list.
    pub fn announce(&self, ids: Vec<[u8; 16]>) -> u64 {
        let mut state = self.state();
        state.list += 1;
        state.ids = ids;
        state.servers.values_mut().for_each(|server| server.next = Instant::now());
        self.shared.changed.notify_all();
        state.list
    }

    /// Names of servers that have not confirmed this list or a later one.
    pub fn waiting(&self, list: u64) -> Vec<String> {
        let state = self.state();
        let behind = state.servers.values().filter(|server| server.list < list);
        behind.map(|server| server.info.name.clone()).collect()
    }

    /// Tells them, on threads of its own, until `stop` is set.
    ///
    /// # Errors
    /// There are no threads.
    pub fn start(&self, keys: KeyRing, stop: StopFlag) -> std::io::Result<std::thread::JoinHandle<()>> {
        let announcer = self.clone();
        let run = move || {
            while !stop.is_stopped() {
                for server in announcer.due() {
                    let (announcer, at, name) = (announcer.clone(), server.id, server.name.clone());
                    let peer = Peer::new(server, keys.clone(), stop.clone());
                    let tell = std::thread::Builder::new().name("weft-revoke".into());
                    // Without a thread it is due again after a while.
                    if tell.spawn(move || announcer.tell(at, peer)).is_err() {
                        announcer_failed(&name, "there are no more threads");
                    }
                }
            }
        };
        std::thread::Builder::new().name("weft-keys".into()).spawn(run)
    }

    /// Waits a little for servers that are to be told now, and notes that they are being told.
    fn due(&self) -> Vec<ServerInfo> {
        let mut state = self.state();
        let now = Instant::now();
        let is_due = |state: &State, server: &Told| {
            state.list > 0 && !server.is_being_told && server.next <= Instant::now()
        };
        if !state.servers.values().any(|server| is_due(&state, server)) {
            let waited = self.shared.changed.wait_timeout(state, WAIT_STEP);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let due = state.servers.values().filter(|server| is_due(&state, server));
        let due: Vec<ServerInfo> = due.map(|server| server.info.clone()).collect();
        for info in &due {
            let server = state.servers.get_mut(&info.id).expect("it was found there");
            server.is_being_told = true;
            server.next = now + RETRY;
        }
        due
    }

    fn tell(&self, at: u16, mut peer: Peer) {
        let (list, ids) = {
            let state = self.state();
            (state.list, state.ids.clone())
        };
        let told = peer.call(&SetRevokedRequest { ids });
        let mut state = self.state();
        let is_current = state.list == list;
        let Some(server) = state.servers.get_mut(&at) else { return };
        server.is_being_told = false;
        match told {
            Ok(_) => {
                server.list = list;
                server.next = Instant::now() + if is_current { AGAIN } else { Duration::ZERO };
            }
            Err(error) => {
                server.next = Instant::now() + RETRY;
                drop(state);
                if !matches!(error, PeerError::Stopping) {
                    announcer_failed(peer.name(), &error.to_string());
                }
            }
        }
        self.shared.changed.notify_all();
    }
}

fn announcer_failed(server: &str, error: &str) {
    if log::once_a_minute(&format!("tell {server} of revoked keys")) {
        log::warning!("meta", "cannot tell {server} which keys are revoked, will try again: {error}");
    }
}
