//! INIT, the first request of a connection: what the kernel offers, and what the file system accepts.

use crate::fields::{Fields, Malformed};

/// Capabilities, one bit each, with the kernel's names.
pub mod capability {
    #![allow(missing_docs)] // The kernel's header describes them.
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// The version of the protocol implemented here.
pub const VERSION: (u32, u32) = (7, 45);
/// The oldest supported version: Linux 4.20, where requests can first be longer than 128 KiB.
pub const VERSION_LEAST: (u32, u32) = (7, 28);

/// What the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The kernel's version of the protocol.
    pub version: (u32, u32),
    /// Upper limit of the read-ahead.
    pub read_ahead_bytes_max: u32,
    /// See [`capability`].
    pub capabilities: u64,
}

impl Offer {
    // Fuzzed by fuse: tests/protocol.rs
    /// Decodes what follows the header of an INIT request.
    pub fn decode(body: &[u8]) -> Result<Offer, Malformed> {
        let mut fields = Fields(body);
        let version = (fields.u32("the version")?, fields.u32("the version")?);
        let read_ahead_bytes_max = fields.u32("the read-ahead")?;
        let low = fields.u32("the flags")?;
        let has_high = u64::from(low) & capability::INIT_EXT != 0;
        let high = if has_high { fields.u32("the flags")? } else { 0 };
        Ok(Offer { version, read_ahead_bytes_max, capabilities: u64::from(high) << 32 | u64::from(low) })
    }
}

/// What the file system accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// Upper limit of the read-ahead.
    pub read_ahead_bytes_max: u32,
    /// The accepted ones of the offered capabilities.
    pub capabilities: u64,
    /// Limit of concurrent background requests, including read-ahead.
    pub background_max: u16,
    /// Largest read or write in one request.
    pub request_bytes_max: u32,
}

impl Agreement {
    const BYTES: usize = 64;
    const PAGE_BYTES: u32 = 4096;

    /// Encodes the body of the reply, for a kernel of this version.
    pub fn encode(&self, kernel: (u32, u32)) -> [u8; Self::BYTES] {
        let minor = VERSION.1.min(kernel.1);
        let capabilities = self.capabilities | capability::MAX_PAGES | capability::INIT_EXT;
        let congested = (u32::from(self.background_max) * 3 / 4) as u16;
        let pages = self.request_bytes_max.div_ceil(Self::PAGE_BYTES) as u16;
        let fields: [&[u8]; 12] = [
            &VERSION.0.to_ne_bytes(),
            &minor.to_ne_bytes(),
            &self.read_ahead_bytes_max.to_ne_bytes(),
            &(capabilities as u32).to_ne_bytes(),
            &self.background_max.to_ne_bytes(),
            &congested.to_ne_bytes(),
            &self.request_bytes_max.to_ne_bytes(),
            // The granularity of times is a nanosecond.
            &1u32.to_ne_bytes(),
            &pages.to_ne_bytes(),
            &0u16.to_ne_bytes(),
            &((capabilities >> 32) as u32).to_ne_bytes(),
            &[0; 28],
        ];
        let mut bytes = [0; Self::BYTES];
        fields.concat().iter().zip(&mut bytes).for_each(|(byte, place)| *place = *byte);
        bytes
    }
}
