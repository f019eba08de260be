//! Operators' mistakes with a metadata server and three I/O servers, in random histories: directories swapped, emptied, put back from
//! older copies; servers started twice; cluster files edited; keys mixed up. What judges is the real thing: the metadata server's
//! part over a store in memory, the map, the key rings, and what an I/O server says and notes. Processes, addresses and data files are
//! a model.
//!
//! ```text
//!   WEFT_MODEL_HISTORIES=1 WEFT_TEST_SEED=17 cargo test -p weft-server --lib mistakes     one history
//!   WEFT_MODEL_HISTORIES=100000 …                                   more of them
//! ```
//!
//! Each directory carries what nobody but the test sees: a metadata store what was acknowledged in its history, an I/O server's the
//! last change of names that it heard of. A change is told at once; of what the two sides did not tell each other nothing is promised.

use super::judge::NOBODY;
use super::*;
use crate::config::{ClusterConfig, SyncMode};
use crate::current::CurrentMap;
use crate::garbage::orphans::{numbers_to_judge, without_inode};
use crate::garbage::take_over::forget_below;
use crate::key_ring::KeyRing;
use crate::map::endpoints_of;
use crate::member::{after_agreement, meta_server, what_it_has};
use crate::poke::Poke;
use crate::shared::Confirmed;
use crate::stop::StopFlag;
use crate::storage::open_map;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use weft_meta::{
    At, Caller, MemEngine, MetaError, Namespace, NamespaceOptions, NewFile, OpenFlags, ROOT_INO,
};
use weft_reactor::{Reactor, ReactorOptions};
use weft_storage::State;
use weft_wire::keys::{IssuedKey, KeyInfo, KeyKind};
use weft_wire::messages::{ClusterMapReply, endpoint, rights};
use weft_wire::security::{Capability, ClusterKeys, Holder, Key};
use weft_wire::{Header, Op, Wire};

const IO_SERVERS: usize = 3;
const META: usize = IO_SERVERS;
const STEPS: usize = 70;
const FILES_MAX: u64 = 1024;
const NOW: weft_meta::Timestamp = weft_meta::Timestamp { seconds: 1, nanos: 0 };

/// Bytes of a file on one server: whose, and which of all writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    file: u64,
    write: u64,
}

/// Pieces by inode number.
type Pieces = BTreeMap<u64, Piece>;

#[derive(Clone)]
struct IoDirectory {
    server: usize,
    storage: [u8; 16],
    state: State,
    map: Option<ClusterMapReply>,
    pieces: Pieces,
    /// The last change of names that it heard of, and the last run of the metadata server that it has agreed with.
    heard: u64,
    met: Option<[u8; 16]>,
    /// All changes of its data.
    changes: BTreeSet<u64>,
}

struct IoProcess {
    server: usize,
    directory: usize,
    run: [u8; 16],
    config: ClusterConfig,
    address: String,
    keys: KeyRing,
    confirmed: bool,
    /// Its connection to the metadata server, if that has answered.
    link: Option<SessionId>,
    /// The run of the metadata server that has agreed last.
    agreed_with: [u8; 16],
}

/// What was acknowledged in a history of the metadata store.
#[derive(Clone, Default)]
struct History {
    /// Inode numbers of files that have a name.
    names: BTreeMap<u64, u64>,
    unlinked: BTreeSet<u64>,
    pieces: [Pieces; IO_SERVERS],
    /// The last change of data on each server.
    last_change: [u64; IO_SERVERS],
    /// The directory of each server that agreed last.
    agreed_last: [usize; IO_SERVERS],
    /// What was lost by the word of an operator.
    lost: [BTreeSet<u64>; IO_SERVERS],
    changes: BTreeSet<u64>,
    /// Runs of the metadata server that I/O servers were told.
    runs: BTreeSet<[u8; 16]>,
}

struct MetaDirectory {
    engine: MemEngine,
    history: History,
}

struct MetaProcess {
    part: Rc<MetaPart<MemEngine>>,
    registry: Rc<Registry>,
    directory: usize,
    keys: KeyRing,
    address: String,
    map: CurrentMap,
    marked: u64,
}

/// A file that a client has open.
struct Handle {
    file: u64,
    ino: u64,
    capability: Capability,
}

/// Numbers that a seed repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // Knuth's multiplicative generator; the upper bits are the random ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn number(&mut self) -> u64 {
        (self.below(1 << 31) as u64) << 32 | self.below(1 << 31) as u64
    }
}

#[derive(Default, Debug)]
struct Counts {
    refused: u64,
    served: u64,
    changes: u64,
    mistakes: u64,
    recovered: u64,
}

