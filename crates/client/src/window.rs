//! Windows: a request of any length cut into requests that obey the limits, and each of these into the servers' shares.
//!
//! ```text
//!   request   [───────────────────────────────────────────────]     any number of bytes and pieces
//!   windows   [──────── 0 ────────][──────── 1 ────────][─ 2 ─]     two under way at a time
//!   shares     io0 io1 io2 io3      io0 io1 io2 io3      io0 …      one request each, all at once
//! ```
//!
//! A pattern is cut as a pattern, and encoded once for all servers. A list is dealt like cards, in one pass over file and memory:
//! each server gets, and is sent, only the extents that it has bytes of.
//!
//! ```text
//!   list      a b c d e f g h                       memory   0 1 2 3 4 5 6 7
//!   hands     io0: a d g      runs of memory 0 3 6          until a hand is full: 4,096 extents, 8,192 runs,
//!             io1: b c e f h  1‥2 4‥5 7                     or the largest share; that is the window
//! ```
//!
//! Where a share's pieces of memory are small they are packed: see [`crate::access`].

use std::sync::Arc;

use weft_layout::{Cutter, Extent, Extents, Layout, Region, Regions, memory_runs, share_bytes};
use weft_transport::{Allocation, Bulk, BulkMemory, Lasting, Together};
use weft_wire::limits::{
    BODY_BYTES_MAX, LIST_EXTENTS_MAX, MEMORY_RUNS_MAX, REGION_LEVELS_MAX, REGION_PARTS_MAX,
};
use weft_wire::messages::MemoryRun;
use weft_wire::security::Capability;
use weft_wire::{HEADER_BYTES, Wire, Writer};

use crate::access::{AccessOptions, Method, Movement};
use crate::error::{Error, ErrorKind};
use crate::inner::Inner;
use crate::pack::{PACK_BYTES, PackBuffer};
use crate::reach::Reach;
use crate::runs;

/// About how many pieces of the file one window of a pattern has at most: both sides walk over them, and neither should do so
/// for long.
const PIECES_MAX: u64 = 1 << 20;
/// Room in a body for everything but the regions.
const BODY_REST_BYTES: usize = 256;
/// Windows that are packed are of about this size: what is copied is still in a processor's cache when it is moved.
const PACK_WINDOW_BYTES: u64 = 1 << 20;
/// Shares begin at multiples of this in a buffer.
const PACK_ALIGN_BYTES: usize = 64;
/// Pieces that one sieved window has at most.
const SIEVED_PIECES_MAX: usize = 1 << 16;
/// Windows of one request under way at a time, over each rail.
const WINDOWS_UNDER_WAY: usize = 2;
/// The same where each is one message of many.
const MESSAGES_UNDER_WAY: usize = 16;

const _: () = assert!(PACK_WINDOW_BYTES as usize + (1 << 20) <= PACK_BYTES, "a window fits a buffer");

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
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
    movement: Movement,
    reach: Reach,
    /// What the pieces of memory are parts of, where the caller has said so.
    allocations: Arc<[Allocation]>,
    inner: Arc<Inner>,
}

/// One server's part of a window.
pub(crate) struct Share {
    common: Arc<Common>,
    /// The server's slot in the file's layout.
    pub slot: u16,
    pub bytes: u64,
    /// The part of the file that it is of, if that is one extent.
    extent: Option<Extent>,
    /// Regions on the wire; a pattern's are the same for every server.
    encoded: Arc<Vec<u8>>,
    /// Where it lies in memory.
    runs: Vec<MemoryRun>,
    packed: Option<Packed>,
    /// The memory of all of the window's shares.
    together: Option<Arc<Together>>,
}

/// A place in a buffer.
struct Packed {
    buffer: Arc<PackBuffer>,
    offset: usize,
}

/// A part of a request that is small enough, in file and in memory.
pub(crate) struct Window {
    pub shares: Vec<Share>,
    /// What is to be copied when it was read.
    pub sieved: Option<Sieved>,
}

/// The windows of an operation, made one by one.
pub(crate) struct Source<'a> {
    common: Arc<Common>,
    base: u64,
    way: Way<'a>,
    total_bytes: u64,
    lasting: Arc<Lasting>,
    pub windows_under_way: usize,
}

