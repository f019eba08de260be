//! The connections that an endpoint serves at the moment. There are few: a new one takes the place of one that is
//! silent, so that peers that connect and do not ask delay no scrape.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Connections that are served at once.
pub(crate) const VISITORS_MAX: usize = 32;
/// Time that a peer has to ask before it may lose its place to another one.
const SILENCE_MAX: Duration = Duration::from_millis(20);
/// The same for taking the answer, where all others have asked as well.
const ANSWER_MAX: Duration = Duration::from_millis(300);
/// How often a full table is looked at again.
const LOOK: Duration = Duration::from_millis(5);

/// See the module's header.
#[derive(Default)]
pub(crate) struct Visitors {
    state: Mutex<State>,
    one_has_left: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By number, so the oldest is the first.
    visitors: BTreeMap<u64, Visitor>,
}

struct Visitor {
    stream: Arc<TcpStream>,
    since: Instant,
    has_asked: bool,
}

impl State {
    /// Closes the connection that gives way to a new one, if one must.
    fn close_one(&self) {
        let overdue = |has_asked: bool, limit: Duration| {
            let mut visitors = self.visitors.values();
            visitors.find(|visitor| visitor.has_asked == has_asked && visitor.since.elapsed() >= limit)
        };
        if let Some(visitor) = overdue(false, SILENCE_MAX).or_else(|| overdue(true, ANSWER_MAX)) {
            // Its thread finds that it has ended.
            let _ = visitor.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Visitors {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a connection its place. If there is none, waits for the moment that it takes to close another one.
    pub fn enter(self: &Arc<Self>, stream: TcpStream) -> Visit {
        let mut state = self.lock();
        while state.visitors.len() >= VISITORS_MAX {
            state.close_one();
            state = self.one_has_left.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        let (number, stream) = (state.next, Arc::new(stream));
        state.next += 1;
        let visitor = Visitor { stream: stream.clone(), since: Instant::now(), has_asked: false };
        state.visitors.insert(number, visitor);
        drop(state);
        Visit { visitors: self.clone(), number, stream }
    }
}

/// A connection that has a place, until this is dropped.
pub(crate) struct Visit {
    visitors: Arc<Visitors>,
    number: u64,
    stream: Arc<TcpStream>,
}

impl Visit {
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Notes that its request has come.
    pub fn has_asked(&self) {
        if let Some(visitor) = self.visitors.lock().visitors.get_mut(&self.number) {
            visitor.has_asked = true;
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.visitors.lock().visitors.remove(&self.number);
        self.visitors.one_has_left.notify_one();
    }
}
