//! Windows: a request of any length cut into requests that obey the limits, and each of these into the servers' shares.
//!
//! ```text
//!   request   [───────────────────────────────────────────────]     any number of bytes and pieces
//!   windows   [──────── 0 ────────][──────── 1 ────────][─ 2 ─]     two under way at a time
//!   shares     io0 io1 io2 io3      io0 io1 io2 io3      io0 …      one request each, all at once
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use weft_layout::{Layout, Region, Regions, memory_runs, memory_runs_from, share_bytes};
use weft_transport::Bulk;
use weft_wire::limits::{
    BODY_BYTES_MAX, LIST_EXTENTS_MAX, MEMORY_RUNS_MAX, REGION_LEVELS_MAX, REGION_PARTS_MAX,
};
use weft_wire::messages::MemoryRun;
use weft_wire::security::Capability;
use weft_wire::{Wire, Writer};

use crate::error::{Error, ErrorKind};
use crate::runs;

/// About how many pieces of the file one window has at most: both sides walk over them, and neither should do so for long.
const PIECES_MAX: u64 = 1 << 20;
/// Room in a body for everything but the regions.
const BODY_REST_BYTES: usize = 256;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From servers to memory.
    Read,
    /// From memory to servers.
    Write,
}

/// A part of a request that is small enough, in file and in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    pub file: Regions,
    pub memory: Regions,
}

impl Cut {
    /// Cuts it in two at about the middle; `None` where it is one byte.
    fn halves(&self) -> Option<[Cut; 2]> {
        let bytes = self.file.total_bytes();
        let middle = bytes / 2;
        (middle > 0).then(|| {
            [(0, middle), (middle, bytes - middle)].map(|(start, bytes)| Cut {
                file: self.file.window(start, bytes),
                memory: self.memory.window(start, bytes),
            })
        })
    }
}

/// Checks a request and cuts it into windows whose shares are at most `share_bytes_max` each.
pub(crate) fn cut(
    layout: &Layout,
    file: &Regions,
    memory: &Regions,
    share_bytes_max: u64,
) -> Result<VecDeque<Cut>, Error> {
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
    let piece_bytes = (file_bytes / file.piece_count().max(1)).max(1);
    let bytes_max =
        window_bytes_max(layout, file, share_bytes_max).min(piece_bytes.saturating_mul(PIECES_MAX));
    let small = |regions: &Regions| matches!(regions.parts.as_slice(), [Region::Contiguous(_)]);
    if file_bytes <= bytes_max && small(file) && small(memory) {
        return Ok(VecDeque::from([Cut { file: file.clone(), memory: memory.clone() }]));
    }
    let mut windows = VecDeque::new();
    let (mut file, mut memory) = (file.cutter(), memory.cutter());
    while !file.is_at_end() {
        let bytes = file.fit(bytes_max, LIST_EXTENTS_MAX).min(memory.fit(bytes_max, 8 * LIST_EXTENTS_MAX));
        windows.push_back(Cut { file: file.take(bytes), memory: memory.take(bytes) });
    }
    Ok(windows)
}

/// The most bytes of which no server can have more than `share_bytes_max`.
fn window_bytes_max(layout: &Layout, file: &Regions, share_bytes_max: u64) -> u64 {
    let strip_bytes = u64::from(layout.strip_bytes());
    let contiguous = matches!(file.parts.as_slice(), [Region::Contiguous(_)]);
    let whole_strips = share_bytes_max / strip_bytes;
    if contiguous && whole_strips > 1 {
        // A share has at most one strip more than the others' whole rounds.
        (whole_strips - 1) * layout.stripe_bytes()
    } else {
        share_bytes_max
    }
}

/// A window with its shares made out.
pub(crate) struct Window {
    pub direction: Direction,
    pub file: Regions,
    pub memory: Regions,
    /// What offsets of `memory` count from.
    pub base: u64,
    pub layout: Layout,
    capability: Capability,
    flags: u32,
    /// `file` on the wire, the same for every server.
    encoded: Vec<u8>,
    memory_span: (u64, u64),
}

/// One server's part of a window.
pub(crate) struct Share {
    pub window: Arc<Window>,
    /// The server's slot in the file's layout.
    pub slot: u16,
    pub bytes: u64,
    /// Until the first submission.
    runs: Option<Vec<MemoryRun>>,
}

/// What all windows of a request have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub direction: Direction,
    pub layout: Layout,
    pub capability: Capability,
    pub base: u64,
    pub flags: u32,
}

