//! What only RDMA does: rails, registered memory, kinds of traffic, and what happens where it does not work. Over pretended
//! adapters, with real servers; what is counted is what was asked of the adapters.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_client::{
    AccessOptions, Client, ConnectOptions, ErrorKind, File, ForeignMemory, Movement, OpenOptions,
    RdmaMechanism, RdmaOptions, RdmaServerPlan, Transport, register_memory, unregister_memory,
};
use weft_layout::{Extent, Level, Regions};
use weft_test_cluster::{Cluster, eventually, pattern};
use weft_verbs_double::PretendOptions;
use weft_wire::Status;
use weft_wire::messages::{ScrubReply, scrub_action, scrub_found};

const MIB: usize = 1 << 20;

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).striped(true).truncate(true)
}

fn transports(client: &Client) -> Vec<String> {
    client.transports().into_iter().filter_map(|used| used.transport).collect()
}

#[test]
fn a_large_read_into_registered_memory_is_one_message_each_way_and_no_registration() {
    let cluster = Cluster::start(1, 4 << 20);
    let client = cluster.client(Transport::Rdma);
    let file = client.open("/large", &create()).unwrap();
    let data = pattern(1, MIB);
    file.write_at(&data, 0).unwrap();
    let mut back = vec![0; MIB];
    // SAFETY: the memory lives until it is unregistered.
    unsafe { register_memory(back.as_mut_ptr(), back.len()) }.unwrap();
    assert_eq!(file.read_at(&mut back, 0).unwrap(), MIB);
    let before = (cluster.client_fabric.counts(), cluster.fabric.counts());
    back.fill(0);
    assert_eq!(file.read_at(&mut back, 0).unwrap(), MIB);
    let client_counts = cluster.client_fabric.counts().since(&before.0);
    let server_counts = cluster.fabric.counts().since(&before.1);
    assert!(back == data);
    assert_eq!((client_counts.sends, client_counts.registrations), (1, 0), "{client_counts:?}");
    assert_eq!((client_counts.writes, client_counts.writes_immediate, client_counts.reads), (0, 0, 0));
    assert_eq!((server_counts.writes, server_counts.sends), (1, 1), "{server_counts:?}");
    assert_eq!(server_counts.receiver_not_ready, 0);
    unregister_memory(back.as_mut_ptr()).unwrap();
}

#[test]
fn memory_that_is_used_again_is_registered_once_where_it_is_known() {
    let cluster = Cluster::start(2, 64 << 10);
    let client = cluster.client(Transport::Rdma);
    let file = client.open("/again", &create()).unwrap();
    let mut arena = client.alloc(4 * MIB).unwrap();
    arena.copy_from_slice(&pattern(2, 4 * MIB));
    file.write_at(&arena, 0).unwrap();
    let before = cluster.client_fabric.counts();
    for _ in 0..10 {
        file.write_at(&arena, 0).unwrap();
        file.read_at(&mut arena, 0).unwrap();
    }
    assert_eq!(cluster.client_fabric.counts().since(&before).registrations, 0);
    assert!(arena[..] == pattern(2, 4 * MIB)[..]);
    let status = client.rdma_status();
    let number = |name| {
        let adapter = &status.in_use[0];
        adapter.registrations.iter().find(|(known, _)| *known == name).unwrap().1
    };
    assert_eq!((status.unavailable, status.names), (None, vec!["client0".to_string()]));
    assert!(number("arena_bytes") >= 4 << 20 && number("hits") >= 40);
    let address = arena.base();
    drop(arena);
    assert!(unregister_memory(address.as_ptr()).is_err(), "freed memory is not registered any more");
}

#[test]
fn every_mechanism_moves_every_size() {
    let cluster = Cluster::start(2, 16 << 10);
    use RdmaMechanism::{Auto, Fast, Inline, Lend, Remote};
    for mechanism in [Auto, Inline, Fast, Remote, Lend] {
        let rdma = RdmaOptions { mechanism, ..RdmaOptions::default() };
        let client =
            cluster.client_with(ConnectOptions { rdma: Some(rdma), ..cluster.options(Transport::Rdma) });
        let file = client.open("/sizes", &create()).unwrap();
        for bytes in [1, 100, 4096, 4097, 40_000, 65_536, 65_537, 300_000, 3 * MIB] {
            let data = pattern(bytes as u64, bytes);
            file.write_at(&data, 7).unwrap();
            let mut back = vec![0; bytes];
            assert_eq!(file.read_at(&mut back, 7).unwrap(), bytes);
            assert!(back == data, "{mechanism}, {bytes} bytes");
        }
    }
    assert_eq!(cluster.fabric.counts().receiver_not_ready, 0);
    assert_eq!(cluster.client_fabric.counts().receiver_not_ready, 0);
}

