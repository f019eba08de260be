//! What processes tell each other, as bytes. Integers are LEB128, signed ones zig-zag.
//!
//! ```text
//! announcement := intervals (gap length)* kind regions?
//!                 gap, length: of rounds, from the end of the interval before
//!                 kind: 0 no bytes | 1 regions, not ascending | 2 regions, ascending | 3 a list for each round
//! regions      := parts part*
//! part         := 0 offset bytes                                          contiguous
//!               | 1 offset block_bytes levels (count stride)*             strided
//!               | 2 offset element_bytes order dims (dim start count)*    subarray
//!               | 3 extents (gap bytes)*                                  list
//!               | 4 offset count stride regions                           repeat
//! round        := (runs run*)*                                            for each slot of the aggregator
//! run          := gap bytes (count - 1) stride?                           stride where there are several
//! ```

use thiserror::Error;
use weft_layout::{Extent, Level, Order, Region, Regions};

use crate::walk::AreaRun;

/// Longer descriptions are not announced; the process sends its extents round by round.
pub(crate) const ANNOUNCED_BYTES_MAX: usize = 4096;
/// Parts that an announcement has at most.
const PARTS_MAX: usize = 1024;
/// Levels, dimensions and repeats around each other.
const LEVELS_MAX: usize = 64;

/// What a process is about to access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The rounds in which it may have bytes, ascending, as first and last one.
    pub intervals: Vec<(u64, u64)>,
    /// Its bytes in the file.
    pub bytes: Announced,
}

/// How a process describes its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Announced {
    /// It has none.
    Nothing,
    /// All at once.
    Regions {
        /// The bytes.
        regions: Regions,
        /// Whether they are ascending.
        ascends: bool,
    },
    /// A list for each round, since there would be too much to say.
    Lists,
}

/// Why bytes from another process make no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// They end too early.
    #[error("the message ends too early")]
    Short,
    /// There are more than belong to it.
    #[error("the message has more bytes than belong to it")]
    Long,
    /// A number is too large, or not known.
    #[error("the message has a number that is not valid: {0}")]
    Value(u64),
    /// Regions that are not valid.
    #[error("the message has regions that are not valid")]
    Regions,
}

impl Announcement {
    /// Of a process with `regions` in the rounds of `intervals`; `ascends`: they are ascending.
    pub fn of(regions: &Regions, ascends: bool, intervals: Vec<(u64, u64)>) -> Announcement {
        if intervals.is_empty() {
            return Announcement { intervals: Vec::new(), bytes: Announced::Nothing };
        }
        let bytes = match is_short(regions) {
            true => Announced::Regions { regions: regions.clone(), ascends },
            false => Announced::Lists,
        };
        Announcement { intervals, bytes }
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.intervals.len() as u64);
        let mut end = 0;
        for (first, last) in &self.intervals {
            put(&mut out, first - end);
            put(&mut out, last - first);
            end = *last;
        }
        match &self.bytes {
            Announced::Nothing => put(&mut out, 0),
            Announced::Regions { regions, ascends } => {
                put(&mut out, 1 + u64::from(*ascends));
                put_regions(&mut out, regions);
            }
            Announced::Lists => put(&mut out, 3),
        }
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Announcement, DecodeError> {
        let mut input = Reader(bytes);
        let mut end = 0u64;
        let mut intervals = Vec::new();
        for _ in 0..input.count(2)? {
            let first = end.checked_add(input.varint()?).ok_or(DecodeError::Value(end))?;
            end = first.checked_add(input.varint()?).ok_or(DecodeError::Value(first))?;
            intervals.push((first, end));
        }
        let bytes = match input.varint()? {
            0 => Announced::Nothing,
            kind @ 1..=2 => {
                let regions = input.regions(LEVELS_MAX)?;
                regions.validate(PARTS_MAX, LEVELS_MAX).map_err(|_| DecodeError::Regions)?;
                if regions.is_ascending() != (kind == 2) {
                    return Err(DecodeError::Regions);
                }
                Announced::Regions { regions, ascends: kind == 2 }
            }
            3 => Announced::Lists,
            kind => return Err(DecodeError::Value(kind)),
        };
        input.end()?;
        Ok(Announcement { intervals, bytes })
    }
}