enum Way<'a> {
    Deal(Dealer<'a>),
    Cut(Cuts<'a>),
    Sieve(Sieve<'a>),
}

/// Checks that a request makes sense.
pub(crate) fn check(file: &Regions, memory: &Regions) -> Result<(), Error> {
    let invalid = |text: String| Error::new("cut", ErrorKind::Invalid, text);
    for (side, regions) in [("file", file), ("memory", memory)] {
        regions
            .validate(usize::MAX, REGION_LEVELS_MAX)
            .map_err(|error| invalid(format!("bad {side} regions: {error}")))?;
    }
    let (file_bytes, memory_bytes) = (file.total_bytes(), memory.total_bytes());
    if file_bytes != memory_bytes {
        let text = format!(
            "{file_bytes} bytes of the file with {memory_bytes} bytes of memory; both must be the same"
        );
        return Err(invalid(text));
    }
    Ok(())
}

/// Whether regions are extents one by one.
fn is_list(regions: &Regions) -> bool {
    regions.parts.iter().all(|part| matches!(part, Region::Contiguous(_) | Region::List(_)))
}

impl Window {
    fn of(shares: Vec<Share>) -> Window {
        Window { shares, sieved: None }
    }
}

impl<'a> Source<'a> {
    /// Of regions that passed [`check`]; offsets of `memory` count from `base`.
    ///
    /// # Safety
    /// The memory is valid until this and all its shares are over: readable and unchanging for a write, writable and nobody
    /// else's for a read.
    pub(crate) unsafe fn new(
        common: Common,
        access: &AccessOptions,
        base: u64,
        memory: &'a Regions,
        file: &'a Regions,
    ) -> Source<'a> {
        let sieves = access.method == Method::Sieve && common.direction == Direction::Read;
        let file_pieces = if access.method == Method::List { usize::MAX } else { 1 };
        let memory_pieces = if common.movement == Movement::Multiple { 1 } else { usize::MAX };
        let one_by_one = file_pieces == 1 || memory_pieces == 1;
        let windows_under_way = match access.method {
            _ if sieves => 1,
            Method::Multiple | Method::Sieve => 1,
            Method::List if memory_pieces == 1 => MESSAGES_UNDER_WAY,
            Method::List => WINDOWS_UNDER_WAY * common.reach.rails,
        };
        let way = if sieves {
            Way::Sieve(Sieve::new(file, memory, access.sieve_bytes))
        } else if one_by_one || is_list(file) {
            Way::Deal(Dealer::new(&common.layout, file, memory, (file_pieces, memory_pieces)))
        } else {
            Way::Cut(Cuts::new(&common, file, memory))
        };
        let total_bytes = file.total_bytes();
        Source {
            common: Arc::new(common),
            base,
            way,
            total_bytes,
            lasting: Arc::default(),
            windows_under_way,
        }
    }

    /// The next window; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Window> {
        let Source { common, base, way, .. } = self;
        let mut window = match way {
            Way::Deal(dealer) => Window::of(packed(common, dealer.next(common, *base)?)),
            Way::Cut(cuts) => Window::of(packed(common, cuts.next(common, *base)?)),
            Way::Sieve(sieve) => sieve.next(common, *base)?,
        };
        self.register_together(&mut window.shares);
        Some(window)
    }

    /// Has the shares that are not packed register their memory together. Over several rails, with adapters of their own, each adapter
    /// would have to know what only one of them needs.
    fn register_together(&self, shares: &mut [Share]) {
        let reach = &self.common.reach;
        let direct = || shares.iter().filter(|share| !share.is_packed());
        let count = direct().count();
        if !reach.registers || reach.rails > 1 || count + usize::from(!self.common.allocations.is_empty()) < 2
        {
            return;
        }
        let bytes: u64 = direct().map(|share| share.bytes).sum();
        let runs = direct().flat_map(|share| share.runs.iter().cloned()).collect();
        let windows = self.total_bytes.div_ceil(bytes.max(1));
        let together = Arc::new(Together::new(runs, windows, &self.lasting));
        for share in shares.iter_mut().filter(|share| !share.is_packed()) {
            share.together = Some(together.clone());
        }
    }

    /// All shares are over.
    pub(crate) fn end(&mut self) {
        self.lasting = Arc::default();
    }
}

