//! What the metadata server knows of the cluster's map, and how it changes. Pure: who reads files, stores and tells is elsewhere.
//!
//! Three tell where a server is: the cluster file that the metadata server reads, an operator (`weft server move`), and the server
//! itself, when it says which storage it has. Any of them may be behind the others, so none is believed for what it says, only for
//! what it says *anew*: each is compared with its own last word.
//!
//! ```text
//!   cluster file   a:1 ──► a:1 ──────────────► b:2      its word of before is kept: an old file changes nothing
//!   operator              move to b:2                   said once
//!   the server     a:1 ──► a:1 ──► restarted, b:2
//!                  ─────┬────────┬─────────────┬─────
//!   the map        a:1  │ b:2 a:1│ b:2         │ b:2   what is intended, then where the server still is
//! ```
//!
//! A server gets its id when it comes into the map, its place among those of its role in the cluster file; it is never given again. One
//! that was added is *joining*, and no new file is striped over it, until it has come with a storage.

use crate::config::{ClusterConfig, ServerConfig};
use weft_layout::Layout;
use weft_wire::messages::{
    ChainInfo, ClusterMapReply, Endpoint, ServerInfo, endpoint, server_role, server_state,
};

weft_wire::message! {
    /// What was said of a server.
    pub struct Words {
        /// Its role.
        pub role: u8,
        /// Its id.
        pub id: u16,
        /// By the metadata server's cluster file; none: it never had the server.
        pub in_file: Vec<Endpoint>,
        /// By the server itself, or taken for that; none: it never came.
        pub own: Vec<Endpoint>,
        /// Where it is, or is to be, by the one whose word changed last.
        pub intended: Vec<Endpoint>,
    }

    /// The map with all that its next version follows from.
    pub struct KeptMap {
        /// As it is served.
        pub map: ClusterMapReply,
        /// For each server of the map, in the same order.
        pub words: Vec<Words>,
        /// I/O servers of a file for which nothing else is asked; 0: all.
        pub server_count: u16,
    }
}

/// A server as a cluster file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileServer {
    pub name: String,
    pub endpoints: Vec<Endpoint>,
}

/// What a cluster file says of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileMap {
    pub cluster_id: [u8; 16],
    pub meta: FileServer,
    /// By id.
    pub io: Vec<FileServer>,
    pub strip_bytes: u32,
    pub server_count: u16,
}

/// Something that was heard of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The metadata server has started with this cluster file, over this storage.
    Started(FileMap, [u8; 16]),
    /// It has read the file anew, and goes on listening where it does.
    Reread(FileMap),
    /// An operator has added an I/O server.
    Added { name: String, endpoints: Vec<Endpoint> },
    /// An operator says where a server will be.
    Moved { name: String, endpoints: Vec<Endpoint> },
    /// An I/O server has come, with a storage that is its own, and the map of this version.
    Registered { id: u16, storage: [u8; 16], endpoints: Vec<Endpoint>, map_version: u32 },
}

/// Why a map cannot become what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The cluster file has lost a server.
    #[error(
        "the cluster file has {listed} I/O servers, but {name} (I/O server {id}) {why}: put it back into the file, at its place"
    )]
    Missing {
        /// How many I/O servers there are in the file.
        listed: usize,
        /// The one that is missing.
        name: String,
        /// Its id.
        id: u16,
        /// What binds it to the cluster.
        why: &'static str,
    },
    /// Servers have changed places in the cluster file.
    #[error(
        "the cluster file has {name} as I/O server {is}, and it is I/O server {was}: the order of servers is part of where files \
         are; put it back to its place"
    )]
    Reordered {
        /// Which server.
        name: String,
        /// Its id.
        was: u16,
        /// Its place in the file.
        is: u16,
    },
    /// A server of this name is there.
    #[error(
        "there is a server {name} at {address} already; choose another name, or move it: weft server move"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where that server is.
        address: String,
    },
    /// Another server is at this address.
    #[error("{address} is the address of {name}; give each server its own")]
    AddressTaken {
        /// The address.
        address: String,
        /// Whose it is.
        name: String,
    },
    /// No server has this name.
    #[error("the cluster has no server {name}; it has {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// No server of the map has this id.
    #[error(
        "the map of the metadata server has no I/O server {id}: tell it of the server (weft help cluster)"
    )]
    NoSuchId {
        /// The id.
        id: u16,
    },
    /// What would come of it is no map.
    #[error("the map of the cluster cannot become that: {0}")]
    Unfit(String),
}