#[test]
fn small_pieces_of_much_memory_are_packed_and_others_registered_as_one() {
    let cluster = Cluster::start(1, 4 << 20);
    let client = cluster.client(Transport::Rdma);
    let file = client.open("/pieces", &create()).unwrap();
    file.write_at(&pattern(3, 2 * MIB), 0).unwrap();
    let contiguous = |bytes| Regions::contiguous(0, bytes);
    let mut memory = vec![0u8; 8 * MIB];
    let mut read = |piece: u64, count: u64, movement| {
        file.set_access(AccessOptions { movement, ..AccessOptions::default() });
        let pieces = Regions::strided(0, piece, [Level { count, stride_bytes: 2 * piece as i64 }]);
        let before = (cluster.client_fabric.counts(), cluster.fabric.counts());
        // SAFETY: the pieces lie within the memory.
        let read = unsafe { file.read_raw(memory.as_mut_ptr(), &pieces, &contiguous(piece * count)) };
        assert_eq!(read.unwrap(), piece * count);
        let registered = cluster.client_fabric.counts().since(&before.0).registrations;
        (registered, cluster.fabric.counts().since(&before.1).writes)
    };
    let (registered, writes) = read(64, 16 << 10, Movement::Auto);
    assert!(registered <= 1 && writes <= 2, "a buffer at most, and a few writes: {registered}, {writes}");
    let (registered, writes) = read(4096, 256, Movement::Auto);
    assert!(registered <= 1, "rows of one allocation are one registration: {registered}");
    assert_eq!(writes, 0, "the client gathers rows");
    let (_, writes) = read(32 << 10, 64, Movement::Auto);
    assert_eq!(writes, 64, "but for long ones");
    assert!(read(4096, 256, Movement::Pack).1 <= 2);
}

#[test]
fn rows_are_gathered_by_the_client_as_explain_says() {
    let cluster = Cluster::start(2, 64 << 10);
    let (rows, row) = (768u64, 1024u64);
    let mut memory = pattern(5, (2 * rows * row) as usize);
    let pieces = Regions::strided(0, row, [Level { count: rows, stride_bytes: 2 * row as i64 }]);
    let in_file = Regions::contiguous(0, rows * row);
    for (lend_pieces_min, is_lent) in [(128, true), (0, false)] {
        let rdma = RdmaOptions { lend_pieces_min, ..RdmaOptions::default() };
        let client =
            cluster.client_with(ConnectOptions { rdma: Some(rdma), ..cluster.options(Transport::Rdma) });
        let file = client.open("/rows", &create()).unwrap();
        for write in [true, false] {
            let plan = file.explain_rdma(0, &pieces, &[], &in_file, write).unwrap();
            let planned = |of: fn(&RdmaServerPlan) -> u64| plan.servers.iter().map(of).collect::<Vec<_>>();
            let before = (cluster.client_fabric.counts(), cluster.fabric.counts());
            // SAFETY: the pieces lie within the memory.
            let moved = unsafe {
                if write {
                    file.write_raw(memory.as_ptr(), &pieces, &in_file)
                } else {
                    file.read_raw(memory.as_mut_ptr(), &pieces, &in_file)
                }
            };
            assert_eq!(moved.unwrap(), rows * row);
            let client = cluster.client_fabric.counts().since(&before.0);
            let server = cluster.fabric.counts().since(&before.1);
            let (by_client, by_servers) = (client.reads + client.writes, server.reads + server.writes);
            if is_lent {
                assert_eq!(
                    (planned(|one| one.lent), planned(|one| one.work_requests)),
                    (vec![1, 1], vec![13, 13])
                );
                assert_eq!((by_client, by_servers), (2 * 384u64.div_ceil(30), 0));
            } else {
                assert_eq!((planned(|one| one.remote), by_client, by_servers), (vec![1, 1], 0, rows));
                assert_eq!(planned(|one| one.work_requests), [384, 384]);
            }
        }
    }
    assert!(memory == pattern(5, (2 * rows * row) as usize));
}

