//! Tests of following the map, against servers that go by maps of their own and can be anywhere.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_layout::{ChainId, Layout, first_ino_of, shard_of};
use weft_transport::{Bulk, Completion, Link, LinkError, LinkKind, Segment};
use weft_wire::keys::IssuedKey;
use weft_wire::messages::{
    Attr, AttrReply, ClaimLocksReply, ClusterMapReply, DataSize, Empty, Endpoint, FileCountReply, FileKind,
    HelloReply, HelloRequest, IoWork, LockReply, LockState, OpenReply, OpenRequest, PingReply, ProveReply,
    RemovedReply, ReopenRequest, ServerInfo, SpaceReply, StatusReply, SyncAllReply, Time, WriteReply,
    endpoint, rights, server_role,
};
use weft_wire::security::{Capability, Key, server_proof};
use weft_wire::{Header, Op, Status, Wire};

use crate::dial::{Dial, Dialled, Greet, Wish};
use crate::error::{Error, ErrorKind};
use crate::wait::lock;
use crate::{At, Client, ConnectOptions, File, LockKind, LockTarget, LockWait, OpenOptions};

const OURS: [u8; 16] = [1; 16];
const KEY: Key = Key([1; 32]);
const STRIP_BYTES: u32 = 4096;

/// Where the server with this name is at first.
fn home(name: &str) -> String {
    format!("{name}:1")
}

/// A map with this version of a metadata server and so many I/O servers, all at home.
fn map_of(version: u32, io_servers: u16) -> ClusterMapReply {
    let server = |role, id, name: String| {
        let endpoints = vec![Endpoint::new(endpoint::TCP, home(&name))];
        ServerInfo::new(id, name, role, endpoints)
    };
    let io = (0..io_servers).map(|id| server(server_role::IO, id, format!("io{id}")));
    ClusterMapReply {
        version,
        cluster_id: OURS,
        servers: std::iter::once(server(server_role::META, 0, "meta0".into())).chain(io).collect(),
        chains: ClusterMapReply::single_chains(io_servers),
        default_layout: Layout::new(STRIP_BYTES, 0, 2, 2).unwrap(),
    }
}

/// The same map, where a server is elsewhere.
fn moved(mut map: ClusterMapReply, name: &str, addresses: &[&str]) -> ClusterMapReply {
    let server = map.servers.iter_mut().find(|server| server.name == name).unwrap();
    server.endpoints = addresses.iter().map(|address| Endpoint::new(endpoint::TCP, *address)).collect();
    map
}

/// What a server got.
#[derive(Debug, Clone)]
struct Seen {
    server: String,
    header: Header,
    executed: bool,
}

/// Who is where, and goes by what.
#[derive(Default)]
struct World {
    /// By address: name and cluster.
    hosts: HashMap<String, (String, [u8; 16])>,
    /// By name: the version that it goes by, and the map that it serves, encoded.
    maps: HashMap<String, (u32, Vec<u8>)>,
    /// Run of the sessions at the metadata server.
    run: u64,
    seen: Vec<Seen>,
    written: HashMap<String, Vec<u8>>,
    /// A server that serves no map, and does not say so.
    silent: Option<String>,
    /// How long a server takes to serve its map.
    map_takes: Duration,
}

#[derive(Clone, Default)]
struct Net(Arc<Mutex<World>>);

impl Net {
    /// A client that goes by a map, and all servers that are in it at home, which go by it as well.
    fn with_client(map: &ClusterMapReply) -> (Net, Client) {
        Net::with_client_who(map, |_| ())
    }

    fn with_client_who(map: &ClusterMapReply, change: impl FnOnce(&mut ConnectOptions)) -> (Net, Client) {
        let net = Net::default();
        lock(&net.0).run = 1;
        net.go_by(map);
        let client = net.client(map, change).unwrap();
        (net, client)
    }

    fn client(
        &self,
        map: &ClusterMapReply,
        change: impl FnOnce(&mut ConnectOptions),
    ) -> Result<Client, Error> {
        let mut options = ConnectOptions {
            key: Some(IssuedKey::of_cluster(&KEY)),
            retry_timeout_ms: 5000,
            ..ConnectOptions::default()
        };
        change(&mut options);
        Client::over(map.clone(), options, Box::new(NetDial(self.clone())))
    }

