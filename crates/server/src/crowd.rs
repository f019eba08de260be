//! How many connections a server has, so that nobody uses up its descriptors.
//!
//! ```text
//!   accepted ──► stranger ──proof──► guest ──► end
//!                 │ at most STRANGERS_MAX, and STRANGERS_PER_PEER_MAX of one peer: the oldest has to leave
//!                             │ at most what the limit of descriptors allows, and half of it of one peer: the newest is refused
//! ```
//!
//! Who is older was accepted earlier. A thread may begin a session later than another thread begins one that was
//! accepted after it, so each connection brings its place in the order of all.
//!
//! A peer is a host, or a user of this host. A stranger that is let go was silent for longer than all others of its peer: an
//! honest client proves itself within a few round trips.

use crate::answer::Refusal;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use weft_storage::limits::OPEN_FILES;
use weft_transport::PeerInfo;
use weft_wire::Status;

/// Connections that have not proved themselves.
const STRANGERS_MAX: usize = 512;
/// Those of one peer.
const STRANGERS_PER_PEER_MAX: usize = 64;
/// Descriptors that a connection takes at most: its socket, and one for the process at the other end of a Unix socket.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Descriptors that a server keeps for itself: data files, those of the store, its own connections.
const DESCRIPTORS_RESERVED: u64 = OPEN_FILES as u64 + 256 + 2 * STRANGERS_MAX as u64;
/// Connections that are served even where the limit of descriptors is low.
const GUESTS_MIN: u64 = 64;

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
    guests_max: usize,
    state: Arc<Mutex<State>>,
}

/// The place of a connection among all that were accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place(u64);

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
    /// For a process that may have so many descriptors.
    pub fn new(descriptors_max: u64) -> Crowd {
        let guests_max = (descriptors_max.saturating_sub(DESCRIPTORS_RESERVED) / DESCRIPTORS_PER_CONNECTION)
            .max(GUESTS_MIN);
        Crowd { guests_max: guests_max as usize, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a connection that was accepted its place, before it goes to its thread.
    pub fn accept(&self) -> Place {
        let mut state = self.lock();
        state.accepted += 1;
        Place(state.accepted)
    }

    /// Notes a connection that has proved nothing yet. If there are too many, the oldest one has to leave, which
    /// may be this one.
    pub fn enter(&self, peer: &str, place: Place) -> Stranger {
        let mut state = self.lock();
        let leaves = match state.count(peer) >= STRANGERS_PER_PEER_MAX {
            true => Some(peer.to_owned()),
            false if state.strangers.len() >= STRANGERS_MAX => state.peer_with_most_strangers(),
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
    pub fn seat(&self, peer: &str) -> Result<Guest, Refusal> {
        let mut state = self.lock();
        let all: usize = state.guests.values().sum();
        let of_peer = state.guests.get(peer).copied().unwrap_or(0);
        let refuse = |text: String| Err(Refusal::new(Status::Limit, text));
        if all >= self.guests_max {
            return refuse(format!(
                "this server has the {} connections that its limit of descriptors allows; raise the limit (LimitNOFILE)",
                self.guests_max
            ));
        }
        if of_peer >= self.guests_max / 2 {
            return refuse(format!(
                "{peer} has {of_peer} connections to this server, half of what its limit of descriptors allows (LimitNOFILE)"
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

    fn has_left(stranger: &Stranger) -> bool {
        !stranger.crowd.lock().strangers.contains_key(&stranger.place)
    }

    impl Crowd {
        fn enter_at_once(&self, peer: &str) -> Stranger {
            self.enter(peer, self.accept())
        }
    }

    #[test]
    fn who_was_accepted_first_is_the_oldest_whichever_thread_is_faster() {
        let crowd = Crowd::new(0);
        let early: Vec<Place> = (0..STRANGERS_PER_PEER_MAX + 9).map(|_| crowd.accept()).collect();
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
        let crowd = Crowd::new(0);
        let other = crowd.enter_at_once("other");
        let mut of_one: Vec<Stranger> =
            (0..STRANGERS_PER_PEER_MAX).map(|_| crowd.enter_at_once("one")).collect();
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
        let crowd = Crowd::new(0);
        let many: Vec<Stranger> = (0..40).map(|_| crowd.enter_at_once("many")).collect();
        let few: Vec<Stranger> =
            (0..STRANGERS_MAX - 40).map(|at| crowd.enter_at_once(&format!("peer {}", at / 4))).collect();
        let _new = crowd.enter_at_once("new");
        assert!(has_left(&many[0]) && !few.iter().any(has_left));
    }

    #[test]
    fn no_peer_gets_all_connections() {
        let crowd = Crowd::new(DESCRIPTORS_RESERVED + 2 * 100);
        let mut one = Vec::new();
        let refused = loop {
            match crowd.seat("one") {
                Ok(guest) => one.push(guest),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!((one.len(), refused.status), (50, Status::Limit));
        let others: Vec<Guest> = (0..50).map(|at| crowd.seat(&format!("peer {at}")).ok().unwrap()).collect();
        assert!(crowd.seat("new").err().unwrap().text.contains("LimitNOFILE"));
        drop(one);
        assert!(crowd.seat("one").is_ok());
        drop(others);
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
