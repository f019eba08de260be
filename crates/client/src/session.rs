//! This process's connections to a cluster: for each server a few lanes, and the numbers that requests carry.
//!
//! ```text
//!   chain of a layout ──► chains: 0 1 2 3 … ──► servers: meta0 io0 io1 io2 …    both only grow: an index stays what it is
//!   map, version 7 ─────── brings both up to date, then counts ──┘   └ where it is reached, lanes, health
//! ```
//!
//! A request reads these tables without a lock. A newer map (`follow.rs`) adds servers to them and changes where they are reached; a server
//! that it does not have any more keeps its index, and is listed no longer.
//!
//! A forked child has its own session; of its parent's it only closes the descriptors.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use weft_transport::LinkKind;
use weft_wire::limits::LANES_PER_SERVER_MAX;
use weft_wire::messages::{ClusterMapReply, ServerInfo, endpoint, server_role};

use crate::batch::Call;
use crate::closing::Closing;
use crate::dial::{Dialled, Fallback, Wish};
use crate::error::Error;
use crate::follow::Following;
use crate::fork;
use crate::greet::random;
use crate::health::Health;
use crate::lane::{Lane, LaneUse};
use crate::losses::ServerLosses;
use crate::rdma::RdmaOptions;
use crate::reach::Reach;
use crate::table::Table;
use crate::traffic::Traffic;
use crate::wait::lock;

/// Changing operations of one session that may be under way at once; the metadata server keeps a reply for each.
const EXACTLY_ONCE_SLOTS: u16 = 512;
/// Of these, what each process has of a session that it shares.
const MEMBER_SLOTS: u16 = 8;

/// What a server is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Meta,
    Io,
}

impl Role {
    fn of(info: &ServerInfo) -> Role {
        if info.role == server_role::META { Role::Meta } else { Role::Io }
    }
}

/// A server and the lanes to it.
pub(crate) struct Server {
    pub role: Role,
    id: u16,
    /// As the newest map has it.
    info: Mutex<Arc<ServerInfo>>,
    /// Whether the newest map has it.
    is_listed: AtomicBool,
    rdma_addresses: AtomicUsize,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// Held while a connection to a metadata server is made, for files may have to be opened again on it.
    pub(crate) arriving: Mutex<Arrival>,
    /// What all its lanes can do; nothing before the first.
    reach: Mutex<Option<Reach>>,
    better: Mutex<Better>,
    pub(crate) health: Health,
    pub(crate) losses: ServerLosses,
    /// When other servers may next be asked whether this one has moved.
    pub(crate) ask_others_at: Mutex<Option<Instant>>,
}

/// What connections to a server would be better than those that there are.
#[derive(Default)]
struct Better {
    /// A slower transport is in use than was to be.
    slower: Option<Slower>,
    /// Some are to where the map does not have it any more.
    moving: Option<Again>,
}

struct Slower {
    fallback: Fallback,
    again: Again,
}

/// When something is tried again, and how long that is after the last time.
struct Again {
    at: Instant,
    pause: Duration,
}

impl Again {
    /// Of threads that find it due, one tries.
    fn is_due(&mut self, pause_max: Duration) -> bool {
        let now = Instant::now();
        let due = self.at <= now;
        if due {
            self.at = now + self.pause;
            self.pause = (self.pause * 2).min(pause_max);
        }
        due
    }
}

/// How long a better transport is not tried again, the first time; then twice as long each time.
const BETTER_PAUSE_FIRST: Duration = Duration::from_secs(10);
/// The longest.
const BETTER_PAUSE_MAX: Duration = Duration::from_secs(600);
/// The same where a server has moved, and is still reached where it was.
const MOVE_PAUSE_FIRST: Duration = Duration::from_secs(1);
const MOVE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// What is known of the server's running.
#[derive(Default)]
pub(crate) struct Arrival {
    /// Run of the session as of the last connection; 0 before the first.
    pub run: u64,
}