#[test]
fn rails_are_used_together_and_one_that_fails_is_left_to_the_other() {
    let cluster = Cluster::start_with(1, 1 << 20, 2, PretendOptions::default());
    let client = cluster.client(Transport::Rdma);
    let file = client.open("/rails", &create()).unwrap();
    let data = pattern(4, 32 * MIB);
    let used = || {
        let status = client.rdma_status();
        let reads = |name: &str| {
            let adapter = status.in_use.iter().find(|adapter| adapter.name == name);
            adapter.map_or(0, |adapter| adapter.counts.iter().find(|(known, _)| *known == "sends").unwrap().1)
        };
        (reads("client0"), reads("client1"))
    };
    file.write_at(&data, 0).unwrap();
    let (first, second) = used();
    assert!(first > 2 && second > 2, "{first} and {second} requests");
    assert_eq!(transports(&client)[1].matches("verbs").count(), 2, "{:?}", transports(&client));

    cluster.fabric.set_port("server1", false);
    cluster.client_fabric.set_port("client1", false);
    let mut back = vec![0; data.len()];
    for _ in 0..3 {
        back.fill(0);
        assert_eq!(file.read_at(&mut back, 0).unwrap(), data.len());
        assert!(back == data);
    }
    cluster.fabric.set_port("server1", true);
    cluster.client_fabric.set_port("client1", true);
    let begin = Instant::now();
    let (_, before) = used();
    while used().1 == before {
        assert!(begin.elapsed() < Duration::from_secs(20), "the second rail is not used again");
        file.read_at(&mut back, 0).unwrap();
    }
    assert!(back == data);
}

#[test]
fn where_rdma_does_not_work_it_is_tcp_with_the_reason_and_rdma_later() {
    let cluster = Cluster::start(1, 64 << 10);
    cluster.move_away();
    cluster.fabric.set_port("server0", false);
    let client = cluster.client(Transport::Auto);
    let file = client.open("/later", &create()).unwrap();
    file.write_at(&[1; 1000], 0).unwrap();
    for used in client.transports() {
        assert!(used.transport.as_ref().unwrap().starts_with("tcp"), "{used:?}");
        assert!(used.fallback.as_ref().unwrap().contains("not over RDMA"), "{used:?}");
        assert_eq!(used.why_not_rdma, used.fallback);
    }
    cluster.fabric.set_port("server0", true);
    let begin = Instant::now();
    while !transports(&client)[1].starts_with("verbs") {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "RDMA is not tried again: {:?}",
            client.transports()
        );
        std::thread::sleep(Duration::from_millis(200));
        file.write_at(&[2; 1000], 0).unwrap();
    }
    let io = &client.transports()[1];
    assert_eq!((io.connections, &io.fallback, &io.why_not_rdma), (1, &None, &None), "{io:?}");
    let mut back = [0; 1000];
    file.read_at(&mut back, 0).unwrap();
    assert_eq!(back, [2; 1000]);
}

#[test]
fn on_one_host_it_is_shared_memory_and_status_says_that_this_is_why() {
    let cluster = Cluster::start(1, 64 << 10);
    let client = cluster.client(Transport::Auto);
    client.open("/here", &create()).unwrap().write_at(b"here", 0).unwrap();
    for used in client.transports() {
        assert!(used.transport.unwrap().starts_with("shm"));
        assert!(used.why_not_rdma.unwrap().contains("shared memory is faster"));
    }
    let tcp = cluster.client(Transport::Tcp);
    tcp.stat("/here", true).unwrap();
    assert_eq!(tcp.transports()[0].why_not_rdma.as_deref(), Some("another transport was asked for"));
}

