//! Registers the gateway's programs with the port mapper of its host (RFC 1833, 3), so that clients find them
//! without being told a port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use weft_onc_rpc::portmap::{self, Mapping};
use weft_onc_rpc::{nlm, nsm};

use crate::gateway::{MOUNT_PROGRAM, NFS_PROGRAM, VERSION};
use crate::outbound::{self, Procedure};

/// Where the port mapper of this host is.
pub const LOCAL_MAPPER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), portmap::PORT);

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
        for (program, version, in_datagrams) in programs(with_locks) {
            match register(mapper, port, (program, version), in_datagrams).await {
                Ok(()) => done.push((program, version)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    tracing::warn!(
                        "rpcbind at {mapper} does not take program {program}: {error}. Clients find that one; \
                         stop it, or give clients port={port},mountport={port},nolock"
                    );
                }
                Err(error) => {
                    tracing::warn!(
                        "rpcbind at {mapper} cannot be used: {error}. Clients do not find this gateway by \
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
            let mapping = Mapping { program, version, protocol: portmap::TCP, port: 0 };
            if let Err(error) = outbound::change_mapping(self.mapper, portmap::UNSET, &mapping).await {
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
        let mapping = Mapping { program, version, protocol: portmap::TCP, port: 0 };
        outbound::change_mapping(mapper, portmap::UNSET, &mapping).await?;
    }
    Ok(())
}
