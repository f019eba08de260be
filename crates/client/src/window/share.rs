//! One server's part of a window: its request, its memory, and its buffer where it is packed.
//!
//! ```text
//!   Share ── body ──► message    capability, slot, flags, regions of the file
//!     │ bulk                     direct: the runs of memory
//!     └─────────────► memory     packed: a place in a buffer ◄─ gather, scatter ─► the runs of memory
//! ```
//!
//! Small pieces of memory are packed: the shares of a window lie one after the other in one buffer.

use std::sync::Arc;

use weft_layout::{Extent, Layout, Region, Regions};
use weft_transport::{Allocation, Bulk, BulkMemory, Together};
use weft_wire::messages::MemoryRun;
use weft_wire::security::Capability;
use weft_wire::{HEADER_BYTES, Wire, Writer, body};

use super::pack::{Buffers, PACK_BYTES, PackBuffer};
use super::runs;
use crate::access::Movement;
use crate::call::BulkRequest;
use crate::reach::Reach;

/// Windows that are packed are of about this size, three quarters to one and a half of it where the request is
/// longer: what is copied is still in a processor's cache when it is moved.
pub(super) const PACK_WINDOW_BYTES: u64 = 1 << 20;
/// Shares begin at multiples of this in a buffer.
const PACK_ALIGN_BYTES: usize = 64;

const _: () = assert!(PACK_WINDOW_BYTES as usize + (1 << 20) <= PACK_BYTES, "a window fits a buffer");

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From servers to memory.
    Read,
    /// From memory to servers.
    Write,
}

/// What all requests of an operation have in common.
pub(crate) struct Common {
    pub direction: Direction,
    pub layout: Layout,
    /// The capability on the wire.
    capability: Vec<u8>,
    flags: u32,
    pub(super) movement: Movement,
    pub(super) reach: Reach,
    /// What the pieces of memory are parts of, where the caller has said so.
    pub(super) allocations: Arc<[Allocation]>,
    buffers: Arc<dyn Buffers>,
}

/// One server's part of a window.
pub(crate) struct Share {
    pub(super) common: Arc<Common>,
    /// The server's slot in the file's layout.
    pub slot: u16,
    pub bytes: u64,
    /// The part of the file that it is of, if that is one extent.
    pub(super) extent: Option<Extent>,
    /// Regions on the wire; a pattern's are the same for every server.
    pub(super) encoded: Arc<Vec<u8>>,
    /// Where it lies in memory.
    pub(super) runs: Vec<MemoryRun>,
    pub(super) packed: Option<Packed>,
    /// The memory of all of the window's shares.
    pub(super) together: Option<Arc<Together>>,
}

/// A place in a buffer.
pub(super) struct Packed {
    buffer: Arc<PackBuffer>,
    offset: usize,
}

impl Common {
    pub(crate) fn new(
        buffers: Arc<dyn Buffers>,
        direction: Direction,
        capability: &Capability,
        flags: u32,
        movement: Movement,
        reach: Reach,
        allocations: Arc<[Allocation]>,
    ) -> Common {
        let layout = capability.layout;
        let capability = capability.to_bytes();
        Common { direction, layout, capability, flags, movement, reach, allocations, buffers }
    }

    pub(super) fn share(
        self: &Arc<Self>,
        slot: u16,
        bytes: u64,
        encoded: Arc<Vec<u8>>,
        runs: Vec<MemoryRun>,
    ) -> Share {
        Share { common: self.clone(), slot, bytes, extent: None, encoded, runs, packed: None, together: None }
    }

    fn packs(&self, bytes: u64, runs: &[MemoryRun]) -> bool {
        let pieces = runs::piece_count(runs);
        pieces > 1 && (self.movement == Movement::Pack || self.packs_pieces(bytes, pieces))
    }

    /// Whether pieces are to be packed for their size.
    pub(super) fn packs_pieces(&self, bytes: u64, pieces: u64) -> bool {
        self.movement == Movement::Auto
            && bytes > self.reach.traits.pack_above_bytes
            && bytes < pieces.saturating_mul(self.reach.traits.pack_below_bytes)
    }

    pub(super) fn take_buffer(&self, bytes: usize) -> PackBuffer {
        self.buffers.take(bytes, self.reach.traits.shared)
    }
}

impl BulkRequest for Share {
    /// A [`weft_wire::messages::ReadRequest`] or [`weft_wire::messages::WriteRequest`], which are alike.
    fn body(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.raw(&self.common.capability);
        self.slot.put(&mut out);
        self.common.flags.put(&mut out);
        out.raw(&self.encoded);
        body::finish(out)
    }

