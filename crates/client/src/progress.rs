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

use std::time::{Duration, Instant};

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
    /// The program begins to wait for it: it has as much time as if it began now, or what was left at a pause.
    #[doc(hidden)]
    fn begin_wait(&mut self, now: Instant);
    /// The program stops waiting for it for a while.
    #[doc(hidden)]
    fn pause_wait(&mut self, now: Instant);
}

/// Moves all forward together until each is over, so that none has to be waited for any more. They may be of
/// several clients.
pub fn finish_all<'a, P: Progress + ?Sized + 'a>(under_way: impl IntoIterator<Item = &'a mut P>) {
    drive(&mut under_way.into_iter().enumerate().collect(), usize::MAX);
}

/// Moves all forward together until at least one is over, and says which are: their positions, in ascending order.
/// Until the next wait for the others, the time that a server has to answer them does not count.
pub fn finish_some<'a, P: Progress + ?Sized + 'a>(
    under_way: impl IntoIterator<Item = &'a mut P>,
) -> Vec<usize> {
    let mut under_way = under_way.into_iter().enumerate().collect();
    let over = drive(&mut under_way, 1);
    let now = Instant::now();
    under_way.iter_mut().for_each(|(_, one)| one.pause_wait(now));
    over
}

/// Moves them forward until `enough` of them, or all, are over; their positions, in the order of their ends. Leaves the others.
fn drive<P: Progress + ?Sized>(under_way: &mut Vec<(usize, &mut P)>, enough: usize) -> Vec<usize> {
    let (mut over, now) = (Vec::new(), Instant::now());
    under_way.iter_mut().for_each(|(_, one)| one.begin_wait(now));
    while !under_way.is_empty() {
        let batches: Vec<_> = under_way.iter_mut().filter_map(|(_, one)| one.requests()).collect();
        batch::progress(&batches);
        under_way.retain_mut(|(at, one)| {
            let is_over = one.advance();
            over.extend(is_over.then_some(*at));
            !is_over
        });
        if over.len() >= enough {
            break;
        }
        let mut batches: Vec<_> = under_way.iter_mut().filter_map(|(_, one)| one.requests()).collect();
        batch::rest(&mut batches);
    }
    over
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
