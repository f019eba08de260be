//! RDMA of a server: whether it is used and where, and the zones of its buffers.
//!
//! ```text
//!   cluster file ─► libraries? ─► an adapter with the address? ─► listeners     else the reason, for the log and `weft status`
//!                   a listener goes with its adapter ──► tried again until it is back
//!   thread n        BufferPool ── zone begins, ends ──► VerbsThread             once a second: counts ──► `weft status`
//! ```

use super::addresses::resolve;
use super::rdma_report::{AdapterPart, RdmaReport};
use crate::config::{RdmaMode, ServerConfig};
use crate::error::ServerError;
use crate::key_ring::KeyRing;
use crate::log;
use crate::shared::Shared;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use weft_storage::{BufferPool, ZoneKeeper};
use weft_transport::{VerbsAccepted, VerbsListening, VerbsServerOptions, VerbsThread, listen_verbs};
use weft_verbs::{Fabric, VerbsError};

/// Zones of each thread's buffers that are registered from its start to its end.
const ZONES_KEPT: usize = 4;
/// Time after which it is tried to listen again on the address of an adapter that is gone.
const LISTEN_AGAIN: Duration = Duration::from_secs(2);
/// How often a thread reports its counts.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Listens as the cluster file says. Where that cannot be and need not, the reason is in the report.
///
/// # Errors
/// RDMA is required and cannot be had, or an address cannot be found.
pub(super) fn listen<F: Fabric>(
    server: &ServerConfig,
    keys: &KeyRing,
    load: impl FnOnce() -> Result<F, VerbsError>,
) -> Result<(Vec<VerbsListening<F>>, RdmaReport), ServerError> {
    if server.rdma == RdmaMode::Off {
        return Ok((Vec::new(), unused("rdma is \"off\" in the cluster file")));
    }
    let missing = |reason| missing(server, reason).map(|report| (Vec::new(), report));
    let fabric = match load() {
        Ok(fabric) => fabric,
        Err(VerbsError::Unavailable(cause)) => return missing(cause),
        Err(error) => return missing(error.to_string()),
    };
    let (mut listening, mut addresses, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for address in server.addresses_for_rdma() {
        for resolved in resolve(server, address)? {
            match listen_verbs(&fabric, resolved, keys.verbs_keys()) {
                Ok(door) => {
                    listening.push(door);
                    addresses.push(resolved.to_string());
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
    }
    let reason = reasons.join("; ");
    if listening.is_empty() || (server.rdma == RdmaMode::Require && !reasons.is_empty()) {
        return missing(reason);
    }
    Ok((listening, RdmaReport::new(addresses, reason)))
}

fn missing(server: &ServerConfig, reason: String) -> Result<RdmaReport, ServerError> {
    match server.rdma {
        RdmaMode::Require => Err(ServerError::Rdma { server: server.name.clone(), reason }),
        RdmaMode::Auto | RdmaMode::Off => Ok(unused(reason)),
    }
}

fn unused(reason: impl Into<String>) -> RdmaReport {
    RdmaReport::new(Vec::new(), reason.into())
}

/// Accepts at one address; after the loss of its adapter, again when that is back.
pub(super) async fn accept<F: Fabric>(
    door: VerbsListening<F>,
    shared: Arc<Shared>,
    give: impl Fn(VerbsAccepted<F>),
) {
    let place = door.place();
    let mut door = Some(door);
    loop {
        let listening = match door.take() {
            Some(door) => Ok(door),
            None => place.clone().listen().map_err(|error| error.to_string()),
        };
        let acceptor = listening.and_then(|door| door.acceptor().map_err(|error| error.to_string()));
        if let Ok(mut acceptor) = acceptor {
            shared.rdma.found(place.address());
            let error = loop {
                match acceptor.next().await {
                    Ok(accepted) => give(accepted),
                    Err(error) => break error.to_string(),
                }
            };
            log::warning!(
                &shared.name,
                "no longer accepts connections over RDMA, until the adapter is back: {error}"
            );
            shared.rdma.lost(place.address(), &error);
        }
        weft_reactor::sleep(LISTEN_AGAIN).await;
    }
}

/// The RDMA of one thread, on its reactor, where the server listens with it; what it does is reported from
/// now on.
pub(super) fn on_thread<F: Fabric>(
    shared: &Arc<Shared>,
    number: usize,
    spin_us: u32,
) -> Option<VerbsThread<F>> {
    if shared.rdma.addresses.is_empty() {
        return None;
    }
    let mut options = VerbsServerOptions::default();
    options.port.spin_us = options.port.spin_us.max(spin_us);
    let thread = VerbsThread::new(options);
    weft_reactor::spawn({
        let (thread, shared) = (thread.clone(), shared.clone());
        async move {
            loop {
                shared.rdma.report(number, thread.status().iter().map(AdapterPart::of).collect());
                weft_reactor::sleep(REPORT_EVERY).await;
            }
        }
    });
    Some(thread)
}

/// Makes the zones of a pool known to the adapters of its thread.
pub(super) fn keep_zones<F: Fabric>(pool: &BufferPool, thread: &VerbsThread<F>, server: &str) {
    pool.keep_zones(ZONES_KEPT, Rc::new(Zones { thread: thread.clone(), server: server.to_owned() }));
}

struct Zones<F: Fabric> {
    thread: VerbsThread<F>,
    server: String,
}

impl<F: Fabric> ZoneKeeper for Zones<F> {
    fn begin(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the pool keeps it mapped until its end, and uses it for clients' data alone.
        let registered = unsafe { self.thread.add_zone(start.as_ptr(), bytes) };
        if let Err(error) = registered
            && log::once_a_minute("register zone")
        {
            log::warning!(
                &self.server,
                "data is copied on its way to and from RDMA: {error}; raise the limit of locked memory (ulimit -l)"
            );
        }
    }

    fn end(&self, start: NonNull<u8>, _bytes: usize) {
        self.thread.remove_zone(start.as_ptr());
    }
}