#[test]
fn kinds_of_traffic_have_connections_of_their_own_where_the_network_tells_them_apart() {
    let cluster = Cluster::start(1, 64 << 10);
    let connect = |tos: &str, background| {
        let rdma = RdmaOptions { tos: tos.parse().unwrap(), ..RdmaOptions::default() };
        let options = cluster.options(Transport::Rdma);
        cluster.client_with(ConnectOptions { rdma: Some(rdma), background, ..options })
    };
    let used = |client: &Client| {
        let file = client.open("/traffic", &create()).unwrap();
        file.write_at(&[1; 100], 0).unwrap();
        file.write_at(&vec![2; 2 * MIB], 0).unwrap();
        transports(client)
    };
    let plain = used(&connect("0", false));
    assert!(plain.iter().all(|text| !text.contains("type of service")), "{plain:?}");
    let apart = used(&connect("96:32:8:4", false));
    assert!(apart[0].contains("metadata, type of service 96"), "{apart:?}");
    for part in ["small, type of service 32", "bulk, type of service 8"] {
        assert!(apart[1].contains(part), "{apart:?}");
    }
    let background = used(&connect("96:32:8:4", true));
    assert!(background[1].ends_with("(background, type of service 4)"), "{background:?}");
}

#[test]
fn a_plan_tells_registrations_mechanisms_and_work_requests() {
    let cluster = Cluster::start(2, 64 << 10);
    let client = cluster.client(Transport::Rdma);
    let file = client.open("/plan", &create()).unwrap();
    file.write_at(&[1; 100], 0).unwrap();
    // 768 rows of 1 KiB of an array with rows of 3 KiB, in file and memory.
    let rows = Regions::strided(0, 1024, [Level { count: 768, stride_bytes: 3072 }]);
    let plan = file.explain_rdma(1 << 32, &rows, &[], &rows, false).unwrap();
    assert_eq!((plan.pieces, plan.registrations), (768, 1), "rows of one array are registered as one");
    assert!(plan.adapter.is_some() && plan.cost_ns < plan.individual_ns);
    assert_eq!(plan.pages, (767 * 3072 + 1024u64).div_ceil(4096));
    assert_eq!(plan.servers.len(), 2);
    for server in &plan.servers {
        assert_eq!((server.requests, server.lent, server.inline), (1, 1, 0), "{server:?}");
        assert_eq!(server.work_requests, server.pieces.div_ceil(30));
    }
    let small = Regions::contiguous(0, 100);
    let plan = file.explain_rdma(1 << 32, &small, &[], &small, true).unwrap();
    assert_eq!((plan.servers[0].inline, plan.servers[0].work_requests), (1, 0));
    let error = file.explain_rdma(0, &small, &[], &rows, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// Where each server listens with RDMA, and why not or not everywhere, as it says over TCP.
fn told(client: &Client) -> Vec<(usize, String)> {
    let status = client.server_status(false).into_iter().map(|(_, answer)| answer.unwrap().rdma);
    status.map(|rdma| (rdma.addresses.len(), rdma.reason)).collect()
}

#[test]
fn a_server_listens_again_when_its_adapter_is_back() {
    let cluster = Cluster::start(1, 64 << 10);
    let watching = cluster.client(Transport::Tcp);
    let client =
        cluster.client_with(ConnectOptions { retry_timeout_ms: 60_000, ..cluster.options(Transport::Rdma) });
    let file = client.open("/back", &create()).unwrap();
    let data = pattern(9, MIB);
    file.write_at(&data, 0).unwrap();
    assert_eq!(told(&watching), vec![(1, String::new()); 2]);

    cluster.fabric.remove_adapter("server0");
    let wait_for = |what: &str, is_so: &dyn Fn(&(usize, String)) -> bool| {
        let begin = Instant::now();
        while !told(&watching).iter().all(is_so) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {:?}", told(&watching));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("gone", &|(addresses, reason)| {
        *addresses == 0
            && reason.contains("cannot listen with RDMA on 127.0.0.1")
            && reason.contains("tried again")
    });
    cluster.fabric.return_adapter("server0");
    wait_for("back", &|(addresses, reason)| *addresses == 1 && reason.is_empty());

    let mut back = vec![0; MIB];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), MIB);
    assert!(back == data);
    assert!(transports(&client).iter().all(|used| used.starts_with("verbs")), "{:?}", transports(&client));
}