impl Server {
    fn new(info: &ServerInfo) -> Server {
        Server {
            role: Role::of(info),
            id: info.id,
            info: Mutex::new(Arc::new(info.clone())),
            is_listed: AtomicBool::new(true),
            rdma_addresses: AtomicUsize::new(info.addresses(endpoint::RDMA).count()),
            lanes: Mutex::default(),
            arriving: Mutex::default(),
            reach: Mutex::default(),
            better: Mutex::default(),
            health: Health::default(),
            losses: ServerLosses::default(),
            ask_others_at: Mutex::default(),
        }
    }

    /// Name, addresses and state, as of the newest map.
    pub(crate) fn info(&self) -> Arc<ServerInfo> {
        lock(&self.info).clone()
    }

    /// A newer map says this of it. Connections to where it is not any more are used until there is one to where it is now.
    fn update(&self, info: &ServerInfo) {
        self.is_listed.store(true, Ordering::Relaxed);
        let before = std::mem::replace(&mut *lock(&self.info), Arc::new(info.clone()));
        if before.endpoints == info.endpoints {
            return;
        }
        self.rdma_addresses.store(info.addresses(endpoint::RDMA).count(), Ordering::Relaxed);
        let is_gone = |lane: &Lane| match lane.endpoint() {
            Some(endpoint) => !info.endpoints.contains(endpoint),
            None => before.endpoints.iter().any(|endpoint| !info.endpoints.contains(endpoint)),
        };
        let mut is_moving = false;
        for lane in lock(&self.lanes).iter().filter(|lane| is_gone(lane)) {
            lane.retire();
            is_moving = true;
        }
        let now = Instant::now();
        lock(&self.better).moving = is_moving.then_some(Again { at: now, pause: MOVE_PAUSE_FIRST });
        // It failed where it is not any more.
        self.health.note_answer();
    }

    /// An idle lane that suits, or where `share` any that does.
    pub(crate) fn pick(&self, wish: &Wish, share: bool) -> Option<LaneUse> {
        let mut lanes = lock(&self.lanes);
        lanes.retain(|lane| lane.is_alive());
        let rail_suits = |lane: &Lane| wish.rail.is_none_or(|rail| rail == lane.rail());
        let suits = |lane: &&Arc<Lane>| lane.traffic() == wish.traffic && rail_suits(lane);
        let count = lanes.iter().filter(suits).count();
        let least = lanes.iter().filter(suits).min_by_key(|lane| lane.users())?;
        let take = share || least.users() == 0 || count >= LANES_PER_SERVER_MAX;
        take.then(|| LaneUse::new(least))
    }

    /// Any lane.
    pub(crate) fn pick_any(&self) -> Option<LaneUse> {
        self.lanes().iter().min_by_key(|lane| lane.users()).map(LaneUse::new)
    }

    /// Adds a new lane and takes it; where others were quicker and there are enough, it is closed again and one of theirs
    /// is taken. Lanes over a slower transport than this one are not taken any more.
    pub(crate) fn add(&self, dialled: Dialled, traffic: Traffic, rdma: Option<&RdmaOptions>) -> LaneUse {
        let fallback = dialled.fallback.clone();
        self.losses.note_arrival(dialled.proven.loss_epoch);
        let lane = Lane::new(dialled, traffic);
        let info = self.info();
        let mut lanes = lock(&self.lanes);
        if fallback.is_none() {
            lanes.retain(|lane| !lane.is_fallback());
        }
        if lane.endpoint().is_some_and(|endpoint| !info.endpoints.contains(endpoint)) {
            // The map has changed since it was begun.
            lane.retire();
        } else {
            lanes.retain(|lane| !lane.is_retired());
            lock(&self.better).moving = None;
        }
        let reach = Reach::over(lane.kind(), lane.bulk_bytes_max(), rdma);
        self.note_reach(reach, lanes.is_empty());
        self.note_fallback(fallback);
        let others = lanes.iter().filter(|other| other.is_alive() && other.traffic() == traffic);
        let enough = |least: &Arc<Lane>| {
            others.clone().count() >= LANES_PER_SERVER_MAX || lane.is_fallback() && least.users() == 0
        };
        if let Some(least) = others.clone().min_by_key(|lane| lane.users()).filter(|least| enough(least)) {
            return LaneUse::new(least);
        }
        let lane_use = LaneUse::new(&lane);
        lanes.push(lane);
        lane_use
    }

