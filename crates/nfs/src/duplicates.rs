//! Calls that come twice: a client that lost a connection sends again what was not answered.
//!
//! What changes something, and would not do the same if it were done again, is done once: the reply is kept,
//! and sent again. A repetition that comes while the first call is under way waits for it.
//!
//! ```text
//!   REMOVE x, xid 7  ─► done ─► OK ─╳  (the connection is lost)
//!   REMOVE x, xid 7  ─► known: OK                not NOENT
//! ```
//!
//! A call is known by its client's address, its number, what it asks, and a checksum of its arguments and
//! data.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weft_reactor::{Event, spawn};

/// Calls that are remembered.
pub(crate) const CALLS_MAX: usize = 8192;
/// WRITEs. There are many, and each is sent again soon or never.
pub(crate) const WRITES_MAX: usize = 2048;
/// How long a reply is. A client that is silent for longer has forgotten its call too.
const REMEMBERED: Duration = Duration::from_secs(300);

/// Which call it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CallId {
    client: IpAddr,
    xid: u32,
    procedure: u32,
    checksum: u64,
}

struct Remembered {
    begun_at: Instant,
    over: Event,
    reply: RefCell<Vec<u8>>,
}

/// What is remembered.
pub(crate) struct Duplicates {
    calls_max: usize,
    hasher: RandomState,
    calls: RefCell<HashMap<CallId, Rc<Remembered>>>,
    /// In the order in which they began.
    order: RefCell<VecDeque<CallId>>,
}

impl Duplicates {
    /// Remembers so many calls.
    pub(crate) fn of(calls_max: usize) -> Duplicates {
        let (hasher, calls, order) = Default::default();
        Duplicates { calls_max, hasher, calls, order }
    }

    /// The call of `client` with these arguments.
    pub(crate) fn id(&self, client: IpAddr, xid: u32, procedure: u32, args: &[u8]) -> CallId {
        CallId { client, xid, procedure, checksum: self.hasher.hash_one(args) }
    }

    /// The call of `client` with these arguments, and this payload beside them.
    pub(crate) fn id_of_write(
        &self,
        client: IpAddr,
        xid: u32,
        procedure: u32,
        (args, payload): (&[u8], &[u8]),
    ) -> CallId {
        let checksum = self.hasher.hash_one((args, crc32c::crc32c(payload)));
        CallId { client, xid, procedure, checksum }
    }

    /// Does `work`, unless this call is known: then its reply is that of the first time.
    ///
    /// The work goes on if the future is dropped, so that a repetition finds its reply.
    pub(crate) async fn once(&self, id: CallId, work: impl Future<Output = Vec<u8>> + 'static) -> Vec<u8> {
        let known = self.known(&id);
        let call = known.unwrap_or_else(|| {
            let call = Rc::new(Remembered {
                begun_at: Instant::now(),
                over: Event::new(),
                reply: RefCell::default(),
            });
            self.remember(id, call.clone());
            let of_task = call.clone();
            spawn(async move {
                *of_task.reply.borrow_mut() = work.await;
                of_task.over.set();
            });
            call
        });
        call.over.wait().await;
        call.reply.borrow().clone()
    }

    fn known(&self, id: &CallId) -> Option<Rc<Remembered>> {
        let call = self.calls.borrow().get(id).cloned()?;
        let is_old = call.over.is_set() && call.begun_at.elapsed() >= REMEMBERED;
        (!is_old).then_some(call)
    }

    fn remember(&self, id: CallId, call: Rc<Remembered>) {
        let (mut calls, mut order) = (self.calls.borrow_mut(), self.order.borrow_mut());
        if calls.insert(id.clone(), call).is_none() {
            order.push_back(id);
        }
        // Those that are under way are kept; there are at most as many as the server lets in.
        for _ in self.calls_max..order.len() {
            let Some(oldest) = order.pop_front() else { return };
            match calls.get(&oldest).is_some_and(|call| call.over.is_set()) {
                true => drop(calls.remove(&oldest)),
                false => order.push_back(oldest),
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.calls.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use weft_reactor::{Reactor, ReactorOptions, sleep};

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn run(test: impl AsyncFnOnce(Duplicates, Rc<Cell<u32>>)) {
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        reactor.run(async { test(Duplicates::of(CALLS_MAX), Rc::default()).await });
    }

    async fn count(counter: Rc<Cell<u32>>) -> Vec<u8> {
        sleep(Duration::from_millis(5)).await;
        counter.set(counter.get() + 1);
        vec![counter.get() as u8]
    }

    #[test]
    fn a_repetition_has_the_first_reply_and_waits_for_it() {
        run(async |duplicates, counter| {
            let id = |xid, args: &[u8]| duplicates.id(CLIENT, xid, 12, args);
            let one = duplicates.once(id(7, b"x"), count(counter.clone()));
            let other = duplicates.once(id(7, b"x"), count(counter.clone()));
            let (one, other) = crate::weft::both(one, other).await;
            assert_eq!((one, other), (vec![1], vec![1]));
            assert_eq!(duplicates.once(id(7, b"x"), count(counter.clone())).await, [1]);
            assert_eq!(duplicates.once(id(8, b"x"), count(counter.clone())).await, [2], "another call");
            assert_eq!(duplicates.once(id(7, b"y"), count(counter.clone())).await, [3], "other arguments");
        });
    }

    #[test]
    fn a_call_whose_connection_is_lost_is_done_to_its_end() {
        run(async |duplicates, counter| {
            let id = || duplicates.id(CLIENT, 7, 12, b"x");
            let mut lost = Box::pin(duplicates.once(id(), count(counter.clone())));
            let polled = std::future::poll_fn(|context| std::task::Poll::Ready(lost.as_mut().poll(context)));
            assert!(polled.await.is_pending());
            drop(lost);
            assert_eq!(duplicates.once(id(), count(counter.clone())).await, [1]);
            assert_eq!(counter.get(), 1);
        });
    }

    #[test]
    fn memory_is_bounded() {
        run(async |duplicates, _| {
            for xid in 0..CALLS_MAX as u32 + 100 {
                let id = duplicates.id(CLIENT, xid, 12, b"x");
                duplicates.once(id, async { Vec::new() }).await;
            }
            assert_eq!(duplicates.len(), CALLS_MAX);
        });
    }
}