#[test]
fn a_url_can_say_that_its_traffic_is_background() {
    let cluster = Cluster::start(1, 64 << 10);
    let url =
        weft_client::Url::parse(&format!("{}?background=on&rdma-tos=96:32:8:4", cluster.url())).unwrap();
    let rdma = weft_client::Rdma::over(cluster.client_fabric.clone(), &RdmaOptions::default());
    let client = Client::connect_with(&url, cluster.options(Transport::Rdma), rdma).unwrap();
    client.open("/background", &create()).unwrap().write_at(&[1; 100], 0).unwrap();
    assert!(transports(&client)[1].ends_with("(background, type of service 4)"), "{:?}", transports(&client));
}

/// What a forked child says in place of 0, if `work` is not done in it.
fn in_a_child(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only uses the client and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!is_done)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_forked_child_has_connections_of_its_own_and_is_told_why_not_over_rdma() {
    let cluster = Cluster::start(2, 64 << 10);
    cluster.move_away();
    let [client, strict] = [Transport::Auto, Transport::Rdma].map(|transport| cluster.client(transport));
    let [file, strict_file] = [&client, &strict].map(|client| client.open("/fork", &create()).unwrap());
    let data = pattern(10, MIB);
    file.write_at(&data, 0).unwrap();
    assert!(transports(&client).iter().all(|used| used.starts_with("verbs")), "{:?}", transports(&client));
    let status = in_a_child(|| {
        let mut back = vec![0; MIB];
        let read = file.read_at(&mut back, 0).is_ok_and(|bytes| bytes == MIB) && back == data;
        let wrote = file.write_at(&[7; 1000], MIB as u64).is_ok();
        let asked = client.stat("/fork", true).is_ok();
        let is_told =
            |reason: &Option<String>| reason.as_ref().is_some_and(|reason| reason.contains("forked"));
        let used = client.transports();
        let over_tcp = used.iter().all(|used| {
            used.transport.as_ref().is_some_and(|used| used.starts_with("tcp"))
                && is_told(&used.fallback)
                && is_told(&used.why_not_rdma)
        });
        read && wrote && asked && over_tcp
    });
    assert_eq!(status, 0, "with auto");
    let status = in_a_child(|| {
        let error = strict_file.read_at(&mut [0; 10], 0).unwrap_err();
        error.kind() == ErrorKind::Configuration && error.to_string().contains("forked")
    });
    assert_eq!(status, 0, "with rdma");
    // The parent's connections are as they were.
    let mut back = vec![0; MIB + 1000];
    for file in [&file, &strict_file] {
        back.fill(0);
        assert_eq!(file.read_at(&mut back, 0).unwrap(), MIB + 1000);
        assert!(back[..MIB] == data[..] && back[MIB..] == [7; 1000]);
    }
    assert!(transports(&client).iter().all(|used| used.starts_with("verbs")), "{:?}", transports(&client));
}

/// The costs of NC 4.3, so that plans are the same everywhere.
fn registering(foreign: ForeignMemory) -> RdmaOptions {
    RdmaOptions { foreign, registration_cost_ns: Some((770, 7420)), ..RdmaOptions::default() }
}

/// Registrations made and ended while something is done.
fn registered(cluster: &Cluster, work: impl FnOnce()) -> (u64, u64) {
    let before = cluster.client_fabric.counts();
    work();
    let counts = cluster.client_fabric.counts().since(&before);
    (counts.registrations, counts.deregistrations)
}

/// A file of 768 rows of 3 KiB, over four servers, and the memory of an array of which they are columns.
fn tile(client: &Client) -> (File, Vec<u8>, Regions, Regions) {
    let (row_bytes, stride_bytes) = (3072, 12_288);
    let file = client.open("/tile", &create()).unwrap();
    file.write_at(&pattern(7, 768 * row_bytes), 0).unwrap();
    let rows = Regions::strided(0, row_bytes as u64, [Level { count: 768, stride_bytes }]);
    let array = vec![0; 768 * stride_bytes as usize];
    (file, array, rows, Regions::contiguous(0, 768 * row_bytes as u64))
}

