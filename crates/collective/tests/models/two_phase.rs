use std::collections::HashMap;
use std::convert::Infallible;

use weft_collective::threads::{Fault, ThreadPeers, VectorFile, World};
use weft_collective::{Collective, CollectiveError, Direction, Options, Peers, Request, Summary, Totals};
use weft_layout::{Extent, Layout, Level, Regions};
use weft_test_random::{Random, seed, seeds};

use crate::generate::{Part, Scene, scene};

const SCENES: usize = 60;

fn bytes_of(regions: &Regions) -> Vec<usize> {
    regions.extents().flat_map(|extent| extent.offset as usize..extent.end() as usize).collect()
}

/// The memory of a process before the access.
fn filled(part: &Part, rank: u32) -> Vec<u8> {
    Random(u64::from(rank) + 99).bytes(part.memory_bytes)
}

type Returned = Result<u64, CollectiveError<Fault, Infallible>>;

fn access(
    collective: &mut Collective,
    peers: &mut ThreadPeers<'_>,
    file: &VectorFile,
    direction: Direction,
    part: Result<&Part, Fault>,
    memory: &mut [u8],
    file_bytes: Option<u64>,
) -> Returned {
    let nothing = Regions::default();
    let (of_memory, of_file) = part.map_or((&nothing, &nothing), |part| (&part.memory, &part.file));
    let summary = Summary::new(of_memory, of_file, 0, peers.size());
    let totals: Totals = summary.reduce(peers).unwrap();
    let base = memory.as_mut_ptr();
    let request = part.map(|part| Request { base, memory: &part.memory, file: &part.file });
    let mut store = file.open(peers.rank());
    // SAFETY: the memory is borrowed mutably, and has all bytes of the part.
    unsafe { collective.two_phase(peers, &mut store, direction, request, &totals, file_bytes) }
}

/// Each process's memory and result.
fn run(
    scene: &Scene,
    file: &VectorFile,
    direction: Direction,
    file_bytes: Option<u64>,
) -> Vec<(Vec<u8>, u64)> {
    let world = World::new(&scene.nodes);
    world.run(|mut peers| {
        let part = &scene.parts[peers.rank() as usize];
        let mut memory = filled(part, peers.rank());
        let mut collective = Collective::new(scene.options);
        let moved = access(&mut collective, &mut peers, file, direction, Ok(part), &mut memory, file_bytes);
        (memory, moved.unwrap())
    })
}

/// At most one access for each slot in a round; no slot has two aggregators.
fn check_accesses(scene: &Scene, file: &VectorFile) {
    let mut aggregator_of: HashMap<u16, u32> = HashMap::new();
    let mut by_slot: HashMap<u16, u64> = HashMap::new();
    for access in file.accesses() {
        assert_eq!(*aggregator_of.entry(access.slot).or_insert(access.rank), access.rank);
        *by_slot.entry(access.slot).or_default() += 1;
    }
    let slots = u64::from(scene.layout.server_count());
    let aggregators = slots.min(scene.parts.len() as u64).min(scene.options.aggregators_max as u64);
    let room = (scene.options.buffer_bytes / slots.div_ceil(aggregators)).max(4096) / 4096 * 4096;
    let spans = scene.parts.iter().filter_map(|part| part.file.span());
    let (start, end) =
        spans.fold((u64::MAX, 0), |(start, end), span| (start.min(span.offset), end.max(span.end())));
    let local = |slot, offset| scene.layout.local_size(slot, offset);
    for (slot, accesses) in by_slot {
        let strip = u64::from(scene.layout.strip_bytes());
        // Half of a room at least is used, as strips are not cut where several fit.
        let round_bytes =
            if room >= strip { room / strip * strip } else { strip.div_ceil(strip.div_ceil(room)) };
        let local_bytes = local(slot, end) - local(slot, start);
        let rounds_max = 2 + 2 * local_bytes.div_ceil(round_bytes);
        assert!(accesses <= rounds_max, "{accesses} accesses to slot {slot} in {rounds_max} rounds");
    }
}