    /// Where the share lies in memory.
    fn bulk(&mut self) -> Bulk {
        // A forked child has no part in its parent's buffer.
        self.packed.take_if(|packed| !packed.buffer.is_ours());
        let memory = match self.place() {
            Some(address) => {
                let stride_bytes = self.bytes as i64;
                vec![MemoryRun { segment: 0, address, bytes: self.bytes, stride_bytes, count: 1 }].into()
            }
            None => BulkMemory {
                runs: self.runs.clone(),
                allocations: self.common.allocations.clone(),
                together: self.together.clone(),
            },
        };
        match self.common.direction {
            Direction::Read => Bulk::Put(memory),
            Direction::Write => Bulk::Get(memory),
        }
    }

    fn memory_span(&self) -> (u64, u64) {
        match self.place() {
            Some(address) => (address, address + self.bytes),
            None => runs::span(&self.runs),
        }
    }
}

impl Share {
    /// Where it lies in memory, however it is moved.
    pub(crate) fn runs(&self) -> &[MemoryRun] {
        &self.runs
    }

    /// Whether it is moved through a buffer.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Bytes of its message, without data.
    pub(crate) fn message_bytes(&self) -> u64 {
        let slot_and_flags = size_of::<u16>() + size_of::<u32>();
        (HEADER_BYTES + self.common.capability.len() + slot_and_flags + self.encoded.len()) as u64
    }

    /// Where it is packed.
    fn place(&self) -> Option<u64> {
        let packed = self.packed.as_ref()?;
        Some(packed.buffer.base().as_ptr() as u64 + packed.offset as u64)
    }

    /// Its memory need not be registered any more.
    pub(crate) fn let_go(&mut self) {
        self.together = None;
    }

    /// Brings what was read, `filled_bytes` of it, to where it belongs.
    ///
    /// # Safety
    /// The memory that the source was made with is still lent, and the server has answered.
    pub(crate) unsafe fn unpack(&mut self, filled_bytes: u64) {
        if let Some(Packed { buffer, offset }) = self.packed.take() {
            // SAFETY: as the caller promises; the share has its place in the buffer.
            unsafe {
                runs::scatter(buffer.base().as_ptr().add(offset), filled_bytes.min(self.bytes), &self.runs)
            };
        }
    }

    /// How many of its bytes lie below an end of file, if it is of one extent.
    pub(crate) fn bytes_below(&self, end: u64) -> u64 {
        let layout = &self.common.layout;
        self.extent.map_or(self.bytes, |extent| {
            let last = end.clamp(extent.offset, extent.end());
            layout.local_size(self.slot, last) - layout.local_size(self.slot, extent.offset)
        })
    }

    /// Fills a part of the share's memory with zeros.
    ///
    /// # Safety
    /// The memory that the source was made with is still lent, and the server has answered.
    pub(crate) unsafe fn zero(&self, from_share_offset: u64, to_share_offset: u64) {
        runs::walk(&self.runs, from_share_offset, to_share_offset, |address, bytes| {
            // SAFETY: as the caller promises.
            unsafe { std::ptr::write_bytes(address as usize as *mut u8, 0, bytes) };
        });
    }
}

/// Packs the shares that are better packed.
pub(super) fn packed(common: &Common, mut shares: Vec<Share>) -> Vec<Share> {
    let place = |share: &Share| (share.bytes as usize).next_multiple_of(PACK_ALIGN_BYTES);
    let packs = |share: &&mut Share| common.packs(share.bytes, &share.runs);
    let bytes: usize = shares.iter_mut().filter(packs).map(|share| place(share)).sum();
    if bytes == 0 || bytes > PACK_BYTES {
        return shares;
    }
    let buffer = Arc::new(common.take_buffer(bytes));
    let mut offset = 0;
    for share in shares.iter_mut().filter(packs) {
        if common.direction == Direction::Write {
            // SAFETY: the source was made with this memory lent to it; the buffer is new and has room.
            unsafe { runs::gather(&share.runs, buffer.base().as_ptr().add(offset)) };
        }
        share.packed = Some(Packed { buffer: buffer.clone(), offset });
        offset += place(share);
    }
    shares
}

/// The slots that may have a share: for a short extent only those it passes over.
pub(crate) fn slots_of(layout: &Layout, file: &Regions) -> impl Iterator<Item = u16> + use<> {
    let count = u64::from(layout.server_count());
    let (first, slots) = match file.parts.as_slice() {
        [Region::Contiguous(extent)] => {
            let strip_bytes = u64::from(layout.strip_bytes());
            let strips = (extent.offset % strip_bytes + extent.bytes).div_ceil(strip_bytes);
            (u64::from(layout.slot_of(extent.offset)), strips.min(count))
        }
        _ => (0, count),
    };
    (0..slots).map(move |at| ((first + at) % count) as u16)
}
