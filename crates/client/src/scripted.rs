//! A client of a cluster that is not there, for tests that send nothing.

use weft_layout::Layout;
use weft_wire::keys::IssuedKey;
use weft_wire::messages::{ClusterMapReply, Endpoint, ServerInfo, endpoint, server_role};
use weft_wire::security::Key;

use crate::dial::{Dial, Dialled, Greet, Wish};
use crate::error::{Error, ErrorKind};
use crate::{Client, ConnectOptions};

struct Nowhere;

impl Dial for Nowhere {
    fn dial(&self, _: &ServerInfo, _: &Wish, _: &mut Greet<'_>) -> Result<Dialled, Error> {
        Err(Error::new("connect", ErrorKind::Unreachable, "there is no server"))
    }
}

/// A client that reaches no server.
pub(crate) fn some_client() -> Client {
    let server = |name, role| ServerInfo::new(0, name, role, vec![Endpoint::new(endpoint::TCP, "nowhere:1")]);
    let map = ClusterMapReply {
        version: 1,
        cluster_id: [1; 16],
        servers: vec![server("meta0", server_role::META), server("io0", server_role::IO)],
        chains: ClusterMapReply::single_chains(1),
        default_layout: Layout::new(65536, 0, 1, 1).expect("a layout"),
    };
    let key = Some(IssuedKey::of_cluster(&Key([1; 32])));
    let options = ConnectOptions { key, ..ConnectOptions::default() };
    Client::over(map, options, Box::new(Nowhere)).expect("a sound map")
}
