//! How large the parts of a message may be, by who receives it and what its sender has proved.

use weft_wire::limits::{
    BODY_BYTES_MAX, BODY_BYTES_UNPROVEN_MAX, MEMORY_RUNS_MAX, MESSAGE_DATA_BYTES_MAX, REMOTE_KEYS_MAX,
    SHARE_BYTES_MAX,
};
use weft_wire::messages::{MemoryRun, RemoteKey, RemoteKeys, RemoteMemory};
use weft_wire::{Header, Kind, Wire, flags};

use crate::error::FrameError;

/// Largest payload that describes remote memory.
const REMOTE_MEMORY_BYTES_MAX: u64 =
    (RemoteMemory::BYTES_MIN + MEMORY_RUNS_MAX * MemoryRun::BYTES_MIN) as u64;

/// The same over RDMA.
const REMOTE_KEYS_BYTES_MAX: u64 = (RemoteKeys::BYTES_MIN
    + REMOTE_KEYS_MAX * RemoteKey::BYTES_MIN
    + MEMORY_RUNS_MAX * MemoryRun::BYTES_MIN) as u64;

/// What a receiver takes at this point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameLimits {
    /// Largest body.
    pub body_bytes_max: u64,
    /// Largest payload.
    pub payload_bytes_max: u64,
    /// Largest payload that describes remote memory; `None` where that does not belong.
    pub remote_bytes_max: Option<u64>,
    /// Whether this is a server, which receives requests, or a client, which receives replies and data.
    pub server: bool,
}

impl FrameLimits {
    /// Of a server, before and after its client has proved itself.
    pub(crate) fn server(proven: bool, remote_memory: bool) -> FrameLimits {
        FrameLimits {
            body_bytes_max: if proven { BODY_BYTES_MAX } else { BODY_BYTES_UNPROVEN_MAX } as u64,
            payload_bytes_max: if proven { SHARE_BYTES_MAX } else { 0 },
            remote_bytes_max: (remote_memory && proven).then_some(REMOTE_MEMORY_BYTES_MAX),
            server: true,
        }
    }

    /// Of a server over RDMA: what rides in a message has a bound, for it comes before anybody asks for it.
    pub(crate) fn verbs_server(proven: bool) -> FrameLimits {
        FrameLimits {
            payload_bytes_max: if proven { MESSAGE_DATA_BYTES_MAX as u64 } else { 0 },
            remote_bytes_max: Some(if proven { REMOTE_KEYS_BYTES_MAX } else { 0 }),
            ..FrameLimits::server(proven, false)
        }
    }

    /// Of a client. A page of a directory may be twice the body of a request.
    pub(crate) fn client() -> FrameLimits {
        FrameLimits {
            body_bytes_max: 2 * BODY_BYTES_MAX as u64,
            payload_bytes_max: SHARE_BYTES_MAX,
            remote_bytes_max: None,
            server: false,
        }
    }

    pub(crate) fn check(&self, header: &Header) -> Result<(), FrameError> {
        let remote = header.flags & flags::REMOTE_MEMORY != 0;
        let misplaced = |what| FrameError::Misplaced { what, header: Box::new(*header) };
        if self.server != matches!(header.kind, Kind::Request) {
            return Err(misplaced("its kind is not for this end of a connection"));
        }
        let too_big =
            |part, bytes, bytes_max| FrameError::TooBig { part, bytes, bytes_max, header: Box::new(*header) };
        if u64::from(header.body_bytes) > self.body_bytes_max {
            return Err(too_big("body", header.body_bytes.into(), self.body_bytes_max));
        }
        let payload_bytes_max = match self.remote_bytes_max {
            Some(remote_bytes_max) if remote => remote_bytes_max,
            None if remote => return Err(misplaced("it describes remote memory")),
            _ => self.payload_bytes_max,
        };
        if header.payload_bytes > payload_bytes_max {
            return Err(too_big("payload", header.payload_bytes, payload_bytes_max));
        }
        Ok(())
    }
}
