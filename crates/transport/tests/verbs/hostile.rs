//! What bad peers can do: end their own connection.

use weft_transport::*;
use weft_verbs::Work;
use weft_wire::messages::{MemoryRun, RemoteKey, RemoteKeys};
use weft_wire::security::Key;
use weft_wire::{Header, Op, Status, VERSIONS, Wire, flags};

use crate::common::*;
use crate::raw::{Raw, asking, message};

type Chosen = Verbs<Pretended, 0>;

/// Somebody else, who must not notice anything.
struct Bystander {
    link: VerbsLink<<Pretended as Hosts>::Fabric>,
    memory: TestMemory,
}

impl Bystander {
    fn of(verbs: &Chosen) -> Bystander {
        Bystander { link: verbs.connect(), memory: TestMemory::new(&[(3, 30_000, 3)]) }
    }

    fn is_well(&mut self) {
        round_trip(&mut self.link, &mut self.memory, 50_000, 7);
    }
}

fn request(id: u64) -> Header {
    Header::request(Op::Ping, id)
}

fn echo() -> Vec<u8> {
    Command { verb: Verb::Echo, ..Command::default() }.to_bytes()
}

#[test]
fn strangers_are_told_why_and_cost_no_queue_pair() {
    let verbs = Chosen::start();
    for (said, reason) in [
        (asking([1, 1], &Key([9; 32])), 3),
        (asking([VERSIONS.1 + 1, VERSIONS.1 + 3], &Key([0; 32])), 2),
        (b"hello".to_vec(), 1),
        (Vec::new(), 1),
    ] {
        match Raw::try_connect(&verbs, &said) {
            Err(weft_verbs::VerbsError::Rejected { private_data, .. }) => {
                assert_eq!(private_data[..6], [b'W', b'E', b'F', b'T', reason, 0]);
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a stranger was let in"),
        }
    }
    let options = VerbsOptions { key: Some(Key([1; 32])), ..VerbsOptions::default() };
    let error = verbs.client.connect(verbs.address, &options, PATIENCE).err().unwrap();
    assert!(error.to_string().contains("key"), "{error}");
    Bystander::of(&verbs).is_well();
}

#[test]
fn what_is_no_message_ends_the_connection() {
    let verbs = Chosen::start();
    let mut bystander = Bystander::of(&verbs);
    let whole = message(&request(2), &echo(), &[]);
    let mut damaged = whole.clone();
    damaged[20] ^= 1;
    let mut kind = whole.clone();
    kind[2] = 7;
    let mut further = whole.clone();
    further[2] = 1;
    let long = [&whole[..], &[0; 9]].concat();
    for bad in
        [vec![], vec![0; 3], vec![0; 8], vec![0xff; 100], damaged, kind, further, long, whole[..40].to_vec()]
    {
        let mut raw = Raw::proven(&verbs);
        raw.send(&bad);
        assert!(raw.is_cut(), "{bad:02x?}");
        bystander.is_well();
    }
}

#[test]
fn a_message_within_another_ends_the_connection() {
    let verbs = Chosen::start();
    let mut raw = Raw::proven(&verbs);
    let mut header = request(2);
    header.body_bytes = 100;
    raw.send(&[&[0; 8][..], &header.encode()].concat());
    raw.send(&message(&request(3), &echo(), &[]));
    assert!(raw.is_cut());
}

#[test]
fn refusals_are_told_as_on_the_streams() {
    let verbs = Chosen::start();
    let mut bystander = Bystander::of(&verbs);
    let mut big = request(2);
    big.body_bytes = 1 << 30;
    let mut inline = request(2);
    inline.payload_bytes = 65_537;
    let reply = request(2).reply(Status::Ok);
    let mut unknown = request(2).encode();
    unknown[6] = 0xf0;
    unknown[7] = 0xff;
    let sum = weft_wire::header_checksum(&unknown);
    unknown[60..].copy_from_slice(&sum.to_le_bytes());
    for (bytes, status) in [
        (big.encode(), Status::TooBig),
        (inline.encode(), Status::TooBig),
        (reply.encode(), Status::Malformed),
        (unknown, Status::Unsupported),
    ] {
        let mut raw = Raw::proven(&verbs);
        raw.send(&[&[0; 8][..], &bytes].concat());
        let (header, _) = raw.reply().expect("a refusal");
        assert_eq!((header.request_id, header.status), (2, status));
        assert!(raw.is_cut());
        bystander.is_well();
    }
}

/// As on an adapter whose queue pair stands still.
#[test]
fn a_connection_whose_work_does_not_end_is_cut() {
    let options = ports(|port| (port.stall_ms, port.keep_alive_ms) = (200, 20));
    let mut verbs = Chosen::with(Pretended::make(), options);
    verbs.starves = true;
    let mut bystander = Bystander::of(&verbs);
    let mut raw = Raw::proven(&verbs);
    // It has said that it has more receives than it has: an answer waits for one for ever.
    let answers = (2..100).take_while(|id| {
        raw.send(&message(&request(*id), &echo(), &[]));
        raw.reply().is_some()
    });
    assert!(answers.count() < 32);
    assert!(raw.is_cut());
    let ends = verbs.server.ends.lock().unwrap().concat();
    assert!(ends.contains("does not end work"), "{ends}");
    bystander.is_well();
}

#[test]
fn nothing_large_is_taken_before_the_proof() {
    let verbs = Chosen::start();
    let mut raw = Raw::connect(&verbs);
    raw.send(&message(&request(2), &echo(), &[1]));
    assert_eq!(raw.reply().expect("a refusal").0.status, Status::TooBig);
    assert!(raw.is_cut());
}

#[test]
fn who_sends_more_than_it_may_is_cut_off() {
    let mut verbs = Chosen::start();
    verbs.starves = true;
    let mut bystander = Bystander::of(&verbs);
    let mut raw = Raw::connect(&verbs);
    for id in 0..200 {
        if raw.try_post(Work::Send, &message(&request(id), &echo(), &[])).is_err() {
            break;
        }
    }
    assert!(raw.is_cut());
    wait_for_end(&verbs, "credits");
    bystander.is_well();
    for _ in 0..20 {
        let mut raw = Raw::connect(&verbs);
        while raw.try_post(Work::Send, &[0, 0, 2, 0, 0, 0, 0, 0]).is_ok() {}
        assert!(raw.is_cut());
        bystander.is_well();
    }
}

fn wait_for_end(verbs: &Chosen, text: &str) {
    let begin = std::time::Instant::now();
    while !verbs.server.ends.lock().unwrap().iter().any(|end| end.contains(text)) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", verbs.server.ends.lock().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn credits_out_of_nowhere_end_the_connection() {
    let verbs = Chosen::start();
    let mut raw = Raw::proven(&verbs);
    raw.send(&[0xff, 0xff, 2, 0, 0, 0, 0, 0]);
    assert!(raw.is_cut());
}

#[test]
fn fast_buffers_are_checked() {
    let verbs = Chosen::start();
    let mut bystander = Bystander::of(&verbs);
    let data = [5; 1000];
    let command = Command { verb: Verb::Ignore, ..Command::default() };
    let good = message(&request(2), &command.to_bytes(), &data);
    let mut raw = Raw::proven(&verbs);
    raw.write_fast(1, &good);
    assert_eq!(raw.reply().expect("an answer").0.status, Status::NoSpace);
    let mut too_long = request(3);
    too_long.payload_bytes = 65_537;
    let mut long_body = request(3);
    long_body.body_bytes = 9000;
    let mut remote = request(3);
    remote.flags |= flags::REMOTE_MEMORY;
    let of = |header: &Header| [&[0; 8][..], &header.encode()].concat();
    let credits_alone = vec![0, 0, 2, 0, 0, 0, 0, 0];
    for (number, bytes) in [
        (4, good.clone()),
        (u32::MAX, good.clone()),
        (0, vec![0; 80]),
        (0, of(&too_long)),
        (0, of(&long_body)),
        (0, of(&remote)),
        (0, credits_alone),
    ] {
        let mut raw = Raw::proven(&verbs);
        raw.write_fast(number, &bytes);
        assert!(raw.is_cut(), "{number}");
        bystander.is_well();
    }
}

#[test]
fn a_fast_buffer_in_use_is_not_taken_twice() {
    let verbs = Chosen::start();
    let mut raw = Raw::proven(&verbs);
    let slow = Command { verb: Verb::Ignore, delay_ms: 300, ..Command::default() };
    raw.write_fast(0, &message(&request(2), &slow.to_bytes(), &[1; 100]));
    raw.write_fast(0, &message(&request(3), &slow.to_bytes(), &[1; 100]));
    assert!(raw.is_cut());
}

fn described(
    raw: &Raw,
    keys: &[(u64, u64, u32)],
    runs: &[(u16, u64, u64)],
    bytes: u64,
    verb: Verb,
) -> Vec<u8> {
    let key = |&(at, bytes, remote_key): &(u64, u64, u32)| RemoteKey {
        address: raw.address() + at,
        bytes,
        remote_key,
    };
    let run = |&(segment, at, bytes): &(u16, u64, u64)| {
        let address = raw.address().wrapping_add(at);
        MemoryRun { segment, address, bytes, stride_bytes: 0, count: 1 }
    };
    let told = RemoteKeys {
        keys: keys.iter().map(key).collect(),
        runs: runs.iter().map(run).collect(),
        keys_end: false,
    };
    let command = Command { verb, bytes, unit_bytes: 10_000, ..Command::default() };
    let header = Header { flags: flags::REMOTE_MEMORY, ..request(2) };
    message(&header, &command.to_bytes(), &told.to_bytes())
}

#[test]
fn lies_about_memory_are_refused() {
    let verbs = Chosen::start();
    let mut bystander = Bystander::of(&verbs);
    for (keys, runs) in [
        (vec![(0, 1000, 1)], vec![(1, 0, 1001)]),
        (vec![(0, 1000, 1)], vec![(0, 0, 10)]),
        (vec![(0, 1000, 1)], vec![(2, 0, 10)]),
        (vec![(0, 1000, 1)], vec![(1, u64::MAX, 10)]),
        (vec![(0, u64::MAX, 1)], vec![(1, 10, 1 << 40)]),
        (vec![], vec![(1, 0, 10)]),
    ] {
        let mut raw = Raw::proven(&verbs);
        let bad = described(&raw, &keys, &runs, 10, Verb::Read);
        raw.send(&bad);
        assert_eq!(raw.reply().expect("a refusal").0.status, Status::Malformed, "{keys:?} {runs:?}");
        assert!(raw.is_cut());
        bystander.is_well();
    }
    let mut raw = Raw::proven(&verbs);
    raw.send(&message(&Header { flags: flags::REMOTE_MEMORY, ..request(2) }, &echo(), &[1; 30]));
    assert_eq!(raw.reply().expect("a refusal").0.status, Status::Malformed);
    assert!(raw.is_cut());
    bystander.is_well();
}

#[test]
fn keys_that_are_not_the_peers_own_end_only_its_connection() {
    let verbs = Chosen::start();
    let mut bystander = Bystander::of(&verbs);
    for verb in [Verb::Read, Verb::Write, Verb::ReadHandingOver] {
        let mut raw = Raw::proven(&verbs);
        let wrong = raw.remote_key() ^ 0x5500;
        let bad = described(&raw, &[(0, 50_000, wrong)], &[(1, 0, 50_000)], 50_000, verb);
        raw.send(&bad);
        assert!(raw.is_cut());
        bystander.is_well();
    }
}

#[test]
fn who_lets_keys_end_that_do_not_ends_only_its_connection() {
    let verbs = Chosen::start();
    let mut bystander = Bystander::of(&verbs);
    for alien in [0, 0x5500] {
        let mut raw = Raw::proven(&verbs);
        let remote_key = raw.remote_key() ^ alien;
        let key = RemoteKey { address: raw.address(), bytes: 100, remote_key };
        let told = RemoteKeys { keys: vec![key], runs: Vec::new(), keys_end: true };
        let header = Header { flags: flags::REMOTE_MEMORY, ..request(2) };
        raw.send(&message(&header, &echo(), &told.to_bytes()));
        assert!(raw.is_cut());
        bystander.is_well();
    }
}

#[test]
fn the_servers_memory_is_out_of_reach() {
    let verbs = Chosen::start();
    let mut bystander = Bystander::of(&verbs);
    let (fast, each, key) = Raw::proven(&verbs).fast();
    let beyond = fast + 4 * u64::from(each);
    for (remote_address, remote_key) in
        [(beyond, key), (fast - 8, key), (fast, key ^ 1), (0x1000, 0), (fast, 0)]
    {
        for work in [Work::Write { remote_address, remote_key }, Work::Read { remote_address, remote_key }] {
            let mut raw = Raw::proven(&verbs);
            raw.try_post(work, &[1; 64]).unwrap();
            assert!(raw.is_cut(), "{work:?}");
            bystander.is_well();
        }
    }
    // Not even its own Fast buffers may be read.
    let mut raw = Raw::proven(&verbs);
    let (remote_address, _, remote_key) = raw.fast();
    raw.try_post(Work::Read { remote_address, remote_key }, &[0; 64]).unwrap();
    assert!(raw.is_cut());
    bystander.is_well();
}

#[test]
fn a_full_server_says_so() {
    let options = ports(|port| port.receives = 64);
    let verbs = Chosen::with(Pretended::make(), options);
    let mut links = Vec::new();
    let error = loop {
        match verbs.client.connect(verbs.address, &VerbsOptions::default(), PATIENCE) {
            Ok(link) => links.push(link),
            Err(error) => break error,
        }
        assert!(links.len() < 64);
    };
    assert!(error.to_string().contains("no room"), "{error}");
    assert!(links.len() >= 8, "{}", links.len());
    for link in &mut links {
        assert_eq!(call(link, b"prove", Bulk::None).header.status, Status::Ok);
        link.set_credits(16);
        let memory = &mut TestMemory::new(&[(1, 100_000, 1)]);
        round_trip(link, memory, 30_000, 1);
        let body = Command { verb: Verb::Echo, extra: vec![1; 100_000], ..Command::default() }.to_bytes();
        assert_eq!(call(link, &body, Bulk::None).body, body);
    }
    links.clear();
    std::thread::sleep(std::time::Duration::from_millis(100));
    Bystander::of(&verbs).is_well();
}

#[test]
fn random_failures_of_work_end_connections_and_nothing_else() {
    use weft_verbs::WorkStatus;
    use weft_verbs_double::{Faults, When};
    let verbs = Chosen::start();
    let faults =
        Faults { failed_work: Some((When::OneIn(40), WorkStatus::RetriesExceeded)), ..Faults::default() };
    verbs.hosts.server.set_faults(faults);
    let (mut well, mut ended) = (0, 0);
    let mut memory = TestMemory::new(&[(3, 70_000, 3)]);
    memory.fill(3);
    for _ in 0..60 {
        let Ok(mut link) = verbs.client.connect(verbs.address, &VerbsOptions::default(), PATIENCE) else {
            continue;
        };
        let proven = submit(&mut link, 1, b"prove", Bulk::None).and_then(|()| try_wait(&mut link, 1));
        if proven.is_err() {
            ended += 1;
            continue;
        }
        let command =
            Command { verb: Verb::Write, bytes: 210_000, unit_bytes: 30_000, seed: 3, ..Command::default() };
        let written = submit(&mut link, 2, &command.to_bytes(), Bulk::get(memory.runs()))
            .and_then(|()| try_wait(&mut link, 1));
        match written {
            Ok(done) => {
                assert_eq!(done[0].header.status, Status::Ok);
                well += 1;
            }
            Err(error) => {
                assert!(error.is_fatal());
                ended += 1;
            }
        }
    }
    assert!(well > 0 && ended > 0, "{well} well, {ended} ended");
    verbs.hosts.server.set_faults(Faults::default());
    Bystander::of(&verbs).is_well();
}
