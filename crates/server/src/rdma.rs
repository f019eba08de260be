//! RDMA of a server: whether it is used and where, the zones of its buffers, and what its threads tell of it.
//!
//! ```text
//!   cluster file ─► libraries? ─► an adapter with the address? ─► listeners     else the reason, for the log and `weft status`
//!                   a listener goes with its adapter ──► tried again until it is back
//!   thread n        BufferPool ── zone begins, ends ──► VerbsThread             once a second: counts ──► `weft status`
//! ```

use crate::addresses::resolve;
use crate::config::{RdmaMode, ServerConfig};
use crate::key_ring::KeyRing;
use crate::log;
use crate::node::Shared;
use crate::server::ServerError;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weft_storage::{BufferPool, ZoneKeeper};
use weft_transport::{VerbsListening, VerbsPortStatus, VerbsServerOptions, VerbsThread, listen_verbs};
use weft_verbs::{Fabric, LinkLayer, VerbsError};
use weft_wire::messages::{Gauge, RdmaAdapter, RdmaStatus};

/// Zones of each thread's buffers that are registered from its start to its end.
const ZONES_KEPT: usize = 4;
/// How often a thread tells its counts.
const TELLING: Duration = Duration::from_secs(1);

/// RDMA of a server that starts.
pub(crate) struct Rdma<F: Fabric> {
    pub listening: Vec<VerbsListening<F>>,
    pub told: RdmaTold,
}

impl<F: Fabric> Rdma<F> {
    /// Listens as the cluster file says. Where that cannot be and need not, the reason is noted.
    ///
    /// # Errors
    /// RDMA is required and cannot be had, or an address cannot be found.
    pub fn open(
        server: &ServerConfig,
        keys: &KeyRing,
        load: impl FnOnce() -> Result<F, VerbsError>,
    ) -> Result<Rdma<F>, ServerError> {
        if server.rdma == RdmaMode::Off {
            return Ok(Rdma::unused("rdma is \"off\" in the cluster file"));
        }
        let fabric = match load() {
            Ok(fabric) => fabric,
            Err(VerbsError::Unavailable(cause)) => return Rdma::missing(server, cause),
            Err(error) => return Rdma::missing(server, error.to_string()),
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
            return Rdma::missing(server, reason);
        }
        let told = RdmaTold { addresses, reason, ..RdmaTold::default() };
        Ok(Rdma { listening, told })
    }

    fn missing(server: &ServerConfig, reason: String) -> Result<Rdma<F>, ServerError> {
        match server.rdma {
            RdmaMode::Require => Err(ServerError::Rdma { server: server.name.clone(), reason }),
            RdmaMode::Auto | RdmaMode::Off => Ok(Rdma::unused(reason)),
        }
    }

    fn unused(reason: impl Into<String>) -> Rdma<F> {
        let told = RdmaTold { reason: reason.into(), ..RdmaTold::default() };
        Rdma { listening: Vec::new(), told }
    }
}

/// The RDMA of one thread, on its reactor, where the server listens with it; what it does is told from now on.
pub(crate) fn on_thread<F: Fabric>(
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
                shared.rdma.tell(number, thread.status().iter().map(AdapterPart::of).collect());
                weft_reactor::sleep(TELLING).await;
            }
        }
    });
    Some(thread)
}

