//! Threads for calls of `weft-client` that have no form which goes on by itself: reports of what was written,
//! syncs, truncation, closing. They are made when they are needed, and end when they were idle for a while.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Threads at most; what is beyond that waits.
const THREADS_MAX: usize = 64;
/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    idle: usize,
    threads: usize,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    more: Condvar,
}

/// The threads. Clones share them.
#[derive(Clone, Default)]
pub struct Workers {
    inner: Arc<Inner>,
}

/// Where a result is put.
struct Outcome<T> {
    value: Option<T>,
    /// Its work was dropped without a result.
    lost: bool,
    waker: Option<Waker>,
}

/// Says that there will be no result, where the work ends without one.
struct Sender<T>(Arc<Mutex<Outcome<T>>>);

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut outcome = lock(&self.0);
        outcome.lost = outcome.value.is_none();
        let waker = outcome.waker.take();
        drop(outcome);
        waker.into_iter().for_each(Waker::wake);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// Has a thread do it, and waits for the result. Where the future is dropped it is done all the same.
    ///
    /// # Panics
    /// If the work panics, which is a defect, or the system has no thread for it.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let outcome = Arc::new(Mutex::new(Outcome { value: None, lost: false, waker: None }));
        let sender = Sender(outcome.clone());
        self.push(Box::new(move || {
            let value = work();
            lock(&sender.0).value = Some(value);
        }));
        std::future::poll_fn(|context| {
            let mut outcome = lock(&outcome);
            assert!(!outcome.lost, "a worker thread ended without a result");
            outcome.waker = Some(context.waker().clone());
            outcome.value.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Has a thread do it, and does not wait for that.
    pub fn leave(&self, work: impl FnOnce() + Send + 'static) {
        self.push(Box::new(work));
    }

    /// Waits until there is nothing left to do.
    pub async fn idle(&self) {
        let is_busy = || {
            let state = lock(&self.inner.state);
            state.idle < state.threads || !state.queue.is_empty()
        };
        while is_busy() {
            weft_reactor::sleep(Duration::from_millis(1)).await;
        }
    }

    fn push(&self, work: Work) {
        let mut state = lock(&self.inner.state);
        state.queue.push_back(work);
        if state.idle >= state.queue.len() || state.threads >= THREADS_MAX {
            self.inner.more.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let inner = self.inner.clone();
        let thread = std::thread::Builder::new().name("nfs-worker".into()).spawn(move || serve(&inner));
        if thread.is_err() {
            let mut state = lock(&self.inner.state);
            state.threads -= 1;
            // Another thread comes to it; without any there is nobody.
            if state.threads == 0 {
                state.queue.clear();
            }
        }
    }
}

fn serve(inner: &Inner) {
    let mut state = lock(&inner.state);
    loop {
        while let Some(work) = state.queue.pop_front() {
            drop(state);
            work();
            state = lock(&inner.state);
        }
        state.idle += 1;
        let waited = inner.more.wait_timeout_while(state, IDLE, |state| state.queue.is_empty());
        let (held, result) = waited.unwrap_or_else(PoisonError::into_inner);
        state = held;
        state.idle -= 1;
        if result.timed_out() && state.queue.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_reactor::{Reactor, ReactorOptions, spawn};

    #[test]
    fn work_that_waits_keeps_no_other_work_waiting() {
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let sum = reactor.run(async {
            let workers = Workers::default();
            let (release, wait) = std::sync::mpsc::channel();
            let blocked = {
                let workers = workers.clone();
                spawn(async move { workers.run(move || wait.recv().unwrap()).await })
            };
            let mut sum = 0;
            for number in 1..=50 {
                sum += workers.run(move || number).await;
            }
            release.send(7).unwrap();
            sum + blocked.await
        });
        assert_eq!(sum, 51 * 25 + 7);
    }
}
