//! Promises about work requests, completions, doorbells, registrations and copied bytes.

use std::time::{Duration, Instant};

use weft_transport::registration::RegistrationStats;
use weft_transport::*;
use weft_verbs::Counts;
use weft_verbs_double::usual_limits;
use weft_wire::Status;

use crate::common::*;

type Chosen = Verbs<Pretended, 0>;

/// What both sides have done.
#[derive(Debug, Clone)]
struct Done {
    client: Counts,
    server: Counts,
    transfers: VerbsTransfers,
    registrations: RegistrationStats,
}

fn done<const MECHANISM: u8>(verbs: &Verbs<Pretended, MECHANISM>) -> Done {
    let status = verbs.client.status().devices.remove(0);
    Done {
        client: verbs.hosts.client.counts(),
        server: verbs.hosts.server.counts(),
        transfers: status.transfers,
        registrations: status.registrations,
    }
}

/// What `times` calls of `act` cost, after one that is not counted; when both sides have come to rest.
fn cost<const MECHANISM: u8>(
    verbs: &Verbs<Pretended, MECHANISM>,
    times: u64,
    mut act: impl FnMut(),
) -> (Counts, Counts, u64) {
    act();
    let settle = || std::thread::sleep(Duration::from_millis(20));
    settle();
    let before = done(verbs);
    for _ in 0..times {
        act();
    }
    settle();
    let after = done(verbs);
    assert_eq!(after.registrations.registrations, before.registrations.registrations);
    let copied = after.transfers.copied_bytes - before.transfers.copied_bytes;
    (after.client.since(&before.client), after.server.since(&before.server), copied)
}

fn command(verb: Verb, bytes: u64) -> Vec<u8> {
    Command { verb, bytes, unit_bytes: 1 << 20, seed: 5, ..Command::default() }.to_bytes()
}

fn done_well(completion: Completion) {
    assert_eq!(completion.header.status, Status::Ok, "{}", String::from_utf8_lossy(&completion.body));
}

#[test]
fn a_read_into_registered_memory_is_one_bind_one_send_one_receive_and_no_copy() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    let memory = TestMemory::new(&[(0, 1 << 20, 1)]);
    let read = command(Verb::ReadHandingOver, 1 << 20);
    let (client, server, copied) =
        cost(&verbs, 8, || done_well(call(&mut link, &read, Bulk::put(memory.runs()))));
    assert_eq!((client.sends, client.doorbells, client.receives), (8, 8, 8));
    assert_eq!(client.binds, 8, "of windows, whose keys the server ends");
    assert_eq!(client.completions, 8 + 8 / 4, "every fourth send tells of its end");
    assert_eq!((client.writes, client.reads, client.writes_immediate, copied), (0, 0, 0, 0));
    assert_eq!((server.writes, server.sends), (8, 8));
    assert_eq!(server.doorbells, 8, "the last write and the reply go out together");
    assert_eq!(server.completions, 8 + 8, "of a request and of its reply");
    memory.check(5, 1 << 20);
}

#[test]
fn a_write_of_a_page_is_one_message_each_way() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    let mut memory = TestMemory::new(&[(8, 1024, 4)]);
    memory.fill(5);
    let write = command(Verb::Write, 4096);
    let (client, server, copied) =
        cost(&verbs, 8, || done_well(call(&mut link, &write, Bulk::get(memory.runs()))));
    for side in [client, server] {
        assert_eq!((side.sends, side.doorbells, side.receives), (8, 8, 8));
        assert_eq!((side.writes, side.reads, side.writes_immediate), (0, 0, 0));
    }
    assert_eq!(copied, 8 * 4096);
}

#[test]
fn a_read_of_a_page_comes_with_the_reply() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    let memory = TestMemory::new(&[(8, 4096, 1)]);
    let read = command(Verb::ReadInline, 4096);
    let (client, server, _) = cost(&verbs, 8, || done_well(call(&mut link, &read, Bulk::put(memory.runs()))));
    assert_eq!((client.sends, server.sends, server.writes), (8, 8, 0));
}