impl MapError {
    /// An I/O server that holds data is not in the file any more.
    pub(crate) fn lost(file: &FileMap, name: &str, id: u16) -> MapError {
        MapError::Missing {
            listed: file.io.len(),
            name: name.to_owned(),
            id,
            why: "holds data of this cluster",
        }
    }
}

impl Event {
    /// What was heard, for the log.
    pub fn text(&self) -> String {
        match self {
            Event::Started(..) => "the metadata server has started".into(),
            Event::Reread(_) => "the cluster file was read anew".into(),
            Event::Added { name, .. } => format!("{name} was added"),
            Event::Moved { name, .. } => format!("{name} moves"),
            Event::Registered { id, endpoints, .. } => {
                let address = endpoints.first().map_or("", |endpoint| endpoint.address.as_str());
                format!("I/O server {id} is there, at {address}")
            }
        }
    }
}

impl FileMap {
    /// What `config` says of the map.
    pub fn of(config: &ClusterConfig) -> FileMap {
        let server = |server: &ServerConfig| FileServer {
            name: server.name.clone(),
            endpoints: endpoints_of(config, server),
        };
        FileMap {
            cluster_id: config.cluster.id.0,
            meta: server(config.meta_servers().next().expect("a checked cluster file has one")),
            io: config.io_servers().map(server).collect(),
            strip_bytes: config.cluster.strip_bytes,
            server_count: config.cluster.server_count,
        }
    }
}

/// Where a server of a cluster file is reached.
pub(crate) fn endpoints_of(config: &ClusterConfig, server: &ServerConfig) -> Vec<Endpoint> {
    let tcp = server.addresses.iter().map(|address| Endpoint::new(endpoint::TCP, address));
    let rdma = server.addresses_for_rdma().iter().map(|address| Endpoint::new(endpoint::RDMA, address));
    let socket = Endpoint::new(endpoint::SOCKET, config.socket_of(server).to_string_lossy());
    tcp.chain(rdma).chain([socket]).collect()
}

/// The map of a new cluster, as its file has it.
pub(crate) fn first_map(config: &ClusterConfig) -> ClusterMapReply {
    KeptMap::first(&FileMap::of(config), [0; 16], &[]).map
}

impl KeptMap {
    /// The first map of a cluster. `known` are the I/O servers that have come before there were maps, with their storages; where
    /// some have, the others are joining.
    pub fn first(file: &FileMap, meta_storage: [u8; 16], known: &[(u16, [u8; 16])]) -> KeptMap {
        let mut kept = KeptMap {
            map: ClusterMapReply {
                version: 1,
                cluster_id: file.cluster_id,
                servers: Vec::new(),
                chains: Vec::new(),
                default_layout: over(file.strip_bytes, file.server_count, file.io.len() as u16),
            },
            words: Vec::new(),
            server_count: file.server_count,
        };
        kept.put(server_role::META, 0, &file.meta.name, server_state::ACTIVE, meta_storage);
        for (id, server) in (0..).zip(&file.io) {
            let storage = known.iter().find(|(known, _)| *known == id).map(|(_, storage)| *storage);
            let state = match storage {
                None if !known.is_empty() => server_state::JOINING,
                _ => server_state::ACTIVE,
            };
            kept.put(server_role::IO, id, &server.name, state, storage.unwrap_or_default());
        }
        for (at, server) in std::iter::once(&file.meta).chain(&file.io).enumerate() {
            kept.say_in_file(at, &server.endpoints);
        }
        let own = kept.words[0].intended.clone();
        kept.words[0].own = own;
        kept.derive(file.strip_bytes);
        kept
    }

