//! Requests whose replies nobody waits for: they are taken when somebody comes by, and repeated where they were lost.

use std::time::{Duration, Instant};

use super::Batch;
use crate::call::{BLOCKED_PAUSE, State};
use crate::rpc::Rpc;
use crate::wait::lock;

/// Replies that nobody waits for, before somebody does.
const DETACHED_MAX: usize = 32;
/// How long they are waited for at the end.
const DETACHED_TIMEOUT: Duration = Duration::from_secs(1);

impl Batch {
    /// Sends what there is and leaves the replies to whoever comes next.
    pub fn detach(mut self, rpc: &Rpc) {
        self.step(rpc);
        let calls = std::mem::take(&mut self.calls);
        lock(rpc.detached()).extend(calls.into_iter().filter(|call| !call.is_done()));
    }
}

/// Takes the replies that nobody waited for; repeats what was lost.
pub fn reap(rpc: &Rpc) {
    let mut again = Batch::default();
    {
        let mut detached = lock(rpc.detached());
        if detached.is_empty() {
            return;
        }
        let too_many = detached.len() >= DETACHED_MAX;
        let mut at = 0;
        while at < detached.len() {
            detached[at].settle(rpc);
            match detached[at].state {
                State::Done(_) => drop(detached.swap_remove(at)),
                State::Sent { .. } if !too_many => at += 1,
                _ => again.push(detached.swap_remove(at)),
            }
        }
    }
    while again.wait(rpc).is_some() {}
}

/// Waits a little for the replies that nobody waited for, before the connections end.
pub fn finish_detached(rpc: &Rpc) {
    let mut last = Batch::default();
    lock(rpc.detached()).drain(..).for_each(|call| last.push(call));
    let end = Instant::now() + DETACHED_TIMEOUT;
    while !last.is_empty() && Instant::now() < end {
        if last.poll(rpc).is_none() {
            std::thread::sleep(BLOCKED_PAUSE);
        }
    }
}