#[test]
fn a_small_write_of_registered_memory_is_one_fast_write_without_a_copy() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    let mut memory = TestMemory::new(&[(100, 8192, 4)]);
    memory.fill(5);
    let write = command(Verb::Write, 32_768);
    let mut act = || done_well(call(&mut link, &write, Bulk::get(memory.runs())));
    act();
    let before = verbs.client.status().devices[0].transfers;
    assert_eq!((before.fast, before.copied_bytes), (1, 32_768), "memory that is not registered is copied");
    let runs = memory.runs();
    let start = runs[0].address as *mut u8;
    // SAFETY: the memory lives until the end of this test.
    unsafe { verbs.client.register(start, 40_000) }.unwrap();
    let (client, server, copied) = cost(&verbs, 8, act);
    assert_eq!((client.writes_immediate, client.sends, client.doorbells, copied), (8, 0, 8, 0));
    assert_eq!((server.sends, server.reads), (8, 0));
    assert!(verbs.client.unregister(start));
}

#[test]
fn a_small_read_into_registered_memory_goes_there() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    let memory = TestMemory::new(&[(100, 32_768, 1)]);
    let read = command(Verb::ReadHandingOver, 32_768);
    let start = memory.runs()[0].address as *mut u8;
    // SAFETY: the memory lives until the end of this test.
    unsafe { verbs.client.register(start, 32_768) }.unwrap();
    let (client, server, copied) =
        cost(&verbs, 8, || done_well(call(&mut link, &read, Bulk::put(memory.runs()))));
    assert_eq!((client.sends, server.writes, server.doorbells, copied), (8, 8, 8, 0));
    assert!(verbs.client.unregister(start));
    let (_, server, copied) = cost(&verbs, 8, || done_well(call(&mut link, &read, Bulk::put(memory.runs()))));
    assert_eq!(
        (server.writes, server.doorbells, copied),
        (8, 8, 8 * 32_768),
        "through a buffer of the link's"
    );
    memory.check(5, 32_768);
}

#[test]
fn a_large_write_is_one_read_for_each_unit() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    let mut memory = TestMemory::new(&[(0, 4 << 20, 1)]);
    memory.fill(5);
    let write = command(Verb::Write, 4 << 20);
    let (client, server, copied) =
        cost(&verbs, 2, || done_well(call(&mut link, &write, Bulk::get(memory.runs()))));
    assert_eq!((client.binds, client.sends, client.doorbells, copied), (2, 2, 2, 0));
    assert_eq!((server.reads, server.sends), (8, 2));
}

#[test]
fn rows_that_a_server_moves_are_one_registration_and_one_chain() {
    let verbs = Verbs::<Pretended, 3>::start();
    let mut link = verbs.connect();
    let memory = TestMemory::new(&[(1024, 1024, 768)]);
    let read = command(Verb::ReadHandingOver, 768 * 1024);
    done_well(call(&mut link, &read, Bulk::put(memory.runs())));
    assert_eq!(verbs.client.status().devices[0].registrations.entries, 1);
    let (client, server, _) = cost(&verbs, 2, || done_well(call(&mut link, &read, Bulk::put(memory.runs()))));
    assert_eq!((client.sends, client.receives), (2, 2));
    assert_eq!(server.writes, 2 * 768, "one for each row of the client's memory");
    assert_eq!(server.doorbells, 2 * 768u64.div_ceil(64), "64 rows for each ring of the doorbell");
}