    /// I/O servers that new files are striped over: those before the first that is joining.
    pub fn ring_servers(&self) -> u16 {
        ring(&self.map)
    }

    /// What the map is after `event`: the same, or one of a higher version.
    ///
    /// # Errors
    /// [`MapError`]; nothing changes then.
    pub fn after(&self, event: &Event) -> Result<KeptMap, MapError> {
        let mut next = self.clone();
        let mut strip_bytes = self.map.default_layout.strip_bytes();
        match event {
            Event::Started(map, storage) => {
                if self.map.io_servers().all(|server| server.storage == [0; 16]) && self.loses_any(map) {
                    // Nobody has come as yet: the file is still being written.
                    next = KeptMap::first(map, *storage, &[]);
                    next.map.version = self.map.version;
                }
                next.take_file(map)?;
                next.say_own(0, &map.meta.endpoints);
                next.map.servers[0].storage = *storage;
                strip_bytes = map.strip_bytes;
            }
            Event::Reread(map) => {
                next.take_file(map)?;
                strip_bytes = map.strip_bytes;
            }
            Event::Added { name, endpoints } => next.add(name, endpoints)?,
            Event::Moved { name, endpoints } => {
                let at = next.place_of(name)?;
                next.refuse_taken(at, endpoints)?;
                next.intend(at, endpoints);
            }
            Event::Registered { id, storage, endpoints, map_version } => {
                let known = next.map.servers.iter();
                let at = known.into_iter().position(|one| one.role == server_role::IO && one.id == *id);
                let at = at.ok_or(MapError::NoSuchId { id: *id })?;
                next.say_own(at, endpoints);
                let server = &mut next.map.servers[at];
                (server.storage, server.state) = (*storage, server_state::ACTIVE);
                // It was told a map that this store does not know any more: a copy of the store was put back.
                next.map.version = next.map.version.max(*map_version);
            }
        }
        next.derive(strip_bytes);
        if next.map != self.map {
            next.map.version = next.map.version.saturating_add(1);
            next.map.check().map_err(MapError::Unfit)?;
        }
        Ok(next)
    }

    /// Whether a store that was read has a map that makes sense.
    pub fn check(&self) -> Result<(), String> {
        self.map.check()?;
        let is_of =
            |(server, words): (&ServerInfo, &Words)| (server.role, server.id) == (words.role, words.id);
        let metas = self.map.meta_servers().count();
        let is_dense = self.map.io_servers().zip(0..).all(|(server, id)| server.id == id);
        let is_whole = self.words.len() == self.map.servers.len()
            && self.map.servers.iter().zip(&self.words).all(is_of)
            && self.map.servers[0].role == server_role::META;
        match metas == 1 && is_dense && is_whole && self.ring_servers() > 0 {
            true => Ok(()),
            false => Err("its servers are not those of a cluster".into()),
        }
    }

    fn loses_any(&self, file: &FileMap) -> bool {
        file.io.len() < self.map.io_servers().count()
    }

    fn put(&mut self, role: u8, id: u16, name: &str, state: u8, storage: [u8; 16]) {
        let server = ServerInfo { state, storage, ..ServerInfo::new(id, name, role, Vec::new()) };
        self.map.servers.push(server);
        let none = Vec::new;
        self.words.push(Words { role, id, in_file: none(), own: none(), intended: none() });
    }

