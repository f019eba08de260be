//! The descriptors that a reactor watches, and the tasks that wait for each.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::slab::Slab;

/// The registered descriptors of a reactor.
pub(crate) struct FdTable {
    fds: RefCell<Slab<Rc<FdState>>>,
}

/// A registered descriptor.
pub(crate) struct FdState {
    pub read: Direction,
    pub write: Direction,
}

/// One direction of a descriptor: the memory and the waiting tasks.
pub(crate) struct Direction {
    pub ready: Cell<bool>,
    /// The stream has ended in this direction. It stays ready, since the end causes no further edge.
    pub ended: Cell<bool>,
    waiters: RefCell<Vec<(u64, Waker)>>,
    next_waiter: Cell<u64>,
}

impl Direction {
    fn new() -> Self {
        Direction {
            ready: Cell::new(true),
            ended: Cell::new(false),
            waiters: RefCell::new(Vec::new()),
            next_waiter: Cell::new(0),
        }
    }

    fn set_ready(&self) {
        self.ready.set(true);
        for (_, waker) in self.waiters.take() {
            waker.wake();
        }
    }

    pub async fn wait(&self) {
        if self.ready.get() {
            return;
        }
        let id = self.next_waiter.get();
        self.next_waiter.set(id + 1);
        let _waiting = Waiting { direction: self, id };
        std::future::poll_fn(|cx| {
            if self.ready.get() {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            match waiters.iter_mut().find(|(waiter, _)| *waiter == id) {
                Some((_, waker)) => waker.clone_from(cx.waker()),
                None => waiters.push((id, cx.waker().clone())),
            }
            Poll::Pending
        })
        .await
    }
}

/// Removes a waiter from its list when its future ends or is dropped.
struct Waiting<'a> {
    direction: &'a Direction,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.direction.waiters.borrow_mut().retain(|(waiter, _)| *waiter != self.id);
    }
}

impl FdTable {
    pub(crate) fn new() -> Self {
        FdTable { fds: RefCell::new(Slab::new()) }
    }

    /// A new entry, with the key for its events.
    pub(crate) fn insert(&self) -> (u64, Rc<FdState>) {
        let state = Rc::new(FdState { read: Direction::new(), write: Direction::new() });
        (self.fds.borrow_mut().insert(state.clone()), state)
    }

    pub(crate) fn remove(&self, key: u64) {
        self.fds.borrow_mut().remove(key);
    }

    pub(crate) fn deliver(&self, key: u64, events: u32) {
        let Some(state) = self.fds.borrow_mut().get_mut(key).cloned() else { return };
        let failed = events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
        if failed || events & libc::EPOLLRDHUP as u32 != 0 {
            state.read.ended.set(true);
        }
        if failed || events & (libc::EPOLLIN | libc::EPOLLRDHUP) as u32 != 0 {
            state.read.set_ready();
        }
        if failed || events & libc::EPOLLOUT as u32 != 0 {
            state.write.set_ready();
        }
    }
}
