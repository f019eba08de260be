//! The event loop, the tasks, and wake-ups from this and other threads.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use async_task::Task;

use crate::state::{Core, Entered, ReactorOptions, ReactorStats, Shared, current};

/// A one-thread executor; see the crate's documentation. It is `!Send`: create it on the thread that runs it.
pub struct Reactor {
    core: Rc<Core>,
}

/// Wakes the future given to [`Reactor::run`], which is pinned on the stack and is not a task.
struct MainWaker {
    woken: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.shared.wake_if_sleeping();
    }
}

/// Starts a task on the current reactor. If the handle is dropped, the task continues.
///
/// A panic in a task is a defect and is not hidden: it unwinds out of [`Reactor::run`].
///
/// # Panics
/// Outside [`Reactor::run`].
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let core = current();
    let key = core.tasks.borrow_mut().insert(None);
    let entry = TaskEntry { core: core.clone(), key };
    let tracked = async move {
        let _entry = entry;
        future.await
    };
    let shared = core.shared.clone();
    let (runnable, task) = async_task::spawn_local(tracked, move |runnable| shared.schedule(runnable));
    if let Some(slot) = core.tasks.borrow_mut().get_mut(key) {
        *slot = Some(runnable.waker());
    }
    runnable.schedule();
    JoinHandle { task: Some(task) }
}

/// Removes a task from the reactor's table when its future ends or is dropped.
struct TaskEntry {
    core: Rc<Core>,
    key: u64,
}

impl Drop for TaskEntry {
    fn drop(&mut self) {
        let waker = self.core.tasks.borrow_mut().remove(self.key);
        drop(waker);
    }
}

/// The result of a spawned task: await it for the output. Dropping it detaches the task.
#[derive(Debug)]
pub struct JoinHandle<T> {
    task: Option<Task<T>>,
}

impl<T> JoinHandle<T> {
    /// Cancels the task: its future is dropped at its next turn, without being polled again.
    pub fn cancel(mut self) {
        drop(self.task.take());
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(Task::is_finished)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let task = self.task.as_mut().expect("a JoinHandle holds its task until it is dropped or cancelled");
        Pin::new(task).poll(cx)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

/// Lets every other ready task run once before this one continues.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(move |cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Counters of the current reactor.
///
/// # Panics
/// Outside [`Reactor::run`].
pub fn stats() -> ReactorStats {
    current().stats.get()
}

impl Reactor {
    /// Creates a reactor for this thread.
    ///
    /// # Errors
    /// The error of `epoll_create1` or `eventfd`. With `ring_entries`, an error that says so if io_uring is
    /// missing or forbidden (kernels before 5.6, many containers): create a reactor without a ring then, and
    /// use a disk that does not need one.
    pub fn new(options: ReactorOptions) -> io::Result<Reactor> {
        Ok(Reactor { core: Rc::new(Core::new(options)?) })
    }

    /// Runs `future` and all tasks until `future` ends, and returns its output. Remaining tasks stay,
    /// unpolled, for the next `run`, or are dropped with the reactor.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let core = &self.core;
        let _entered = Entered::new(core);
        let main = Arc::new(MainWaker { woken: AtomicBool::new(true), shared: core.shared.clone() });
        let waker = Waker::from(main.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        let mut last_work: Option<Instant> = None;
        loop {
            let mut worked = core.run_ready();
            if main.woken.swap(false, Ordering::SeqCst) {
                worked = true;
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return output;
                }
            }
            worked |= core.turn_ring();
            worked |= core.timers.borrow_mut().fire();
            if worked && core.spin > Duration::ZERO {
                last_work = Some(Instant::now());
            }
            core.wait(&main.woken, last_work);
        }
    }
}

impl Drop for Reactor {
    /// Drops every task, then waits for the ring's operations in flight, whose memory they hold.
    fn drop(&mut self) {
        let _entered = Entered::new(&self.core);
        while self.core.tasks.borrow().len() > 0 {
            let wakers: Vec<Waker> = self.core.tasks.borrow().values().flatten().cloned().collect();
            wakers.into_iter().for_each(Waker::wake);
            while let Some(runnable) = self.core.next_ready() {
                drop(runnable);
            }
            // Another thread may be between waking a task and queueing it.
            std::thread::yield_now();
        }
        if let Some(ring) = &self.core.ring {
            ring.finish();
        }
    }
}
