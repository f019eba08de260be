//! A cluster in this process, and a client that says exactly what the test wants.

use crate::config::{ClusterConfig, Generate, ServerRole, SyncMode};
use crate::counters::Counters;
use crate::current::CurrentMap;
use crate::io::IoPart;
use crate::io::work::MethodCounters;
use crate::io_service::IoService;
use crate::listen::RdmaReport;
use crate::map::first_map;
use crate::meta::MetaPart;
use crate::meta_service::MetaService;
use crate::node::Node;
use crate::poke::Poke;
use crate::revoked::Revoked;
use crate::service::Service;
use crate::shared::Shared;
use crate::stop::StopFlag;
pub(super) use crate::tests::ways::Way;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_layout::{Layout, Regions, memory_runs};
use weft_meta::{MemEngine, Namespace, NamespaceOptions};
use weft_reactor::{Reactor, ReactorOptions};
use weft_storage::calibrate::Calibration;
use weft_storage::{BufferPool, DataFiles, FaultDisk, FaultPlan, MemDisk};
use weft_transport::{Bulk, Completion, Link, LinkError, MemoryRuns};
use weft_wire::keys::{IssuedKey, KeyInfo, KeyKind};
use weft_wire::messages::*;
use weft_wire::security::{Capability, Holder, Key, client_proof};
use weft_wire::{Added, Header, Request, Status, VERSIONS, Wire};

pub(super) const ROOT: Caller = Caller { uid: 0, gid: 0, groups: Vec::new() };
const WAIT: Duration = Duration::from_secs(10);
/// A request that is under way for longer is told of.
pub(super) const STUCK_MS: u64 = 300;
const POOL_BYTES: usize = 8 << 20;

pub(super) fn cluster_key() -> Key {
    Key([42; 32])
}

pub(super) fn key_ring() -> crate::key_ring::KeyRing {
    crate::key_ring::KeyRing::new(&(&cluster_key()).into())
}

/// A host's key, whose root is root.
pub(super) fn client_key() -> IssuedKey {
    issue(KeyKind::Host { squash_root: false }, 1)
}

/// A key of the cluster.
pub(super) fn issue(kind: KeyKind, number: u8) -> IssuedKey {
    let info = KeyInfo { id: [number; 16], issuer: [0; 8], kind, expires_s: 0, name: "test".into() };
    IssuedKey::issue(&cluster_key(), info).unwrap()
}

/// What the threads of a server share that keeps nothing on a disk.
pub(crate) fn shared(config: &ClusterConfig, name: &str) -> Shared {
    let server = config.server(name).unwrap();
    let map = CurrentMap::new(first_map(config)).unwrap();
    Shared::new(config, server, key_ring(), "memory", RdmaReport::default(), Revoked::default(), map)
}

/// A capability of [`client_key`]'s holder.
pub(super) fn sign(ino: u64, rights: u32, layout: Layout) -> Capability {
    let holder = Holder::of_key(&client_key().info.id);
    Capability::sign(&cluster_key().capability_key(), holder, ino, rights, u64::MAX, layout)
}

pub(crate) fn config(io_servers: u16, sync: SyncMode) -> ClusterConfig {
    let wanted = Generate {
        path: PathBuf::from("/nowhere/cluster.toml"),
        host: "127.0.0.1".into(),
        port: 7400,
        io_servers,
        sync,
        strip_bytes: 4096,
    };
    ClusterConfig::generate(&wanted).unwrap()
}

/// One metadata server and some I/O servers, each on a thread of its own.
pub(super) struct Cluster<W: Way> {
    pub config: ClusterConfig,
    pub meta: W::Connector,
    pub io: Vec<W::Connector>,
    stop: StopFlag,
    threads: Vec<JoinHandle<()>>,
}

impl<W: Way> Cluster<W> {
    pub fn start(io_servers: u16) -> Cluster<W> {
        Cluster::start_with(io_servers, SyncMode::Nosync, FaultPlan::default())
    }

    pub fn start_with(io_servers: u16, sync: SyncMode, plan: FaultPlan) -> Cluster<W> {
        let config = config(io_servers, sync);
        let stop = StopFlag::new().unwrap();
        let mut threads = Vec::new();
        let mut connectors = Vec::new();
        for server in config.servers.clone() {
            let (connector, hub) = W::open();
            connectors.push(connector);
            let (config, stop) = (config.clone(), stop.clone());
            threads.push(std::thread::spawn(move || {
                let mut shared = shared(&config, &server.name);
                (shared.slow.stuck_ms, shared.slow.look_every) = (STUCK_MS, Duration::from_millis(20));
                shared.slow.threshold.set(STUCK_MS);
                let shared = Arc::new(shared);
                let reactor = Reactor::new(ReactorOptions::default()).unwrap();
                reactor.run(async {
                    let node = Node::new(shared);
                    match server.role {
                        ServerRole::Meta => {
                            let meta = meta_part(&config, sync, stop.clone());
                            serve::<W>(hub, MetaService::new(node, meta), None, &stop).await;
                        }
                        ServerRole::Io => {
                            let io = io_part(node.shared.id, sync, plan);
                            let pool = io.pool.clone();
                            serve::<W>(hub, IoService::new(node, io), Some(&pool), &stop).await;
                        }
                    }
                });
            }));
        }
        let meta = connectors.remove(0);
        Cluster { config, meta, io: connectors, stop, threads }
    }

