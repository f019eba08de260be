//! One suite over every transport: tcp, shared memory that the server reaches, shared memory that is staged, and in one
//! process. A server thread obeys small commands; the client checks every byte.

mod common;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use common::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use weft_transport::*;
use weft_wire::messages::MemoryRun;
use weft_wire::{Op, Status};

fn echo<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    for bytes in [0usize, 100, 4000, 70_000, 127 << 10] {
        let body = Command { verb: Verb::Echo, extra: vec![7; bytes], ..Command::default() }.to_bytes();
        let done = call(&mut link, &body, Bulk::None);
        assert_eq!((done.header.status, done.header.op), (Status::Ok, Op::Ping));
        assert_eq!(done.body, body);
    }
}

fn sizes_around_every_threshold<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    for bytes in [0, 1, 4095, 4096, 16 << 10, (16 << 10) + 1, 100_000, (1 << 20) - 1, (1 << 20) + 1] {
        let mut memory = TestMemory::new(&[(3, bytes, 1)]);
        round_trip(&mut link, &mut memory, 1 << 20, bytes as u64);
    }
}

fn inline_replies<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    for bytes in [1, 500, 16 << 10] {
        let memory = TestMemory::new(&[(5, bytes / 2, 1), (9, bytes - bytes / 2, 1)]);
        let command = Command { verb: Verb::ReadInline, bytes: bytes as u64, seed: 3, ..Command::default() };
        let done = call(&mut link, &command.to_bytes(), Bulk::put(memory.runs()));
        assert_eq!(done.header.status, Status::Ok);
        assert_eq!(done.delivered_bytes, bytes as u64);
        memory.check(3, bytes as u64);
    }
}

fn memory_behind_what_was_read_stays_as_it_was<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    for bytes in [100usize, 4104, 60_000, 300_000] {
        for filled in [0, bytes - 1] {
            // Buffers on the way have other data.
            round_trip(&mut link, &mut TestMemory::new(&[(7, bytes, 1)]), 1 << 20, 5);
            for verb in [Verb::Read, Verb::ReadHandingOver, Verb::ReadInline] {
                // Handlers put what goes into memory that was described.
                if verb == Verb::ReadInline && bytes > 16 << 10 {
                    continue;
                }
                let mut memory = TestMemory::new(&[(7, bytes / 3, 1), (900, bytes - bytes / 3, 1)]);
                memory.fill(8);
                let filled = filled as u64;
                let command =
                    Command { verb, bytes: filled, unit_bytes: 1 << 20, seed: 3, ..Command::default() };
                let done = call(&mut link, &command.to_bytes(), Bulk::put(memory.runs()));
                assert_eq!((done.header.status, done.delivered_bytes), (Status::Ok, filled), "{verb:?}");
                memory.check(3, filled);
                memory.check_behind(8, filled);
            }
        }
    }
}

fn the_last_unit_is_handed_over<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    for bytes in [1usize, 4096, 60_000, 300_000] {
        for (verb, status) in [(Verb::HandOverAndFail, Status::NoSpace), (Verb::ReadHandingOver, Status::Ok)]
        {
            let memory = TestMemory::new(&[(7, bytes / 3, 1), (900, bytes - bytes / 3, 1)]);
            let bytes = bytes as u64;
            let command = Command { verb, bytes, unit_bytes: 70_000, seed: bytes, ..Command::default() };
            let done = call(&mut link, &command.to_bytes(), Bulk::put(memory.runs()));
            assert_eq!(done.header.status, status, "{}", String::from_utf8_lossy(&done.body));
            memory.check_untouched_outside();
            if status == Status::Ok {
                assert_eq!(done.delivered_bytes, bytes);
                memory.check(bytes, bytes);
            } else {
                assert_eq!(done.body, b"Ok(())");
            }
        }
    }
}

fn big_transfers<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    let bytes = F::BIG_BYTES.min(link.bulk_bytes_max()) as usize;
    let mut memory = TestMemory::new(&[(0, bytes, 1)]);
    round_trip(&mut link, &mut memory, 1 << 20, 9);
}

fn any_shape<F: Fixture>() {
    let server = F::start();
    let link = RefCell::new(server.connect());
    let shape = proptest::collection::vec((0usize..5000, 1usize..9000, 1u64..12), 1..40);
    let mut runner = TestRunner::new(weft_test_random::cases(16));
    runner
        .run(&(shape, 100u32..200_000, any::<u8>()), |(shape, unit_bytes, seed)| {
            let mut memory = TestMemory::new(&shape);
            round_trip(&mut *link.borrow_mut(), &mut memory, unit_bytes, seed.into());
            Ok(())
        })
        .unwrap();
}

