//! Small files: their bytes are asked of the metadata server, with which they lie.
//!
//! ```text
//!   read, write of few bytes ─► ReadSmall, WriteSmall ─┬─ done: one round trip
//!                                                      └─ "striped" ─► noted for good ─► windows, as ever
//!   anything else ─► Spread ─► noted for good ─► as ever
//! ```
//!
//! A nosync server acknowledges Spread before it is durable. A durable write to a striped file is lost if the metadata server forgets
//! that the file is striped. So the first write of each open with `O_SYNC` has the metadata server sync before the bytes move
//! (`Transfer::move_striped`).
//!
//! That a file is striped never changes. That it is small may change at any time, by whoever else uses it; so it is the metadata
//! server that says so at every read and write.

use std::sync::Arc;

use weft_layout::{Extent, Regions};
use weft_wire::Added;
use weft_wire::limits::SMALL_FILE_BYTES_MAX;
use weft_wire::messages::{
    Attr, NewTimes, ReadSmallReply, ReadSmallRequest, SpreadRequest, SyncSmallRequest, Time,
    WriteSmallRequest,
};
use weft_wire::security::Capability;

use crate::batch;
use crate::call::Guard;
use crate::error::Error;
use crate::held::Held;
use crate::inner::Inner;
use crate::open_file::OpenFile;
use crate::wait::lock;
use crate::window::{Direction, Memory};

/// What a transfer asks the metadata server first.
pub(crate) enum SmallRequest {
    Read(ReadSmallRequest),
    Write(WriteSmallRequest),
    Spread(SpreadRequest),
}

/// What it asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SmallAsked {
    Read,
    Write,
    Spread,
    /// That the file is striped is made durable.
    Sync,
}

impl SmallRequest {
    /// The read of some regions.
    pub(crate) fn read(capability: &Capability, plain: Option<u64>, total_bytes: u64) -> SmallRequest {
        let most = SMALL_FILE_BYTES_MAX;
        let (offset, bytes) = match plain {
            Some(offset) => (offset, total_bytes.min(most.into()) as u32),
            None => (0, most),
        };
        SmallRequest::Read(ReadSmallRequest { capability: capability.clone(), offset, bytes })
    }

    /// The write of memory into one extent, or what must come before it if that ends beyond `bound_bytes`.
    ///
    /// # Safety
    /// The memory is readable.
    pub(crate) unsafe fn write(
        capability: &Capability,
        plain: Option<u64>,
        (total_bytes, bound_bytes): (u64, u32),
        (base, memory): (u64, Memory<'_>),
        durable: bool,
    ) -> SmallRequest {
        let capability = capability.clone();
        let ends_within =
            |offset: &u64| offset.checked_add(total_bytes).is_some_and(|end| end <= u64::from(bound_bytes));
        let Some(offset) = plain.filter(ends_within) else {
            return SmallRequest::Spread(SpreadRequest { capability });
        };
        let mut data = Vec::with_capacity(total_bytes as usize);
        let mut walk = memory.walk();
        while let Some(piece) = walk.next_at_most(u64::MAX) {
            // SAFETY: the caller's promise.
            data.extend_from_slice(unsafe {
                std::slice::from_raw_parts(address(base, &piece), piece.bytes as usize)
            });
        }
        SmallRequest::Write(WriteSmallRequest { capability, offset, durable, data, times: Added(None) })
    }

    pub(crate) fn asked(&self) -> SmallAsked {
        match self {
            SmallRequest::Read(_) => SmallAsked::Read,
            SmallRequest::Write(_) => SmallAsked::Write,
            SmallRequest::Spread(_) => SmallAsked::Spread,
        }
    }
}

fn address(base: u64, piece: &Extent) -> *mut u8 {
    base.wrapping_add(piece.offset) as usize as *mut u8
}

/// Puts what a read returned into memory; the bytes of `regions` below the end of the file. Where `plain` is `None`, what is
/// behind that end is filled with zeros.
///
/// # Safety
/// The memory is writable, and of as many bytes as `regions`.
pub(crate) unsafe fn scatter(
    reply: &ReadSmallReply,
    regions: &Regions,
    plain: Option<u64>,
    (base, memory): (u64, Memory<'_>),
) -> u64 {
    let begins_at = plain.unwrap_or(0);
    let mut walk = memory.walk();
    let mut read_bytes = 0;
    for extent in regions.extents() {
        let from = (extent.offset - begins_at).min(reply.data.len() as u64) as usize;
        let to = (extent.end() - begins_at).min(reply.data.len() as u64) as usize;
        let mut found = &reply.data[from..to];
        read_bytes += found.len() as u64;
        let mut left_bytes = extent.bytes;
        if plain.is_some() {
            left_bytes = found.len() as u64;
        }
        while left_bytes > 0 {
            let Some(piece) = walk.next_at_most(left_bytes) else { break };
            left_bytes -= piece.bytes;
            let (filled, rest) = found.split_at(found.len().min(piece.bytes as usize));
            found = rest;
            let to = address(base, &piece);
            // SAFETY: the caller's promise; the piece is of so many bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(filled.as_ptr(), to, filled.len());
                std::ptr::write_bytes(to.add(filled.len()), 0, piece.bytes as usize - filled.len());
            }
        }
    }
    read_bytes
}

impl Held {
    /// The size of the file if it is small, as the metadata server says now.
    pub(crate) fn small_size(&self, inner: &Inner) -> Result<Option<u64>, Error> {
        if self.small_bytes() == 0 {
            return Ok(None);
        }
        inner.keep_alive(self)?;
        let request = ReadSmallRequest { capability: self.capability(), offset: 0, bytes: 0 };
        let reply = batch::ask(inner, &request)?;
        if reply.striped {
            self.note_striped();
        }
        Ok((!reply.striped).then_some(reply.file_bytes))
    }

