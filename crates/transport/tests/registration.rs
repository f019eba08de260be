//! The registration cache over a pretended adapter: that it registers as seldom as it says, that it copes with memory that is not
//! there, and that it never uses what was registered for memory that is gone.

#[path = "registration/counts.rs"]
mod counts;
#[path = "registration/memory.rs"]
mod memory;
#[path = "registration/peer.rs"]
mod peer;
#[path = "registration/races.rs"]
mod races;
#[path = "registration/torture.rs"]
mod torture;
#[path = "registration/watched.rs"]
mod watched;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_transport::registration::{RegistrationCache, RegistrationCost, RegistrationOptions};
use weft_verbs::{Fabric, TrafficClass};
use weft_verbs_double::{Pretend, PretendDevice, PretendOptions};
use weft_wire::messages::MemoryRun;

/// One test at a time, so that nobody else maps memory into the holes of a test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first adapter of a pretended fabric.
fn device(options: PretendOptions) -> Arc<PretendDevice> {
    use weft_verbs::{Endpoint, Listener};
    let fabric = Pretend::new(options);
    let local = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let listener = fabric.listen(local, 1).expect("an adapter has the address");
    let endpoint = fabric.resolve(listener.address(), TrafficClass::default(), Duration::from_secs(1));
    endpoint.expect("an adapter leads there").device()
}

/// The costs of the paper, so that plans are the same everywhere.
fn options() -> RegistrationOptions {
    RegistrationOptions { cost: Some(RegistrationCost::PAPER), ..RegistrationOptions::default() }
}

fn cache(options: RegistrationOptions) -> RegistrationCache<PretendDevice> {
    RegistrationCache::new(device(PretendOptions::default()), options)
}

/// Pieces of memory.
fn runs(pieces: &[(u64, u64)]) -> Vec<MemoryRun> {
    let run = |(address, bytes): &(u64, u64)| rows(*address, *bytes, 0, 1);
    pieces.iter().map(run).collect()
}

/// Pieces at equal distances.
fn rows(address: u64, bytes: u64, stride_bytes: i64, count: u64) -> MemoryRun {
    MemoryRun { segment: 0, address, bytes, stride_bytes, count }
}