fn many_small_pieces<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    let mut memory = TestMemory::new(&[(24, 24, 40_000)]);
    round_trip(&mut link, &mut memory, 300_000, 77);
}

fn many_in_flight<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    link.set_credits(16);
    let bytes = 600_000usize;
    let mut memories: Vec<TestMemory> = (0..48).map(|_| TestMemory::new(&[(100, bytes / 4, 4)])).collect();
    let requests = memories.iter_mut().enumerate().map(|(at, memory)| {
        let verb = if at % 2 == 0 { Verb::Read } else { Verb::Write };
        let seed = at as u64;
        if verb == Verb::Write {
            memory.fill(seed);
        }
        let runs = memory.runs();
        let bulk = if verb == Verb::Read { Bulk::put(runs) } else { Bulk::get(runs) };
        // Odd delays make replies overtake each other.
        let delay_ms = (at * 7 % 5) as u32;
        let unit_bytes = 65_536;
        let command = Command {
            verb,
            bytes: bytes as u64,
            unit_bytes,
            seed,
            delay_ms,
            yields: true,
            ..Command::default()
        };
        (command.to_bytes(), bulk)
    });
    let done = call_many(&mut link, requests.collect());
    assert!(done.iter().all(|done| done.header.status == Status::Ok), "{done:?}");
    assert_eq!(link.credits(), 16);
    for (at, memory) in memories.iter().enumerate() {
        memory.check(at as u64, bytes as u64);
    }
}

fn credits_bound_the_requests_under_way<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    link.set_credits(2);
    let slow = Command { verb: Verb::Echo, delay_ms: 30, ..Command::default() }.to_bytes();
    for id in 0..2 {
        submit(&mut link, 900 + id, &slow, Bulk::None).unwrap();
    }
    assert!(matches!(submit(&mut link, 902, &slow, Bulk::None), Err(LinkError::NoCredit { .. })));
    wait_all(&mut link, 2);
    assert_eq!(link.credits(), 2);
    submit(&mut link, 903, &slow, Bulk::None).unwrap();
    assert!(matches!(submit(&mut link, 903, &slow, Bulk::None), Err(LinkError::Request { .. })));
    wait_all(&mut link, 1);
}

fn a_handler_that_leaves_data_unread_harms_nothing<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    let mut memory = TestMemory::new(&[(0, 1 << 20, 1)]);
    for verb in [Verb::Ignore, Verb::Discard, Verb::ReadHalf] {
        memory.fill(1);
        let command = Command { verb, bytes: 1 << 20, unit_bytes: 100_000, seed: 1, ..Command::default() };
        let done = call(&mut link, &command.to_bytes(), Bulk::get(memory.runs()));
        assert_eq!(done.header.status, Status::NoSpace);
        round_trip(&mut link, &mut memory, 50_000, 4);
    }
}

fn bad_memory_is_refused_and_the_link_lives<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    let run = |segment, address, bytes| MemoryRun { segment, address, bytes, stride_bytes: 0, count: 1 };
    let echo = Command { verb: Verb::Echo, ..Command::default() }.to_bytes();
    for (runs, fits) in [
        (vec![run(0, u64::MAX, 2)], false),
        (vec![run(77, 0, 20_000)], false),
        (vec![MemoryRun { segment: 0, address: 0, bytes: 1, stride_bytes: 1 << 62, count: 1 << 40 }], false),
        (vec![], true),
    ] {
        assert_eq!(submit(&mut link, 5, &echo, Bulk::put(runs)).is_ok(), fits);
    }
    wait_all(&mut link, 1);
    call(&mut link, &echo, Bulk::None);
}

fn more_than_was_asked_for_does_not_overrun<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    let memory = TestMemory::new(&[(10, 100_000, 1)]);
    let command =
        Command { verb: Verb::Read, bytes: 150_000, unit_bytes: 60_000, seed: 6, ..Command::default() };
    submit(&mut link, 1, &command.to_bytes(), Bulk::put(memory.runs())).unwrap();
    // A stream is cut by the client; where the server reaches the memory itself it refuses to go beyond it.
    match try_wait(&mut link, 1) {
        Ok(done) => assert_ne!(done[0].header.status, Status::Ok),
        Err(error) => assert!(error.is_fatal()),
    }
    memory.check_untouched_outside();
}

