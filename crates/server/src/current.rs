//! The cluster's map as a server has it now, and the other servers by it.
//!
//! ```text
//!   metadata thread, or member ── publish(version 8) ─► CurrentMap ─► dispatch: is a request's version older?
//!                                                          │
//!                                                          └─► Peers: who works on all I/O servers finds new
//!                                                              ones, and others at new addresses, the next
//!                                                              time it asks for one
//! ```

use crate::key_ring::KeyRing;
use crate::peer::Peer;
use crate::stop::Wake;
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use weft_layout::ChainId;
use weft_wire::messages::{ClusterMapReply, ServerInfo, server_state};

/// The newest map that a server knows. Clones are the same.
#[derive(Clone)]
pub(crate) struct CurrentMap {
    inner: Arc<Inner>,
}

struct Inner {
    /// 0: it has heard of none, and has only what its cluster file says.
    version: AtomicU32,
    map: RwLock<Arc<ClusterMapReply>>,
    wanted: Wake,
}

impl CurrentMap {
    /// # Errors
    /// Those of an eventfd.
    pub fn new(map: ClusterMapReply) -> io::Result<CurrentMap> {
        let version = AtomicU32::new(map.version);
        let inner = Inner { version, map: RwLock::new(Arc::new(map)), wanted: Wake::new()? };
        Ok(CurrentMap { inner: Arc::new(inner) })
    }

    pub fn version(&self) -> u32 {
        self.inner.version.load(Ordering::Acquire)
    }

    pub fn get(&self) -> Arc<ClusterMapReply> {
        self.inner.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes by `map` from now on, unless a newer one is known.
    pub fn publish(&self, map: ClusterMapReply) {
        let mut current = self.inner.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.version > current.version {
            self.inner.version.store(map.version, Ordering::Release);
            *current = Arc::new(map);
        }
    }

    /// Somebody has shown that there is a newer one.
    pub fn want(&self) {
        self.inner.wanted.raise();
    }

    /// Raised by [`CurrentMap::want`].
    pub fn wanted(&self) -> &Wake {
        &self.inner.wanted
    }
}

/// The metadata server's connections to I/O servers, which all its tasks share.
pub(crate) struct Peers {
    map: CurrentMap,
    keys: KeyRing,
    known: RefCell<Known>,
}

#[derive(Default)]
struct Known {
    /// Of the map that the peers are by.
    version: u32,
    /// By id, and whether a server may have data.
    peers: BTreeMap<u16, (Rc<Peer>, bool)>,
}

impl Peers {
    pub fn new(map: CurrentMap, keys: KeyRing) -> Peers {
        Peers { map, keys, known: RefCell::default() }
    }

    /// Ids of the servers that may have data: all but those that are joining.
    pub fn ids(&self) -> Vec<u16> {
        let known = self.known();
        known.peers.iter().filter(|(_, (_, is_used))| *is_used).map(|(id, _)| *id).collect()
    }

    /// The server with this id, if the map has it.
    pub fn get(&self, id: u16) -> Option<Rc<Peer>> {
        self.known().peers.get(&id).map(|(peer, _)| peer.clone())
    }

    /// The server of a chain, if the map has it.
    pub fn of_chain(&self, chain: ChainId) -> Option<Rc<Peer>> {
        self.get(self.map.get().server_of_chain(chain)?.id)
    }

    /// By the map as it is now.
    fn known(&self) -> RefMut<'_, Known> {
        let mut known = self.known.borrow_mut();
        if known.version == self.map.version() {
            return known;
        }
        let map = self.map.get();
        known.version = map.version;
        for server in map.io_servers() {
            let is_used = server.state == server_state::ACTIVE;
            match known.peers.get_mut(&server.id) {
                Some((peer, used)) => {
                    peer.is_at(server);
                    *used = is_used;
                }
                None => {
                    let peer = Peer::new(server.clone(), self.keys.clone());
                    known.peers.insert(server.id, (Rc::new(peer), is_used));
                }
            }
        }
        known
    }
}

/// Name of an I/O server, for people.
pub(crate) fn name_of(map: &ClusterMapReply, id: u16) -> &str {
    map.io_server(id).map_or("?", |server: &ServerInfo| server.name.as_str())
}