    /// All servers of the map are where it says, and nowhere else, and go by it.
    fn go_by(&self, map: &ClusterMapReply) {
        lock(&self.0).hosts.clear();
        for server in &map.servers {
            for address in server.addresses(endpoint::TCP) {
                self.put(address, &server.name, OURS);
            }
            self.serve(&server.name, map.version, map.to_bytes());
        }
    }

    fn put(&self, address: &str, name: &str, cluster_id: [u8; 16]) {
        lock(&self.0).hosts.insert(address.into(), (name.into(), cluster_id));
    }

    fn take_away(&self, address: &str) {
        lock(&self.0).hosts.remove(address);
    }

    fn serve(&self, name: &str, version: u32, map: Vec<u8>) {
        lock(&self.0).maps.insert(name.into(), (version, map));
    }

    /// What servers got of these operations.
    fn seen(&self, op: Op) -> Vec<Seen> {
        lock(&self.0).seen.iter().filter(|seen| seen.header.op == op).cloned().collect()
    }

    fn fetches(&self) -> usize {
        self.seen(Op::ClusterMap).len()
    }
}

struct NetDial(Net);

impl Dial for NetDial {
    fn dial(&self, server: &ServerInfo, _wish: &Wish, greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        let mut last = Error::new("connect", ErrorKind::Unreachable, "it has no address");
        for address in server.addresses(endpoint::TCP) {
            let host = lock(&self.0.0).hosts.get(address).cloned();
            let Some(host) = host else {
                last = Error::new("connect", ErrorKind::Unreachable, "connection refused");
                continue;
            };
            let mut link = NetLink::new(&self.0, address, host);
            match greet(&mut link) {
                Ok(proven) => {
                    let endpoint = Some(Endpoint::new(endpoint::TCP, address));
                    return Ok(Dialled { endpoint, ..Dialled::new(Box::new(link), proven) });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

struct NetLink {
    net: Net,
    address: String,
    host: (String, [u8; 16]),
    /// Readable while there are answers.
    event: OwnedFd,
    answers: Vec<Completion>,
    credits: u16,
}

impl NetLink {
    fn new(net: &Net, address: &str, host: (String, [u8; 16])) -> NetLink {
        // SAFETY: no memory is passed; the descriptor is new.
        let event = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        };
        NetLink { net: net.clone(), address: address.into(), host, event, answers: Vec::new(), credits: 8 }
    }

    fn is_there(&self, world: &World) -> bool {
        world.hosts.get(&self.address) == Some(&self.host)
    }

    fn reply(&self, world: &mut World, header: &Header, body: &[u8], bulk: Bulk) -> Vec<u8> {
        match header.op {
            Op::Hello => {
                let hello = HelloRequest::from_bytes(body).unwrap();
                let server_nonce = [9; 32];
                let proof =
                    server_proof(&IssuedKey::of_cluster(&KEY).secret, &hello.to_bytes(), &server_nonce);
                HelloReply { version: hello.version_max, server_nonce, proof }.to_bytes()
            }
            Op::Prove => ProveReply {
                cluster_id: self.host.1,
                server_name: self.host.0.clone(),
                epoch: world.run,
                credits: 8,
                boot_id: [0; 16],
                loss_epoch: 0,
            }
            .to_bytes(),
            Op::ClusterMap => world.maps[&self.host.0].1.clone(),
            Op::SyncAll => SyncAllReply { loss_epoch: 0 }.to_bytes(),
            Op::Ping => PingReply { echo: Vec::new() }.to_bytes(),
            Op::Status => StatusReply::sample(&mut 1).to_bytes(),
            Op::Unlink => RemovedReply { parent: None, dir: weft_wire::Added(None) }.to_bytes(),
            Op::Open => {
                let request = OpenRequest::from_bytes(body).unwrap();
                open_reply(world.run, first_ino_of(shard_of(request.at.dir)) + 7).to_bytes()
            }
            Op::Reopen => {
                let request = ReopenRequest::from_bytes(body).unwrap();
                open_reply(world.run, request.capability.ino).to_bytes()
            }
            Op::Lookup | Op::GetAttr => AttrReply::sample(&mut 1).to_bytes(),
            Op::Lock => LockReply { state: LockState::Granted }.to_bytes(),
            Op::ClaimLocks => ClaimLocksReply { lost: Vec::new() }.to_bytes(),
            Op::FileCount => FileCountReply { files: 1, tree: weft_wire::Added(None) }.to_bytes(),
            Op::Space => {
                let disk_id = [self.host.0.as_bytes()[2]; 16];
                SpaceReply { space_bytes: 100, free_bytes: 10, available_bytes: 1, disk_id }.to_bytes()
            }
            Op::Size => {
                let mtime = Time { seconds: 0, nanoseconds: 0 };
                DataSize { local_bytes: 0, allocated_bytes: 0, mtime, loss_epoch: 0 }.to_bytes()
            }
            Op::Write => {
                let Bulk::Get(memory) = bulk else { panic!("a write has data") };
                let data = world.written.entry(self.host.0.clone()).or_default();
                let before = data.len();
                for run in memory.runs.iter() {
                    for piece in 0..run.count {
                        let address = (run.address as i64 + run.stride_bytes * piece as i64) as *const u8;
                        // SAFETY: the client lends it until there is an answer.
                        data.extend(unsafe { std::slice::from_raw_parts(address, run.bytes as usize) });
                    }
                }
                let written_bytes = (data.len() - before) as u64;
                let work = IoWork { methods: 0, reads: 0, writes: 1, accessed_bytes: 0, busy_ns: 0 };
                WriteReply { written_bytes, local_bytes: written_bytes, loss_epoch: 0, work }.to_bytes()
            }
            _ => Empty {}.to_bytes(),
        }
    }
}

fn open_reply(run: u64, ino: u64) -> OpenReply {
    let layout = Layout::new(STRIP_BYTES, 0, 2, 2).unwrap();
    let capability = Capability {
        ino,
        rights: rights::READ | rights::WRITE,
        expires_s: u64::MAX >> 1,
        holder: weft_wire::security::Holder([0; 8]),
        layout,
        signature: [3; 16],
    };
    let attr = Attr {
        ino,
        kind: FileKind::File,
        layout: Some(layout),
        size: 0,
        size_live: false,
        ..Attr::sample(&mut 0)
    };
    OpenReply {
        attr,
        capability: Some(capability),
        created: false,
        parent: None,
        run,
        small_bytes: weft_wire::Added(0),
    }
}

impl Link for NetLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Memory
    }
    fn peer(&self) -> &str {
        &self.address
    }
    fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
    fn wants_write(&self) -> bool {
        false
    }
    fn credits(&self) -> u16 {
        self.credits
    }
    fn set_credits(&mut self, credits: u16) {
        self.credits = credits;
    }
    unsafe fn submit(&mut self, header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
        if header.op == Op::ClusterMap {
            let takes = lock(&self.net.0).map_takes;
            std::thread::sleep(takes);
        }
        let net = self.net.clone();
        let world = &mut *lock(&net.0);
        if !self.is_there(world) {
            return Err(LinkError::Closed { peer: self.address.clone() });
        }
        let version = world.maps.get(&self.host.0).map_or(0, |(version, _)| *version);
        let is_stale = header.map_version != 0 && header.map_version < version;
        let server = self.host.0.clone();
        world.seen.push(Seen { server, header, executed: !is_stale });
        let (status, body) = match is_stale {
            true => (Status::StaleMap, Vec::new()),
            false => (Status::Ok, self.reply(world, &header, body, bulk)),
        };
        let header = Header { map_version: version, ..header.reply(status) };
        self.credits -= 1;
        if header.op == Op::ClusterMap && world.silent.as_ref() == Some(&self.host.0) {
            return Ok(());
        }
        self.answers.push(Completion { header, body, delivered_bytes: 0 });
        // SAFETY: eight bytes, as an event descriptor takes them.
        assert_eq!(unsafe { libc::write(self.fd(), 1u64.to_ne_bytes().as_ptr().cast(), 8) }, 8);
        Ok(())
    }
    fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        let mut count = [0u8; 8];
        // SAFETY: room for the eight bytes.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), 8) };
        self.credits += self.answers.len() as u16;
        done.append(&mut self.answers);
        match self.is_there(&lock(&self.net.0)) {
            true => Ok(()),
            false => Err(LinkError::Closed { peer: self.address.clone() }),
        }
    }
    fn watch(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        self.progress(done)
    }
    fn must_arm(&self) -> bool {
        false
    }
    fn add_segment(&mut self, _segment: &Segment) -> Result<(), LinkError> {
        Ok(())
    }
    fn drop_segment(&mut self, _id: u16) -> Result<(), LinkError> {
        Ok(())
    }
}

fn open(client: &Client) -> File {
    client.open("/file", &OpenOptions::new().write(true)).unwrap()
}

fn server_names(client: &Client) -> Vec<String> {
    client.transports().into_iter().map(|used| used.server).collect()
}

/// Each was refused once, and executed once, with the same number and slot.
#[track_caller]
fn assert_repeated_once(seen: &[Seen], requests: usize) {
    assert_eq!(seen.len(), 2 * requests, "{seen:?}");
    for refused in seen.iter().filter(|seen| !seen.executed) {
        let again: Vec<_> = seen
            .iter()
            .filter(|again| again.executed && again.header.request_id == refused.header.request_id)
            .collect();
        assert_eq!(again.len(), 1);
        assert_eq!((again[0].header.slot, &again[0].server), (refused.header.slot, &refused.server));
        assert_eq!(again[0].header.flags, refused.header.flags, "it was not executed before");
    }
    assert_eq!(seen.iter().filter(|seen| seen.executed).count(), requests);
}

#[test]
fn a_request_that_is_refused_for_its_map_is_repeated_with_its_number_and_executed_once() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    net.go_by(&map_of(2, 3));
    client.unlink("/x").unwrap();
    let seen = net.seen(Op::Unlink);
    assert_repeated_once(&seen, 1);
    assert_eq!([0, 1].map(|at| seen[at].header.map_version), [1, 2]);
    assert_eq!((net.fetches(), client.map().version), (1, 2));
    client.unlink("/y").unwrap();
    assert_eq!((net.seen(Op::Unlink).len(), net.fetches()), (3, 1));
}