    /// What all lanes can do, with one more; `only`: there is no other.
    fn note_reach(&self, reach: Reach, only: bool) {
        let mut known = lock(&self.reach);
        *known = Some(known.filter(|_| !only).map_or(reach, |known| known.of_both(reach)));
    }

    fn note_fallback(&self, fallback: Option<Fallback>) {
        let slower = &mut lock(&self.better).slower;
        let before = slower.as_ref().map(|slower| slower.again.pause * 2);
        let pause = before.unwrap_or(BETTER_PAUSE_FIRST).min(BETTER_PAUSE_MAX);
        let again = Again { at: Instant::now() + pause, pause };
        *slower = fallback.map(|fallback| Slower { fallback, again });
    }

    /// Whether a better transport than the one in use, or where the server is now, is to be tried now.
    pub(crate) fn is_better_due(&self) -> bool {
        let better = &mut *lock(&self.better);
        if better.moving.as_mut().is_some_and(|again| again.is_due(MOVE_PAUSE_MAX)) {
            return true;
        }
        let slower = better.slower.as_mut().filter(|slower| slower.fallback.may_mend);
        slower.is_some_and(|slower| slower.again.is_due(slower.again.pause))
    }

    pub(crate) fn was_reached(&self) -> bool {
        lock(&self.reach).is_some()
    }

    /// What can be asked of it.
    pub(crate) fn reach(&self) -> Reach {
        // One lock at a time: `add` has them in the other order.
        let reach = lock(&self.reach).unwrap_or_default();
        reach.with_rails(self.rails())
    }

    /// Over how many rails its lanes are to be spread.
    pub(crate) fn rails(&self) -> usize {
        let over_rdma = lock(&self.lanes).iter().any(|lane| matches!(lane.kind(), LinkKind::Verbs { .. }));
        if over_rdma { self.rdma_addresses.load(Ordering::Relaxed).max(1) } else { 1 }
    }

    pub(crate) fn fallback(&self) -> Option<String> {
        lock(&self.better).slower.as_ref().map(|slower| slower.fallback.reason.clone())
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        lock(&self.lanes).iter().filter(|lane| lane.is_alive()).cloned().collect()
    }

    /// Name and address, for errors.
    pub(crate) fn describe(&self, lane: Option<&Lane>) -> String {
        let info = self.info();
        let (name, address) = (&info.name, info.address());
        match lane {
            Some(lane) => format!("{name} ({address}, {})", lane.kind()),
            None => format!("{name} ({address})"),
        }
    }

    /// In a forked child: closes the parent's descriptors. Nothing else of a lane may be touched, for a thread that is not
    /// here any more may have been using it.
    fn abandon(&self) {
        if let Ok(lanes) = self.lanes.try_lock() {
            for lane in lanes.iter().filter(|lane| !lane.is_ours()) {
                // SAFETY: the child's copy of a descriptor of a lane that is never used or dropped in this process.
                unsafe { libc::close(lane.fd()) };
            }
        }
    }
}

/// In the place of an index: the map does not have the chain.
const NO_SERVER: usize = usize::MAX;

/// One process's connections.
pub(crate) struct Session {
    pub generation: u64,
    pub id: [u8; 16],
    /// Made in a child: files may be open that this session's servers do not know of.
    pub is_fork: bool,
    next_request: AtomicU64,
    servers: Table<Server>,
    /// By the ids of the chains: the index of the server, or [`NO_SERVER`].
    chains: Table<AtomicUsize>,
    map: Mutex<Arc<ClusterMapReply>>,
    map_version: AtomicU32,
    pub following: Following,
    slots: Arc<Mutex<Slots>>,
    /// Requests whose replies nobody waits for.
    pub detached: Mutex<Vec<Call>>,
    /// Files that are closed, of which the metadata server is still to be told.
    pub closing: Closing,
}

#[derive(Default)]
struct Slots {
    free: Vec<u16>,
    used: u16,
}

