//! Completion queues and shared receive queues.

use crate::engine::errno;
use crate::state::{Frees, Network, ReceivesFrom};
use crate::wakeup::Wakeup;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use weft_verbs::{CompletionQueue, Counters, MemoryPiece, SharedReceives, VerbsError, WorkDone};

/// Where pretended work reports its end.
pub struct PretendQueue {
    network: Arc<Network>,
    adapter: String,
    number: u32,
    wakeup: Arc<Wakeup>,
}

impl PretendQueue {
    pub(crate) fn new(
        network: Arc<Network>,
        adapter: String,
        number: u32,
        wakeup: Arc<Wakeup>,
    ) -> PretendQueue {
        PretendQueue { network, adapter, number, wakeup }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    fn failed(&self, what: &'static str) -> impl Fn(io::Error) -> VerbsError + use<> {
        let device = self.adapter.clone();
        move |source| VerbsError::Device { device: device.clone(), what, source }
    }

    fn error(&self, what: &'static str, number: i32) -> VerbsError {
        self.failed(what)(errno(number))
    }
}

impl CompletionQueue for PretendQueue {
    fn poll(&mut self, done: &mut Vec<WorkDone>, most: usize) -> Result<(), VerbsError> {
        let mut state = self.network.enter().map_err(self.failed("poll the completion queue"))?;
        state.run();
        let state = &mut *state;
        let Some(queue) = state.queues.get_mut(&self.number) else { return Ok(()) };
        let (adapter, overrun) = (queue.adapter, queue.overrun);
        let taken: Vec<_> = queue.entries.drain(..queue.entries.len().min(most)).collect();
        let known = &mut state.adapters[adapter];
        Counters::add(&known.counters.polls, 1);
        Counters::add(&known.counters.completions, taken.len() as u64);
        known.charged.completion_ns += state.costs.poll_ns + taken.len() as u64 * state.costs.completion_ns;
        let removed = known.removed;
        for entry in &taken {
            state.free(&entry.frees);
        }
        if taken.is_empty() && most > 0 {
            match (overrun, removed) {
                (true, _) => return Err(self.error("poll an overrun completion queue", libc::EOVERFLOW)),
                (_, true) => return Err(self.error("poll the completion queue", libc::ENODEV)),
                _ => {}
            }
        }
        done.extend(taken.iter().map(|entry| entry.done));
        Ok(())
    }

    fn arm(&mut self) -> Result<(), VerbsError> {
        let mut state = self.network.enter().map_err(self.failed("arm the completion queue"))?;
        state.settle();
        let Some(queue) = state.queues.get_mut(&self.number) else { return Ok(()) };
        if queue.overrun {
            return Err(self.error("arm an overrun completion queue", libc::EOVERFLOW));
        }
        queue.armed = true;
        Ok(())
    }

    fn fd(&self) -> RawFd {
        self.wakeup.fd()
    }

    fn take_wakeups(&mut self) -> Result<u32, VerbsError> {
        let mut state = self.network.enter().map_err(self.failed("take wake-ups"))?;
        let taken = self.wakeup.take();
        let state = &mut *state;
        let Some(queue) = state.queues.get(&self.number) else { return Ok(0) };
        let known = &mut state.adapters[queue.adapter];
        Counters::add(&known.counters.wakeups, taken);
        known.charged.completion_ns += taken * state.costs.wakeup_ns;
        Ok(taken as u32)
    }
}

impl Drop for PretendQueue {
    fn drop(&mut self) {
        if let Ok(mut state) = self.network.enter() {
            state.queues.remove(&self.number);
        }
    }
}

impl crate::state::State {
    /// Gives back the places that an end of work held.
    fn free(&mut self, frees: &Frees) {
        match frees {
            Frees::Sends { end, places } => {
                if let Some(pair) = self.pair(*end) {
                    pair.places_used -= places;
                }
            }
            Frees::Receive { end } => {
                if let Some(ReceivesFrom::Own { used, .. }) = self.pair(*end).map(|pair| &mut pair.receives) {
                    *used -= 1;
                }
            }
            Frees::Shared { shared } => {
                if let Some(shared) = self.shared.get_mut(shared) {
                    shared.used -= 1;
                }
            }
        }
    }
}

/// Receive buffers that many pretended endpoints share.
pub struct PretendShared {
    network: Arc<Network>,
    adapter: String,
    number: u32,
}

impl PretendShared {
    pub(crate) fn new(network: Arc<Network>, adapter: String, number: u32) -> PretendShared {
        PretendShared { network, adapter, number }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    fn error(&self, posted: usize, number: i32) -> VerbsError {
        VerbsError::Post { device: self.adapter.clone(), posted, source: errno(number) }
    }
}

impl SharedReceives for PretendShared {
    unsafe fn post(&self, receives: &[(u64, MemoryPiece)]) -> Result<(), VerbsError> {
        let Ok(mut state) = self.network.enter() else { return Err(self.error(0, libc::EPERM)) };
        let state = &mut *state;
        let costs = state.costs;
        let Some(shared) = state.shared.get_mut(&self.number) else {
            return Err(self.error(0, libc::EINVAL));
        };
        let known = &mut state.adapters[shared.adapter];
        if known.removed {
            return Err(self.error(0, libc::ENODEV));
        }
        let taken = receives.len().min((shared.depth - shared.used) as usize);
        known.charged.posting(&costs, taken as u64, taken as u64);
        Counters::add(&known.counters.receives, taken as u64);
        shared.used += taken as u32;
        shared.posted.extend(&receives[..taken]);
        for waiting in std::mem::take(&mut shared.waiting) {
            state.receive_came(waiting);
        }
        state.run();
        if taken == receives.len() { Ok(()) } else { Err(self.error(taken, libc::ENOMEM)) }
    }
}

impl Drop for PretendShared {
    fn drop(&mut self) {
        if let Ok(mut state) = self.network.enter() {
            state.shared.remove(&self.number);
        }
    }
}