#[test]
fn shares_of_a_write_are_refused_and_repeated_with_all_their_data() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    let file = open(&client);
    net.go_by(&map_of(2, 3));
    let strip = STRIP_BYTES as usize;
    let data: Vec<u8> = (0..4 * strip).map(|at| (at / strip * 50 + at % 47) as u8).collect();
    file.write_at(&data, 0).unwrap();
    assert_repeated_once(&net.seen(Op::Write), 2);
    assert_eq!(net.fetches(), 1);
    for (server, strips) in [("io0", [0, 2]), ("io1", [1, 3])] {
        let expected: Vec<u8> = strips.iter().flat_map(|at| data[at * strip..][..strip].to_vec()).collect();
        assert!(lock(&net.0).written[server] == expected, "{server}");
    }
}

#[test]
fn a_close_that_nobody_waits_for_is_repeated_too() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    let file = client.open("/file", &OpenOptions::new().read(true)).unwrap();
    net.go_by(&map_of(2, 2));
    file.close().unwrap();
    client.unlink("/x").unwrap();
    assert_repeated_once(&net.seen(Op::Close), 1);
    assert_eq!(net.fetches(), 1);
}

#[test]
fn of_many_threads_that_are_refused_one_fetches_the_map() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    net.go_by(&map_of(2, 3));
    lock(&net.0).map_takes = Duration::from_millis(100);
    std::thread::scope(|scope| {
        for thread in 0..24 {
            let client = &client;
            scope.spawn(move || client.unlink(format!("/{thread}").as_str()).unwrap());
        }
    });
    assert_eq!(net.fetches(), 1);
    let executed = net.seen(Op::Unlink).into_iter().filter(|seen| seen.executed).count();
    assert_eq!(executed, 24);
}