fn segments<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    let segment = Segment::new(4 << 20).unwrap();
    link.add_segment(&segment).unwrap();
    let nothing = Command { verb: Verb::Echo, ..Command::default() }.to_bytes();
    // By the time this is answered the server has the segment.
    call(&mut link, &nothing, Bulk::None);
    let base = segment.base().as_ptr() as u64;
    let strided =
        |segment, address| vec![MemoryRun { segment, address, bytes: 3000, stride_bytes: 5000, count: 600 }];
    for (runs, start, seed) in [(strided(0, base + 8), 8, 1u64), (strided(segment.id(), 16), 16, 2)] {
        read_and_write_segment::<F>(&mut link, &segment, runs, start, seed);
    }
    let beyond = MemoryRun { segment: segment.id(), address: 4 << 20, bytes: 1, stride_bytes: 0, count: 1 };
    assert!(submit(&mut link, 50, &nothing, Bulk::put(vec![beyond])).is_err());
    link.drop_segment(segment.id()).unwrap();
    assert!(submit(&mut link, 51, &nothing, Bulk::put(strided(segment.id(), 0))).is_err());
    call(&mut link, &nothing, Bulk::None);
}

/// 600 pieces of 3,000 bytes, 5,000 apart.
fn read_and_write_segment<F: Fixture>(
    link: &mut F::Link,
    segment: &Segment,
    runs: MemoryRuns,
    start: usize,
    seed: u64,
) {
    let bytes = 3000 * 600;
    // SAFETY: the segment is this test's alone, and nothing is under way.
    let memory = unsafe { std::slice::from_raw_parts_mut(segment.base().as_ptr(), segment.bytes()) };
    memory.fill(0xee);
    let verb = if F::REACHES_SEGMENTS { Verb::ReadLocal } else { Verb::Read };
    let command = Command { verb, bytes, unit_bytes: 1 << 20, seed, ..Command::default() };
    let done = call(link, &command.to_bytes(), Bulk::put(runs.clone()));
    assert_eq!(done.header.status, Status::Ok, "{}", String::from_utf8_lossy(&done.body));
    assert_eq!(done.delivered_bytes, bytes);
    for piece in 0..600usize {
        let at = start + piece * 5000;
        for byte in 0..3000 {
            assert_eq!(memory[at + byte], pattern(seed, (piece * 3000 + byte) as u64));
        }
        assert_eq!(memory[at + 3000], 0xee);
    }
    for verb in [Verb::Write, if F::REACHES_SEGMENTS { Verb::WriteLocal } else { Verb::Write }] {
        let command = Command { verb, bytes, unit_bytes: 1 << 20, seed, ..Command::default() };
        let done = call(link, &command.to_bytes(), Bulk::get(runs.clone()));
        assert_eq!(done.header.status, Status::Ok, "{}", String::from_utf8_lossy(&done.body));
    }
}

fn files_and_mapped_pages<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    let bytes = 1_500_000usize.min(link.bulk_bytes_max() as usize);
    for (verb, is_put) in [(Verb::ReadFile, true), (Verb::ReadMapped, true), (Verb::WriteMapped, false)] {
        for small in [10_000, bytes] {
            let mut memory = TestMemory::new(&[(10, small / 10, 10)]);
            let command = Command { verb, bytes: small as u64, seed: 8, ..Command::default() };
            if !is_put {
                memory.fill(8);
            }
            let bulk = if is_put { Bulk::put(memory.runs()) } else { Bulk::get(memory.runs()) };
            let done = call(&mut link, &command.to_bytes(), bulk);
            assert_eq!(done.header.status, Status::Ok, "{verb:?} {}", String::from_utf8_lossy(&done.body));
            memory.check(8, small as u64);
        }
    }
}

fn a_server_that_vanishes_is_noticed<F: Fixture>() {
    let server = F::start();
    for verb in [Verb::VanishInPut, Verb::VanishInGet] {
        let mut link = server.connect();
        let mut memory = TestMemory::new(&[(0, 1 << 20, 1)]);
        memory.fill(1);
        let command = Command { verb, bytes: 1 << 20, unit_bytes: 100_000, seed: 1, ..Command::default() };
        let bulk =
            if verb == Verb::VanishInPut { Bulk::put(memory.runs()) } else { Bulk::get(memory.runs()) };
        submit(&mut link, 1, &command.to_bytes(), bulk).unwrap();
        let begin = Instant::now();
        let error = try_wait(&mut link, 1).unwrap_err();
        assert!(error.is_fatal(), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(2));
        assert!(error.to_string().contains("server"), "{error}");
        assert!(submit(&mut link, 2, &command.to_bytes(), Bulk::None).is_err());
    }
}

