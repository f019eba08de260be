//! What a server has done.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

/// The number of a program, of its version, and of a procedure.
pub type ProcedureKey = (u32, u32, u32);

/// What a server has done so far, and what it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections at the moment.
    pub connections: usize,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were closed at once, or while idle, because there were too many.
    pub crowded_out: u64,
    /// Connections that were closed because their peers broke the protocol or were too slow.
    pub cut_off: u64,
    /// Calls that had results, by procedure.
    pub calls: BTreeMap<ProcedureKey, u64>,
    /// Calls that were answered with why there are no results.
    pub refused_calls: u64,
    /// Bytes from peers, with all heads and marks, without what was read by RDMA.
    pub received_bytes: u64,
    /// Of the bytes of payloads, those that had to be copied: what came with the heads of their calls and,
    /// over RDMA, what left with the heads of replies or did not lie in registered memory.
    pub copied_bytes: u64,
    /// Bytes that were read from the memory of peers by RDMA.
    pub rdma_read_bytes: u64,
    /// Bytes that were written to it.
    pub rdma_written_bytes: u64,
    /// Replies that peers were to read by RDMA, …
    pub rdma_exposed_replies: u64,
    /// … and their bytes, …
    pub rdma_exposed_bytes: u64,
    /// … and those of them that peers may read at the moment.
    pub rdma_exposed_now_bytes: u64,
    /// Microseconds for which they were exposed, of all replies together.
    pub rdma_exposed_us: u64,
    /// Bytes to peers, without what was written by RDMA.
    pub sent_bytes: u64,
    /// System calls and, over RDMA, messages that have sent them.
    pub sends: u64,
    /// Bytes of memory that calls and their replies hold at the moment.
    pub memory_bytes: usize,
}

/// Numbers that only grow.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) accepted: Cell<u64>,
    pub(crate) crowded_out: Cell<u64>,
    pub(crate) cut_off: Cell<u64>,
    pub(crate) refused_calls: Cell<u64>,
    pub(crate) received_bytes: Cell<u64>,
    pub(crate) copied_bytes: Cell<u64>,
    pub(crate) rdma_read_bytes: Cell<u64>,
    pub(crate) rdma_written_bytes: Cell<u64>,
    pub(crate) sent_bytes: Cell<u64>,
    pub(crate) sends: Cell<u64>,
    pub(crate) exposed: Rc<ExposedCounters>,
    calls: RefCell<BTreeMap<ProcedureKey, u64>>,
}

/// What was exposed, by all connections of a server.
#[derive(Default)]
pub(crate) struct ExposedCounters {
    pub(crate) replies: Cell<u64>,
    pub(crate) bytes: Cell<u64>,
    /// At the moment.
    pub(crate) bytes_now: Cell<u64>,
    /// The time that each was exposed, added up.
    pub(crate) time_us: Cell<u64>,
}

/// A reply as long as it is exposed, in [`ExposedCounters`].
pub(crate) struct CountedExposure {
    counters: Rc<ExposedCounters>,
    bytes: u64,
    since: Instant,
}

impl CountedExposure {
    /// From now on.
    pub(crate) fn new(counters: &Rc<ExposedCounters>, bytes: usize) -> CountedExposure {
        let bytes = bytes as u64;
        counters.replies.set(counters.replies.get() + 1);
        counters.bytes.set(counters.bytes.get() + bytes);
        counters.bytes_now.set(counters.bytes_now.get() + bytes);
        CountedExposure { counters: counters.clone(), bytes, since: Instant::now() }
    }
}

impl Drop for CountedExposure {
    fn drop(&mut self) {
        let counters = &self.counters;
        counters.bytes_now.set(counters.bytes_now.get() - self.bytes);
        counters.time_us.set(counters.time_us.get() + self.since.elapsed().as_micros() as u64);
    }
}

/// Adds to a number.
pub(crate) fn add(to: &Cell<u64>, count: usize) {
    to.set(to.get() + count as u64);
}

impl Counters {
    /// A call has results. Only such calls have entries, so that no peer can make up procedures.
    pub(crate) fn answered(&self, key: ProcedureKey) {
        *self.calls.borrow_mut().entry(key).or_default() += 1;
    }

    pub(crate) fn snapshot(&self, connections: usize, memory_bytes: usize) -> Counts {
        Counts {
            connections,
            memory_bytes,
            accepted: self.accepted.get(),
            crowded_out: self.crowded_out.get(),
            cut_off: self.cut_off.get(),
            calls: self.calls.borrow().clone(),
            refused_calls: self.refused_calls.get(),
            received_bytes: self.received_bytes.get(),
            copied_bytes: self.copied_bytes.get(),
            rdma_read_bytes: self.rdma_read_bytes.get(),
            rdma_written_bytes: self.rdma_written_bytes.get(),
            sent_bytes: self.sent_bytes.get(),
            sends: self.sends.get(),
            rdma_exposed_replies: self.exposed.replies.get(),
            rdma_exposed_bytes: self.exposed.bytes.get(),
            rdma_exposed_now_bytes: self.exposed.bytes_now.get(),
            rdma_exposed_us: self.exposed.time_us.get(),
        }
    }
}