#[test]
fn who_hears_of_a_newer_map_fetches_it_before_the_next_request() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    net.go_by(&map_of(2, 3));
    client.ping("io0", &[]).unwrap();
    assert_eq!((net.fetches(), client.map().version), (0, 1), "the request that hears of it is left alone");
    client.unlink("/x").unwrap();
    let seen = net.seen(Op::Unlink);
    assert!(seen.len() == 1 && seen[0].executed && seen[0].header.map_version == 2, "{seen:?}");
    let fetched = net.seen(Op::ClusterMap);
    assert_eq!((fetched.len(), fetched[0].server.as_str()), (1, "io0"), "of who told it");
}

#[test]
fn an_added_server_counts_for_all_that_asks_the_whole_cluster() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    assert_eq!(client.statfs().unwrap().space_bytes, 200);
    net.go_by(&map_of(2, 4));
    client.unlink("/x").unwrap();
    assert_eq!(client.statfs().unwrap().space_bytes, 400);
    client.sync_all().unwrap();
    assert_eq!(server_names(&client), ["meta0", "io0", "io1", "io2", "io3"]);
    let status = client.server_status(false);
    assert_eq!(status.len(), 5);
    assert!(status.iter().all(|(_, reply)| reply.is_ok()));
    client.ping("io3", &[]).unwrap();
}

