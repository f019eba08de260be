//! Two n-d arrays of the same shape, one in a file and one in memory, as the two sides of one request.
//!
//! An element has a place in each: where the array begins, and for each axis index times stride, which may be negative, or 0. The
//! order of the axes means nothing, as both sides are walked alike. So the axes are sorted by how far apart they are in the file, and
//! joined where one goes on where the other ends:
//!
//! ```text
//!   a[:, 1:3] of 4 × 5 doubles, into a Fortran-ordered array of 4 × 2
//!
//!   axis      count   in the file   in memory       file:    2 doubles, 4 × stride 40
//!      0          4            40           8       memory:  1 double, 4 × stride 8, 2 × stride 32
//!      1          2             8          32
//! ```

use crate::region::{Level, Region, Regions};

/// One axis of both arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Elements along it.
    pub count: u64,
    /// From one to the next in the file.
    pub file_stride_bytes: i64,
    /// From one to the next in memory.
    pub memory_stride_bytes: i64,
}

/// The regions of the file and of memory, whose bytes correspond in their order. `file_offset` and `memory_offset` are where the
/// elements with index 0 in all axes are. The result is to be [validated](Regions::validate).
pub fn array_regions(
    file_offset: u64,
    memory_offset: u64,
    element_bytes: u64,
    axes: &[Axis],
) -> (Regions, Regions) {
    if axes.iter().any(|axis| axis.count == 0) {
        return (Regions::contiguous(file_offset, 0), Regions::contiguous(memory_offset, 0));
    }
    let (mut file_offset, mut memory_offset) = (file_offset, memory_offset);
    let mut axes: Vec<Axis> = axes.iter().copied().filter(|axis| axis.count > 1).collect();
    for axis in &mut axes {
        if axis.file_stride_bytes < 0 {
            // Walked from its other end.
            let to_last = |stride: i64| stride.wrapping_mul(axis.count as i64 - 1) as u64;
            file_offset = file_offset.wrapping_add(to_last(axis.file_stride_bytes));
            memory_offset = memory_offset.wrapping_add(to_last(axis.memory_stride_bytes));
            axis.file_stride_bytes = axis.file_stride_bytes.wrapping_neg();
            axis.memory_stride_bytes = axis.memory_stride_bytes.wrapping_neg();
        }
    }
    axes.sort_by_key(|axis| std::cmp::Reverse(axis.file_stride_bytes));
    let side = |offset: u64, stride: fn(&Axis) -> i64| {
        let levels = axes.iter().map(|axis| Level { count: axis.count, stride_bytes: stride(axis) });
        region(offset, element_bytes, levels.collect())
    };
    (side(file_offset, |axis| axis.file_stride_bytes), side(memory_offset, |axis| axis.memory_stride_bytes))
}

