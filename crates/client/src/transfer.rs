//! One read or write of a file: its windows, what has moved, and where the file ended.
//!
//! ```text
//!   queue of windows ─► shares under way (two windows) ─► all answered ─► some read was short? ─► ask for sizes ─► over
//! ```
//!
//! A server fills its share of a read as far as its data file goes. What is behind that is a hole, if the file goes on, or
//! beyond its end. Which of the two, the file's size says: the greatest end over all its data files. The answers
//! to the read have told some of these; only if they do not suffice are the other servers asked.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_layout::{Region, Regions};
use weft_transport::Completion;
use weft_wire::messages::{DataSize, ReadReply, SizeRequest, WriteReply, io_flags};
use weft_wire::{Op, Wire};

use crate::batch::{Batch, Call, Content, Finished};
use crate::error::{Error, ErrorKind};
use crate::inner::Inner;
use crate::open_file::OpenFile;
use crate::window::{Common, Cut, Direction, Share, cut};

/// Windows of one request under way at a time.
const WINDOWS_UNDER_WAY: usize = 2;
/// Requests of up to this size are waited for with watchful eyes.
const BULKY_BYTES: u64 = 128 << 10;
/// Tags from here on are questions for sizes, of the slot that is the rest.
const SIZE_TAG: usize = 1 << 32;

/// A read or write under way.
pub(crate) struct Transfer {
    file: Arc<OpenFile>,
    regions: Regions,
    total_bytes: u64,
    common: Common,
    queue: VecDeque<Cut>,
    /// Shares left of each window that was begun.
    left: Vec<usize>,
    windows_under_way: usize,
    batch: Batch,
    /// Shares of reads that were not filled, and how far they were.
    short: Vec<(Box<Share>, u64)>,
    /// Ends of file that the slots' data files imply, as far as known.
    ends: Vec<Option<u64>>,
    sizing: bool,
    error: Option<Error>,
    over: bool,
}

impl Transfer {
    /// Begins to move bytes between `regions` of the file and `memory`, whose offsets count from `base`.
    ///
    /// # Safety
    /// The memory is valid until the transfer is over or dropped: readable and unchanging for a write, writable and nobody
    /// else's for a read.
    pub(crate) unsafe fn begin(
        file: &Arc<OpenFile>,
        direction: Direction,
        base: u64,
        memory: &Regions,
        regions: &Regions,
    ) -> Result<Transfer, Error> {
        let name = |error: Error| error.on(&file.name);
        file.check_access(direction)?;
        let held = &file.held;
        let share_bytes_max = file.share_bytes_max(regions);
        let queue = cut(&held.layout, regions, memory, share_bytes_max).map_err(name)?;
        file.inner.keep_alive(held).map_err(name)?;
        let flags = if file.sync && direction == Direction::Write { io_flags::SYNC } else { 0 };
        let common = Common { direction, layout: held.layout, capability: held.capability(), base, flags };
        let total_bytes = regions.total_bytes();
        let mut transfer = Transfer {
            file: file.clone(),
            regions: regions.clone(),
            total_bytes,
            common,
            queue,
            left: Vec::new(),
            windows_under_way: 0,
            batch: Batch::default(),
            short: Vec::new(),
            ends: vec![None; usize::from(held.layout.server_count())],
            sizing: false,
            error: None,
            over: false,
        };
        transfer.batch.bulky = total_bytes > BULKY_BYTES;
        transfer.submit_windows();
        Ok(transfer)
    }

    /// Moves it forward without waiting; whether it is over.
    pub(crate) fn test(&mut self) -> bool {
        while !self.over {
            let inner = self.file.inner.clone();
            match self.batch.poll(&inner) {
                Some(finished) => self.take(finished),
                None if self.batch.is_empty() => self.next_phase(),
                None => return false,
            }
        }
        true
    }

    /// Waits for its end; the bytes moved.
    pub(crate) fn wait(mut self) -> Result<u64, Error> {
        let inner = self.file.inner.clone();
        while !self.over {
            match self.batch.wait(&inner) {
                Some(finished) => self.take(finished),
                None => self.next_phase(),
            }
        }
        match self.error.take() {
            Some(error) => Err(error.on(&self.file.name)),
            None if self.common.direction == Direction::Write => Ok(self.total_bytes),
            None => Ok(self.count_read()),
        }
    }

    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.file.inner
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    fn submit_windows(&mut self) {
        while self.windows_under_way < WINDOWS_UNDER_WAY
            && self.error.is_none()
            && let Some(cut) = self.queue.pop_front()
        {
            let shares = match self.common.shares(cut) {
                Ok(shares) => shares,
                Err([first, second]) => {
                    self.queue.push_front(second);
                    self.queue.push_front(first);
                    continue;
                }
            };
            let window = self.left.len();
            self.left.push(shares.len());
            self.windows_under_way += usize::from(!shares.is_empty());
            for share in shares {
                self.submit(share, window);
            }
        }
    }

