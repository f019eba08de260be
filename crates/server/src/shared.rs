//! What all threads of a server share.

use crate::busy::Busy;
use crate::clock::{since_1970, unix_s};
use crate::config::{ClusterConfig, ServerConfig, ServerRole, SyncMode};
use crate::counters::{Clients, Counters};
use crate::crowd::{Crowd, Shares};
use crate::current::CurrentMap;
use crate::identity::Identity;
use crate::key_ring::KeyRing;
use crate::listen::RdmaReport;
use crate::process_limits::descriptors_max;
use crate::revoked::Revoked;
use crate::scrub_desk::Desk;
use crate::slow::Slow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Whether the other servers have confirmed that a server has the right storage. Clones are the same.
#[derive(Clone)]
pub(crate) struct Confirmed(Arc<AtomicBool>);

impl Confirmed {
    /// So or not from the beginning.
    pub fn new(confirmed: bool) -> Confirmed {
        Confirmed(Arc::new(AtomicBool::new(confirmed)))
    }

    pub fn is(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub fn confirm(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What all threads of a server share.
pub(crate) struct Shared {
    pub name: String,
    pub role: ServerRole,
    /// Place among the servers of its role.
    pub id: u16,
    pub directory: PathBuf,
    pub sync: SyncMode,
    /// "ring", "plain", or what holds the names.
    pub disk: &'static str,
    pub cluster_id: [u8; 16],
    pub map: CurrentMap,
    pub keys: KeyRing,
    /// The user that this process runs as.
    pub own_uid: u32,
    pub revoked: Revoked,
    /// Tells this run from every other.
    pub epoch: u64,
    pub boot_id: [u8; 16],
    /// The start of the machine for what was written and not synced; another one only in tests.
    pub data_boot_id: [u8; 16],
    pub started: Instant,
    pub counters: Counters,
    pub busy: Busy,
    pub clients: Clients,
    pub crowd: Crowd,
    pub rdma: RdmaReport,
    pub confirmed: Confirmed,
    pub slow: Slow,
    /// Of an I/O server.
    pub scrub: Desk,
}

impl Shared {
    pub fn new(
        config: &ClusterConfig,
        server: &ServerConfig,
        keys: KeyRing,
        disk: &'static str,
        rdma: RdmaReport,
        revoked: Revoked,
        map: CurrentMap,
    ) -> Shared {
        let counters = Counters::new();
        Shared {
            name: server.name.clone(),
            role: server.role,
            id: config.id_of(server),
            directory: config.directory_of(server),
            sync: server.sync,
            disk,
            cluster_id: config.cluster.id.0,
            map,
            keys,
            // SAFETY: the call only returns a number.
            own_uid: unsafe { libc::geteuid() },
            revoked,
            epoch: since_1970().as_nanos() as u64,
            boot_id: weft_host::boot_id(),
            data_boot_id: weft_host::boot_id(),
            started: Instant::now(),
            slow: Slow::new(config.cluster.slow_request_ms, &counters),
            counters,
            busy: Busy::default(),
            clients: Clients::default(),
            crowd: Crowd::new(Shares::of(descriptors_max())),
            rdma,
            confirmed: Confirmed::new(true),
            scrub: Desk::default(),
        }
    }

    /// Why a connection of this identity is not served, or not any more, if so.
    pub fn ended(&self, identity: &Identity) -> Option<&'static str> {
        let key = identity.key()?;
        if key.is_expired(unix_s()) {
            return Some("its key has expired; ask the administrator for a new one");
        }
        if !self.keys.has(&key.issuer) {
            return Some(
                "its key was issued with a cluster key that is not valid any more; ask the administrator for a new one",
            );
        }
        self.revoked.contains(&key.id).then_some("its key was revoked; ask the administrator for another")
    }
}
