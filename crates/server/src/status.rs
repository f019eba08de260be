//! What a server reports of itself.

use crate::shared::Shared;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use weft_wire::Added;
use weft_wire::messages::{CLOCK_GAUGE, Gauge, SpaceReply, StatusReply, StatusRequest};

/// Bytes of the list of clients in one reply; the number of all comes with it.
const CLIENT_BYTES_MAX: usize = 72 << 10;

/// The server's state, with the gauges of its service.
pub(crate) fn of(shared: &Shared, request: StatusRequest, service_gauges: Vec<Gauge>) -> StatusReply {
    let space = space_of(shared);
    let mut gauges = shared.counters.gauges();
    gauges.extend(service_gauges);
    gauges.push(Gauge { name: CLOCK_GAUGE.into(), value: weft_host::unix_us() });
    let (client_list, client_uses) =
        if request.with_clients { shared.clients.list(CLIENT_BYTES_MAX) } else { Default::default() };
    let busy = if request.with_clients { shared.busy.list(weft_log::coarse_ms()) } else { Vec::new() };
    StatusReply {
        name: shared.name.clone(),
        role: shared.role.name().into(),
        id: shared.id,
        version: env!("CARGO_PKG_VERSION").into(),
        process_id: std::process::id(),
        uptime_ms: shared.started.elapsed().as_millis() as u64,
        cpu_ms: cpu_ms(),
        memory_bytes: memory_bytes(),
        directory: shared.directory.to_string_lossy().into_owned(),
        space_bytes: space.space_bytes,
        free_bytes: space.available_bytes,
        disk: shared.disk.into(),
        sync_mode: shared.sync.name().into(),
        active_requests: shared.counters.active_requests.load(Ordering::Relaxed),
        operations: shared.counters.operations(),
        gauges,
        clients: shared.clients.count(),
        client_list,
        rdma: shared.rdma.status(),
        busy: Added(busy),
        client_uses: Added(client_uses),
        ended_uses: Added(if request.with_clients { shared.clients.ended() } else { Vec::new() }),
        disk_id: Added(space.disk_id),
    }
}

/// Names the file system under a server's directory by the kernel's boot and the device; zeros where that
/// cannot be told.
pub(crate) fn disk_id(shared: &Shared) -> [u8; 16] {
    let boot = u128::from_le_bytes(shared.boot_id);
    match std::fs::metadata(&shared.directory) {
        Ok(metadata) if boot != 0 => (boot ^ u128::from(metadata.dev())).to_le_bytes(),
        _ => [0; 16],
    }
}

/// Space of the disk under a server's directory; zeros where it cannot be told.
pub(crate) fn space_of(shared: &Shared) -> SpaceReply {
    let disk_id = disk_id(shared);
    let space = weft_host::space_of(&shared.directory).unwrap_or_default();
    SpaceReply {
        space_bytes: space.bytes,
        free_bytes: space.free_bytes,
        available_bytes: space.available_bytes,
        disk_id,
    }
}

/// Processor time that this process has used.
pub(crate) fn cpu_ms() -> u64 {
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is live and writable.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let ms = |time: libc::timeval| time.tv_sec as u64 * 1000 + time.tv_usec as u64 / 1000;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

/// Resident memory of this process.
pub(crate) fn memory_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    // SAFETY: asks for a constant of the system.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}
