//! Making connections: which transport, and what to do where it does not work.
//!
//! | asked for | server has a Unix socket here | else |
//! | --- | --- | --- |
//! | `auto` | shared memory; TCP where that fails, and why is kept | TCP |
//! | `tcp` | TCP | TCP |
//! | `shm` | shared memory or an error | an error |

use std::net::ToSocketAddrs;
use std::path::Path;
use std::time::{Duration, Instant};

use weft_transport::{Link, ShmOptions, TcpOptions, connect_shm, connect_tcp};
use weft_wire::messages::{ProveReply, ServerInfo};

use crate::Transport;
use crate::error::{Error, ErrorKind};

/// The handshake, done on a connection before anything else.
pub type Greet<'a> = dyn FnMut(&mut dyn Link) -> Result<ProveReply, Error> + 'a;

/// A connection on which the handshake is done.
pub struct Dialled {
    /// It.
    pub link: Box<dyn Link>,
    /// What the server said.
    pub proven: ProveReply,
    /// Why not over shared memory, where that was tried and failed.
    pub fallback: Option<String>,
}

/// Makes connections to servers. The network's is built in; tests and simulations give their own.
pub trait Dial: Send + Sync {
    /// Connects to `server` and calls `greet`.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] is tried again for as long as the operation may take; others are final.
    fn dial(&self, server: &ServerInfo, greet: &mut Greet<'_>) -> Result<Dialled, Error>;
}

/// Over TCP and Unix sockets.
pub(crate) struct NetworkDial {
    pub transport: Transport,
    pub timeout: Duration,
}

impl Dial for NetworkDial {
    fn dial(&self, server: &ServerInfo, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        let has_socket = !server.socket_path.is_empty();
        match self.transport {
            Transport::Tcp => self.tcp(server, greet, None),
            Transport::Shm if has_socket => self.shm(server, greet),
            Transport::Shm => {
                let text =
                    "it has no Unix socket, which shared memory needs; connect with transport auto or tcp";
                Err(Error::new("connect", ErrorKind::Configuration, text).at_server(&server.name))
            }
            Transport::Auto if has_socket && Path::new(&server.socket_path).exists() => {
                match self.shm(server, greet) {
                    Ok(dialled) => Ok(dialled),
                    Err(error) => self.tcp(server, greet, Some(error.to_string())),
                }
            }
            Transport::Auto => self.tcp(server, greet, None),
        }
    }
}

impl NetworkDial {
    fn shm(&self, server: &ServerInfo, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        let unreachable = |error: weft_transport::LinkError| {
            Error::new("connect", ErrorKind::Unreachable, error.to_string()).at_server(&server.name)
        };
        let path = Path::new(&server.socket_path);
        let mut link = connect_shm(path, ShmOptions::default(), self.timeout).map_err(unreachable)?;
        let proven = greet(&mut link)?;
        link.set_up(self.timeout).map_err(unreachable)?;
        Ok(Dialled { link: Box::new(link), proven, fallback: None })
    }

    fn tcp(
        &self,
        server: &ServerInfo,
        greet: &mut Greet<'_>,
        fallback: Option<String>,
    ) -> Result<Dialled, Error> {
        let deadline = Instant::now() + self.timeout;
        let mut causes = Vec::new();
        for address in &server.addresses {
            let resolved = match address.to_socket_addrs() {
                Ok(resolved) => resolved,
                Err(error) => {
                    causes.push(format!("cannot look up {address}: {error}"));
                    continue;
                }
            };
            for address in resolved {
                let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
                match connect_tcp(address, &TcpOptions::default(), left) {
                    Ok(mut link) => {
                        let proven = greet(&mut link)?;
                        return Ok(Dialled { link: Box::new(link), proven, fallback });
                    }
                    Err(error) => causes.push(error.to_string()),
                }
            }
        }
        if server.addresses.is_empty() {
            causes.push("the cluster's map has no TCP address of it".to_string());
        }
        causes.extend(fallback);
        Err(Error::new("connect", ErrorKind::Unreachable, causes.join("; ")).at_server(&server.name))
    }
}