#[test]
fn the_shares_of_all_servers_are_one_registration() {
    let cluster = Cluster::start(4, 64 << 10);
    for foreign in [ForeignMemory::Watched, ForeignMemory::NotCached] {
        // What was written the file with is freed, of which a cache that watches may be told at any time.
        let is_kept = foreign == ForeignMemory::Watched;
        let ended_by_now = |(made, ended)| (made, if is_kept { 0 } else { ended });
        let client = cluster.client_over(&registering(foreign), cluster.options(Transport::Rdma));
        let (file, mut array, rows, all) = tile(&client);
        let counts = registered(&cluster, || {
            // SAFETY: the rows lie within the array.
            let read = unsafe { file.read_raw(array.as_mut_ptr(), &rows, &all) };
            assert_eq!(read.unwrap(), all.total_bytes());
        });
        assert_eq!(ended_by_now(counts), if is_kept { (1, 0) } else { (1, 1) }, "{foreign:?}");
        let expected = pattern(7, 768 * 3072);
        let is_right = |(row, expected): (usize, &[u8])| array[row * 12_288..][..3072] == *expected;
        assert!(expected.chunks(3072).enumerate().all(is_right));
        let counts = registered(&cluster, || {
            // SAFETY: as above.
            let written = unsafe { file.write_raw(array.as_ptr(), &rows, &all) };
            assert_eq!(written.unwrap(), all.total_bytes());
        });
        assert_eq!(ended_by_now(counts), if is_kept { (0, 0) } else { (1, 1) }, "{foreign:?}, again");
    }
}

#[test]
fn an_allocation_that_is_named_is_registered_once_for_a_request_of_many_parts() {
    let cluster = Cluster::start(2, 64 << 10);
    let options = registering(ForeignMemory::NotCached);
    let client = cluster.client_over(&options, cluster.options(Transport::Rdma));
    let file = client.open("/list", &create()).unwrap();
    // More pieces of the file than two requests to each server may have.
    let (count, bytes) = (20_000, 512);
    file.write_at(&pattern(8, 2 * count * bytes), 0).unwrap();
    let every_other = |number| Extent::new((2 * number * bytes) as u64, bytes as u64);
    let pieces = Regions::list((0..count).map(every_other).collect::<Vec<_>>());
    let mut array = vec![0u8; 2 * count * bytes];
    let whole = [Extent::new(0, array.len() as u64)];
    let mut read = |allocations: &[Extent]| {
        registered(&cluster, || {
            // SAFETY: the pieces lie within the array.
            let read = unsafe { file.read_raw_in(array.as_mut_ptr(), &pieces, allocations, &pieces) };
            assert_eq!(read.unwrap(), (count * bytes) as u64);
        })
    };
    assert_eq!(read(&whole), (1, 1));
    let halves = [Extent::new(0, whole[0].bytes / 2), Extent::new(whole[0].bytes / 2, whole[0].bytes / 2)];
    let (made, ended) = read(&halves);
    assert!(made <= 3 && ended == made, "{made} registrations, {ended} ended");
    let expected = pattern(8, 2 * count * bytes);
    assert!((0..count).all(|number| {
        let piece = 2 * number * bytes..(2 * number + 1) * bytes;
        array[piece.clone()] == expected[piece]
    }));
}

