//! Striping: which server stores which byte of a file.
//!
//! A file is divided into strips of `strip_bytes`. They are assigned in turn to `server_count` consecutive
//! servers of the cluster's ring, beginning with `first_server`. One strip from each server makes up a
//! stripe. Each server keeps its strips of the file end to end in one local data file.
//!
//! The example is PVFS table 1 and figure 1: base 2, pcount 3, ssize 65536, in a cluster of six I/O nodes.
//!
//! ```text
//!   logical file   | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | ...     strips of 64 KiB
//!   slot             0   1   2   0   1   2   0   1           strip % server_count
//!
//!   server 0       -
//!   server 1       -
//!   server 2       | 0 | 3 | 6 |        slot 0, the local data file holds strips 0, 3, 6
//!   server 3       | 1 | 4 | 7 |        slot 1
//!   server 4       | 2 | 5 |            slot 2
//!   server 5       -
//! ```
//!
//! ```
//! use weft_layout::Layout;
//!
//! let layout = Layout::new(65536, 2, 3, 6)?;
//! assert_eq!([0, 1, 2].map(|slot| layout.chain(slot).0), [2, 3, 4]);
//!
//! // Byte 100 of strip 4 is byte 100 of the second strip that slot 1 (server 3) holds.
//! assert_eq!(layout.local_offset(4 * 65536 + 100), (1, 65536 + 100));
//! assert_eq!(layout.logical_offset(1, 65536 + 100), 4 * 65536 + 100);
//!
//! // A file of eight strips: three on servers 2 and 3, two on server 4.
//! assert_eq!([0, 1, 2].map(|slot| layout.local_size(slot, 8 * 65536) / 65536), [3, 3, 2]);
//! assert_eq!(layout.logical_size(1, 3 * 65536), 8 * 65536);
//! # Ok::<(), weft_layout::LayoutError>(())
//! ```

use crate::chain::ChainId;
use thiserror::Error;

/// Strip sizes are multiples of this many bytes, so that strips begin on pages of the local file.
pub const STRIP_BYTES_UNIT: u32 = 4096;

/// The largest strip, in bytes.
pub const STRIP_BYTES_MAX: u32 = 1 << 30;

/// How one file is striped over servers. Always valid: [`Layout::new`] is the only constructor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    strip_bytes: u32,
    first_server: u16,
    server_count: u16,
    ring_servers: u16,
}

/// Why a layout is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The strip size is not supported.
    #[error(
        "strip size of {strip_bytes} bytes: must be a multiple of {STRIP_BYTES_UNIT} from {STRIP_BYTES_UNIT} to \
         {STRIP_BYTES_MAX}"
    )]
    StripBytes {
        /// The requested size, in bytes.
        strip_bytes: u32,
    },
    /// There are fewer servers, or none were requested.
    #[error("a file over {server_count} servers: must be from 1 to the {ring_servers} of this cluster")]
    ServerCount {
        /// The requested number of servers.
        server_count: u16,
        /// The number of I/O servers in the cluster.
        ring_servers: u16,
    },
    /// The first server is not in the cluster.
    #[error(
        "first server {first_server}: must be below {ring_servers}, the number of I/O servers of this cluster"
    )]
    FirstServer {
        /// The requested server id.
        first_server: u16,
        /// The number of I/O servers in the cluster.
        ring_servers: u16,
    },
}

impl Layout {
    /// A layout of strips of `strip_bytes` over `server_count` servers from `first_server` on, in a ring of
    /// `ring_servers`. PVFS calls these ssize, pcount and base.
    pub const fn new(
        strip_bytes: u32,
        first_server: u16,
        server_count: u16,
        ring_servers: u16,
    ) -> Result<Layout, LayoutError> {
        if strip_bytes == 0 || strip_bytes > STRIP_BYTES_MAX || !strip_bytes.is_multiple_of(STRIP_BYTES_UNIT)
        {
            return Err(LayoutError::StripBytes { strip_bytes });
        }
        if server_count == 0 || server_count > ring_servers {
            return Err(LayoutError::ServerCount { server_count, ring_servers });
        }
        if first_server >= ring_servers {
            return Err(LayoutError::FirstServer { first_server, ring_servers });
        }
        Ok(Layout { strip_bytes, first_server, server_count, ring_servers })
    }

