//! Memory that a server lends: who breaks its rules loses its connection, and harms nobody.

use std::time::{Duration, Instant};

use weft_transport::*;
use weft_verbs::{Work, WorkStatus};
use weft_verbs_double::{Adapter, PretendOptions};
use weft_wire::messages::LentMemory;
use weft_wire::{Header, Op, Status, Wire, flags};

use crate::common::*;
use crate::raw::{Raw, message};
use crate::windows::Pair;

/// All clients but hostile ones move their data themselves.
type Lending = Verbs<Pretended, 8>;

const BYTES: u64 = 100_000;
const ID: u64 = 2;

struct Rig {
    verbs: Verbs<Pretended, 0>,
    bystander: VerbsLink<<Pretended as Hosts>::Fabric>,
    memory: TestMemory,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(VerbsServerOptions::default())
    }

    fn with(options: VerbsServerOptions) -> Rig {
        let verbs = Verbs::with(Pretended::make(), options);
        let mut bystander = verbs.client.connect(verbs.address, &Lending::options(), PATIENCE).unwrap();
        assert_eq!(call(&mut bystander, b"prove", Bulk::None).header.status, Status::Ok);
        Rig { verbs, bystander, memory: TestMemory::new(&[(3, 30_000, 3)]) }
    }

    /// A client that asked for memory to be lent, for a read or a write in one unit, and got it.
    fn asks(&self, verb: Verb) -> (Raw, u64, u32, u32) {
        let mut raw = Raw::proven(&self.verbs);
        raw.send(&request(verb, verb == Verb::Write));
        let (share_offset, address, bytes, key) = raw.lent();
        assert_eq!((share_offset, u64::from(bytes)), (0, BYTES));
        (raw, address, bytes, key)
    }

    fn others_are_well(&mut self) {
        round_trip(&mut self.bystander, &mut self.memory, 50_000, 7);
    }

    fn wait_for_end(&self, text: &str) {
        let begin = Instant::now();
        while !self.verbs.server.ends.lock().unwrap().iter().any(|end| end.contains(text)) {
            assert!(begin.elapsed() < PATIENCE, "{:?}", self.verbs.server.ends.lock().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn request(verb: Verb, write: bool) -> Vec<u8> {
    let told = LentMemory { bytes: BYTES, step_bytes: 0, write };
    let command = Command { verb, bytes: BYTES, unit_bytes: 1 << 20, seed: 1, ..Command::default() };
    let header = Header { flags: flags::REMOTE_MEMORY | flags::LENT_MEMORY, ..Header::request(Op::Ping, ID) };
    message(&header, &command.to_bytes(), &told.to_bytes())
}

/// An envelope alone.
fn alone(kind: u8) -> Vec<u8> {
    vec![0, 0, kind, 0, 0, 0, 0, 0]
}

fn give_back(raw: &mut Raw, remote_key: u32) -> WorkStatus {
    raw.outcome(Work::SendInvalidate { remote_key }, &alone(4))
}

fn touch(verb: Verb, remote_address: u64, remote_key: u32) -> Work {
    match verb {
        Verb::Write => Work::Write { remote_address, remote_key },
        _ => Work::Read { remote_address, remote_key },
    }
}

#[test]
fn who_uses_what_it_has_given_back_is_cut_off() {
    let mut rig = Rig::new();
    for verb in [Verb::Read, Verb::Write] {
        let (mut raw, address, _, key) = rig.asks(verb);
        assert_eq!(raw.outcome(touch(verb, address, key), &[1; 64]), WorkStatus::Ok);
        assert_eq!(give_back(&mut raw, key), WorkStatus::Ok);
        raw.reply().expect("an answer");
        assert_eq!(raw.outcome(touch(verb, address, key), &[1; 64]), WorkStatus::RemoteAccess);
        assert!(raw.is_cut());
        rig.others_are_well();
    }
}

#[test]
fn lent_memory_is_reached_in_one_direction_and_no_further_than_it_goes() {
    let mut rig = Rig::new();
    for (verb, other) in [(Verb::Read, Verb::Write), (Verb::Write, Verb::Read)] {
        let of = |at: i64| move |address: u64| (verb, address.wrapping_add_signed(at));
        let wrong: [&dyn Fn(u64) -> (Verb, u64); 3] =
            [&of(-1), &of(BYTES as i64 - 63), &move |address| (other, address)];
        for wrong in wrong {
            let (mut raw, address, _, key) = rig.asks(verb);
            let (verb, place) = wrong(address);
            assert_eq!(raw.outcome(touch(verb, place, key), &[1; 64]), WorkStatus::RemoteAccess);
            assert!(raw.is_cut());
            rig.others_are_well();
        }
        // Nor over another connection.
        let (_raw, address, _, key) = rig.asks(verb);
        let mut another = Raw::proven(&rig.verbs);
        assert_eq!(another.outcome(touch(verb, address, key), &[1; 64]), WorkStatus::RemoteAccess);
        rig.others_are_well();
    }
}

#[test]
fn who_gives_back_what_is_not_lent_is_cut_off() {
    let mut rig = Rig::new();
    let (mut twice, _, _, key) = rig.asks(Verb::Read);
    assert_eq!(give_back(&mut twice, key), WorkStatus::Ok);
    assert_ne!(give_back(&mut twice, key), WorkStatus::Ok);
    assert!(twice.is_cut());
    rig.others_are_well();
    let (mut nothing, ..) = rig.asks(Verb::Read);
    nothing.send(&alone(4));
    assert!(nothing.is_cut(), "the key is still valid");
    rig.others_are_well();
    for (kind, body) in [(2, false), (0, true)] {
        let (mut raw, _, _, key) = rig.asks(Verb::Write);
        let bytes = if body { request(Verb::Echo, true) } else { alone(kind) };
        raw.try_post(Work::SendInvalidate { remote_key: key }, &bytes).unwrap();
        assert!(raw.is_cut(), "another message ended the key");
        rig.others_are_well();
    }
    let (mut raw, ..) = rig.asks(Verb::Write);
    let (.., fast_key) = raw.fast();
    assert_ne!(give_back(&mut raw, fast_key), WorkStatus::Ok);
    assert!(raw.is_cut());
    rig.others_are_well();
    let mut raw = Raw::proven(&rig.verbs);
    raw.send(&[&alone(3)[..], &[0; 32]].concat());
    assert!(raw.is_cut(), "clients lend nothing");
    rig.others_are_well();
}

#[test]
fn who_never_gives_back_is_cut_off_and_its_memory_taken() {
    let options = ports(|port| port.stall_ms = 100);
    let mut rig = Rig::with(options);
    for verb in [Verb::Read, Verb::Write] {
        let (mut raw, address, _, key) = rig.asks(verb);
        assert!(raw.is_cut());
        rig.wait_for_end("does not give back");
        assert!(raw.try_post(touch(verb, address, key), &[1; 64]).is_err() || raw.is_cut());
        rig.others_are_well();
    }
}

#[test]
fn memory_that_is_lent_to_clients_that_vanish_comes_back() {
    let mut rig = Rig::new();
    // More than there is in the zone of units, if it did not.
    for round in 0..60 {
        let verb = if round % 2 == 0 { Verb::Read } else { Verb::Write };
        drop(rig.asks(verb));
        rig.others_are_well();
    }
    let ended = || rig.verbs.server.ends.lock().unwrap().len();
    let begin = Instant::now();
    while ended() < 60 {
        assert!(begin.elapsed() < PATIENCE, "{}", ended());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_a_client_leaves_out_is_not_what_others_had_there() {
    let rig = Rig::new();
    let (mut raw, _, _, key) = rig.asks(Verb::Write);
    assert_eq!(give_back(&mut raw, key), WorkStatus::Ok);
    let (header, text) = raw.reply().expect("an answer");
    assert_eq!(header.status, Status::Internal);
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("its first byte is 0"), "{text}");
}

#[test]
fn the_way_is_the_one_that_was_asked_for() {
    let mut rig = Rig::new();
    for (verb, write) in [(Verb::Read, true), (Verb::Write, false)] {
        let mut raw = Raw::proven(&rig.verbs);
        raw.send(&request(verb, write));
        assert_eq!(raw.reply().expect("an answer").0.status, Status::Internal);
        rig.others_are_well();
    }
    let mut raw = Raw::proven(&rig.verbs);
    let header = Header { flags: flags::REMOTE_MEMORY | flags::LENT_MEMORY, ..Header::request(Op::Ping, ID) };
    raw.send(&message(&header, &[], &[1; 3]));
    assert_eq!(raw.reply().expect("a refusal").0.status, Status::Malformed);
    assert!(raw.is_cut());
    rig.others_are_well();
}

#[test]
fn where_nothing_can_be_lent_the_server_moves_the_data() {
    let mut adapter = Adapter::default();
    adapter.limits.windows = false;
    let without = PretendOptions { adapters: vec![adapter], ..PretendOptions::default() };
    let off = VerbsServerOptions { lends: false, ..VerbsServerOptions::default() };
    for (pretend, options) in [(without, VerbsServerOptions::default()), (PretendOptions::default(), off)] {
        let made = Pretended::with(pretend, Pretended::client_adapter());
        let verbs = Lending::with(made, options);
        let mut link = verbs.connect();
        round_trip(&mut link, &mut TestMemory::new(&[(100, 500, 300)]), 50_000, 3);
        let transfers = verbs.client.status().devices[0].transfers;
        assert_eq!((transfers.lent, transfers.remote), (0, 2));
    }
}

#[test]
fn servers_lend_only_what_was_asked_for() {
    let lend = |request: u64, share_offset: u64, bytes: u32, key: u32, at: u64| {
        let mut said = alone(3);
        [request, share_offset, at].iter().for_each(|field| said.extend(field.to_le_bytes()));
        said.extend(bytes.to_le_bytes());
        said.extend(key.to_le_bytes());
        said
    };
    let all = 1 << 20;
    for (wrong, why) in [
        ([Some((7, 0, 100)), None, None], "not asked for"),
        ([Some((1, 0, 0)), None, None], "not asked for"),
        ([Some((1, all, 1)), None, None], "not asked for"),
        ([Some((1, u64::MAX, 1)), None, None], "not asked for"),
        ([Some((1, 0, 1 << 19)), Some((1, 1 << 19, 1 << 19)), Some((1, 0, 1))], "not asked for"),
    ] {
        let options = VerbsOptions { mechanism: Some(Mechanism::Lend), ..VerbsOptions::default() };
        let mut pair = Pair::new(options, true);
        let runs = pair.memory.runs();
        submit(&mut pair.link, 1, &[], Bulk::put(runs)).unwrap();
        let (header, _) = pair.server.reply().expect("a request");
        assert_eq!(header.flags, flags::REMOTE_MEMORY | flags::LENT_MEMORY);
        let (key, at) = (pair.server.remote_key(), pair.server.address());
        for (request, share_offset, bytes) in wrong.into_iter().flatten() {
            pair.server.send(&lend(request, share_offset, bytes, key, at));
        }
        let error = try_wait(&mut pair.link, 1).unwrap_err();
        assert!(error.is_fatal() && error.to_string().contains(why), "{error}");
        pair.memory.check_untouched_outside();
    }
    // A request is not answered while memory is lent for it.
    let options = VerbsOptions { mechanism: Some(Mechanism::Lend), ..VerbsOptions::default() };
    let mut pair = Pair::new(options, true);
    let runs = pair.memory.runs();
    submit(&mut pair.link, 1, &[], Bulk::get(runs)).unwrap();
    let (header, _) = pair.server.reply().expect("a request");
    let (key, at) = (pair.server.remote_key(), pair.server.address());
    pair.server.send(&lend(1, 0, 100, key, at));
    pair.server.send(&message(&header.reply(Status::Ok), &[], &[]));
    let error = try_wait(&mut pair.link, 1).unwrap_err();
    assert!(error.is_fatal() && error.to_string().contains("still lends"), "{error}");
}