    pub fn meta(&self) -> Client<W::Link> {
        Client::proven(W::connect(&self.meta), [7; 16])
    }

    pub fn io(&self) -> Vec<Client<W::Link>> {
        self.io.iter().map(|io| Client::proven(W::connect(io), [7; 16])).collect()
    }
}

impl<W: Way> Drop for Cluster<W> {
    fn drop(&mut self) {
        self.stop.stop();
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Serves until `stop` is set.
async fn serve<W: Way>(hub: W::Hub, service: Rc<impl Service>, pool: Option<&BufferPool>, stop: &StopFlag) {
    W::serve(hub, service.clone(), pool);
    stop.wait().await.unwrap();
    service.node().stopping.set();
}

fn meta_part(config: &ClusterConfig, sync: SyncMode, stop: StopFlag) -> Rc<MetaPart<MemEngine>> {
    let mut engine = MemEngine::default();
    // Every operation is run twice: its effects must be those of one.
    engine.set_conflicting();
    let ring_servers = config.io_servers().count() as u16;
    Namespace::format(&mut engine, config.cluster.id.0, &weft_meta::Caller::root(), crate::clock::now())
        .unwrap();
    let options = NamespaceOptions { ring_servers, strip_bytes: 4096, ..NamespaceOptions::default() };
    let namespace = Namespace::open(engine, options).unwrap();
    MetaPart::start(namespace, sync, key_ring(), ring_servers, Poke::default(), stop).unwrap()
}

pub(crate) fn io_part(id: u16, sync: SyncMode, plan: FaultPlan) -> IoPart<FaultDisk<MemDisk>> {
    let files = DataFiles::new(FaultDisk::new(MemDisk::new(1 << 30), plan));
    let (pool, methods) = (BufferPool::new(POOL_BYTES).unwrap(), MethodCounters::among(&Counters::new()));
    IoPart::new(files, pool, id, key_ring(), sync, Calibration::fixed(), methods)
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub status: Status,
    pub text: String,
}

/// A client's connection.
pub(super) struct Client<L: Link> {
    pub link: L,
    /// Of the session.
    pub run: u64,
    next_request_id: u64,
}

pub(super) fn hello(role: u8, session: [u8; 16]) -> HelloRequest {
    HelloRequest {
        version_min: VERSIONS.0,
        version_max: VERSIONS.1,
        role,
        client_nonce: [3; 32],
        key: (role == peer_role::CLIENT).then(|| client_key().info),
        session,
        boot_id: [0; 16],
        process_id: std::process::id(),
        host: "here".into(),
        program: "test".into(),
        ends_with_connection: Added(false),
        member: Added(0),
    }
}

pub(crate) fn hello_of_a_server() -> HelloRequest {
    hello(peer_role::SERVER, [2; 16])
}

impl<L: Link> Client<L> {
    /// Not yet proven.
    pub fn new(link: L) -> Client<L> {
        Client { link, run: 0, next_request_id: 1 }
    }

    pub fn proven(link: L, session: [u8; 16]) -> Client<L> {
        let mut client = Client::new(link);
        client.prove(&client_key().secret, &hello(peer_role::CLIENT, session)).unwrap();
        client
    }

    pub fn prove(&mut self, key: &Key, hello: &HelloRequest) -> Result<ProveReply, Refused> {
        let greeted = self.call(hello)?;
        let proof = client_proof(key, &hello.to_bytes(), &greeted.server_nonce);
        let proven = self.call(&ProveRequest { proof })?;
        self.link.set_credits(proven.credits);
        self.run = proven.epoch;
        Ok(proven)
    }

    /// Ends one open of this run of the session.
    pub fn close(&mut self, ino: u64, access: u32, report: Option<WriteReport>) {
        let id = OpenId { run: self.run, number: 0 };
        self.call(&CloseRequest { files: vec![ClosedFile { ino, access, report, id }] }).unwrap();
    }

    /// What the server tells under this name, if anything.
    pub fn gauge(&mut self, name: &str) -> Option<u64> {
        let gauges = self.call(&StatusRequest { with_clients: false }).unwrap().gauges;
        gauges.iter().find(|gauge| gauge.name == name).map(|gauge| gauge.value)
    }

    /// A request number that was not used.
    pub fn fresh_id(&mut self) -> u64 {
        self.next_request_id += 1;
        self.next_request_id
    }

    pub fn call<R: Request>(&mut self, request: &R) -> Result<R::Reply, Refused> {
        let header = Header::request(R::OP, self.fresh_id());
        self.call_as(header, request)
    }

    pub fn call_as<R: Request>(&mut self, header: Header, request: &R) -> Result<R::Reply, Refused> {
        // SAFETY: no memory is given.
        let done = unsafe { self.exchange(header, &request.to_bytes(), Bulk::None) }.unwrap();
        reply_of::<R>(&done)
    }

    /// # Safety
    /// As for [`Link::submit`].
    pub unsafe fn exchange(
        &mut self,
        header: Header,
        body: &[u8],
        bulk: Bulk,
    ) -> Result<Completion, LinkError> {
        // SAFETY: as the caller promises.
        unsafe { self.link.submit(header, body, bulk) }?;
        let deadline = Instant::now() + WAIT;
        let mut done = Vec::new();
        loop {
            let progressed = self.link.progress(&mut done);
            if let Some(at) = done.iter().position(|done| done.header.request_id == header.request_id) {
                return Ok(done.swap_remove(at));
            }
            progressed?;
            assert!(Instant::now() < deadline, "no answer to {:?}", header.op);
            let events = libc::POLLIN | if self.link.wants_write() { libc::POLLOUT } else { 0 };
            let mut poll = libc::pollfd { fd: self.link.fd(), events, revents: 0 };
            // SAFETY: one live pollfd.
            unsafe { libc::poll(&mut poll, 1, 100) };
        }
    }

    pub fn read(
        &mut self,
        capability: &Capability,
        slot: u16,
        regions: &Regions,
        into: &mut [u8],
    ) -> Result<ReadReply, Refused> {
        let request =
            ReadRequest { capability: capability.clone(), slot, flags: 0, regions: regions.clone() };
        let runs = runs(&capability.layout, slot, regions, into.as_mut_ptr());
        let header = Header::request(ReadRequest::OP, self.fresh_id());
        // SAFETY: `into` outlives the call.
        let done = unsafe { self.exchange(header, &request.to_bytes(), Bulk::put(runs)) }.unwrap();
        reply_of::<ReadRequest>(&done)
    }

    pub fn write(
        &mut self,
        capability: &Capability,
        slot: u16,
        regions: &Regions,
        from: &[u8],
    ) -> Result<WriteReply, Refused> {
        self.write_with(capability, slot, 0, regions, from)
    }

    /// With [`io_flags`].
    pub fn write_with(
        &mut self,
        capability: &Capability,
        slot: u16,
        flags: u32,
        regions: &Regions,
        from: &[u8],
    ) -> Result<WriteReply, Refused> {
        let request = WriteRequest { capability: capability.clone(), slot, flags, regions: regions.clone() };
        let runs = runs(&capability.layout, slot, regions, from.as_ptr().cast_mut());
        let header = Header::request(WriteRequest::OP, self.fresh_id());
        // SAFETY: `from` outlives the call.
        let done = unsafe { self.exchange(header, &request.to_bytes(), Bulk::get(runs)) }.unwrap();
        reply_of::<WriteRequest>(&done)
    }
}

fn reply_of<R: Request>(done: &Completion) -> Result<R::Reply, Refused> {
    if done.header.status != Status::Ok {
        let text = ErrorDetail::from_bytes(&done.body).unwrap().text;
        return Err(Refused { status: done.header.status, text });
    }
    Ok(R::Reply::from_bytes(&done.body).unwrap())
}

/// Where the share of `slot` is in a buffer that holds the request's bytes end to end.
fn runs(layout: &Layout, slot: u16, regions: &Regions, base: *mut u8) -> MemoryRuns {
    let memory = Regions::contiguous(0, regions.total_bytes());
    let pieces = memory_runs(layout, slot, regions, &memory).unwrap();
    let run = |bytes: u64, offset: u64| MemoryRun {
        segment: 0,
        address: base as u64 + offset,
        bytes,
        stride_bytes: 0,
        count: 1,
    };
    pieces.map(|piece| run(piece.bytes, piece.offset)).collect()
}

pub(super) fn create(path: &str, access: u32) -> CreateRequest {
    CreateRequest {
        caller: ROOT,
        at: at(path),
        mode: 0o644,
        exclusive: true,
        layout: None,
        access,
        small: Added(false),
        append: Added(false),
    }
}

pub(super) fn at(path: &str) -> At {
    At { dir: ROOT_INO, path: path.as_bytes().to_vec() }
}

pub(super) fn lookup(path: &str) -> LookupRequest {
    LookupRequest { caller: ROOT, at: at(path), follow: true }
}

pub(super) fn unlink(path: &str) -> UnlinkRequest {
    UnlinkRequest { caller: ROOT, at: at(path), with_dir: weft_wire::Added(false) }
}

/// Tries until it holds.
pub(super) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + 2 * WAIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}