struct World {
    random: Random,
    story: Vec<String>,
    metas: Vec<MetaDirectory>,
    ios: Vec<IoDirectory>,
    /// Which directory is where the cluster file has that of a server; `None`: nothing is there.
    places: [Option<usize>; IO_SERVERS + 1],
    /// The directories that served last.
    served_last: [usize; IO_SERVERS + 1],
    /// What each server finds as cluster file and as cluster key.
    files: [ClusterConfig; IO_SERVERS + 1],
    keys: [String; IO_SERVERS + 1],
    good_file: ClusterConfig,
    meta: Option<MetaProcess>,
    processes: Vec<IoProcess>,
    handles: Vec<Handle>,
    ids: u64,
    /// The operator also knows `weft server replace` and `--accept-older`, and has used one of them.
    has_commands: bool,
    gave_up: bool,
    counts: Counts,
}

fn name_of(server: usize) -> String {
    if server == META { "meta0".into() } else { format!("io{server}") }
}

fn key_text(byte: u8) -> String {
    ClusterKeys::new(Key([byte; 32]), 0).to_text()
}

/// A user's and a host's key, which are no cluster keys.
fn issued_text(kind: KeyKind) -> String {
    let info = KeyInfo { id: [1; 16], issuer: [0; 8], kind, expires_s: 0, name: "someone".into() };
    IssuedKey::issue(&Key([1; 32]), info).expect("a good key").to_text()
}

fn refuse<T>(why: impl ToString) -> Result<T, String> {
    Err(why.to_string())
}

impl World {
    fn new(seed: u64) -> World {
        let config = crate::tests::config(IO_SERVERS as u16, SyncMode::Nosync);
        let mut engine = MemEngine::default();
        engine.set_conflicting();
        Namespace::format(&mut engine, config.cluster.id.0, &Caller::root(), NOW).expect("a new store");
        let io = |server| IoDirectory {
            server,
            storage: [server as u8 + 10; 16],
            state: State::default(),
            map: None,
            pieces: Pieces::new(),
            heard: 0,
            met: None,
            changes: BTreeSet::new(),
        };
        World {
            random: Random(seed),
            story: Vec::new(),
            metas: vec![MetaDirectory { engine, history: History::default() }],
            ios: (0..IO_SERVERS).map(io).collect(),
            places: [Some(0), Some(1), Some(2), Some(0)],
            served_last: [0, 1, 2, 0],
            files: std::array::from_fn(|_| config.clone()),
            keys: std::array::from_fn(|_| key_text(1)),
            good_file: config,
            meta: None,
            processes: Vec::new(),
            handles: Vec::new(),
            ids: 0,
            has_commands: seed.is_multiple_of(3),
            gave_up: false,
            counts: Counts::default(),
        }
    }

    fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn random_id(&mut self) -> [u8; 16] {
        u128::from(self.id()).to_be_bytes()
    }

    fn tell(&mut self, what: impl ToString) {
        self.story.push(what.to_string());
    }

    fn refused(&mut self, who: &str, why: &str) {
        assert!(why.len() > 20, "{who} is refused without a reason: {why:?}");
        self.counts.refused += 1;
        self.tell(format!("  {who} is refused: {}", &why[..why.len().min(90)]));
    }

    /// The cluster file and the keys that a server starts with.
    fn read_files(&self, server: usize) -> Result<(ClusterConfig, KeyRing), String> {
        let text = self.files[server].to_toml();
        let config = ClusterConfig::parse(&text, Path::new("/nowhere/cluster.toml"));
        let config = config.map_err(|error| error.to_string())?;
        config.server(&name_of(server)).map_err(|error| error.to_string())?;
        let keys = ClusterKeys::from_text(&self.keys[server])
            .map_err(|error| format!("cluster.key does not hold a key: {error}"))?;
        Ok((config, KeyRing::new(&keys)))
    }

    async fn start_meta(&mut self, accept_older: bool) {
        if self.meta.is_some() {
            return;
        }
        self.tell(format!("meta0 is started{}", if accept_older { " with --accept-older" } else { "" }));
        match self.opened_meta(accept_older) {
            Ok(meta) => self.meta = Some(meta),
            Err(why) => self.refused("meta0", &why),
        }
    }