    /// Takes over what has changed in a file since it was read last.
    fn take_file(&mut self, file: &FileMap) -> Result<(), MapError> {
        for at in 1..self.map.servers.len() {
            let (server, words) = (&self.map.servers[at], &self.words[at]);
            let is_there = file.io.len() > usize::from(server.id);
            if !is_there && !words.in_file.is_empty() {
                let lost = MapError::lost(file, &server.name, server.id);
                return Err(match (lost, server.storage) {
                    (MapError::Missing { listed, name, id, .. }, [0, ..]) if server.storage == [0; 16] => {
                        MapError::Missing { listed, name, id, why: "is in the map of this cluster" }
                    }
                    (lost, _) => lost,
                });
            }
        }
        for (is, listed) in (0..).zip(&file.io) {
            let of_name = self.map.io_servers().find(|server| server.name == listed.name);
            if let Some(server) = of_name.filter(|server| server.id != is) {
                let name = server.name.clone();
                return Err(MapError::Reordered { name, was: server.id, is });
            }
        }
        self.server_count = file.server_count;
        self.map.servers[0].name.clone_from(&file.meta.name);
        self.say_in_file(0, &file.meta.endpoints);
        for (id, listed) in (0..).zip(&file.io) {
            let at = usize::from(id) + 1;
            if at == self.map.servers.len() {
                self.put(server_role::IO, id, &listed.name, server_state::JOINING, [0; 16]);
            }
            self.map.servers[at].name.clone_from(&listed.name);
            self.say_in_file(at, &listed.endpoints);
        }
        Ok(())
    }

    fn say_in_file(&mut self, at: usize, endpoints: &[Endpoint]) {
        if self.words[at].in_file != endpoints {
            self.words[at].in_file = endpoints.to_vec();
            self.intend(at, endpoints);
        }
    }

    fn say_own(&mut self, at: usize, endpoints: &[Endpoint]) {
        let words = &mut self.words[at];
        if words.own != endpoints {
            words.own = endpoints.to_vec();
            words.intended = endpoints.to_vec();
        }
    }

    /// A server is to be elsewhere. Where it is until it says so is where it was to be before.
    fn intend(&mut self, at: usize, endpoints: &[Endpoint]) {
        let is_used = self.map.servers[at].state == server_state::ACTIVE;
        let words = &mut self.words[at];
        if is_used && words.own.is_empty() {
            words.own = std::mem::take(&mut words.intended);
        }
        words.intended = endpoints.to_vec();
    }

    fn add(&mut self, name: &str, endpoints: &[Endpoint]) -> Result<(), MapError> {
        if let Ok(at) = self.place_of(name) {
            if self.words[at].intended == endpoints {
                return Ok(());
            }
            let address = self.map.servers[at].address().to_owned();
            return Err(MapError::NameTaken { name: name.to_owned(), address });
        }
        let at = self.map.servers.len();
        self.put(server_role::IO, at as u16 - 1, name, server_state::JOINING, [0; 16]);
        self.refuse_taken(at, endpoints)?;
        self.words[at].intended = endpoints.to_vec();
        Ok(())
    }

    fn place_of(&self, name: &str) -> Result<usize, MapError> {
        let names = || self.map.servers.iter().map(|server| server.name.as_str());
        names().position(|one| one == name).ok_or_else(|| MapError::Unknown {
            name: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
        })
    }

    fn refuse_taken(&self, at: usize, endpoints: &[Endpoint]) -> Result<(), MapError> {
        let others = self.map.servers.iter().zip(&self.words).enumerate().filter(|(other, _)| *other != at);
        for (_, (server, words)) in others {
            let is_taken =
                |one: &&Endpoint| one.transport != endpoint::SOCKET && words.intended.contains(one);
            if let Some(taken) = endpoints.iter().find(is_taken) {
                let (address, name) = (taken.address.clone(), server.name.clone());
                return Err(MapError::AddressTaken { address, name });
            }
        }
        Ok(())
    }

