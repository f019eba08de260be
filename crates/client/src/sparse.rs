//! Data, holes and space of an open file: what each server says of its data file, put together.

use weft_layout::{SlotSeek, next_data, next_hole};
use weft_wire::messages::{Attr, FileKind, SeekReply, SeekRequest};

use crate::error::{Error, ErrorKind};
use crate::open_file::OpenFile;
use crate::size::{ask_size, on_all_slots};
use crate::{Client, File, Result, batch};

/// What a file system has in one unit of `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;
/// What local file systems give out at least.
const SPACE_UNIT_BYTES: u64 = 4096;

impl Client {
    /// `st_blocks` of stat(2): the space that something takes, in units of 512 bytes. Servers are asked for
    /// files of more than one strip; smaller ones count as if they had no holes, so that looking at many
    /// small files costs nothing more.
    pub fn blocks(&self, attr: &Attr) -> Result<u64> {
        if may_have_holes(attr) {
            return Ok(self.allocated_bytes([attr])?[0].div_ceil(STAT_BLOCK_BYTES));
        }
        Ok(attr.size.next_multiple_of(SPACE_UNIT_BYTES) / STAT_BLOCK_BYTES)
    }
}

/// Whether holes of a file could be of weight.
fn may_have_holes(attr: &Attr) -> bool {
    attr.kind == FileKind::File
        && attr.layout.is_some_and(|layout| attr.size > u64::from(layout.strip_bytes()))
}

impl File {
    /// As fallocate(2), with its modes: 0, `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE |
    /// FALLOC_FL_KEEP_SIZE`, and `FALLOC_FL_ZERO_RANGE` with or without `FALLOC_FL_KEEP_SIZE`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other modes: what would move the bytes behind a range moves them to other servers.
    pub fn fallocate(&self, mode: i32, offset: u64, bytes: u64) -> Result<()> {
        const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP_SIZE;
        const ZERO_RANGE_KEEP_SIZE: i32 = libc::FALLOC_FL_ZERO_RANGE | KEEP_SIZE;
        match mode {
            0 | KEEP_SIZE => self.allocate(offset, bytes, mode == KEEP_SIZE),
            PUNCH_HOLE => self.punch(offset, bytes),
            libc::FALLOC_FL_ZERO_RANGE => self.zero(offset, bytes, false),
            ZERO_RANGE_KEEP_SIZE => self.zero(offset, bytes, true),
            _ => {
                let text = format!("mode {mode:#x} is none of those for files over several servers");
                Err(Error::new("fallocate", ErrorKind::Local(libc::EOPNOTSUPP), text).on(&self.name()))
            }
        }
    }
}

impl OpenFile {
    pub(crate) fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        if let Some(file_bytes) = self.held.small_size(&self.inner)? {
            return Ok((offset < file_bytes).then_some(offset));
        }
        Ok(next_data(&self.held.layout, offset, &self.seek_slots(offset)?))
    }

    pub(crate) fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        if let Some(file_bytes) = self.held.small_size(&self.inner)? {
            return Ok((offset < file_bytes).then_some(file_bytes));
        }
        Ok(next_hole(&self.held.layout, offset, &self.seek_slots(offset)?))
    }

    pub(crate) fn allocated_bytes(&self) -> Result<u64> {
        if let Some(file_bytes) = self.held.small_size(&self.inner)? {
            return Ok(file_bytes.next_multiple_of(512));
        }
        self.inner.keep_alive(&self.held)?;
        Ok(ask_size(&self.inner, &self.held.capability())?.allocated_bytes)
    }

    fn seek_slots(&self, offset: u64) -> Result<Vec<SlotSeek>> {
        self.inner.keep_alive(&self.held)?;
        let capability = self.held.capability();
        let request = |slot| SeekRequest { capability: capability.clone(), slot, offset };
        let requests = on_all_slots(&self.inner, &self.held.layout, request)?;
        let replies = batch::ask_all(&self.inner, requests, None).into_iter();
        let slot = |reply: SeekReply| SlotSeek {
            data_offset: reply.data_offset,
            hole_offset: reply.hole_offset,
            local_bytes: reply.local_bytes,
        };
        replies.map(|reply| reply.map(slot)).collect()
    }
}