/// Packs the shares that are better packed.
fn packed(common: &Common, mut shares: Vec<Share>) -> Vec<Share> {
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

impl Common {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        direction: Direction,
        capability: &Capability,
        flags: u32,
        movement: Movement,
        reach: Reach,
        allocations: Arc<[Allocation]>,
    ) -> Common {
        let layout = capability.layout;
        let capability = capability.to_bytes();
        Common { direction, layout, capability, flags, movement, reach, allocations, inner: inner.clone() }
    }

    fn share(self: &Arc<Self>, slot: u16, bytes: u64, encoded: Arc<Vec<u8>>, runs: Vec<MemoryRun>) -> Share {
        Share { common: self.clone(), slot, bytes, extent: None, encoded, runs, packed: None, together: None }
    }

    fn packs(&self, bytes: u64, runs: &[MemoryRun]) -> bool {
        let pieces = runs::piece_count(runs);
        pieces > 1 && (self.movement == Movement::Pack || self.packs_pieces(bytes, pieces))
    }

    /// Whether pieces are to be packed for their size.
    fn packs_pieces(&self, bytes: u64, pieces: u64) -> bool {
        self.movement == Movement::Auto
            && bytes > self.reach.pack_above_bytes
            && bytes < pieces.saturating_mul(self.reach.pack_below_bytes)
    }

    fn take_buffer(&self, bytes: usize) -> PackBuffer {
        self.inner.pack_pool.take(bytes, self.reach.shared, |segment| self.inner.add_arena(segment))
    }
}

/// Cuts patterns.
struct Cuts<'a> {
    file: Cutter<'a>,
    memory: Cutter<'a>,
    bytes_max: u64,
    /// Parts of windows that turned out to be too large, last first.
    halves: Vec<(Regions, Regions)>,
}

impl<'a> Cuts<'a> {
    fn new(common: &Common, file: &'a Regions, memory: &'a Regions) -> Cuts<'a> {
        let (bytes, pieces) = (file.total_bytes(), file.piece_count().max(1));
        let mut bytes_max =
            common.reach.share_bytes_max.min((bytes / pieces).max(1).saturating_mul(PIECES_MAX));
        if common.movement == Movement::Pack
            || common.packs_pieces(bytes, pieces.saturating_add(memory.piece_count()))
        {
            bytes_max = bytes_max.min(PACK_WINDOW_BYTES);
        }
        Cuts { file: file.cutter(), memory: memory.cutter(), bytes_max, halves: Vec::new() }
    }

    fn next(&mut self, common: &Arc<Common>, base: u64) -> Option<Vec<Share>> {
        loop {
            let (file, memory) = match self.halves.pop() {
                Some(half) => half,
                None if self.file.is_at_end() => return None,
                None => {
                    let bytes = self
                        .file
                        .fit(self.bytes_max, LIST_EXTENTS_MAX)
                        .min(self.memory.fit(self.bytes_max, 8 * LIST_EXTENTS_MAX));
                    (self.file.take(bytes), self.memory.take(bytes))
                }
            };
            if let Some(shares) = shares_of_pattern(common, base, &file, &memory) {
                return Some(shares);
            }
            let bytes = file.total_bytes();
            let middle = bytes / 2;
            assert!(middle > 0, "one byte always fits a request");
            let half = |start, bytes| (file.window(start, bytes), memory.window(start, bytes));
            self.halves.push(half(middle, bytes - middle));
            self.halves.push(half(0, middle));
        }
    }
}

/// The shares of a pattern, or `None` where it says more than one request may.
fn shares_of_pattern(
    common: &Arc<Common>,
    base: u64,
    file: &Regions,
    memory: &Regions,
) -> Option<Vec<Share>> {
    if file.part_count() > REGION_PARTS_MAX {
        return None;
    }
    let mut out = Writer::new();
    file.put(&mut out);
    let encoded = Arc::new(out.into_bytes());
    if encoded.len() + BODY_REST_BYTES > BODY_BYTES_MAX {
        return None;
    }
    let mut shares = Vec::with_capacity(usize::from(common.layout.server_count()));
    for slot in slots_of(&common.layout, file) {
        let bytes = share_bytes(&common.layout, slot, file);
        if bytes > 0 {
            let pieces = memory_runs(&common.layout, slot, file, memory).ok()?;
            let runs = runs::memory_runs(base, pieces, MEMORY_RUNS_MAX).ok()?;
            shares.push(common.share(slot, bytes, encoded.clone(), runs));
        }
    }
    Some(shares)
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

/// Deals extents to servers.
struct Dealer<'a> {
    file: Extents<'a>,
    memory: Extents<'a>,
    /// What is left of the extent that is being dealt.
    rest: Extent,
    /// Pieces of the file and of memory in one window, at most.
    pieces_max: (usize, usize),
    hands: Vec<Hand>,
    /// Hands that the current extent went to.
    dealt_to: Vec<u16>,
    slots: Slots,
}

/// What one server has got.
#[derive(Default)]
struct Hand {
    extents: Vec<Extent>,
    runs: Vec<MemoryRun>,
    bytes: u64,
}

