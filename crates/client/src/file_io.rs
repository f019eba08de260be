//! Reads and writes of an open file: all forms of them are one [`Transfer`].
//!
//! ```text
//!   read_at, readv_at      ┐
//!   read (at the cursor)   ├─► read_pieces ─► move_pieces ─┐
//!   read_list              ┘                               ├─► Transfer::begin ─► wait
//!   read_raw ──────────────────────────────► move_raw ─────┘
//!   start_read, start_read_raw ────────────► start_raw ──────► Transfer::begin_owned ─► PendingRaw
//! ```
//!
//! Writes are the same. With known allocations: `allocations.rs`; of typed elements: `typed.rs`.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use libc::iovec;
use weft_layout::{Extent, Region, Regions};
use weft_transport::group_requests;

use crate::Result;
use crate::call::Guard;
use crate::file::File;
use crate::pending::{Pending, PendingRaw};
use crate::transfer::Transfer;
use crate::wait::lock;
use crate::window::{Direction, Memory, bytes_of, extent_of, pieces_of, pieces_to_fill};

/// Memory regions of a buffer, as addresses.
fn memory_of(buffer: &[u8]) -> Regions {
    Regions::contiguous(buffer.as_ptr() as u64, buffer.len() as u64)
}

impl File {
    /// Moves bytes between a part of the file and pieces of memory.
    ///
    /// # Safety
    /// As for [`Transfer::begin`], until this returns.
    unsafe fn move_pieces(&self, direction: Direction, pieces: &[iovec], file: &Regions) -> Result<u64> {
        let listed;
        let memory = match file.parts.as_slice() {
            [Region::Contiguous(_)] => Memory::Pieces(pieces),
            // A pattern of the file is cut together with a pattern of memory.
            _ => {
                listed = Regions::list(pieces.iter().map(extent_of).collect::<Vec<_>>());
                Memory::Regions(&listed)
            }
        };
        // SAFETY: the caller's promise.
        unsafe { Transfer::begin(&self.open, direction, 0, memory, Arc::default(), file, None)? }.wait()
    }

    /// Reads into pieces of memory one after the other, from `offset` on, or where that is `None` at the
    /// cursor, which moves on; the number of bytes, fewer than asked for only at the end of the file. The
    /// list itself is used as it is.
    ///
    /// # Safety
    /// The pieces are writable and nobody else's until this returns.
    pub unsafe fn read_pieces(&self, pieces: &[iovec], offset: Option<u64>) -> Result<usize> {
        let bytes = bytes_of(pieces);
        if let Some(offset) = offset {
            // SAFETY: the caller's promise.
            let read =
                unsafe { self.move_pieces(Direction::Read, pieces, &Regions::contiguous(offset, bytes))? };
            return Ok(read as usize);
        }
        let mut cursor = lock(&self.cursor);
        let file = cursor.regions_at(cursor.position, bytes).map_err(|error| error.on(&self.open.name))?;
        // SAFETY: the caller's promise.
        let read = unsafe { self.move_pieces(Direction::Read, pieces, &file)? };
        cursor.position += read;
        Ok(read as usize)
    }

    /// Writes pieces of memory one after the other, from `offset` on, or where that is `None` as
    /// [`File::write`] does; the number of bytes.
    ///
    /// # Safety
    /// The pieces are readable and do not change until this returns.
    pub unsafe fn write_pieces(&self, pieces: &[iovec], offset: Option<u64>) -> Result<usize> {
        let bytes = bytes_of(pieces);
        // SAFETY: the caller's promise.
        let write = |file: &Regions| unsafe { self.move_pieces(Direction::Write, pieces, file) };
        if let Some(offset) = offset {
            return Ok(write(&Regions::contiguous(offset, bytes))? as usize);
        }
        let mut cursor = lock(&self.cursor);
        let (begin, file) = match self.open.appends {
            true => {
                let end = self.end_for(bytes)?;
                (end, Ok(Regions::contiguous(end, bytes)))
            }
            false => (cursor.position, cursor.regions_at(cursor.position, bytes)),
        };
        let written = write(&file.map_err(|error| error.on(&self.open.name))?)?;
        cursor.position = begin + written;
        Ok(written as usize)
    }

