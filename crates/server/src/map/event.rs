//! What the map follows from: cluster files, and what was heard of servers.

use crate::config::{ClusterConfig, ServerConfig};
use weft_wire::messages::{Endpoint, endpoint};

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