#[test]
fn an_error_of_one_share_ends_the_registration_of_all() {
    let mut cluster = Cluster::start(4, 64 << 10);
    let options = ConnectOptions { retry_timeout_ms: 300, ..cluster.options(Transport::Rdma) };
    let client = cluster.client_over(&registering(ForeignMemory::NotCached), options);
    let (file, mut array, rows, all) = tile(&client);
    cluster.stop_server(2);
    let connections = || client.transports().iter().map(|used| used.connections as u64).sum::<u64>();
    let before = connections();
    let (made, ended) = registered(&cluster, || {
        // SAFETY: the rows lie within the array.
        let error = unsafe { file.read_raw(array.as_mut_ptr(), &rows, &all) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    });
    // A connection registers memory of its own, and so does every try to make one. Some are made to ask where the server is now, and
    // stay.
    const OF_A_CONNECTION: u64 = 3;
    let stay = connections().saturating_sub(before);
    let may_stay = stay * OF_A_CONNECTION;
    assert!(made >= 1 && ended + may_stay >= made, "{made} made, {ended} ended, {stay} connections more");
}

/// The only data file below a directory.
fn data_file_below(directory: &Path) -> PathBuf {
    let entry = std::fs::read_dir(directory).unwrap().next().unwrap().unwrap().path();
    if entry.is_dir() { data_file_below(&entry) } else { entry }
}

/// Has the only I/O server scrub its data.
fn scrubbed(client: &Client) -> ScrubReply {
    let ask = |action| client.scrub(action, 0, &[]).swap_remove(0).1.unwrap();
    ask(scrub_action::BEGIN);
    eventually("the scrub ends", || !ask(scrub_action::REPORT).is_running);
    ask(scrub_action::REPORT)
}

#[test]
fn damaged_data_leaves_by_no_mechanism_and_is_found_by_a_scrub() {
    const BLOCK: usize = 4096;
    const WRONG: usize = 73 * BLOCK;
    let mut cluster = Cluster::start(1, 64 << 10);
    let client = cluster.client(Transport::Rdma);
    let data = pattern(8, MIB);
    let file = client.open("/rot", &create()).unwrap();
    file.write_at(&data, 0).unwrap();
    file.close().unwrap();
    assert_eq!(scrubbed(&client).found, 0);
    drop(client);
    cluster.stop_server(1);
    let path = data_file_below(&cluster.directory(1).join("data"));
    let on_disk = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    on_disk.write_all_at(&[data[WRONG + 77] ^ 4], WRONG as u64 + 77).unwrap();
    cluster.start_server(1);

    use RdmaMechanism::{Auto, Fast, Inline, Lend, Remote};
    for mechanism in [Auto, Inline, Fast, Remote, Lend] {
        let rdma = RdmaOptions { mechanism, ..RdmaOptions::default() };
        let client =
            cluster.client_with(ConnectOptions { rdma: Some(rdma), ..cluster.options(Transport::Rdma) });
        let file = client.open("/rot", &OpenOptions::new().read(true)).unwrap();
        for step in [BLOCK, 64 << 10, MIB] {
            for begin in (0..MIB).step_by(step) {
                let mut back = vec![0; step];
                let read = file.read_at(&mut back, begin as u64);
                if (begin..begin + step).contains(&WRONG) {
                    let error = read.unwrap_err();
                    assert_eq!(error.status(), Some(Status::Damaged), "{mechanism}: {error}");
                    let at = WRONG.max(begin) - begin;
                    assert!(
                        back[at..at + BLOCK] != on_server(&data, WRONG)[..],
                        "{mechanism}: damaged bytes came"
                    );
                } else {
                    assert_eq!(read.unwrap(), step);
                    assert!(back == data[begin..begin + step], "{mechanism}, {step} bytes at {begin}");
                }
            }
        }
        // Rows that lie apart in memory.
        let mut memory = vec![0u8; 2 * MIB];
        let rows = Regions::strided(0, 1024, [Level { count: 1024, stride_bytes: 2048 }]);
        // SAFETY: the rows lie within the memory.
        let read = unsafe { file.read_raw(memory.as_mut_ptr(), &rows, &Regions::contiguous(0, MIB as u64)) };
        assert_eq!(read.unwrap_err().status(), Some(Status::Damaged), "{mechanism}");
        let verbs = transports(&client);
        assert!(verbs.iter().any(|transport| transport.starts_with("verbs")), "{verbs:?}");
    }
    let client = cluster.client(Transport::Rdma);
    let report = scrubbed(&client);
    let finding = &report.findings[0];
    assert_eq!((report.found, finding.kind), (1, scrub_found::DATA));
    assert_eq!((finding.offset, finding.bytes), (WRONG as u64, BLOCK as u64));
    // Written again as a whole, it is sound.
    let file = client.open("/rot", &OpenOptions::new().read(true).write(true)).unwrap();
    assert_eq!(file.write_at(&[1; 10], WRONG as u64).unwrap_err().status(), Some(Status::Damaged));
    file.write_at(&data[WRONG..WRONG + BLOCK], WRONG as u64).unwrap();
    let mut back = vec![0; MIB];
    file.read_at(&mut back, 0).unwrap();
    assert!(back == data);
    assert_eq!(scrubbed(&client).found, 0);
}

/// The damaged block as it is on the disk.
fn on_server(data: &[u8], begin: usize) -> Vec<u8> {
    let mut block = data[begin..begin + 4096].to_vec();
    block[77] ^= 4;
    block
}
