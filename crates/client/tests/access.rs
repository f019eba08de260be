//! Every method and movement, against real servers and a model of one byte after the other.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use weft_client::{
    AccessOptions, Client, Direction, File, Method, Movement, OpenOptions, Sieving, Transport,
};
use weft_layout::{Extent, Level, Regions};
use weft_test_cluster::{Cluster, pattern};

const STRIP_BYTES: u32 = 4096;
const TRANSPORTS: [Transport; 3] = [Transport::Tcp, Transport::Shm, Transport::Rdma];
const METHODS: [Method; 3] = [Method::List, Method::Multiple, Method::Sieve];
const MOVEMENTS: [Movement; 4] = [Movement::Auto, Movement::Multiple, Movement::Pack, Movement::Direct];

fn every_access() -> Vec<AccessOptions> {
    let mut all = Vec::new();
    for method in METHODS {
        for movement in MOVEMENTS {
            all.push(AccessOptions { method, movement, sieve_bytes: 10_000, ..AccessOptions::default() });
        }
    }
    all
}

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).truncate(true)
}

/// Pieces with these lengths and gaps, in an order that `order` makes.
fn spread(pieces: &[(u64, u64)], order: u64) -> Vec<Extent> {
    let mut end = 0;
    let mut extents: Vec<Extent> = pieces
        .iter()
        .map(|(gap, bytes)| {
            let extent = Extent::new(end + gap, *bytes);
            end = extent.end();
            extent
        })
        .collect();
    if order > 0 {
        extents
            .sort_by_key(|extent| extent.offset.wrapping_mul(order.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 7);
    }
    extents
}

/// Memory of `bytes` bytes in pieces of about `piece` bytes with gaps, and how much room it takes.
fn memory_in_pieces(bytes: u64, piece: u64, gap: u64, order: u64) -> (Regions, usize) {
    let mut left = bytes;
    let mut pieces = Vec::new();
    while left > 0 {
        let here = (piece + pieces.len() as u64 % 3).min(left);
        pieces.push(((gap + pieces.len() as u64) % (gap + 1), here));
        left -= here;
    }
    let extents = spread(&pieces, order);
    let end = extents.iter().map(|extent| extent.end()).max().unwrap_or(0);
    (Regions::list(extents), end as usize)
}

fn offsets(regions: &Regions) -> impl Iterator<Item = usize> {
    regions.extents().flat_map(|extent| extent.offset..extent.end()).map(|offset| offset as usize)
}

#[derive(Debug, Clone)]
struct Case {
    access: AccessOptions,
    file_bytes: usize,
    write: Vec<Extent>,
    read: Vec<Extent>,
    memory: (u64, u64, u64),
}

fn cases() -> impl Strategy<Value = Case> {
    let pieces = || (prop::collection::vec((0u64..3000, 0u64..600), 1..60), 0u64..3);
    let read = prop::collection::vec((0u64..70_000, 0u64..2000), 1..40);
    let access = prop::sample::select(every_access());
    let sieving = prop::sample::select(vec![Sieving::Auto, Sieving::Each]);
    (access, sieving, 0usize..60_000, pieces(), read, (1u64..700, 0u64..50, 0u64..3)).prop_map(
        |(access, sieving, file_bytes, (pieces, order), read, memory)| Case {
            access: AccessOptions { sieving, ..access },
            file_bytes,
            write: spread(&pieces, order),
            read: read.into_iter().map(|(offset, bytes)| Extent::new(offset, bytes)).collect(),
            memory,
        },
    )
}

fn write(file: &File, memory: &Regions, source: &[u8], regions: &Regions, pending: bool) {
    // SAFETY: the regions lie within the buffer, which lives until the end of the wait.
    let written = unsafe {
        match pending {
            true => file.start_write_raw(source.as_ptr(), memory, regions).wait(),
            false => file.write_raw(source.as_ptr(), memory, regions),
        }
    };
    assert_eq!(written.unwrap(), regions.total_bytes());
}

fn read(file: &File, memory: &Regions, target: &mut [u8], regions: &Regions, pending: bool) -> u64 {
    // SAFETY: the regions lie within the buffer, which lives until the end of the wait.
    let read = unsafe {
        match pending {
            true => file.start_read_raw(target.as_mut_ptr(), memory, regions).wait(),
            false => file.read_raw(target.as_mut_ptr(), memory, regions),
        }
    };
    read.unwrap()
}

fn run(client: &Client, case: &Case) {
    let file = client.open("/model", &create().access(case.access)).unwrap();
    assert_eq!(file.access(), case.access);
    let mut model = pattern(1, case.file_bytes);
    file.write_at(&model, 0).unwrap();
    let (piece, gap, order) = case.memory;
    let pending = order == 1;

    let regions = Regions::list(case.write.clone());
    let (memory, room) = memory_in_pieces(regions.total_bytes(), piece, gap, order);
    let source = pattern(2, room);
    write(&file, &memory, &source, &regions, pending);
    let end = regions.span().map_or(0, |span| span.end() as usize);
    model.resize(model.len().max(end), 0);
    offsets(&regions).zip(offsets(&memory)).for_each(|(to, from)| model[to] = source[from]);
    let mut back = vec![9; model.len() + 1];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), model.len());
    assert!(back[..model.len()] == model, "after the write");

    let regions = Regions::list(case.read.clone());
    let (memory, room) = memory_in_pieces(regions.total_bytes(), piece, gap, order);
    let mut target = vec![9; room];
    let below_end = read(&file, &memory, &mut target, &regions, pending);
    assert_eq!(below_end as usize, offsets(&regions).filter(|at| *at < model.len()).count());
    let mut expected = vec![9; room];
    offsets(&regions).zip(offsets(&memory)).for_each(|(from, to)| {
        expected[to] = model.get(from).copied().unwrap_or(0);
    });
    assert!(target == expected, "what was read");
}

