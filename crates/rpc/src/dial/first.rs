//! The first question to a cluster, for its map, to the one server that is known.

use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use weft_transport::{Link, ShmOptions, TcpLink, TcpOptions, connect_shm, connect_tcp};
use weft_wire::messages::{ClusterMapReply, ClusterMapRequest};

use crate::error::{Error, ErrorKind};
use crate::following::check_map;
use crate::greet::{Identity, ask};
use crate::host::random;

/// A server of the cluster, by address.
#[derive(Debug, Clone, Copy)]
pub struct FirstServer<'a> {
    /// Its Unix socket, which is tried first.
    pub socket: Option<&'a str>,
    /// Its host's name or address; it is for clients that have a key.
    pub host: &'a str,
    /// Its TCP port.
    pub port: u16,
}

impl FirstServer<'_> {
    /// Connects, asks for the cluster's map, and checks it.
    ///
    /// # Errors
    /// At once, if the server cannot be reached, does not know the key, refuses, or sends a map that is not
    /// sound.
    pub fn fetch_map(&self, identity: &Identity, timeout: Duration) -> Result<ClusterMapReply, Error> {
        let mut causes = Vec::new();
        if let Some(socket) = self.socket {
            match connect_shm(socket.as_ref(), ShmOptions::default(), timeout) {
                Ok(mut link) => return fetch_over(&mut link, identity, timeout),
                Err(error) => causes.push(error.to_string()),
            }
        }
        if !identity.is_keyless() {
            match self.connect(timeout)? {
                Ok(mut link) => return fetch_over(&mut link, identity, timeout),
                Err(mut refused) => causes.append(&mut refused),
            }
        }
        Err(unreachable(causes.join("; ")))
    }

    /// Connects and asks nothing, to tell a wrong name or port from a missing key.
    ///
    /// # Errors
    /// The name is unknown, or the connection is refused.
    pub fn reach(&self, timeout: Duration) -> Result<(), Error> {
        self.connect(timeout)?.map(drop).map_err(|refused| unreachable(refused.join("; ")))
    }

    /// A connection to the first of its addresses that accepts one, or why none does.
    fn connect(&self, timeout: Duration) -> Result<Result<TcpLink, Vec<String>>, Error> {
        let addresses = (self.host, self.port)
            .to_socket_addrs()
            .map_err(|error| unreachable(format!("cannot look up {}: {error}", self.host)))?;
        let mut refused = Vec::new();
        for address in addresses {
            match connect_tcp(address, &TcpOptions::default(), timeout) {
                Ok(link) => return Ok(Ok(link)),
                Err(error) => refused.push(error.to_string()),
            }
        }
        Ok(Err(refused))
    }
}

fn fetch_over(link: &mut dyn Link, identity: &Identity, timeout: Duration) -> Result<ClusterMapReply, Error> {
    let proven = identity.greet(link, random()?, timeout)?.proven;
    let map = ask(link, 3, &ClusterMapRequest {}, Instant::now() + timeout)?;
    check_map(&map, &proven.cluster_id).map_err(|error| error.at_server(link.peer()))?;
    Ok(map)
}

fn unreachable(cause: String) -> Error {
    Error::new("connect", ErrorKind::Unreachable, cause)
}
