//! Reads, writes and metadata calls that are under way, waited for together.
//!
//! A program with an event loop of its own waits like this:
//!
//! ```no_run
//! use weft_client::{Client, ConnectOptions, Progress, Url, after_poll, before_poll};
//!
//! let client = Client::connect(&Url::parse("weft://node1:7400/")?, ConnectOptions::default())?;
//! let stat = |at| client.start_stat(format!("/run/{at}").as_str(), false);
//! let mut calls: Vec<_> = (0..200).map(stat).collect();
//! while !calls.is_empty() {
//!     let mut under_way: Vec<&mut dyn Progress> = calls.iter_mut().map(|call| call as _).collect();
//!     let mut descriptors = Vec::new();
//!     let longest = before_poll(&mut under_way, &mut descriptors);
//!     // … with other descriptors of the program.
//!     let wait_ms = longest.as_millis() as i32 + 1;
//!     unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as u64, wait_ms) };
//!     after_poll(&mut under_way);
//!     for call in calls.extract_if(.., |call| call.advance()) {
//!         println!("{} bytes", call.wait()?.size);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use crate::batch::{self, Batch};
use crate::rpc::Rpc;

/// Whether what this thread begins is kept until it is about to wait ([`before_poll`]), and then leaves
/// together, with few system calls. An event loop that begins many things in a row says so once.
pub fn hold_requests(are_held: bool) {
    weft_transport::hold_requests(are_held);
}

/// Something under way that moves when it is tested.
pub trait Progress {
    /// Moves it forward without waiting for replies; whether it is over.
    fn test(&mut self) -> bool;
    /// The same where what its connections had was just received: after [`after_poll`].
    fn advance(&mut self) -> bool;
    /// The requests that it waits for.
    #[doc(hidden)]
    fn requests(&mut self) -> Option<(&Rpc, &mut Batch)>;
    /// The program begins to wait for it: it has as much time as if it began now.
    #[doc(hidden)]
    fn begin_wait(&mut self);
}

/// Moves all forward together until each is over, so that none has to be waited for any more. They may be of
/// several clients.
pub fn finish_all<'a, P: Progress + ?Sized + 'a>(under_way: impl IntoIterator<Item = &'a mut P>) {
    let mut under_way: Vec<&mut P> = under_way.into_iter().collect();
    under_way.iter_mut().for_each(|one| one.begin_wait());
    under_way.retain_mut(|one| !one.test());
    while !under_way.is_empty() {
        let mut batches: Vec<_> = under_way.iter_mut().filter_map(|one| one.requests()).collect();
        batch::rest(&mut batches);
        batch::progress(&batches);
        under_way.retain_mut(|one| !one.advance());
    }
}

/// For a program with an event loop of its own: adds to `descriptors` what this thread is to wait for with
/// `poll(2)` or the like, and says for how long at most. After that wait it calls [`after_poll`], and
/// [`Progress::advance`] of what is under way.
///
/// The descriptors are those of now: they are asked for before each wait.
pub fn before_poll(under_way: &mut [&mut dyn Progress], descriptors: &mut Vec<libc::pollfd>) -> Duration {
    let batches: Vec<_> = under_way.iter_mut().filter_map(|one| one.requests()).collect();
    batch::before_poll(&batches, descriptors)
}

/// See [`before_poll`].
pub fn after_poll(under_way: &mut [&mut dyn Progress]) {
    let batches: Vec<_> = under_way.iter_mut().filter_map(|one| one.requests()).collect();
    batch::after_poll(&batches);
}