#[test]
fn every_method_and_movement_moves_the_same_bytes() {
    let cluster = Cluster::start(3, STRIP_BYTES);
    for transport in TRANSPORTS {
        let client = cluster.client(transport);
        let mut runner = TestRunner::new(weft_test_random::cases(150));
        let result = runner.run(&cases(), |case| {
            run(&client, &case);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{transport}: {error}"));
    }
}

#[test]
fn patterns_and_large_pieces_move_by_every_method_too() {
    let cluster = Cluster::start(3, STRIP_BYTES);
    for transport in TRANSPORTS {
        let client = cluster.client(transport);
        let file = client.open("/patterns", &create()).unwrap();
        let data = pattern(3, 1_500_000);
        file.write_at(&data, 0).unwrap();
        let rows = Regions::strided(700, 3000, [Level { count: 40, stride_bytes: 30_011 }]);
        let columns = Regions::strided(10, 40, [Level { count: 3000, stride_bytes: 100 }]);
        for access in every_access() {
            file.set_access(access);
            for (regions, memory) in [(&rows, &columns), (&columns, &rows), (&rows, &rows)] {
                let mut target = vec![9; 1_300_000];
                assert_eq!(read(&file, memory, &mut target, regions, false), 120_000, "{access:?}");
                let mut expected = vec![9; target.len()];
                offsets(regions).zip(offsets(memory)).for_each(|(from, to)| expected[to] = data[from]);
                assert!(target == expected, "{access:?}");
            }
            let (memory, source) = (&columns, pattern(4, 320_000));
            write(&file, memory, &source, &rows, false);
            let mut model = data.clone();
            offsets(&rows).zip(offsets(memory)).for_each(|(to, from)| model[to] = source[from]);
            let mut back = vec![0; data.len()];
            file.read_at(&mut back, 0).unwrap();
            assert!(back == model, "{access:?}");
            file.write_at(&data, 0).unwrap();
        }
    }
}

#[test]
fn statistics_tell_methods_and_movements_apart() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    for transport in TRANSPORTS {
        let client = cluster.client(transport);
        let cost = |access: AccessOptions, file: &Regions, memory: &Regions| {
            let handle = client.open("/stats", &create().access(access)).unwrap();
            handle.write_at(&[1; 100_000], 0).unwrap();
            let before = handle.io_stats();
            let mut target = vec![0; 100_000];
            read(&handle, memory, &mut target, file, false);
            let after = handle.io_stats();
            assert!(after.request_bytes - before.request_bytes >= 64 * (after.requests - before.requests));
            assert!(after.busy_ns > before.busy_ns && after.accessed_bytes - before.accessed_bytes >= 800);
            let reads = after.server_reads - before.server_reads;
            (after.requests - before.requests, after.moved_bytes - before.moved_bytes, reads)
        };
        let sieving = Sieving::Each;
        let with = |method, movement| AccessOptions { method, movement, sieving, ..AccessOptions::default() };
        // 20 pieces of the file, each within a strip; memory in 10 pieces of 80 bytes.
        let file = Regions::strided(0, 40, [Level { count: 20, stride_bytes: 4096 }]);
        let memory = Regions::strided(0, 80, [Level { count: 10, stride_bytes: 1000 }]);
        let direct = Movement::Direct;
        assert_eq!(cost(with(Method::List, direct), &file, &memory), (2, 800, 20));
        assert_eq!(cost(with(Method::List, Movement::Pack), &file, &memory), (2, 800, 20));
        assert_eq!(cost(with(Method::Multiple, direct), &file, &memory), (20, 800, 20));
        assert_eq!(
            cost(with(Method::List, Movement::Multiple), &file, &memory),
            (20, 800, 20),
            "10 pieces on 2 servers"
        );
        let (requests, moved, _) = cost(with(Method::Sieve, direct), &file, &memory);
        assert_eq!((requests, moved), (2, 19 * 4096 + 40));
        let whole = Regions::contiguous(0, 800);
        assert_eq!(cost(with(Method::List, Movement::Multiple), &whole, &memory).0, 10);
        for method in METHODS {
            for movement in MOVEMENTS {
                let contiguous = Regions::contiguous(0, 8192);
                let (requests, moved, _) = cost(with(method, movement), &contiguous, &contiguous);
                assert_eq!((requests, moved), (2, 8192));
            }
        }
    }
}

#[test]
fn a_write_by_the_sieve_leaves_what_lies_between_alone() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    for transport in TRANSPORTS {
        let client = cluster.client(transport);
        let access = AccessOptions { method: Method::Sieve, ..AccessOptions::default() };
        let file = client.open("/between", &create().access(access)).unwrap();
        file.write_at(&[1; 100_000], 0).unwrap();
        let other = client.open("/between", &OpenOptions::new().read(true).write(true)).unwrap();
        let even = Regions::strided(0, 50, [Level { count: 1000, stride_bytes: 100 }]);
        let odd = Regions::strided(50, 50, [Level { count: 1000, stride_bytes: 100 }]);
        let bytes = Regions::contiguous(0, 50_000);
        std::thread::scope(|scope| {
            scope.spawn(|| write(&other, &bytes, &[3; 50_000], &odd, false));
            write(&file, &bytes, &[2; 50_000], &even, false);
        });
        let mut back = vec![0; 100_000];
        file.read_at(&mut back, 0).unwrap();
        assert!(back.iter().enumerate().all(|(at, byte)| *byte == if at % 100 < 50 { 2 } else { 3 }));
        assert!(file.io_stats().requests > 1000);
    }
}

