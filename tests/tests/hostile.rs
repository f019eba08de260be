//! Peers that do not keep to the protocol, or mean harm: refused, logged once, and nobody else notices.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_client::{Client, ConnectOptions, OpenOptions, Transport, Url};
use weft_layout::{Extent, Layout, Level, Order, Region, Regions};
use weft_test_random::Random;
use weft_tests::raw::{Raw, hello, hello_of};
use weft_tests::{Served, ServedOptions, resident_bytes};
use weft_wire::keys::IssuedKey;
use weft_wire::limits::{
    BODY_BYTES_MAX, CREDITS_PER_CONNECTION, HANDSHAKE_TIMEOUT_MS, REGION_LEVELS_MAX, REGION_PARTS_MAX,
    SHARE_BYTES_MAX,
};
use weft_wire::messages::*;
use weft_wire::security::{Capability, Key};
use weft_wire::{Added, HEADER_BYTES, Header, Kind, Op, Status, Wire, flags, header_checksum};

#[path = "hostile/payloads.rs"]
mod payloads;

/// A server that is attacked may use this much memory: its transfer buffers are bounded to 64 MiB.
const RESIDENT_BYTES_MAX: u64 = 128 << 20;
/// Longest time that a well-behaved client may wait while others misbehave.
const LATENCY_MAX: Duration = Duration::from_secs(5);

/// A client that keeps working while servers are attacked.
struct Bystander {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<Duration>>,
}

