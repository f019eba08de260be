//! One server, and this process's connections to it.
//!
//! ```text
//!   where it is (newest map) ──► lanes: 0 … 7 ──► pick an idle one, add one, or share
//!                                  └ better ones are tried now and then: another transport, a new address
//! ```

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use weft_transport::LinkKind;
use weft_wire::VERSIONS;
use weft_wire::limits::LANES_PER_SERVER_MAX;
use weft_wire::messages::{ProveReply, ServerInfo, endpoint, server_role};

use crate::dial::{Dialled, Fallback, Wish};
use crate::health::{Health, Obituary};
use crate::lane::{Lane, LaneUse};
use crate::links::Links;
use crate::slots::Slots;
use crate::traffic::Traffic;
use crate::wait::lock;

/// What a server is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Names.
    Meta,
    /// Data files.
    Io,
}

impl Role {
    pub(crate) fn of(info: &ServerInfo) -> Role {
        if info.role == server_role::META { Role::Meta } else { Role::Io }
    }
}

/// A server and the lanes to it.
pub struct Server {
    /// What it is for.
    pub role: Role,
    pub(crate) id: u16,
    /// As the newest map has it.
    info: Mutex<Arc<ServerInfo>>,
    /// Whether the newest map has it.
    pub(crate) is_listed: AtomicBool,
    rdma_addresses: AtomicUsize,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// Held while a connection to a metadata server is made, for files may have to be opened again on it.
    pub(crate) arriving: Mutex<Arrival>,
    /// What all its lanes can do; nothing before the first.
    links: Mutex<Option<Links>>,
    better: Mutex<Better>,
    pub(crate) health: Health,
    /// What it said when this session first reached it.
    first_proven: OnceLock<ProveReply>,
    /// The version of the protocol that the last connection to it uses.
    version: AtomicU8,
    /// When other servers may next be asked whether this one has moved.
    pub(crate) ask_others_at: Mutex<Option<Instant>>,
    /// For requests to it that must not be done twice.
    pub(crate) slots: Slots,
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
pub(crate) const MOVE_PAUSE_FIRST: Duration = Duration::from_secs(1);
const MOVE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// What is known of the server's running.
#[derive(Default)]
pub(crate) struct Arrival {
    /// Run of the session as of the last connection; 0 before the first.
    pub run: u64,
}

impl Server {
    pub(crate) fn new(info: &ServerInfo, slots: Slots) -> Server {
        Server {
            role: Role::of(info),
            id: info.id,
            info: Mutex::new(Arc::new(info.clone())),
            is_listed: AtomicBool::new(true),
            rdma_addresses: AtomicUsize::new(info.addresses(endpoint::RDMA).count()),
            lanes: Mutex::default(),
            arriving: Mutex::default(),
            links: Mutex::default(),
            better: Mutex::default(),
            health: Health::default(),
            first_proven: OnceLock::new(),
            version: AtomicU8::new(VERSIONS.1),
            ask_others_at: Mutex::default(),
            slots,
        }
    }

    /// Name, addresses and state, as of the newest map.
    pub fn info(&self) -> Arc<ServerInfo> {
        lock(&self.info).clone()
    }

    /// A newer map says this of it. Connections to where it is not any more are used until there is one to
    /// where it is now.
    pub(crate) fn update(&self, info: &ServerInfo) {
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

    /// The run of this session at a metadata server, as of the last connection; 0 before the first.
    pub fn run(&self) -> u64 {
        lock(&self.arriving).run
    }

    /// The version of the protocol that the last connection to it uses; before the first one, the newest.
    pub fn version(&self) -> u8 {
        self.version.load(Ordering::Relaxed)
    }

    /// Notes the version of the protocol that a new connection to it uses.
    pub fn set_version(&self, version: u8) {
        self.version.store(version, Ordering::Relaxed);
    }

    /// Since when it is dead and why, if it is.
    pub fn obituary(&self) -> Option<Obituary> {
        self.health.obituary()
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

    /// The lane that suits and that most use, but fewer than `users_max`.
    pub(crate) fn pick_busiest(&self, wish: &Wish, users_max: usize) -> Option<LaneUse> {
        let lanes = self.lanes();
        let suits = |lane: &&Arc<Lane>| lane.is_alive() && lane.traffic() == wish.traffic;
        let has_room = |lane: &&Arc<Lane>| lane.users() < users_max;
        lanes.iter().filter(suits).filter(has_room).max_by_key(|lane| lane.users()).map(LaneUse::new)
    }

    /// Any lane.
    pub(crate) fn pick_any(&self) -> Option<LaneUse> {
        self.lanes().iter().min_by_key(|lane| lane.users()).map(LaneUse::new)
    }

    /// Adds a new lane and takes it; where others were quicker and there are enough, it is closed again and
    /// one of theirs is taken. Lanes over a slower transport than this one are not taken any more.
    pub(crate) fn add(&self, dialled: Dialled, traffic: Traffic) -> LaneUse {
        let fallback = dialled.fallback.clone();
        self.first_proven.get_or_init(|| dialled.proven.clone());
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
        self.note_links(lane.links(), lanes.is_empty());
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
    fn note_links(&self, links: Links, only: bool) {
        let mut known = lock(&self.links);
        *known = Some(known.filter(|_| !only).map_or(links, |known| known.and(links)));
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

    /// Whether this session has connected to it.
    pub fn was_reached(&self) -> bool {
        lock(&self.links).is_some()
    }

    /// What it said when this session first connected to it.
    pub fn first_proven(&self) -> Option<&ProveReply> {
        self.first_proven.get()
    }

    /// What its connections can do.
    pub fn links(&self) -> Links {
        // One lock at a time: `add` has them in the other order.
        let mut links = lock(&self.links).unwrap_or_default();
        links.rails = self.rails();
        links
    }

    /// Over how many rails its lanes are to be spread.
    pub fn rails(&self) -> usize {
        let over_rdma = lock(&self.lanes).iter().any(|lane| matches!(lane.kind(), LinkKind::Verbs { .. }));
        if over_rdma { self.rdma_addresses.load(Ordering::Relaxed).max(1) } else { 1 }
    }

    /// Why it is not reached over a faster transport, where one was expected.
    pub fn fallback(&self) -> Option<String> {
        lock(&self.better).slower.as_ref().map(|slower| slower.fallback.reason.clone())
    }

    /// The connections that there are.
    pub fn lanes(&self) -> Vec<Arc<Lane>> {
        lock(&self.lanes).iter().filter(|lane| lane.is_alive()).cloned().collect()
    }

    /// Name and address, for errors.
    pub fn describe(&self, lane: Option<&Lane>) -> String {
        let info = self.info();
        let (name, address) = (&info.name, info.address());
        match lane {
            Some(lane) => format!("{name} ({address}, {})", lane.kind()),
            None => format!("{name} ({address})"),
        }
    }

    /// In a forked child: closes the parent's descriptors. Nothing else of a lane may be touched, for a
    /// thread that is not here any more may have been using it.
    pub(crate) fn abandon(&self) {
        if let Ok(lanes) = self.lanes.try_lock() {
            for lane in lanes.iter().filter(|lane| !lane.is_ours()) {
                // SAFETY: the child's copy of a descriptor of a lane that is never used or dropped in this
                // process.
                unsafe { libc::close(lane.fd()) };
            }
        }
    }
}
