//! Copying a range of one file into another, or elsewhere into the same one.
//!
//! ```text
//!   both ranges lie alike on the servers       each server copies from data file to data file      no byte comes here
//!   else                                       data ─► buffer ─► data, two buffers in turns        holes are not moved
//! ```
//!
//! Ranges lie alike where both files have strips of the same size over as many servers, the offsets are the
//! same within a strip, and the first strips are on the same server ([`weft_layout::slot_shift`]): so with
//! offsets that differ by whole stripes in one file, or in files that begin with the same server.

use weft_layout::{OFFSET_LIMIT, slot_shift};
use weft_wire::messages::{CopyRangeReply, CopyRangeRequest};

use crate::error::{Error, ErrorKind};
use crate::locks::Guards;
use crate::open_file::OpenFile;
use crate::window::Direction;
use crate::{File, Result, batch};

/// What one server copies for one request at the most: soon done, so that its answer is not waited for in
/// vain.
const SERVER_BYTES_MAX: u64 = 64 << 20;
/// What passes through the client at once.
const BUFFER_BYTES: u64 = 4 << 20;
/// A range of at most so many bytes that passes through the client is moved with its holes: to ask every server where they are
/// would take longer.
const SMALL_BYTES: u64 = 64 << 10;

fn invalid(text: impl Into<String>) -> Error {
    Error::new("CopyRange", ErrorKind::Invalid, text)
}

/// What a copy has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Length of the range that was copied.
    pub bytes: u64,
    /// Bytes of it that were holes, or may have been.
    pub hole_bytes: u64,
}

/// See [`crate::Client::copy_range`].
pub(crate) struct Copy<'a> {
    pub from: &'a File,
    pub from_offset: u64,
    pub to: &'a File,
    pub to_offset: u64,
    pub bytes: u64,
}

