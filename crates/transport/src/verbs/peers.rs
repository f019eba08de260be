//! Who may connect: peers that know a key of the cluster and speak a version of this protocol.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use weft_rdma::{Acceptor, Asked, Check, Listening, Place};
use weft_verbs::Fabric;
use weft_wire::security::{ClusterKeys, Key};
use weft_wire::{VERSIONS, negotiate};

use super::envelope::{Asking, MESSAGE_BYTES, Rejection, VerbsRole};
use crate::listen::ListenError;

/// An address that is listened on for Weft's clients and servers.
pub type VerbsListening<F> = Listening<F, VerbsKeys>;
/// Where was listened, to listen there again.
pub type VerbsPlace<F> = Place<F, VerbsKeys>;
/// A listened address on a reactor.
pub type VerbsAcceptor<F> = Acceptor<F, VerbsKeys>;
/// Somebody who asks for a connection and knows the key.
pub type VerbsAccepted<F> = Asked<F, VerbsAsked>;

/// What a peer said that knows the key.
#[derive(Debug)]
pub struct VerbsAsked {
    pub(super) asking: Asking,
    pub(super) key: Key,
}

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

    fn examine(&self, said: &[u8]) -> Result<VerbsAsked, Rejection> {
        let asking = Asking::decode(said).ok_or(Rejection::Malformed)?;
        negotiate(VERSIONS, asking.versions).ok_or(Rejection::Version)?;
        let key = self.genuine(said, asking.role).ok_or(Rejection::Key)?;
        if asking.message_bytes as usize != MESSAGE_BYTES
            || u32::from(asking.receives) < weft_rdma::WINDOW_MIN
        {
            return Err(Rejection::Malformed);
        }
        Ok(VerbsAsked { asking, key })
    }
}

impl Check for VerbsKeys {
    type Asked = VerbsAsked;

    fn check(&self, said: &[u8]) -> Result<VerbsAsked, Vec<u8>> {
        self.examine(said).map_err(Rejection::encode)
    }
}

/// Listens on an address of an RDMA adapter.
///
/// # Errors
/// No adapter has it, it is in use, or RDMA cannot be used.
pub fn listen_verbs<F: Fabric>(
    fabric: &F,
    address: SocketAddr,
    keys: VerbsKeys,
) -> Result<VerbsListening<F>, ListenError> {
    Place::new(fabric, address, keys).listen().map_err(|error| ListenError {
        address: format!("{address} with RDMA"),
        source: io::Error::other(error.to_string()),
        advice: "choose a free port of an address that an RDMA adapter of this host has",
    })
}