    fn opened_meta(&mut self, accept_older: bool) -> Result<MetaProcess, String> {
        let (config, keys) = self.read_files(META)?;
        let server = config.server("meta0").map_err(|error| error.to_string())?;
        let Some(directory) = self.places[META] else { return refuse("there is no store in its directory") };
        let (fresh, run) = (self.random_id(), self.random_id());
        let ring_servers = config.io_servers().count() as u16;
        let options = NamespaceOptions { ring_servers, strip_bytes: 4096, ..NamespaceOptions::default() };
        let mut namespace =
            Namespace::open(self.metas[directory].engine.fork(), options).expect("a sound store");
        let own = namespace.own_storage(fresh).expect("a sound store");
        let was_loaded = namespace.was_loaded().expect("a sound store");
        let kept = open_map(&config, server, &mut namespace, &own).map_err(|error| error.to_string())?;
        let (ring_servers, current) = (kept.ring_servers(), CurrentMap::new(kept.map.clone()));
        let (current, stop) = (current.expect("an eventfd"), StopFlag::new().expect("an eventfd"));
        let part =
            MetaPart::start(namespace, SyncMode::Nosync, keys.clone(), ring_servers, Poke::default(), stop)
                .expect("a thread");
        part.keep_map("meta0", kept, current.clone());
        let restore = Restore { wanted: accept_older || was_loaded, ..Restore::default() };
        let registry = Registry::new("meta0".into(), own, run, Confirmed::new(false), restore);
        let registry = Rc::new(registry);
        assert!(part.registry.set(registry.clone()).is_ok());
        let address = server.addresses[0].clone();
        Ok(MetaProcess { part, registry, directory, keys, address, map: current, marked: 0 })
    }

    fn stop_meta(&mut self) {
        if self.meta.is_none() {
            return;
        }
        self.tell("meta0 ends");
        self.keep_store();
        self.meta = None;
        self.processes.iter_mut().for_each(|process| process.link = None);
    }

    /// What the metadata server's directory holds now.
    fn keep_store(&mut self) {
        if let Some(meta) = &self.meta {
            let directory = &mut self.metas[meta.directory];
            directory.engine = meta.part.namespace.borrow().engine().fork();
            // Also of a run that ended before any I/O server noted it: the next run passes it on.
            directory.history.runs.insert(meta.registry.own.get().run);
        }
    }

    fn start_io(&mut self, server: usize) {
        if self.processes.iter().any(|process| process.server == server) {
            return;
        }
        let Some(directory) = self.places[server] else {
            self.tell(format!("io{server} is started"));
            return self.refused(&name_of(server), "its directory is empty: weft serve --format");
        };
        self.start_io_on(server, directory, None);
    }

    fn start_io_on(&mut self, server: usize, directory: usize, elsewhere: Option<String>) {
        self.tell(format!("io{server} is started on directory {directory}"));
        let opened = self.opened_io(server, directory, elsewhere);
        match opened {
            Ok(process) => self.processes.push(process),
            Err(why) => self.refused(&name_of(server), &why),
        }
    }

    fn opened_io(
        &mut self,
        server: usize,
        directory: usize,
        elsewhere: Option<String>,
    ) -> Result<IoProcess, String> {
        let (config, keys) = self.read_files(server)?;
        let listed = config.server(&name_of(server)).map_err(|error| error.to_string())?;
        let (id, of) = (config.id_of(listed), self.ios[directory].server);
        if usize::from(id) != of {
            return refuse(format!("the directory says `server {of}` where `server {id}` is expected"));
        }
        if self.processes.iter().any(|process| process.directory == directory) {
            return refuse("another process has the directory open");
        }
        let address = elsewhere.unwrap_or_else(|| listed.addresses[0].clone());
        if self.processes.iter().any(|process| process.address == address) {
            return refuse(format!("cannot listen on {address}: address in use"));
        }
        let run = self.random_id();
        let (confirmed, link, agreed_with) = (false, None, NOBODY);
        Ok(IoProcess { server, directory, run, config, address, keys, confirmed, link, agreed_with })
    }

    fn end_io(&mut self, at: usize, in_order: bool) {
        let process = self.processes.remove(at);
        let directory = &mut self.ios[process.directory];
        if in_order && directory.state.run == process.run {
            directory.state.mark += 1;
        }
        if let (Some(link), Some(meta)) = (process.link, &self.meta) {
            meta.part.server_disconnected(link);
        }
    }

    /// Whether a process and the metadata server find each other and accept each other's keys.
    fn connect(&mut self, at: usize) -> Option<SessionId> {
        let meta = self.meta.as_ref()?;
        let process = &self.processes[at];
        if process.link.is_some() {
            return process.link;
        }
        let in_file = crate::map::first_map(&process.config).servers.swap_remove(0);
        let known = self.ios[process.directory].map.as_ref();
        let found = known.map_or_else(|| in_file.clone(), |map| meta_server(map, &in_file));
        let is_found = found.addresses(endpoint::TCP).any(|address| address == meta.address);
        let (theirs, ours) = (process.keys.server_keys(), meta.keys.server_keys());
        let is_accepted = theirs.contains(&ours[0]) && ours.contains(&theirs[0]);
        if !(is_found && is_accepted) {
            return None;
        }
        let link = SessionId(self.random_id());
        self.processes[at].link = Some(link);
        Some(link)
    }

