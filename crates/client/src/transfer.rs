//! One read or write of a file: its windows, what has moved, and where the file ended.
//!
//! ```text
//!   queue of windows ─► shares under way (two windows) ─► all answered ─► over
//!                                                            └─ some read was short? ─► ask for sizes ─► over
//! ```
//!
//! Of a file that may be small the metadata server is asked first: see `small.rs`.
//!
//! A server fills its share of a read as far as its data file goes. What is behind that is a hole, if the
//! file goes on, or beyond its end. Which of the two, the file's size says: the greatest end over all its
//! data files. The answers to the read have told some of these; only if they do not suffice are the other
//! servers asked.

use std::sync::Arc;
use std::time::Instant;

use weft_layout::{Region, Regions};
use weft_transport::{Allocation, Completion, gathered_requests};
use weft_wire::messages::{
    DataSize, ReadReply, ReadSmallRequest, SizeRequest, SpreadRequest, SyncMetaRequest, WriteReply,
    WriteSmallRequest, io_flags,
};
use weft_wire::security::Capability;
use weft_wire::{Op, Wire, body};

use crate::access::{IoStats, Method};
use crate::batch::{Batch, Finished};
use crate::call::{Call, Content, Guard};
use crate::deadline;
use crate::error::{Error, ErrorKind};
use crate::locks::Guards;
use crate::open_file::OpenFile;
use crate::rpc::Rpc;
use crate::small::{self, SmallAsked, SmallRequest};
use crate::wait::lock;
use crate::window::pack::{Buffers, PackBuffer};
use crate::window::{Common, Direction, Memory, Share, Sieved, Source, Window, check};

/// Requests of up to this size are waited for with watchful eyes.
const BULKY_BYTES: u64 = 128 << 10;
/// Tags from here on are questions for sizes, of the slot that is the rest.
const SIZE_TAG: usize = 1 << 32;
/// The tag of what is asked of a small file.
const SMALL_TAG: usize = SIZE_TAG << 1;

/// A read or write under way.
pub(crate) struct Transfer<'a> {
    /// First, for what it lends to servers is given back when it is dropped.
    batch: Batch,
    file: Arc<OpenFile>,
    direction: Direction,
    capability: Capability,
    /// What else to ask before each time that a request is sent than the open file.
    guard: Option<Arc<dyn Guard>>,
    regions: &'a Regions,
    total_bytes: u64,
    /// One contiguous extent: it ends where the file ends. Others are filled with zeros from there on.
    plain: Option<u64>,
    base: u64,
    memory: Memory<'a>,
    allocations: Arc<[Allocation]>,
    /// Until it is known that the file is striped: what was asked.
    small: Option<SmallAsked>,
    /// What was read of a small file.
    small_bytes: u64,
    /// Of a striped file.
    windows: Option<Source<'a>>,
    /// Windows under way; their places are used again.
    begun: Vec<Begun>,
    windows_under_way: usize,
    /// Shares of a plain read that were not filled, and how far they were.
    short: Vec<(Box<Share>, u64)>,
    /// Ends of file that the slots' data files imply, as far as known.
    ends: Vec<Option<u64>>,
    sizing: bool,
    stats: IoStats,
    error: Option<Error>,
    over: bool,
    /// What `regions` and `windows` refer to, where nobody else keeps it.
    _kept: Option<Arc<(Regions, Regions)>>,
}

/// A window under way.
struct Begun {
    shares_left: usize,
    sieved: Option<Sieved>,
}

