//! The map of the cluster: its servers, their addresses, and which servers hold the data of a layout's slot.
//!
//! ```text
//! layout of a file            map, version 7
//! ring slot 0 1 2 ──► chain id │ chain 2 ──► I/O server 2 "io2", storage 9f…, tcp n2:7400, rdma n2:7401
//!                              │ chain 1 ──► I/O server 1 …
//!                              │ chain 0 ──► I/O server 0 …        meta server 0 …
//! ```
//!
//! The metadata server keeps the map, and raises its version with each change. Every server serves it. Ids
//! are unique among the servers of a role, rise in order, and are never reused. A chain has one server today.

use crate::Wire;
use crate::limits::{ADDRESS_BYTES_MAX, ENDPOINTS_PER_SERVER_MAX, MAP_BYTES_MAX, SERVERS_MAX};
use weft_layout::{ChainId, Layout};

/// Values of [`ServerInfo::role`].
pub mod server_role {
    /// Keeps names and attributes.
    pub const META: u8 = 0;
    /// Keeps file data.
    pub const IO: u8 = 1;
}

/// Values of [`ServerInfo::state`].
pub mod server_state {
    /// It is in use.
    pub const ACTIVE: u8 = 0;
    /// It was added and has not registered yet. No new file is striped over it.
    pub const JOINING: u8 = 1;
}

/// Values of [`Endpoint::transport`].
pub mod endpoint {
    /// `host:port`.
    pub const TCP: u8 = 0;
    /// Path of a Unix socket on the server's own host.
    pub const SOCKET: u8 = 1;
    /// `host:port` of an RDMA adapter. The server may have no adapter even so.
    pub const RDMA: u8 = 2;
    /// Their names, by number.
    pub const NAMES: [&str; 3] = ["tcp", "socket", "rdma"];
}

crate::message! {
    /// See [`crate::Op::ClusterMap`].
    pub struct ClusterMapRequest {}

    /// An address of a server.
    pub struct Endpoint {
        /// See [`endpoint`].
        pub transport: u8,
        /// The address, in the form of the transport.
        pub address: String,
    }

    /// One server of the cluster.
    pub struct ServerInfo {
        /// The id, unique among the servers of its role and never reused.
        pub id: u16,
        /// Name in the cluster file.
        pub name: String,
        /// See [`server_role`].
        pub role: u8,
        /// See [`server_state`].
        pub state: u8,
        /// Its storage; zeros: not known yet.
        pub storage: [u8; 16],
        /// Its addresses, for each transport the best first. A server that is moving has its old addresses
        /// last.
        pub endpoints: Vec<Endpoint>,
    }

    /// The I/O servers that hold the same data files.
    pub struct ChainInfo {
        /// The number in layouts.
        pub id: ChainId,
        /// Ids of I/O servers; one today.
        pub servers: Vec<u16>,
    }

    /// Reply to [`ClusterMapRequest`].
    pub struct ClusterMapReply {
        /// Rises with every change; at least 1.
        pub version: u32,
        /// The cluster.
        pub cluster_id: [u8; 16],
        /// All servers, by role and id.
        pub servers: Vec<ServerInfo>,
        /// All chains, by id.
        pub chains: Vec<ChainInfo>,
        /// The default layout of files, with first server 0.
        pub default_layout: Layout,
    }

    /// See [`crate::Op::AddServer`].
    pub struct AddServerRequest {
        /// Name in the cluster file. If the server exists with these addresses, nothing changes.
        pub name: String,
        /// Its addresses.
        pub endpoints: Vec<Endpoint>,
    }

    /// See [`crate::Op::MoveServer`].
    pub struct MoveServerRequest {
        /// Name in the cluster file.
        pub name: String,
        /// Its new addresses. Until it registers with them, its current addresses stay in the map after them.
        pub endpoints: Vec<Endpoint>,
    }

    /// Reply to [`AddServerRequest`] and [`MoveServerRequest`].
    pub struct MapChangedReply {
        /// The server's id.
        pub id: u16,
        /// The new version of the map.
        pub map_version: u32,
    }
}