/// Makes the zones of a pool known to the adapters of its thread.
pub(crate) fn keep_zones<F: Fabric>(pool: &BufferPool, thread: &VerbsThread<F>, server: &str) {
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

/// What a server tells of its RDMA.
#[derive(Default)]
pub(crate) struct RdmaTold {
    /// Where it listens; none: it is not used.
    addresses: Vec<String>,
    /// Why not, or not everywhere.
    reason: String,
    /// Addresses that are not listened on now, since their adapters are gone, and what was said of them.
    lost: Mutex<BTreeMap<String, String>>,
    /// By thread, what it does with each adapter.
    threads: Mutex<BTreeMap<usize, Vec<AdapterPart>>>,
}

/// What one thread does with an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AdapterPart {
    name: String,
    link_layer: LinkLayer,
    /// Of this thread; those of all threads make a sum.
    own: Vec<(&'static str, u64)>,
    /// Of the process: the same whichever thread tells it.
    process: Vec<(&'static str, u64)>,
}

impl AdapterPart {
    fn of(status: &VerbsPortStatus) -> AdapterPart {
        let port = &status.port;
        let own = [
            ("connections", port.connections as u64),
            ("zone_bytes", port.zone_bytes),
            ("fast_buffer_bytes", status.fast_bytes),
            ("under_way_bytes", port.under_way_bytes),
            ("waiting_transfers", port.waiting as u64),
            ("sleeps", port.sleeps),
            ("receives", port.receives.into()),
            ("promised_receives", port.promised_receives.into()),
        ];
        AdapterPart {
            name: port.name.clone(),
            link_layer: port.limits.link_layer,
            own: [&own[..], &status.transfers.named()].concat(),
            process: port.counts.named(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RdmaTold {
    fn tell(&self, thread: usize, adapters: Vec<AdapterPart>) {
        lock(&self.threads).insert(thread, adapters);
    }

    /// An address is not listened on for now.
    pub fn lost(&self, address: SocketAddr, cause: &str) {
        lock(&self.lost).insert(address.to_string(), cause.to_owned());
    }

    /// It is again.
    pub fn found(&self, address: SocketAddr) {
        lock(&self.lost).remove(&address.to_string());
    }

    /// One line for the log.
    pub fn log(&self, server: &str) {
        if !self.addresses.is_empty() {
            log::info!(server, "listens with RDMA on {}", self.addresses.join(", "));
        }
        if !self.reason.is_empty() {
            let used = if self.addresses.is_empty() { "not used" } else { "used in part" };
            log::info!(server, "RDMA is {used}: {}", self.reason);
        }
    }

    /// All threads together.
    pub fn status(&self) -> RdmaStatus {
        let mut adapters: BTreeMap<String, RdmaAdapter> = BTreeMap::new();
        for part in lock(&self.threads).values().flatten() {
            let adapter = adapters.entry(part.name.clone()).or_insert_with(|| RdmaAdapter {
                name: part.name.clone(),
                link_layer: part.link_layer.to_string(),
                counts: Vec::new(),
            });
            add_counts(&mut adapter.counts, &part.own, |sum, more| sum + more);
            add_counts(&mut adapter.counts, &part.process, u64::max);
        }
        let lost = lock(&self.lost);
        let is_there = |address: &&String| !lost.contains_key(*address);
        let gone = lost.values().map(|cause| format!("{cause}; it is tried again every few seconds"));
        let reasons: Vec<_> =
            [self.reason.clone()].into_iter().filter(|reason| !reason.is_empty()).chain(gone).collect();
        RdmaStatus {
            addresses: self.addresses.iter().filter(is_there).cloned().collect(),
            reason: reasons.join("; "),
            adapters: adapters.into_values().collect(),
        }
    }
}

fn add_counts(to: &mut Vec<Gauge>, counts: &[(&'static str, u64)], add: impl Fn(u64, u64) -> u64) {
    for (name, value) in counts {
        match to.iter_mut().find(|gauge| gauge.name == *name) {
            Some(gauge) => gauge.value = add(gauge.value, *value),
            None => to.push(Gauge { name: (*name).into(), value: *value }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_and_adapters_are_told_once() {
        let told = RdmaTold { addresses: vec!["ib0:1".into()], ..RdmaTold::default() };
        let part = |connections, sends| AdapterPart {
            name: "rxe0".into(),
            link_layer: LinkLayer::Roce,
            own: vec![("connections", connections)],
            process: vec![("sends", sends)],
        };
        told.tell(0, vec![part(9, 1)]);
        told.tell(0, vec![part(1, 10)]);
        told.tell(1, vec![part(2, 12)]);
        let status = told.status();
        let [adapter] = status.adapters.as_slice() else { panic!("{status:?}") };
        assert_eq!((adapter.name.as_str(), adapter.link_layer.as_str()), ("rxe0", "RoCE"));
        let counts: Vec<_> = adapter.counts.iter().map(|count| (count.name.as_str(), count.value)).collect();
        assert_eq!(counts, [("connections", 3), ("sends", 12)]);
    }
}