    /// Makes the file striped, if it is not.
    pub(crate) fn spread(&self, inner: &Inner) -> Result<(), Error> {
        if self.small_bytes() > 0 {
            inner.keep_alive(self)?;
            batch::ask(inner, &SpreadRequest { capability: self.capability() })?;
            self.note_striped();
        }
        Ok(())
    }

    /// Writes the contents of a small file, with the times that it is to have then. `None` if that cannot be done at once, and nothing
    /// was written; else the file after it, and whether it has these times.
    pub(crate) fn write_with_times(
        &self,
        inner: &Inner,
        data: &[u8],
        durable: bool,
        times: NewTimes,
        guard: Option<Arc<dyn Guard>>,
    ) -> Result<Option<(Attr, bool)>, Error> {
        if data.len() as u64 > u64::from(self.small_bytes()) {
            return Ok(None);
        }
        inner.keep_alive(self)?;
        let request = WriteSmallRequest {
            capability: self.capability(),
            offset: 0,
            durable,
            data: data.to_vec(),
            times: Added(Some(times)),
        };
        let reply = batch::ask_guarded(inner, &request, guard)?;
        if reply.attr.is_none() {
            self.note_striped();
        }
        Ok(reply.attr.map(|attr| (attr, reply.has_times.0)))
    }

    /// Makes the bytes of a small file durable; whether it is one.
    pub(crate) fn sync_small(&self, inner: &Inner) -> Result<bool, Error> {
        if self.small_bytes() == 0 {
            return Ok(false);
        }
        inner.keep_alive(self)?;
        let request = SyncSmallRequest { capability: self.capability() };
        let reply = batch::ask(inner, &request)?;
        if reply.striped {
            self.note_striped();
        }
        Ok(!reply.striped)
    }
}

impl OpenFile {
    /// See [`File::write_with_times`](crate::File::write_with_times).
    pub(crate) fn write_with_times(
        self: &Arc<Self>,
        data: &[u8],
        atime: &Time,
        mtime: &Time,
    ) -> Result<Option<bool>, Error> {
        let _operation = self.inner.operation();
        self.check_access(Direction::Write)?;
        let caller = (*self.caller).clone();
        let times = NewTimes { caller, atime: atime.clone(), mtime: mtime.clone() };
        let written = self.held.write_with_times(&self.inner, data, self.sync, times, self.guard())?;
        Ok(written.map(|(attr, has_times)| {
            *lock(&self.attr) = attr;
            has_times
        }))
    }

    /// Makes the file striped if bytes up to `end_bytes` are too many for a small one.
    pub(crate) fn spread_for(&self, end_bytes: u64) -> Result<(), Error> {
        if end_bytes > u64::from(self.held.small_bytes()) { self.held.spread(&self.inner) } else { Ok(()) }
    }
}