    /// Reads from `offset` on; the number of bytes, fewer than asked for only at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.readv_at(&mut [IoSliceMut::new(buffer)], offset)
    }

    /// Writes all of `data` from `offset` on; the number of bytes.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.writev_at(&[IoSlice::new(data)], offset)
    }

    /// As [`File::read_at`], into several buffers one after the other.
    pub fn readv_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        // SAFETY: the buffers are borrowed mutably until this returns.
        unsafe { self.read_pieces(pieces_to_fill(buffers), Some(offset)) }
    }

    /// As [`File::write_at`], from several buffers one after the other.
    pub fn writev_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        // SAFETY: the buffers are borrowed until this returns.
        unsafe { self.write_pieces(pieces_of(buffers), Some(offset)) }
    }

    /// Reads regions of the file, in their order, into buffers, in theirs. Both sides must have the same
    /// number of bytes.
    ///
    /// Unlike a plain read it fills all of the memory: what lies beyond the end of the file is zeros. The
    /// number returned is that of the bytes below the end.
    pub fn read_list(&self, memory: &mut [IoSliceMut<'_>], file: &Regions) -> Result<u64> {
        // SAFETY: the buffers are borrowed mutably until this returns.
        unsafe { self.move_pieces(Direction::Read, pieces_to_fill(memory), file) }
    }

    /// Writes buffers, in their order, to regions of the file, in theirs. Where regions overlap it is not
    /// said which bytes win.
    pub fn write_list(&self, memory: &[IoSlice<'_>], file: &Regions) -> Result<u64> {
        // SAFETY: the buffers are borrowed until this returns.
        unsafe { self.move_pieces(Direction::Write, pieces_of(memory), file) }
    }

    /// Reads any regions of the file into any regions of memory; offsets of `memory` count from `base`. Of
    /// one contiguous region as [`File::read_at`], else as [`File::read_list`].
    ///
    /// # Safety
    /// The memory is writable and nobody else's until this returns.
    pub unsafe fn read_raw(&self, base: *mut u8, memory: &Regions, file: &Regions) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.move_raw(Direction::Read, base as u64, memory, None, file) }
    }

    /// Writes any regions of memory to any regions of the file; offsets of `memory` count from `base`.
    ///
    /// # Safety
    /// The memory is readable and does not change until this returns.
    pub unsafe fn write_raw(&self, base: *const u8, memory: &Regions, file: &Regions) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.move_raw(Direction::Write, base as u64, memory, None, file) }
    }

    /// Moves bytes between any regions of the file and of memory, whose offsets count from `base`. Where
    /// `allocations` are given, each piece of memory lies in one of them, or in some that touch.
    ///
    /// # Errors
    /// Those of [`File::read_raw`] and [`File::write_raw`], and if a piece is in no allocation; nothing is
    /// moved then.
    ///
    /// # Safety
    /// Until this returns the memory is nobody else's and writable for a read, readable and unchanging for a
    /// write.
    pub unsafe fn move_raw(
        &self,
        direction: Direction,
        base: u64,
        memory: &Regions,
        allocations: Option<&[Extent]>,
        file: &Regions,
    ) -> Result<u64> {
        let allocations = self.checked(base, memory, allocations)?;
        let memory = Memory::Regions(memory);
        // SAFETY: the caller's promise.
        unsafe { Transfer::begin(&self.open, direction, base, memory, allocations, file, None)? }.wait()
    }

    /// Begins a [`File::move_raw`].
    ///
    /// # Safety
    /// As for [`File::move_raw`], until the result was waited for or dropped.
    pub unsafe fn start_raw(
        &self,
        direction: Direction,
        base: u64,
        memory: Regions,
        allocations: Option<&[Extent]>,
        file: Regions,
    ) -> PendingRaw {
        // SAFETY: the caller's promise.
        unsafe { self.start_raw_while(None, direction, base, memory, allocations, file) }
    }

    /// # Safety
    /// As for [`File::start_raw`].
    unsafe fn start_raw_while(
        &self,
        guard: Option<Arc<dyn Guard>>,
        direction: Direction,
        base: u64,
        memory: Regions,
        allocations: Option<&[Extent]>,
        file: Regions,
    ) -> PendingRaw {
        let allocations = self.checked(base, &memory, allocations);
        // SAFETY: the caller's promise.
        let begin = |allocations| unsafe {
            Transfer::begin_owned(&self.open, direction, base, memory, allocations, file, guard)
        };
        group_requests(|| PendingRaw::new(allocations.and_then(begin)))
    }

    /// Begins to read `buffer.len()` bytes from `offset` on.
    pub fn start_read(&self, mut buffer: Vec<u8>, offset: u64) -> Pending {
        let file = Regions::contiguous(offset, buffer.len() as u64);
        let memory = memory_of(buffer.as_mut_slice());
        // SAFETY: what is pending keeps the buffer, and gives it back when the transfer is over.
        unsafe { self.start_raw(Direction::Read, 0, memory, None, file) }.keeping(buffer)
    }

    /// Begins to write all of `buffer` from `offset` on.
    pub fn start_write(&self, buffer: Vec<u8>, offset: u64) -> Pending {
        let file = Regions::contiguous(offset, buffer.len() as u64);
        // SAFETY: as above.
        unsafe { self.start_raw(Direction::Write, 0, memory_of(&buffer), None, file) }.keeping(buffer)
    }

    /// Begins a [`File::read_raw`].
    ///
    /// # Safety
    /// The memory is writable and nobody else's until the result was waited for or dropped.
    pub unsafe fn start_read_raw(&self, base: *mut u8, memory: &Regions, file: &Regions) -> PendingRaw {
        // SAFETY: the caller's promise.
        unsafe { self.start_raw(Direction::Read, base as u64, memory.clone(), None, file.clone()) }
    }

    /// Begins a [`File::write_raw`].
    ///
    /// # Safety
    /// The memory is readable and does not change until the result was waited for or dropped.
    pub unsafe fn start_write_raw(&self, base: *const u8, memory: &Regions, file: &Regions) -> PendingRaw {
        // SAFETY: the caller's promise.
        unsafe { self.start_raw(Direction::Write, base as u64, memory.clone(), None, file.clone()) }
    }

    /// As [`File::start_write_raw`], of a write whose requests are sent only while `guard` allows it.
    ///
    /// # Safety
    /// As for [`File::start_write_raw`].
    pub unsafe fn start_write_raw_while(
        &self,
        guard: Option<Arc<dyn Guard>>,
        base: *const u8,
        memory: &Regions,
        file: &Regions,
    ) -> PendingRaw {
        let (memory, file) = (memory.clone(), file.clone());
        // SAFETY: the caller's promise.
        unsafe { self.start_raw_while(guard, Direction::Write, base as u64, memory, None, file) }
    }

    /// Reads at the cursor, in the view if one is set, and moves it on.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: the buffer is borrowed mutably until this returns.
        unsafe { self.read_pieces(pieces_to_fill(&mut [IoSliceMut::new(buffer)]), None) }
    }

    /// Writes at the cursor, in the view if one is set, and moves it on. Where the file was opened to append,
    /// writes at its end, and the cursor goes there.
    pub fn write(&self, data: &[u8]) -> Result<usize> {
        // SAFETY: the buffer is borrowed until this returns.
        unsafe { self.write_pieces(pieces_of(&[IoSlice::new(data)]), None) }
    }

    /// Writes all of `data` at the end of the file; returns where that was. No two appends, of whatever
    /// clients, get the same place. One that fails, or whose client dies, may leave a hole.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        let end = self.end_for(data.len() as u64)?;
        self.write_at(data, end)?;
        Ok(end)
    }

    /// Where `bytes` bytes to be appended belong.
    fn end_for(&self, bytes: u64) -> Result<u64> {
        self.open.check_access(Direction::Write)?;
        self.open.append_place(bytes).map_err(|error| error.on(&self.open.name))
    }
}