#[test]
fn writes_are_those_of_a_model() {
    for seed in seeds().take(SCENES) {
        let random = &mut Random(seed);
        let scene = scene(random);
        let before = random.bytes(random.clone().below(200_000) as usize);
        let file = VectorFile::new(scene.layout, before.clone());
        if random.one_in(2) {
            file.move_late();
        }
        let moved = run(&scene, &file, Direction::Write, None);

        let spans = scene.parts.iter().filter_map(|part| part.file.span());
        let end = spans.map(|span| span.end() as usize).max().unwrap_or(0);
        let mut written: Vec<Vec<u8>> = vec![Vec::new(); end.max(before.len())];
        for (rank, part) in (0..).zip(&scene.parts) {
            let memory = filled(part, rank);
            for (to, from) in bytes_of(&part.file).into_iter().zip(bytes_of(&part.memory)) {
                written[to].push(memory[from]);
            }
            assert!(moved[rank as usize] == (memory, part.file.total_bytes()));
        }
        let after = file.bytes();
        assert_eq!(after.len(), written.len());
        for (offset, (byte, written)) in after.iter().zip(&written).enumerate() {
            let is_right = match written[..] {
                [] => *byte == before.get(offset).copied().unwrap_or(0),
                _ => written.contains(byte),
            };
            assert!(is_right, "byte {offset} is {byte}, not of {written:?}");
        }
        check_accesses(&scene, &file);
    }
}

#[test]
fn reads_are_those_of_a_model() {
    for seed in seeds().take(SCENES) {
        let random = &mut Random(seed);
        let scene = scene(random);
        let size = random.below(200_000);
        let file = VectorFile::new(scene.layout, random.bytes(size as usize));
        if random.one_in(2) {
            file.move_late();
        }
        let file_bytes = random.one_in(2).then_some(size);
        let read = run(&scene, &file, Direction::Read, file_bytes);

        let bytes = file.bytes();
        for (rank, part) in (0..).zip(&scene.parts) {
            let mut expected = filled(part, rank);
            let mut below = 0;
            for (from, to) in bytes_of(&part.file).into_iter().zip(bytes_of(&part.memory)) {
                expected[to] = bytes.get(from).copied().unwrap_or(0);
                below += u64::from(from < bytes.len());
            }
            assert!(read[rank as usize].0 == expected, "memory of process {rank}");
            assert_eq!(read[rank as usize].1, below, "bytes below {size} of process {rank}");
        }
        check_accesses(&scene, &file);
    }
}

#[test]
fn a_fault_reaches_every_process_and_nobody_hangs() {
    for seed in seeds().take(SCENES) {
        let random = &mut Random(seed);
        let scene = scene(random);
        let direction = *random.choose(&[Direction::Read, Direction::Write]);
        let accesses = {
            let file = VectorFile::new(scene.layout, vec![1; 100_000]);
            run(&scene, &file, direction, None);
            file.accesses().len()
        };
        if accesses == 0 {
            continue;
        }
        let file = VectorFile::new(scene.layout, vec![1; 100_000]);
        file.fail_at(random.below(accesses as u64) as usize, random.one_in(2));
        let world = World::new(&scene.nodes);
        let outcomes = world.run(|mut peers| {
            let part = &scene.parts[peers.rank() as usize];
            let mut memory = filled(part, peers.rank());
            let collective = &mut Collective::new(scene.options);
            access(collective, &mut peers, &file, direction, Ok(part), &mut memory, None)
        });
        let failed: Vec<u32> = (0..)
            .zip(&outcomes)
            .filter(|(_, outcome)| matches!(outcome, Err(CollectiveError::Own(_))))
            .map(|(rank, _)| rank)
            .collect();
        let [failed] = failed[..] else { panic!("{outcomes:?}") };
        for (rank, outcome) in (0..).zip(&outcomes).filter(|(rank, _)| *rank != failed) {
            let told = matches!(outcome, Err(CollectiveError::Other { rank, code: 5 }) if *rank == failed);
            assert!(told, "process {rank}: {outcome:?}");
        }
    }
}

/// A layout, options and part for tests of one thing.
fn plain(rank: u64) -> (Layout, Options, Part) {
    let layout = Layout::new(4096, 0, 2, 2).unwrap();
    let options = Options { buffer_bytes: 8192, ..Options::default() };
    let file = Regions::contiguous(rank * 10_000, 10_000);
    (layout, options, Part { file, memory: Regions::contiguous(0, 10_000), memory_bytes: 10_000 })
}

#[test]
fn a_process_that_gave_up_before_takes_part() {
    let (layout, options, _) = plain(0);
    let file = VectorFile::new(layout, Vec::new());
    let outcomes = World::new(&[0, 0, 1]).run(|mut peers| {
        let part = plain(peers.rank().into()).2;
        let mut memory = filled(&part, peers.rank());
        let part = if peers.rank() == 1 { Err(Fault(77)) } else { Ok(&part) };
        let collective = &mut Collective::new(options);
        access(collective, &mut peers, &file, Direction::Write, part, &mut memory, None)
    });
    assert!(matches!(outcomes[1], Err(CollectiveError::Own(Fault(77)))));
    for rank in [0, 2] {
        assert!(matches!(outcomes[rank], Err(CollectiveError::Other { rank: 1, code: 5 })));
    }
}

