use proptest::collection::vec;
use proptest::prelude::*;
use weft_layout::{
    Extent, Layout, Level, OFFSET_LIMIT, Order, Region, RegionError, Regions, local_runs, pieces,
};

use crate::generate::{ascending, bytes_of, joined, region, regions};

proptest! {
    #![proptest_config(weft_test_random::cases(128))]

    #[test]
    fn extents_are_the_bytes_in_order(regions in regions()) {
        prop_assert_eq!(regions.validate(60, 6), Ok(()));
        let bytes = bytes_of(&regions);
        let expected = joined(&bytes);
        prop_assert_eq!(regions.total_bytes(), bytes.len() as u64);
        prop_assert_eq!(regions.is_empty(), bytes.is_empty());
        prop_assert!(regions.piece_count() >= expected.len() as u64);
        prop_assert_eq!(regions.as_contiguous(), match expected[..] {
            [] => Some(Extent::default()),
            [extent] => Some(extent),
            _ => None,
        });
        prop_assert_eq!(regions.extents().collect::<Vec<_>>(), expected);
        let span = bytes.iter().min().map(|&first| Extent::new(first, bytes.iter().max().unwrap() + 1 - first));
        prop_assert_eq!(regions.span(), span);
        let shifted = regions.shifted(1000).unwrap();
        prop_assert_eq!(bytes_of(&shifted), bytes.iter().map(|byte| byte + 1000).collect::<Vec<_>>());
        prop_assert_eq!(regions.shifted(u64::MAX).is_some(), bytes.is_empty());
    }

    #[test]
    fn runs_are_the_bytes_in_order(regions in regions(), steps in vec(1u64..200, 1..30)) {
        let bytes = bytes_of(&regions);
        let mut runs = regions.strided_runs();
        let mut walked: Vec<u64> = Vec::new();
        for step in steps.iter().cycle() {
            let Some(run) = runs.peek() else { break };
            prop_assert_eq!(run.stream_offset, walked.len() as u64);
            let all = Regions::strided(
                run.offset, run.bytes, [Level { count: run.count, stride_bytes: run.stride_bytes }]);
            let taken = match step % 2 {
                0 => (run.bytes * run.count).min(*step),
                _ => run.bytes * run.count.min(*step),
            };
            walked.extend(&bytes_of(&all)[..taken as usize]);
            match step % 2 {
                0 => runs.advance_bytes(taken),
                _ => runs.advance_blocks(taken / run.bytes),
            }
        }
        prop_assert_eq!(walked, bytes);
    }

    #[test]
    fn ascending_regions_are_told_and_skipped(regions in ascending(), skips in vec((0u64..9000, 0u64..30), 1..9)) {
        let bytes = bytes_of(&regions);
        prop_assert!(regions.is_ascending());
        prop_assert!(bytes.is_sorted_by(|a, b| a < b));
        let mut runs = regions.strided_runs();
        let mut below = 0;
        for (forward, taken) in skips {
            below += forward;
            let before = runs.stream_offset();
            runs.skip_below(below);
            let next = before.max(bytes.iter().filter(|offset| **offset < below).count() as u64);
            match runs.peek() {
                Some(run) => prop_assert!((run.stream_offset..run.stream_offset + run.bytes).contains(&next)),
                None => prop_assert_eq!(next, bytes.len() as u64),
            }
            runs.advance_bytes(taken);
        }
    }

    #[test]
    fn no_others_are_called_ascending(regions in regions()) {
        let ascends = bytes_of(&regions).is_sorted_by(|a, b| a < b);
        prop_assert!(ascends || !regions.is_ascending());
    }

    #[test]
    fn extents_resume_anywhere(regions in regions(), at in 0.0..1.1f64) {
        let bytes = bytes_of(&regions);
        let start = (bytes.len() as f64 * at) as usize;
        let expected = joined(bytes.get(start..).unwrap_or_default());
        prop_assert_eq!(regions.extents_from(start as u64).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn bounded_extents_are_the_same_bytes(regions in regions(), max_bytes in 1u64..5000) {
        let mut extents = regions.extents();
        let cut: Vec<Extent> = std::iter::from_fn(|| extents.next_at_most(max_bytes)).collect();
        prop_assert!(cut.iter().all(|extent| (1..=max_bytes).contains(&extent.bytes)));
        prop_assert_eq!(bytes_of(&Regions::list(cut)), bytes_of(&regions));
    }

    #[test]
    fn windows_are_slices_of_the_stream(regions in regions(), at in 0.0..1.1f64, length in 0.0..1.1f64) {
        let bytes = bytes_of(&regions);
        let (start, count) = ((bytes.len() as f64 * at) as usize, (bytes.len() as f64 * length) as usize);
        let window = regions.window(start as u64, count as u64);
        let expected = bytes.get(start..).map(|rest| &rest[..count.min(rest.len())]).unwrap_or_default();
        prop_assert_eq!(bytes_of(&window), expected);
        prop_assert_eq!(window.validate(usize::MAX, 6), Ok(()));
    }

    #[test]
    fn cut_windows_are_bounded_and_complete(regions in regions(), max_bytes in 1u64..9000, max_descriptors in 1usize..12) {
        let mut cutter = regions.cutter();
        let mut bytes = Vec::new();
        while !cutter.is_at_end() {
            let fitting = cutter.fit(max_bytes, max_descriptors);
            prop_assert!((1..=max_bytes).contains(&fitting));
            let window = cutter.take(fitting);
            prop_assert!(descriptors(&window) <= max_descriptors);
            bytes.extend(bytes_of(&window));
            prop_assert_eq!(cutter.stream_offset(), bytes.len() as u64);
        }
        prop_assert_eq!(bytes, bytes_of(&regions));
        prop_assert_eq!((cutter.fit(1, 1), cutter.take(1)), (0, Regions::default()));
    }

    #[test]
    fn windows_stay_compact(region in region(), at in 0.0..1.0f64, length in 0.0..1.0f64) {
        let parts_max = window_parts_max(&region);
        let regions = Regions::from(region);
        let total_bytes = regions.total_bytes() as f64;
        let window = regions.window((total_bytes * at) as u64, (total_bytes * length) as u64);
        prop_assert!(window.part_count() <= parts_max, "{} parts", window.part_count());
    }

    #[test]
    fn what_validates_does_not_overflow(parts in vec(extreme_region(), 1..4)) {
        let regions = Regions { parts };
        if regions.validate(60, 6).is_err() {
            return Ok(());
        }
        let total_bytes = regions.total_bytes();
        prop_assert!(total_bytes < OFFSET_LIMIT);
        prop_assert!(regions.span().is_none_or(|span| span.end() <= OFFSET_LIMIT));
        for extents in [regions.extents(), regions.extents_from(total_bytes / 2), regions.extents_from(total_bytes)] {
            for extent in extents_bounded(extents) {
                prop_assert!(extent.end() <= OFFSET_LIMIT);
            }
        }
        let window = regions.window(total_bytes / 3, total_bytes / 2);
        prop_assert_eq!(window.total_bytes(), total_bytes / 2);
        prop_assert_eq!(window.validate(usize::MAX, 6), Ok(()));
        let layout = Layout::new(65536, 0, 3, 3).unwrap();
        if regions.piece_count() < 1000 {
            let _ = (local_runs(&layout, 1, &regions).count(), pieces(&layout, 2, &regions).take(1000).count());
        }
    }
}

fn descriptors(regions: &Regions) -> usize {
    let of_part = |part: &Region| match part {
        Region::List(extents) => extents.len(),
        Region::Repeat { body, .. } => 1 + descriptors(body),
        _ => 1,
    };
    regions.parts.iter().map(of_part).sum()
}

/// How many parts a window of `region` may have: cut ones at either end, and what is whole.
fn window_parts_max(region: &Region) -> usize {
    match region {
        Region::Strided { levels, .. } => 2 * levels.len() + 1,
        Region::Subarray { dims, .. } => 2 * dims.len() + 1,
        Region::Contiguous(_) | Region::List(_) => 1,
        Region::Repeat { body, .. } => {
            2 * body.parts.iter().map(window_parts_max).sum::<usize>() + 1 + body.part_count()
        }
    }
}

/// The first few extents, without joining a whole endless region into one.
fn extents_bounded(mut extents: weft_layout::Extents<'_>) -> impl Iterator<Item = Extent> {
    std::iter::from_fn(move || extents.next_at_most(1)).take(100)
}

/// Numbers where overflows live.
fn extreme() -> impl Strategy<Value = u64> {
    let power = (0u32..64, 0u64..3).prop_map(|(bit, less)| (1u64 << bit).wrapping_sub(less));
    prop_oneof![3 => 0u64..4, 2 => power, 1 => any::<u64>()]
}

fn extreme_region() -> impl Strategy<Value = Region> {
    let level = (extreme(), extreme(), any::<bool>()).prop_map(|(count, stride, back)| Level {
        count,
        stride_bytes: if back { (stride as i64).wrapping_neg() } else { stride as i64 },
    });
    let strided = (extreme(), extreme(), vec(level, 0..4))
        .prop_map(|(offset, block_bytes, levels)| Region::Strided { offset, block_bytes, levels });
    let extent = || (extreme(), extreme()).prop_map(|(offset, bytes)| Extent { offset, bytes });
    let axis = (extreme(), extreme(), extreme());
    let subarray = (extreme(), vec(axis, 0..4), extreme(), any::<bool>()).prop_map(
        |(offset, axes, element_bytes, is_c)| Region::Subarray {
            offset,
            dims: axes.iter().map(|axis| axis.0).collect(),
            starts: axes.iter().map(|axis| axis.1 % axis.0.saturating_add(1)).collect(),
            counts: axes.iter().map(|axis| axis.2).collect(),
            element_bytes,
            order: if is_c { Order::C } else { Order::Fortran },
        },
    );
    let leaf = prop_oneof![
        extent().prop_map(Region::Contiguous),
        strided,
        subarray,
        vec(extent(), 0..4).prop_map(Region::List)
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        (extreme(), extreme(), extreme(), any::<bool>(), vec(inner, 0..3)).prop_map(
            |(offset, count, stride, back, parts)| Region::Repeat {
                offset,
                count,
                stride_bytes: if back { (stride as i64).wrapping_neg() } else { stride as i64 },
                body: Regions { parts },
            },
        )
    })
}

fn level(count: u64, stride_bytes: i64) -> Level {
    Level { count, stride_bytes }
}

#[test]
fn refuses_what_makes_no_sense() {
    let refusal = |regions: Regions| regions.validate(3, 2).unwrap_err();
    let two = Regions::contiguous(0, 1).then(Regions::contiguous(5, 1));
    assert_eq!(refusal(two.clone().then(two)), RegionError::TooManyParts { parts: 4, max_parts: 3 });
    assert_eq!(
        refusal(Regions::strided(0, 1, [level(1, 1); 3])),
        RegionError::TooManyLevels { part: 0, levels: 3, max_levels: 2 }
    );
    assert_eq!(
        refusal(Regions::subarray(0, [4], [0, 0], [4], 1, Order::C)),
        RegionError::DimensionMismatch { part: 0, dims: 1, starts: 2, counts: 1 }
    );
    assert_eq!(
        refusal(Regions::contiguous(0, 1).then(Regions::subarray(0, [4, 4], [0, 2], [4, 3], 1, Order::C))),
        RegionError::OutsideArray { part: 1, axis: 1, start: 2, count: 3, dim: 4 }
    );
    let nested = Regions::repeat(0, 1, 0, Regions::strided(0, 1, [level(2, 1)]));
    assert_eq!(nested.validate(2, 2), Ok(()));
    assert_eq!(
        refusal(Regions::repeat(0, 1, 0, nested.clone())),
        RegionError::TooManyLevels { part: 0, levels: 3, max_levels: 2 }
    );
    assert_eq!(refusal(nested.clone().then(nested)), RegionError::TooManyParts { parts: 4, max_parts: 3 });
    assert_eq!(
        refusal(Regions::repeat(0, 1 << 60, 0, Regions::contiguous(0, 8))),
        RegionError::TooManyBytes { part: 0 }
    );
    let half = Regions::contiguous(0, OFFSET_LIMIT / 2);
    assert_eq!(refusal(half.clone().then(half)), RegionError::TooManyBytes { part: 1 });
    for out_of_range in [
        Regions::contiguous(OFFSET_LIMIT - 1, 2),
        Regions::list([Extent::new(0, 1), Extent::new(u64::MAX, 1)]),
        Regions::strided(9, 1, [level(11, -1)]),
        Regions::strided(OFFSET_LIMIT - 10, 1, [level(11, 1)]),
        Regions::strided(0, 1, [level(1 << 62, i64::MIN), level(1 << 0, 1)]),
        Regions::subarray(OFFSET_LIMIT - 10, [11], [0], [1], 1, Order::C),
        Regions::repeat(OFFSET_LIMIT - 15, 2, 10, Regions::contiguous(0, 6)),
        Regions::repeat(5, 2, -10, Regions::contiguous(10, 1)),
        Regions::repeat(0, 0, 0, Regions::contiguous(OFFSET_LIMIT, 1)),
    ] {
        assert_eq!(refusal(out_of_range), RegionError::OutOfRange { part: 0 });
    }
}

#[test]
fn what_has_no_bytes_may_be_anywhere() {
    let nothing = Regions::contiguous(u64::MAX, 0)
        .then(Regions::strided(u64::MAX, u64::MAX, [level(0, i64::MIN), level(u64::MAX, i64::MAX)]))
        .then(Regions::subarray(u64::MAX, [u64::MAX; 3], [u64::MAX - 1; 3], [0; 3], u64::MAX, Order::C))
        .then(Regions::list([Extent::new(u64::MAX, 0)]))
        .then(Regions::repeat(u64::MAX, 0, i64::MIN, Regions::contiguous(0, 8)))
        .then(Regions::repeat(u64::MAX, u64::MAX, i64::MAX, Regions::contiguous(u64::MAX, 0)));
    assert_eq!(nothing.validate(8, 3), Ok(()));
    assert!(nothing.is_empty());
    assert_eq!(nothing.extents().next(), None);
    assert_eq!(nothing.window(0, 10), Regions::default());
}

#[test]
fn regular_forms_that_are_one_extent_are_one_piece() {
    let touching = Regions::strided(4096, 512, [level(1 << 20, 1 << 32), level(1 << 23, 512)]);
    assert_eq!(touching.piece_count(), 1);
    assert_eq!(touching.as_contiguous(), Some(Extent::new(4096, 1 << 52)));
    let rows = Regions::subarray(0, [1 << 20, 1000, 1000], [7, 0, 0], [1 << 10, 1000, 1000], 8, Order::C);
    assert_eq!(rows.piece_count(), 1);
    let columns =
        Regions::subarray(0, [1000, 1000, 1 << 20], [0, 0, 7], [1000, 1000, 1 << 10], 8, Order::Fortran);
    assert_eq!(columns.as_contiguous(), Some(Extent::new(7 * 8_000_000, 8_000_000 << 10)));
}
