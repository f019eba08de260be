//! Telling I/O servers which keys are revoked, by the metadata server.
//!
//! ```text
//!   revoke ─► announce ─► a thread for each I/O server that is behind: SetRevoked ─► it confirms
//!                                        it is down: tried again every second
//!                                        it is up: told again every 30 s, for its directory may be a new one
//! ```
//!
//! While no key is revoked nothing is told to anybody.

use crate::key_ring::KeyRing;
use crate::log;
use crate::peer::{Peer, PeerError};
use crate::stop::StopFlag;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_wire::messages::{ServerInfo, SetRevokedRequest};

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
}

struct State {
    /// Number of the list below; 0: nothing was ever revoked.
    list: u64,
    ids: Vec<[u8; 16]>,
    servers: Vec<Told>,
}

struct Told {
    name: String,
    /// The list that it has confirmed.
    list: u64,
    /// A thread is telling it.
    is_being_told: bool,
    next: Instant,
}

impl Announcer {
    /// For these servers, which know nothing.
    pub fn new(servers: &[ServerInfo]) -> Announcer {
        let told = |server: &ServerInfo| Told {
            name: server.name.clone(),
            list: 0,
            is_being_told: false,
            next: Instant::now(),
        };
        let state = State { list: 0, ids: Vec::new(), servers: servers.iter().map(told).collect() };
        Announcer { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These keys are revoked from now on. Returns the number of the list.
    pub fn announce(&self, ids: Vec<[u8; 16]>) -> u64 {
        let mut state = self.state();
        state.list += 1;
        state.ids = ids;
        state.servers.iter_mut().for_each(|server| server.next = Instant::now());
        self.shared.changed.notify_all();
        state.list
    }

    /// Names of servers that have not confirmed this list or a later one.
    pub fn waiting(&self, list: u64) -> Vec<String> {
        let state = self.state();
        let behind = state.servers.iter().filter(|server| server.list < list);
        behind.map(|server| server.name.clone()).collect()
    }

    /// Tells them, on threads of its own, until `stop` is set.
    ///
    /// # Errors
    /// There are no threads.
    pub fn start(
        &self,
        servers: Vec<ServerInfo>,
        keys: KeyRing,
        stop: StopFlag,
    ) -> std::io::Result<std::thread::JoinHandle<()>> {
        let announcer = self.clone();
        let run = move || {
            while !stop.is_stopped() {
                for at in announcer.due() {
                    let (announcer, peer) =
                        (announcer.clone(), Peer::new(servers[at].clone(), keys.clone(), stop.clone()));
                    let tell = std::thread::Builder::new().name("weft-revoke".into());
                    // Without a thread it is due again after a while.
                    if tell.spawn(move || announcer.tell(at, peer)).is_err() {
                        announcer_failed(&servers[at].name, "there are no more threads");
                    }
                }
            }
        };
        std::thread::Builder::new().name("weft-keys".into()).spawn(run)
    }

    /// Waits a little for servers that are to be told now, and notes that they are being told.
    fn due(&self) -> Vec<usize> {
        let mut state = self.state();
        let now = Instant::now();
        let is_due = |state: &State, server: &Told| {
            state.list > 0 && !server.is_being_told && server.next <= Instant::now()
        };
        if !state.servers.iter().any(|server| is_due(&state, server)) {
            let waited = self.shared.changed.wait_timeout(state, WAIT_STEP);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let due: Vec<usize> =
            (0..state.servers.len()).filter(|at| is_due(&state, &state.servers[*at])).collect();
        for at in &due {
            state.servers[*at].is_being_told = true;
            state.servers[*at].next = now + RETRY;
        }
        due
    }

    fn tell(&self, at: usize, mut peer: Peer) {
        let (list, ids) = {
            let state = self.state();
            (state.list, state.ids.clone())
        };
        let told = peer.call(&SetRevokedRequest { ids });
        let mut state = self.state();
        let is_current = state.list == list;
        let server = &mut state.servers[at];
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
