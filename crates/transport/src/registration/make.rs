//! Registering memory and making room for it.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use weft_verbs::{Access, Device, VerbsError};

use super::cache::{Keeping, RegistrationCache, Shared, add};
use super::entry::Entry;
use super::error::PinError;
use super::frames::Frames;
use super::group::{Group, PageRange};
use super::holes;
use super::state::State;
use super::watch::Watch;

/// A group of so few parts that was refused is registered part by part, without asking the system for holes
/// (NC 4.3).
const FEW_PARTS: usize = 4;

/// The system has no room for a registration.
pub(super) fn is_limit(error: &VerbsError) -> bool {
    let limits = [libc::ENOMEM, libc::EAGAIN, libc::ENOSPC];
    matches!(error, VerbsError::Register { source, .. }
        if source.raw_os_error().is_some_and(|code| limits.contains(&code)))
}

impl<D: Device> RegistrationCache<D> {
    /// Registers a group, or after a refusal what is really there of it.
    pub(super) fn register_group(
        &self,
        group: &Group,
        parts: &[PageRange],
        write: bool,
        entries: &mut Vec<Arc<Entry<D::Registration>>>,
    ) -> Result<(), PinError> {
        let error = match self.attempt(group.range, parts, write) {
            Ok(entry) => {
                entries.push(entry);
                return Ok(());
            }
            Err(error) => error,
        };
        if parts == [group.range] {
            return Err(self.shared.explain(&group.range, write, error));
        }
        if parts.len() <= FEW_PARTS || is_limit(&error) {
            return self.register_each(parts, write, entries);
        }
        for group in self.shared.plan_mapped(&group.range, parts, write)? {
            let parts = &parts[group.parts.clone()];
            match self.attempt(group.range, parts, write) {
                Ok(entry) => entries.push(entry),
                Err(_) => self.register_each(parts, write, entries)?,
            }
        }
        Ok(())
    }

    fn register_each(
        &self,
        parts: &[PageRange],
        write: bool,
        entries: &mut Vec<Arc<Entry<D::Registration>>>,
    ) -> Result<(), PinError> {
        for part in parts {
            let entry = self.attempt(*part, std::slice::from_ref(part), write);
            entries.push(entry.map_err(|error| self.shared.explain(part, write, error))?);
        }
        Ok(())
    }

    /// Registers a range in which parts of a request lie; it is cached if it can be.
    pub(super) fn attempt(
        &self,
        range: PageRange,
        parts: &[PageRange],
        write: bool,
    ) -> Result<Arc<Entry<D::Registration>>, VerbsError> {
        let shared = &self.shared;
        let watcher = self.watcher();
        let (number, dead) = {
            let mut state = shared.lock();
            let dead = shared.catch_up(&mut state);
            (state.begin(range, parts), dead)
        };
        shared.bury(dead);
        let watch = watcher.and_then(|watcher| watcher.watch(range));
        let is_kept = watch.is_some() || shared.keeping == Keeping::OnDemand;
        // SAFETY: `pin` has the caller's promise for the parts; peers are told of nothing else.
        let made = unsafe { shared.make_with_room(range, write, watch) };
        let is_settled = watcher.is_none_or(|watcher| watcher.settle());
        let mut state = shared.lock();
        let dead = shared.catch_up(&mut state);
        let may_stay = state.end(number) && is_kept && is_settled;
        let entry = made.map(Arc::new);
        let useless = match &entry {
            Ok(entry) if may_stay && range.bytes() <= shared.options.bytes_max => {
                state.index.insert(entry.clone()).map(|useless| (useless, shared.shrink(&mut state)))
            }
            _ => None,
        };
        drop(state);
        shared.bury(dead);
        if entry.is_ok() && useless.is_none() {
            add(&shared.counts.transient, 1);
        }
        entry
    }
}

