//! Keys end with their requests, and reach no further than these: what servers cannot do.

use std::net::IpAddr;
use weft_transport::registration::RegistrationOptions;
use weft_transport::*;
use weft_verbs::{Fabric, Listener, Work, WorkStatus};
use weft_verbs_double::{Adapter, Pretend, PretendOptions};
use weft_wire::messages::{MemoryRun, RemoteKey, RemoteKeys};
use weft_wire::{Header, Status, Wire, flags};

use crate::common::*;
use crate::raw::{Raw, message};

/// Memory of 1 MiB in three parts, not at the beginning of a page.
const PARTS: [(usize, usize, u64); 3] = [(100, 400_000, 1), (20_000, 400_000, 1), (20_000, 248_576, 1)];

/// A client's link to a server that does as a test likes.
pub struct Pair {
    // The connection before the registrations, and these before the memory.
    pub link: VerbsLink<Pretend>,
    client: VerbsClient<Pretend>,
    pub server: Raw,
    hosts: Pretended,
    pub memory: TestMemory,
}

impl Pair {
    /// The client's memory is registered as a whole, or each part by itself.
    pub fn new(options: VerbsOptions, whole: bool) -> Pair {
        Pair::on(Pretended::make(), options, whole)
    }

    fn on(made: (Pretended, Pretend, Pretend, IpAddr), options: VerbsOptions, whole: bool) -> Pair {
        let (hosts, server, client, ip) = made;
        let mut listener = server.listen((ip, 0).into(), 4).unwrap();
        let address = listener.address();
        let client = VerbsClient::new(client, RegistrationOptions::default());
        let connecting = std::thread::spawn({
            let client = client.clone();
            move || client.connect(address, &options, PATIENCE)
        });
        let endpoint = loop {
            if let Some(endpoint) = listener.next().unwrap() {
                break endpoint;
            }
            std::thread::yield_now();
        };
        let server = Raw::accept(endpoint);
        let link = connecting.join().unwrap().unwrap();
        let memory = TestMemory::new(&PARTS);
        let parts: Vec<_> = memory.runs().iter().map(|run| (run.address, run.bytes)).collect();
        let all = (parts[0].0 - 100, parts[2].0 + parts[2].1 + 16 - (parts[0].0 - 100));
        for (address, bytes) in if whole { vec![all] } else { parts } {
            // SAFETY: the memory lives longer than the client.
            unsafe { client.register(address as *mut u8, bytes as usize) }.unwrap();
        }
        Pair { link, client, server, hosts, memory }
    }

    /// Asks for data, or brings it; returns what the server sees.
    fn ask(&mut self, id: u64, bulk: Bulk) -> (Header, RemoteKeys) {
        submit(&mut self.link, id, &[], bulk).unwrap();
        let (header, rest) = self.server.reply().expect("a request");
        assert!(header.flags & flags::REMOTE_MEMORY != 0);
        (header, RemoteKeys::from_bytes(&rest).unwrap())
    }

    fn read(&mut self, id: u64) -> (Header, RemoteKeys) {
        let runs = self.memory.runs();
        self.ask(id, Bulk::put(runs))
    }

    fn reply(&mut self, header: &Header, work: Work) {
        let reply = message(&header.reply(Status::Ok).moved(self.memory.bytes()), &[], &[]);
        assert_eq!(self.server.outcome(work, &reply), WorkStatus::Ok);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.hosts.complaints(), Vec::<String>::new());
        }
    }
}

fn last(told: &RemoteKeys) -> Work {
    assert!(told.keys_end);
    Work::SendInvalidate { remote_key: told.keys.last().unwrap().remote_key }
}

fn write(key: &RemoteKey, remote_address: u64) -> Work {
    Work::Write { remote_address, remote_key: key.remote_key }
}

fn read(key: &RemoteKey, remote_address: u64) -> Work {
    Work::Read { remote_address, remote_key: key.remote_key }
}