/// An exactly-once slot of the session, held by one request until it is answered.
pub(crate) struct SlotLease {
    number: u16,
    slots: Arc<Mutex<Slots>>,
}

impl SlotLease {
    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        lock(&self.slots).free.push(self.number);
    }
}

impl Session {
    pub(crate) fn new(map: &Arc<ClusterMapReply>) -> Result<Session, Error> {
        Ok(Session::with_id(map, random()?))
    }

    /// A session that other processes are in, too, or were; this one is number `member`. Its slots are its own, and its numbers of
    /// requests above those of whoever had them before, for they begin with the time.
    pub(crate) fn joined(map: &Arc<ClusterMapReply>, id: [u8; 16], member: u16) -> Session {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut session = Session::with_id(map, id);
        session.next_request = AtomicU64::new(now.as_nanos() as u64);
        let first = member % (EXACTLY_ONCE_SLOTS / MEMBER_SLOTS) * MEMBER_SLOTS;
        let slots = Slots { free: (first..first + MEMBER_SLOTS).collect(), used: EXACTLY_ONCE_SLOTS };
        session.slots = Arc::new(Mutex::new(slots));
        session
    }

    /// Where the kernel gives no random bytes: an id that is not the parent's.
    pub(crate) fn without_random(map: &Arc<ClusterMapReply>, mut parents: [u8; 16]) -> Session {
        for (byte, ours) in parents.iter_mut().zip(std::process::id().to_le_bytes()) {
            *byte ^= ours;
        }
        Session::with_id(map, parents)
    }

    fn with_id(map: &Arc<ClusterMapReply>, id: [u8; 16]) -> Session {
        let session = Session {
            generation: fork::generation(),
            id,
            is_fork: false,
            next_request: AtomicU64::new(16),
            servers: Table::default(),
            chains: Table::default(),
            map: Mutex::new(map.clone()),
            map_version: AtomicU32::new(0),
            following: Following::default(),
            slots: Arc::default(),
            detached: Mutex::default(),
            closing: Closing::default(),
        };
        session.go_by(map.clone());
        session
    }

    /// The newest map that was seen.
    pub(crate) fn map(&self) -> Arc<ClusterMapReply> {
        lock(&self.map).clone()
    }

    /// As [`Session::map`], of a parent, in a forked child: `None` where another thread was changing it.
    pub(crate) fn parents_map(&self) -> Option<Arc<ClusterMapReply>> {
        self.map.try_lock().ok().map(|map| map.clone())
    }

    /// Its version.
    pub(crate) fn map_version(&self) -> u32 {
        self.map_version.load(Ordering::Acquire)
    }

    /// Goes by a map from here on, which was checked and is newer than the one before. By one thread at a time.
    pub(crate) fn go_by(&self, map: Arc<ClusterMapReply>) {
        let index_of = |role: Role, id: u16| {
            self.servers.iter().find(|(_, one)| (one.role, one.id) == (role, id)).map(|(index, _)| index)
        };
        let is_there = |server: &Server| {
            map.servers.iter().any(|info| (Role::of(info), info.id) == (server.role, server.id))
        };
        for (_, server) in self.servers.iter().filter(|(_, server)| !is_there(server)) {
            server.is_listed.store(false, Ordering::Relaxed);
        }
        for info in map.meta_servers().chain(map.io_servers()) {
            match index_of(Role::of(info), info.id).and_then(|index| self.servers.get(index)) {
                Some(server) => server.update(info),
                None => drop(self.servers.push(Server::new(info))),
            }
        }
        let chains_end = map.chains.iter().map(|chain| usize::from(chain.id) + 1).max().unwrap_or(0);
        while self.chains.len() < chains_end {
            self.chains.push(AtomicUsize::new(NO_SERVER));
        }
        for (id, server) in self.chains.iter() {
            let first = map.server_of_chain(id as u16).and_then(|info| index_of(Role::Io, info.id));
            server.store(first.unwrap_or(NO_SERVER), Ordering::Relaxed);
        }
        let version = map.version;
        *lock(&self.map) = map;
        // Who sees the version sees all of the above.
        self.map_version.store(version, Ordering::Release);
    }