    /// An I/O server says what it has, as `Member` does, until it has begun. False: it ended.
    async fn say(&mut self, at: usize) -> bool {
        for _ in 0..4 {
            let Some(session) = self.connect(at) else { return true };
            let (process, meta) = (&self.processes[at], self.meta.as_ref().expect("it has answered"));
            let directory = &self.ios[process.directory];
            let listed = process.config.server(&name_of(process.server)).expect("it has started");
            let request = RegisterRequest {
                endpoints: endpoints_of(&process.config, listed)
                    .into_iter()
                    .map(|one| match one.transport == endpoint::TCP {
                        true => weft_wire::messages::Endpoint::new(endpoint::TCP, &process.address),
                        false => one,
                    })
                    .collect(),
                map_version: directory.map.as_ref().map_or(0, |map| map.version),
                ..what_it_has(process.server as u16, directory.storage, &directory.state)
            };
            let noted = meta.part.namespace.borrow().server(process.server as u16).expect("a sound store");
            let is_restoring = meta.registry.restore.wanted && !meta.registry.confirmed.is();
            let may_give_up = is_restoring || noted.is_none_or(|noted: ServerRecord| noted.expected);
            let header = Header::request(Op::Register, 1);
            let call = Call { header, session, member: 0, holder: Holder::SERVERS, trusted_with_sizes: true };
            let part = meta.part.clone();
            match part.register(&call, request).await {
                Ok(answer) => {
                    let reply = RegisterReply::from_bytes(&answer.body).expect("a reply");
                    let directory = &mut self.ios[self.processes[at].directory];
                    directory.state = after_agreement(&directory.state, &reply);
                    directory.map = reply.map.or(directory.map.take());
                    if directory.state.run != self.processes[at].run {
                        directory.state.mark += 1;
                        directory.state.run = self.processes[at].run;
                        self.agreed(at, may_give_up);
                        continue;
                    }
                    self.agreed(at, may_give_up);
                    self.processes[at].confirmed = true;
                    return true;
                }
                Err(refusal) => {
                    let name = name_of(self.processes[at].server);
                    let ends = refusal.status == Status::WrongStorage;
                    if ends || part.storage_failure().is_some() {
                        self.refused(&name, &refusal.text);
                    }
                    if ends {
                        self.end_io(at, true);
                    }
                    if let Some(why) = part.storage_failure() {
                        self.refused("meta0", &why);
                        self.stop_meta();
                    }
                    return !ends;
                }
            }
        }
        panic!("io{} says what it has again and again\n{}", self.processes[at].server, self.story.join("\n"));
    }

    /// The two sides have agreed: what the I/O server has is what is known of it, unless an operator has given that up.
    fn agreed(&mut self, at: usize, may_give_up: bool) {
        let meta = self.meta.as_ref().expect("it has agreed");
        let process = &mut self.processes[at];
        let (server, directory) = (process.server, &mut self.ios[process.directory]);
        let history = &mut self.metas[meta.directory].history;
        let (last, story) = (history.last_change[server], || self.story.join("\n"));
        if !may_give_up {
            assert!(
                last == 0 || directory.changes.contains(&last),
                "data of before are served on io{server}\n{}",
                story()
            );
            let is_its_own = directory.met.is_none_or(|met| history.runs.contains(&met));
            assert!(is_its_own, "data of another history are served on io{server}\n{}", story());
            let heard = directory.heard;
            assert!(
                heard == 0 || history.changes.contains(&heard),
                "names of before io{server} heard {heard} are served\n{}",
                story()
            );
        }
        directory.heard = history.changes.last().copied().unwrap_or(0);
        process.agreed_with = meta.registry.run;
        let met = directory.state.meta.expect("it has just agreed").run;
        directory.met = Some(met);
        history.runs.insert(met);
        if may_give_up {
            let had = history.pieces[server].keys().filter(|ino| !directory.pieces.contains_key(ino));
            history.lost[server].extend(had.copied());
        }
        history.pieces[server].clone_from(&directory.pieces);
        history.last_change[server] = directory.changes.last().copied().unwrap_or(0);
        history.lost[server].retain(|ino| !directory.pieces.contains_key(ino));
        history.agreed_last[server] = process.directory;
        self.served_last[server] = process.directory;
    }

    /// A second passes.
    async fn tick(&mut self) {
        // They come again soon where names are not served yet: to agree, to hear of the run, and when they have noted it.
        for _ in 0..3 {
            let mut at = 0;
            while at < self.processes.len() {
                if self.say(at).await {
                    at += 1;
                }
            }
            self.take_over();
        }
        if let Some(meta) = &self.meta {
            meta.registry.has_waited();
            meta.part.go_on(&meta.registry).await;
            if meta.registry.confirmed.is() {
                self.served_last[META] = meta.directory;
            }
        }
    }