#[test]
fn rows_of_one_array_are_one_registration_and_as_few_work_requests_as_the_client_gathers() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    let mut memory = TestMemory::new(&[(1024, 1024, 768)]);
    memory.fill(5);
    let work = 768u64.div_ceil(usual_limits().send_pieces_max as u64);
    for (verb, is_read) in [(Verb::ReadHandingOver, true), (Verb::Write, false)] {
        let command = command(verb, 768 * 1024);
        let bulk = || if is_read { Bulk::put(memory.runs()) } else { Bulk::get(memory.runs()) };
        let (client, server, copied) = cost(&verbs, 2, || done_well(call(&mut link, &command, bulk())));
        let registrations = verbs.client.status().devices[0].registrations.clone();
        assert_eq!((registrations.registrations, registrations.entries), (1, 1));
        let (reads, writes) = if is_read { (work, 0) } else { (0, work) };
        assert_eq!((client.reads, client.writes, copied), (2 * reads, 2 * writes, 0), "30 rows each");
        assert_eq!((server.reads, server.writes), (0, 0));
        assert_eq!((client.sends, client.binds), (2 * 3, 0), "the request, and two halves given back");
        assert_eq!((server.sends, server.binds), (2 * 2, 2 * 2), "two halves lent, and the reply");
        assert_eq!(server.doorbells, 2 * 2);
        assert!(client.doorbells <= 2 * 7, "{}: three for a half at most", client.doorbells);
        memory.check(5, 768 * 1024);
    }
    assert_eq!(verbs.client.status().devices[0].transfers.lent, 6);
}

#[test]
fn nobody_is_busy_when_nothing_happens() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    done_well(call(&mut link, &command(Verb::Echo, 0), Bulk::None));
    std::thread::sleep(Duration::from_millis(20));
    let before = done(&verbs);
    std::thread::sleep(Duration::from_millis(200));
    let after = done(&verbs);
    let (client, server) = (after.client.since(&before.client), after.server.since(&before.server));
    assert_eq!((client.polls, server.polls, server.wakeups), (0, 0, 0));
}

#[test]
fn an_adapter_that_is_taken_away_is_a_clear_error_on_both_sides() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    verbs.hosts.server.remove_adapter("pretend0");
    let begin = Instant::now();
    let body = command(Verb::Echo, 0);
    let failed = submit(&mut link, 1, &body, Bulk::None).err().or_else(|| try_wait(&mut link, 1).err());
    assert!(failed.is_some_and(|error| error.is_fatal()));
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_client_that_has_vanished_is_noticed_though_nothing_is_said() {
    let options = ports(|port| port.keep_alive_ms = 30);
    let verbs = Chosen::with(Pretended::make(), options);
    let mut link = verbs.connect();
    std::thread::sleep(Duration::from_millis(100));
    done_well(call(&mut link, &command(Verb::Echo, 0), Bulk::None));
    verbs.hosts.server.sever(link.queue_pair());
    let begin = Instant::now();
    while verbs.server.ends.lock().unwrap().is_empty() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_is_left_alone_once_a_transfer_was_given_up() {
    let verbs = Verbs::<Shuffled, 0>::start();
    let mut ended = 0;
    // By chance: where adapters are quick none is.
    for polls in (1..30).cycle().take(290) {
        let mut link = verbs.connect();
        let mut memory = TestMemory::new(&[(50, 3000, 100)]);
        memory.fill(polls);
        let command =
            Command { verb: Verb::GiveUp, bytes: 300_000, unit_bytes: polls as u32, ..Command::default() };
        submit(&mut link, 1, &command.to_bytes(), Bulk::get(memory.runs())).unwrap();
        // While somebody may sleep, the pretended adapters hold nothing back.
        std::thread::sleep(Duration::from_millis(5));
        ended += usize::from(try_wait(&mut link, 1).is_err());
        if polls == 29 && ended > 0 {
            break;
        }
    }
    assert!(ended > 0, "no transfer was given up in the middle");
}

#[test]
fn a_broken_network_ends_requests_with_an_error() {
    let verbs = Chosen::start();
    let mut link = verbs.connect();
    let mut other = verbs.connect();
    verbs.hosts.server.sever(link.queue_pair());
    let body = command(Verb::Echo, 0);
    let failed = submit(&mut link, 1, &body, Bulk::None).err().or_else(|| try_wait(&mut link, 1).err());
    assert!(failed.is_some_and(|error| error.is_fatal()));
    done_well(call(&mut other, &body, Bulk::None));
}
