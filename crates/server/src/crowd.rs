//! How many connections a server has, so that nobody uses up its descriptors.
//!
//! ```text
//!   accepted ──► stranger ──proof──► guest ──► end
//!                 │ at most `strangers`, and `strangers_per_peer` of one peer: the oldest has to leave
//!                             │ at most what the limit of descriptors allows, and half of it of one peer: the newest is refused
//! ```
//!
//! All bounds follow from the limit of descriptors ([`Shares`]), however low it is. Connections never take the last
//! ones: without them the server could neither sync its store nor talk to the other servers. The kernel gives out the
//! lowest number that is free, so the number of a new connection's descriptor tells how many are left.
//!
//! Who is older was accepted earlier. A thread may begin a session later than another thread begins one that was
//! accepted after it, so each connection brings its place in the order of all.
//!
//! A peer is a host, or a user of this host. A stranger that is let go was silent for longer than all others of its peer: an
//! honest client proves itself within a few round trips.

use crate::answer::Refusal;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use weft_storage::limits::OPEN_FILES;
use weft_transport::PeerInfo;
use weft_wire::Status;

/// Descriptors that a connection takes at most: its socket, and one for the process at the other end of a Unix socket.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Descriptors of a data file that is kept open: its own, and that of its checksums.
const DESCRIPTORS_PER_FILE: u64 = 2;
/// Descriptors of an idle server: its threads, its listeners, the files that it always has open.
const DESCRIPTORS_IDLE: u64 = 32;
/// Connections that are served even where the limit of descriptors is low.
const GUESTS_MIN: u64 = 8;

/// How a process shares out its descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Data files that an I/O server keeps open, or tables that the store of a metadata server keeps open.
    pub data_files: usize,
    /// For the journal, state files, requests under way, and connections among servers.
    pub own: u64,
    /// Connections that have not proved themselves.
    pub strangers: usize,
    /// Those of one peer.
    pub strangers_per_peer: usize,
    /// Connections of clients.
    pub guests: usize,
    /// The limit that is shared out.
    pub descriptors: u64,
}

impl Shares {
    /// Of a process that may have so many descriptors.
    pub fn of(descriptors: u64) -> Shares {
        let own = (descriptors / 4).clamp(16, 256);
        let data_files = (descriptors / 8).clamp(8, OPEN_FILES as u64);
        let strangers = (descriptors / 12).clamp(8, 512);
        let (files, unproven) = (DESCRIPTORS_PER_FILE * data_files, DESCRIPTORS_PER_CONNECTION * strangers);
        let reserved = DESCRIPTORS_IDLE + own + files + unproven;
        let guests = (descriptors.saturating_sub(reserved) / DESCRIPTORS_PER_CONNECTION).max(GUESTS_MIN);
        Shares {
            data_files: data_files as usize,
            own,
            strangers: strangers as usize,
            strangers_per_peer: (strangers * 3 / 4).min(64) as usize,
            guests: guests as usize,
            descriptors,
        }
    }

    fn reach(&self, descriptor: RawFd) -> Reach {
        let left = self.descriptors.saturating_sub(u64::try_from(descriptor).unwrap_or(0));
        match left {
            left if left <= self.own / 2 => Reach::Last,
            left if left <= self.own => Reach::Own,
            _ => Reach::Free,
        }
    }
}

/// Where a descriptor is among those of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Reach {
    Free,
    /// Among those that the server needs for itself: only another server may have it.
    Own,
    /// Among the last: the connection is closed before a handshake.
    Last,
}

/// By what a peer is known that connects again and again.
pub(crate) fn name_of(peer: &PeerInfo) -> String {
    match peer.user_id {
        Some(user_id) => format!("user {user_id} of this host"),
        None => peer.address.rsplit_once(':').map_or(&*peer.address, |(host, _)| host).to_owned(),
    }
}

/// Everybody who is connected to a server. Clones are the same.
#[derive(Clone)]
pub(crate) struct Crowd {
    shares: Shares,
    state: Arc<Mutex<State>>,
}

/// The place of a connection among all that were accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    number: u64,
    reach: Reach,
}

#[derive(Default)]
struct State {
    /// Oldest first.
    strangers: BTreeMap<Place, String>,
    /// Of those who wait to be told to leave.
    wakers: HashMap<Place, Waker>,
    accepted: u64,
    guests: HashMap<String, usize>,
}

impl State {
    fn count(&self, peer: &str) -> usize {
        self.strangers.values().filter(|other| *other == peer).count()
    }

    /// Lets the oldest stranger of a peer go.
    fn let_go(&mut self, peer: &str) {
        let oldest = self.strangers.iter().find(|(_, other)| *other == peer);
        let Some(place) = oldest.map(|(place, _)| *place) else { return };
        self.strangers.remove(&place);
        self.wakers.remove(&place).into_iter().for_each(Waker::wake);
    }

