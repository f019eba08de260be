//! Memory of a call: what the server reads or writes, as segments with keys; and what this side reads into.

use std::collections::VecDeque;

use weft_onc_rpc::rdma::Segment;
use weft_rdma::FreeWindows;
use weft_transport::registration::{Pinned, RegistrationCache};
use weft_verbs::{Access, Device, MemoryPiece, Work};

use super::buffers::{Buffer, Buffers};
use super::memory::RdmaMemory;
use super::status::RdmaCounts;
use crate::incoming::Memory;

/// Who reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The server reads.
    Out,
    /// The server writes.
    In,
    /// This side reads memory of the server's into it; the server has no key.
    Local,
}

/// Memory with keys.
pub(super) struct Exposed<D: Device> {
    /// As the server is told; nothing if it has no key.
    pub segments: Vec<Segment>,
    /// For work of this side, if it is to read into it.
    pub pieces: Vec<MemoryPiece>,
    /// The link's, where it is that.
    pub buffer: Option<Buffer<D>>,
    /// Keeps the caller's memory registered.
    _pinned: Option<Pinned<D>>,
    /// By which the server gets at it, with their keys.
    windows: Vec<(u32, D::Window)>,
}

impl<D: Device> Exposed<D> {
    fn new(buffer: Option<Buffer<D>>) -> Exposed<D> {
        Exposed { segments: Vec::new(), pieces: Vec::new(), buffer, _pinned: None, windows: Vec::new() }
    }

    /// It is the caller's.
    pub(super) fn is_callers(&self) -> bool {
        self.buffer.is_none()
    }

    /// The server has keys to it.
    pub(super) fn has_keys(&self) -> bool {
        !self.segments.is_empty()
    }

    /// Takes out the window whose key has ended; `None` if there is none.
    pub(super) fn take_window(&mut self, key: u32) -> Option<D::Window> {
        let at = self.windows.iter().position(|(known, _)| *known == key)?;
        Some(self.windows.swap_remove(at).1)
    }

    /// Keys that are still valid and have to be ended.
    pub(super) fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.windows.iter().map(|(key, _)| *key)
    }
}

/// What memory gets its keys from.
pub(super) struct Exposer<D: Device> {
    pub memory: RdmaMemory,
    pub cache: RegistrationCache<D>,
    pub buffers: Buffers<D>,
    pub counts: RdmaCounts,
    windows_free: FreeWindows<D>,
}

impl<D: Device> Exposer<D> {
    pub(super) fn new(memory: RdmaMemory, cache: RegistrationCache<D>, counts: RdmaCounts) -> Exposer<D> {
        let buffers = Buffers::new(cache.device().clone(), memory == RdmaMemory::Windows);
        Exposer { memory, cache, buffers, counts, windows_free: FreeWindows::default() }
    }

    /// Gives the caller's memory keys, or copies it into a buffer that has one. Binds are to be posted before the call.
    ///
    /// # Errors
    /// Why not, and what to do.
    ///
    /// # Safety
    /// The memory stays what it is, and nobody else uses what the server writes, until the result is dropped or its keys
    /// have ended.
    pub(super) unsafe fn expose(
        &mut self,
        memory: Memory,
        direction: Direction,
        binds: &mut VecDeque<Work>,
    ) -> Result<Exposed<D>, String> {
        if self.memory == RdmaMemory::Copied {
            return self.expose_copy(memory, direction);
        }
        let (address, bytes) = (memory.start as u64, memory.bytes as u64);
        // SAFETY: as the caller promises.
        let pinned = unsafe { self.cache.pin_piece(address, bytes, direction != Direction::Out) };
        let pinned = pinned.map_err(|error| error.to_string())?;
        let mut exposed = Exposed::new(None);
        let mut at = address;
        while at < address + bytes {
            let left = address + bytes - at;
            // What is larger than the adapter registers at once lies in several regions that touch.
            let whole = pinned.find(at, left);
            let region = whole.or_else(|| pinned.regions().iter().rev().find(|region| region.address <= at));
            let region = region.ok_or("it is not registered")?;
            let part = left.min((region.address + region.bytes).saturating_sub(at));
            if part == 0 {
                return Err("it is not registered".into());
            }
            let piece = MemoryPiece { address: at, bytes: part as u32, local_key: region.local_key };
            self.add(&mut exposed, piece, region.remote_key, direction, binds)?;
            at += part;
        }
        exposed._pinned = Some(pinned);
        Ok(exposed)
    }

    fn expose_copy(&mut self, memory: Memory, direction: Direction) -> Result<Exposed<D>, String> {
        let mut buffer = self.buffers.take(memory.bytes).map_err(|error| error.to_string())?;
        if direction == Direction::Out {
            // SAFETY: the memory is readable as its caller promises, and the buffer was free.
            unsafe { buffer.fill().as_mut_ptr().copy_from_nonoverlapping(memory.start, memory.bytes) };
            self.counts.update(|counts| counts.copied_bytes += memory.bytes as u64);
        }
        self.expose_buffer(buffer, memory.bytes, direction, &mut VecDeque::new())
    }

    /// Gives the first `bytes` of a buffer of the link's a key.
    pub(super) fn expose_buffer(
        &mut self,
        buffer: Buffer<D>,
        bytes: usize,
        direction: Direction,
        binds: &mut VecDeque<Work>,
    ) -> Result<Exposed<D>, String> {
        let (piece, key) = (buffer.piece(bytes), buffer.remote_key());
        let mut exposed = Exposed::new(Some(buffer));
        self.add(&mut exposed, piece, key, direction, binds)?;
        Ok(exposed)
    }

    /// Adds a segment, with a window of its own where the strategy is that; a piece if the server has no key.
    fn add(
        &mut self,
        exposed: &mut Exposed<D>,
        piece: MemoryPiece,
        remote_key: u32,
        direction: Direction,
        binds: &mut VecDeque<Work>,
    ) -> Result<(), String> {
        let MemoryPiece { address, bytes, local_key } = piece;
        let mut handle = remote_key;
        let access = match direction {
            Direction::Out => Access::REMOTE_READ,
            Direction::In => Access::REMOTE_WRITE,
            Direction::Local => {
                exposed.pieces.push(piece);
                return Ok(());
            }
        };
        if self.memory == RdmaMemory::Windows {
            let taken = self.windows_free.take(self.cache.device());
            let (key, window) = taken.map_err(|error| error.to_string())?;
            handle = key;
            let bytes = bytes.into();
            binds.push_back(Work::Bind { window_key: handle, local_key, address, bytes, access });
            exposed.windows.push((handle, window));
            self.counts.update(|counts| counts.windows_bound += 1);
        }
        exposed.segments.push(Segment { handle, bytes, offset: address });
        Ok(())
    }

    /// Takes back memory whose keys have ended, or are those of registrations.
    pub(super) fn take_back(&mut self, exposed: Exposed<D>) {
        for (_, window) in exposed.windows {
            self.free_window(window);
        }
        if let Some(buffer) = exposed.buffer {
            self.buffers.give_back(buffer);
        }
    }

    /// Keeps a window whose key has ended.
    pub(super) fn free_window(&mut self, window: D::Window) {
        self.windows_free.give_back(window);
    }

    /// Drops all windows, of a link that is disconnected. Some adapters do not end a queue pair that windows are bound on.
    pub(super) fn drop_windows<'a>(&mut self, all: impl Iterator<Item = &'a mut Exposed<D>>)
    where
        D: 'a,
    {
        self.windows_free.clear();
        all.for_each(|exposed| exposed.windows.clear());
    }
}
