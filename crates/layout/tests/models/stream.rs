use proptest::prelude::*;
use weft_layout::{
    Extent, Layout, Level, LocalRun, Piece, Regions, StreamError, StreamRun, local_runs, local_runs_from,
    memory_runs, memory_runs_from, pieces, pieces_from, share_bytes, share_has, stream_runs,
    stream_runs_from,
};

use crate::generate::{bytes_of, joined, layout, regions};

/// Position in the request and local offset of each byte of the share of `slot`, in order.
fn share_of(layout: &Layout, slot: u16, regions: &Regions) -> Vec<(u64, u64)> {
    let strip_bytes = u64::from(layout.strip_bytes());
    let servers = u64::from(layout.server_count());
    (0..)
        .zip(bytes_of(regions))
        .filter(|(_, offset)| offset / strip_bytes % servers == u64::from(slot))
        .map(|(at, offset)| (at, offset / strip_bytes / servers * strip_bytes + offset % strip_bytes))
        .collect()
}

/// Runs of bytes as triples of share offset, other offset, length.
fn runs(others: impl Iterator<Item = u64>, share_start: u64) -> Vec<(u64, u64, u64)> {
    let mut share_offset = share_start;
    let with_share_offset = |extent: Extent| {
        share_offset += extent.bytes;
        (share_offset - extent.bytes, extent.offset, extent.bytes)
    };
    joined(&others.collect::<Vec<_>>()).into_iter().map(with_share_offset).collect()
}

fn local_triples(runs: impl Iterator<Item = LocalRun>) -> Vec<(u64, u64, u64)> {
    runs.map(|run| (run.share_offset, run.local_offset, run.bytes)).collect()
}

fn stream_triples(runs: impl Iterator<Item = StreamRun>) -> Vec<(u64, u64, u64)> {
    runs.map(|run| (run.share_offset, run.stream_offset, run.bytes)).collect()
}

/// `regions`, cut or filled up to as many bytes as `file` has.
fn as_memory_of(file: &Regions, regions: Regions) -> Regions {
    let total_bytes = file.total_bytes();
    let missing = total_bytes.saturating_sub(regions.total_bytes());
    regions.then(Regions::contiguous(7, missing)).window(0, total_bytes)
}