    /// Endpoints, chains and the default layout follow from the rest.
    fn derive(&mut self, strip_bytes: u32) {
        for at in 0..self.words.len() {
            let Words { own, intended, .. } = &self.words[at];
            let is_anothers = |one: &Endpoint| {
                one.transport != endpoint::SOCKET
                    && self
                        .words
                        .iter()
                        .enumerate()
                        .any(|(other, words)| other != at && words.intended.contains(one))
            };
            let left = own.iter().filter(|one| !intended.contains(one) && !is_anothers(one));
            let endpoints = intended.iter().chain(left).cloned().collect();
            self.map.servers[at].endpoints = endpoints;
        }
        self.map.chains = self
            .map
            .io_servers()
            .map(|server| ChainInfo { id: server.id, servers: vec![server.id] })
            .collect();
        self.map.default_layout = over(strip_bytes, self.server_count, ring(&self.map));
    }
}

fn ring(map: &ClusterMapReply) -> u16 {
    map.io_servers().take_while(|server| server.state == server_state::ACTIVE).count() as u16
}

/// Over so many servers of a ring; 0: over all.
fn over(strip_bytes: u32, server_count: u16, ring: u16) -> Layout {
    let count = if server_count == 0 { ring } else { server_count.min(ring) };
    Layout::new(strip_bytes, 0, count, ring).expect("a checked cluster file has a valid layout")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_wire::Wire;

    const META: [u8; 16] = [9; 16];

    fn tcp(address: &str) -> Vec<Endpoint> {
        vec![Endpoint::new(endpoint::TCP, address)]
    }

    fn file(servers: &[(&str, &str)]) -> FileMap {
        let io = servers.iter().map(|(name, at)| FileServer { name: (*name).into(), endpoints: tcp(at) });
        FileMap {
            cluster_id: [1; 16],
            meta: FileServer { name: "meta0".into(), endpoints: tcp("m:1") },
            io: io.collect(),
            strip_bytes: 65536,
            server_count: 0,
        }
    }

    fn two() -> FileMap {
        file(&[("io0", "a:1"), ("io1", "b:1")])
    }

    fn came(id: u16, at: &str) -> Event {
        Event::Registered { id, storage: [id as u8 + 1; 16], endpoints: tcp(at), map_version: 0 }
    }

    /// Two servers that have come.
    fn kept() -> KeptMap {
        let kept = KeptMap::first(&two(), META, &[]);
        kept.after(&came(0, "a:1")).unwrap().after(&came(1, "b:1")).unwrap()
    }

    fn addresses(kept: &KeptMap, id: u16) -> Vec<String> {
        let server = kept.map.io_server(id).unwrap();
        server.addresses(endpoint::TCP).map(str::to_owned).collect()
    }

    fn moved(name: &str, at: &str) -> Event {
        Event::Moved { name: name.into(), endpoints: tcp(at) }
    }

    #[test]
    fn the_first_map_is_the_files_and_who_comes_brings_a_storage() {
        let first = KeptMap::first(&two(), META, &[]);
        assert_eq!((first.map.version, first.ring_servers(), first.check()), (1, 2, Ok(())));
        let kept = kept();
        assert_eq!(kept.map.version, 3);
        assert_eq!(kept.map.io_server(1).unwrap().storage, [2; 16]);
        assert_eq!(kept.after(&came(1, "b:1")).unwrap(), kept, "it says so every second");
        assert_eq!(kept.after(&Event::Started(two(), META)).unwrap(), kept);
        assert_eq!(KeptMap::from_bytes(&kept.to_bytes()).unwrap(), kept);
    }

    #[test]
    fn where_servers_were_known_before_there_were_maps_one_more_in_the_file_is_joining() {
        let three = file(&[("io0", "a:1"), ("io1", "b:1"), ("io2", "c:1")]);
        let kept = KeptMap::first(&three, META, &[(0, [1; 16]), (1, [2; 16])]);
        assert_eq!(kept.ring_servers(), 2);
        assert_eq!(kept.after(&came(2, "c:1")).unwrap().ring_servers(), 3);
    }

    #[test]
    fn an_added_server_has_no_new_files_before_it_has_come() {
        let added = Event::Added { name: "io2".into(), endpoints: tcp("c:1") };
        let joining = kept().after(&added).unwrap();
        let server = joining.map.io_server(2).unwrap();
        assert_eq!((server.name.as_str(), server.state), ("io2", server_state::JOINING));
        assert_eq!((joining.map.version, joining.ring_servers()), (4, 2));
        assert_eq!(joining.map.default_layout.server_count(), 2);
        assert_eq!(joining.after(&added).unwrap(), joining, "twice is once");
        let there = joining.after(&came(2, "c:1")).unwrap();
        assert_eq!((there.map.version, there.ring_servers()), (5, 3));
        assert_eq!(there.map.default_layout.server_count(), 3);
        let other = Event::Added { name: "io2".into(), endpoints: tcp("d:1") };
        assert!(matches!(there.after(&other), Err(MapError::NameTaken { .. })));
        let taken = Event::Added { name: "io3".into(), endpoints: tcp("c:1") };
        assert!(matches!(there.after(&taken), Err(MapError::AddressTaken { .. })));
        // The file of before does not know it, which is no reason to lose it; the newest changes nothing.
        assert_eq!(there.after(&Event::Started(two(), META)).unwrap(), there);
        let three = file(&[("io0", "a:1"), ("io1", "b:1"), ("io2", "c:1")]);
        let read = there.after(&Event::Reread(three)).unwrap();
        assert_eq!(read.map, there.map);
        assert!(matches!(read.after(&Event::Reread(two())), Err(MapError::Missing { id: 2, .. })));
    }

    #[test]
    fn a_move_is_safe_in_any_order() {
        let new = file(&[("io0", "a:1"), ("io1", "c:1")]);
        let started = |file: &FileMap| Event::Started(file.clone(), META);
        let told = kept().after(&moved("io1", "c:1")).unwrap();
        assert_eq!(addresses(&told, 1), ["c:1", "b:1"]);
        // It goes on where it was, and says so.
        assert_eq!(told.after(&came(1, "b:1")).unwrap(), told);
        assert_eq!(addresses(&told.after(&came(1, "c:1")).unwrap(), 1), ["c:1"]);
        // The metadata server's file first, then the server.
        let read = kept().after(&started(&new)).unwrap();
        assert_eq!(addresses(&read, 1), ["c:1", "b:1"]);
        assert_eq!(addresses(&read.after(&came(1, "c:1")).unwrap(), 1), ["c:1"]);
        // The server first: the metadata server's file is old, and stays so for a while.
        let came_first = kept().after(&came(1, "c:1")).unwrap();
        assert_eq!(addresses(&came_first, 1), ["c:1"]);
        let restarted = came_first.after(&started(&two())).unwrap();
        assert_eq!(addresses(&restarted, 1), ["c:1"], "an old file changes nothing");
        assert_eq!(addresses(&restarted.after(&started(&new)).unwrap(), 1), ["c:1"]);
    }

    #[test]
    fn the_metadata_server_is_where_it_has_started() {
        let told = kept().after(&moved("meta0", "n:1")).unwrap();
        let at = |kept: &KeptMap| {
            kept.map.servers[0].addresses(endpoint::TCP).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(at(&told), ["n:1", "m:1"]);
        let mut new = two();
        new.meta.endpoints = tcp("n:1");
        assert_eq!(at(&kept().after(&Event::Reread(new.clone())).unwrap()), ["n:1", "m:1"]);
        let started = told.after(&Event::Started(new, META)).unwrap();
        assert_eq!(at(&started), ["n:1"]);
    }

    #[test]
    fn servers_that_change_places_have_no_address_of_another() {
        let swapped = file(&[("io0", "b:1"), ("io1", "c:1")]);
        let read = kept().after(&Event::Started(swapped, META)).unwrap();
        assert_eq!(addresses(&read, 0), ["b:1", "a:1"]);
        assert_eq!(addresses(&read, 1), ["c:1"], "b:1 is the other one's from now on");
        let reordered = file(&[("io1", "b:1"), ("io0", "a:1")]);
        assert!(matches!(kept().after(&Event::Reread(reordered)), Err(MapError::Reordered { .. })));
    }

    #[test]
    fn who_was_told_a_newer_map_than_the_store_has_is_told_one_that_is_newer_still() {
        let event = Event::Registered { id: 0, storage: [1; 16], endpoints: tcp("a:1"), map_version: 70 };
        assert_eq!(kept().after(&event).unwrap().map.version, 71);
    }

    #[test]
    fn while_nobody_has_come_the_file_may_still_lose_servers() {
        let kept = KeptMap::first(&two(), META, &[]);
        let one = kept.after(&Event::Started(file(&[("io0", "a:1")]), META)).unwrap();
        assert_eq!((one.map.version, one.ring_servers()), (2, 1));
    }

    /// What really is: where each server listens, and what each file says.
    #[derive(Debug, Clone)]
    struct World {
        kept: KeptMap,
        at: Vec<Option<String>>,
        files: Vec<FileMap>,
    }

    fn step(world: &mut World, choice: u8, which: usize, address: u8) {
        let count = world.kept.map.io_servers().count();
        let at = format!("h:{address}");
        let id = which % count;
        let name = world.kept.map.io_server(id as u16).unwrap().name.clone();
        let before = world.kept.clone();
        let event = match choice {
            0 => Event::Added { name: format!("new{which}"), endpoints: tcp(&at) },
            1 | 2 => Event::Moved { name, endpoints: tcp(&at) },
            3 | 4 => {
                let stays = world.at[id].clone().filter(|_| choice == 3);
                let at = stays.unwrap_or(at);
                world.at[id] = Some(at.clone());
                came(id as u16, &at)
            }
            // Any file that there ever was, or the newest, changed.
            5 => Event::Reread(world.files[which % world.files.len()].clone()),
            6 => Event::Started(world.files[which % world.files.len()].clone(), META),
            _ => {
                let listed = |server: &ServerInfo| FileServer {
                    name: server.name.clone(),
                    endpoints: server.endpoints[..1].to_vec(),
                };
                let mut file = two();
                file.io = world.kept.map.io_servers().map(listed).collect();
                match choice {
                    7 => file.io[id].endpoints = tcp(&at),
                    8 => drop(file.io.pop()),
                    _ => file.io.swap(0, id),
                }
                world.files.push(file.clone());
                Event::Reread(file)
            }
        };
        let Ok(after) = before.after(&event) else { return };
        assert_eq!(after.check(), Ok(()), "{event:?}");
        assert_eq!(after.after(&event).unwrap(), after, "what is heard twice changes nothing: {event:?}");
        let is_same = ClusterMapReply { version: 0, ..after.map.clone() }
            == ClusterMapReply { version: 0, ..before.map.clone() };
        assert_eq!(after.map.version, before.map.version + u32::from(!is_same), "{event:?}");
        assert!(after.ring_servers() >= before.ring_servers(), "{event:?}");
        for server in before.map.io_servers() {
            let now = after.map.io_server(server.id).expect("no server is lost");
            assert!(server.storage == [0; 16] || now.storage == server.storage);
        }
        world.at.resize(after.map.io_servers().count(), None);
        for (id, at) in world.at.iter().enumerate() {
            let Some(at) = at else { continue };
            let is_there = addresses(&after, id as u16).contains(at);
            let is_anothers = after.words[1..]
                .iter()
                .enumerate()
                .any(|(other, words)| other != id && words.intended == tcp(at));
            assert!(is_there || is_anothers, "I/O server {id} is at {at}: {event:?}, {:?}", after.map);
        }
        world.kept = after;
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(2000))]
        #[test]
        fn versions_rise_with_every_change_and_no_server_or_place_is_lost(
            steps in proptest::collection::vec((0u8..10, 0usize..6, 0u8..8), 1..40)
        ) {
            let kept = kept();
            let mut world =
                World { kept, at: vec![Some("a:1".into()), Some("b:1".into())], files: vec![two()] };
            for (choice, which, address) in steps {
                step(&mut world, choice, which, address);
            }
        }
    }
}