#[test]
fn sides_of_different_size_are_an_error_everywhere() {
    let (layout, options, _) = plain(0);
    let file = VectorFile::new(layout, Vec::new());
    let outcomes = World::new(&[0, 0]).run(|mut peers| {
        let mut part = plain(peers.rank().into()).2;
        let mut memory = filled(&part, peers.rank());
        if peers.rank() == 0 {
            part.memory = Regions::contiguous(0, 9_999);
        }
        let collective = &mut Collective::new(options);
        access(collective, &mut peers, &file, Direction::Write, Ok(&part), &mut memory, None)
    });
    assert!(matches!(outcomes[0], Err(CollectiveError::SizeMismatch { .. })));
    assert!(matches!(outcomes[1], Err(CollectiveError::Other { rank: 0, .. })));
}

#[test]
fn far_bytes_are_refused_alike() {
    let (layout, options, _) = plain(0);
    let file = VectorFile::new(layout, Vec::new());
    let outcomes = World::new(&[0, 0]).run(|mut peers| {
        let level = Level { count: 100_000, stride_bytes: 1 << 20 };
        let file_side = Regions::strided(peers.rank().into(), 1, [level]);
        let part = Part { file: file_side, memory: Regions::contiguous(0, 100_000), memory_bytes: 100_000 };
        let mut memory = filled(&part, peers.rank());
        let collective = &mut Collective::new(options);
        access(collective, &mut peers, &file, Direction::Write, Ok(&part), &mut memory, None)
    });
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, Err(CollectiveError::Sparse { bytes: 200_000, .. })))
    );
    assert!(file.accesses().is_empty());
}

#[test]
fn windows_are_used_again_and_the_rest_is_counted() {
    let layout = Layout::new(4096, 0, 4, 4).unwrap();
    let options = Options { buffer_bytes: 65536, ..Options::default() };
    let file = VectorFile::new(layout, Vec::new());
    let world = World::new(&[0; 4]);
    // 4 × 2^16 pieces of 24 bytes: 1.5 MiB for each slot, so 24 rounds of 64 KiB.
    let calls = 3;
    world.run(|mut peers| {
        let level = Level { count: 1 << 16, stride_bytes: 96 };
        let file_side = Regions::strided(24 * u64::from(peers.rank()), 24, [level]);
        let memory_bytes = 24 << 16;
        let memory = Regions::contiguous(0, memory_bytes);
        let part = Part { file: file_side, memory, memory_bytes: memory_bytes as usize };
        let mut memory = filled(&part, peers.rank());
        let mut collective = Collective::new(options);
        for _ in 0..calls {
            let outcome =
                access(&mut collective, &mut peers, &file, Direction::Write, Ok(&part), &mut memory, None);
            assert_eq!(outcome.unwrap(), memory_bytes);
        }
    });
    let (rounds, slots) = (24, 4);
    assert_eq!(file.accesses().len(), calls * rounds * slots);
    assert!(file.accesses().iter().all(|access| access.pieces == 16 && access.bytes == 65536));
    assert_eq!(world.messages(), 0, "all is in shared memory");
    // The summary, the announcements and the status; the windows once.
    assert_eq!(world.meetings(), (calls as u64 * 3, (calls * rounds + 1) as u64));
}

#[test]
fn each_message_between_nodes_has_all_bytes_of_a_round() {
    let layout = Layout::new(4096, 0, 2, 2).unwrap();
    let options = Options { buffer_bytes: 8192, ..Options::default() };
    let file = VectorFile::new(layout, Vec::new());
    let world = World::new(&[0, 1]);
    world.run(|mut peers| {
        let level = Level { count: 1 << 12, stride_bytes: 16 };
        let file_side = Regions::strided(8 * u64::from(peers.rank()), 8, [level]);
        let part = Part { file: file_side, memory: Regions::contiguous(0, 8 << 12), memory_bytes: 8 << 12 };
        let mut memory = filled(&part, peers.rank());
        let collective = &mut Collective::new(options);
        access(collective, &mut peers, &file, Direction::Write, Ok(&part), &mut memory, None).unwrap();
    });
    // 64 KiB over two slots: four rounds of 8 KiB each; each process sends to the other one's aggregator.
    assert_eq!((file.accesses().len(), world.messages()), (8, 8));
    let extent = Extent::new(0, 16 << 12);
    assert_eq!(file.bytes().len() as u64, extent.bytes);
}

