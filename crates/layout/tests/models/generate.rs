//! What the tests are run on, and the byte-at-a-time meaning of regions.

use proptest::collection::vec;
use proptest::prelude::*;
use weft_layout::{Extent, Layout, Level, Order, Region, Regions};

/// Strips of 4 to 12 KiB over up to five servers.
pub fn layout() -> impl Strategy<Value = Layout> {
    (1u32..=3, 1u16..=5)
        .prop_flat_map(|(pages, ring)| (Just(pages), 0..ring, 1..=ring, Just(ring)))
        .prop_map(|(pages, first, count, ring)| Layout::new(pages * 4096, first, count, ring).unwrap())
}

/// Up to four parts of every form, with parts that vanish and neighbours that touch. At most some ten
/// thousands of bytes.
pub fn regions() -> impl Strategy<Value = Regions> {
    vec(region(), 0..4).prop_map(|parts| Regions { parts })
}

/// One part.
pub fn region() -> impl Strategy<Value = Region> {
    prop_oneof![contiguous(30_000), strided(3, 400), strided(1, 6000), subarray(), list(500), repeat()]
}

/// Up to three nested repeats around parts of every other form.
fn repeat() -> impl Strategy<Value = Region> {
    let leaf = prop_oneof![contiguous(2000), strided(2, 60), list(60)];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let stride_bytes =
            prop_oneof![Just(0), -9..=9i64, (-9..=9i64).prop_map(|at| at * 1000), -9000..9000i64];
        (30_000u64..60_000, 0u64..=4, stride_bytes, vec(inner, 0..=3)).prop_map(
            |(offset, count, stride_bytes, parts)| {
                let body = Regions { parts };
                // Three nested ones would else be too long for a byte-at-a-time model.
                let count = count.min(20_000 / body.total_bytes().max(1));
                Region::Repeat { offset, count, stride_bytes, body }
            },
        )
    })
}

fn contiguous(bytes_max: u64) -> impl Strategy<Value = Region> {
    (0u64..100_000, 0..bytes_max).prop_map(|(offset, bytes)| Region::Contiguous(Extent { offset, bytes }))
}

fn strided(levels_max: usize, block_bytes_max: u64) -> impl Strategy<Value = Region> {
    (100_000u64..200_000, 0..=block_bytes_max).prop_flat_map(move |(offset, block_bytes)| {
        let touching = (-3..=9i64).prop_map(move |blocks| blocks * block_bytes as i64);
        let stride_bytes = prop_oneof![touching, -1000..1000i64, -15_000..15_000i64];
        let level = (0u64..=4, stride_bytes).prop_map(|(count, stride_bytes)| Level { count, stride_bytes });
        vec(level, 0..=levels_max).prop_map(move |levels| Region::Strided { offset, block_bytes, levels })
    })
}

fn subarray() -> impl Strategy<Value = Region> {
    let axis = (0u64..=6).prop_flat_map(|dim| (Just(dim), 0..=dim)).prop_flat_map(|(dim, start)| {
        let count = prop_oneof![Just(dim - start), 0..=dim - start];
        (Just(dim), Just(start), count)
    });
    let element_bytes = prop_oneof![0u64..=16, 500u64..3000];
    (0u64..50_000, vec(axis, 0..=4), element_bytes, any::<bool>()).prop_map(
        |(offset, axes, element_bytes, is_c)| {
            let elements: u64 = axes.iter().map(|&(_, _, count)| count).product();
            Region::Subarray {
                offset,
                dims: axes.iter().map(|axis| axis.0).collect(),
                starts: axes.iter().map(|axis| axis.1).collect(),
                counts: axes.iter().map(|axis| axis.2).collect(),
                element_bytes: element_bytes.min(20_000 / elements.max(1)),
                order: if is_c { Order::C } else { Order::Fortran },
            }
        },
    )
}

fn list(unit_bytes: u64) -> impl Strategy<Value = Region> {
    let extent = (0u64..40, 0u64..5)
        .prop_map(move |(at, length)| Extent { offset: at * 2 * unit_bytes, bytes: length * unit_bytes });
    vec(extent, 0..10).prop_map(Region::List)
}

/// Up to four parts of every form, in ascending order without overlaps.
pub fn ascending() -> impl Strategy<Value = Regions> {
    vec(ascending_body(), 1..4).prop_map(|bodies| {
        let mut parts = Vec::new();
        let mut end = 0;
        for (gap, body) in bodies {
            let bytes = body.span().map_or(0, |span| span.end());
            parts.push(Region::Repeat { offset: end + gap, count: 1, stride_bytes: 0, body: body.clone() });
            parts.extend(moved(&body, end + gap + bytes));
            end += gap + 2 * bytes;
        }
        Regions { parts }
    })
}