#[test]
fn a_key_ends_with_its_request() {
    for by_client in [false, true] {
        let mut pair = Pair::new(VerbsOptions::default(), true);
        let mut first_key = None;
        for id in 1..9 {
            let (header, told) = pair.read(id);
            assert_eq!(told.keys.len(), 1, "one registration");
            assert_eq!(
                pair.server.outcome(write(&told.keys[0], told.keys[0].address), &[1; 64]),
                WorkStatus::Ok
            );
            let work = if by_client { Work::Send } else { last(&told) };
            pair.reply(&header, work);
            let done = wait_all(&mut pair.link, 1);
            assert_eq!((done[0].header.status, done[0].delivered_bytes), (Status::Ok, 1 << 20));
            assert!(first_key.replace(told.keys[0].remote_key) != Some(told.keys[0].remote_key));
        }
        let binds = pair.hosts.client.counts().binds;
        assert_eq!(binds, if by_client { 2 * 8 } else { 8 });
        let (_, told) = pair.read(9);
        let old = RemoteKey { remote_key: first_key.unwrap(), ..told.keys[0].clone() };
        assert_eq!(pair.server.outcome(write(&old, old.address), &[1; 64]), WorkStatus::RemoteAccess);
        assert!(try_wait(&mut pair.link, 1).is_err_and(|error| error.is_fatal()));
    }
}

#[test]
fn every_key_has_ended_when_the_request_is_complete() {
    for old in 0..3 {
        let mut pair = Pair::new(VerbsOptions::default(), false);
        let (header, told) = pair.read(1);
        assert_eq!(told.keys.len(), 3, "one for each registration");
        for key in &told.keys {
            assert_eq!(pair.server.outcome(write(key, key.address), &[1; 64]), WorkStatus::Ok);
        }
        let before = pair.hosts.client.counts();
        assert_eq!((before.binds, before.doorbells), (3, 1));
        pair.reply(&header, last(&told));
        wait_all(&mut pair.link, 1);
        let after = pair.hosts.client.counts().since(&before);
        assert_eq!((after.binds, after.doorbells), (2, 1), "the server has ended one");
        let key = &told.keys[old];
        assert_eq!(pair.server.outcome(write(key, key.address), &[1; 64]), WorkStatus::RemoteAccess);
    }
}

/// An adapter that does binds and invalidations again with what is sent again gets them only when nothing is.
#[test]
fn keys_end_alone_where_the_adapter_wants_it() {
    let mut adapters = [Adapter::default(), Pretended::client_adapter()];
    adapters.iter_mut().for_each(|adapter| adapter.limits.binds_alone = true);
    let [server, client] = adapters;
    let options = PretendOptions { adapters: vec![server], ..PretendOptions::default() };
    let mut pair = Pair::on(Pretended::with(options, client), VerbsOptions::default(), false);
    pair.link.set_credits(32);
    let (header, told) = pair.read(1);
    assert_eq!(told.keys.len(), 3);
    (2..17).for_each(|id| submit(&mut pair.link, id, &[], Bulk::None).unwrap());
    // More than there are receives for: the last messages have to wait.
    let (other, _) = pair.server.reply().expect("a request");
    pair.server.send(&[&8u16.to_le_bytes()[..], &message(&other.reply(Status::Ok), &[], &[])[2..]].concat());
    wait_all(&mut pair.link, 1);
    (20..23).for_each(|id| submit(&mut pair.link, id, &[], Bulk::None).unwrap());
    let before = pair.hosts.client.counts();
    pair.server.try_post(last(&told), &message(&header.reply(Status::Ok), &[], &[])).unwrap();
    let mut done = Vec::new();
    (0..8).for_each(|_| pair.link.progress(&mut done).unwrap());
    assert_eq!((pair.hosts.client.counts().since(&before).binds, done.len()), (0, 0));
    pair.server.post_receives().unwrap();
    let done = wait_all(&mut pair.link, 1);
    assert_eq!((pair.hosts.client.counts().since(&before).binds, done[0].header.request_id), (2, 1));
}

