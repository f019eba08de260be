//! TCP.

use std::time::Duration;

use weft_transport::{Link, LinkError, TcpOptions, connect_tcp};
use weft_wire::messages::{ServerInfo, endpoint};

use super::dialled::{Dialled, Greet};
use super::way::{Wanted, Way};
use crate::error::Error;

/// How long one attempt may take, which needs nothing but the network and the other kernel: what is tried
/// after an outage is not to wait for the end of an attempt that began before.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

pub(super) struct Tcp;

impl Way for Tcp {
    fn title(&self) -> &'static str {
        "TCP"
    }

    fn rank(&self) -> u8 {
        2
    }

    fn leads_to(&self, server: &ServerInfo) -> bool {
        server.addresses(endpoint::TCP).next().is_some()
    }

    fn dial(&self, wanted: &Wanted<'_>, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        if !self.leads_to(wanted.server) {
            return Err(wanted.unreachable(vec!["the cluster's map has no TCP address of it".into()]));
        }
        let connect = |address, left: Duration| -> Result<Box<dyn Link>, LinkError> {
            Ok(Box::new(connect_tcp(address, &TcpOptions::default(), left.min(CONNECT_TIMEOUT))?))
        };
        wanted.first_that_answers(endpoint::TCP, greet, &|address, greet| {
            let mut link =
                wanted.connect_to_host(address, &connect).map_err(|cause| wanted.unreachable(vec![cause]))?;
            let proven = greet(&mut *link)?;
            Ok(Dialled::new(link, proven))
        })
    }
}
