//! Registers the gateway's programs with the port mapper of its host (RFC 1833), so that clients find them
//! without being told a port. rpcbind is told by IPv4 what serves IPv4, and by IPv6 what serves IPv6:
//!
//! ```text
//!   listens at 192.0.2.7:2049    127.0.0.1:111, version 2
//!              [2001:db8::7]     [::1]:111, version 4
//!              [::]              both
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weft_onc_rpc::portmap::{self, Mapping};
use weft_onc_rpc::{nlm, nsm};

use crate::gateway::{MOUNT_PROGRAM, NFS_PROGRAM, VERSION};
use crate::outbound::{self, Procedure};

/// Where the port mapper of this host is.
pub const LOCAL_MAPPER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), portmap::PORT);

/// The port mappers that are told of these listeners, and which port: the one at `by_ipv4`, and the same by IPv6.
pub(crate) fn mappers_for(by_ipv4: SocketAddr, listeners: &[SocketAddr]) -> Vec<(SocketAddr, u16)> {
    let by_ipv6 = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), by_ipv4.port());
    let serves_ipv4 = |at: &&SocketAddr| at.is_ipv4() || at.ip().is_unspecified();
    let of_ipv4 = listeners.iter().find(serves_ipv4).map(|at| (by_ipv4, at.port()));
    let of_ipv6 = listeners.iter().find(|at| at.is_ipv6()).map(|at| (by_ipv6, at.port()));
    of_ipv4.into_iter().chain(of_ipv6).collect()
}

/// What was registered.
pub(crate) struct Registration {
    mapper: SocketAddr,
    programs: Vec<(u32, u32)>,
}

/// Programs, their versions, and whether they come in datagrams too.
fn programs(with_locks: bool) -> Vec<(u32, u32, bool)> {
    let mut programs = vec![(NFS_PROGRAM, VERSION, false), (MOUNT_PROGRAM, VERSION, false)];
    if with_locks {
        programs.extend([(nlm::PROGRAM, nlm::VERSION, true), (nsm::PROGRAM, nsm::VERSION, true)]);
    }
    programs
}

impl Registration {
    /// Registers all that can be. What cannot is said in the log, with what to do instead.
    pub(crate) async fn begin(mapper: SocketAddr, port: u16, with_locks: bool) -> Registration {
        let mut done = Vec::new();
        let whose = if mapper.is_ipv6() { "Clients by IPv6" } else { "Clients" };
        for (program, version, in_datagrams) in programs(with_locks) {
            match register(mapper, port, (program, version), in_datagrams).await {
                Ok(()) => done.push((program, version)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    tracing::warn!(
                        "rpcbind at {mapper} does not take program {program}: {error}. {whose} find that one; \
                         stop it, or give them port={port},mountport={port},nolock"
                    );
                }
                Err(error) => {
                    tracing::warn!(
                        "rpcbind at {mapper} cannot be used: {error}. {whose} do not find this gateway by \
                         themselves: they mount with port={port},mountport={port},nolock"
                    );
                    break;
                }
            }
        }
        if !done.is_empty() {
            tracing::info!("{} programs at port {port} are registered with rpcbind at {mapper}", done.len());
        }
        Registration { mapper, programs: done }
    }

    /// Takes back what was registered.
    pub(crate) async fn end(self) {
        for (program, version) in self.programs {
            if let Err(error) = take_back(self.mapper, (program, version)).await {
                tracing::warn!("rpcbind at {} keeps program {program} of this gateway: {error}", self.mapper);
                return;
            }
        }
    }
}

async fn register(
    mapper: SocketAddr,
    port: u16,
    (program, version): (u32, u32),
    in_datagrams: bool,
) -> io::Result<()> {
    take_back_stale(mapper, port, (program, version)).await?;
    let protocols = [portmap::TCP, portmap::UDP];
    for protocol in &protocols[..1 + usize::from(in_datagrams)] {
        let mapping = Mapping { program, version, protocol: *protocol, port };
        if !outbound::change_mapping(mapper, portmap::SET, &mapping).await? {
            let text =
                "another server on this host has it, or rpcbind lets only root register (its option -i)";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
    }
    Ok(())
}

/// Takes back what a gateway that was killed has left: a port where nobody listens, or this one.
async fn take_back_stale(mapper: SocketAddr, port: u16, (program, version): (u32, u32)) -> io::Result<()> {
    let known = match outbound::port_of(mapper, program, version).await {
        Ok(known) => known,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let null = Procedure { program, version, number: 0 };
    let is_served = known != port && {
        let called = outbound::call(SocketAddr::new(mapper.ip(), known), null, &[]).await;
        !called.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if !is_served {
        take_back(mapper, (program, version)).await?;
    }
    Ok(())
}

/// Takes back both protocols: version 2 would do so by one call, version 4 takes back what is named.
async fn take_back(mapper: SocketAddr, (program, version): (u32, u32)) -> io::Result<()> {
    for protocol in [portmap::TCP, portmap::UDP] {
        let mapping = Mapping { program, version, protocol, port: 0 };
        outbound::change_mapping(mapper, portmap::UNSET, &mapping).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_its_mapper() {
        let mappers = |listeners: &[&str]| {
            let listeners: Vec<SocketAddr> = listeners.iter().map(|at| at.parse().unwrap()).collect();
            let mappers = mappers_for(LOCAL_MAPPER, &listeners);
            mappers.into_iter().map(|(mapper, port)| format!("{mapper} {port}")).collect::<Vec<_>>()
        };
        assert_eq!(mappers(&["192.0.2.7:2049"]), ["127.0.0.1:111 2049"]);
        assert_eq!(mappers(&["[2001:db8::7]:2049"]), ["[::1]:111 2049"]);
        assert_eq!(mappers(&["[::]:2049"]), ["127.0.0.1:111 2049", "[::1]:111 2049"]);
        assert_eq!(mappers(&["[::1]:7", "127.0.0.1:8"]), ["127.0.0.1:111 8", "[::1]:111 7"]);
    }
}