#[test]
fn a_key_reaches_what_the_pieces_span_and_no_further() {
    let bytes = 64;
    for wrong in [
        |key: &RemoteKey| write(key, key.address - 1),
        |key: &RemoteKey| write(key, key.address + key.bytes - 63),
        |key: &RemoteKey| read(key, key.address),
    ] {
        let mut pair = Pair::new(VerbsOptions::default(), true);
        let (_, told) = pair.read(1);
        let (runs, key) = (pair.memory.runs(), &told.keys[0]);
        let end = runs[2].address + runs[2].bytes;
        assert_eq!((key.address, key.address + key.bytes), (runs[0].address, end));
        assert_eq!(pair.server.outcome(write(key, end - bytes), &[1; 64]), WorkStatus::Ok);
        assert_eq!(pair.server.outcome(wrong(key), &[1; 64]), WorkStatus::RemoteAccess);
        pair.memory.check_untouched_outside();
    }
}

#[test]
fn memory_that_is_written_to_a_file_can_only_be_read() {
    let mut pair = Pair::new(VerbsOptions::default(), true);
    let runs = pair.memory.runs();
    let (_, told) = pair.ask(1, Bulk::get(runs));
    let key = &told.keys[0];
    assert_eq!(pair.server.outcome(read(key, key.address), &[0; 64]), WorkStatus::Ok);
    assert_eq!(pair.server.outcome(write(key, key.address), &[1; 64]), WorkStatus::RemoteAccess);
}

#[test]
fn who_ends_keys_of_other_requests_is_cut_off() {
    let mut pair = Pair::new(VerbsOptions::default(), true);
    pair.link.set_credits(2);
    let (header, _) = pair.read(1);
    let (_, told) = pair.read(2);
    pair.reply(&header, last(&told));
    let error = try_wait(&mut pair.link, 1).unwrap_err();
    assert!(error.to_string().contains("ended a key"), "{error}");
}

#[test]
fn many_regions_are_many_windows() {
    let mut pair =
        Pair::new(VerbsOptions { mechanism: Some(Mechanism::Remote), ..VerbsOptions::default() }, true);
    let memory = TestMemory::new(&[(4096, 4096, 200)]);
    let pieces: Vec<MemoryRun> = (0..200)
        .map(|piece| {
            let run = memory.runs().remove(0);
            MemoryRun { address: run.address + piece * 8192, count: 1, ..run }
        })
        .collect();
    for piece in &pieces {
        // SAFETY: the memory lives longer than the link.
        unsafe { pair.client.register(piece.address as *mut u8, piece.bytes as usize) }.unwrap();
    }
    for id in 1..4 {
        submit(&mut pair.link, id, &[], Bulk::put(pieces.clone())).unwrap();
        // There is not room in the queue for all at once.
        (0..20).for_each(|_| pair.link.progress(&mut Vec::new()).unwrap());
        let (header, mut told) = pair.server.reply().expect("a request");
        while (told.len() as u64) < header.payload_bytes {
            told.extend(pair.server.further());
        }
        let told = RemoteKeys::from_bytes(&told).unwrap();
        assert_eq!(told.keys.len(), 200);
        for key in &told.keys {
            assert_eq!(pair.server.outcome(write(key, key.address), &[1; 64]), WorkStatus::Ok);
        }
        pair.reply(&header, last(&told));
        wait_all(&mut pair.link, 1);
    }
    assert_eq!(pair.hosts.client.counts().binds, 3 * (200 + 199));
    drop(pair);
    drop(memory);
}

#[test]
fn without_windows_keys_are_those_of_registrations() {
    let mut pair = Pair::new(VerbsOptions { windows: false, ..VerbsOptions::default() }, true);
    let (header, told) = pair.read(1);
    assert!(!told.keys_end);
    pair.reply(&header, Work::Send);
    wait_all(&mut pair.link, 1);
    let (_, again) = pair.read(2);
    assert_eq!(told, again);
    assert_eq!(pair.hosts.client.counts().binds, 0);
}