fn a_client_that_vanishes_gets_its_memory_back<F: Fixture>() {
    let server = F::start();
    for verb in [Verb::Read, Verb::Write] {
        let mut link = server.connect();
        let mut memory = TestMemory::new(&[(0, 2 << 20, 1)]);
        memory.fill(1);
        let command =
            Command { verb, bytes: 2 << 20, unit_bytes: 4000, seed: 2, yields: true, ..Command::default() };
        let bulk = if verb == Verb::Read { Bulk::put(memory.runs()) } else { Bulk::get(memory.runs()) };
        submit(&mut link, 1, &command.to_bytes(), bulk).unwrap();
        let mut done = Vec::new();
        link.progress(&mut done).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        drop(link);
        memory.fill(9);
        std::thread::sleep(Duration::from_millis(30));
        memory.check(9, 2 << 20);
        // Others are still served.
        let mut other = server.connect();
        round_trip(&mut other, &mut memory, 1 << 20, 3);
    }
}

fn nothing_is_taken_before_the_proof<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect_unproven();
    let memory = TestMemory::new(&[(0, 100, 1)]);
    let command = Command { verb: Verb::Echo, ..Command::default() }.to_bytes();
    submit(&mut link, 1, &command, Bulk::get(memory.runs())).unwrap();
    match try_wait(&mut link, 1) {
        Ok(done) => assert_eq!(done[0].header.status, Status::TooBig),
        Err(error) => assert!(error.is_fatal()),
    }
}

/// Two hosts, which tell each other things by files in `$WEFT_TEST_SHARE`.
mod another_host {
    use super::*;
    use std::net::SocketAddr;
    use std::path::PathBuf;
    use weft_transport::registration::RegistrationOptions;
    use weft_verbs::RdmaCore;

    fn place(name: &str) -> PathBuf {
        let share =
            std::env::var_os("WEFT_TEST_SHARE").expect("WEFT_TEST_SHARE is a directory of both hosts");
        PathBuf::from(share).join(name)
    }

    /// Longest time that one host waits for the other, which may have to boot.
    const BOOT_PATIENCE: Duration = Duration::from_secs(240);
    /// Longest time of the whole suite.
    const SUITE_PATIENCE: Duration = Duration::from_secs(1800);

