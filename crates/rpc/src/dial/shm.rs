//! Shared memory, over the Unix socket of a server on this host.

use std::path::Path;

use weft_transport::{LinkError, ShmOptions, connect_shm};
use weft_wire::messages::{ServerInfo, endpoint};

use super::dialled::{Dialled, Greet};
use super::way::{Wanted, Way};
use crate::error::Error;

pub(super) struct Shm;

impl Way for Shm {
    fn title(&self) -> &'static str {
        "shared memory"
    }

    fn rank(&self) -> u8 {
        0
    }

    /// Whether the server may be on this host.
    fn leads_to(&self, server: &ServerInfo) -> bool {
        server.addresses(endpoint::SOCKET).any(|path| Path::new(path).exists())
    }

    fn serves_keyless(&self) -> bool {
        true
    }

    fn dial(&self, wanted: &Wanted<'_>, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        if wanted.server.socket_path().is_empty() {
            let text =
                "it has no Unix socket, which shared memory needs; connect with transport auto, rdma or tcp";
            return Err(wanted.impossible(text));
        }
        wanted.first_that_answers(endpoint::SOCKET, greet, &|path, greet| {
            let failed = |error: LinkError| wanted.unreachable(vec![error.to_string()]);
            let mut link =
                connect_shm(Path::new(path), ShmOptions::default(), wanted.left()).map_err(failed)?;
            let proven = greet(&mut link)?;
            link.set_up(wanted.left()).map_err(failed)?;
            Ok(Dialled::new(Box::new(link), proven))
        })
    }
}
