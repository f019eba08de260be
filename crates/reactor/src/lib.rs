//! A one-thread executor over epoll and io_uring, so that a request handler can be one sequential async
//! function.
//!
//! Each data-path thread owns one [`Reactor`]. All its tasks stay on that thread, so they use `Rc` and
//! `RefCell` and need no locks. Other threads reach it only by waking a task, usually through a [`Mailbox`].
//!
//! ```text
//!            wakes on this thread                     wakes from other threads
//!                     |                                         |
//!                     v                                         v
//!   +---------->  ready queue  <--------------------  remote queue + eventfd (only if asleep)
//!   |                 |
//!   |   1  run ready tasks (a bounded batch)
//!   |   2  submit all new ring entries in one io_uring_enter, reap completions from shared memory
//!   |   3  fire timers that are due
//!   |   4  epoll: with work left or while spinning, poll (timeout 0); otherwise sleep
//!   +---------------- sockets, the eventfd, the timerfd and the ring's own descriptor wake tasks
//! ```
//!
//! An idle reactor makes no system calls: it sleeps in one `epoll_wait` until the next timer. With `spin_us` it
//! polls for that long after the last work before it sleeps. This saves the cost of waking a sleeping core, at the
//! expense of CPU time.
//!
//! ```
//! use std::time::Duration;
//! use weft_reactor::{Reactor, ReactorOptions, sleep, spawn};
//!
//! let reactor = Reactor::new(ReactorOptions::default()).unwrap();
//! let sum = reactor.run(async {
//!     let slow = spawn(async { sleep(Duration::from_millis(2)).await; 40 });
//!     2 + slow.await
//! });
//! assert_eq!(sum, 42);
//! ```
//!
//! Deliberately absent: work stealing, `Send` tasks, priorities, signal handling, name resolution.

mod alarm;
mod descriptors;
mod epoll;
mod executor;
mod mailbox;
mod operations;
mod readiness;
pub mod ring;
mod slab;
mod state;
mod sync;
mod timer;
mod timers;

pub use executor::{JoinHandle, Reactor, spawn, stats, yield_now};
pub use mailbox::{MailSender, Mailbox, SendError, mailbox};
pub use readiness::{Interest, Readiness};
pub use state::{ReactorOptions, ReactorStats};
pub use sync::{Acquire, Event, LocalLock, LockGuard, Notify, Permit, Semaphore};
pub use timer::{Elapsed, Sleep, sleep, sleep_until, timeout};