    fn peer_with_most_strangers(&self) -> Option<String> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        self.strangers.values().for_each(|peer| *counts.entry(peer).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(peer, _)| peer.to_owned())
    }
}

impl Crowd {
    /// Nothing is connected yet.
    pub fn new(shares: Shares) -> Crowd {
        Crowd { shares, state: Arc::default() }
    }

    /// How the descriptors are shared out.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a connection of a client may keep this descriptor.
    pub fn is_free(&self, descriptor: RawFd) -> bool {
        self.shares.reach(descriptor) == Reach::Free
    }

    /// Gives a connection that was accepted its place, before it goes to its thread; `None` where it would take one of
    /// the last descriptors. One without a descriptor of its own always finds a place.
    pub fn accept(&self, descriptor: Option<RawFd>) -> Option<Place> {
        let reach = descriptor.map_or(Reach::Free, |descriptor| self.shares.reach(descriptor));
        if reach == Reach::Last {
            return None;
        }
        let mut state = self.lock();
        state.accepted += 1;
        Some(Place { number: state.accepted, reach })
    }

    /// Notes a connection that has proved nothing yet. If there are too many, the oldest one has to leave, which
    /// may be this one.
    pub fn enter(&self, peer: &str, place: Place) -> Stranger {
        let mut state = self.lock();
        let leaves = match state.count(peer) >= self.shares.strangers_per_peer {
            true => Some(peer.to_owned()),
            false if state.strangers.len() >= self.shares.strangers => state.peer_with_most_strangers(),
            false => None,
        };
        state.strangers.insert(place, peer.to_owned());
        if let Some(peer) = &leaves {
            state.let_go(peer);
        }
        drop(state);
        Stranger { crowd: self.clone(), place }
    }

    /// Notes a connection that has proved itself.
    ///
    /// # Errors
    /// There are too many.
    pub fn seat(&self, peer: &str, place: Place) -> Result<Guest, Refusal> {
        let mut state = self.lock();
        let all: usize = state.guests.values().sum();
        let of_peer = state.guests.get(peer).copied().unwrap_or(0);
        let (guests, descriptors) = (self.shares.guests, self.shares.descriptors);
        let refuse = |text: String| Err(Refusal::new(Status::Limit, text));
        if all >= guests || place.reach != Reach::Free {
            return refuse(format!(
                "this server has {all} connections of clients and is out of file descriptors: its limit is {descriptors}; raise LimitNOFILE (ulimit -n) of the server"
            ));
        }
        if of_peer >= guests.div_ceil(2) {
            return refuse(format!(
                "{peer} has {of_peer} connections to this server, half of what its {descriptors} file descriptors allow; raise LimitNOFILE (ulimit -n) of the server"
            ));
        }
        *state.guests.entry(peer.to_owned()).or_default() += 1;
        drop(state);
        Ok(Guest { crowd: self.clone(), peer: peer.to_owned() })
    }
}

/// A connection that has proved nothing, until this is dropped.
pub(crate) struct Stranger {
    crowd: Crowd,
    place: Place,
}

