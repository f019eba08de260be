//! What accesses cost on one server, and the copy of that which its requests go by.

use std::sync::{Arc, PoisonError, RwLock};

use super::curve::Curve;

/// No gap longer than this is bridged, whatever the model says, in bytes.
pub const GAP_BYTES_MAX: u64 = 256 << 10;

/// What a server's accesses cost, measured in its own directory. All curves are per access or per piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostModel {
    /// One `preadv` from the page cache.
    pub read_cached: Curve,
    /// One read of what is not cached, about 32 of them under way at once, until it is with the reader.
    pub read_device: Curve,
    /// One `pwritev` onto cached pages.
    pub write_cached: Curve,
    /// One `pwritev` onto pages that are not cached, where a page written in part is read first.
    pub write_device: Curve,
    /// One piece copied within memory, as one of many that are gathered or scattered.
    pub copy: Curve,
    /// One piece copied out of mapped pages that are entered already.
    pub mapped_read: Curve,
    /// One piece copied into mapped pages that are entered already.
    pub mapped_write: Curve,
    /// Making this many bytes, just written, durable.
    pub sync: Curve,
    /// Entering one page of a mapping to read it, as one of many pages side by side, in nanoseconds.
    pub page_fault_ns: u64,
    /// The same to write it.
    pub page_fault_write_ns: u64,
    /// What a page costs that a write adds to a file, beyond the write, in nanoseconds.
    pub new_page_ns: u64,
    /// Taking and leaving the lock of a range, in nanoseconds.
    pub lock_ns: u64,
    /// When it was measured, seconds since 1970; 0: never, these are defaults.
    pub measured_s: i64,
}

impl Default for CostModel {
    /// What accesses cost in a small virtual machine with a virtual disk, about: good until measured.
    fn default() -> CostModel {
        let curve = |points: &[(u64, u64)]| Curve::new(points.to_vec()).expect("rising points");
        CostModel {
            read_cached: curve(&[(64, 480), (4 << 10, 900), (64 << 10, 4_000), (1 << 20, 45_000)]),
            read_device: curve(&[
                (64, 120_000),
                (64 << 10, 125_000),
                (256 << 10, 310_000),
                (1 << 20, 1_200_000),
            ]),
            write_cached: curve(&[(64, 800), (4 << 10, 1_200), (64 << 10, 5_000), (1 << 20, 70_000)]),
            write_device: curve(&[
                (64, 65_000),
                (4 << 10, 120_000),
                (64 << 10, 135_000),
                (256 << 10, 170_000),
            ]),
            copy: curve(&[(64, 3), (512, 11), (4 << 10, 75), (64 << 10, 1_000), (1 << 20, 19_000)]),
            mapped_read: curve(&[(64, 5), (512, 12), (4 << 10, 85), (64 << 10, 1_100), (1 << 20, 19_500)]),
            mapped_write: curve(&[(64, 5), (512, 12), (4 << 10, 90), (64 << 10, 1_250), (1 << 20, 20_000)]),
            sync: curve(&[(4 << 10, 110_000), (256 << 10, 170_000), (1 << 20, 420_000)]),
            page_fault_ns: 150,
            page_fault_write_ns: 500,
            new_page_ns: 1_000,
            lock_ns: 50,
            measured_s: 0,
        }
    }
}

impl CostModel {
    /// The longest gap between two pieces that is better passed over than begun anew after, in bytes.
    /// In a write, what is passed over is read and written.
    pub fn gap_bytes_max(&self, write: bool, cached: bool) -> u64 {
        let read = if cached { &self.read_cached } else { &self.read_device };
        let (mut saved_ns, mut byte_ns) = (read.overhead_ns(), read.ns_per_byte());
        if write {
            saved_ns += self.write_cached.overhead_ns() + self.lock_ns as f64;
            byte_ns += self.write_cached.ns_per_byte();
        }
        // A slope of zero gives infinity, and `as` then the bound.
        ((saved_ns / byte_ns) as u64).min(GAP_BYTES_MAX)
    }
}

/// The model that a server goes by now; clones are the same. A new measurement replaces it while requests run.
#[derive(Debug, Clone, Default)]
pub struct CurrentModel {
    model: Arc<RwLock<Arc<CostModel>>>,
}

impl CurrentModel {
    /// To begin with `model`.
    pub fn new(model: CostModel) -> CurrentModel {
        CurrentModel { model: Arc::new(RwLock::new(Arc::new(model))) }
    }

    /// The model as it is now. Take it once per request.
    pub fn get(&self) -> Arc<CostModel> {
        self.model.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests from now on go by `model`.
    pub fn replace(&self, model: CostModel) {
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(model);
    }
}
