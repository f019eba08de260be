use std::sync::Arc;

use proptest::prelude::*;
use weft_layout::{Extent, Layout, Level, Region, Regions, pieces};
use weft_transport::{Bulk, BulkMemory, LinkTraits};
use weft_wire::limits::{BODY_BYTES_MAX, LIST_EXTENTS_MAX, MEMORY_RUNS_MAX, SHARE_BYTES_MAX};
use weft_wire::messages::{ReadRequest, rights};
use weft_wire::security::Capability;
use weft_wire::{HEADER_BYTES, Wire};

use super::cuts::PIECES_MAX;
use super::{Common, Direction, Memory, Share, Source, Window, check, runs, slots_of};
use crate::access::{AccessOptions, Method, Movement};
use crate::call::BulkRequest;
use crate::error::ErrorKind;
use crate::reach::Reach;
use crate::scripted::some_client;

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
    let traits = LinkTraits { pack_below_bytes: 100, ..LinkTraits::default() };
    let reach = Reach { share_bytes_max, traits, ..Reach::default() };
    let inner = some_client().inner;
    Common::new(inner, Direction::Read, &capability(layout), 1, movement, reach, Arc::default())
}

fn windows(common: Common, access: &AccessOptions, memory: &Regions, file: &Regions) -> Vec<Window> {
    let memory = Memory::Regions(memory);
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
    assert_eq!(shares.iter().flat_map(|shares| shares.iter()).map(|share| share.bytes).sum::<u64>(), bytes);
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
fn a_packed_pattern_has_no_window_for_a_small_rest() {
    let requests = |bytes: u64| {
        let file = Regions::strided(0, 64, [Level { count: bytes / 64, stride_bytes: 200 }]);
        let memory = Regions::contiguous(0, bytes);
        let windows = windows(
            common(layout(1), Movement::Auto, SHARE_BYTES_MAX),
            &AccessOptions::default(),
            &memory,
            &file,
        );
        let mut each: Vec<u64> = windows.iter().map(|window| window.shares[0].bytes).collect();
        each.sort_unstable();
        (each.len(), each[0] >> 10, each[each.len() - 1] >> 10)
    };
    assert_eq!(requests(1152 << 10), (1, 1152, 1152));
    assert_eq!(requests(1536 << 10), (2, 768, 768));
    assert_eq!(requests(10 << 20), (10, 1024, 1024));
}

#[test]
fn sides_that_do_not_match_are_refused() {
    let memory = Regions::contiguous(0, 6);
    let error = check(&Regions::contiguous(0, 5), Memory::Regions(&memory)).unwrap_err();
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
    let zeros: Vec<_> = memory.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at).collect();
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