impl Endpoint {
    /// An address of a transport of [`endpoint`].
    pub fn new(transport: u8, address: impl Into<String>) -> Endpoint {
        Endpoint { transport, address: address.into() }
    }

    /// The name of its transport; "unknown" for one that a newer release has.
    pub fn transport_name(&self) -> &'static str {
        endpoint::NAMES.get(usize::from(self.transport)).copied().unwrap_or("unknown")
    }
}

impl ServerInfo {
    /// A server in use whose storage is not known yet.
    pub fn new(id: u16, name: impl Into<String>, role: u8, endpoints: Vec<Endpoint>) -> ServerInfo {
        ServerInfo { id, name: name.into(), role, state: server_state::ACTIVE, storage: [0; 16], endpoints }
    }

    /// Its addresses of a transport of [`endpoint`], the best first.
    pub fn addresses(&self, transport: u8) -> impl Iterator<Item = &str> + Clone {
        let of_it = self.endpoints.iter().filter(move |endpoint| endpoint.transport == transport);
        of_it.map(|endpoint| endpoint.address.as_str())
    }

    /// Path of its Unix socket; empty if it has none.
    pub fn socket_path(&self) -> &str {
        self.addresses(endpoint::SOCKET).next().unwrap_or_default()
    }

    /// An address for display.
    pub fn address(&self) -> &str {
        self.addresses(endpoint::TCP).next().unwrap_or(self.socket_path())
    }
}

impl ClusterMapReply {
    /// One chain for each I/O server.
    pub fn single_chains(io_servers: u16) -> Vec<ChainInfo> {
        (0..io_servers).map(|id| ChainInfo { id: ChainId::of_single(id), servers: vec![id] }).collect()
    }

    /// Metadata servers, by id.
    pub fn meta_servers(&self) -> impl Iterator<Item = &ServerInfo> + Clone {
        self.of_role(server_role::META)
    }

    /// I/O servers, by id.
    pub fn io_servers(&self) -> impl Iterator<Item = &ServerInfo> + Clone {
        self.of_role(server_role::IO)
    }

    fn of_role(&self, role: u8) -> impl Iterator<Item = &ServerInfo> + Clone {
        self.servers.iter().filter(move |server| server.role == role)
    }

    /// The I/O server with this id.
    pub fn io_server(&self, id: u16) -> Option<&ServerInfo> {
        self.io_servers().find(|server| server.id == id)
    }

    /// The first I/O server of a chain.
    pub fn server_of_chain(&self, id: ChainId) -> Option<&ServerInfo> {
        let chain = self.chains.iter().find(|chain| chain.id == id)?;
        self.io_server(*chain.servers.first()?)
    }