    fn hear(name: &str, patience: Duration) -> String {
        let begin = Instant::now();
        loop {
            match std::fs::read_to_string(place(name)) {
                Ok(text) if text.ends_with('\n') => return text.trim().to_string(),
                _ => assert!(begin.elapsed() < patience, "the other host does not say {name}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn say(name: &str, text: &str) {
        std::fs::write(place(name), format!("{text}\n")).unwrap();
    }

    /// Says how it ended, also where it fails.
    struct Over;

    impl Drop for Over {
        fn drop(&mut self) {
            say("lend-over", if std::thread::panicking() { "badly" } else { "well" });
        }
    }

    #[test]
    #[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
    fn is_served_and_lent_memory() {
        let server = Verbs::<Real, 8>::start();
        say("lend-address", &server.address.to_string());
        let over = hear("lend-over", BOOT_PATIENCE);
        assert_eq!(over, "well", "{:?}", server.server.ends.lock().unwrap());
    }

    /// Over one connection, which what is lost on the way must not end.
    #[test]
    #[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
    fn lends_memory() {
        let over = Over;
        let address = hear("lend-address", BOOT_PATIENCE).parse().unwrap();
        let client = VerbsClient::new(RdmaCore::load().unwrap(), RegistrationOptions::default());
        let mut link = client.connect(address, &Verbs::<Real, 8>::options(), PATIENCE).unwrap();
        assert_eq!(call(&mut link, b"prove", Bulk::None).header.status, Status::Ok);
        let rounds = std::env::var("WEFT_TEST_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
        for round in 0..rounds {
            for (gap, piece, count) in
                [(1024, 1024, 768), (9000, 3072, 350), (40_000, 30_000, 30), (8, 100, 2000)]
            {
                let mut memory = TestMemory::new(&[(gap, piece, count)]);
                round_trip(&mut link, &mut memory, 1 << 20, round);
            }
        }
        let status = client.status();
        assert_eq!(status.devices[0].transfers.lent, 8 * rounds);
        eprintln!("{:?}", status.devices[0].counts);
        drop(over);
    }

    /// A server of the other host. `MECHANISM` as for [`Verbs`].
    pub struct Far<const MECHANISM: u8> {
        client: VerbsClient<RdmaCore>,
        address: SocketAddr,
    }

    impl<const MECHANISM: u8> Fixture for Far<MECHANISM> {
        type Link = VerbsLink<RdmaCore>;
        // What is lost is sent again after a while only.
        const BIG_BYTES: u64 = 4 << 20;

        fn start() -> Self {
            let address = hear("suite-address", BOOT_PATIENCE).parse().unwrap();
            let client = VerbsClient::new(RdmaCore::load().unwrap(), RegistrationOptions::default());
            Far { client, address }
        }

        fn connect_unproven(&self) -> VerbsLink<RdmaCore> {
            self.client.connect(self.address, &Verbs::<Real, MECHANISM>::options(), PATIENCE).unwrap()
        }
    }

    /// Until the other host says what `$WEFT_TEST_UNTIL` names.
    #[test]
    #[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
    fn is_served_the_suite() {
        let until = std::env::var("WEFT_TEST_UNTIL").unwrap();
        let server = Verbs::<Real, 0>::start();
        say("suite-address", &server.address.to_string());
        hear(&until, SUITE_PATIENCE);
        eprintln!("{:?}", server.server.ends.lock().unwrap());
    }
}

macro_rules! suite {
    ($($(#[$attribute:meta])* $name:ident: $fixture:ty;)*) => { $(mod $name {
        suite!(@tests [$(#[$attribute])*] $fixture: echo sizes_around_every_threshold inline_replies
            memory_behind_what_was_read_stays_as_it_was the_last_unit_is_handed_over big_transfers any_shape many_small_pieces many_in_flight
            credits_bound_the_requests_under_way a_handler_that_leaves_data_unread_harms_nothing
            bad_memory_is_refused_and_the_link_lives more_than_was_asked_for_does_not_overrun segments
            files_and_mapped_pages a_server_that_vanishes_is_noticed a_client_that_vanishes_gets_its_memory_back
            nothing_is_taken_before_the_proof);
    })* };
    (@tests $attributes:tt $fixture:ty: $($test:ident)*) => { $(suite!(@test $attributes $fixture: $test);)* };
    (@test [$(#[$attribute:meta])*] $fixture:ty: $test:ident) => {
        #[test]
        $(#[$attribute])*
        fn $test() {
            super::$test::<$fixture>();
        }
    };
}

suite! {
    tcp: crate::common::Tcp;
    shm_direct: crate::common::Shm<false>;
    shm_staged: crate::common::Shm<true>;
    memory: crate::common::InProcess;
    memory_lending: crate::common::Lending;
    verbs: crate::common::Verbs<crate::common::Pretended, 0>;
    verbs_inline: crate::common::Verbs<crate::common::Pretended, 1>;
    verbs_fast: crate::common::Verbs<crate::common::Pretended, 2>;
    verbs_remote: crate::common::Verbs<crate::common::Pretended, 3>;
    verbs_shuffled: crate::common::Verbs<crate::common::Shuffled, 0>;
    verbs_without_windows: crate::common::Verbs<crate::common::Pretended, 4>;
    verbs_remote_without_windows: crate::common::Verbs<crate::common::Pretended, 7>;
    verbs_shuffled_remote: crate::common::Verbs<crate::common::Shuffled, 3>;
    verbs_shuffled_without_windows: crate::common::Verbs<crate::common::Shuffled, 7>;
    verbs_lend: crate::common::Verbs<crate::common::Pretended, 8>;
    verbs_shuffled_lend: crate::common::Verbs<crate::common::Shuffled, 8>;
    verbs_binds_alone: crate::common::Verbs<crate::common::BindsAlone, 3>;
    verbs_binds_alone_lend: crate::common::Verbs<crate::common::BindsAlone, 8>;
    #[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
    rdma: crate::common::Verbs<crate::common::Real, 0>;
    #[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
    rdma_inline: crate::common::Verbs<crate::common::Real, 5>;
    #[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
    rdma_fast: crate::common::Verbs<crate::common::Real, 6>;
    #[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
    rdma_remote: crate::common::Verbs<crate::common::Real, 3>;
    #[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
    rdma_lend: crate::common::Verbs<crate::common::Real, 8>;
    #[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
    another_host_rdma: crate::another_host::Far<0>;
    #[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
    another_host_rdma_inline: crate::another_host::Far<5>;
    #[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
    another_host_rdma_fast: crate::another_host::Far<6>;
    #[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
    another_host_rdma_remote: crate::another_host::Far<3>;
    #[ignore = "needs two hosts with RDMA adapters; tests/rdma.rs runs it in guests"]
    another_host_rdma_lend: crate::another_host::Far<8>;
}
