//! Requests to any number of servers, driven by the thread that waits for them.
//!
//! A server that says nothing is asked whether it lives, on the same connection. One that does may take its
//! time.
//!
//! One step submits what is ready, lets every lane in use send and receive, and looks at the replies. Between
//! steps the thread busy-polls for a moment, if the requests are small and that has helped before, and then
//! sleeps in `poll(2)` on all its lanes at once (`sleep.rs`).

mod ask;
mod detached;
mod requests;
mod sleep;

pub use ask::{ask, ask_all, ask_each, ask_guarded, ask_looking, ask_server};
pub use detached::{finish_detached, reap, reap_ready};
pub use requests::{Batch, Finished};
pub use sleep::{after_poll, before_poll, progress, rest};
