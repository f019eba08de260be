//! This process's connections to a cluster: for each server a few lanes, and the numbers that requests carry.
//!
//! A forked child has its own session; of its parent's it only closes the descriptors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use weft_transport::LinkKind;
use weft_wire::limits::LANES_PER_SERVER_MAX;
use weft_wire::messages::{ClusterMapReply, ServerInfo, endpoint};

use crate::batch::Call;
use crate::closing::Closing;
use crate::dial::{Dialled, Fallback, Wish};
use crate::error::Error;
use crate::fork;
use crate::greet::random;
use crate::health::Health;
use crate::lane::{Lane, LaneUse};
use crate::rdma::RdmaOptions;
use crate::reach::Reach;
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

/// A server and the lanes to it.
pub(crate) struct Server {
    pub info: ServerInfo,
    pub role: Role,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// Held while a connection to a metadata server is made, for files may have to be opened again on it.
    pub(crate) arriving: Mutex<Arrival>,
    /// What all its lanes can do; nothing before the first.
    reach: Mutex<Option<Reach>>,
    fallback: Mutex<Option<Slower>>,
    pub(crate) health: Health,
}

/// A slower transport is in use than was to be.
struct Slower {
    fallback: Fallback,
    /// When the better one is tried again, and how long that is after the last time.
    again_at: Instant,
    pause: Duration,
}

/// How long a better transport is not tried again, the first time; then twice as long each time.
const BETTER_PAUSE_FIRST: Duration = Duration::from_secs(10);
/// The longest.
const BETTER_PAUSE_MAX: Duration = Duration::from_secs(600);

/// What is known of the server's running.
#[derive(Default)]
pub(crate) struct Arrival {
    /// Run of the session as of the last connection; 0 before the first.
    pub run: u64,
}

impl Server {
    fn new(info: &ServerInfo, role: Role) -> Server {
        Server {
            info: info.clone(),
            role,
            lanes: Mutex::default(),
            arriving: Mutex::default(),
            reach: Mutex::default(),
            fallback: Mutex::default(),
            health: Health::default(),
        }
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
        let lane = Lane::new(dialled, traffic);
        let mut lanes = lock(&self.lanes);
        if fallback.is_none() {
            lanes.retain(|lane| !lane.is_fallback());
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
        let mut slower = lock(&self.fallback);
        let before = slower.as_ref().map(|slower| slower.pause * 2);
        let pause = before.unwrap_or(BETTER_PAUSE_FIRST).min(BETTER_PAUSE_MAX);
        *slower = fallback.map(|fallback| Slower { fallback, again_at: Instant::now() + pause, pause });
    }

    /// Whether a better transport than the one in use is to be tried again now.
    pub(crate) fn is_better_due(&self) -> bool {
        let mut slower = lock(&self.fallback);
        let Some(slower) = slower.as_mut().filter(|slower| slower.fallback.may_mend) else { return false };
        let due = slower.again_at <= Instant::now();
        if due {
            // Of threads that find it due, one tries.
            slower.again_at += slower.pause;
        }
        due
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
        if over_rdma { self.info.addresses(endpoint::RDMA).count().max(1) } else { 1 }
    }

    pub(crate) fn fallback(&self) -> Option<String> {
        lock(&self.fallback).as_ref().map(|slower| slower.fallback.reason.clone())
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        lock(&self.lanes).iter().filter(|lane| lane.is_alive()).cloned().collect()
    }

    /// Name and address, for errors.
    pub(crate) fn describe(&self, lane: Option<&Lane>) -> String {
        let address = self.info.address();
        match lane {
            Some(lane) => format!("{} ({address}, {})", self.info.name, lane.kind()),
            None => format!("{} ({address})", self.info.name),
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

/// One process's connections.
pub(crate) struct Session {
    pub generation: u64,
    pub id: [u8; 16],
    /// Made in a child: files may be open that this session's servers do not know of.
    pub is_fork: bool,
    next_request: AtomicU64,
    meta_count: usize,
    servers: Vec<Server>,
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
    pub(crate) fn new(map: &ClusterMapReply) -> Result<Session, Error> {
        Ok(Session::with_id(map, random()?))
    }

    /// A session that other processes are in, too, or were; this one is number `member`. Its slots are its own, and its numbers of
    /// requests above those of whoever had them before, for they begin with the time.
    pub(crate) fn joined(map: &ClusterMapReply, id: [u8; 16], member: u16) -> Session {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut session = Session::with_id(map, id);
        session.next_request = AtomicU64::new(now.as_nanos() as u64);
        let first = member % (EXACTLY_ONCE_SLOTS / MEMBER_SLOTS) * MEMBER_SLOTS;
        let slots = Slots { free: (first..first + MEMBER_SLOTS).collect(), used: EXACTLY_ONCE_SLOTS };
        session.slots = Arc::new(Mutex::new(slots));
        session
    }

    /// Where the kernel gives no random bytes: an id that is not the parent's.
    pub(crate) fn without_random(map: &ClusterMapReply, mut parents: [u8; 16]) -> Session {
        for (byte, ours) in parents.iter_mut().zip(std::process::id().to_le_bytes()) {
            *byte ^= ours;
        }
        Session::with_id(map, parents)
    }

    fn with_id(map: &ClusterMapReply, id: [u8; 16]) -> Session {
        let meta = map.meta_servers().map(|info| Server::new(info, Role::Meta));
        let io = map.io_servers().map(|info| Server::new(info, Role::Io));
        Session {
            generation: fork::generation(),
            id,
            is_fork: false,
            next_request: AtomicU64::new(16),
            meta_count: map.meta_servers().count(),
            servers: meta.chain(io).collect(),
            slots: Arc::default(),
            detached: Mutex::default(),
            closing: Closing::default(),
        }
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

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub(crate) fn server(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// Index of an I/O server by its id in the ring, if the map has it.
    pub(crate) fn io_index(&self, id: u16) -> Option<usize> {
        let index = self.meta_count + usize::from(id);
        (index < self.servers.len()).then_some(index)
    }

    pub(crate) fn io_indices(&self) -> std::ops::Range<usize> {
        self.meta_count..self.servers.len()
    }

    pub(crate) fn meta_indices(&self) -> std::ops::Range<usize> {
        0..self.meta_count
    }

    pub(crate) fn abandon(&self) {
        self.servers.iter().for_each(Server::abandon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_layout::Layout;
    use weft_wire::messages::{Endpoint, server_role};

    fn map() -> ClusterMapReply {
        let server = |name: &str, role, id| {
            ServerInfo::new(id, name, role, vec![Endpoint::new(endpoint::TCP, format!("{name}:1"))])
        };
        ClusterMapReply {
            version: 1,
            cluster_id: [1; 16],
            servers: vec![
                server("meta", server_role::META, 0),
                server("io0", server_role::IO, 0),
                server("io1", server_role::IO, 1),
            ],
            chains: ClusterMapReply::single_chains(2),
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

    #[test]
    fn servers_are_found_by_their_place() {
        let session = Session::new(&map()).unwrap();
        assert_eq!(session.server(session.io_index(1).unwrap()).info.name, "io1");
        assert_eq!(session.io_index(2), None);
        assert_eq!(session.server(0).role, Role::Meta);
        assert_eq!(session.io_indices(), 1..3);
    }
}