    /// The process that clients and the metadata server find for an I/O server.
    fn reached(&self, server: usize) -> Option<usize> {
        let meta = self.meta.as_ref()?;
        let map = meta.map.get();
        let known = map.io_server(server as u16)?;
        let of_address = |address: &str| {
            let is_it = |one: &IoProcess| one.address == address && one.server == server && one.confirmed;
            self.processes.iter().position(is_it)
        };
        let at = known.addresses(endpoint::TCP).find_map(of_address)?;
        let (theirs, ours) = (self.processes[at].keys.server_keys(), meta.keys.server_keys());
        theirs.contains(&ours[0]).then_some(at)
    }

    /// As `Remover::take_over`.
    fn take_over(&mut self) {
        let Some(meta) = self.meta.as_ref().filter(|meta| meta.registry.restore.is_under_way()) else {
            return;
        };
        let reached: Vec<_> = (0..IO_SERVERS).filter_map(|server| self.reached(server)).collect();
        if reached.len() < IO_SERVERS {
            return;
        }
        let inos = reached.iter().flat_map(|at| self.ios[self.processes[*at].directory].pieces.keys());
        let greatest = inos.max().copied().unwrap_or(0);
        let random = self.random.number();
        forget_below(&mut meta.part.namespace.borrow_mut(), greatest + 1, random).expect("a sound store");
        meta.registry.restore.done.set(true);
    }

    fn serving_meta(&self) -> Option<&MetaProcess> {
        self.meta.as_ref().filter(|meta| meta.registry.confirmed.is())
    }

    /// The metadata server counts its mark up, and all who are there hear of it.
    async fn names_changed(&mut self) {
        let change = self.id();
        self.counts.changes += 1;
        let meta = self.meta.as_mut().expect("it has changed something");
        self.metas[meta.directory].history.changes.insert(change);
        let mut marked = meta.marked;
        meta.part.raise_mark(&meta.registry, &mut marked).await;
        meta.marked = marked;
        self.tick().await;
    }

    async fn create(&mut self) {
        if self.serving_meta().is_none() {
            return;
        }
        let file = self.id();
        self.tell(format!("file {file} is made"));
        let meta = self.meta.as_ref().expect("it serves");
        let (name, session) = (format!("f{file}"), SessionId([9; 16]));
        let flags = OpenFlags { read: true, write: true, exclusive: true, ..OpenFlags::default() };
        let attr = {
            let mut namespace = meta.part.namespace.borrow_mut();
            let (root, at) = (Caller::root(), At::new(ROOT_INO, &name));
            let new = NewFile { mode: 0o600, ..NewFile::default() };
            let created = namespace.change(|op| op.create(&root, NOW, session, at, &new, flags));
            let attr = created.expect("a free name").0.attr;
            let closed = namespace.change(|op| {
                op.close(NOW, session, attr.ino, true, None)?;
                op.close(NOW, session, attr.ino, false, None)
            });
            closed.expect("it is open");
            attr
        };
        let layout = attr.layout.expect("a file has one");
        let (holder, all) = (Holder::of_user(0), rights::READ | rights::WRITE);
        let capability = meta.keys.sign(holder, attr.ino, all, u64::MAX, layout);
        self.metas[meta.directory].history.names.insert(file, attr.ino);
        self.handles.push(Handle { file, ino: attr.ino, capability });
        self.names_changed().await;
    }

    async fn unlink(&mut self) {
        let Some(meta) = self.serving_meta() else { return };
        let names: Vec<u64> = self.metas[meta.directory].history.names.keys().copied().collect();
        if names.is_empty() {
            return;
        }
        let file = names[self.random.below(names.len())];
        self.tell(format!("file {file} is removed"));
        let meta = self.meta.as_ref().expect("it serves");
        {
            let mut namespace = meta.part.namespace.borrow_mut();
            let name = format!("f{file}");
            let removed = namespace.change(|op| op.unlink(&Caller::root(), NOW, At::new(ROOT_INO, &name)));
            removed.expect("it has a name");
        }
        let history = &mut self.metas[meta.directory].history;
        history.names.remove(&file);
        history.unlinked.insert(file);
        self.names_changed().await;
    }