#[test]
fn a_chain_that_is_not_known_is_looked_for_once_in_a_while() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    net.go_by(&map_of(2, 3));
    let index = client.inner.io(ChainId(2)).unwrap();
    assert_eq!(client.inner.session().server(index).info().name, "io2");
    assert_eq!((client.inner.io(ChainId(0)).unwrap(), client.inner.io(ChainId(1)).unwrap()), (1, 2));
    let fetches = net.fetches();
    std::thread::sleep(Duration::from_millis(1100));
    for _ in 0..100 {
        let error = client.inner.io(ChainId(9)).unwrap_err();
        assert_eq!((error.status(), error.errno()), (Some(Status::Lost), libc::EIO));
        assert!(error.to_string().contains("chain 9") && error.to_string().contains("version 2"));
    }
    assert!((fetches + 1..=fetches + 4).contains(&net.fetches()), "asked of some servers at once, and once");
}

#[test]
fn an_io_server_that_moved_is_found_while_it_is_used() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    let file = open(&client);
    file.write_at(&[1; 100], 0).unwrap();
    // Only the metadata server knows it yet, which is asked by nobody.
    net.go_by(&moved(map_of(1, 2), "io0", &["elsewhere:1"]));
    let newer = moved(map_of(2, 2), "io0", &["elsewhere:1"]);
    net.serve("meta0", 2, newer.to_bytes());
    let begin = Instant::now();
    file.write_at(&[2; 100], 100).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(lock(&net.0).written["io0"], [[1; 100], [2; 100]].concat());
    assert_eq!(client.map().version, 2);
}

#[test]
fn the_metadata_server_that_moved_is_found_by_the_others_and_hears_what_is_open() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    let file = open(&client);
    net.go_by(&moved(map_of(2, 2), "meta0", &["elsewhere:1"]));
    lock(&net.0).run = 2;
    client.unlink("/x").unwrap();
    let executed = |op| net.seen(op).into_iter().filter(|seen| seen.executed).count();
    assert_eq!((executed(Op::Unlink), executed(Op::Reopen)), (1, 1));
    assert_eq!(client.arrivals(0), 2);
    file.close().unwrap();
}

#[test]
fn one_that_is_asked_and_silent_does_not_keep_others_from_being_asked_again() {
    let (net, client) = Net::with_client_who(&map_of(1, 2), |options| options.retry_timeout_ms = 30_000);
    ["io0", "io1"].iter().for_each(|name| client.ping(name, &[]).map(drop).unwrap());
    let newer = moved(map_of(2, 2), "meta0", &["elsewhere:1"]);
    net.take_away(&home("meta0"));
    lock(&net.0).silent = Some("io0".into());
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The first who were asked did not know.
            std::thread::sleep(Duration::from_millis(1500));
            net.serve("meta0", 2, newer.to_bytes());
            net.put("elsewhere:1", "meta0", OURS);
            net.serve("io1", 2, newer.to_bytes());
        });
        client.unlink("/x").unwrap();
    });
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
}

#[test]
fn servers_that_changed_places_are_told_apart() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    client.ping("io0", &[]).unwrap();
    let swapped = moved(map_of(2, 2), "io0", &["io1:1"]);
    net.go_by(&moved(swapped, "io1", &["io0:1"]));
    // Nothing has told it of a newer map yet but what answers at the addresses.
    for name in ["io0", "io1"] {
        client.ping(name, &[]).unwrap();
        assert_eq!(net.seen(Op::Ping).last().unwrap().server, name);
    }
}

#[test]
fn another_clusters_server_is_untrusted_where_no_newer_map_says_otherwise() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    net.put(&home("io0"), "io0", [2; 16]);
    let error = client.ping("io0", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Untrusted, "{error}");
    assert!(error.to_string().contains("another cluster"), "{error}");
    std::thread::sleep(Duration::from_millis(1100));
    net.go_by(&moved(map_of(2, 2), "io0", &["elsewhere:1"]));
    net.put(&home("io0"), "io0", [2; 16]);
    client.ping("io0", &[]).unwrap();
}

