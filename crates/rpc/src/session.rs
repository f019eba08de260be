//! This process's connections to a cluster: for each server a few lanes, and the numbers that requests carry.
//!
//! ```text
//!   shard ─► shards: 0 1 …     ─┐
//!   chain ─► chains: 0 1 2 3 … ─┴► servers: meta0 io0 io1 io2 …   both only grow: an index stays what it is
//!   map, version 7: updates both, then counts ─┘   └ where it is reached, lanes, health (server.rs)
//! ```
//!
//! A request reads these tables without a lock. A newer map (`follow.rs`) adds servers to them and changes
//! where they are reached; a server that it does not have any more keeps its index, and is listed no longer.
//!
//! A forked child has its own session; of its parent's it only closes the descriptors.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use weft_layout::{ChainId, shard_of};

use weft_wire::messages::ClusterMapReply;

use crate::error::Error;
use crate::following::Following;
use crate::fork;
use crate::host::random;
use crate::server::{Role, Server};
use crate::slots::Slots;
use crate::table::Table;
use crate::wait::lock;

/// In the place of an index: the map does not have the chain.
const NO_SERVER: usize = usize::MAX;

/// One process's connections.
pub struct Session {
    pub(crate) generation: u64,
    pub(crate) id: [u8; 16],
    /// Made in a child: files may be open that this session's servers do not know of.
    pub(crate) is_fork: bool,
    next_request: AtomicU64,
    servers: Table<Server>,
    /// By the ids of the chains: the index of the server, or [`NO_SERVER`].
    chains: Table<AtomicUsize>,
    /// By the numbers of the shards: the index of the metadata server that owns it.
    shards: Table<AtomicUsize>,
    map: Mutex<Arc<ClusterMapReply>>,
    map_version: AtomicU32,
    pub(crate) following: Following,
    /// The number of this process, where several are in the session.
    member: Option<u16>,
}

impl Session {
    pub(crate) fn new(map: &Arc<ClusterMapReply>) -> Result<Session, Error> {
        Ok(Session::with_id(map, random()?, None))
    }

    /// A session that other processes are in, too, or were; this one is number `member`. Its slots are its
    /// own, and its numbers of requests above those of whoever had them before, for they begin with the time.
    pub(crate) fn joined(map: &Arc<ClusterMapReply>, id: [u8; 16], member: u16) -> Session {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut session = Session::with_id(map, id, Some(member));
        session.next_request = AtomicU64::new(now.as_nanos() as u64);
        session
    }

    /// Where the kernel gives no random bytes: an id that is not the parent's.
    pub(crate) fn without_random(map: &Arc<ClusterMapReply>, mut parents: [u8; 16]) -> Session {
        for (byte, ours) in parents.iter_mut().zip(std::process::id().to_le_bytes()) {
            *byte ^= ours;
        }
        Session::with_id(map, parents, None)
    }

    fn with_id(map: &Arc<ClusterMapReply>, id: [u8; 16], member: Option<u16>) -> Session {
        let session = Session {
            generation: fork::generation(),
            id,
            is_fork: false,
            next_request: AtomicU64::new(16),
            servers: Table::default(),
            chains: Table::default(),
            shards: Table::default(),
            map: Mutex::new(map.clone()),
            map_version: AtomicU32::new(0),
            following: Following::default(),
            member,
        };
        session.go_by(map.clone());
        session
    }

    /// What it is named by in greetings. Whoever has the same key and knows it can go on with the session.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The newest map that was seen.
    pub fn map(&self) -> Arc<ClusterMapReply> {
        lock(&self.map).clone()
    }

    /// As [`Session::map`], of a parent, in a forked child: `None` where another thread was changing it.
    pub(crate) fn parents_map(&self) -> Option<Arc<ClusterMapReply>> {
        self.map.try_lock().ok().map(|map| map.clone())
    }

    /// Its version.
    pub fn map_version(&self) -> u32 {
        self.map_version.load(Ordering::Acquire)
    }