    /// A client writes to a file that it has opened some time. Clients of a history that was given up are gone with it: their
    /// files' numbers may be given again.
    async fn write(&mut self) {
        if self.handles.is_empty() || self.serving_meta().is_none() {
            return;
        }
        let newest = self.handles.len();
        let handle = self.random.below(newest).max(self.random.below(newest));
        let server = self.random.below(IO_SERVERS);
        let Some(at) = self.reached(server) else { return };
        let meta = self.meta.as_ref().expect("it serves");
        let (run, history) = (meta.registry.run, &self.metas[meta.directory].history);
        let (process, handle) = (&self.processes[at], &self.handles[handle]);
        if !history.names.contains_key(&handle.file) && !history.unlinked.contains(&handle.file) {
            return;
        }
        let layout = &handle.capability.layout;
        let is_told = process.link.is_some() && process.agreed_with == run;
        if !is_told || layout.slot_of_chain(weft_layout::ChainId::of_single(server as u16)).is_none() {
            return;
        }
        if process.keys.check(&handle.capability, 1, rights::WRITE).is_err() {
            return;
        }
        let (file, ino, directory) = (handle.file, handle.ino, process.directory);
        let is_lost = ino < self.ios[directory].state.lost_below_ino;
        match self.ios[directory].pieces.get(&ino) {
            None if is_lost => return,
            Some(there) if there.file != file => {
                panic!(
                    "bytes of {file} over those of {} as {ino} on io{server}\n{}",
                    there.file,
                    self.story.join("\n")
                )
            }
            _ => {}
        }
        let write = self.id();
        let piece = Piece { file, write };
        self.counts.changes += 1;
        self.tell(format!("file {file} ({ino}) is written on io{server}"));
        self.ios[directory].pieces.insert(ino, piece);
        self.data_changed(server, directory);
        self.tick().await;
    }

    fn data_changed(&mut self, server: usize, directory: usize) {
        let change = self.id();
        let (meta, directory) = (self.meta.as_ref().expect("it serves"), &mut self.ios[directory]);
        directory.state.mark += 1;
        directory.changes.insert(change);
        let history = &mut self.metas[meta.directory].history;
        history.last_change[server] = change;
        history.pieces[server].clone_from(&directory.pieces);
    }

    fn remove(&mut self, at: usize, inos: &[u64]) {
        let (server, directory) = (self.processes[at].server, self.processes[at].directory);
        for ino in inos {
            let Some(piece) = self.ios[directory].pieces.remove(ino) else { continue };
            let meta = self.meta.as_ref().expect("it has removed it");
            let is_unlinked = self.metas[meta.directory].history.unlinked.contains(&piece.file);
            self.tell(format!("  data of file {} ({ino}) is removed on io{server}", piece.file));
            assert!(is_unlinked, "data of a file that nobody removed\n{}", self.story.join("\n"));
            self.data_changed(server, directory);
        }
    }

    /// As `Remover::remove_garbage`.
    async fn remove_garbage(&mut self) {
        let Some(meta) = self.serving_meta() else { return };
        let part = meta.part.clone();
        let page = part.namespace.borrow_mut().begin().garbage(0, FILES_MAX as usize).expect("a sound store");
        let mut done = Vec::new();
        for (ino, layout) in page {
            let mut is_done = true;
            for slot in 0..layout.server_count() {
                match self.reached(usize::from(layout.chain(slot).single_server())) {
                    Some(at) => self.remove(at, &[ino]),
                    None => is_done = false,
                }
            }
            done.extend(is_done.then_some(ino));
        }
        {
            let mut namespace = part.namespace.borrow_mut();
            let noted = namespace.change(|op| {
                op.garbage_done(&done);
                Ok::<_, MetaError>(())
            });
            noted.expect("a sound store");
        }
        self.tick().await;
    }

    /// As `Remover::scan`.
    async fn scan(&mut self) {
        let Some(part) = self.serving_meta().map(|meta| meta.part.clone()) else { return };
        self.tell("data files without an inode are looked for");
        let judged = numbers_to_judge(&part.namespace.borrow()).expect("a sound store");
        for server in 0..IO_SERVERS {
            let Some(at) = self.reached(server) else { continue };
            let pieces = &self.ios[self.processes[at].directory].pieces;
            let old = pieces.keys().copied().filter(|ino| judged.contains(ino)).collect();
            let gone = without_inode(&mut part.namespace.borrow_mut(), old).expect("a sound store");
            self.remove(at, &gone);
        }
        self.tick().await;
    }