    /// Bytes in one strip.
    pub const fn strip_bytes(&self) -> u32 {
        self.strip_bytes
    }

    /// Server id of slot 0.
    pub const fn first_server(&self) -> u16 {
        self.first_server
    }

    /// Number of servers of this file, and so of its slots.
    pub const fn server_count(&self) -> u16 {
        self.server_count
    }

    /// Number of I/O servers in the cluster when the file was created.
    pub const fn ring_servers(&self) -> u16 {
        self.ring_servers
    }

    /// Bytes in one stripe: one strip from each of the file's servers.
    pub const fn stripe_bytes(&self) -> u64 {
        self.strip() * self.server_count as u64
    }

    /// The chain that holds the data file of `slot`.
    pub const fn chain(&self, slot: u16) -> ChainId {
        ChainId(((self.first_server as u32 + slot as u32) % self.ring_servers as u32) as u16)
    }

    /// The slot whose data file `chain` holds; `None` if it holds nothing of the file.
    pub const fn slot_of_chain(&self, chain: ChainId) -> Option<u16> {
        if chain.0 >= self.ring_servers {
            return None;
        }
        let ring = self.ring_servers as u32;
        let slot = ((chain.0 as u32 + ring - self.first_server as u32) % ring) as u16;
        if slot < self.server_count { Some(slot) } else { None }
    }

    /// The slot of the byte at `offset` of the file.
    pub const fn slot_of(&self, offset: u64) -> u16 {
        (offset / self.strip() % self.server_count as u64) as u16
    }

    /// The slot of the byte at `offset` of the file, and its offset in that slot's data file.
    pub const fn local_offset(&self, offset: u64) -> (u16, u64) {
        let strip_index = offset / self.strip();
        let round = strip_index / self.server_count as u64;
        let slot = strip_index % self.server_count as u64;
        (slot as u16, round * self.strip() + offset % self.strip())
    }

    /// The file offset of the byte at `local_offset` of the data file of `slot`. Saturates at the largest
    /// offset.
    pub const fn logical_offset(&self, slot: u16, local_offset: u64) -> u64 {
        let round = local_offset / self.strip();
        let within = local_offset % self.strip() + slot as u64 * self.strip();
        round.saturating_mul(self.stripe_bytes()).saturating_add(within)
    }

    /// The number of bytes of a file of `logical_size` bytes on `slot`: the size its data file must have.
    ///
    /// This is also the number of the slot's bytes below any offset, and so the local offset of its first
    /// byte at or after that offset. A slot outside the layout has none.
    pub const fn local_size(&self, slot: u16, logical_size: u64) -> u64 {
        if slot >= self.server_count {
            return 0;
        }
        let whole_rounds = logical_size / self.stripe_bytes();
        let last_round = (logical_size % self.stripe_bytes()).saturating_sub(slot as u64 * self.strip());
        let in_last_round = if last_round < self.strip() { last_round } else { self.strip() };
        whole_rounds * self.strip() + in_last_round
    }

    /// The file size that a data file of `local_size` bytes on `slot` implies: one past the logical offset of
    /// its last byte, 0 for an empty one. A file's size is the largest of its slots'.
    pub const fn logical_size(&self, slot: u16, local_size: u64) -> u64 {
        match local_size.checked_sub(1) {
            None => 0,
            Some(last) => self.logical_offset(slot, last).saturating_add(1),
        }
    }

    const fn strip(&self) -> u64 {
        self.strip_bytes as u64
    }
}