    fn submit(&mut self, share: Share, window: usize) {
        let op = match self.common.direction {
            Direction::Read => Op::Read,
            Direction::Write => Op::Write,
        };
        let inner = &self.file.inner;
        match inner.io(self.common.layout.server_id(share.slot)) {
            Ok(server) => {
                self.batch.push(Call::new(inner, server, op, Content::Share(Box::new(share)), window));
            }
            Err(error) => {
                self.error.get_or_insert(error);
                self.share_over(window);
            }
        }
    }

    fn share_over(&mut self, window: usize) {
        self.left[window] -= 1;
        self.windows_under_way -= usize::from(self.left[window] == 0);
    }

    fn take(&mut self, finished: Finished) {
        let Finished { tag, content, result } = finished;
        let taken = match content {
            Content::Share(share) => {
                self.share_over(tag);
                result.and_then(|completion| self.take_share(share, &completion))
            }
            Content::Message(_) => result.and_then(|completion| {
                let size: DataSize = read_body(Op::Size, &completion)?;
                self.note_local_size((tag - SIZE_TAG) as u16, size.local_bytes);
                Ok(())
            }),
        };
        if let Err(error) = taken {
            self.error.get_or_insert(error);
        }
        self.submit_windows();
    }

    fn take_share(&mut self, share: Box<Share>, completion: &Completion) -> Result<(), Error> {
        match self.common.direction {
            Direction::Read => {
                let reply: ReadReply = read_body(Op::Read, completion)?;
                self.note_local_size(share.slot, reply.local_bytes);
                if reply.filled_bytes < share.bytes {
                    self.short.push((share, reply.filled_bytes));
                }
                Ok(())
            }
            Direction::Write => {
                let reply: WriteReply = read_body(Op::Write, completion)?;
                if reply.written_bytes == share.bytes {
                    return Ok(());
                }
                let text = format!("a server wrote {} of {} bytes", reply.written_bytes, share.bytes);
                Err(Error::new(Op::Write.name(), ErrorKind::Protocol, text))
            }
        }
    }

    fn note_local_size(&mut self, slot: u16, local_bytes: u64) {
        self.ends[usize::from(slot)] = Some(self.common.layout.logical_size(slot, local_bytes));
    }

    /// The end of the file, as far as known.
    fn known_end(&self) -> u64 {
        self.ends.iter().flatten().copied().max().unwrap_or(0)
    }

    fn next_phase(&mut self) {
        let request_end = self.regions.span().map_or(0, |span| span.end());
        if self.error.is_some() || self.common.direction == Direction::Write {
            if self.error.is_none() && self.total_bytes > 0 {
                self.file.held.note_write(request_end);
            } else if self.common.direction == Direction::Write {
                self.file.held.note_failed_write();
            }
            self.over = true;
            return;
        }
        // A share may be filled to its end and yet have bytes beyond the end of its data file: lists go back and forth.
        let undecided = self.known_end() < request_end;
        if undecided && !self.sizing {
            self.sizing = true;
            return self.ask_sizes();
        }
        self.fill_short();
        self.over = true;
    }

    fn ask_sizes(&mut self) {
        let inner = self.file.inner.clone();
        let unknown: Vec<u16> = (0..self.common.layout.server_count())
            .filter(|slot| self.ends[usize::from(*slot)].is_none())
            .collect();
        for slot in unknown {
            let request = SizeRequest { capability: self.common.capability.clone() };
            match inner.io(self.common.layout.server_id(slot)) {
                Ok(server) => {
                    self.batch.push(Call::of(&inner, server, &request, SIZE_TAG + usize::from(slot)))
                }
                Err(error) => self.error = Some(error),
            }
        }
    }

    /// Zeros for holes; and behind the end of the file too, where the request is a list.
    fn fill_short(&mut self) {
        let end = self.known_end();
        for (share, filled_bytes) in std::mem::take(&mut self.short) {
            let to = match share.window.file.parts.as_slice() {
                [Region::Contiguous(extent)] => {
                    let layout = &self.common.layout;
                    let last = end.clamp(extent.offset, extent.end());
                    layout.local_size(share.slot, last) - layout.local_size(share.slot, extent.offset)
                }
                _ => share.bytes,
            };
            if to > filled_bytes {
                // SAFETY: the transfer was begun with this memory lent to it, and every server has answered.
                unsafe { share.zero(filled_bytes, to) };
            }
        }
    }

    /// Bytes of the request below the end of the file.
    fn count_read(&self) -> u64 {
        let end = self.known_end();
        if self.regions.span().is_none_or(|span| span.end() <= end) {
            return self.total_bytes;
        }
        self.regions.extents().map(|extent| end.clamp(extent.offset, extent.end()) - extent.offset).sum()
    }
}

fn read_body<T: Wire>(op: Op, completion: &Completion) -> Result<T, Error> {
    T::from_bytes(&completion.body).map_err(|error| {
        Error::new(op.name(), ErrorKind::Protocol, format!("a server's answer cannot be read: {error}"))
    })
}