/// One side, with as few levels as it can have.
fn region(offset: u64, element_bytes: u64, levels: Vec<Level>) -> Regions {
    let mut joined: Vec<Level> = Vec::with_capacity(levels.len());
    for level in levels {
        match joined.last_mut() {
            Some(outer) if level.stride_bytes.checked_mul(level.count as i64) == Some(outer.stride_bytes) => {
                *outer = Level { count: outer.count * level.count, stride_bytes: level.stride_bytes };
            }
            _ => joined.push(level),
        }
    }
    let mut block_bytes = element_bytes;
    if let Some(inner) = joined.last().filter(|inner| inner.stride_bytes == element_bytes as i64) {
        block_bytes *= inner.count;
        joined.pop();
    }
    match joined.is_empty() {
        true => Regions::contiguous(offset, block_bytes),
        false => Regions { parts: vec![Region::Strided { offset, block_bytes, levels: joined }] },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Extent;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BASE: u64 = 1 << 40;

    fn axis(count: u64, file_stride_bytes: i64, memory_stride_bytes: i64) -> Axis {
        Axis { count, file_stride_bytes, memory_stride_bytes }
    }

    /// Each byte of the file with its byte in memory, as the regions pair them.
    fn pairs(file: &Regions, memory: &Regions) -> BTreeMap<u64, u64> {
        let bytes = |regions: &Regions| -> Vec<u64> {
            regions.extents().flat_map(|extent| extent.offset..extent.end()).collect()
        };
        let (file, memory) = (bytes(file), bytes(memory));
        assert_eq!(file.len(), memory.len());
        file.into_iter().zip(memory).collect()
    }

    /// The same, from the definition.
    fn model(file_offset: u64, memory_offset: u64, element_bytes: u64, axes: &[Axis]) -> BTreeMap<u64, u64> {
        let mut places = vec![(file_offset, memory_offset)];
        for axis in axes {
            let along = |(file, memory): (u64, u64)| {
                let at = move |at: i64| {
                    let file = file.wrapping_add_signed(at * axis.file_stride_bytes);
                    (file, memory.wrapping_add_signed(at * axis.memory_stride_bytes))
                };
                (0..axis.count as i64).map(at)
            };
            places = places.into_iter().flat_map(along).collect();
        }
        let bytes = |(file, memory)| (0..element_bytes).map(move |at| (file + at, memory + at));
        places.into_iter().flat_map(bytes).collect()
    }

    #[test]
    fn a_whole_array_is_one_extent_in_either_order() {
        for axes in [[axis(4, 40, 40), axis(5, 8, 8)], [axis(4, 8, 8), axis(5, 32, 32)]] {
            let (file, memory) = array_regions(100, BASE, 8, &axes);
            assert_eq!((file, memory), (Regions::contiguous(100, 160), Regions::contiguous(BASE, 160)));
        }
    }

    #[test]
    fn columns_are_one_pattern_on_each_side() {
        let (file, memory) = array_regions(8, BASE, 8, &[axis(4, 40, 8), axis(2, 8, 32)]);
        let strided = |offset, block_bytes, levels: &[(u64, i64)]| {
            let levels = levels
                .iter()
                .map(|(count, stride_bytes)| Level { count: *count, stride_bytes: *stride_bytes });
            Regions { parts: vec![Region::Strided { offset, block_bytes, levels: levels.collect() }] }
        };
        assert_eq!(file, strided(8, 16, &[(4, 40)]));
        assert_eq!(memory, strided(BASE, 8, &[(4, 8), (2, 32)]));
    }

    #[test]
    fn what_is_walked_backwards_in_the_file_is_read_forwards() {
        let (file, memory) = array_regions(72, BASE, 8, &[axis(10, -8, 8)]);
        assert_eq!(file, Regions::contiguous(0, 80));
        assert_eq!(memory.extents().next(), Some(Extent::new(BASE + 72, 8)));
        assert_eq!(pairs(&file, &memory), model(72, BASE, 8, &[axis(10, -8, 8)]));
    }

    #[test]
    fn nothing_is_nothing() {
        let (file, memory) = array_regions(8, BASE, 8, &[axis(0, 8, 8), axis(3, 8, 8)]);
        assert_eq!((file.total_bytes(), memory.total_bytes()), (0, 0));
        let (file, memory) = array_regions(8, BASE, 8, &[]);
        assert_eq!((file, memory), (Regions::contiguous(8, 8), Regions::contiguous(BASE, 8)));
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(500))]
        #[test]
        fn each_element_gets_its_own_place(
            shape in prop::collection::vec((0u64..5, 0usize..4, any::<bool>(), any::<bool>(), 1i64..4), 0..5),
            element_bytes in 1u64..9,
        ) {
            // Strides of a larger array in any order of its axes on each side, with gaps, either way round.
            let mut axes: Vec<Axis> = Vec::new();
            let (mut file_stride, mut memory_stride) = (element_bytes as i64, element_bytes as i64);
            for (count, _, back, back_in_memory, gap) in &shape {
                let sign = |back: &bool| if *back { -1 } else { 1 };
                axes.push(axis(*count, sign(back) * file_stride, sign(back_in_memory) * memory_stride));
                file_stride *= (*count as i64).max(1) * gap;
                memory_stride *= (*count as i64).max(1);
            }
            for (at, (_, other, ..)) in shape.iter().enumerate() {
                let other = other % axes.len();
                axes.swap(at, other);
            }
            let (file_offset, memory_offset) = (1 << 30, BASE);
            let (file, memory) = array_regions(file_offset, memory_offset, element_bytes, &axes);
            file.validate(16, 16).unwrap();
            memory.validate(16, 16).unwrap();
            prop_assert_eq!(pairs(&file, &memory), model(file_offset, memory_offset, element_bytes, &axes));
        }
    }
}