/// Whether regions are short enough to be announced.
fn is_short(regions: &Regions) -> bool {
    let mut list_bytes = 0;
    lists(regions, &mut |extents| list_bytes += 2 * extents.len());
    if list_bytes > ANNOUNCED_BYTES_MAX || regions.validate(PARTS_MAX, LEVELS_MAX).is_err() {
        return false;
    }
    let mut out = Vec::new();
    put_regions(&mut out, regions);
    out.len() <= ANNOUNCED_BYTES_MAX
}

fn lists(regions: &Regions, each: &mut impl FnMut(&[Extent])) {
    for part in &regions.parts {
        match part {
            Region::List(extents) => each(extents),
            Region::Repeat { body, .. } => lists(body, each),
            _ => {}
        }
    }
}

/// Appends the runs of a slot in a round.
pub(crate) struct RunWriter<'a> {
    out: &'a mut Vec<u8>,
    runs: Vec<u8>,
    count: u64,
    end: u64,
}

impl<'a> RunWriter<'a> {
    /// Runs to be appended to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> RunWriter<'a> {
        RunWriter { out, runs: Vec::new(), count: 0, end: 0 }
    }

    /// Appends a run.
    pub fn push(&mut self, run: &AreaRun) {
        put(&mut self.runs, zigzag(run.area_offset.wrapping_sub(self.end) as i64));
        put(&mut self.runs, run.bytes);
        put(&mut self.runs, run.count - 1);
        if run.count > 1 {
            put(&mut self.runs, run.stride_bytes);
        }
        self.end = run.area_end();
        self.count += 1;
    }

    /// Ends the slot.
    pub fn finish(self) {
        put(self.out, self.count);
        self.out.extend(self.runs);
    }
}

