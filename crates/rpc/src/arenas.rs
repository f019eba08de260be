//! Shared memory that connections and adapters know.

use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_transport::Segment;

use crate::rdma;

/// Segments of one process. A connection learns of one when a request first uses it.
#[derive(Default)]
pub struct Arenas {
    segments: RwLock<Vec<Segment>>,
    /// Without a lock, whether there are any.
    count: AtomicUsize,
}

impl Arenas {
    /// Makes shared memory known to all connections, and to adapters.
    pub fn add(&self, segment: &Segment) {
        // Where an adapter refuses, it is used as if it were any memory, and status has the reason.
        rdma::register_arena(segment.base().as_ptr() as usize, segment.bytes());
        let mut segments = self.segments.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        segments.push(segment.clone());
        self.count.store(segments.len(), Ordering::Release);
    }

    /// Takes out what is about to be freed.
    pub(crate) fn remove(&self, id: u16) {
        let mut segments = self.segments.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        for segment in segments.extract_if(.., |segment| segment.id() == id) {
            rdma::unregister(segment.base().as_ptr() as usize);
        }
        self.count.store(segments.len(), Ordering::Release);
    }

    /// Those that overlap these addresses.
    pub(crate) fn overlapping(&self, (first, end): (u64, u64)) -> Vec<Segment> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let segments = self.segments.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let overlaps = |segment: &&Segment| {
            let base = segment.base().as_ptr() as u64;
            base < end && first < base + segment.bytes() as u64
        };
        segments.iter().filter(overlaps).cloned().collect()
    }
}

impl Drop for Arenas {
    fn drop(&mut self) {
        let segments = self.segments.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for segment in segments.drain(..) {
            rdma::unregister(segment.base().as_ptr() as usize);
        }
    }
}