    /// Goes by a map from here on, which was checked and is newer than the one before. By one thread at a
    /// time.
    pub(crate) fn go_by(&self, map: Arc<ClusterMapReply>) {
        let index_of = |role: Role, id: u16| {
            self.servers.iter().find(|(_, one)| (one.role, one.id) == (role, id)).map(|(index, _)| index)
        };
        let is_there = |server: &Server| {
            map.servers.iter().any(|info| (Role::of(info), info.id) == (server.role, server.id))
        };
        for (_, server) in self.servers.iter().filter(|(_, server)| !is_there(server)) {
            server.is_listed.store(false, Ordering::Relaxed);
        }
        for info in map.meta_servers().chain(map.io_servers()) {
            match index_of(Role::of(info), info.id).and_then(|index| self.servers.get(index)) {
                Some(server) => server.update(info),
                None => drop(self.servers.push(Server::new(info, Slots::of(self.member)))),
            }
        }
        let chains_end = map.chains.iter().map(|chain| usize::from(chain.id.0) + 1).max().unwrap_or(0);
        while self.chains.len() < chains_end {
            self.chains.push(AtomicUsize::new(NO_SERVER));
        }
        for (id, server) in self.chains.iter() {
            let first = map.server_of_chain(ChainId(id as u16)).and_then(|info| index_of(Role::Io, info.id));
            server.store(first.unwrap_or(NO_SERVER), Ordering::Relaxed);
        }
        for meta in map.meta_servers() {
            while self.shards.len() <= usize::from(meta.id) {
                self.shards.push(AtomicUsize::new(0));
            }
        }
        for (shard, owner) in self.shards.iter() {
            owner.store(index_of(Role::Meta, shard as u16).unwrap_or(0), Ordering::Relaxed);
        }
        let version = map.version;
        *lock(&self.map) = map;
        // Who sees the version sees all of the above.
        self.map_version.store(version, Ordering::Release);
    }

    /// A number that no other request of the session has; they rise.
    pub fn next_request_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// All servers that there are or were.
    pub fn servers(&self) -> impl Iterator<Item = (usize, &Server)> + Clone {
        self.servers.iter()
    }

    /// Those of the newest map, metadata servers first.
    pub fn listed(&self) -> impl Iterator<Item = (usize, &Server)> + Clone {
        self.listed_of(Role::Meta).chain(self.listed_of(Role::Io))
    }

    /// The same of one role.
    pub fn listed_of(&self, role: Role) -> impl Iterator<Item = (usize, &Server)> + Clone {
        let is_listed =
            move |server: &Server| server.role == role && server.is_listed.load(Ordering::Relaxed);
        self.servers.iter().filter(move |(_, server)| is_listed(server))
    }

    /// A server by its index, which came from here.
    pub fn server(&self, index: usize) -> &Server {
        self.servers.get(index).expect("servers are never taken out")
    }

    /// Index of the server of a chain, if the map has it.
    pub fn chain_index(&self, id: ChainId) -> Option<usize> {
        let index = self.chains.get(usize::from(id.0))?.load(Ordering::Relaxed);
        (index != NO_SERVER).then_some(index)
    }

    /// Index of the metadata server that owns a shard. The map may not have the shard of a damaged inode number: then it
    /// is the owner of the root's shard, which refuses the request.
    pub fn owner_index(&self, shard: u16) -> usize {
        self.shards.get(usize::from(shard)).map_or(0, |index| index.load(Ordering::Relaxed))
    }

    /// Index of the metadata server that owns an inode.
    pub fn owner_of(&self, ino: u64) -> usize {
        self.owner_index(shard_of(ino))
    }

    /// All shards, and the indices of the metadata servers that own them.
    pub fn owners(&self) -> impl Iterator<Item = (u16, usize)> + Clone {
        self.shards.iter().map(|(shard, index)| (shard as u16, index.load(Ordering::Relaxed)))
    }

