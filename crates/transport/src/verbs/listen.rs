//! Listening for RDMA connections. A stranger is sent away before it costs a queue pair.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

use weft_reactor::{Interest, Readiness};
use weft_verbs::{Endpoint, Fabric, Listener, VerbsError};
use weft_wire::security::{ClusterKeys, Key};
use weft_wire::{VERSIONS, negotiate};

use super::credits::WINDOW_MIN;
use super::envelope::{Asking, MESSAGE_BYTES, Rejection, VerbsRole};
use crate::listen::ListenError;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The keys that peers may show to know. Clones are the same, and change together.
#[derive(Debug, Clone)]
pub struct VerbsKeys(Arc<RwLock<Vec<RoleKeys>>>);

/// What is made from one cluster key.
#[derive(Debug, Clone)]
struct RoleKeys {
    client: Key,
    server: Key,
}

impl RoleKeys {
    fn of(&self, role: VerbsRole) -> &Key {
        match role {
            VerbsRole::Client => &self.client,
            VerbsRole::Server => &self.server,
        }
    }
}

impl VerbsKeys {
    /// Those of the cluster with these keys.
    pub fn of_cluster(keys: &ClusterKeys) -> VerbsKeys {
        let all = VerbsKeys(Arc::default());
        all.set(keys);
        all
    }

    /// For peers that have no key.
    pub fn none() -> VerbsKeys {
        VerbsKeys(Arc::new(RwLock::new(vec![RoleKeys { client: Key::ZERO, server: Key::ZERO }])))
    }

    /// From now on they are those of the cluster with these keys.
    pub fn set(&self, keys: &ClusterKeys) {
        let roles = |key: &Key| RoleKeys { client: key.knock_key(), server: key.server_key() };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys.all().map(roles).collect();
    }

    /// The one that `said` was made with.
    fn genuine(&self, said: &[u8], role: VerbsRole) -> Option<Key> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let key = all.iter().map(|keys| keys.of(role)).find(|key| Asking::is_genuine(said, key));
        key.cloned()
    }
}

/// An address that is listened on. Connections queue up from now on.
pub struct VerbsListening<F: Fabric> {
    listener: F::Listener,
    place: VerbsPlace<F>,
}

/// Where was listened, to listen there again.
#[derive(Clone)]
pub struct VerbsPlace<F: Fabric> {
    fabric: F,
    address: SocketAddr,
    keys: VerbsKeys,
}

/// Listens on an address of an RDMA adapter.
///
/// # Errors
/// No adapter has it, it is in use, or RDMA is not to be had.
pub fn listen_verbs<F: Fabric>(
    fabric: &F,
    address: SocketAddr,
    keys: VerbsKeys,
) -> Result<VerbsListening<F>, ListenError> {
    VerbsPlace { fabric: fabric.clone(), address, keys }.listen()
}

impl<F: Fabric> VerbsPlace<F> {
    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens there.
    ///
    /// # Errors
    /// As [`listen_verbs`].
    pub fn listen(mut self) -> Result<VerbsListening<F>, ListenError> {
        let address = self.address;
        match self.fabric.listen(address, BACKLOG) {
            Ok(listener) => {
                self.address = listener.address();
                Ok(VerbsListening { listener, place: self })
            }
            Err(error) => Err(ListenError {
                address: format!("{address} with RDMA"),
                source: io::Error::other(error.to_string()),
                advice: "choose a free port of an address that an RDMA adapter of this host has",
            }),
        }
    }
}

impl<F: Fabric> VerbsListening<F> {
    /// Where, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.place.address
    }

    /// To listen there again when this listener is of no more use: it goes with its adapter.
    pub fn place(&self) -> VerbsPlace<F> {
        self.place.clone()
    }

    /// Puts it on the current reactor.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn acceptor(self) -> io::Result<VerbsAcceptor<F>> {
        let watched = Watched::new(self.listener.fd())?;
        Ok(VerbsAcceptor { watched, listening: self })
    }
}

/// A listened address on a reactor.
pub struct VerbsAcceptor<F: Fabric> {
    watched: Watched,
    listening: VerbsListening<F>,
}

/// Somebody who asks for a connection and knows the key. May be moved to another thread, for [`super::VerbsThread::accept`].
pub struct VerbsAccepted<F: Fabric> {
    pub(super) endpoint: F::Endpoint,
    pub(super) asking: Asking,
    pub(super) key: Key,
}

impl<F: Fabric> VerbsAcceptor<F> {
    /// The next connection. Strangers and peers of other versions are refused within.
    ///
    /// # Errors
    /// The listener is unusable.
    pub async fn next(&mut self) -> Result<VerbsAccepted<F>, VerbsError> {
        loop {
            match self.listening.listener.next()? {
                Some(endpoint) => match check(endpoint.private_data(), &self.listening.place.keys) {
                    Ok((asking, key)) => return Ok(VerbsAccepted { endpoint, asking, key }),
                    Err(reason) => endpoint.reject(&reason.encode()),
                },
                None => self.watched.readable().await,
            }
        }
    }

    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }
}

fn check(said: &[u8], keys: &VerbsKeys) -> Result<(Asking, Key), Rejection> {
    let asking = Asking::decode(said).ok_or(Rejection::Malformed)?;
    negotiate(VERSIONS, asking.versions).ok_or(Rejection::Version)?;
    let key = keys.genuine(said, asking.role).ok_or(Rejection::Key)?;
    if asking.message_bytes as usize != MESSAGE_BYTES || u32::from(asking.receives) < WINDOW_MIN {
        return Err(Rejection::Malformed);
    }
    Ok((asking, key))
}

/// A descriptor of the seam's on the reactor: a duplicate, so that it may be closed at any time.
pub(super) struct Watched {
    // Before the descriptor: it has to be taken off the reactor first.
    readiness: Readiness,
    _fd: OwnedFd,
}

impl Watched {
    pub(super) fn new(fd: std::os::fd::RawFd) -> io::Result<Watched> {
        // SAFETY: the seam's descriptors are open as long as what they belong to, which the caller holds.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
        Ok(Watched { readiness: Readiness::new(&fd)?, _fd: fd })
    }

    /// Waits for news after those that were looked at before this call.
    pub(super) async fn readable(&self) {
        self.readiness.clear(Interest::Read);
        self.readiness.readable().await;
    }
}
