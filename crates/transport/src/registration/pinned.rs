//! What a request holds while it needs memory registered.

use std::sync::Arc;

use weft_verbs::Device;

use super::entry::{Entry, PinnedRegion};
use super::index::Span as _;

/// Everything that the pieces of a request need. While it, or a clone, lives the keys are valid; dropping the
/// last lets go.
pub struct Pinned<D: Device> {
    pub(super) regions: Arc<[PinnedRegion]>,
    /// Held for their keys.
    pub(super) entries: Arc<[Arc<Entry<D::Registration>>]>,
}

impl<D: Device> Clone for Pinned<D> {
    fn clone(&self) -> Pinned<D> {
        Pinned { regions: self.regions.clone(), entries: self.entries.clone() }
    }
}

impl<D: Device> std::fmt::Debug for Pinned<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("regions", &self.regions).finish()
    }
}

impl<D: Device> Pinned<D> {
    pub(super) fn new(mut entries: Vec<Arc<Entry<D::Registration>>>) -> Pinned<D> {
        entries.sort_by_key(|entry| (entry.start(), Arc::as_ptr(entry)));
        entries.dedup_by(|next, last| Arc::ptr_eq(next, last));
        Pinned { regions: entries.iter().map(|entry| entry.region()).collect(), entries: entries.into() }
    }

    /// The regions, by address. They may overlap.
    pub fn regions(&self) -> &[PinnedRegion] {
        &self.regions
    }

    /// The region that holds all of a piece. Every piece of the request is in one, unless it is larger than
    /// the adapter registers at once ([`weft_verbs::DeviceLimits::registration_bytes_max`]): such a piece is
    /// in several that touch.
    pub fn find(&self, address: u64, bytes: u64) -> Option<&PinnedRegion> {
        let end = address.checked_add(bytes)?;
        let begun = self.regions.partition_point(|region| region.address <= address);
        self.regions[..begun].iter().rev().find(|region| end <= region.address + region.bytes)
    }
}