impl<D: Device> Shared<D> {
    /// Registers whole pages; when there is no room, what is cached and not used makes some.
    ///
    /// # Safety
    /// As for [`RegistrationCache::pin`].
    pub(super) unsafe fn make_with_room(
        &self,
        range: PageRange,
        write: bool,
        mut watch: Option<Watch>,
    ) -> Result<Entry<D::Registration>, VerbsError> {
        loop {
            // SAFETY: as the caller promises.
            match unsafe { self.make(range.start, range.end, write, None) } {
                Err(error) if is_limit(&error) && self.make_room(range.bytes()) => {}
                made => {
                    return made.map(|mut entry| {
                        entry.watch = watch.take();
                        entry
                    });
                }
            }
        }
    }

    /// Registers memory.
    ///
    /// # Safety
    /// As for [`RegistrationCache::pin`].
    pub(super) unsafe fn make(
        &self,
        start: u64,
        end: u64,
        write: bool,
        watch: Option<Watch>,
    ) -> Result<Entry<D::Registration>, VerbsError> {
        let access = self.access(write);
        // SAFETY: as the caller promises.
        let made = unsafe { self.device.register(start as usize, (end - start) as usize, access) };
        let registration = made.inspect_err(|_| add(&self.counts.refused, 1))?;
        let pages = PageRange::around(start, end - start);
        add(&self.counts.registrations, 1);
        add(&self.counts.registered_pages, pages.map_or(0, |pages| pages.pages() as usize));
        let is_verified = self.options.verify && self.keeping != Keeping::OnDemand;
        Ok(Entry {
            start,
            end,
            is_writable: write,
            registration: ManuallyDrop::new(registration),
            watch,
            frames: pages.filter(|_| is_verified).and_then(|pages| Frames::of(&pages).ok()),
            home: self.home,
        })
    }

    fn access(&self, write: bool) -> Access {
        let access = match (self.options.windows, write) {
            (true, true) => Access::WINDOW_BIND | Access::LOCAL_WRITE,
            (true, false) => Access::WINDOW_BIND,
            (false, true) => Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            (false, false) => Access::REMOTE_READ,
        };
        if self.keeping == Keeping::OnDemand { access | Access::ON_DEMAND } else { access }
    }

    /// Ends cached registrations that nobody uses, at least for so many bytes. Says whether there were any.
    fn make_room(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        let mut taken = Vec::new();
        let mut room = 0;
        while room < bytes
            && let Some(entry) = state.index.take_oldest()
        {
            room += entry.end - entry.start;
            taken.push(entry);
        }
        drop(state);
        add(&self.counts.evicted, taken.len());
        !taken.is_empty()
    }

    /// Takes out what is beyond the limits, as far as nobody uses it.
    pub(super) fn shrink(&self, state: &mut State<D::Registration>) -> Vec<Arc<Entry<D::Registration>>> {
        let mut taken = Vec::new();
        while (state.index.bytes() > self.options.bytes_max
            || state.index.entries() > self.options.entries_max)
            && let Some(entry) = state.index.take_oldest()
        {
            taken.push(entry);
        }
        add(&self.counts.evicted, taken.len());
        taken
    }

    /// Says what is wrong with memory that was refused.
    pub(super) fn explain(&self, part: &PageRange, write: bool, error: VerbsError) -> PinError {
        if is_limit(&error) {
            return PinError::Limit(error);
        }
        let missing = |address, needed| PinError::NotMapped { address, bytes: part.end - address, needed };
        let mut at = part.start;
        let Ok(all) = holes::mapped(*part) else { return PinError::Device(error) };
        for mapped in all {
            if mapped.range.start > at {
                return missing(at, "mapped");
            }
            if write && !mapped.is_writable {
                return missing(at, "writable");
            }
            if !mapped.is_readable {
                return missing(at, "readable");
            }
            at = mapped.range.end;
        }
        if at < part.end { missing(at, "mapped") } else { PinError::Device(error) }
    }
}