    fn check(&mut self) {
        let Some(meta) = self.meta.as_ref().filter(|meta| meta.registry.confirmed.is()) else { return };
        let history = &self.metas[meta.directory].history;
        let story = || self.story.join("\n");
        for process in self.processes.iter().filter(|one| one.agreed_with == meta.registry.run) {
            let (server, directory) = (process.server, &self.ios[process.directory]);
            assert_eq!(
                directory.pieces,
                history.pieces[server],
                "io{server} has something else\n{}",
                story()
            );
            for (file, ino) in &history.names {
                match directory.pieces.get(ino) {
                    Some(piece) => {
                        assert_eq!(piece.file, *file, "{ino} on io{server} is of another file\n{}", story());
                    }
                    None => {
                        let is_lost = *ino < directory.state.lost_below_ino;
                        let was_there = history.lost[server].contains(ino);
                        assert!(is_lost || !was_there, "lost bytes of {file} are zeros\n{}", story());
                    }
                }
            }
            self.counts.served += 1;
        }
        for server in 0..IO_SERVERS {
            let of_server = |one: &&IoProcess| one.server == server && one.agreed_with == meta.registry.run;
            let count = self.processes.iter().filter(of_server).count();
            assert!(count <= 1, "two processes serve as io{server}\n{}", story());
        }
    }

    fn copy_io(&mut self, directory: usize) -> usize {
        self.ios.push(self.ios[directory].clone());
        self.ios.len() - 1
    }

    /// An older copy, or what was replaced by one, is put in the place of a server that does not run.
    fn put_back(&mut self, server: usize) {
        let of_server = |(at, one): (usize, &IoDirectory)| (one.server == server).then_some(at);
        let known: Vec<usize> = match server {
            META => (0..self.metas.len()).collect(),
            _ => self.ios.iter().enumerate().filter_map(of_server).collect(),
        };
        let at = known[self.random.below(known.len())];
        self.tell(format!("directory {at} is put in the place of {}", name_of(server)));
        self.places[server] = Some(at);
    }

    /// Stops a server, in order or not; one that was started twice once.
    fn stop(&mut self, server: usize) {
        if server == META {
            return self.stop_meta();
        }
        let Some(at) = self.processes.iter().position(|process| process.server == server) else { return };
        let in_order = self.random.below(2) == 0;
        self.tell(format!("io{server} {}", if in_order { "is stopped" } else { "is killed" }));
        self.end_io(at, in_order);
    }

    /// Somebody edits the cluster file on one machine.
    fn edit(&mut self) {
        let (machine, one) = (self.random.below(IO_SERVERS + 1), 1 + self.random.below(IO_SERVERS));
        let other = 1 + self.random.below(IO_SERVERS);
        let servers = &mut self.files[machine].servers;
        let what = match self.random.below(5) {
            0 if servers.len() > 2 => {
                servers.pop();
                "loses its last server"
            }
            1 if one.max(other) < servers.len() => {
                let address = servers[one].addresses.clone();
                servers[one].addresses = std::mem::replace(&mut servers[other].addresses, address);
                "has the addresses of two servers swapped"
            }
            2 if one.max(other) < servers.len() => {
                servers.swap(one, other);
                "has two servers in another order"
            }
            3 => {
                servers[0].addresses = vec!["127.0.0.1:7399".into()];
                "has meta0 elsewhere"
            }
            _ => {
                self.files[machine] = self.good_file.clone();
                "is put right"
            }
        };
        self.tell(format!("the cluster file of {} {what}", name_of(machine)));
    }

    /// Somebody puts another key where the cluster key belongs.
    fn mix_keys(&mut self) {
        let machine = self.random.below(IO_SERVERS + 1);
        let (what, text) = match self.random.below(6) {
            0 => ("another cluster's", key_text(2)),
            1 => ("a user's", issued_text(KeyKind::User { uid: 1000, gids: vec![1000] })),
            2 => ("a host's", issued_text(KeyKind::Host { squash_root: false })),
            _ => ("its own", key_text(1)),
        };
        self.tell(format!("cluster.key of {} is {what} key", name_of(machine)));
        self.keys[machine] = text;
        // Running servers look at the file once a second, and go on with what they have where it is none.
        let Ok(keys) = ClusterKeys::from_text(&self.keys[machine]) else { return };
        match machine {
            META => self.meta.iter().for_each(|meta| meta.keys.set(&keys)),
            _ => {
                let of_machine = self.processes.iter().filter(|process| process.server == machine);
                of_machine.for_each(|process| process.keys.set(&keys));
            }
        }
    }

    async fn replace(&mut self, server: usize) {
        if self.serving_meta().is_none() {
            return;
        }
        let part = self.meta.as_ref().expect("it serves").part.clone();
        let request = ReplaceServerRequest { name: name_of(server) };
        let replaced = part.replace_server(request).await;
        if replaced.is_ok() {
            self.tell(format!("io{server} is to be replaced"));
            self.gave_up = true;
        }
    }