impl<'a> Transfer<'a> {
    /// Begins to move bytes between `regions` of the file and `memory`, whose offsets count from `base`, and
    /// which is part of `allocations` where these are known.
    ///
    /// # Safety
    /// The memory is valid until the transfer is over or dropped: readable and unchanging for a write,
    /// writable and nobody else's for a read.
    pub(crate) unsafe fn begin(
        file: &Arc<OpenFile>,
        direction: Direction,
        base: u64,
        memory: Memory<'a>,
        allocations: Arc<[Allocation]>,
        regions: &'a Regions,
        guard: Option<Arc<dyn Guard>>,
    ) -> Result<Transfer<'a>, Error> {
        let name = |error: Error| error.on(&file.name);
        file.check_access(direction)?;
        check(regions, memory).map_err(name)?;
        let held = &file.held;
        match direction {
            Direction::Read => file.inner.keep_alive(held),
            Direction::Write => {
                let end_bytes = regions.span().map_or(0, |span| span.end());
                file.inner.keep_writable(held, end_bytes)
            }
        }
        .map_err(name)?;
        let plain = match regions.parts.as_slice() {
            [Region::Contiguous(extent)] => Some(extent.offset),
            _ => None,
        };
        let total_bytes = regions.total_bytes();
        let mut transfer = Transfer {
            batch: Batch::default(),
            file: file.clone(),
            direction,
            capability: held.capability(),
            guard,
            regions,
            total_bytes,
            plain,
            base,
            memory,
            allocations,
            small: None,
            small_bytes: 0,
            windows: None,
            begun: Vec::new(),
            windows_under_way: 0,
            short: Vec::new(),
            ends: vec![None; usize::from(held.layout.server_count())],
            sizing: false,
            stats: IoStats::default(),
            error: None,
            over: false,
            _kept: None,
        };
        transfer.batch.bulky = total_bytes > BULKY_BYTES;
        if gathered_requests().is_some() && !transfer.batch.bulky {
            transfer.batch.share();
        }
        if total_bytes > 0 && held.small_bytes() > 0 {
            // SAFETY: the caller's promise.
            unsafe { transfer.ask_small(held.small_bytes()) };
        } else {
            transfer.move_striped();
        }
        Ok(transfer)
    }

    fn guard(&self) -> Option<Arc<dyn Guard>> {
        Guards::of([self.file.guard(), self.guard.clone()])
    }

    /// Begins with what the metadata server has of the file, if it is small.
    ///
    /// # Safety
    /// The memory is readable, if this is a write.
    unsafe fn ask_small(&mut self, bound_bytes: u32) {
        let (capability, plain, memory) = (&self.capability, self.plain, (self.base, self.memory));
        let request = match self.direction {
            Direction::Read => SmallRequest::read(capability, plain, self.total_bytes),
            // SAFETY: the caller's promise.
            Direction::Write => unsafe {
                let sizes = (self.total_bytes, bound_bytes);
                SmallRequest::write(capability, plain, sizes, memory, self.file.sync)
            },
        };
        self.small = Some(request.asked());
        let rpc = &self.file.inner.rpc;
        let call = match &request {
            SmallRequest::Read(request) => Call::to_owner(rpc, request, SMALL_TAG),
            SmallRequest::Write(request) => Call::to_owner(rpc, request, SMALL_TAG),
            SmallRequest::Spread(request) => Call::to_owner(rpc, request, SMALL_TAG),
        };
        self.batch.push(call.guarded(self.guard()));
    }

    /// The metadata server has answered: it is done, or the file is striped.
    fn take_small(&mut self, asked: SmallAsked, finished: Finished) {
        match self.is_striped(asked, finished) {
            Ok(true) => {
                if asked == SmallAsked::Sync && self.file.held.small_bytes() > 0 {
                    // The server was started again, and had forgotten that the file was striped.
                    // SAFETY: the transfer was begun with this memory lent to it.
                    return unsafe { self.ask_small(self.file.held.small_bytes()) };
                }
                self.file.held.note_striped();
                if asked == SmallAsked::Sync || asked == SmallAsked::Write && self.file.sync {
                    self.file.note_striped_durably();
                }
                self.move_striped();
            }
            Ok(false) => self.over = true,
            Err(error) => {
                self.error = Some(error);
                self.over = true;
            }
        }
    }

    fn is_striped(&mut self, asked: SmallAsked, finished: Finished) -> Result<bool, Error> {
        let inner = self.file.inner.clone();
        match asked {
            SmallAsked::Sync => finished.decode::<SyncMetaRequest>(&inner).map(|_| true),
            SmallAsked::Spread => finished.decode::<SpreadRequest>(&inner).map(|_| true),
            SmallAsked::Write => {
                let reply = finished.decode::<WriteSmallRequest>(&inner)?;
                if let Some(attr) = &reply.attr {
                    *lock(&self.file.attr) = attr.clone();
                }
                Ok(reply.attr.is_none())
            }
            SmallAsked::Read => {
                let reply = finished.decode::<ReadSmallRequest>(&inner)?;
                if !reply.striped {
                    let memory = (self.base, self.memory);
                    // SAFETY: the transfer was begun with this memory lent to it.
                    self.small_bytes = unsafe { small::scatter(&reply, self.regions, self.plain, memory) };
                }
                Ok(reply.striped)
            }
        }
    }

    /// Moves the bytes of a striped file. Of a durable write, what makes the file striped is made durable first.
    fn move_striped(&mut self) {
        let is_write = self.direction == Direction::Write && self.total_bytes > 0;
        if !is_write || !self.file.needs_sync_before_write() {
            return self.move_windows();
        }
        self.small = Some(SmallAsked::Sync);
        let rpc = &self.file.inner.rpc;
        self.batch.push(Call::of(rpc, rpc.owner_of(self.file.held.ino), &SyncMetaRequest {}, SMALL_TAG));
    }

    fn move_windows(&mut self) {
        let (file, direction) = (&self.file, self.direction);
        let reach = file.reach(self.regions);
        let mut access = file.access();
        if self.plain.is_some() {
            access.method = Method::List;
        }
        let sync = if file.sync && direction == Direction::Write { io_flags::SYNC } else { 0 };
        let flags = sync | access.sieving.io_flags();
        let (movement, allocations) = (access.movement, self.allocations.clone());
        let (inner, capability) = (file.inner.clone(), &self.capability);
        let common = Common::new(inner, direction, capability, flags, movement, reach, allocations);
        // SAFETY: the promise of who began the transfer. The shares are over when the batch is, or dropped.
        let windows = unsafe { Source::new(common, &access, self.base, self.memory, self.regions) };
        self.windows = Some(windows);
        self.submit_windows();
    }

    /// The same with regions of its own.
    ///
    /// # Safety
    /// As for [`Transfer::begin`].
    pub(crate) unsafe fn begin_owned(
        file: &Arc<OpenFile>,
        direction: Direction,
        base: u64,
        memory: Regions,
        allocations: Arc<[Allocation]>,
        regions: Regions,
        guard: Option<Arc<dyn Guard>>,
    ) -> Result<Transfer<'static>, Error> {
        let kept = Arc::new((memory, regions));
        // SAFETY: the transfer keeps them, and drops them last.
        let (memory, regions) = unsafe { &*Arc::as_ptr(&kept) };
        let memory = Memory::Regions(memory);
        // SAFETY: the caller's promise.
        let begun = unsafe { Transfer::begin(file, direction, base, memory, allocations, regions, guard) };
        let mut transfer = begun?;
        transfer._kept = Some(kept);
        Ok(transfer)
    }

    /// Moves it forward without waiting; whether it is over.
    pub(crate) fn test(&mut self) -> bool {
        self.drive(Batch::poll)
    }

    /// The same where what its connections had was just received.
    pub(crate) fn advance(&mut self) -> bool {
        self.drive(Batch::advance)
    }

    fn drive(&mut self, next: fn(&mut Batch, &Rpc) -> Option<Finished>) -> bool {
        while !self.over {
            let inner = self.file.inner.clone();
            match next(&mut self.batch, &inner) {
                Some(finished) => self.take(finished),
                None if self.batch.is_empty() => self.next_phase(),
                None => return false,
            }
        }
        true
    }

    /// Waits for its end; the bytes moved.
    pub(crate) fn wait(mut self) -> Result<u64, Error> {
        self.begin_wait(Instant::now());
        let inner = self.file.inner.clone();
        while !self.over {
            match self.batch.wait(&inner) {
                Some(finished) => self.take(finished),
                None => self.next_phase(),
            }
        }
        match self.error.take() {
            Some(error) => Err(error.on(&self.file.name)),
            None if self.direction == Direction::Write => Ok(self.total_bytes),
            None if self.windows.is_none() => Ok(self.small_bytes),
            None => Ok(self.count_read()),
        }
    }

    /// The program begins to wait for it.
    pub(crate) fn begin_wait(&mut self, now: Instant) {
        self.batch.begin_wait(&self.file.inner, now);
    }

    /// See [`Progress::pause_wait`](crate::Progress::pause_wait).
    pub(crate) fn pause_wait(&mut self, now: Instant) {
        self.batch.pause_wait(now);
    }

    /// What it waits for.
    pub(crate) fn requests(&mut self) -> (&Rpc, &mut Batch) {
        (&self.file.inner.rpc, &mut self.batch)
    }

    fn submit_windows(&mut self) {
        while let Some(windows) = &mut self.windows
            && self.windows_under_way < windows.windows_under_way
            && self.error.is_none()
            && let Some(Window { shares, sieved }) = windows.next()
        {
            let begun = Begun { shares_left: shares.len(), sieved };
            let place = match self.begun.iter().position(|begun| begun.shares_left == 0) {
                Some(place) => {
                    self.begun[place] = begun;
                    place
                }
                None => {
                    self.begun.push(begun);
                    self.begun.len() - 1
                }
            };
            self.windows_under_way += 1;
            for share in shares {
                self.submit(share, place);
            }
        }
    }

    fn submit(&mut self, share: Share, window: usize) {
        let op = match self.direction {
            Direction::Read => Op::Read,
            Direction::Write => Op::Write,
        };
        let inner = &self.file.inner;
        match inner.io(self.file.held.layout.chain(share.slot)) {
            Ok(server) => {
                let call = Call::new(inner, server, op, Content::Bulk(Box::new(share)), window);
                self.batch.push(call.guarded(self.guard()));
            }
            Err(error) => {
                self.error.get_or_insert(error);
                self.share_over(window);
            }
        }
    }

    fn share_over(&mut self, window: usize) {
        let begun = &mut self.begun[window];
        begun.shares_left -= 1;
        if begun.shares_left > 0 {
            return;
        }
        self.windows_under_way -= 1;
        if let (Some(sieved), None) = (begun.sieved.take(), &self.error) {
            // SAFETY: the transfer was begun with this memory lent to it, and every server has answered.
            unsafe { sieved.copy_out() };
        }
    }

    fn take(&mut self, finished: Finished) {
        if let Some(asked) = self.small.take() {
            return self.take_small(asked, finished);
        }
        let Finished { tag, content, result, .. } = finished;
        let share = content.into_bulk::<Share>();
        let is_share = share.is_some();
        if result.is_ok() {
            deadline::moved_on(self.file.inner.options.timeout());
        }
        let taken = result.and_then(|completion| match share {
            Some(share) => self.take_share(share, &completion),
            None => {
                let size: DataSize = read_body(Op::Size, &completion)?;
                self.note_local_size((tag - SIZE_TAG) as u16, size.local_bytes);
                Ok(())
            }
        });
        if let Err(error) = taken {
            self.error.get_or_insert(error);
        }
        if is_share {
            self.share_over(tag);
        }
        self.submit_windows();
    }

    fn take_share(&mut self, mut share: Box<Share>, completion: &Completion) -> Result<(), Error> {
        share.let_go();
        match self.direction {
            Direction::Read => {
                let reply: ReadReply = read_body(Op::Read, completion)?;
                let filled_bytes = reply.filled_bytes.min(share.bytes);
                self.stats.add_request(share.message_bytes(), filled_bytes, &reply.work);
                self.note_local_size(share.slot, reply.local_bytes);
                // SAFETY: the transfer was begun with this memory lent to it, and the server has answered.
                unsafe { share.unpack(filled_bytes) };
                if filled_bytes == share.bytes {
                    return Ok(());
                }
                if self.plain.is_some() {
                    self.short.push((share, filled_bytes));
                } else {
                    // SAFETY: as above.
                    unsafe { share.zero(filled_bytes, share.bytes) };
                }
                Ok(())
            }
            Direction::Write => {
                let reply: WriteReply = read_body(Op::Write, completion)?;
                self.stats.add_request(share.message_bytes(), share.bytes, &reply.work);
                self.file.held.losses().note_change(share.slot, reply.loss_epoch);
                if reply.written_bytes == share.bytes {
                    return Ok(());
                }
                let text = format!("a server wrote {} of {} bytes", reply.written_bytes, share.bytes);
                Err(Error::new(Op::Write.name(), ErrorKind::Protocol, text))
            }
        }
    }

    fn note_local_size(&mut self, slot: u16, local_bytes: u64) {
        self.ends[usize::from(slot)] = Some(self.file.held.layout.logical_size(slot, local_bytes));
    }

    /// The end of the file, as far as known.
    fn known_end(&self) -> u64 {
        self.ends.iter().flatten().copied().max().unwrap_or(0)
    }

    fn next_phase(&mut self) {
        let request_end = self.regions.span().map_or(0, |span| span.end());
        if self.error.is_some() || self.direction == Direction::Write {
            if self.error.is_none() && self.total_bytes > 0 {
                self.file.held.note_write(request_end);
            } else if self.direction == Direction::Write {
                self.file.held.note_failed_write();
            }
            return self.end();
        }
        // A share may be filled to its end and yet have bytes beyond the end of its data file: lists go back
        // and forth.
        let undecided = self.known_end() < request_end;
        if undecided && !self.sizing {
            self.sizing = true;
            return self.ask_sizes();
        }
        self.fill_short();
        self.end();
    }

    fn end(&mut self) {
        self.windows.iter_mut().for_each(Source::end);
        self.over = true;
    }

    fn ask_sizes(&mut self) {
        let inner = self.file.inner.clone();
        let layout = self.file.held.layout;
        let unknown: Vec<u16> =
            (0..layout.server_count()).filter(|slot| self.ends[usize::from(*slot)].is_none()).collect();
        for slot in unknown {
            let request = SizeRequest { capability: self.capability.clone() };
            match inner.io(layout.chain(slot)) {
                Ok(server) => {
                    self.batch.push(Call::of(&inner, server, &request, SIZE_TAG + usize::from(slot)))
                }
                Err(error) => self.error = Some(error),
            }
        }
    }

    /// Zeros for the holes of a plain read, as far as the file goes.
    fn fill_short(&mut self) {
        let Some(offset) = self.plain else { return };
        let end = self.known_end().clamp(offset, offset + self.total_bytes);
        for (share, filled_bytes) in std::mem::take(&mut self.short) {
            // SAFETY: the transfer was begun with this memory lent to it, and every server has answered.
            unsafe { share.zero(filled_bytes, share.bytes_below(end)) };
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

impl Buffers for crate::inner::Inner {
    fn take(&self, bytes: usize, shared: bool) -> PackBuffer {
        self.pack_pool.take(bytes, shared, |segment| self.arenas.add(segment))
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.file.note_stats(&self.stats);
    }
}

fn read_body<T: Wire>(op: Op, completion: &Completion) -> Result<T, Error> {
    body::decode(&completion.header, &completion.body).map_err(|error| {
        Error::new(op.name(), ErrorKind::Protocol, format!("a server's answer cannot be read: {error}"))
    })
}