/// Which slot has which strip, without divisions where strips are powers of two.
struct Slots {
    strip_bytes: u64,
    shift: Option<u32>,
    count: u64,
}

impl Slots {
    fn of(layout: &Layout) -> Slots {
        let strip_bytes = u64::from(layout.strip_bytes());
        let shift = strip_bytes.is_power_of_two().then(|| strip_bytes.trailing_zeros());
        Slots { strip_bytes, shift, count: u64::from(layout.server_count()) }
    }

    /// The slot of an offset, and how many bytes the strip still has there.
    fn at(&self, offset: u64) -> (usize, u64) {
        let strip = self.shift.map_or_else(|| offset / self.strip_bytes, |shift| offset >> shift);
        let slot = if self.count.is_power_of_two() { strip & (self.count - 1) } else { strip % self.count };
        (slot as usize, self.strip_bytes - (offset - strip * self.strip_bytes))
    }
}

/// How much of a window has been dealt.
#[derive(Default)]
struct Dealt {
    bytes: u64,
    memory_pieces: u64,
    full: bool,
}

impl<'a> Dealer<'a> {
    fn new(
        layout: &Layout,
        file: &'a Regions,
        memory: &'a Regions,
        pieces_max: (usize, usize),
    ) -> Dealer<'a> {
        Dealer {
            file: file.extents(),
            memory: memory.extents(),
            rest: Extent::new(0, 0),
            pieces_max,
            hands: (0..layout.server_count()).map(|_| Hand::default()).collect(),
            dealt_to: Vec::new(),
            slots: Slots::of(layout),
        }
    }

    fn next(&mut self, common: &Arc<Common>, base: u64) -> Option<Vec<Share>> {
        let mut dealt = Dealt::default();
        let mut file_pieces = 0;
        while !dealt.full && file_pieces < self.pieces_max.0 {
            if self.rest.bytes == 0 {
                let Some(extent) = self.file.next() else { break };
                self.rest = extent;
            }
            self.deal_extent(common, base, &mut dealt);
            file_pieces += 1;
        }
        (dealt.bytes > 0).then(|| self.collect(common))
    }

    /// Deals the current extent as far as hands have room.
    fn deal_extent(&mut self, common: &Common, base: u64, dealt: &mut Dealt) {
        let start = self.rest.offset;
        while self.rest.bytes > 0 && !dealt.full {
            let (slot, strip_left) = self.slots.at(self.rest.offset);
            let hand = &mut self.hands[slot];
            let room = common.reach.share_bytes_max - hand.bytes;
            // Packing is looked at often enough not to pass over the end of a packed window by much.
            let step = PACK_WINDOW_BYTES - dealt.bytes % PACK_WINDOW_BYTES;
            let part = self.rest.bytes.min(strip_left).min(room).min(step);
            if part == 0 || hand.extents.len() == LIST_EXTENTS_MAX {
                dealt.full = true;
                break;
            }
            let mut left = part;
            while left > 0 && !dealt.full && hand.runs.len() < MEMORY_RUNS_MAX {
                let Some(piece) = self.memory.next_at_most(left) else { break };
                let new = runs::push(&mut hand.runs, base.wrapping_add(piece.offset), piece.bytes);
                dealt.memory_pieces += u64::from(new);
                left -= piece.bytes;
                dealt.full = self.pieces_max.1 == 1;
            }
            let taken = part - left;
            dealt.full |= left > 0;
            if taken > 0 && !self.dealt_to.contains(&(slot as u16)) {
                self.dealt_to.push(slot as u16);
            }
            hand.bytes += taken;
            self.rest = Extent::new(self.rest.offset + taken, self.rest.bytes - taken);
            dealt.bytes += taken;
            dealt.full |= dealt.bytes >= PACK_WINDOW_BYTES
                && (common.movement == Movement::Pack
                    || common.packs_pieces(dealt.bytes, dealt.memory_pieces));
        }
        let extent = Extent::new(start, self.rest.offset - start);
        for slot in self.dealt_to.drain(..) {
            self.hands[usize::from(slot)].extents.push(extent);
        }
    }

    fn collect(&mut self, common: &Arc<Common>) -> Vec<Share> {
        let mut shares = Vec::with_capacity(self.hands.len());
        for (slot, hand) in self.hands.iter_mut().enumerate().filter(|(_, hand)| hand.bytes > 0) {
            let Hand { extents, runs, bytes } = std::mem::take(hand);
            let extent = if let [extent] = extents.as_slice() { Some(*extent) } else { None };
            let part = extent.map_or_else(|| Region::List(extents), Region::Contiguous);
            let mut out = Writer::new();
            Regions::from(part).put(&mut out);
            let share = common.share(slot as u16, bytes, Arc::new(out.into_bytes()), runs);
            shares.push(Share { extent, ..share });
        }
        shares
    }
}