#[test]
fn a_server_that_is_only_down_is_waited_for_and_others_are_asked_now_and_then() {
    let (net, client) = Net::with_client_who(&map_of(1, 2), |options| options.retry_timeout_ms = 1500);
    client.unlink("/x").unwrap();
    net.take_away(&home("io0"));
    let begin = Instant::now();
    let error = client.ping("io0", &[]).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Unreachable, libc::ETIMEDOUT), "{error}");
    assert!((1500..2500).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    assert!((2..=6).contains(&net.fetches()), "{} fetches", net.fetches());
}

#[test]
fn a_dead_server_that_comes_back_elsewhere_is_found_by_who_looks_for_it() {
    let (net, client) = Net::with_client_who(&map_of(1, 2), |options| options.retry_timeout_ms = 1200);
    net.take_away(&home("io0"));
    client.ping("io0", &[]).unwrap_err();
    let dead = client.dead_servers();
    assert_eq!(dead.len(), 1);
    assert!(client.ping("io0", &[]).unwrap_err().errno() == libc::EHOSTDOWN);
    net.go_by(&moved(map_of(2, 2), "io0", &["elsewhere:1"]));
    let begin = Instant::now();
    while client.probe(&dead[0], Duration::from_millis(250)).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(3));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(client.dead_servers().is_empty());
    client.ping("io0", &[]).unwrap();
}

#[test]
fn a_map_that_goes_back_in_version_is_not_gone_by() {
    let (net, client) = Net::with_client_who(&map_of(5, 3), |options| options.retry_timeout_ms = 600);
    net.serve("meta0", 9, map_of(4, 2).to_bytes());
    let begin = Instant::now();
    let error = client.unlink("/x").unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Unreachable, libc::ETIMEDOUT), "{error}");
    assert!(error.to_string().contains("version 9") && error.to_string().contains("version 5"), "{error}");
    assert!((600..2000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    assert_eq!((client.map().version, client.map().io_servers().count()), (5, 3));
    assert!(net.seen(Op::Unlink).len() < 20, "pauses grow");
    assert!(net.seen(Op::Unlink).iter().all(|seen| !seen.executed));
}

#[test]
fn a_map_that_makes_no_sense_is_refused_and_the_error_says_why() {
    type Harm = fn(&mut ClusterMapReply);
    let harms: &[(&str, ErrorKind, Harm)] = &[
        ("another cluster's", ErrorKind::Untrusted, |map| map.cluster_id = [2; 16]),
        ("chain 1", ErrorKind::Protocol, |map| map.chains[1].servers.clear()),
        ("chain 1", ErrorKind::Protocol, |map| map.chains[1].servers = vec![77]),
        ("rising", ErrorKind::Protocol, |map| map.servers[2].id = 0),
        ("called `io0`", ErrorKind::Protocol, |map| map.servers[2].name = "io0".into()),
        ("0 addresses", ErrorKind::Protocol, |map| map.servers[1].endpoints.clear()),
        ("addresses", ErrorKind::Protocol, |map| {
            let one = map.servers[1].endpoints[0].clone();
            map.servers[1].endpoints = vec![one; 5000];
        }),
        ("metadata server", ErrorKind::Protocol, |map| {
            map.servers.remove(0);
        }),
        ("a metadata server of this session", ErrorKind::Protocol, |map| map.servers[0].id = 3),
    ];
    for (told, kind, harm) in harms {
        let (net, client) = Net::with_client(&map_of(1, 2));
        let mut map = map_of(2, 2);
        harm(&mut map);
        for server in ["meta0", "io0", "io1"] {
            net.serve(server, 2, map.to_bytes());
        }
        let error = client.unlink("/x").unwrap_err();
        assert_eq!(error.kind(), *kind, "{error}");
        assert!(error.to_string().contains(told), "{told}: {error}");
        assert_eq!(client.map().version, 1);
        if *told != "a metadata server of this session" {
            let error = net.client(&map, |_| ()).err();
            assert!(error.is_some() || *kind == ErrorKind::Untrusted, "{told}: a client began with it");
        }
    }
    let (net, client) = Net::with_client(&map_of(1, 2));
    ["meta0", "io0", "io1"].iter().for_each(|server| net.serve(server, 2, vec![0xff; 3000]));
    let error = client.unlink("/x").unwrap_err();
    assert!(error.kind() == ErrorKind::Protocol && error.to_string().contains("cannot be read"), "{error}");
}

#[test]
fn where_one_server_serves_nonsense_another_is_asked() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    net.go_by(&map_of(2, 2));
    net.serve("meta0", 2, vec![0xff; 30]);
    client.unlink("/x").unwrap();
    assert_eq!(client.map().version, 2);
}

