//! What a transport is to a client, and what all of them do alike: addresses in turn, each with its share of the time.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use weft_transport::{Link, LinkError};
use weft_wire::messages::{Endpoint, ServerInfo};
use weft_wire::security::Key;

use super::dialled::{Dialled, Greet, Wish, is_of_another_cluster};
use crate::deadline::{self, Operation};
use crate::error::{Error, ErrorKind};

/// One transport.
pub(super) trait Way: Send + Sync {
    /// Its name where a reason is given: "shared memory".
    fn title(&self) -> &'static str;

    /// `auto` tries the transport of the least rank first. The last one is tried whatever [`Way::leads_to`] says.
    fn rank(&self) -> u8;

    /// Whether it is worth trying, as far as can be seen before connecting.
    fn leads_to(&self, server: &ServerInfo) -> bool;

    /// Whether clients without a key are served over it.
    fn serves_keyless(&self) -> bool {
        false
    }

    /// Whether connections are spread over several addresses of a server ([`Wish::rail`]).
    fn has_rails(&self) -> bool {
        false
    }

    /// Connects, and greets the server.
    ///
    /// # Errors
    /// As [`super::Dial::dial`].
    fn dial(&self, wanted: &Wanted<'_>, greet: &mut Greet<'_>) -> Result<Dialled, Error>;

    /// No transport leads to the server: it is down itself.
    fn forget_failures(&self, _server: &ServerInfo) {}
}

/// A connection that is wanted.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// To this server.
    pub server: &'a ServerInfo,
    /// What for.
    pub wish: &'a Wish,
    /// All attempts together end after this time.
    pub timeout: Duration,
    /// What proves, before there is an RDMA connection, that the client has a key; `None`: it has none.
    pub knock: Option<&'a Key>,
    /// This transport was asked for by name: no other takes its place.
    pub must: bool,
}

impl Wanted<'_> {
    /// The time that is left.
    pub fn left(&self) -> Duration {
        deadline::left(self.timeout)
    }

    /// The share of one of so many attempts that are left.
    pub fn share(&self, left_to_try: usize) -> Operation {
        Operation::part(self.left() / left_to_try.max(1) as u32)
    }

    /// The server cannot be reached now.
    pub fn unreachable(&self, causes: Vec<String>) -> Error {
        Error::new("connect", ErrorKind::Unreachable, causes.join("; ")).at_server(&self.server.name)
    }

    /// The server cannot be reached in this way at all.
    pub fn impossible(&self, text: impl Into<String>) -> Error {
        Error::new("connect", ErrorKind::Configuration, text).at_server(&self.server.name)
    }

    /// Connects to the first address of a kind ([`weft_wire::messages::endpoint`]) at which the server itself answers.
    pub fn first_that_answers(
        &self,
        kind: u8,
        greet: &mut Greet<'_>,
        connect: &dyn Fn(&str, &mut Greet<'_>) -> Result<Dialled, Error>,
    ) -> Result<Dialled, Error> {
        let addresses = self.server.addresses(kind);
        let mut left_to_try = addresses.clone().count();
        let (mut causes, mut others) = (Vec::new(), None);
        for address in addresses {
            let attempt = self.share(left_to_try);
            left_to_try -= 1;
            let dialled = connect(address, greet);
            drop(attempt);
            match dialled {
                Ok(dialled) => {
                    return Ok(Dialled { endpoint: Some(Endpoint::new(kind, address)), ..dialled });
                }
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    causes.push(error.detail().to_string())
                }
                Err(error) if is_of_another_cluster(&error) => others = Some(error),
                Err(error) => return Err(error),
            }
        }
        match others {
            Some(error) if causes.is_empty() => Err(error),
            others => {
                causes.extend(others.map(|error| error.detail().to_string()));
                Err(self.unreachable(causes))
            }
        }
    }

    /// Connects to what a `host:port` of the cluster's map stands for.
    pub fn connect_to_host(
        &self,
        address: &str,
        connect: &dyn Fn(SocketAddr, Duration) -> Result<Box<dyn Link>, LinkError>,
    ) -> Result<Box<dyn Link>, String> {
        let resolved: Vec<SocketAddr> = address
            .to_socket_addrs()
            .map_err(|error| format!("cannot look up {address}: {error}"))?
            .collect();
        let mut causes = Vec::new();
        for (at, address) in resolved.iter().copied().enumerate() {
            let _attempt = self.share(resolved.len() - at);
            match connect(address, self.left()) {
                Ok(link) => return Ok(link),
                Err(error) => causes.push(error.to_string()),
            }
        }
        Err(causes.join("; "))
    }
}