/// Reads spans of pieces.
struct Sieve<'a> {
    file: Extents<'a>,
    memory: Extents<'a>,
    rest: Extent,
    sieve_bytes: u64,
}

/// A span that is read into a buffer.
pub(crate) struct Sieved {
    buffer: Arc<PackBuffer>,
    /// Where each piece is in the buffer, in the order of the request.
    pieces: Vec<Extent>,
    /// The memory of the pieces.
    runs: Vec<MemoryRun>,
}

impl<'a> Sieve<'a> {
    fn new(file: &'a Regions, memory: &'a Regions, sieve_bytes: u64) -> Sieve<'a> {
        Sieve { file: file.extents(), memory: memory.extents(), rest: Extent::new(0, 0), sieve_bytes }
    }

    /// The next pieces that rise and lie within one buffer.
    fn take_pieces(&mut self, base: u64) -> (Vec<Extent>, Vec<MemoryRun>) {
        let (mut pieces, mut runs) = (Vec::<Extent>::new(), Vec::new());
        while pieces.len() < SIEVED_PIECES_MAX && runs.len() < MEMORY_RUNS_MAX {
            if self.rest.bytes == 0 {
                let Some(extent) = self.file.next() else { break };
                self.rest = extent;
            }
            let (first, end) = match (pieces.first(), pieces.last()) {
                (Some(first), Some(last)) => (first.offset, last.end()),
                _ => (self.rest.offset, self.rest.offset),
            };
            let room = first.saturating_add(self.sieve_bytes).saturating_sub(self.rest.offset);
            if self.rest.offset < end || room == 0 {
                break;
            }
            let mut left = self.rest.bytes.min(room);
            let offset = self.rest.offset;
            while left > 0
                && runs.len() < MEMORY_RUNS_MAX
                && let Some(piece) = self.memory.next_at_most(left)
            {
                runs::push(&mut runs, base.wrapping_add(piece.offset), piece.bytes);
                left -= piece.bytes;
                self.rest = Extent::new(self.rest.offset + piece.bytes, self.rest.bytes - piece.bytes);
            }
            pieces.push(Extent::new(offset, self.rest.offset - offset));
        }
        (pieces, runs)
    }

    fn next(&mut self, common: &Arc<Common>, base: u64) -> Option<Window> {
        let (mut pieces, runs) = self.take_pieces(base);
        let (first, last) = (pieces.first()?.offset, pieces.last()?.end());
        let span = Regions::contiguous(first, last - first);
        if let [_] = pieces.as_slice() {
            // One piece needs no sieve: it is read to where it belongs.
            let mut memory = Vec::new();
            runs::walk(&runs, 0, u64::MAX, |address, bytes| memory.push(Extent::new(address, bytes as u64)));
            let memory = Regions::list(memory);
            let shares = deal_all(common, &span, &memory, 0);
            return Some(Window::of(packed(common, shares)));
        }
        let buffer = Arc::new(common.take_buffer((last - first) as usize));
        let memory = Regions::contiguous(0, last - first);
        let shares = deal_all(common, &span, &memory, buffer.base().as_ptr() as u64);
        pieces.iter_mut().for_each(|piece| piece.offset -= first);
        Some(Window { shares, sieved: Some(Sieved { buffer, pieces, runs }) })
    }
}

/// The shares of an extent, however many requests they take.
fn deal_all(common: &Arc<Common>, file: &Regions, memory: &Regions, base: u64) -> Vec<Share> {
    let mut dealer = Dealer::new(&common.layout, file, memory, (usize::MAX, usize::MAX));
    std::iter::from_fn(|| dealer.next(common, base)).flatten().collect()
}

impl Sieved {
    /// Copies the pieces to where they belong.
    ///
    /// # Safety
    /// The memory that the source was made with is still lent, and the span was read.
    pub(crate) unsafe fn copy_out(&self) {
        let mut memory = runs::Cursor::over(&self.runs);
        for piece in &self.pieces {
            let mut at = self.buffer.base().as_ptr().wrapping_add(piece.offset as usize).cast_const();
            let end = at.wrapping_add(piece.bytes as usize);
            while at < end
                && let Some((address, bytes)) = memory.next_at_most(end as u64 - at as u64)
            {
                // SAFETY: as the caller promises; pieces lie within the buffer.
                unsafe { std::ptr::copy_nonoverlapping(at, address as usize as *mut u8, bytes as usize) };
                at = at.wrapping_add(bytes as usize);
            }
        }
    }
}