#[test]
fn a_forked_child_goes_on_with_the_newest_map_and_follows_by_itself() {
    let (net, client) = Net::with_client(&map_of(1, 2));
    net.go_by(&map_of(2, 3));
    client.unlink("/x").unwrap();
    // SAFETY: no other thread of this process uses what the child does.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let inherited = client.map().version == 2 && client.inner.is_unused_fork();
        net.go_by(&map_of(3, 4));
        let follows = client.unlink("/y").is_ok() && client.map().version == 3;
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!(inherited && follows))) };
    }
    let mut status = 0;
    // SAFETY: a live place for the status of a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(client.map().version, 2);
    client.unlink("/z").unwrap();
}

/// A map with two metadata servers, of which each owns a shard.
fn two_shards() -> ClusterMapReply {
    let mut map = map_of(1, 2);
    let endpoints = vec![Endpoint::new(endpoint::TCP, home("meta1"))];
    map.servers.insert(1, ServerInfo::new(1, "meta1", server_role::META, endpoints));
    map
}

/// The servers that executed requests of this operation.
fn executors(net: &Net, op: Op) -> Vec<String> {
    net.seen(op).into_iter().filter(|seen| seen.executed).map(|seen| seen.server).collect()
}

#[test]
fn requests_go_to_the_metadata_server_that_owns_what_they_are_about() {
    let (net, client) = Net::with_client(&two_shards());
    let (first, second) = (9, first_ino_of(1) + 9);
    client.unlink(At::child(first, b"x")).unwrap();
    client.unlink(At::child(second, b"x")).unwrap();
    assert_eq!(executors(&net, Op::Unlink), ["meta0", "meta1"]);
    client.stat(At::ino(second), true).unwrap();
    assert_eq!(executors(&net, Op::Lookup), ["meta1"]);
    client.list_keys().unwrap_err();
    assert_eq!(executors(&net, Op::ListKeys), ["meta0"]);
    assert_eq!(client.statfs().unwrap().files, 2, "each server has counted its own");
    client.sync_names().unwrap();
    assert_eq!(executors(&net, Op::SyncMeta), ["meta0", "meta1"]);
    for shard in client.shards() {
        client.watch(shard, 0, 0, true).unwrap_err();
    }
    client.end_watch().unwrap_err();
    assert_eq!(executors(&net, Op::Watch), ["meta0", "meta1", "meta0", "meta1"]);
}

#[test]
fn open_files_locks_and_closes_stay_with_the_owner_of_their_inode() {
    let (net, client) = Net::with_client(&two_shards());
    let file = |dir| client.open(At::child(dir, b"f"), &OpenOptions::new().read(true)).unwrap();
    let (one, other) = (file(9), file(first_ino_of(1) + 9));
    assert_eq!(executors(&net, Op::Open), ["meta0", "meta1"]);
    let whole = || (LockTarget::Whole, LockKind::Exclusive);
    for file in [&one, &other] {
        let (target, kind) = whole();
        file.lock(target, kind, LockWait::Never).unwrap();
    }
    assert_eq!(executors(&net, Op::Lock), ["meta0", "meta1"]);
    // Both are started again, and each hears of what it owns.
    lock(&net.0).run = 2;
    net.go_by(&ClusterMapReply {
        version: 2,
        ..moved(moved(two_shards(), "meta0", &["elsewhere:1"]), "meta1", &["elsewhere:2"])
    });
    client.unlink(At::child(9, b"x")).unwrap();
    assert_eq!(
        (executors(&net, Op::Reopen), executors(&net, Op::ClaimLocks)),
        (names(&["meta0"]), names(&["meta0"]))
    );
    client.unlink(At::child(first_ino_of(1) + 9, b"x")).unwrap();
    let both = names(&["meta0", "meta1"]);
    assert_eq!((executors(&net, Op::Reopen), executors(&net, Op::ClaimLocks)), (both.clone(), both.clone()));
    one.close_later().unwrap();
    other.close_later().unwrap();
    client.send_closes();
    assert_eq!(executors(&net, Op::Close), both);
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}