/// Pieces of 3 bytes at uneven places, more than are announced, and more than one message of lists in a round.
fn long_list(rank: u64) -> Part {
    let place = |at: u64| Extent::new(at * 20 + rank * 7 + at * at % 4, 3);
    let list: Vec<Extent> = (0..40_000).map(place).collect();
    Part { file: Regions::list(list), memory: Regions::contiguous(0, 120_000), memory_bytes: 120_000 }
}

/// The number of messages of two processes with long lists.
fn messages_of_lists(nodes: [u32; 2], direction: Direction) -> u64 {
    let layout = Layout::new(1 << 20, 0, 2, 2).unwrap();
    let file = VectorFile::new(layout, Random(seed()).bytes(900_000));
    let (before, options) = (file.bytes(), Options { buffer_bytes: 1 << 20, ..Options::default() });
    let world = World::new(&nodes);
    let moved = world.run(|mut peers| {
        let part = long_list(peers.rank().into());
        let mut memory = filled(&part, peers.rank());
        let collective = &mut Collective::new(options);
        access(collective, &mut peers, &file, direction, Ok(&part), &mut memory, None).unwrap();
        memory
    });
    let after = file.bytes();
    for (rank, memory) in (0..).zip(moved) {
        let of_file: Vec<u8> = bytes_of(&long_list(rank).file).into_iter().map(|at| after[at]).collect();
        assert!(memory == of_file);
    }
    assert_eq!(before == after, direction == Direction::Read);
    world.messages()
}

#[test]
fn long_lists_are_sent_where_they_are_needed() {
    // All is in the share of slot 0, whose aggregator is process 0, and in one round. Process 1 sends lists in
    // two messages to both aggregators' processes but itself; between nodes also the bytes. Process 0 does so
    // with the other aggregator, which has nothing in this round but cannot know.
    assert_eq!(messages_of_lists([0, 0], Direction::Write), 3);
    assert_eq!(messages_of_lists([0, 1], Direction::Write), 5);
    // What is read is a third of the span: lists are needed too.
    assert_eq!(messages_of_lists([0, 1], Direction::Read), 5);
    assert_eq!(messages_of_lists([0, 0], Direction::Read), 3);
}

#[test]
fn lists_are_not_sent_to_near_aggregators_that_read_all() {
    let layout = Layout::new(4096, 0, 2, 2).unwrap();
    let file = VectorFile::new(layout, Random(seed()).bytes(200_000));
    let world = World::new(&[0, 0]);
    world.run(|mut peers| {
        let rank = u64::from(peers.rank());
        let list: Vec<Extent> = (0..20_000).map(|at| Extent::new(at * 10 + rank * 5, 4 - at % 2)).collect();
        let file_side = Regions::list(list);
        let memory = Regions::contiguous(0, file_side.total_bytes());
        let part = Part { memory_bytes: file_side.total_bytes() as usize, file: file_side, memory };
        let mut memory = filled(&part, peers.rank());
        let collective = &mut Collective::new(Options::default());
        access(collective, &mut peers, &file, Direction::Read, Ok(&part), &mut memory, None).unwrap();
        let bytes = file.bytes();
        assert!(memory == bytes_of(&part.file).into_iter().map(|at| bytes[at]).collect::<Vec<u8>>());
    });
    assert_eq!(world.messages(), 0);
}

#[test]
fn after_a_fault_an_aggregator_begins_nothing() {
    for late in [false, true] {
        let (layout, options, _) = plain(0);
        let file = VectorFile::new(layout, Vec::new());
        file.fail_at(0, late);
        World::new(&[0]).run(|mut peers| {
            let file_side = Regions::contiguous(0, 1 << 20);
            let part = Part { file: file_side.clone(), memory: file_side, memory_bytes: 1 << 20 };
            let mut memory = filled(&part, 0);
            let collective = &mut Collective::new(options);
            let outcome =
                access(collective, &mut peers, &file, Direction::Write, Ok(&part), &mut memory, None);
            assert!(matches!(outcome, Err(CollectiveError::Own(Fault(0)))));
        });
        // One process serves both slots, and waits for the first round before it begins the second.
        assert_eq!(file.accesses().len(), if late { 2 } else { 1 });
    }
}