impl Stranger {
    /// Ends when this one has to leave.
    pub async fn leaves(&self) {
        poll_fn(|context| {
            let mut state = self.crowd.lock();
            if state.strangers.contains_key(&self.place) {
                state.wakers.insert(self.place, context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut state = self.crowd.lock();
        state.strangers.remove(&self.place);
        state.wakers.remove(&self.place);
    }
}

/// A connection that has proved itself, until this is dropped.
pub(crate) struct Guest {
    crowd: Crowd,
    peer: String,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut state = self.crowd.lock();
        if let Some(count) = state.guests.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                state.guests.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_reactor::{Reactor, ReactorOptions};

    /// A usual limit of descriptors.
    const MANY: u64 = 1 << 19;
    const PER_PEER: usize = 64;

    fn has_left(stranger: &Stranger) -> bool {
        !stranger.crowd.lock().strangers.contains_key(&stranger.place)
    }

    impl Crowd {
        fn place(&self) -> Place {
            self.accept(None).unwrap()
        }

        fn enter_at_once(&self, peer: &str) -> Stranger {
            self.enter(peer, self.place())
        }
    }

    #[test]
    fn who_was_accepted_first_is_the_oldest_whichever_thread_is_faster() {
        let crowd = Crowd::new(Shares::of(MANY));
        let early: Vec<Place> = (0..PER_PEER + 9).map(|_| crowd.place()).collect();
        let newest = crowd.enter_at_once("one");
        let early: Vec<Stranger> = early.into_iter().map(|place| crowd.enter("one", place)).collect();
        assert!(!has_left(&newest));
        let left = early.iter().take_while(|stranger| has_left(stranger)).count();
        assert_eq!((left, early.iter().filter(|stranger| has_left(stranger)).count()), (10, 10));
        let late = crowd.enter("one", early[0].place);
        assert!(has_left(&late) && !has_left(&newest), "it came too late to stay");
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        reactor.run(late.leaves());
    }

    #[test]
    fn the_oldest_stranger_of_a_peer_leaves_for_a_new_one() {
        let crowd = Crowd::new(Shares::of(MANY));
        let other = crowd.enter_at_once("other");
        let mut of_one: Vec<Stranger> = (0..PER_PEER).map(|_| crowd.enter_at_once("one")).collect();
        assert!(!of_one.iter().any(has_left));
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        reactor.run(async {
            let first = of_one.remove(0);
            let leaving = weft_reactor::spawn(async move { first.leaves().await });
            weft_reactor::yield_now().await;
            assert!(!leaving.is_finished());
            let newest = crowd.enter_at_once("one");
            assert!(!has_left(&newest) && !has_left(&other) && !of_one.iter().any(has_left));
            leaving.await;
        });
        drop(of_one.pop());
        let _newest = crowd.enter_at_once("one");
        assert!(!of_one.iter().any(has_left), "one had gone by itself");
    }

    #[test]
    fn with_many_peers_who_has_most_strangers_loses_one() {
        let crowd = Crowd::new(Shares::of(MANY));
        let many: Vec<Stranger> = (0..40).map(|_| crowd.enter_at_once("many")).collect();
        let few: Vec<Stranger> = (0..crowd.shares.strangers - 40)
            .map(|at| crowd.enter_at_once(&format!("peer {}", at / 4)))
            .collect();
        let _new = crowd.enter_at_once("new");
        assert!(has_left(&many[0]) && !few.iter().any(has_left));
    }

    #[test]
    fn no_peer_gets_all_connections() {
        let crowd = Crowd::new(Shares { guests: 100, ..Shares::of(MANY) });
        let place = crowd.place();
        let mut one = Vec::new();
        let refused = loop {
            match crowd.seat("one", place) {
                Ok(guest) => one.push(guest),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!((one.len(), refused.status), (50, Status::Limit));
        let others: Vec<Guest> =
            (0..50).map(|at| crowd.seat(&format!("peer {at}"), place).ok().unwrap()).collect();
        assert!(crowd.seat("new", place).err().unwrap().text.contains("LimitNOFILE"));
        drop(one);
        assert!(crowd.seat("one", place).is_ok());
        drop(others);
    }

    #[test]
    fn however_few_descriptors_there_are_they_are_shared_out() {
        let many = Shares::of(MANY);
        assert_eq!(
            (many.data_files, many.own, many.strangers, many.strangers_per_peer),
            (512, 256, 512, PER_PEER)
        );
        assert!(many.guests > 200_000);
        for descriptors in [96, 128, 256, 300, 1024, 4096, 65_536] {
            let shares = Shares::of(descriptors);
            let connections = (shares.strangers + shares.guests) as u64 * DESCRIPTORS_PER_CONNECTION;
            let files = shares.data_files as u64 * DESCRIPTORS_PER_FILE;
            let all = DESCRIPTORS_IDLE + shares.own + files + connections;
            // The least that is served may be more than there is: then the descriptors that are left decide.
            assert!(all <= descriptors || shares.guests as u64 == GUESTS_MIN, "{shares:?}");
            assert!(shares.strangers_per_peer >= 6 && shares.guests as u64 >= GUESTS_MIN, "{shares:?}");
        }
    }

    #[test]
    fn connections_of_clients_never_take_the_last_descriptors() {
        let crowd = Crowd::new(Shares::of(96));
        assert_eq!(crowd.shares.own, 24);
        assert!(crowd.seat("one", crowd.accept(Some(71)).unwrap()).is_ok());
        let refused = crowd.seat("one", crowd.accept(Some(72)).unwrap()).err().unwrap();
        assert!(refused.status == Status::Limit && refused.text.contains("LimitNOFILE"), "{}", refused.text);
        assert!(crowd.accept(Some(83)).is_some(), "it may be another server");
        assert!(crowd.accept(Some(84)).is_none());
    }

    #[test]
    fn users_of_this_host_are_peers_of_their_own() {
        let peer = |address: &str, user_id| {
            name_of(&PeerInfo {
                transport: "x".into(),
                address: address.into(),
                process_id: None,
                user_id,
                group_ids: Vec::new(),
            })
        };
        assert_eq!(peer("10.0.0.7:40000", None), "10.0.0.7");
        assert_eq!(peer("[fe80::1]:40000", None), "[fe80::1]");
        assert_eq!(peer("process 77", Some(1000)), "user 1000 of this host");
    }
}
