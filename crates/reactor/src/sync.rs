//! Waiting for other tasks of the same thread: an event, a notification, a fair semaphore, a fair lock.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// An event that happens once, for any number of waiting tasks.
#[derive(Default)]
pub struct Event {
    happened: Cell<bool>,
    waiters: RefCell<Vec<Waker>>,
}

impl Event {
    /// An event that has not happened.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the event, and wakes all waiters. Later calls do nothing.
    pub fn set(&self) {
        self.happened.set(true);
        self.waiters.take().into_iter().for_each(Waker::wake);
    }

    /// Whether it has happened.
    pub fn is_set(&self) -> bool {
        self.happened.get()
    }

    /// Waits until it has happened.
    pub async fn wait(&self) {
        std::future::poll_fn(|cx| {
            if self.happened.get() {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// A notification of a change. One waiter takes it; without a waiter it is kept.
pub struct Notify {
    semaphore: Semaphore,
}

impl Default for Notify {
    fn default() -> Self {
        Self::new()
    }
}

impl Notify {
    /// Without a notification.
    pub fn new() -> Self {
        Notify { semaphore: Semaphore::new(0) }
    }

    /// Wakes the task that has waited longest. Without waiters the next wait returns at once. Several kept
    /// notifications count as one.
    pub fn notify(&self) {
        if self.semaphore.available() == 0 {
            self.semaphore.add(1);
        }
    }

    /// Waits for a notification.
    pub async fn notified(&self) {
        self.semaphore.acquire(1).await.forget();
    }
}

/// A count of permits, granted in the order of requests: small requests do not overtake a large one.
#[derive(Clone)]
pub struct Semaphore {
    state: Rc<SemaphoreState>,
}

struct SemaphoreState {
    available: Cell<usize>,
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
}

struct Waiter {
    wanted: usize,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Semaphore {
    /// A semaphore with `permits`.
    pub fn new(permits: usize) -> Self {
        let state = SemaphoreState { available: Cell::new(permits), waiters: RefCell::new(VecDeque::new()) };
        Semaphore { state: Rc::new(state) }
    }

    /// Permits that nobody holds.
    pub fn available(&self) -> usize {
        self.state.available.get()
    }

    /// Tasks that wait.
    pub fn waiting(&self) -> usize {
        self.state.waiters.borrow().len()
    }

    /// Adds permits.
    pub fn add(&self, permits: usize) {
        self.state.available.set(self.state.available.get() + permits);
        self.state.grant();
    }

    /// Waits, in turn, for `permits`. A request for more than there ever are waits without end, and blocks
    /// all later ones.
    pub fn acquire(&self, permits: usize) -> Acquire {
        Acquire { state: self.state.clone(), wanted: permits, waiter: None }
    }

    /// Takes `permits` if they are free and nobody waits.
    pub fn try_acquire(&self, permits: usize) -> Option<Permit> {
        if !self.state.waiters.borrow().is_empty() || self.state.available.get() < permits {
            return None;
        }
        self.state.available.set(self.state.available.get() - permits);
        Some(Permit { state: self.state.clone(), permits })
    }
}

impl SemaphoreState {
    /// Grants available permits to the front of the queue.
    fn grant(&self) {
        loop {
            let mut waiters = self.waiters.borrow_mut();
            let Some(left) = waiters.front().and_then(|first| self.available.get().checked_sub(first.wanted))
            else {
                return;
            };
            let Some(first) = waiters.pop_front() else { return };
            drop(waiters);
            self.available.set(left);
            first.granted.set(true);
            if let Some(waker) = first.waker.take() {
                waker.wake();
            }
        }
    }
}

/// The future of [`Semaphore::acquire`].
pub struct Acquire {
    state: Rc<SemaphoreState>,
    wanted: usize,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let granted = match &this.waiter {
            Some(waiter) => waiter.granted.get(),
            None if this.state.waiters.borrow().is_empty() && this.state.available.get() >= this.wanted => {
                this.state.available.set(this.state.available.get() - this.wanted);
                true
            }
            None => false,
        };
        if granted {
            this.waiter = None;
            return Poll::Ready(Permit { state: this.state.clone(), permits: this.wanted });
        }
        let waiter = this.waiter.get_or_insert_with(|| {
            let waiter = Waiter {
                wanted: this.wanted,
                granted: Cell::new(false),
                waker: RefCell::new(Some(cx.waker().clone())),
            };
            let waiter = Rc::new(waiter);
            this.state.waiters.borrow_mut().push_back(waiter.clone());
            waiter
        });
        waiter.waker.borrow_mut().get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        if waiter.granted.get() {
            self.state.available.set(self.state.available.get() + self.wanted);
        } else {
            self.state.waiters.borrow_mut().retain(|other| !Rc::ptr_eq(other, &waiter));
        }
        self.state.grant();
    }
}

/// Permits that are held; returned on drop.
pub struct Permit {
    state: Rc<SemaphoreState>,
    permits: usize,
}

impl Permit {
    /// Removes the permits from the semaphore for good.
    pub fn forget(mut self) {
        self.permits = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.state.available.set(self.state.available.get() + self.permits);
        self.state.grant();
    }
}

/// A value that one task uses at a time, in the order of requests: the write half of a connection.
pub struct LocalLock<T> {
    turns: Semaphore,
    value: RefCell<T>,
}

impl<T> LocalLock<T> {
    /// A lock that is free.
    pub fn new(value: T) -> Self {
        LocalLock { turns: Semaphore::new(1), value: RefCell::new(value) }
    }

    /// Waits for this task's turn.
    pub async fn lock(&self) -> LockGuard<'_, T> {
        let turn = self.turns.acquire(1).await;
        LockGuard { value: self.value.borrow_mut(), _turn: turn }
    }

    /// The value, if nobody holds or waits for the lock.
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        let turn = self.turns.try_acquire(1)?;
        Some(LockGuard { value: self.value.borrow_mut(), _turn: turn })
    }

    /// Tasks that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.turns.waiting()
    }

    /// Unwraps the value of a lock that is no longer shared.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

/// One task's turn with the value of a [`LocalLock`]; it ends on drop.
pub struct LockGuard<'a, T> {
    // Declared first, so that it is released before the turn passes on.
    value: RefMut<'a, T>,
    _turn: Permit,
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