proptest! {
    #![proptest_config(weft_test_random::cases(64))]

    #[test]
    fn pieces_are_the_share(layout in layout(), regions in regions()) {
        for slot in 0..layout.server_count() {
            let expected = share_of(&layout, slot, &regions);
            prop_assert_eq!(share_bytes(&layout, slot, &regions), expected.len() as u64);
            prop_assert_eq!(share_has(&layout, slot, &regions), !expected.is_empty());
            let mut share = Vec::new();
            for Piece { stream_offset, share_offset, local_offset, bytes } in pieces(&layout, slot, &regions) {
                prop_assert!(bytes > 0);
                prop_assert_eq!(share_offset, share.len() as u64);
                let strip_bytes = u64::from(layout.strip_bytes());
                prop_assert!(local_offset % strip_bytes + bytes <= strip_bytes, "a piece is within one strip");
                share.extend((0..bytes).map(|at| (stream_offset + at, local_offset + at)));
            }
            prop_assert_eq!(share, expected);
        }
    }

    #[test]
    fn runs_are_the_longest_there_are(layout in layout(), regions in regions()) {
        for slot in 0..layout.server_count() {
            let share = share_of(&layout, slot, &regions);
            let expected = runs(share.iter().map(|byte| byte.1), 0);
            prop_assert_eq!(local_triples(local_runs(&layout, slot, &regions)), expected);
            let expected = runs(share.iter().map(|byte| byte.0), 0);
            prop_assert_eq!(stream_triples(stream_runs(&layout, slot, &regions)), expected);
        }
    }

    #[test]
    fn memory_runs_are_where_the_share_is(layout in layout(), file in regions(), memory in regions()) {
        let memory = as_memory_of(&file, memory);
        let addresses = bytes_of(&memory);
        for slot in 0..layout.server_count() {
            let share = share_of(&layout, slot, &file);
            let expected = joined(&share.iter().map(|byte| addresses[byte.0 as usize]).collect::<Vec<_>>());
            let found: Vec<_> = memory_runs(&layout, slot, &file, &memory).unwrap().collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn all_resume_anywhere(layout in layout(), file in regions(), memory in regions(), at in 0.0..1.1f64) {
        let memory = as_memory_of(&file, memory);
        let addresses = bytes_of(&memory);
        for slot in 0..layout.server_count() {
            let share = share_of(&layout, slot, &file);
            let start = (share.len() as f64 * at) as u64;
            let rest = share.get(start as usize..).unwrap_or_default();

            let expected = runs(rest.iter().map(|byte| byte.1), start);
            prop_assert_eq!(local_triples(local_runs_from(&layout, slot, &file, start)), expected);
            let expected = runs(rest.iter().map(|byte| byte.0), start);
            prop_assert_eq!(stream_triples(stream_runs_from(&layout, slot, &file, start)), expected);
            let expected = joined(&rest.iter().map(|byte| addresses[byte.0 as usize]).collect::<Vec<_>>());
            let found: Vec<_> = memory_runs_from(&layout, slot, &file, &memory, start).unwrap().collect();
            prop_assert_eq!(found, expected);
            let resumed = pieces_from(&layout, slot, &file, start).flat_map(|piece| {
                (0..piece.bytes).map(move |at| (piece.stream_offset + at, piece.local_offset + at))
            });
            prop_assert!(resumed.eq(rest.iter().copied()));
        }
    }

    #[test]
    fn units_are_the_same_bytes(layout in layout(), file in regions(), unit_bytes in 1u64..9000) {
        let mut local = local_runs(&layout, 0, &file);
        let mut stream = stream_runs(&layout, 0, &file);
        let mut memory = memory_runs(&layout, 0, &file, &file).unwrap();
        let mut share_offset = 0;
        let (mut places, mut positions, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(run) = local.next_at_most(unit_bytes) {
            prop_assert!(run.bytes <= unit_bytes);
            prop_assert_eq!(run.share_offset, share_offset);
            share_offset += run.bytes;
            places.extend(run.local_offset..run.local_offset + run.bytes);
        }
        while let Some(run) = stream.next_at_most(unit_bytes) {
            positions.extend(run.stream_offset..run.stream_offset + run.bytes);
        }
        while let Some(run) = memory.next_at_most(unit_bytes) {
            addresses.extend(run.offset..run.end());
        }
        let share = share_of(&layout, 0, &file);
        let file_bytes = bytes_of(&file);
        prop_assert!(places.iter().eq(share.iter().map(|byte| &byte.1)));
        prop_assert!(positions.iter().eq(share.iter().map(|byte| &byte.0)));
        prop_assert!(addresses.iter().eq(share.iter().map(|byte| &file_bytes[byte.0 as usize])));
    }
}

#[test]
fn sides_of_different_size_are_refused() {
    let layout = Layout::new(4096, 0, 2, 2).unwrap();
    let refusal =
        memory_runs(&layout, 0, &Regions::contiguous(0, 10), &Regions::contiguous(0, 11)).unwrap_err();
    assert_eq!(refusal, StreamError::SizeMismatch { file_bytes: 10, memory_bytes: 11 });
}

#[test]
fn foreign_slots_own_nothing() {
    let layout = Layout::new(4096, 0, 2, 3).unwrap();
    let regions = Regions::contiguous(0, 1 << 40);
    assert_eq!(share_bytes(&layout, 2, &regions), 0);
    assert_eq!(pieces(&layout, 2, &regions).next(), None);
    let one_server = Layout::new(4096, 0, 1, 3).unwrap();
    assert_eq!(stream_runs(&one_server, 1, &regions).next(), None);
}

/// Many times the period after which a stride meets the same servers again, and some iterations more.
#[test]
fn shares_of_long_patterns_are_counted_right() {
    let layout = Layout::new(4096, 0, 3, 3).unwrap();
    let body = Regions::list([Extent::new(90, 900), Extent::new(4000, 200)]).then(Regions::strided(
        5000,
        70,
        [Level { count: 3, stride_bytes: 100 }],
    ));
    for stride_bytes in [0, 4096, -4096, 12_288, 3 * 12_288 + 1024, -6144] {
        for count in [5, 24, 59, 60] {
            let blocks = Level { count, stride_bytes };
            let outermost = [blocks, Level { count: 2, stride_bytes: 30_000 }];
            let strided = Regions::strided(3_000_000, 700, outermost);
            let repeated = Regions::repeat(3_000_000, count, stride_bytes, body.clone());
            for regions in [&strided, &repeated, &strided.clone().then(repeated.clone())] {
                for slot in 0..3 {
                    let expected = share_of(&layout, slot, regions).len() as u64;
                    assert_eq!(share_bytes(&layout, slot, regions), expected, "{stride_bytes} {count}");
                }
            }
        }
    }
}

/// Would not end if any of these visited strips or blocks one by one.
#[test]
fn huge_requests_are_cheap() {
    let (servers, strip_bytes, bytes) = (4, 65536, 1u64 << 62);
    let layout = Layout::new(strip_bytes, 0, servers, 4).unwrap();
    let all = Regions::contiguous(0, bytes);
    assert_eq!(share_bytes(&layout, 1, &all), bytes / 4);
    let eighths = [Level { count: 1 << 50, stride_bytes: 4096 }];
    assert_eq!(share_bytes(&layout, 1, &Regions::strided(0, 512, eighths)), 1 << 57);
    let runs: Vec<LocalRun> = local_runs(&layout, 1, &all).collect();
    assert_eq!(runs, [LocalRun { share_offset: 0, local_offset: 0, bytes: bytes / 4 }]);
    let far = pieces_from(&layout, 1, &all, bytes / 8).next().unwrap();
    assert_eq!((far.stream_offset, far.local_offset), (bytes / 2 + 65536, bytes / 8));
    assert_eq!(all.window(bytes / 2, 100).extents().next(), Some(Extent::new(bytes / 2, 100)));

    let alone = Layout::new(strip_bytes, 2, 1, 4).unwrap();
    assert_eq!(stream_runs(&alone, 0, &all).count(), 1);
    assert_eq!(memory_runs(&alone, 0, &all, &all).unwrap().count(), 1);

    let nested =
        [Level { count: 1 << 30, stride_bytes: 1 << 33 }, Level { count: 1 << 20, stride_bytes: 1 << 12 }];
    let sparse = Regions::strided(0, 8, nested);
    assert_eq!(sparse.extents_from((1 << 52) + 8).next(), Some(Extent::new((1 << 62) + (1 << 12), 8)));
    assert_eq!(sparse.window(12, 1 << 50).parts.len(), 5);

    let pair = Regions::list([Extent::new(0, 4), Extent::new(8, 4)]);
    let pairs = Regions::repeat(0, 1 << 30, 1 << 32, Regions::repeat(0, 1 << 20, 1 << 12, pair));
    assert_eq!(pairs.extents_from((1 << 52) + 12).next(), Some(Extent::new((1 << 61) + (1 << 12) + 8, 4)));
    assert_eq!((pairs.piece_count(), pairs.total_bytes()), (1 << 51, 1 << 53));
    assert_eq!(pairs.window(14, 1 << 50).part_count(), 8);
    let places = memory_runs_from(&alone, 0, &pairs, &pairs, 1 << 52).unwrap();
    assert_eq!(places.clone().next(), Some(Extent::new(1 << 61, 4)));
}

/// A window of a repeat begins where the one before it ended, without walking its body from the beginning.
#[test]
fn windows_of_a_long_repeated_list_cost_one_pass() {
    let body: Vec<Extent> = (0..1 << 18).map(|at| Extent::new(at * 16, 8)).collect();
    let repeated = Regions::repeat(0, 2, 1 << 23, Regions::list(body));
    let mut cutter = repeated.cutter();
    let mut windows = 0;
    while !cutter.is_at_end() {
        let window = cutter.take(cutter.fit(u64::MAX, 8));
        assert_eq!(window.piece_count(), 8);
        windows += 1;
    }
    assert_eq!(windows, 1 << 16);
}

/// The blocks between two strips of a slot are passed over at once: 2^24 blocks, of which the slot has 2^10.
#[test]
fn blocks_of_other_slots_are_skipped() {
    let layout = Layout::new(65536, 0, 1 << 14, 1 << 14).unwrap();
    let blocks = Regions::strided(0, 8, [Level { count: 1 << 34, stride_bytes: 64 }]);
    let mine: Vec<Piece> = pieces(&layout, 9, &blocks).take(4096).collect();
    assert_eq!(mine[1023].local_offset, 65536 - 64);
    assert_eq!(mine[1024].stream_offset, ((1 << 14) + 9) * 65536 / 64 * 8);
    assert_eq!(mine[4095].share_offset, 4095 * 8);

    let pair = Regions::list([Extent::new(0, 4), Extent::new(8, 4)]);
    let eights = Regions::repeat(0, 1 << 31, 0, Regions::contiguous(0, 8));
    let pairs = Regions::repeat(0, 1 << 34, 64, Regions::repeat(8, 2, 16, pair));
    for regions in [&pairs, &Regions::contiguous(0, 4).then(eights.clone()).then(pairs.clone())] {
        let mine: Vec<Piece> = pieces(&layout, 9, regions).take(1 << 14).collect();
        let before = regions.total_bytes() - pairs.total_bytes();
        assert_eq!(mine[4096].stream_offset, before + ((1 << 14) + 9) * 65536 / 64 * 16);
        assert_eq!(mine[4096].local_offset, 65536 + 8);
        assert_eq!(mine[16383].share_offset, 16383 * 4);
    }
}

/// A stride back, or none, brings blocks again that lie before the strip that skipping aims at.
#[test]
fn blocks_further_back_are_not_skipped() {
    let layout = Layout::new(4096, 0, 2, 2).unwrap();
    for back in [0, -8192] {
        let twice = [Level { count: 2, stride_bytes: back }, Level { count: 3, stride_bytes: 4096 }];
        let blocks = Regions::strided(8192, 100, twice);
        assert_eq!((share_bytes(&layout, 0, &blocks), share_bytes(&layout, 1, &blocks)), (400, 200));
    }
}