impl Bystander {
    fn start(cluster: &Served) -> Bystander {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), rounds.clone());
        let client = cluster.client(Transport::Auto);
        let work = move || {
            let mut longest = Duration::ZERO;
            let file = client
                .open("/bystander", &OpenOptions::new().read(true).write(true).create(true))
                .expect("open");
            let (data, mut back) = (vec![5; 300_000], vec![0; 300_000]);
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                file.write_at(&data, 0).expect("others are served");
                file.read_at(&mut back, 0).expect("others are served");
                client.stat("/bystander", true).expect("others are served");
                assert!(data == back);
                longest = longest.max(start.elapsed());
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
            longest
        };
        Bystander { stop, rounds, thread: Some(std::thread::spawn(work)) }
    }

    /// It was served all the time, and never had to wait long.
    #[track_caller]
    fn check(mut self) {
        let before = self.rounds.load(Ordering::Relaxed);
        weft_tests::wait_until("others are served still", LATENCY_MAX, || {
            self.rounds.load(Ordering::Relaxed) > before
        });
        self.stop.store(true, Ordering::Relaxed);
        let longest = self.thread.take().expect("once").join().expect("others were served all the time");
        assert!(longest < LATENCY_MAX, "another client waited {longest:?}");
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[track_caller]
fn check_unharmed(cluster: &mut Served) {
    for name in cluster.names() {
        assert!(cluster.is_running(&name), "{name} is gone");
        let bytes = resident_bytes(cluster.pid(&name));
        assert!(bytes < RESIDENT_BYTES_MAX, "{name} has {bytes} bytes resident");
        assert!(!cluster.log(&name).contains("panicked"), "{}", cluster.log(&name));
    }
}

/// A fresh connection to every server over both networks.
fn connections(cluster: &Served) -> Vec<(String, Raw)> {
    let both = |name: String| {
        let tcp = Raw::tcp(cluster.address(&name)).expect("it listens");
        let unix = Raw::unix(&cluster.socket(&name)).expect("it listens");
        [(format!("{name} over tcp"), tcp), (format!("{name} over unix"), unix)]
    };
    cluster.names().into_iter().flat_map(both).collect()
}

#[test]
fn a_wrong_key_is_refused_clearly_and_logged_once() {
    let mut cluster = Served::start(1);
    let bystander = Bystander::start(&cluster);
    for transport in [Transport::Tcp, Transport::Shm, Transport::Auto] {
        for _ in 0..5 {
            let options = ConnectOptions {
                key: Some(IssuedKey::of_cluster(&Key([9; 32]))),
                transport: Some(transport),
                retry_timeout_ms: 2000,
                ..ConnectOptions::default()
            };
            let start = Instant::now();
            let error = Client::connect(&Url::parse(&cluster.url()).expect("a URL"), options);
            let error = error.map(drop).expect_err("the key is wrong").to_string();
            assert!(error.contains("key"), "{transport}: the error does not speak of the key: {error}");
            assert!(start.elapsed() < LATENCY_MAX, "{transport}: a wrong key is no reason to try again");
        }
    }
    // A client notices first that the server's proof is not by its key; a peer that goes on regardless is refused.
    for (name, mut raw) in connections(&cluster) {
        for attempt in 0..2 {
            if attempt == 1 && raw.is_cut_within(Duration::from_secs(1)) {
                break;
            }
            let reply = raw.ask(&hello_of(&cluster.key())).expect("an answer");
            assert_eq!(reply.header.status, Status::Ok, "{name}: {}", reply.error_text());
            let reply = raw.ask(&ProveRequest { proof: [1; 32] }).expect("an answer");
            assert_eq!(reply.header.status, Status::Unauthenticated, "{name}");
            assert!(reply.error_text().contains("key"), "{name}: {}", reply.error_text());
        }
    }
    for _ in 0..20 {
        let mut raw = Raw::tcp(cluster.address("io0")).expect("it listens");
        raw.ask(&hello_of(&cluster.key())).expect("an answer");
        raw.ask(&ProveRequest { proof: [1; 32] }).expect("an answer");
    }
    bystander.check();
    check_unharmed(&mut cluster);
    for name in cluster.names() {
        let log = cluster.log(&name);
        let lines = log.lines().filter(|line| line.contains("refused") && line.contains("key")).count();
        assert!((1..=3).contains(&lines), "{name} told {lines} times of a wrong key\n{log}");
    }
}

#[test]
fn nothing_is_served_before_the_proof() {
    let mut cluster = Served::start(1);
    let bystander = Bystander::start(&cluster);
    for op in Op::ALL.iter().filter(|op| !matches!(op, Op::Hello)) {
        for (greeted, (name, mut raw)) in connections(&cluster).into_iter().enumerate() {
            // Half of them have said hello, and then ask without proof.
            if greeted % 2 == 0 {
                raw.must(&hello_of(&cluster.key()));
            }
            let header = raw.request(*op);
            raw.send(header, &[0; 16], &[]).expect("it can be sent");
            let reply = raw.receive();
            if let Ok(reply) = &reply {
                assert_ne!(reply.header.status, Status::Ok, "{name} served {op:?} without proof");
            }
            // The transport's own operations may leave it at the refusal.
            let is_own = matches!(op, Op::MemoryProbe | Op::SegmentAdd | Op::SegmentDrop) && reply.is_ok();
            assert!(
                is_own || raw.is_cut_within(Duration::from_secs(2)),
                "{name} keeps a peer that asked for {op:?} without proof"
            );
        }
    }
    bystander.check();
    check_unharmed(&mut cluster);
}

#[test]
fn other_protocols_and_noise_are_refused() {
    let mut cluster = Served::start(1);
    let bystander = Bystander::start(&cluster);
    let mut random = Random(weft_test_random::seed());
    let mut openings: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: weft\r\nUser-Agent: a browser\r\nAccept: */*\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and what else may come from it\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".iter().copied().chain([7; 600]).collect(),
        vec![0; 1000],
        vec![0xff; 1000],
    ];
    openings.extend((0..10).map(|_| random.bytes(2000)));
    let mut damaged = Header::request(Op::Hello, 1).encode();
    damaged[20] ^= 1;
    openings.push(damaged.to_vec());
    for opening in &openings {
        for (name, mut raw) in connections(&cluster) {
            // The server may hang up before it has read all of it.
            let _ = raw.socket.write_all(opening);
            assert!(raw.is_cut_within(Duration::from_secs(3)), "{name} listens on to {:02x?}", &opening[..8]);
        }
    }
    // A good beginning that breaks off is forgotten with its connection.
    let whole = Header { body_bytes: 100, ..Header::request(Op::Hello, 1) }.encode();
    for end in [0, 1, 4, 63, 64] {
        for (_, mut raw) in connections(&cluster) {
            raw.socket.write_all(&whole[..end]).expect("it listens");
        }
    }
    bystander.check();
    check_unharmed(&mut cluster);
}

fn reseal(bytes: &mut [u8; HEADER_BYTES]) {
    let sum = header_checksum(bytes);
    bytes[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn lengths_beyond_the_limits_are_refused_before_anything_is_allocated() {
    let mut cluster = Served::start(1);
    let bystander = Bystander::start(&cluster);
    let key = cluster.key();
    for proven in [false, true] {
        let cases = [
            (Op::Hello, u32::MAX, 0u64, 0),
            (Op::Ping, BODY_BYTES_MAX as u32 + 1, 0, 0),
            (Op::Read, 1 << 31, 0, 0),
            (Op::Write, 0, u64::MAX, 0),
            (Op::Write, 16, SHARE_BYTES_MAX + 1, 0),
            (Op::Write, 16, u64::MAX / 2, flags::REMOTE_MEMORY),
            (Op::Lookup, u32::MAX, u64::MAX, 0),
        ];
        for (op, body_bytes, payload_bytes, flags) in cases {
            for (name, mut raw) in connections(&cluster) {
                if proven {
                    raw.greet(&key).expect("the key is right");
                }
                let header = Header { body_bytes, payload_bytes, flags, ..raw.request(op) };
                raw.socket.write_all(&header.encode()).expect("it can be sent");
                if let Ok(reply) = raw.receive() {
                    assert_ne!(reply.header.status, Status::Ok, "{name} took {header:?}");
                }
                assert!(raw.is_cut_within(Duration::from_secs(2)), "{name} waits for all of {header:?}");
            }
        }
    }
    check_unharmed(&mut cluster);
    bystander.check();
}

#[test]
fn unknown_operations_versions_and_kinds_get_a_clear_refusal() {
    let mut cluster = Served::start(1);
    let bystander = Bystander::start(&cluster);
    let key = cluster.key();
    for (name, mut raw) in connections(&cluster) {
        let late = HelloRequest { version_min: 77, version_max: 99, ..hello() };
        let reply = raw.ask(&late).expect("an answer");
        assert_eq!(reply.header.status, Status::Version, "{name}");
        assert!(reply.error_text().contains("77"), "{name}: {}", reply.error_text());
    }
    // Byte 4 is the version, 5 the kind, 6 and 7 the operation.
    for (field, at, value) in [("version", 4, 200), ("kind", 5, 77), ("operation", 7, 0xee)] {
        for (name, mut raw) in connections(&cluster) {
            raw.greet(&key).expect("the key is right");
            let mut bytes = raw.request(Op::Ping).encode();
            bytes[at] = value;
            reseal(&mut bytes);
            raw.socket.write_all(&bytes).expect("it can be sent");
            let reply = raw.receive();
            if field == "operation" {
                let reply = reply
                    .unwrap_or_else(|error| panic!("{name} does not answer an unknown {field}: {error}"));
                assert_ne!(reply.header.status, Status::Ok, "{name}");
                assert!(!reply.error_text().is_empty(), "{name} says nothing about an unknown {field}");
            } else if let Ok(reply) = reply {
                assert_ne!(reply.header.status, Status::Ok, "{name} accepted a foreign {field}");
            }
        }
    }
    for (name, mut raw) in connections(&cluster) {
        raw.greet(&key).expect("the key is right");
        let reply = raw.request(Op::Ping);
        for kind in [Kind::Reply, Kind::Data] {
            let _ = raw.send(Header { kind, ..reply }, &[], &[]);
        }
        assert!(raw.is_cut_within(Duration::from_secs(2)), "{name} takes replies from a client");
    }
    bystander.check();
    check_unharmed(&mut cluster);
}

#[test]
fn bodies_of_noise_are_malformed_and_nothing_worse() {
    let mut cluster = Served::start(1);
    let bystander = Bystander::start(&cluster);
    let (key, mut random) = (cluster.key(), Random(weft_test_random::seed()));
    for name in cluster.names() {
        for over_unix in [false, true] {
            let connect = || {
                let raw = if over_unix {
                    Raw::unix(&cluster.socket(&name))
                } else {
                    Raw::tcp(cluster.address(&name))
                };
                let mut raw = raw.expect("it listens");
                raw.greet(&key).expect("the key is right");
                raw
            };
            let mut raw = connect();
            for op in Op::ALL {
                for length in [0, 1, 7, 40, 200] {
                    let body = random.bytes(length);
                    let header = raw.request(*op);
                    raw.send(header, &body, &[]).unwrap_or_else(|error| panic!("{name} {op:?}: {error}"));
                    match raw.receive_reply() {
                        Ok(reply) => assert_eq!(reply.header.request_id, header.request_id),
                        // Cutting off is a right answer to what breaks the protocol.
                        Err(_) => raw = connect(),
                    }
                }
            }
        }
    }
    bystander.check();
    check_unharmed(&mut cluster);
}

#[test]
fn slow_and_silent_peers_are_cut_and_harm_nobody() {
    let mut cluster = Served::start(1);
    let bystander = Bystander::start(&cluster);
    let handshake = Duration::from_millis(HANDSHAKE_TIMEOUT_MS);
    let silent: Vec<_> = (0..200)
        .map(|at| match at % 2 {
            0 => Raw::tcp(cluster.address("io0")).expect("it listens"),
            _ => Raw::unix(&cluster.socket("meta0")).expect("it listens"),
        })
        .collect();
    let start = Instant::now();
    let mut slow = connections(&cluster);
    let drip = Header { body_bytes: 120, ..Header::request(Op::Hello, 1) }.encode();
    let mut cut = vec![false; slow.len()];
    for byte in drip.iter().take(HANDSHAKE_TIMEOUT_MS as usize / 1000 + 3) {
        for (at, (_, raw)) in slow.iter_mut().enumerate() {
            // Sending fails once the server has reset the connection.
            cut[at] |= raw.socket.write_all(&[*byte]).is_err();
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    for (at, (name, raw)) in slow.iter_mut().enumerate() {
        assert!(cut[at] || raw.is_cut_within(Duration::from_millis(500)), "{name} waits on for a slow peer");
    }
    assert!(start.elapsed() > handshake);
    for mut raw in silent {
        assert!(raw.is_cut_within(Duration::from_millis(500)), "a silent peer is kept");
    }
    bystander.check();
    check_unharmed(&mut cluster);
}

/// An open file's capability, as the metadata server gives it.
fn open_file(cluster: &Served, path: &str, access: u32) -> (Raw, Capability) {
    let mut meta = Raw::tcp(cluster.address("meta0")).expect("it listens");
    meta.greet(&cluster.key()).expect("the key is right");
    let request = CreateRequest {
        caller: Caller { uid: 0, gid: 0, groups: vec![] },
        at: At { dir: ROOT_INO, path: path.as_bytes().to_vec() },
        mode: 0o644,
        exclusive: false,
        layout: None,
        access,
        small: Added(false),
        append: Added(false),
    };
    let header = Header { slot: 1, ..meta.request(Op::Create) };
    meta.send(header, &request.to_bytes(), &[]).expect("it can be sent");
    let reply = meta.receive_reply().expect("an answer");
    assert_eq!(reply.header.status, Status::Ok, "{}", reply.error_text());
    let reply = OpenReply::from_bytes(&reply.body).expect("an open file");
    (meta, reply.capability.expect("it was opened"))
}

/// A file of this many bytes of 3, held open by a client, and a capability of the attacker's for it.
fn written_file(cluster: &Served, bytes: usize, access: u32) -> (weft_client::File, Raw, Capability) {
    let client = cluster.client(Transport::Tcp);
    let file = client.open("/file", &OpenOptions::new().write(true).create(true)).expect("open");
    file.write_at(&vec![3; bytes], 0).expect("written");
    let (meta, capability) = open_file(cluster, "file", access);
    (file, meta, capability)
}

fn io_connection(cluster: &Served, name: &str) -> Raw {
    let mut io = Raw::tcp(cluster.address(name)).expect("it listens");
    io.greet(&cluster.key()).expect("the key is right");
    io
}

fn slot_of(capability: &Capability, server: u16) -> u16 {
    let slots = 0..capability.layout.server_count();
    slots
        .into_iter()
        .find(|slot| capability.layout.chain(*slot).single_server() == server)
        .expect("a file on all servers")
}

#[test]
fn without_a_genuine_capability_nothing_is_read_or_written() {
    let mut cluster = Served::start(2);
    let bystander = Bystander::start(&cluster);
    let both = rights::READ | rights::WRITE;
    let (_meta, good) = open_file(&cluster, "mine", both);
    let (_other_meta, other) = open_file(&cluster, "other", both);
    let (_reader, read_only) = open_file(&cluster, "mine", rights::READ);
    assert_eq!(good.ino, read_only.ino);
    let mut io = io_connection(&cluster, "io0");
    let forged = [
        Capability { ino: other.ino, ..good.clone() },
        Capability { rights: u32::MAX, ..read_only.clone() },
        Capability { expires_s: u64::MAX, ..good.clone() },
        Capability { layout: Layout::new(4096, 0, 1, 2).expect("a layout"), ..good.clone() },
        Capability { signature: [0; 16], ..good.clone() },
        Capability { signature: other.signature, ..good.clone() },
        Capability::sign(&cluster.key().secret, good.holder, good.ino, both, u64::MAX, good.layout),
        Capability::sign(&Key([0; 32]), good.holder, good.ino, both, u64::MAX, good.layout),
    ];
    let slot = slot_of(&good, 0);
    for (index, capability) in forged.into_iter().enumerate() {
        let regions = Regions::contiguous(0, 10);
        let capability = || capability.clone();
        let refused = |reply: std::io::Result<weft_tests::raw::Message>| {
            let reply = reply.expect("an answer");
            assert_eq!(reply.header.status, Status::Capability, "{index}: {}", reply.error_text());
        };
        refused(io.ask(&ReadRequest { capability: capability(), slot, flags: 0, regions: regions.clone() }));
        refused(io.ask(&SizeRequest { capability: capability() }));
        refused(io.ask(&SyncRequest { capability: capability() }));
        refused(io.ask(&TruncateRequest { capability: capability(), slot, file_bytes: 0 }));
        refused(io.ask(&RangeRequest { capability: capability(), slot, offset: 0, bytes: 10 }));
        refused(io.ask(&AllocateRequest {
            capability: capability(),
            slot,
            offset: 0,
            bytes: 10,
            keep_size: false,
        }));
        let write = WriteRequest { capability: capability(), slot, flags: 0, regions };
        let header = io.request(Op::Write);
        io.send(header, &write.to_bytes(), &[1; 10]).expect("it can be sent");
        refused(io.receive_reply());
    }
    let cut =
        io.ask(&TruncateRequest { capability: read_only.clone(), slot, file_bytes: 0 }).expect("an answer");
    assert_eq!(cut.header.status, Status::Capability, "a right to read is not one to cut");
    for request in [Op::RemoveObjects, Op::ListObjects] {
        let body = match request {
            Op::RemoveObjects => RemoveObjectsRequest { inos: vec![good.ino] }.to_bytes(),
            _ => ListObjectsRequest { cursor: 0, entries_max: 10 }.to_bytes(),
        };
        let header = io.request(request);
        io.send(header, &body, &[]).expect("it can be sent");
        let reply = io.receive_reply().expect("an answer");
        assert_eq!(
            reply.header.status,
            Status::NotPermitted,
            "{request:?} is for servers: {}",
            reply.error_text()
        );
    }
    bystander.check();
    check_unharmed(&mut cluster);
}

#[test]
fn regions_that_do_not_fit_a_file_are_refused() {
    let mut cluster = Served::start(2);
    let bystander = Bystander::start(&cluster);
    let (_meta, capability) = open_file(&cluster, "file", rights::READ | rights::WRITE);
    let slot = slot_of(&capability, 0);
    for (server, name) in ["io0", "io1"].into_iter().enumerate() {
        let slot = slot_of(&capability, server as u16);
        let regions = Regions::contiguous(0, 128 << 10);
        let write = WriteRequest { capability: capability.clone(), slot, flags: 0, regions };
        let mut io = io_connection(&cluster, name);
        let header = io.request(Op::Write);
        io.send(header, &write.to_bytes(), &[1; 64 << 10]).expect("it can be sent");
        let reply = io.receive_reply().expect("an answer");
        assert_eq!(reply.header.status, Status::Ok, "{name}: {}", reply.error_text());
    }
    let extent = |offset, bytes| Extent { offset, bytes };
    let strided = |levels: Vec<(u64, i64)>| {
        let levels = levels.into_iter().map(|(count, stride_bytes)| Level { count, stride_bytes }).collect();
        Region::Strided { offset: 0, block_bytes: 1 << 20, levels }
    };
    let subarray = |dims: Vec<u64>, starts: Vec<u64>, counts: Vec<u64>| Region::Subarray {
        offset: 0,
        dims,
        starts,
        counts,
        element_bytes: 8,
        order: Order::C,
    };
    let repeat = |offset, count, stride_bytes, body| Region::Repeat {
        offset,
        count,
        stride_bytes,
        body: Regions { parts: vec![body] },
    };
    let bytes_at = |offset| Region::Contiguous(extent(offset, 1));
    let list = Region::List(vec![extent(0, 1), extent(3, 1)]);
    let deepest = (0..=REGION_LEVELS_MAX).fold(list.clone(), |body, _| repeat(0, 1, 0, body));
    let wide = Regions { parts: vec![list.clone(); REGION_PARTS_MAX] };
    let cases: Vec<(&str, Region)> = vec![
        ("a repeat before the beginning", repeat(5, 10, -1, list.clone())),
        ("a repeat beyond 2^63", repeat(0, 2, i64::MAX, bytes_at(8))),
        ("a repeat whose extent overflows", repeat(0, u64::MAX, i64::MAX, list.clone())),
        ("repeats whose counts overflow", repeat(0, 1 << 40, 2, repeat(0, 1 << 40, 2, list.clone()))),
        ("bytes without end in one place", repeat(0, 1 << 62, 0, list)),
        ("repeats too deep", deepest),
        ("a repeat of too many parts", Region::Repeat { offset: 0, count: 1, stride_bytes: 0, body: wide }),
        ("beyond 2^64", Region::Contiguous(extent(u64::MAX - 5, 10))),
        ("beyond 2^63", Region::Contiguous(extent(i64::MAX as u64 - 5, 10))),
        ("a share beyond its limit", Region::Contiguous(extent(0, 1 << 60))),
        ("a list beyond 2^63", Region::List(vec![extent(0, 8), extent(u64::MAX - 3, 8)])),
        ("before the beginning", strided(vec![(10, -(1 << 30))])),
        ("a count that overflows", strided(vec![(u64::MAX, 1 << 40)])),
        ("nested counts that overflow", strided(vec![(1 << 40, 1 << 41), (1 << 40, 1 << 21)])),
        ("a corner beyond the array", subarray(vec![10, 10], vec![5, 5], vec![6, 6])),
        ("an array beyond 2^64", subarray(vec![1 << 40, 1 << 40], vec![0, 0], vec![1 << 40, 1 << 40])),
    ];
    for name in ["io0", "io1"] {
        let slot = slot_of(&capability, if name == "io0" { 0 } else { 1 });
        for (what, region) in &cases {
            let mut io = io_connection(&cluster, name);
            let regions = Regions { parts: vec![region.clone()] };
            let read =
                ReadRequest { capability: capability.clone(), slot, flags: 0, regions: regions.clone() };
            let start = Instant::now();
            if let Ok(reply) = io.ask(&read) {
                assert_ne!(reply.header.status, Status::Ok, "{name} read {what}");
            }
            let mut io = io_connection(&cluster, name);
            let write = WriteRequest { capability: capability.clone(), slot, flags: 0, regions };
            let header = io.request(Op::Write);
            let _ = io.send(header, &write.to_bytes(), &[1; 100]);
            if let Ok(reply) = io.receive_reply() {
                assert_ne!(reply.header.status, Status::Ok, "{name} wrote {what}");
            }
            assert!(start.elapsed() < LATENCY_MAX, "{name} thought {:?} about {what}", start.elapsed());
        }
    }
    let mut io = io_connection(&cluster, "io0");
    let regions = Regions::contiguous(0, 10);
    let other_slot = slot_of(&capability, 1);
    for wrong in [other_slot, capability.layout.server_count(), u16::MAX] {
        let read =
            ReadRequest { capability: capability.clone(), slot: wrong, flags: 0, regions: regions.clone() };
        let reply = io.ask(&read).expect("an answer");
        assert_ne!(reply.header.status, Status::Ok, "io0 served slot {wrong}");
    }
    let reply = io
        .ask(&ReadRequest { capability: capability.clone(), slot, flags: 0xff00, regions })
        .expect("an answer");
    assert_ne!(reply.header.status, Status::Ok, "unknown flags were taken");
    for (offset, bytes) in [(u64::MAX, 1), (1, u64::MAX), (1 << 62, 1 << 62), (i64::MAX as u64, 1)] {
        let punch = RangeRequest { capability: capability.clone(), slot, offset, bytes };
        assert_ne!(io.ask(&punch).expect("an answer").header.status, Status::Ok, "punched {offset} {bytes}");
        let reserve =
            AllocateRequest { capability: capability.clone(), slot, offset, bytes, keep_size: false };
        assert_ne!(
            io.ask(&reserve).expect("an answer").header.status,
            Status::Ok,
            "reserved {offset} {bytes}"
        );
    }
    let cut = TruncateRequest { capability: capability.clone(), slot, file_bytes: u64::MAX };
    assert_ne!(
        io.ask(&cut).expect("an answer").header.status,
        Status::Ok,
        "extended to the end of the world"
    );
    bystander.check();
    check_unharmed(&mut cluster);
}

#[test]
fn more_requests_than_credits_do_not_fill_the_server() {
    let mut cluster = Served::start(1);
    let (_file, _meta, capability) = written_file(&cluster, 8 << 20, rights::READ | rights::WRITE);
    let bystander = Bystander::start(&cluster);
    let mut greedy: Vec<_> = (0..4).map(|_| io_connection(&cluster, "io0")).collect();
    let request =
        ReadRequest { capability, slot: 0, flags: 0, regions: Regions::contiguous(0, 8 << 20) }.to_bytes();
    // Nothing of what they asked for is ever read by them.
    for _ in 0..20 * CREDITS_PER_CONNECTION {
        for raw in &mut greedy {
            let header = raw.request(Op::Read);
            raw.socket.set_timeout(Duration::from_millis(1)).expect("a timeout");
            // The server hangs up, or stops reading: either is well.
            let _ = raw.send(header, &request, &[]);
        }
    }
    check_unharmed(&mut cluster);
    bystander.check();
    // One that reads again is served again, or was cut off.
    for raw in &mut greedy {
        raw.socket.set_timeout(Duration::from_secs(2)).expect("a timeout");
        let mut bytes = [0; 1 << 16];
        let _ = raw.socket.read(&mut bytes);
    }
    drop(greedy);
    check_unharmed(&mut cluster);
}

#[test]
fn lies_about_memory_reach_nobody_elses() {
    let mut cluster = Served::start(1);
    let bystander = Bystander::start(&cluster);
    let (_meta, capability) = open_file(&cluster, "file", rights::READ | rights::WRITE);
    let connect = |process_id: u32| {
        let mut io = Raw::unix(&cluster.socket("io0")).expect("it listens");
        io.greet_as(&cluster.key(), HelloRequest { process_id, ..hello() }).expect("the key is right");
        io
    };
    // Which process is at the other end the kernel says, not the greeting.
    let mut mine = vec![7u8; 32];
    let address = mine.as_mut_ptr() as u64;
    let mut io = connect(cluster.pid("meta0"));
    let probe = io.must(&MemoryProbeRequest { address });
    if probe.reached {
        assert_eq!(probe.read, [7; 16], "the server read its peer's memory");
        assert_eq!(std::hint::black_box(&mine)[16..], probe.written, "the server wrote its peer's memory");
    }
    for address in [0, 1, 1 << 46, u64::MAX - 5] {
        let reply = io.ask(&MemoryProbeRequest { address }).expect("an answer");
        let reached = MemoryProbeReply::from_bytes(&reply.body).is_ok_and(|probe| probe.reached);
        assert!(!reached, "nothing is at {address:#x}");
    }
    for (segment, bytes) in [(1, 4096), (0, 4096), (2, u64::MAX), (3, 0)] {
        let reply = io.ask(&SegmentAddRequest { segment, bytes }).expect("an answer");
        assert_ne!(reply.header.status, Status::Ok, "segment {segment} came without memory");
    }
    let run = |segment, address, bytes, stride_bytes, count| MemoryRun {
        segment,
        address,
        bytes,
        stride_bytes,
        count,
    };
    let lies = [
        run(0, 1 << 46, 100_000, 0, 1),
        run(0, 0, 100_000, 0, 1),
        run(0, u64::MAX - 10, 100_000, 0, 1),
        run(0, address, 10, i64::MIN, 10_000),
        run(0, address, 10, i64::MAX, 10_000),
        run(0, address, u64::MAX / 2, 1, 3),
        run(0, address, 1, 1, u64::MAX),
        run(0, address, 0, 0, u64::MAX),
        run(77, 0, 100_000, 0, 1),
        run(0, address, 99_999, 0, 1),
    ];
    for lie in lies {
        for op in [Op::Read, Op::Write] {
            let mut io = connect(std::process::id());
            let regions = Regions::contiguous(0, 100_000);
            let body = match op {
                Op::Read => {
                    ReadRequest { capability: capability.clone(), slot: 0, flags: 0, regions }.to_bytes()
                }
                _ => WriteRequest { capability: capability.clone(), slot: 0, flags: 0, regions }.to_bytes(),
            };
            let header = Header { flags: flags::REMOTE_MEMORY, ..io.request(op) };
            io.send(header, &body, &RemoteMemory { runs: vec![lie.clone()] }.to_bytes())
                .expect("it can be sent");
            // A file without data needs no memory to be read; all else must fail.
            if let Ok(reply) = io.receive_reply() {
                let harmless = op == Op::Read
                    && ReadReply::from_bytes(&reply.body).is_ok_and(|read| read.filled_bytes == 0);
                assert!(harmless || reply.header.status != Status::Ok, "{op:?} with {lie:?}");
            }
        }
    }
    bystander.check();
    check_unharmed(&mut cluster);
}

#[test]
fn sessions_that_come_and_go_leave_nothing() {
    let mut cluster = Served::start(1);
    let bystander = Bystander::start(&cluster);
    let key = cluster.key();
    let before = resident_bytes(cluster.pid("meta0"));
    for round in 0..600 {
        // Opened, never closed, and the exactly-once slot is out of any range.
        let (mut meta, _) = open_file(&cluster, &format!("file-{}", round % 50), rights::READ);
        let request = MkdirRequest {
            caller: Caller { uid: 0, gid: 0, groups: vec![] },
            at: At { dir: ROOT_INO, path: format!("dir-{}", round % 50).into_bytes() },
            mode: 0o755,
            layout: None,
            with_dir: Added(false),
        };
        for slot in [0, 63, 64, 5000, u16::MAX] {
            let header = Header { slot, flags: flags::RETRY, ..meta.request(Op::Mkdir) };
            meta.send(header, &request.to_bytes(), &[]).expect("it can be sent");
            let _ = meta.receive_reply();
        }
        Raw::tcp(cluster.address("io0")).expect("it listens").greet(&key).expect("the key is right");
    }
    bystander.check();
    let client = cluster.client(Transport::Tcp);
    weft_tests::wait_until("the servers forget who has gone", Duration::from_secs(10), || {
        client
            .server_status(false)
            .into_iter()
            .all(|(_, status)| status.expect("every server answers").clients <= 2)
    });
    let after = resident_bytes(cluster.pid("meta0"));
    assert!(after < before + (32 << 20), "600 sessions left {} bytes", after - before);
    check_unharmed(&mut cluster);
}

fn memfd(flags: u32, bytes: u64, seals: i32) -> OwnedFd {
    // SAFETY: a literal name; the result is new and nobody else's. No memory is passed besides.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::ftruncate(fd, bytes as i64), 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// A read of many small pieces into a segment, as a message.
fn read_into_segment(raw: &mut Raw, capability: &Capability, segment: u16, access: u32) -> Option<Status> {
    let levels = vec![Level { count: 500, stride_bytes: 1000 }];
    let regions = Regions::strided(0, 100, levels);
    let body = ReadRequest { capability: capability.clone(), slot: 0, flags: access, regions }.to_bytes();
    let run = MemoryRun { segment, address: 0, bytes: 50_000, stride_bytes: 0, count: 1 };
    let header = Header { flags: flags::REMOTE_MEMORY, ..raw.request(Op::Read) };
    raw.send(header, &body, &RemoteMemory { runs: vec![run] }.to_bytes()).ok()?;
    raw.receive_reply().ok().map(|reply| reply.header.status)
}

#[test]
fn memory_that_may_have_no_pages_is_refused_and_kills_nobody() {
    let mut cluster = Served::start(1);
    let (_file, _meta, capability) = written_file(&cluster, 1 << 20, rights::READ | rights::WRITE);
    let bystander = Bystander::start(&cluster);
    let sealed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let on_disk = tempfile::tempfile().expect("a file");
    on_disk.set_len(4 << 20).expect("a longer file");
    let refused: [(&str, OwnedFd); 5] = [
        ("huge pages", memfd(libc::MFD_HUGETLB, 4 << 20, sealed)),
        ("no seals", memfd(0, 4 << 20, 0)),
        ("read only", memfd(0, 4 << 20, sealed | libc::F_SEAL_WRITE)),
        ("a file on a disk", on_disk.into()),
        ("a device", std::fs::File::open("/dev/zero").expect("it is there").into()),
    ];
    for (what, memory) in refused {
        let mut io = Raw::unix(&cluster.socket("io0")).expect("it listens");
        io.greet(&cluster.key()).expect("the key is right");
        let added = io.ask_with(&SegmentAddRequest { segment: 1, bytes: 4 << 20 }, memory.as_fd());
        let status = added.expect("an answer").header.status;
        // Whoever took it dies of it.
        for access in [io_flags::ACCESS_EACH, io_flags::ACCESS_SIEVE, io_flags::ACCESS_MAPPED] {
            read_into_segment(&mut io, &capability, 1, access);
        }
        assert!(cluster.is_running("io0"), "{what} killed the server");
        assert_ne!(status, Status::Ok, "{what} was taken as a segment");
    }
    bystander.check();
    check_unharmed(&mut cluster);
}

#[test]
fn pages_taken_away_under_a_segment_harm_nobody() {
    let mut cluster = Served::start(1);
    let (_file, _meta, capability) = written_file(&cluster, 1 << 20, rights::READ | rights::WRITE);
    let bystander = Bystander::start(&cluster);
    let memory = memfd(0, 1 << 20, libc::F_SEAL_SHRINK);
    let mut io = Raw::unix(&cluster.socket("io0")).expect("it listens");
    io.greet(&cluster.key()).expect("the key is right");
    let added = io.ask_with(&SegmentAddRequest { segment: 1, bytes: 1 << 20 }, memory.as_fd());
    assert_eq!(added.expect("an answer").header.status, Status::Ok);
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, hole) = (stop.clone(), memory.try_clone().expect("a descriptor"));
    let puncher = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: no memory is passed. Cutting is refused by the seal.
            unsafe {
                libc::fallocate(hole.as_raw_fd(), mode, 0, 1 << 20);
                assert_eq!(libc::ftruncate(hole.as_raw_fd(), 0), -1);
            }
        }
    });
    for round in 0..300 {
        let access = [io_flags::ACCESS_EACH, io_flags::ACCESS_SIEVE, io_flags::ACCESS_MAPPED][round % 3];
        assert_eq!(read_into_segment(&mut io, &capability, 1, access), Some(Status::Ok));
    }
    stop.store(true, Ordering::Relaxed);
    puncher.join().expect("it only punches holes");
    bystander.check();
    check_unharmed(&mut cluster);
}

#[test]
fn requests_of_pieces_that_are_elsewhere_hold_nobody_up() {
    let mut cluster = Served::start(2);
    let client = cluster.client(Transport::Tcp);
    let (_file, _meta, capability) = written_file(&cluster, 1 << 20, rights::READ);
    let (slot, strip_bytes) = (slot_of(&capability, 0), u64::from(capability.layout.strip_bytes()));
    let elsewhere = u64::from(slot_of(&capability, 1)) * strip_bytes;
    let level = |count, stride_bytes| Level { count, stride_bytes };
    let levels = vec![level((1 << 27) - 1, 0), level(2, 2 * strip_bytes as i64)];
    let regions = Regions::strided(elsewhere, 1, levels);
    let request = ReadRequest { capability, slot, flags: 0, regions }.to_bytes();
    assert!(request.len() < 200);
    let bystander = Bystander::start(&cluster);
    let mut greedy: Vec<_> = (0..8).map(|_| io_connection(&cluster, "io0")).collect();
    for raw in &mut greedy {
        let header = raw.request(Op::Read);
        raw.send(header, &request, &[]).expect("it can be sent");
    }
    // Longer than all of them took before each other's turn was theirs.
    std::thread::sleep(2 * LATENCY_MAX);
    bystander.check();
    check_unharmed(&mut cluster);
    drop(greedy);
    weft_tests::wait_until("searches end with their clients", LATENCY_MAX, || {
        let io = client.server_status(false).into_iter().filter(|(server, _)| server.name == "io0");
        io.map(|(_, status)| status.expect("it answers").active_requests).sum::<u64>() <= 1
    });
}

#[test]
fn a_client_that_renews_its_leases_and_acknowledges_nothing_is_waited_for_once() {
    let mut cluster = Served::start(1);
    let (key, address) = (cluster.key(), cluster.address("meta0").to_owned());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let (ready, begun) = std::sync::mpsc::channel();
    let silent = std::thread::spawn(move || {
        let mut raw = Raw::tcp(&address).expect("it listens");
        raw.greet(&key).expect("the key is right");
        let watch = WatchRequest { epoch: 0, acknowledged: 0, at_once: true, end: false };
        let first = raw.must(&watch);
        let known = WatchRequest { epoch: first.epoch, acknowledged: first.last, ..watch };
        raw.must(&known);
        let caller = || Caller { uid: 0, gid: 0, groups: vec![] };
        while !stopped.load(Ordering::Relaxed) {
            let at = At { dir: ROOT_INO, path: b"x".to_vec() };
            let _ = raw.ask(&LookupRequest { caller: caller(), at, follow: false }).expect("an answer");
            // It also asks for changes, and acknowledges none.
            let _ = raw.ask(&known).expect("an answer");
            let _ = ready.send(());
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    begun.recv().expect("it watches");
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/first", 0o755).expect("made");
    for name in ["/second", "/third", "/fourth"] {
        let start = Instant::now();
        client.mkdir(name, 0o755).expect("made");
        assert!(start.elapsed() < LATENCY_MAX, "{name} waited {:?} for a silent client", start.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    silent.join().expect("it was answered");
    check_unharmed(&mut cluster);
}

#[test]
fn a_user_who_comes_again_and_again_with_leases_is_waited_for_once() {
    let mut cluster = Served::start(1);
    let (file, config) = (cluster.scratch().join("user.key"), cluster.config_path());
    let (out, config) = (file.display().to_string(), config.display().to_string());
    cluster.weft(&["key", "issue", "--uid", "1000", "--gid", "1000", "--config", &config, "--out", &out]);
    let (key, address) =
        (weft_client::read_key_file(&file).expect("a key"), cluster.address("meta0").to_owned());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let (ready, begun) = std::sync::mpsc::channel();
    let hostile = std::thread::spawn(move || {
        let mut refused = 0;
        let mut sessions = Vec::new();
        while !stopped.load(Ordering::Relaxed) {
            let mut raw = Raw::tcp(&address).expect("it listens");
            raw.greet(&key).expect("the key is right");
            let watch = WatchRequest { epoch: 0, acknowledged: 0, at_once: true, end: false };
            let reply = raw.ask(&watch).expect("an answer");
            if reply.header.status == Status::Ok {
                let first: WatchReply = weft_wire::body::decode(&reply.header, &reply.body).expect("a reply");
                raw.must(&WatchRequest { epoch: first.epoch, acknowledged: first.last, ..watch });
            }
            refused += usize::from(reply.header.status == Status::Busy);
            let at = At { dir: ROOT_INO, path: b"x".to_vec() };
            let caller = Caller { uid: 1000, gid: 1000, groups: vec![] };
            let _ = raw.ask(&LookupRequest { caller, at, follow: false }).expect("an answer");
            sessions.push(raw);
            let _ = ready.send(());
            std::thread::sleep(Duration::from_millis(500));
        }
        refused
    });
    begun.recv().expect("it watches");
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/first", 0o755).expect("made");
    // Leases that are older than the penalty run out.
    client.mkdir("/second", 0o755).expect("made");
    for name in ["/third", "/fourth", "/fifth"] {
        let start = Instant::now();
        client.mkdir(name, 0o755).expect("made");
        assert!(start.elapsed() < LATENCY_MAX, "{name} waited {:?} for a hostile user", start.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    assert!(hostile.join().expect("it was answered") > 0, "it is told why it gets no leases");
    assert!(cluster.log("meta0").contains("let a lease run out"), "{}", cluster.log("meta0"));
    check_unharmed(&mut cluster);
}

#[test]
fn strangers_leave_descriptors_for_others() {
    let mut cluster = Served::init(ServedOptions { io_servers: 1, ..ServedOptions::default() });
    let few = ["sh", "-c", "ulimit -n 300; exec \"$@\"", "few"].map(String::from).to_vec();
    for name in cluster.names() {
        cluster.start_through(&name, few.clone());
        cluster.wait_ready(&name);
    }
    let silent: Vec<_> = (0..200)
        .flat_map(|_| {
            let tcp = Raw::tcp(cluster.address("io0")).expect("it listens");
            [tcp, Raw::unix(&cluster.socket("io0")).expect("it listens")]
        })
        .collect();
    let start = Instant::now();
    for name in cluster.names() {
        let mut raw = Raw::tcp(cluster.address(&name)).expect("it listens");
        raw.greet(&cluster.key()).expect("who knows the key is served at once");
    }
    assert!(
        start.elapsed() < Duration::from_millis(HANDSHAKE_TIMEOUT_MS) / 2,
        "waited {:?}",
        start.elapsed()
    );
    drop(silent);
    check_unharmed(&mut cluster);
    let log = cluster.log("io0");
    assert!(log.contains("too many connections that prove nothing"), "{log}");
}

#[test]
fn what_clients_say_of_themselves_does_nothing_to_a_terminal_and_sessions_stay_secret() {
    let cluster = Served::start(1);
    let mut raw = Raw::tcp(cluster.address("io0")).expect("it listens");
    let words = "\x1b]0;owned\x07\x1b[2J\u{9b}2J\nio9 fine";
    let said = HelloRequest { host: words.into(), program: words.into(), ..hello() };
    raw.greet_as(&cluster.key(), said.clone()).expect("the key is right");
    let status = raw.must(&StatusRequest { with_clients: true });
    assert!(!status.client_list.is_empty());
    assert!(
        status.client_list.iter().all(|client| client.session != said.session),
        "a session was given away"
    );
    let url = cluster.url();
    let text = cluster.weft(&["status", "--clients", &url]);
    assert!(text.contains("owned"), "{text}");
    assert!(!text.chars().any(|one| one.is_control() && one != '\n'), "{text:?}");
    assert!(!text.lines().any(|line| line.starts_with("io9")), "{text}");
}

#[test]
fn who_is_refused_is_logged_with_user_and_reason() {
    let cluster = Served::start(1);
    let mut raw = Raw::unix(&cluster.socket("io0")).expect("it listens");
    raw.must(&hello_of(&cluster.key()));
    raw.ask(&ProveRequest { proof: [1; 32] }).expect("an answer");
    // SAFETY: the call only returns a number.
    let user = format!("of user {}: the proof is wrong", unsafe { libc::geteuid() });
    weft_tests::wait_until("the refusal is logged", LATENCY_MAX, || cluster.log("io0").contains(&user));
}