#[test]
fn where_pieces_overlap_each_byte_is_one_of_theirs() {
    let cluster = Cluster::start(3, STRIP_BYTES);
    for transport in TRANSPORTS {
        let client = cluster.client(transport);
        let file = client.open("/overlap", &create()).unwrap();
        for access in every_access() {
            file.set_access(access);
            // Extent n is 3,000 bytes at 1,000 n, of the byte n: byte b of the file is of one of three extents.
            let overlapping =
                Regions::list((0..200).map(|n| Extent::new(n * 1000, 3000)).collect::<Vec<_>>());
            let source: Vec<u8> = (0..200u8).flat_map(|n| [n; 3000]).collect();
            write(&file, &Regions::contiguous(0, 600_000), &source, &overlapping, false);
            let mut back = vec![0; 202_000];
            assert_eq!(file.read_at(&mut back, 0).unwrap(), back.len());
            let is_one = |at: usize, byte: u8| {
                (at / 1000).saturating_sub(2) <= byte as usize && byte as usize <= at / 1000
            };
            assert!(back.iter().enumerate().all(|(at, byte)| is_one(at, *byte)), "write: {access:?}");

            file.write_at(&source, 0).unwrap();
            let mut target = vec![0; 202_000];
            read(&file, &overlapping, &mut target, &Regions::contiguous(0, 600_000), false);
            assert!(target.iter().enumerate().all(|(at, byte)| is_one(at, *byte)), "read: {access:?}");
            file.truncate(0).unwrap();
        }
    }
}

#[test]
fn memory_may_be_said_to_be_part_of_allocations() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    for transport in TRANSPORTS {
        let client = cluster.client(transport);
        let file = client.open("/parents", &create()).unwrap();
        let data = pattern(5, 60_000);
        let rows = Regions::strided(100, 3000, [Level { count: 20, stride_bytes: 4000 }]);
        let regions = Regions::list([Extent::new(30_000, 30_000), Extent::new(0, 30_000)]);
        let array = [Extent::new(0, 80_000)];
        let mut memory = vec![0; 80_000];
        offsets(&rows).zip(&data).for_each(|(to, byte)| memory[to] = *byte);
        // SAFETY: the regions lie within the buffer, which lives until the end of each wait.
        unsafe {
            assert_eq!(file.write_raw_in(memory.as_ptr(), &rows, &array, &regions).unwrap(), 60_000);
            let start = |direction, base| {
                file.start_raw(direction, base as u64, rows.clone(), Some(&array), regions.clone()).wait()
            };
            start(Direction::Write, memory.as_mut_ptr()).unwrap();
            for pending in [false, true] {
                let mut target = vec![0; 80_000];
                let base = target.as_mut_ptr();
                let read = match pending {
                    true => start(Direction::Read, base),
                    false => file.read_raw_in(base, &rows, &array, &regions),
                };
                assert_eq!(read.unwrap(), 60_000);
                assert!(target == memory);
            }
            let error =
                file.write_raw_in(memory.as_ptr(), &rows, &[Extent::new(0, 70_000)], &regions).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL);
            assert!(
                error.to_string().contains("/parents")
                    && error.to_string().contains("none of the 1 allocations"),
                "{error}"
            );
        }
    }
}
