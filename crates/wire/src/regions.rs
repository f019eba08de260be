//! Region descriptors and layouts on the wire. A pattern is sent as a pattern, however many pieces it has; an explicit
//! list as differences.
//!
//! ```text
//! regions   := count(u32) part*
//! part      := 1 offset bytes                                      contiguous
//!            | 2 offset block_bytes levels(u8) (count stride)*     strided, outermost loop first
//!            | 3 offset element_bytes order(u8) dims(u8) (dim start count)*
//!            | 4 extents (gap bytes)*                              list; gap: from the previous end, zig-zag
//!            | 5 offset count stride parts part*                   repeat of a body, with its own offsets
//! ```
//!
//! Other integers are LEB128, signed ones zig-zag. Bodies of repeats nest. Their parts count with the others,
//! and each repeat is a level of its body, so that neither the number nor the depth of parts exceeds the
//! limits of a flat request.
//!
//! 1,000 pieces of 24 bytes at distances of 3 KiB take 8 bytes as a pattern, 3,000 as a list, and 16,000 as
//! flat pairs of 16 bytes.

use crate::codec::{DecodeError, Reader, Wire, Writer};
use crate::limits::{LIST_EXTENTS_MAX, REGION_LEVELS_MAX, REGION_PARTS_MAX};
use weft_layout::{ChainId, Extent, Layout, Level, Order, Region, Regions};

/// The size of an empty list.
const PART_BYTES_MIN: usize = 2;

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn put_region(region: &Region, out: &mut Writer) {
    match region {
        Region::Contiguous(extent) => {
            out.raw(&[1]);
            out.varint(extent.offset);
            out.varint(extent.bytes);
        }
        Region::Strided { offset, block_bytes, levels } => {
            out.raw(&[2]);
            out.varint(*offset);
            out.varint(*block_bytes);
            out.raw(&[levels.len() as u8]);
            for level in levels {
                out.varint(level.count);
                out.varint(zigzag(level.stride_bytes));
            }
        }
        Region::Subarray { offset, dims, starts, counts, element_bytes, order } => {
            out.raw(&[3]);
            out.varint(*offset);
            out.varint(*element_bytes);
            out.raw(&[u8::from(*order == Order::Fortran), dims.len() as u8]);
            for ((dim, start), count) in dims.iter().zip(starts).zip(counts) {
                out.varint(*dim);
                out.varint(*start);
                out.varint(*count);
            }
        }
        Region::List(extents) => {
            out.raw(&[4]);
            out.varint(extents.len() as u64);
            let mut end = 0u64;
            for extent in extents {
                out.varint(zigzag(extent.offset.wrapping_sub(end) as i64));
                out.varint(extent.bytes);
                end = extent.offset.wrapping_add(extent.bytes);
            }
        }
        Region::Repeat { offset, count, stride_bytes, body } => {
            out.raw(&[5]);
            out.varint(*offset);
            out.varint(*count);
            out.varint(zigzag(*stride_bytes));
            out.varint(body.parts.len() as u64);
            for region in &body.parts {
                put_region(region, out);
            }
        }
    }
}

/// The remaining limits of a request, or of the body of a repeat.
struct Room {
    /// Parts in this body and all following ones.
    parts: usize,
    /// Levels within the open repeats.
    levels: usize,
}

impl Room {
    fn take_parts(&mut self, count: u64, input: &Reader<'_>) -> Result<usize, DecodeError> {
        let fits = count <= self.parts as u64 && count * PART_BYTES_MIN as u64 <= input.remaining() as u64;
        let count = usize::try_from(count).ok().filter(|_| fits).ok_or(DecodeError::Count(count))?;
        self.parts -= count;
        Ok(count)
    }

    fn check_levels(&self, count: usize) -> Result<usize, DecodeError> {
        if count > self.levels { Err(DecodeError::Count(count as u64)) } else { Ok(count) }
    }
}