impl Common {
    /// Makes out the shares of a window, or cuts it in two where it says more than one request may.
    pub(crate) fn shares(&self, cut: Cut) -> Result<Vec<Share>, [Cut; 2]> {
        let mut out = Writer::new();
        cut.file.put(&mut out);
        let encoded = out.into_bytes();
        let fits =
            cut.file.part_count() <= REGION_PARTS_MAX && encoded.len() + BODY_REST_BYTES <= BODY_BYTES_MAX;
        let shares = if fits { self.runs_of_shares(&cut) } else { None };
        let Some(shares) = shares else {
            return Err(cut.halves().expect("one byte always fits a request"));
        };
        let span = cut.memory.span().unwrap_or_default();
        let first = self.base.wrapping_add(span.offset);
        let window = Arc::new(Window {
            direction: self.direction,
            file: cut.file,
            memory: cut.memory,
            base: self.base,
            layout: self.layout,
            capability: self.capability.clone(),
            flags: self.flags,
            encoded,
            memory_span: (first, first.saturating_add(span.bytes)),
        });
        let share = |(slot, bytes, runs)| Share { window: window.clone(), slot, bytes, runs: Some(runs) };
        Ok(shares.into_iter().map(share).collect())
    }

    fn runs_of_shares(&self, cut: &Cut) -> Option<Vec<(u16, u64, Vec<MemoryRun>)>> {
        let mut shares = Vec::with_capacity(usize::from(self.layout.server_count()));
        for slot in slots_of(&self.layout, &cut.file) {
            let bytes = share_bytes(&self.layout, slot, &cut.file);
            if bytes > 0 {
                let pieces = memory_runs(&self.layout, slot, &cut.file, &cut.memory).ok()?;
                let runs = runs::memory_runs(self.base, pieces, MEMORY_RUNS_MAX).ok()?;
                shares.push((slot, bytes, runs));
            }
        }
        Some(shares)
    }
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

impl Share {
    /// First address and end of the window's memory.
    pub(crate) fn memory_span(&self) -> (u64, u64) {
        self.window.memory_span
    }

    /// A [`weft_wire::messages::ReadRequest`] or [`weft_wire::messages::WriteRequest`], which are alike.
    pub(crate) fn body(&self) -> Vec<u8> {
        let window = &self.window;
        let mut out = Writer::new();
        window.capability.put(&mut out);
        self.slot.put(&mut out);
        window.flags.put(&mut out);
        out.raw(&window.encoded);
        out.into_bytes()
    }

    /// Where the share lies in memory.
    pub(crate) fn bulk(&mut self) -> Bulk {
        let runs = self.runs.take().unwrap_or_else(|| {
            let window = &self.window;
            let pieces = memory_runs(&window.layout, self.slot, &window.file, &window.memory)
                .expect("file and memory were compared when the request was cut");
            runs::memory_runs(window.base, pieces, usize::MAX).unwrap_or_default()
        });
        match self.window.direction {
            Direction::Read => Bulk::Put(runs),
            Direction::Write => Bulk::Get(runs),
        }
    }

