//! Requests that a thread is serving, so that one that does not end is told of while it lasts.
//!
//! ```text
//!   request comes ─► a place in the table ─► … each time that it has to wait: what for … ─► it ends: the place is free
//!                              ▲
//!                              └ every few seconds: what is there for [`STUCK_MS`] is told, once
//! ```
//!
//! Places are used again, so a request costs no memory; its times are those that are read anyway.

use crate::identity::Session;
use crate::spent::Request;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_wire::Op;

/// A request that is being served.
pub(crate) struct Entry {
    pub op: Op,
    /// When it came, see [`weft_log::coarse_ms`].
    pub begun_ms: u64,
    /// As of when it waited last.
    pub request: Request,
    pub session: Rc<Session>,
    is_told: bool,
    /// Held until the request ends.
    counted: Option<Counted>,
}

/// Is counted while it lasts.
pub(crate) struct Counted(Arc<AtomicU64>);

impl Counted {
    /// Raises the count until the value is dropped.
    pub fn by(count: &Arc<AtomicU64>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The requests of one thread.
#[derive(Default)]
pub(crate) struct Table {
    places: RefCell<Places>,
}

#[derive(Default)]
struct Places {
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
}

/// A request's place, until it is dropped.
pub(crate) struct Place<'a> {
    table: &'a Table,
    number: usize,
}

impl Table {
    /// A request is served from now on.
    pub fn begin(&self, op: Op, begun_ms: u64, request: Request, session: &Rc<Session>) -> Place<'_> {
        let entry =
            Some(Entry { op, begun_ms, request, session: session.clone(), is_told: false, counted: None });
        let mut places = self.places.borrow_mut();
        let number = match places.free.pop() {
            Some(number) => {
                places.entries[number] = entry;
                number
            }
            None => {
                places.entries.push(entry);
                places.entries.len() - 1
            }
        };
        Place { table: self, number }
    }

    /// Tells of those that are served for at least `after_ms` now and were not told of yet. What `tell` returns lasts as long as the
    /// request.
    pub fn look(&self, now_ms: u64, after_ms: u64, mut tell: impl FnMut(&Entry) -> Option<Counted>) {
        for entry in self.places.borrow_mut().entries.iter_mut().flatten() {
            if !entry.is_told && now_ms.saturating_sub(entry.begun_ms) >= after_ms {
                entry.is_told = true;
                entry.counted = tell(entry);
            }
        }
    }
}

impl Place<'_> {
    /// What the request has waited for, and waits for.
    pub fn note(&self, request: &Request) {
        if let Some(entry) = &mut self.table.places.borrow_mut().entries[self.number] {
            entry.request = *request;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut places = self.table.places.borrow_mut();
        places.entries[self.number] = None;
        places.free.push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::spent::Part;
    use crate::tests::hello_of_a_server;

    #[test]
    fn a_request_is_told_once_and_its_place_is_used_again() {
        let table = Table::default();
        let session = Rc::new(Session::new(hello_of_a_server(), Identity::server()));
        let stuck = Arc::<AtomicU64>::default();
        let told = |now_ms| {
            let mut told = Vec::new();
            table.look(now_ms, 30, |entry| {
                told.push((entry.op, entry.request.so_far(now_ms).ms(Part::Disk)));
                Some(Counted::by(&stuck))
            });
            told
        };
        let first = table.begin(Op::Write, 100, Request::new(1), &session);
        let second = table.begin(Op::Read, 120, Request::new(2), &session);
        assert!(told(129).is_empty());
        let mut waiting = Request::new(1);
        waiting.begin(Part::Disk, 105);
        first.note(&waiting);
        assert_eq!(told(130), [(Op::Write, 25)]);
        assert!(told(149).is_empty(), "it was told");
        assert_eq!(stuck.load(Ordering::Relaxed), 1);
        drop(first);
        assert_eq!(stuck.load(Ordering::Relaxed), 0, "it has ended");
        let third = table.begin(Op::Sync, 140, Request::new(3), &session);
        assert_eq!(told(200), [(Op::Sync, 0), (Op::Read, 0)]);
        assert_eq!(table.places.borrow().entries.len(), 2);
        drop((second, third));
        assert!(told(1000).is_empty());
    }
}