    /// A number that no other request of the session has; they rise.
    pub(crate) fn next_request_id(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// A slot for a request that must not be done twice; `None` while all are in use.
    pub(crate) fn lease_slot(&self) -> Option<SlotLease> {
        let mut slots = lock(&self.slots);
        let number = match slots.free.pop() {
            Some(number) => number,
            None if slots.used < EXACTLY_ONCE_SLOTS => {
                slots.used += 1;
                slots.used - 1
            }
            None => return None,
        };
        Some(SlotLease { number, slots: self.slots.clone() })
    }

    /// All servers that there are or were.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (usize, &Server)> + Clone {
        self.servers.iter()
    }

    /// Those of the newest map, metadata servers first.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (usize, &Server)> + Clone {
        self.listed_of(Role::Meta).chain(self.listed_of(Role::Io))
    }

    /// The same of one role.
    pub(crate) fn listed_of(&self, role: Role) -> impl Iterator<Item = (usize, &Server)> + Clone {
        let is_listed =
            move |server: &Server| server.role == role && server.is_listed.load(Ordering::Relaxed);
        self.servers.iter().filter(move |(_, server)| is_listed(server))
    }

    /// A server by its index, which came from here.
    pub(crate) fn server(&self, index: usize) -> &Server {
        self.servers.get(index).expect("servers are never taken out")
    }

    /// Index of the server of a chain, if the map has it.
    pub(crate) fn chain_index(&self, id: u16) -> Option<usize> {
        let index = self.chains.get(usize::from(id))?.load(Ordering::Relaxed);
        (index != NO_SERVER).then_some(index)
    }

    pub(crate) fn abandon(&self) {
        self.servers.iter().for_each(|(_, server)| server.abandon());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::some_link;
    use weft_layout::Layout;
    use weft_wire::messages::Endpoint;

    fn map() -> Arc<ClusterMapReply> {
        Arc::new(map_of(1, 2))
    }

    fn map_of(version: u32, io_servers: u16) -> ClusterMapReply {
        let server = |name: String, role, id| {
            let endpoints = vec![Endpoint::new(endpoint::TCP, format!("{name}:1"))];
            ServerInfo::new(id, name, role, endpoints)
        };
        let io = (0..io_servers).map(|id| server(format!("io{id}"), server_role::IO, id));
        ClusterMapReply {
            version,
            cluster_id: [1; 16],
            servers: std::iter::once(server("meta".into(), server_role::META, 0)).chain(io).collect(),
            chains: ClusterMapReply::single_chains(io_servers),
            default_layout: Layout::new(65536, 0, 2, 2).unwrap(),
        }
    }

    #[test]
    fn slots_are_used_again_and_bounded_and_request_numbers_rise() {
        let session = Session::new(&map()).unwrap();
        let first = session.lease_slot().unwrap();
        let second = session.lease_slot().unwrap();
        assert_ne!(first.number(), second.number());
        let number = first.number();
        drop(first);
        assert_eq!(session.lease_slot().unwrap().number(), number);
        let all: Vec<_> = std::iter::from_fn(|| session.lease_slot()).collect();
        assert_eq!(all.len() + 1, usize::from(EXACTLY_ONCE_SLOTS));
        assert!(session.next_request_id() < session.next_request_id());
    }

    #[test]
    fn who_joins_a_session_has_slots_of_its_own_and_numbers_above_those_before() {
        let before = Session::joined(&map(), [7; 16], 3);
        let session = Session::joined(&map(), [7; 16], 4);
        let all =
            |session: &Session| -> Vec<SlotLease> { std::iter::from_fn(|| session.lease_slot()).collect() };
        let numbers = |slots: &[SlotLease]| slots.iter().map(SlotLease::number).collect::<Vec<_>>();
        let (others, ours) = (numbers(&all(&before)), numbers(&all(&session)));
        assert_eq!((others.len(), ours.len(), session.id), (8, 8, [7; 16]));
        assert!(ours.iter().all(|slot| !others.contains(slot)));
        assert!(session.next_request_id() > before.next_request_id());
    }

    fn names<'a>(servers: impl Iterator<Item = (usize, &'a Server)>) -> Vec<String> {
        servers.map(|(_, server)| server.info().name.clone()).collect()
    }

    #[test]
    fn servers_are_found_by_the_chains_that_layouts_name() {
        let session = Session::new(&map()).unwrap();
        assert_eq!(session.server(session.chain_index(1).unwrap()).info().name, "io1");
        assert_eq!((session.chain_index(2), session.chain_index(u16::MAX)), (None, None));
        assert_eq!(session.server(0).role, Role::Meta);
        assert_eq!(names(session.listed()), ["meta", "io0", "io1"]);
        assert_eq!(session.map_version(), 1);
    }

    #[test]
    fn a_newer_map_adds_servers_and_those_that_were_there_keep_their_places() {
        let session = Session::new(&map()).unwrap();
        let io1 = session.chain_index(1).unwrap();
        let before: *const Server = session.server(io1);
        session.go_by(Arc::new(map_of(2, 60)));
        assert_eq!((session.map_version(), session.map().version), (2, 2));
        assert_eq!(session.chain_index(1), Some(io1));
        assert!(std::ptr::eq(session.server(io1), before));
        assert_eq!(session.server(session.chain_index(59).unwrap()).info().name, "io59");
        assert_eq!(session.listed().count(), 61);

        session.go_by(Arc::new(map_of(3, 1)));
        assert_eq!(names(session.listed()), ["meta", "io0"], "what is not in the map is not asked");
        assert_eq!(session.chain_index(1), None);
        assert_eq!(session.server(io1).info().name, "io1", "requests under way have its index");
        session.go_by(Arc::new(map_of(4, 2)));
        assert_eq!(session.chain_index(1), Some(io1), "an id is one server, for ever");
    }

    #[test]
    fn a_chain_is_of_the_server_that_the_map_says() {
        let mut map = map_of(1, 3);
        map.chains[0].servers = vec![2];
        let session = Session::new(&Arc::new(map)).unwrap();
        assert_eq!(session.server(session.chain_index(0).unwrap()).info().name, "io2");
    }

    fn lane(server: &Server, endpoint: Option<&Endpoint>) -> Arc<Lane> {
        let proven = weft_wire::messages::ProveReply {
            cluster_id: [1; 16],
            server_name: server.info().name.clone(),
            epoch: 1,
            credits: 4,
            boot_id: [0; 16],
            loss_epoch: 0,
        };
        let dialled = Dialled { endpoint: endpoint.cloned(), ..Dialled::new(some_link(), proven) };
        server.add(dialled, Traffic::Bulk, None).lane().clone()
    }

    #[test]
    fn connections_to_where_a_server_was_are_used_until_there_is_one_to_where_it_is() {
        let session = Session::new(&map()).unwrap();
        let server = session.server(1);
        let old = server.info().endpoints[0].clone();
        let new = Endpoint::new(endpoint::TCP, "elsewhere:1");
        let first = lane(server, Some(&old));
        let wish = Wish { traffic: Traffic::Bulk, rail: None };
        let in_use = || server.pick(&wish, true).unwrap().lane().clone();
        assert!(!server.is_better_due());

        let mut map = map_of(2, 2);
        map.servers[1].endpoints = vec![new.clone(), old.clone()];
        session.go_by(Arc::new(map.clone()));
        assert!(!server.is_better_due(), "it is there as well");

        map.version = 3;
        map.servers[1].endpoints = vec![new.clone()];
        session.go_by(Arc::new(map));
        assert!(server.is_better_due() && !server.is_better_due(), "one thread tries at a time");
        assert!(Arc::ptr_eq(&in_use(), &first) && first.is_alive());

        let late = lane(server, Some(&old));
        assert!(late.is_retired() && Arc::ptr_eq(&in_use(), &first), "it was begun by the map before");
        let second = lane(server, Some(&new));
        assert!(Arc::ptr_eq(&in_use(), &second) && server.lanes().len() == 1);
        assert!(first.is_alive(), "what is under way on it ends there");
        std::thread::sleep(MOVE_PAUSE_FIRST);
        assert!(!server.is_better_due());
    }
}