impl Share {
    /// First address and end of its memory.
    pub(crate) fn memory_span(&self) -> (u64, u64) {
        match self.place() {
            Some(address) => (address, address + self.bytes),
            None => runs::span(&self.runs),
        }
    }

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

    /// A [`weft_wire::messages::ReadRequest`] or [`weft_wire::messages::WriteRequest`], which are alike.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.raw(&self.common.capability);
        self.slot.put(&mut out);
        self.common.flags.put(&mut out);
        out.raw(&self.encoded);
        out.into_bytes()
    }

    /// Where it is packed.
    fn place(&self) -> Option<u64> {
        let packed = self.packed.as_ref()?;
        Some(packed.buffer.base().as_ptr() as u64 + packed.offset as u64)
    }

    /// Where the share lies in memory.
    pub(crate) fn bulk(&mut self) -> Bulk {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::some_client;
    use proptest::prelude::*;
    use weft_layout::{Level, pieces};
    use weft_wire::limits::SHARE_BYTES_MAX;
    use weft_wire::messages::{ReadRequest, rights};

    fn layout(servers: u16) -> Layout {
        Layout::new(4096, 0, servers, servers).unwrap()
    }

    fn capability(layout: Layout) -> Capability {
        Capability {
            ino: 1,
            rights: rights::READ,
            expires_s: 9,
            holder: weft_wire::security::Holder([0; 8]),
            layout,
            signature: [3; 16],
        }
    }

    fn common(layout: Layout, movement: Movement, share_bytes_max: u64) -> Common {
        let reach = Reach { share_bytes_max, pack_below_bytes: 100, ..Reach::default() };
        let inner = some_client().inner;
        Common::new(&inner, Direction::Read, &capability(layout), 1, movement, reach, Arc::default())
    }

    fn windows(common: Common, access: &AccessOptions, memory: &Regions, file: &Regions) -> Vec<Window> {
        check(file, memory).unwrap();
        // SAFETY: nothing is moved.
        let mut source = unsafe { Source::new(common, access, 1 << 32, memory, file) };
        std::iter::from_fn(|| source.next()).collect()
    }

    fn list_shares(common: Common, memory: &Regions, file: &Regions) -> Vec<Share> {
        let access = AccessOptions::default();
        windows(common, &access, memory, file).into_iter().flat_map(|window| window.shares).collect()
    }

    fn regions_of(share: &Share) -> Regions {
        Regions::from_bytes(&share.encoded).unwrap()
    }

    /// Which byte of memory goes with which of the file, in the order of both sides' agreement.
    fn bytes_of(shares: &[Share]) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for share in shares {
            let regions = regions_of(share);
            let layout = &share.common.layout;
            let file = pieces(layout, share.slot, &regions).flat_map(|piece| {
                let logical = layout.logical_offset(share.slot, piece.local_offset);
                logical..logical + piece.bytes
            });
            let mut memory = Vec::new();
            runs::walk(&share.runs, 0, u64::MAX, |address, bytes| {
                memory.extend(address..address + bytes as u64);
            });
            assert_eq!(memory.len() as u64, share.bytes);
            let before = all.len();
            all.extend(memory.into_iter().zip(file));
            assert_eq!((all.len() - before) as u64, share.bytes);
        }
        all.sort_unstable();
        all
    }

    fn bytes_wanted(memory: &Regions, file: &Regions) -> Vec<(u64, u64)> {
        let flat = |regions: &Regions| regions.extents().flat_map(|e| e.offset..e.end()).collect::<Vec<_>>();
        let memory = flat(memory).into_iter().map(|offset| offset + (1 << 32));
        let mut all: Vec<_> = memory.zip(flat(file)).collect();
        all.sort_unstable();
        all
    }

    fn check_limits(share: &Share, share_bytes_max: u64) {
        assert!(share.bytes <= share_bytes_max && share.runs.len() <= MEMORY_RUNS_MAX);
        assert!(share.body().len() <= BODY_BYTES_MAX);
        assert_eq!(share.message_bytes() as usize, HEADER_BYTES + share.body().len());
        for part in &regions_of(share).parts {
            assert!(!matches!(part, Region::List(extents) if extents.len() > LIST_EXTENTS_MAX));
        }
    }

    #[test]
    fn a_body_is_the_message_of_the_wire() {
        let file = Regions::strided(100, 10, [Level { count: 9, stride_bytes: 5000 }]);
        let common = common(layout(4), Movement::Direct, SHARE_BYTES_MAX);
        for share in list_shares(common, &Regions::contiguous(0, 90), &file) {
            let capability = capability(layout(4));
            let request = ReadRequest { capability, slot: share.slot, flags: 1, regions: file.clone() };
            assert_eq!(share.body(), request.to_bytes());
        }
    }

    #[test]
    fn a_short_extent_asks_only_the_servers_it_passes_over() {
        let slots = |offset, bytes| {
            let file = Regions::contiguous(offset, bytes);
            slots_of(&layout(4), &file).collect::<Vec<_>>()
        };
        assert_eq!(slots(4096 * 3 + 5, 10), [3]);
        assert_eq!(slots(4096 * 3 + 5, 4096), [3, 0]);
        assert_eq!(slots(0, 1 << 20).len(), 4);
    }

    #[test]
    fn a_long_extent_becomes_windows_of_whole_stripes() {
        let bytes = 3 << 28;
        let both = Regions::contiguous(0, bytes);
        let common = common(layout(4), Movement::Auto, 2 << 20);
        let windows = windows(common, &AccessOptions::default(), &both, &both);
        let shares: Vec<_> = windows.iter().map(|window| &window.shares).collect();
        assert_eq!(
            shares.iter().flat_map(|shares| shares.iter()).map(|share| share.bytes).sum::<u64>(),
            bytes
        );
        for shares in &shares {
            assert!(shares.len() == 4 && shares.iter().all(|share| share.bytes == 2 << 20));
        }
    }

    #[test]
    fn a_million_pieces_are_sent_once_each_within_all_limits() {
        let extents: Vec<_> =
            (0..1_000_000u64).map(|at| Extent { offset: at * 40 % 7_000_003 * 90, bytes: 24 }).collect();
        let bytes = extents.len() as u64 * 24;
        let memory = Regions::strided(0, 8, [Level { count: bytes / 8, stride_bytes: 24 }]);
        let common = common(layout(4), Movement::Direct, SHARE_BYTES_MAX);
        let (mut total, mut sent) = (0, 0);
        for mut share in list_shares(common, &memory, &Regions::list(extents)) {
            check_limits(&share, SHARE_BYTES_MAX);
            let Bulk::Put(BulkMemory { runs, .. }) = share.bulk() else { panic!() };
            assert_eq!(runs.iter().map(|run| run.bytes * run.count).sum::<u64>(), share.bytes);
            total += share.bytes;
            sent += regions_of(&share).piece_count();
        }
        assert_eq!(total, bytes);
        // Few extents are in two strips.
        assert!((1_000_000..1_020_000).contains(&sent), "{sent}");
    }

    #[test]
    fn a_pattern_of_very_many_pieces_is_cut_by_pieces() {
        let blocks = 5 * PIECES_MAX;
        let file = Regions::strided(0, 3, [Level { count: blocks, stride_bytes: 10 }]);
        let common = common(layout(2), Movement::Direct, SHARE_BYTES_MAX);
        let memory = Regions::contiguous(0, blocks * 3);
        let windows = windows(common, &AccessOptions::default(), &memory, &file);
        assert!(windows.iter().flat_map(|window| &window.shares).all(|share| share.encoded.len() < 40));
        assert!((5..20).contains(&windows.len()), "{}", windows.len());
    }

    #[test]
    fn small_pieces_are_packed_in_windows_that_fit_a_buffer() {
        let bytes = 10 << 20;
        let memory = Regions::strided(0, 64, [Level { count: bytes / 64, stride_bytes: 200 }]);
        let large = Regions::strided(0, 128, [Level { count: bytes / 128, stride_bytes: 200 }]);
        let file = Regions::contiguous(5000, bytes);
        let all = |movement, memory: &Regions| {
            let shares = list_shares(common(layout(2), movement, SHARE_BYTES_MAX), memory, &file);
            let packed = shares.iter().filter(|share| share.packed.is_some()).count();
            (shares.len(), packed)
        };
        assert_eq!(all(Movement::Auto, &memory), (20, 20));
        assert_eq!(all(Movement::Pack, &large), (20, 20));
        assert_eq!(all(Movement::Auto, &large).1, 0);
        assert_eq!(all(Movement::Direct, &memory).1, 0);
    }

    #[test]
    fn sides_that_do_not_match_are_refused() {
        let error = check(&Regions::contiguous(0, 5), &Regions::contiguous(0, 6)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("5 bytes of the file with 6 bytes of memory"));
    }

    #[test]
    fn only_the_part_asked_for_is_zeroed() {
        let mut memory = vec![7u8; 8192 * 2];
        let base = memory.as_mut_ptr() as u64 - (1 << 32);
        let both = Regions::contiguous(0, 8192 * 2);
        let at_memory = Regions::contiguous(base, 8192 * 2);
        let shares = list_shares(common(layout(2), Movement::Auto, SHARE_BYTES_MAX), &at_memory, &both);
        let second = shares.iter().find(|share| share.slot == 1).unwrap();
        assert_eq!(
            (second.bytes_below(4096), second.bytes_below(4099), second.bytes_below(1 << 30)),
            (0, 3, 8192)
        );
        // SAFETY: the memory is this test's.
        unsafe { second.zero(100, 4096 + 5) };
        let zeros: Vec<_> =
            memory.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at).collect();
        let expected: Vec<_> = (4096 + 100..8192).chain(3 * 4096..3 * 4096 + 5).collect();
        assert_eq!(zeros, expected);
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(64))]

        #[test]
        fn windows_pair_each_byte_of_memory_with_its_byte_of_the_file(
            pieces in proptest::collection::vec((0u64..100_000, 1u64..9000), 1..60),
            strided in any::<bool>(),
            memory_block in 1u64..700, share_bytes_max in 4096u64..40_000, servers in 1u16..5,
            movement in prop_oneof![
                Just(Movement::Auto), Just(Movement::Multiple), Just(Movement::Pack), Just(Movement::Direct)
            ],
            multiple in any::<bool>(),
        ) {
            let extents: Vec<_> = pieces.iter().map(|(offset, bytes)| Extent::new(*offset, *bytes)).collect();
            let file = match strided {
                true => Regions::strided(77, pieces[0].1, [Level { count: 20, stride_bytes: 9001 }])
                    .then(Regions::list(extents)),
                false => Regions::list(extents),
            };
            let bytes = file.total_bytes();
            let count = bytes.div_ceil(memory_block);
            let memory = Regions::strided(0, memory_block, [Level { count, stride_bytes: 1000 }]).window(0, bytes);
            let access = AccessOptions {
                method: if multiple { Method::Multiple } else { Method::List },
                ..AccessOptions::default()
            };
            let windows = windows(common(layout(servers), movement, share_bytes_max), &access, &memory, &file);
            for window in &windows {
                let pieces: u64 = window.shares.iter().map(|share| runs::piece_count(&share.runs)).sum();
                let strips = window.shares.iter().map(|share| share.bytes).sum::<u64>() / 4096 + 2;
                prop_assert!(movement != Movement::Multiple || pieces <= strips);
                prop_assert!(!multiple || window.shares.iter().all(|share| share.extent.is_some()));
            }
            let shares: Vec<_> = windows.into_iter().flat_map(|window| window.shares).collect();
            shares.iter().for_each(|share| check_limits(share, share_bytes_max));
            prop_assert_eq!(bytes_of(&shares), bytes_wanted(&memory, &file));
        }

        #[test]
        fn a_sieve_reads_what_rises_together(
            pieces in proptest::collection::vec((0u64..100_000, 1u64..9000), 1..60),
            sieve_bytes in 4096u64..60_000, servers in 1u16..5,
        ) {
            let extents: Vec<_> = pieces.iter().map(|(offset, bytes)| Extent::new(*offset, *bytes)).collect();
            let file = Regions::list(extents);
            let memory = Regions::contiguous(0, file.total_bytes());
            let access = AccessOptions { method: Method::Sieve, sieve_bytes, ..AccessOptions::default() };
            let all = windows(common(layout(servers), Movement::Auto, SHARE_BYTES_MAX), &access, &memory, &file);
            let mut got = Vec::new();
            for window in &all {
                let span: Vec<Extent> = window.shares.iter().flat_map(|share| regions_of(share).extents().collect::<Vec<_>>()).collect();
                let first = span.iter().map(|extent| extent.offset).min().unwrap();
                let end = span.iter().map(|extent| extent.end()).max().unwrap();
                prop_assert!(end - first <= sieve_bytes);
                match &window.sieved {
                    None => got.push(Extent::new(first, end - first)),
                    Some(sieved) => got.extend(sieved.pieces.iter().map(|p| Extent::new(first + p.offset, p.bytes))),
                }
            }
            prop_assert_eq!(Regions::list(got).extents().collect::<Vec<_>>(), file.extents().collect::<Vec<_>>());
        }
    }
}