    /// Fills a part of the share's memory with zeros.
    ///
    /// # Safety
    /// The window's memory is writable, and nobody else's.
    pub(crate) unsafe fn zero(&self, from_share_offset: u64, to_share_offset: u64) {
        let window = &self.window;
        let pieces =
            memory_runs_from(&window.layout, self.slot, &window.file, &window.memory, from_share_offset)
                .expect("file and memory were compared when the request was cut");
        let mut left = to_share_offset.saturating_sub(from_share_offset);
        for piece in pieces {
            let bytes = piece.bytes.min(left);
            // SAFETY: the piece lies in the window's memory, which the caller lends.
            unsafe {
                std::ptr::write_bytes(window.base.wrapping_add(piece.offset) as *mut u8, 0, bytes as usize)
            };
            left -= bytes;
            if left == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_layout::{Extent, Level};
    use weft_wire::limits::SHARE_BYTES_MAX;
    use weft_wire::messages::{ReadRequest, rights};

    fn layout(servers: u16) -> Layout {
        Layout::new(4096, 0, servers, servers).unwrap()
    }

    fn common(layout: Layout) -> Common {
        let capability =
            Capability { ino: 1, rights: rights::READ, expires_s: 9, layout, signature: [3; 16] };
        Common { direction: Direction::Read, layout, capability, base: 1 << 32, flags: 1 }
    }

    fn all_shares(common: &Common, cuts: VecDeque<Cut>) -> Vec<Share> {
        let mut cuts = cuts;
        let mut all = Vec::new();
        while let Some(cut) = cuts.pop_front() {
            match common.shares(cut) {
                Ok(shares) => all.extend(shares),
                Err(halves) => halves.into_iter().rev().for_each(|half| cuts.push_front(half)),
            }
        }
        all
    }

    #[test]
    fn a_body_is_the_message_of_the_wire() {
        let common = common(layout(4));
        let file = Regions::strided(100, 10, [Level { count: 9, stride_bytes: 5000 }]);
        let cuts = cut(&common.layout, &file, &Regions::contiguous(0, 90), SHARE_BYTES_MAX).unwrap();
        for share in all_shares(&common, cuts) {
            let request = ReadRequest {
                capability: common.capability.clone(),
                slot: share.slot,
                flags: 1,
                regions: file.clone(),
            };
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
        let layout = layout(4);
        let bytes = 3 << 30;
        let both = Regions::contiguous(0, bytes);
        let cuts = cut(&layout, &both, &both, 2 << 20).unwrap();
        let total: u64 = cuts.iter().map(|cut| cut.file.total_bytes()).sum();
        assert_eq!(total, bytes);
        for cut in &cuts {
            let largest = (0..4).map(|slot| share_bytes(&layout, slot, &cut.file)).max().unwrap();
            assert!(largest <= 2 << 20 && (largest > 1 << 20 || cut == cuts.back().unwrap()));
        }
    }

    #[test]
    fn a_million_pieces_are_cut_within_all_limits() {
        let extents: Vec<_> =
            (0..1_000_000u64).map(|at| Extent { offset: at * 40 % 7_000_003 * 90, bytes: 24 }).collect();
        let bytes = extents.len() as u64 * 24;
        let common = common(layout(4));
        let memory = Regions::strided(0, 8, [Level { count: bytes / 8, stride_bytes: 24 }]);
        let cuts = cut(&common.layout, &Regions::list(extents), &memory, SHARE_BYTES_MAX).unwrap();
        let mut total = 0;
        for mut share in all_shares(&common, cuts) {
            assert!(share.body().len() <= BODY_BYTES_MAX);
            let Bulk::Put(runs) = share.bulk() else { panic!() };
            assert!(runs.len() <= MEMORY_RUNS_MAX);
            assert_eq!(runs.iter().map(|run| run.bytes * run.count).sum::<u64>(), share.bytes);
            total += share.bytes;
        }
        assert_eq!(total, bytes);
    }

    #[test]
    fn a_pattern_of_very_many_pieces_is_cut_by_pieces() {
        let blocks = 5 * PIECES_MAX;
        let file = Regions::strided(0, 3, [Level { count: blocks, stride_bytes: 10 }]);
        let cuts = cut(&layout(2), &file, &Regions::contiguous(0, blocks * 3), SHARE_BYTES_MAX).unwrap();
        assert_eq!(cuts.len(), 5);
    }

    #[test]
    fn many_parts_are_split_over_requests() {
        let parts: Vec<_> =
            (0..5000u64).map(|at| Region::Contiguous(Extent { offset: at * 9000, bytes: 7 })).collect();
        let file = Regions { parts };
        let common = common(layout(2));
        let cuts = cut(&common.layout, &file, &Regions::contiguous(0, 35_000), SHARE_BYTES_MAX).unwrap();
        let shares = all_shares(&common, cuts);
        assert!(shares.iter().all(|share| share.window.file.parts.len() <= REGION_PARTS_MAX));
        assert_eq!(shares.iter().map(|share| share.bytes).sum::<u64>(), 35_000);
    }

    #[test]
    fn sides_that_do_not_match_are_refused() {
        let error = cut(&layout(1), &Regions::contiguous(0, 5), &Regions::contiguous(0, 6), 100).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("5 bytes of the file with 6 bytes of memory"));
    }

    #[test]
    fn only_the_part_asked_for_is_zeroed() {
        let mut memory = vec![7u8; 8192 * 2];
        let common = Common { base: memory.as_mut_ptr() as u64, ..common(layout(2)) };
        let both = Regions::contiguous(0, 8192 * 2);
        let shares = all_shares(&common, cut(&common.layout, &both, &both, SHARE_BYTES_MAX).unwrap());
        let second = shares.iter().find(|share| share.slot == 1).unwrap();
        // SAFETY: the memory is this test's.
        unsafe { second.zero(100, 4096 + 5) };
        let zeros: Vec<_> =
            memory.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at).collect();
        let expected: Vec<_> = (4096 + 100..8192).chain(3 * 4096..3 * 4096 + 5).collect();
        assert_eq!(zeros, expected);
    }

    proptest! {
        #[test]
        fn windows_join_up_to_the_request(
            pieces in proptest::collection::vec((0u64..100_000, 1u64..9000), 1..60),
            memory_block in 1u64..700, share_bytes_max in 4096u64..40_000, servers in 1u16..5,
        ) {
            let extents: Vec<_> = pieces.into_iter().map(|(offset, bytes)| Extent { offset, bytes }).collect();
            let bytes: u64 = extents.iter().map(|extent| extent.bytes).sum();
            let memory = Regions::strided(0, memory_block, [Level { count: bytes.div_ceil(memory_block), stride_bytes: 1000 }])
                .window(0, bytes);
            let file = Regions::list(extents);
            let layout = layout(servers);
            let cuts = cut(&layout, &file, &memory, share_bytes_max).unwrap();
            let flat = |regions: &Regions| regions.extents().flat_map(|e| e.offset..e.end()).collect::<Vec<_>>();
            let joined: Vec<_> = cuts.iter().flat_map(|cut| flat(&cut.file)).collect();
            prop_assert_eq!(joined, flat(&file));
            let joined: Vec<_> = cuts.iter().flat_map(|cut| flat(&cut.memory)).collect();
            prop_assert_eq!(joined, flat(&memory));
            for share in all_shares(&common(layout), cuts) {
                prop_assert!(share.bytes <= share_bytes_max);
            }
        }
    }
}
