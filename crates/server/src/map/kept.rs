//! The map with all that its next version follows from.

use super::error::MapError;
use super::event::{Event, FileMap};
use crate::config::ClusterConfig;
use weft_layout::{ChainId, Layout};
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

/// The map of a new cluster, as its file has it.
pub(crate) fn first_map(config: &ClusterConfig) -> ClusterMapReply {
    KeptMap::first(&FileMap::of(config), [0; 16], &[]).map
}

impl KeptMap {
    /// The first map of a cluster. `known` are the I/O servers that have come before there were maps, with
    /// their storages; where some have, the others are joining.
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
                let lost = MapError::lost(file.io.len(), &server.name, server.id);
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
            .map(|server| ChainInfo { id: ChainId::of_single(server.id), servers: vec![server.id] })
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