/// The runs of slots in a round. `rooms` has the bytes of each slot's area that are used in this round; runs
/// are within them.
pub(crate) fn decode_runs(bytes: &[u8], rooms: &[u64]) -> Result<Vec<Vec<AreaRun>>, DecodeError> {
    let mut input = Reader(bytes);
    let mut all = Vec::with_capacity(rooms.len());
    for room in rooms {
        let count = input.count(3)?;
        let mut runs = Vec::with_capacity(count);
        let (mut end, mut stream_offset) = (0u64, 0);
        for _ in 0..count {
            let run = input.run(end, stream_offset, *room)?;
            end = run.area_end();
            stream_offset += run.total_bytes();
            runs.push(run);
        }
        all.push(runs);
    }
    input.end()?;
    Ok(all)
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_regions(out: &mut Vec<u8>, regions: &Regions) {
    put(out, regions.parts.len() as u64);
    for part in &regions.parts {
        put_part(out, part);
    }
}

fn put_part(out: &mut Vec<u8>, part: &Region) {
    let put_all = |out: &mut Vec<u8>, values: &[u64]| values.iter().for_each(|value| put(out, *value));
    match part {
        Region::Contiguous(extent) => put_all(out, &[0, extent.offset, extent.bytes]),
        Region::Strided { offset, block_bytes, levels } => {
            put_all(out, &[1, *offset, *block_bytes, levels.len() as u64]);
            for level in levels {
                put_all(out, &[level.count, zigzag(level.stride_bytes)]);
            }
        }
        Region::Subarray { offset, dims, starts, counts, element_bytes, order } => {
            let order = u64::from(*order == Order::Fortran);
            put_all(out, &[2, *offset, *element_bytes, order, dims.len() as u64]);
            for ((dim, start), count) in dims.iter().zip(starts).zip(counts) {
                put_all(out, &[*dim, *start, *count]);
            }
        }
        Region::List(extents) => {
            put_all(out, &[3, extents.len() as u64]);
            let mut end = 0u64;
            for extent in extents {
                put_all(out, &[zigzag(extent.offset.wrapping_sub(end) as i64), extent.bytes]);
                end = extent.offset.wrapping_add(extent.bytes);
            }
        }
        Region::Repeat { offset, count, stride_bytes, body } => {
            put_all(out, &[4, *offset, *count, zigzag(*stride_bytes)]);
            put_regions(out, body);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(DecodeError::Short)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Value(value))
    }

    /// A number of things of at least `bytes_min` bytes each.
    fn count(&mut self, bytes_min: u64) -> Result<usize, DecodeError> {
        let count = self.varint()?;
        match count <= self.0.len() as u64 / bytes_min {
            true => Ok(count as usize),
            false => Err(DecodeError::Value(count)),
        }
    }

    fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Long) }
    }

    fn regions(&mut self, levels_max: usize) -> Result<Regions, DecodeError> {
        let count = self.count(2)?;
        let parts = (0..count).map(|_| self.part(levels_max)).collect::<Result<_, _>>()?;
        Ok(Regions { parts })
    }

    fn part(&mut self, levels_max: usize) -> Result<Region, DecodeError> {
        match self.varint()? {
            0 => Ok(Region::Contiguous(Extent { offset: self.varint()?, bytes: self.varint()? })),
            1 => {
                let (offset, block_bytes) = (self.varint()?, self.varint()?);
                let level = |input: &mut Self| {
                    Ok(Level { count: input.varint()?, stride_bytes: unzigzag(input.varint()?) })
                };
                let levels = (0..self.count(2)?).map(|_| level(self)).collect::<Result<_, _>>()?;
                Ok(Region::Strided { offset, block_bytes, levels })
            }
            2 => self.subarray(),
            3 => {
                let mut end = 0u64;
                let mut extents = Vec::new();
                for _ in 0..self.count(2)? {
                    let offset = end.wrapping_add(unzigzag(self.varint()?) as u64);
                    let bytes = self.varint()?;
                    end = offset.wrapping_add(bytes);
                    extents.push(Extent { offset, bytes });
                }
                Ok(Region::List(extents))
            }
            4 => {
                let levels_max = levels_max.checked_sub(1).ok_or(DecodeError::Regions)?;
                let (offset, count) = (self.varint()?, self.varint()?);
                let stride_bytes = unzigzag(self.varint()?);
                Ok(Region::Repeat { offset, count, stride_bytes, body: self.regions(levels_max)? })
            }
            kind => Err(DecodeError::Value(kind)),
        }
    }

    fn subarray(&mut self) -> Result<Region, DecodeError> {
        let (offset, element_bytes) = (self.varint()?, self.varint()?);
        let order = match self.varint()? {
            0 => Order::C,
            1 => Order::Fortran,
            order => return Err(DecodeError::Value(order)),
        };
        let (mut dims, mut starts, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.count(3)? {
            dims.push(self.varint()?);
            starts.push(self.varint()?);
            counts.push(self.varint()?);
        }
        Ok(Region::Subarray { offset, dims, starts, counts, element_bytes, order })
    }

    /// A run in an area, the one before it ending at `end`. Its pieces do not overlap.
    fn run(&mut self, end: u64, stream_offset: u64, room: u64) -> Result<AreaRun, DecodeError> {
        let area_offset = end.wrapping_add(unzigzag(self.varint()?) as u64);
        let bytes = self.varint()?;
        let count = self.varint()?.saturating_add(1);
        let stride_bytes = if count > 1 { self.varint()? } else { 0 };
        let run = AreaRun { area_offset, bytes, stride_bytes, count, stream_offset };
        if bytes == 0 || run.area_end() > room || (count > 1 && stride_bytes < bytes) {
            return Err(DecodeError::Value(area_offset));
        }
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::Rounds;
    use crate::walk::ShareWalk;
    use weft_layout::Layout;

    fn sample() -> Regions {
        let body = Regions::list([Extent::new(0, 3), Extent::new(10, 4)]);
        Regions::contiguous(5, 10)
            .then(Regions::strided(4096, 24, [Level { count: 100, stride_bytes: 96 }]))
            .then(Regions::subarray(1 << 20, [40, 50], [3, 4], [5, 6], 8, Order::Fortran))
            .then(Regions::repeat(1 << 30, 9, 4096, Regions::repeat(1, 3, -20, body)))
    }

    #[test]
    fn announcements_survive() {
        for regions in [sample(), Regions::contiguous(0, 1)] {
            let announced =
                Announcement::of(&regions, regions.is_ascending(), vec![(0, 3), (9, 9), (1 << 40, 1 << 50)]);
            assert_eq!(Announcement::decode(&announced.encode()), Ok(announced));
        }
        let nothing = Announcement::of(&Regions::default(), true, Vec::new());
        assert_eq!(nothing.bytes, Announced::Nothing);
        assert_eq!(Announcement::decode(&nothing.encode()), Ok(nothing));
    }

    #[test]
    fn what_is_long_is_sent_round_by_round() {
        let list =
            |count: u64| Regions::list((0..count).map(|at| Extent::new(at * 99, 5)).collect::<Vec<_>>());
        let kind = |regions: &Regions| Announcement::of(regions, true, vec![(0, 1)]).bytes;
        assert!(matches!(kind(&list(1000)), Announced::Regions { ascends: true, .. }));
        assert_eq!(kind(&list(5000)), Announced::Lists);
        assert_eq!(kind(&Regions::repeat(0, 2, 1 << 20, list(5000))), Announced::Lists);
    }

    #[test]
    fn runs_survive() {
        let runs = vec![
            vec![
                AreaRun { area_offset: 100, bytes: 10, stride_bytes: 30, count: 4, stream_offset: 0 },
                AreaRun { area_offset: 7, bytes: 93, stride_bytes: 0, count: 1, stream_offset: 40 },
            ],
            vec![],
        ];
        let mut out = Vec::new();
        for slot in &runs {
            let mut writer = RunWriter::new(&mut out);
            slot.iter().for_each(|run| writer.push(run));
            writer.finish();
        }
        assert_eq!(decode_runs(&out, &[200, 0]), Ok(runs));
        assert!(decode_runs(&out, &[199, 4096]).is_err(), "beyond what is used");
        assert!(decode_runs(&out, &[4096]).is_err(), "a slot too many");
    }

    #[test]
    fn damaged_announcements_are_refused_or_can_be_walked() {
        let right = Announcement::of(&sample(), false, vec![(0, 300)]).encode();
        weft_test_fuzz::run("collective-announcement", &[right], |bytes| {
            let Ok(announcement) = Announcement::decode(bytes) else { return };
            let Announced::Regions { regions, ascends } = announcement.bytes else { return };
            if regions.piece_count() > 1 << 12 || regions.total_bytes() > 1 << 24 {
                return;
            }
            let layout = Layout::new(4096, 0, 3, 3).expect("a good layout");
            let rounds = Rounds::new(&layout, 8192);
            let mut walk = ShareWalk::new(&layout, &rounds, 1, &regions, ascends);
            for round in 0..20 {
                walk.round(round, |run| assert!(run.area_end() <= rounds.area_bytes()));
            }
        });
    }

    #[test]
    fn damaged_rounds_are_refused_or_within_the_area() {
        let right = vec![1, 20, 5, 3, 30, 2, 8, 4, 0, 9, 4, 0];
        assert!(decode_runs(&right, &[4096, 40]).is_ok());
        weft_test_fuzz::run("collective-runs", &[right], |bytes| {
            let Ok(slots) = decode_runs(bytes, &[4096, 40]) else { return };
            for (runs, room) in slots.iter().zip([4096, 40]) {
                assert!(runs.iter().all(|run| run.area_end() <= room && run.bytes > 0));
            }
        });
    }
}
