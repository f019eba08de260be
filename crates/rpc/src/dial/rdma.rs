//! RDMA, over the rails of a server: one that fails gives way to the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_wire::messages::{Endpoint, ServerInfo, endpoint};

use super::dialled::{Dialled, Greet};
use super::way::{Wanted, Way};
use crate::error::{Error, ErrorKind};
use crate::rails::Rails;
use crate::rdma::RdmaSource;
use crate::wait::lock;

/// How long a connection may take to come about where something else is at hand: another rail, or another
/// transport.
const OPTIONAL_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Rdma {
    source: Arc<RdmaSource>,
    /// By the servers' names; with the addresses that they are of.
    rails: Mutex<HashMap<String, (Vec<String>, Rails)>>,
}

impl Rdma {
    pub fn new(source: &Arc<RdmaSource>) -> Rdma {
        Rdma { source: source.clone(), rails: Mutex::default() }
    }

    fn with_rails<T>(&self, server: &ServerInfo, act: impl FnOnce(&mut Rails) -> T) -> T {
        let mut all = lock(&self.rails);
        let addresses = server.addresses(endpoint::RDMA);
        let anew = || {
            let addresses: Vec<String> = addresses.clone().map(str::to_string).collect();
            let rails = Rails::new(server.id, addresses.len());
            (addresses, rails)
        };
        let (known, rails) = all.entry(server.name.clone()).or_insert_with(anew);
        if !addresses.clone().eq(known.iter()) {
            (*known, *rails) = anew();
        }
        act(rails)
    }
}

impl Way for Rdma {
    fn title(&self) -> &'static str {
        "RDMA"
    }

    fn rank(&self) -> u8 {
        1
    }

    fn leads_to(&self, server: &ServerInfo) -> bool {
        server.addresses(endpoint::RDMA).next().is_some()
    }

    fn has_rails(&self) -> bool {
        true
    }

    fn dial(&self, wanted: &Wanted<'_>, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        let Wanted { server, wish, must, .. } = *wanted;
        let addresses: Vec<&str> = server.addresses(endpoint::RDMA).collect();
        if addresses.is_empty() {
            let text = "it listens on no RDMA address; give it one in the cluster file, or connect with transport auto or tcp";
            return Err(wanted.impossible(text));
        }
        let rdma = self.source.get().map_err(|reason| wanted.impossible(reason))?;
        let options = self.source.options().for_connection(wanted.knock, wish.traffic);
        let optional = wish.rail.is_some() || !must;
        let timeout = if optional { wanted.timeout.min(OPTIONAL_TIMEOUT) } else { wanted.timeout };
        let connect = |address, left: Duration| rdma.connect(address, &options, left.min(timeout));
        let rails = self.with_rails(server, |rails| rails.choose(wish.rail, must, Instant::now()));
        for (at, rail) in rails.iter().copied().enumerate() {
            let _attempt = wanted.share(rails.len() - at);
            let greeted =
                wanted.connect_to_host(addresses[rail], &connect).and_then(|mut link| {
                    match greet(&mut *link) {
                        Ok(proven) => Ok(Ok(Dialled::new(link, proven))),
                        Err(error) if error.kind() == ErrorKind::Unreachable => {
                            Err(error.detail().to_string())
                        }
                        Err(error) => Ok(Err(error)),
                    }
                });
            match greeted {
                Ok(dialled) => {
                    let dialled = dialled?;
                    self.with_rails(server, |rails| rails.note_success(rail));
                    let endpoint = Some(Endpoint::new(endpoint::RDMA, addresses[rail]));
                    return Ok(Dialled { rail, endpoint, ..dialled });
                }
                Err(cause) => {
                    self.with_rails(server, |rails| rails.note_failure(rail, Instant::now(), cause));
                }
            }
        }
        Err(wanted.unreachable(vec![self.with_rails(server, |rails| rails.causes())]))
    }

    fn forget_failures(&self, server: &ServerInfo) {
        self.with_rails(server, Rails::forget_failures);
    }
}