    /// Checks that a map is usable, whoever sent it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        let ids = |role| self.of_role(role).map(|server| server.id).collect::<Vec<_>>();
        let (metas, ios) = (ids(server_role::META), ids(server_role::IO));
        if self.version == 0 {
            return Err("it has no version".into());
        }
        if metas.is_empty() || ios.is_empty() {
            return Err("it needs a metadata server and an I/O server".into());
        }
        if metas.len() + ios.len() != self.servers.len() {
            return Err("a server in it has a role that is not known".into());
        }
        if ios.len() > SERVERS_MAX || self.to_bytes().len() > MAP_BYTES_MAX {
            return Err(format!(
                "it is too large: at most {SERVERS_MAX} I/O servers, and {MAP_BYTES_MAX} bytes"
            ));
        }
        fn rising<T: Ord>(ids: &[T]) -> bool {
            ids.windows(2).all(|pair| pair[0] < pair[1])
        }
        let chains: Vec<ChainId> = self.chains.iter().map(|chain| chain.id).collect();
        if !rising(&metas) || !rising(&ios) || !rising(&chains) {
            return Err("its ids are not in rising order".into());
        }
        let mut names: Vec<&str> = self.servers.iter().map(|server| server.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("two servers in it are called `{}`", twice[0]));
        }
        for server in &self.servers {
            let count = server.endpoints.len();
            if count == 0 || count > ENDPOINTS_PER_SERVER_MAX {
                return Err(format!(
                    "`{}` has {count} addresses in it; 1 to {ENDPOINTS_PER_SERVER_MAX} are possible",
                    server.name
                ));
            }
            if server
                .endpoints
                .iter()
                .any(|one| one.address.is_empty() || one.address.len() > ADDRESS_BYTES_MAX)
            {
                return Err(format!("an address of `{}` in it is empty or too long", server.name));
            }
        }
        for chain in &self.chains {
            if chain.servers.is_empty() || chain.servers.iter().any(|id| ios.binary_search(id).is_err()) {
                return Err(format!("chain {} in it has no server, or one that is not there", chain.id));
            }
        }
        let layout = &self.default_layout;
        let chain_is_there = |slot| chains.binary_search(&layout.chain(slot)).is_ok();
        if !(0..layout.server_count()).all(chain_is_there) {
            return Err("its default layout needs a chain that is not there".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> ClusterMapReply {
        let server = |role, id, name: &str| ServerInfo {
            id,
            name: name.into(),
            role,
            state: server_state::ACTIVE,
            storage: [id as u8; 16],
            endpoints: vec![
                Endpoint { transport: endpoint::RDMA, address: format!("{name}:2") },
                Endpoint { transport: endpoint::TCP, address: format!("{name}:1") },
                Endpoint { transport: endpoint::TCP, address: format!("{name}:3") },
            ],
        };
        ClusterMapReply {
            version: 3,
            cluster_id: [1; 16],
            servers: vec![
                server(server_role::META, 0, "meta0"),
                server(server_role::IO, 0, "io0"),
                server(server_role::IO, 2, "io2"),
            ],
            chains: vec![
                ChainInfo { id: ChainId(0), servers: vec![2] },
                ChainInfo { id: ChainId(1), servers: vec![0] },
            ],
            default_layout: Layout::new(65536, 0, 2, 2).unwrap(),
        }
    }

    #[test]
    fn servers_are_found_by_role_id_and_chain() {
        let map = map();
        assert_eq!(map.check(), Ok(()));
        assert_eq!(map.io_server(2).unwrap().name, "io2");
        assert_eq!(map.io_server(1), None);
        assert_eq!(map.server_of_chain(ChainId(0)).unwrap().name, "io2");
        assert_eq!(map.server_of_chain(ChainId(2)), None);
        assert_eq!(map.meta_servers().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["meta0"]);
        let io0 = map.io_server(0).unwrap();
        assert_eq!(io0.addresses(endpoint::TCP).collect::<Vec<_>>(), ["io0:1", "io0:3"]);
        assert_eq!((io0.address(), io0.socket_path()), ("io0:1", ""));
    }

    #[test]
    fn a_map_that_cannot_be_gone_by_is_told() {
        type Harm = fn(&mut ClusterMapReply);
        let harms: &[(&str, Harm)] = &[
            ("version", |map| map.version = 0),
            ("needs a metadata server", |map| map.servers.retain(|server| server.role == server_role::IO)),
            ("needs a metadata server", |map| map.servers.truncate(1)),
            ("role", |map| map.servers[1].role = 7),
            ("too large", |map| map.servers[0].name = "n".repeat(MAP_BYTES_MAX)),
            ("rising", |map| map.servers[2].id = 0),
            ("rising", |map| map.chains[1].id = ChainId(0)),
            ("called `io0`", |map| map.servers[2].name = "io0".into()),
            ("has 0 addresses", |map| map.servers[2].endpoints.clear()),
            ("empty or too long", |map| map.servers[2].endpoints[0].address.clear()),
            ("chain 1", |map| map.chains[1].servers.clear()),
            ("chain 0", |map| map.chains[0].servers = vec![1]),
            ("default layout", |map| map.chains.truncate(1)),
        ];
        for (told, harm) in harms {
            let mut map = map();
            harm(&mut map);
            let text = map.check().unwrap_err();
            assert!(text.contains(told), "{told}: {text}");
        }
    }
}