    /// One mistake.
    async fn mistake(&mut self) {
        self.counts.mistakes += 1;
        let server = self.random.below(IO_SERVERS);
        match self.random.below(if self.has_commands { 16 } else { 12 }) {
            0 | 1 if self.places[server].is_some() => {
                let copy = self.copy_io(self.places[server].expect("just looked"));
                self.tell(format!("directory {copy} is a copy of that of io{server}"));
            }
            2 => {
                self.keep_store();
                let Some(at) = self.places[META] else { return };
                let (engine, history) = (self.metas[at].engine.fork(), self.metas[at].history.clone());
                self.metas.push(MetaDirectory { engine, history });
                self.tell(format!("directory {} is a copy of that of meta0", self.metas.len() - 1));
            }
            3 | 4 => {
                self.stop(server);
                self.put_back(server);
            }
            5 => {
                self.stop_meta();
                self.put_back(META);
            }
            6 => {
                let other = self.random.below(IO_SERVERS);
                self.stop(server);
                self.stop(other);
                self.tell(format!("the directories of io{server} and io{other} are swapped"));
                self.places.swap(server, other);
            }
            7 => {
                let any = self.random.below(IO_SERVERS + 1);
                self.stop(any);
                self.tell(format!("the directory of {} is emptied", name_of(any)));
                self.places[any] = None;
            }
            8 => {
                let Some(at) = self.places[server] else { return };
                let copy = self.copy_io(at);
                let address = format!("127.0.0.1:{}", 8000 + copy);
                self.start_io_on(server, copy, Some(address));
            }
            9 | 10 => self.edit(),
            11 => self.mix_keys(),
            12 | 13 => self.replace(server).await,
            14 | 15 => {
                self.stop_meta();
                self.put_back(META);
                self.gave_up = true;
                self.start_meta(true).await;
            }
            _ => {}
        }
    }

    async fn step(&mut self) {
        let any = self.random.below(IO_SERVERS + 1);
        match self.random.below(24) {
            0..=3 if any == META => self.start_meta(false).await,
            0..=3 => self.start_io(any),
            4 | 5 => self.stop(any),
            6..=8 => self.create().await,
            9..=12 => self.write().await,
            13 => self.unlink().await,
            14 => self.remove_garbage().await,
            15 => self.scan().await,
            16..=21 => self.mistake().await,
            _ => {}
        }
        self.tick().await;
        self.check();
    }

    /// All mistakes are undone: the files are as they were, and each directory that served last is in its place. They serve if
    /// they belong together.
    async fn undo(&mut self) {
        self.tell("everything is put right");
        while !self.processes.is_empty() {
            self.end_io(0, true);
        }
        self.stop_meta();
        self.files = std::array::from_fn(|_| self.good_file.clone());
        self.keys = std::array::from_fn(|_| key_text(1));
        self.places = self.served_last.map(Some);
        let history = &self.metas[self.served_last[META]].history;
        let is_whole = (0..IO_SERVERS).all(|server| {
            let directory = &self.ios[self.served_last[server]];
            let last = history.last_change[server];
            history.agreed_last[server] == self.served_last[server]
                && (last == 0 || directory.changes.contains(&last))
                && (directory.heard == 0 || history.changes.contains(&directory.heard))
                && directory.met.is_none_or(|met| history.runs.contains(&met))
        });
        if self.gave_up || !is_whole {
            return;
        }
        self.start_meta(false).await;
        (0..IO_SERVERS).for_each(|server| self.start_io(server));
        self.tick().await;
        self.check();
        let serve = self.processes.iter().filter(|process| process.confirmed).count();
        assert!(
            self.serving_meta().is_some() && serve == IO_SERVERS,
            "{serve} serve after all was put right\n{}",
            self.story.join("\n")
        );
        self.counts.recovered += 1;
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

async fn history(seed: u64, all: &mut Counts) {
    let mut world = World::new(seed);
    world.start_meta(false).await;
    (0..IO_SERVERS).for_each(|server| world.start_io(server));
    world.tick().await;
    for _ in 0..STEPS {
        world.step().await;
    }
    world.undo().await;
    let Counts { refused, served, changes, mistakes, recovered } = world.counts;
    all.refused += refused;
    all.served += served;
    all.changes += changes;
    all.mistakes += mistakes;
    all.recovered += recovered;
}

#[test]
fn whatever_operators_mistake_nothing_is_mixed_up_or_removed() {
    let count = number("WEFT_MODEL_HISTORIES").unwrap_or(2000);
    let mut all = Counts::default();
    for seed in weft_test_random::seeds().take(count as usize) {
        Reactor::new(ReactorOptions::default()).expect("a reactor").run(history(seed, &mut all));
    }
    eprintln!("{count} histories: {all:?}");
    let few = count / 2;
    assert!(
        count < 100
            || all.refused > few && all.served > few && all.changes > few && all.recovered > count / 20,
        "{all:?}"
    );
}
