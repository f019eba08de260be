//! Registering once for all servers: see [`crate::Together`].

use std::sync::Arc;

use weft_verbs::Device;

use super::cache::RegistrationCache;
use super::entry::PinnedRegion;
use super::error::PinError;
use super::group::PageRange;
use super::pinned::Pinned;
use super::wanted::Wanted;
use crate::link::{Allocation, BulkMemory};
use crate::together::Together;

impl<D: Device> RegistrationCache<D> {
    /// As [`RegistrationCache::pin`], for a request that may be one of several which share their
    /// registrations. Where these cannot be made, as the memory of all is too much at once or that of another
    /// request is wrong, it gets its own.
    ///
    /// # Errors
    /// As [`RegistrationCache::pin`].
    ///
    /// # Safety
    /// As for [`RegistrationCache::pin`], until all of the requests are over.
    pub unsafe fn pin_bulk(&self, memory: &BulkMemory, write: bool) -> Result<Pinned<D>, PinError> {
        if let Some(together) = memory.together.as_deref().filter(|together| !together.is_refused()) {
            // SAFETY: as the caller promises.
            match unsafe { self.pin_together(together, &memory.allocations, write) } {
                Ok(pinned) => return Ok(pinned),
                Err(_) => together.refuse(),
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.pin(&memory.runs, &memory.allocations, write) }
    }

    /// # Safety
    /// As for [`RegistrationCache::pin_bulk`].
    unsafe fn pin_together(
        &self,
        together: &Together,
        allocations: &[Allocation],
        write: bool,
    ) -> Result<Pinned<D>, PinError> {
        let number = self.shared.number;
        if let Some(pinned) = together.held().get::<Pinned<D>>(number) {
            self.note_hit();
            return Ok(Pinned::clone(&pinned));
        }
        let lasting = together.lasting().get::<Pinned<D>>(number);
        let wanted = Wanted {
            runs: together.runs(),
            allocations,
            write,
            windows: together.windows(),
            lasting: lasting.as_deref(),
        };
        // SAFETY: as the caller promises.
        let pinned = unsafe { self.pin_wanted(&wanted) }?;
        if let Some(whole) = pinned.wholes(allocations, lasting.as_deref()) {
            together.lasting().put(number, Arc::new(whole));
        }
        together.held().put(number, Arc::new(pinned.clone()));
        Ok(pinned)
    }
}

impl<D: Device> Pinned<D> {
    /// The registrations that are just allocations, and those `before`; `None` if there are no others.
    fn wholes(&self, allocations: &[Allocation], before: Option<&Pinned<D>>) -> Option<Pinned<D>> {
        let is_whole = |region: &PinnedRegion| {
            allocations.iter().any(|allocation| {
                PageRange::around(allocation.address, allocation.bytes)
                    .is_some_and(|pages| pages.start == region.address && pages.bytes() == region.bytes)
            })
        };
        let is_known = |entry: &Arc<_>| {
            before.is_some_and(|before| before.entries.iter().any(|known| Arc::ptr_eq(known, entry)))
        };
        let found = self.entries.iter().zip(&*self.regions);
        let new: Vec<_> = found
            .filter(|(entry, region)| is_whole(region) && !is_known(entry))
            .map(|(entry, _)| entry.clone())
            .collect();
        let all =
            || new.iter().chain(before.iter().flat_map(|before| before.entries.iter())).cloned().collect();
        (!new.is_empty()).then(|| Pinned::new(all()))
    }
}