fn get_region(input: &mut Reader<'_>, room: &mut Room) -> Result<Region, DecodeError> {
    match u8::get(input)? {
        1 => Ok(Region::Contiguous(Extent { offset: input.varint()?, bytes: input.varint()? })),
        2 => {
            let (offset, block_bytes) = (input.varint()?, input.varint()?);
            let levels = (0..room.check_levels(u8::get(input)?.into())?)
                .map(|_| Ok(Level { count: input.varint()?, stride_bytes: unzigzag(input.varint()?) }))
                .collect::<Result<_, DecodeError>>()?;
            Ok(Region::Strided { offset, block_bytes, levels })
        }
        3 => {
            let (offset, element_bytes) = (input.varint()?, input.varint()?);
            let order = if bool::get(input)? { Order::Fortran } else { Order::C };
            let (mut dims, mut starts, mut counts) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..room.check_levels(u8::get(input)?.into())? {
                dims.push(input.varint()?);
                starts.push(input.varint()?);
                counts.push(input.varint()?);
            }
            Ok(Region::Subarray { offset, dims, starts, counts, element_bytes, order })
        }
        4 => {
            let count = input.varint()?;
            if count > LIST_EXTENTS_MAX as u64 || count * 2 > input.remaining() as u64 {
                return Err(DecodeError::Count(count));
            }
            let mut end = 0u64;
            let mut extents = Vec::with_capacity(count as usize);
            for _ in 0..count {
                let offset = end.wrapping_add(unzigzag(input.varint()?) as u64);
                let bytes = input.varint()?;
                end = offset.wrapping_add(bytes);
                extents.push(Extent { offset, bytes });
            }
            Ok(Region::List(extents))
        }
        5 => {
            room.check_levels(1)?;
            let (offset, count) = (input.varint()?, input.varint()?);
            let stride_bytes = unzigzag(input.varint()?);
            let parts = input.varint()?;
            room.levels -= 1;
            let body = get_parts(parts, input, room)?;
            room.levels += 1;
            Ok(Region::Repeat { offset, count, stride_bytes, body })
        }
        _ => Err(DecodeError::Value("unknown kind of region descriptor")),
    }
}

fn get_parts(count: u64, input: &mut Reader<'_>, room: &mut Room) -> Result<Regions, DecodeError> {
    let count = room.take_parts(count, input)?;
    let parts = (0..count).map(|_| get_region(input, room)).collect::<Result<_, _>>()?;
    Ok(Regions { parts })
}

impl Wire for Regions {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Writer) {
        (self.parts.len() as u32).put(out);
        for region in &self.parts {
            put_region(region, out);
        }
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = u32::get(input)?;
        let mut room = Room { parts: REGION_PARTS_MAX, levels: REGION_LEVELS_MAX };
        let regions = get_parts(count.into(), input, &mut room)?;
        regions
            .validate(REGION_PARTS_MAX, REGION_LEVELS_MAX)
            .map_err(|_| DecodeError::Value("regions are beyond the largest file"))?;
        Ok(regions)
    }
    fn sample(_seed: &mut u64) -> Self {
        Regions {
            parts: vec![
                Region::Contiguous(Extent { offset: 4096, bytes: 100 }),
                Region::Strided {
                    offset: 1 << 20,
                    block_bytes: 24,
                    levels: vec![
                        Level { count: 3, stride_bytes: 4096 },
                        Level { count: 1000, stride_bytes: 48 },
                    ],
                },
                Region::Subarray {
                    offset: 0,
                    dims: vec![768, 1024],
                    starts: vec![0, 512],
                    counts: vec![384, 512],
                    element_bytes: 24,
                    order: Order::C,
                },
                Region::List(vec![Extent { offset: 700, bytes: 7 }, Extent { offset: 10, bytes: 3 }]),
                Region::Repeat {
                    offset: 1 << 30,
                    count: 500,
                    stride_bytes: -4096,
                    body: Regions::list([Extent { offset: 0, bytes: 8 }, Extent { offset: 40, bytes: 16 }])
                        .then(Regions::repeat(64, 2, 1024, Regions::contiguous(8, 4))),
                },
            ],
        }
    }
}