impl Copy<'_> {
    /// Checks it and does it. `from_bytes` is the size of the source, where it is known.
    pub(crate) fn run(mut self, from_bytes: Option<u64>) -> Result<Copied> {
        let (from, to) = (self.from, self.to);
        let (source, target) = (from.open(), to.open());
        source.check_access(Direction::Read)?;
        target.check_access(Direction::Write)?;
        let end = |offset: u64| offset.checked_add(self.bytes).filter(|end| *end <= OFFSET_LIMIT);
        let (Some(from_end), Some(to_end)) = (end(self.from_offset), end(self.to_offset)) else {
            let Copy { from_offset, to_offset, bytes, .. } = self;
            let text = format!("{bytes} bytes at {from_offset} and at {to_offset} are no ranges of files");
            return Err(invalid(text));
        };
        let overlap = self.from_offset < to_end && self.to_offset < from_end;
        if from.ino() == to.ino() && overlap && self.bytes > 0 {
            return Err(invalid("the two ranges of the file overlap"));
        }
        let from_bytes = from_bytes.map_or_else(|| source.live_bytes(), Ok)?;
        self.bytes = self.bytes.min(from_bytes.saturating_sub(self.from_offset));
        if self.bytes == 0 {
            return Ok(Copied { bytes: 0, hole_bytes: 0 });
        }
        target.spread_for(self.to_offset + self.bytes)?;
        let is_small = source.held.small_size(&source.inner)?.is_some() || target.held.small_bytes() > 0;
        let data_bytes =
            match slot_shift(&source.held.layout, self.from_offset, &target.held.layout, self.to_offset) {
                Some(shift) if !is_small => self.by_servers(shift)?,
                _ => self.through_memory()?,
            };
        Ok(Copied { bytes: self.bytes, hole_bytes: self.bytes.saturating_sub(data_bytes) })
    }

    /// The bytes of data.
    fn by_servers(&self, shift: u16) -> Result<u64> {
        let mut data_bytes = 0;
        let layout = self.from.layout();
        let step_bytes = (SERVER_BYTES_MAX / u64::from(layout.strip_bytes())).max(1) * layout.stripe_bytes();
        let mut done = 0;
        while done < self.bytes {
            let bytes = step_bytes.min(self.bytes - done);
            let copied = self.step(shift, done, bytes);
            // What a server has copied stays copied when another one fails.
            let held = &self.to.open().held;
            if copied.is_ok() {
                held.note_write(self.to_offset + done + bytes)
            } else {
                held.note_failed_write()
            }
            data_bytes += copied?;
            done += bytes;
        }
        Ok(data_bytes)
    }

    fn step(&self, shift: u16, done: u64, bytes: u64) -> Result<u64> {
        let (source, target): (&OpenFile, &OpenFile) = (self.from.open(), self.to.open());
        let inner = &source.inner;
        inner.keep_alive(&source.held)?;
        inner.keep_writable(&target.held, self.to_offset + done + bytes)?;
        let layout = source.held.layout;
        let from_offset = self.from_offset + done;
        let (mut requests, mut to_slots) = (Vec::new(), Vec::new());
        for slot in 0..layout.server_count() {
            if layout.local_size(slot, from_offset + bytes) == layout.local_size(slot, from_offset) {
                continue;
            }
            let to_slot = (u32::from(slot) + u32::from(shift)) % u32::from(layout.server_count());
            to_slots.push(to_slot as u16);
            let request = CopyRangeRequest {
                from: source.held.capability(),
                from_slot: slot,
                from_offset,
                to: target.held.capability(),
                to_slot: to_slot as u16,
                to_offset: self.to_offset + done,
                bytes,
            };
            requests.push((inner.io(layout.chain(slot))?, request));
        }
        let guard = Guards::of([self.from.open().guard(), self.to.open().guard()]);
        let replies = batch::ask_each(inner, requests, |_, call| call.guarded(guard.clone()));
        let mut data_bytes = 0;
        for (slot, reply) in to_slots.into_iter().zip(replies) {
            let CopyRangeReply { copied_bytes, loss_epoch, .. } = reply?;
            target.held.losses().note_change(slot, loss_epoch);
            data_bytes += copied_bytes;
        }
        Ok(data_bytes)
    }

    /// Data by data; what lies between is punched where the target has bytes. The bytes of data.
    fn through_memory(&self) -> Result<u64> {
        let end = self.from_offset + self.bytes;
        if self.bytes <= SMALL_BYTES {
            self.move_data(self.from_offset, end)?;
            return Ok(self.bytes);
        }
        let there = |offset: u64| self.to_offset + (offset - self.from_offset);
        let (mut at, mut data_bytes, mut target_bytes) = (self.from_offset, 0, None);
        let mut ends_with_hole = false;
        while at < end {
            let data = self.from.seek_data(at)?.map_or(end, |data| data.min(end));
            ends_with_hole = data > at;
            if ends_with_hole {
                let target_bytes = match target_bytes {
                    Some(bytes) => bytes,
                    None => *target_bytes.insert(self.to.open().live_bytes()?),
                };
                if there(at) < target_bytes {
                    self.to.punch(there(at), data - at)?;
                }
                at = data;
                continue;
            }
            let hole = self.from.seek_hole(at)?.map_or(end, |hole| hole.clamp(at, end));
            self.move_data(at, hole)?;
            data_bytes += hole - at;
            at = hole;
        }
        // The last byte of a hole at the end lets the target reach so far, and takes nothing from others who
        // extend it.
        if ends_with_hole && self.to.open().live_bytes()? < there(end) {
            self.to.write_at(&[0], there(end) - 1)?;
        }
        Ok(data_bytes)
    }

    /// Reads one buffer while the other is being written.
    fn move_data(&self, begin: u64, end: u64) -> Result<()> {
        let bytes_at = |at: u64| BUFFER_BYTES.min(end - at) as usize;
        let mut free = vec![0; bytes_at(begin)];
        let mut writing: Option<crate::Pending> = None;
        let mut at = begin;
        while at < end {
            free.resize(bytes_at(at), 0);
            // Cut meanwhile: zeros, as what lies behind the end of a file is.
            free.fill(0);
            let (_, filled) = self.from.start_read(free, at).wait()?;
            free = match writing.take() {
                Some(before) => before.wait()?.1,
                None => Vec::new(),
            };
            let bytes = filled.len() as u64;
            writing = Some(self.to.start_write(filled, self.to_offset + (at - self.from_offset)));
            at += bytes;
        }
        if let Some(last) = writing {
            last.wait()?;
        }
        Ok(())
    }
}