    pub(crate) fn abandon(&self) {
        self.servers.iter().for_each(|(_, server)| server.abandon());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::{Dialled, Wish};
    use crate::lane::Lane;
    use crate::slots::{EXACTLY_ONCE_SLOTS, SlotLease};
    use crate::testing::some_link;
    use crate::traffic::Traffic;
    use weft_layout::Layout;
    use weft_wire::messages::{Endpoint, ServerInfo, endpoint, server_role};

    fn map() -> Arc<ClusterMapReply> {
        Arc::new(map_of(1, 2))
    }

    fn map_of(version: u32, io_servers: u16) -> ClusterMapReply {
        let server = |name: String, role, id| {
            let endpoints = vec![Endpoint::new(endpoint::TCP, format!("{name}:1"))];
            ServerInfo::new(id, name, role, endpoints)
        };
        let io = (0..io_servers).map(|id| server(format!("io{id}"), server_role::IO, id));
        ClusterMapReply {
            version,
            cluster_id: [1; 16],
            servers: std::iter::once(server("meta".into(), server_role::META, 0)).chain(io).collect(),
            chains: ClusterMapReply::single_chains(io_servers),
            default_layout: Layout::new(65536, 0, 2, 2).unwrap(),
        }
    }

    #[test]
    fn slots_are_used_again_and_bounded_and_request_numbers_rise() {
        let session = Session::new(&map()).unwrap();
        let slots = &session.server(0).slots;
        let first = slots.lease().unwrap();
        let second = slots.lease().unwrap();
        assert_ne!(first.number(), second.number());
        let number = first.number();
        drop(first);
        assert_eq!(slots.lease().unwrap().number(), number);
        let all: Vec<_> = std::iter::from_fn(|| slots.lease()).collect();
        assert_eq!(all.len() + 1, usize::from(EXACTLY_ONCE_SLOTS));
        assert!(session.next_request_id() < session.next_request_id());
    }

    #[test]
    fn who_joins_a_session_has_slots_of_its_own_and_numbers_above_those_before() {
        let before = Session::joined(&map(), [7; 16], 3);
        let session = Session::joined(&map(), [7; 16], 4);
        let all = |session: &Session| -> Vec<SlotLease> {
            std::iter::from_fn(|| session.server(0).slots.lease()).collect()
        };
        let numbers = |slots: &[SlotLease]| slots.iter().map(SlotLease::number).collect::<Vec<_>>();
        let (others, ours) = (numbers(&all(&before)), numbers(&all(&session)));
        assert_eq!((others.len(), ours.len(), session.id), (8, 8, [7; 16]));
        assert!(ours.iter().all(|slot| !others.contains(slot)));
        assert!(session.next_request_id() > before.next_request_id());
    }

    fn names<'a>(servers: impl Iterator<Item = (usize, &'a Server)>) -> Vec<String> {
        servers.map(|(_, server)| server.info().name.clone()).collect()
    }

    #[test]
    fn servers_are_found_by_the_chains_that_layouts_name() {
        let session = Session::new(&map()).unwrap();
        assert_eq!(session.server(session.chain_index(ChainId(1)).unwrap()).info().name, "io1");
        assert_eq!((session.chain_index(ChainId(2)), session.chain_index(ChainId(u16::MAX))), (None, None));
        assert_eq!(session.server(0).role, Role::Meta);
        assert_eq!(names(session.listed()), ["meta", "io0", "io1"]);
        assert_eq!(session.map_version(), 1);
    }

    #[test]
    fn the_shard_of_an_inode_says_which_metadata_server_owns_it() {
        let mut map = map_of(1, 2);
        let second = ServerInfo::new(1, "meta1", server_role::META, Vec::new());
        map.servers.insert(1, second);
        let session = Session::new(&Arc::new(map)).unwrap();
        let owner = |ino: u64| session.server(session.owner_of(ino)).info().name.clone();
        assert_eq!([owner(1), owner(99), owner(1 << 52 | 1)], ["meta", "meta", "meta1"]);
        assert_eq!(owner(7 << 52), "meta", "a shard that no server has");
        let owners: Vec<_> = session.owners().collect();
        assert_eq!(owners.iter().map(|(shard, _)| *shard).collect::<Vec<_>>(), [0, 1]);
        assert!(owners.iter().all(|(_, index)| session.server(*index).role == Role::Meta));
        // Each keeps its own replies.
        let taken: Vec<_> = std::iter::from_fn(|| session.server(owners[0].1).slots.lease()).collect();
        assert!(!taken.is_empty() && session.server(owners[1].1).slots.lease().is_some());
    }

    #[test]
    fn a_newer_map_adds_servers_and_those_that_were_there_keep_their_places() {
        let session = Session::new(&map()).unwrap();
        let io1 = session.chain_index(ChainId(1)).unwrap();
        let before: *const Server = session.server(io1);
        session.go_by(Arc::new(map_of(2, 60)));
        assert_eq!((session.map_version(), session.map().version), (2, 2));
        assert_eq!(session.chain_index(ChainId(1)), Some(io1));
        assert!(std::ptr::eq(session.server(io1), before));
        assert_eq!(session.server(session.chain_index(ChainId(59)).unwrap()).info().name, "io59");
        assert_eq!(session.listed().count(), 61);

        session.go_by(Arc::new(map_of(3, 1)));
        assert_eq!(names(session.listed()), ["meta", "io0"], "what is not in the map is not asked");
        assert_eq!(session.chain_index(ChainId(1)), None);
        assert_eq!(session.server(io1).info().name, "io1", "requests under way have its index");
        session.go_by(Arc::new(map_of(4, 2)));
        assert_eq!(session.chain_index(ChainId(1)), Some(io1), "an id is one server, for ever");
    }

    #[test]
    fn a_chain_is_of_the_server_that_the_map_says() {
        let mut map = map_of(1, 3);
        map.chains[0].servers = vec![2];
        let session = Session::new(&Arc::new(map)).unwrap();
        assert_eq!(session.server(session.chain_index(ChainId(0)).unwrap()).info().name, "io2");
    }

    fn lane(server: &Server, endpoint: Option<&Endpoint>) -> Arc<Lane> {
        let proven = weft_wire::messages::ProveReply {
            cluster_id: [1; 16],
            server_name: server.info().name.clone(),
            epoch: 1,
            credits: 4,
            boot_id: [0; 16],
            loss_epoch: 0,
        };
        let dialled = Dialled { endpoint: endpoint.cloned(), ..Dialled::new(some_link(), proven) };
        server.add(dialled, Traffic::Bulk).lane().clone()
    }

    #[test]
    fn connections_to_where_a_server_was_are_used_until_there_is_one_to_where_it_is() {
        let session = Session::new(&map()).unwrap();
        let server = session.server(1);
        let old = server.info().endpoints[0].clone();
        let new = Endpoint::new(endpoint::TCP, "elsewhere:1");
        let first = lane(server, Some(&old));
        let wish = Wish { traffic: Traffic::Bulk, rail: None };
        let in_use = || server.pick(&wish, true).unwrap().lane().clone();
        assert!(!server.is_better_due());

        let mut map = map_of(2, 2);
        map.servers[1].endpoints = vec![new.clone(), old.clone()];
        session.go_by(Arc::new(map.clone()));
        assert!(!server.is_better_due(), "it is there as well");

        map.version = 3;
        map.servers[1].endpoints = vec![new.clone()];
        session.go_by(Arc::new(map));
        assert!(server.is_better_due() && !server.is_better_due(), "one thread tries at a time");
        assert!(Arc::ptr_eq(&in_use(), &first) && first.is_alive());

        let late = lane(server, Some(&old));
        assert!(late.is_retired() && Arc::ptr_eq(&in_use(), &first), "it was begun by the map before");
        let second = lane(server, Some(&new));
        assert!(Arc::ptr_eq(&in_use(), &second) && server.lanes().len() == 1);
        assert!(first.is_alive(), "what is under way on it ends there");
        std::thread::sleep(crate::server::MOVE_PAUSE_FIRST);
        assert!(!server.is_better_due());
    }
}
