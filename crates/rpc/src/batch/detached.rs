//! Requests whose replies nobody waits for: they are taken when somebody comes by, and repeated where they
//! were lost.

use std::time::{Duration, Instant};

use super::requests::Batch;
use crate::call::{BLOCKED_PAUSE, Call, State};
use crate::rpc::Rpc;
use crate::wait::lock;

/// Replies that nobody waits for, before somebody does.
const DETACHED_MAX: usize = 32;
/// How long they are waited for at the end.
const DETACHED_TIMEOUT: Duration = Duration::from_secs(1);

impl Batch {
    /// Sends what there is and leaves the replies to the next caller of [`reap`].
    pub fn detach(mut self, rpc: &Rpc) {
        self.step(rpc);
        self.put_by(rpc);
    }

    fn put_by(mut self, rpc: &Rpc) {
        let calls = std::mem::take(&mut self.calls);
        lock(rpc.detached()).extend(calls.into_iter().filter(|call| !call.is_done()));
    }

    /// Ends what is under way. A change that was sent keeps its slot until the server has replied.
    pub fn cancel(mut self, rpc: &Rpc) {
        let calls = std::mem::take(&mut self.calls);
        lock(rpc.detached()).extend(calls.into_iter().filter(Call::holds_slot));
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

/// As [`reap`], without waiting.
pub fn reap_ready(rpc: &Rpc) {
    let calls = std::mem::take(&mut *lock(rpc.detached()));
    if calls.is_empty() {
        return;
    }
    let mut again = Batch::sharing();
    calls.into_iter().for_each(|call| again.push(call));
    while again.poll(rpc).is_some() {}
    again.put_by(rpc);
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