/// The parts of `regions` with all offsets increased.
fn moved(regions: &Regions, by: u64) -> Vec<Region> {
    let mut parts = regions.parts.clone();
    for part in &mut parts {
        match part {
            Region::Contiguous(extent) => extent.offset += by,
            Region::Strided { offset, .. }
            | Region::Subarray { offset, .. }
            | Region::Repeat { offset, .. } => *offset += by,
            Region::List(extents) => extents.iter_mut().for_each(|extent| extent.offset += by),
        }
    }
    parts
}

/// A gap before it, and one ascending part, perhaps repeated.
fn ascending_body() -> impl Strategy<Value = (u64, Regions)> {
    let list = vec((0u64..60, 1u64..40), 0..12).prop_map(|gaps| {
        let mut end = 0;
        let place = |(gap, bytes): (u64, u64)| {
            end += gap + bytes;
            Extent { offset: end - bytes, bytes }
        };
        Regions::list(gaps.into_iter().map(place).collect::<Vec<_>>())
    });
    let nest = (0u64..50, 1u64..40, vec((1u64..5, 0u64..50), 0..=3)).prop_map(|(offset, block, loops)| {
        let mut span = block;
        let mut levels = Vec::new();
        for (count, gap) in loops {
            levels.insert(0, Level { count, stride_bytes: (span + gap) as i64 });
            span += (span + gap) * (count - 1);
        }
        Regions::strided(offset, block, levels)
    });
    let part = prop_oneof![list, nest].prop_recursive(2, 4, 2, |inner| {
        (inner, 0u64..60, 0u64..4, 0u64..60).prop_map(|(body, offset, count, gap)| {
            let stride_bytes = body.span().map_or(0, |span| span.bytes) + gap;
            Regions::repeat(offset, count, stride_bytes as i64, body)
        })
    });
    (0u64..5000, part)
}

/// The offset of every byte, in request order.
pub fn bytes_of(regions: &Regions) -> Vec<u64> {
    let mut offsets = Vec::new();
    for part in &regions.parts {
        match part {
            Region::Contiguous(extent) => offsets.extend(extent.offset..extent.offset + extent.bytes),
            Region::List(extents) => {
                offsets.extend(extents.iter().flat_map(|extent| extent.offset..extent.offset + extent.bytes))
            }
            Region::Strided { offset, block_bytes, levels } => {
                strided_bytes(*offset, *block_bytes, levels, &mut offsets)
            }
            Region::Subarray { offset, dims, starts, counts, element_bytes, order } => {
                for element in 0..counts.iter().product() {
                    let index = index_in(element, counts, *order)
                        .iter()
                        .zip(starts)
                        .map(|(i, start)| i + start)
                        .collect();
                    let at = offset + element_bytes * number_of(index, dims, *order);
                    offsets.extend(at..at + element_bytes);
                }
            }
            Region::Repeat { offset, count, stride_bytes, body } => {
                let body = bytes_of(body);
                for index in 0..*count {
                    let at = *offset as i64 + index as i64 * stride_bytes;
                    offsets.extend(body.iter().map(|&byte| at as u64 + byte));
                }
            }
        }
    }
    offsets
}

fn strided_bytes(offset: u64, block_bytes: u64, levels: &[Level], offsets: &mut Vec<u64>) {
    match levels {
        [] => offsets.extend(offset..offset + block_bytes),
        [outer, inner @ ..] => {
            for index in 0..outer.count {
                let at = offset as i64 + index as i64 * outer.stride_bytes;
                strided_bytes(at as u64, block_bytes, inner, offsets);
            }
        }
    }
}

/// The n-d index of the `element`-th element of an array.
fn index_in(mut element: u64, dims: &[u64], order: Order) -> Vec<u64> {
    let mut index = vec![0; dims.len()];
    for axis in fastest_first(dims.len(), order) {
        index[axis] = element % dims[axis];
        element /= dims[axis];
    }
    index
}

/// The inverse of [`index_in`].
fn number_of(index: Vec<u64>, dims: &[u64], order: Order) -> u64 {
    fastest_first(dims.len(), order).iter().rev().fold(0, |number, &axis| number * dims[axis] + index[axis])
}

fn fastest_first(axes: usize, order: Order) -> Vec<usize> {
    match order {
        Order::C => (0..axes).rev().collect(),
        Order::Fortran => (0..axes).collect(),
    }
}

/// The longest extents that `offsets` are, in order.
pub fn joined(offsets: &[u64]) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for &offset in offsets {
        match extents.last_mut() {
            Some(last) if last.end() == offset => last.bytes += 1,
            _ => extents.push(Extent { offset, bytes: 1 }),
        }
    }
    extents
}