impl Wire for Layout {
    const BYTES_MIN: usize = 10;
    fn put(&self, out: &mut Writer) {
        self.strip_bytes().put(out);
        self.first_server().put(out);
        self.server_count().put(out);
        self.ring_servers().put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (strip_bytes, first_server) = (u32::get(input)?, u16::get(input)?);
        let (server_count, ring_servers) = (u16::get(input)?, u16::get(input)?);
        Layout::new(strip_bytes, first_server, server_count, ring_servers)
            .map_err(|_| DecodeError::Value("the layout is not valid"))
    }
    fn sample(_seed: &mut u64) -> Self {
        Layout::new(65536, 2, 3, 6).expect("the paper's example (PVFS table 1)")
    }
}

impl Wire for ChainId {
    const BYTES_MIN: usize = 2;
    fn put(&self, out: &mut Writer) {
        self.0.put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u16::get(input).map(ChainId)
    }
    fn sample(seed: &mut u64) -> Self {
        ChainId(u16::sample(seed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BODY_BYTES_MAX;
    use weft_layout::{Layout, local_runs, local_runs_from, memory_runs, pieces};

    #[test]
    fn every_form_survives_the_wire() {
        let regions = Regions::sample(&mut 0);
        assert_eq!(Regions::from_bytes(&regions.to_bytes()), Ok(regions));
    }

    #[test]
    fn a_pattern_takes_the_same_bytes_for_any_number_of_pieces() {
        let strided = |count| {
            Regions {
                parts: vec![Region::Strided {
                    offset: 0,
                    block_bytes: 24,
                    levels: vec![Level { count, stride_bytes: 3072 }],
                }],
            }
            .to_bytes()
            .len()
        };
        assert_eq!(strided(1000), strided(16000));
        assert!(strided(1000) <= 12);
    }

    #[test]
    fn an_ascending_list_takes_three_bytes_a_piece() {
        let extents = (0..1000).map(|at| Extent { offset: at * 3072, bytes: 24 }).collect();
        let bytes = Regions { parts: vec![Region::List(extents)] }.to_bytes().len();
        assert!(bytes < 3 * 1000 + 16, "{bytes}");
    }

    #[test]
    fn a_repeated_list_takes_the_same_bytes_for_any_number_of_repetitions() {
        let pair = Regions::list([Extent { offset: 0, bytes: 8 }, Extent { offset: 40, bytes: 16 }]);
        let repeated = |count| Regions::repeat(0, count, 4096, pair.clone()).to_bytes().len();
        assert_eq!(repeated(1 << 7), repeated((1 << 14) - 1));
        assert!(repeated(1 << 30) <= 24);
    }

    fn nested(depth: usize) -> Regions {
        (0..depth).fold(Regions::contiguous(0, 1), |body, _| Regions::repeat(0, 1, 0, body))
    }

    #[test]
    fn repeats_nest_as_deep_as_loops_do() {
        let deepest = nested(REGION_LEVELS_MAX);
        assert_eq!(Regions::from_bytes(&deepest.to_bytes()), Ok(deepest));
        let error = Regions::from_bytes(&nested(REGION_LEVELS_MAX + 1).to_bytes());
        assert_eq!(error, Err(DecodeError::Count(1)));
        let bottomless = [&[1, 0, 0, 0][..], &[5, 0, 1, 0, 1].repeat(BODY_BYTES_MAX / 5)].concat();
        assert_eq!(Regions::from_bytes(&bottomless), Err(DecodeError::Count(1)), "without following it down");
        let levels = vec![Level { count: 1, stride_bytes: 0 }; REGION_LEVELS_MAX];
        let error = Regions::from_bytes(&Regions::repeat(0, 1, 0, Regions::strided(0, 1, levels)).to_bytes());
        assert_eq!(error, Err(DecodeError::Count(REGION_LEVELS_MAX as u64)));
    }

    #[test]
    fn parts_of_bodies_count() {
        let part = Region::Contiguous(Extent { offset: 0, bytes: 1 });
        let repeats = |body_parts: usize| {
            let body = Regions { parts: vec![part.clone(); body_parts] };
            Regions::repeat(0, 1, 0, body.clone()).then(Regions::repeat(0, 1, 0, body)).to_bytes()
        };
        let half = REGION_PARTS_MAX / 2;
        assert!(Regions::from_bytes(&repeats(half - 1)).is_ok());
        assert_eq!(Regions::from_bytes(&repeats(half)), Err(DecodeError::Count(half as u64)));
    }

    #[test]
    fn a_body_that_claims_more_than_it_holds_is_refused_before_allocation() {
        let mut out = Writer::new();
        1u32.put(&mut out);
        out.raw(&[5, 0, 1, 0]);
        out.varint(200);
        out.raw(&[1, 0, 1, 1, 0, 1]);
        assert_eq!(Regions::from_bytes(out.as_bytes()), Err(DecodeError::Count(200)));
    }

    #[test]
    fn what_does_not_fit_a_file_is_refused() {
        for region in [
            Region::Contiguous(Extent { offset: u64::MAX, bytes: 2 }),
            Region::Strided {
                offset: 0,
                block_bytes: 1,
                levels: vec![Level { count: u64::MAX, stride_bytes: 2 }],
            },
            Region::Strided { offset: 0, block_bytes: 1, levels: vec![Level { count: 2, stride_bytes: -1 }] },
            Region::List(vec![Extent { offset: 1 << 63, bytes: 1 }]),
            Region::Repeat { offset: 0, count: u64::MAX, stride_bytes: 1, body: Regions::contiguous(0, 1) },
            Region::Repeat { offset: 0, count: 2, stride_bytes: -1, body: Regions::contiguous(1, 1) },
        ] {
            let bytes = Regions { parts: vec![region] }.to_bytes();
            assert!(Regions::from_bytes(&bytes).is_err());
        }
    }

    #[test]
    fn a_list_that_claims_more_than_it_holds_is_refused_before_allocation() {
        let mut out = Writer::new();
        1u32.put(&mut out);
        out.raw(&[4]);
        out.varint(4000);
        out.raw(&[0, 0]);
        assert_eq!(Regions::from_bytes(out.as_bytes()), Err(DecodeError::Count(4000)));
    }

    const STEPS_MAX: usize = 300;

    /// What is accepted can be walked, cut and intersected with any layout without overflow, and every way of walking agrees with
    /// the others. The first byte of an input chooses the layout.
    #[test]
    fn damaged_regions_are_refused_or_can_be_walked_in_every_way() {
        let right = [&[9], &Regions::sample(&mut 0).to_bytes()[..]].concat();
        weft_test_fuzz::run("regions", &[right], |bytes| {
            let Some((shape, bytes)) = bytes.split_first() else { return };
            let Ok(regions) = Regions::from_bytes(bytes) else { return };
            assert_eq!(regions.to_bytes(), bytes, "there is one encoding");
            let total_bytes = regions.total_bytes();
            let middle = total_bytes / 2;
            let window = regions.window(middle, total_bytes);
            assert_eq!(window.total_bytes(), total_bytes - middle);
            let (mut whole, mut cut) = (regions.extents_from(middle), window.extents());
            for _ in 0..STEPS_MAX {
                assert_eq!(whole.next_at_most(64), cut.next_at_most(64));
            }
            let count = u16::from(shape % 5) + 1;
            let layout = Layout::new(4096 << (shape % 8), 0, count, count).expect("a good layout");
            (0..count).for_each(|slot| walk_share(&layout, slot, &regions));
        });
    }

    fn walk_share(layout: &Layout, slot: u16, regions: &Regions) {
        // Walking takes as long as there are pieces; a server refuses what has too many.
        if regions.piece_count() > 1 << 14 {
            return;
        }
        let mut share_offset = 0;
        for (number, run) in local_runs(layout, slot, regions).take(STEPS_MAX).enumerate() {
            assert_eq!(run.share_offset, share_offset);
            if number % 100 == 99 {
                assert_eq!(local_runs_from(layout, slot, regions, share_offset).next(), Some(run));
            }
            share_offset += run.bytes;
        }
        let memory = Regions::contiguous(0, regions.total_bytes());
        let mut places = memory_runs(layout, slot, regions, &memory).expect("sides of one size");
        for piece in pieces(layout, slot, regions).take(STEPS_MAX) {
            let place = places.next_at_most(piece.bytes).expect("memory for every piece");
            assert_eq!((place.offset, place.bytes), (piece.stream_offset, piece.bytes));
        }
    }
}
