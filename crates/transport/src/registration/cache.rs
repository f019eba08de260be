//! The cache: what is looked up, registered, kept and dropped, and in which order, so that nothing stale is
//! ever used.
//!
//! A lookup uses a cached registration only after it has seen every unmapping that happened before:
//!
//! ```text
//!   program, any thread      munmap ── pages gone ──┬── told ── munmap returns
//!   lookup                                        settle: is one on its way?  ── apply what was told ── find
//! ```
//!
//! A registration becomes a cached one only if nothing of it was unmapped since before it was watched:
//!
//! ```text
//!   begin an attempt ── watch the range ── register (no lock held) ── settle, apply ── touched meanwhile? then only for this
//!                                                                                      request, else into the index
//! ```
//!
//! Memory that was given back with `madvise` needs more care: the kernel tells of it *before* the pages go,
//! and not when they are gone. For the pieces of a request that is enough, because the program promises to
//! leave their pages alone. A hole that is registered along with them may be losing its pages just now; so
//! holes with such memory (`doubtful`) are not registered until they were unmapped, or the program has used
//! them as pieces.
//!
//! No lock is held while the adapter registers or deregisters. Whoever holds a lock of the cache may free
//! memory and so wait in `munmap` until the watch has read of it: its reader takes no lock of the cache.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use weft_verbs::Device;
use weft_wire::messages::MemoryRun;

use super::cost::RegistrationCost;
use super::error::PinError;
use super::group::{PageRange, cut, merge};
use super::home::Home;
use super::make::is_limit;
use super::options::{ForeignMemory, RegistrationOptions, RegistrationStats};
use super::pinned::Pinned;
use super::state::{Dead, State};
use super::wanted::{Among, Wanted};
use super::watch::{Told, Watcher};
use crate::link::Allocation;

#[derive(Default)]
pub(super) struct Counts {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) registrations: AtomicU64,
    pub(super) registered_pages: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) transient: AtomicU64,
    pub(super) invalidated: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) wrong: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Ordering::Relaxed);
}

/// How registrations of memory that is no arena stay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    Watched,
    OnDemand,
    Nothing,
}

pub(super) struct Shared<D: Device> {
    /// Tells caches apart.
    pub(super) number: u64,
    pub(super) device: Arc<D>,
    pub(super) options: RegistrationOptions,
    pub(super) cost: RegistrationCost,
    pub(super) keeping: Keeping,
    pub(super) counts: Counts,
    pub(super) home: Home,
    /// Before the watcher: what is watched ends first.
    pub(super) state: Mutex<State<D::Registration>>,
    /// Since the first foreign memory: the watcher, and the changes that it had told before; or why there is
    /// none.
    pub(super) watcher: OnceLock<Result<(Arc<Watcher>, u64), String>>,
}

/// The registrations of one adapter. Clones are the same cache.
pub struct RegistrationCache<D: Device> {
    pub(super) shared: Arc<Shared<D>>,
}

impl<D: Device> Clone for RegistrationCache<D> {
    fn clone(&self) -> RegistrationCache<D> {
        RegistrationCache { shared: self.shared.clone() }
    }
}

impl<D: Device> RegistrationCache<D> {
    /// An empty cache. Measures the adapter's costs if the options do not give them.
    pub fn new(device: Arc<D>, options: RegistrationOptions) -> RegistrationCache<D> {
        let cost = options.cost.unwrap_or_else(|| RegistrationCost::measure(&*device));
        let keeping = match options.foreign {
            ForeignMemory::NotCached => Keeping::Nothing,
            ForeignMemory::Watched if device.limits().on_demand => Keeping::OnDemand,
            ForeignMemory::Watched => Keeping::Watched,
        };
        static CACHES: AtomicU64 = AtomicU64::new(0);
        let shared = Shared {
            number: CACHES.fetch_add(1, Ordering::Relaxed),
            device,
            options,
            cost,
            keeping,
            counts: Counts::default(),
            home: Home::here(),
            state: Mutex::default(),
            watcher: OnceLock::new(),
        };
        RegistrationCache { shared: Arc::new(shared) }
    }

    /// The adapter.
    pub fn device(&self) -> &Arc<D> {
        &self.shared.device
    }

    /// The costs that groups are planned by.
    pub fn cost(&self) -> RegistrationCost {
        self.shared.cost
    }

    /// Registers everything that pieces of memory need and that is not registered, by as few registrations as
    /// the costs allow: groups with holes between the pieces, or the allocations that the pieces are parts
    /// of. Wrong allocations do no harm. `write`: the server writes into the pieces. Pieces have plain
    /// addresses (segment 0).
    ///
    /// # Errors
    /// [`PinError`]; nothing stays registered for the request then but what is cached.
    ///
    /// # Safety
    /// As for [`crate::Link::submit`]: until the [`Pinned`] is dropped the pieces stay mapped, and with
    /// `write` nobody else uses them while a peer does.
    pub unsafe fn pin(
        &self,
        runs: &[MemoryRun],
        allocations: &[Allocation],
        write: bool,
    ) -> Result<Pinned<D>, PinError> {
        let wanted = Wanted { runs, allocations, write, windows: 1, lasting: None };
        // SAFETY: as the caller promises.
        unsafe { self.pin_wanted(&wanted) }
    }

    /// See [`RegistrationCache::pin`], for one piece.
    ///
    /// # Errors
    /// The same.
    ///
    /// # Safety
    /// The same.
    pub unsafe fn pin_piece(&self, address: u64, bytes: u64, write: bool) -> Result<Pinned<D>, PinError> {
        let run = MemoryRun { segment: 0, address, bytes, stride_bytes: 0, count: 1 };
        // SAFETY: as the caller promises.
        unsafe { self.pin(&[run], &[], write) }
    }

    /// See [`RegistrationCache::pin`].
    ///
    /// # Safety
    /// The same.
    pub(super) unsafe fn pin_wanted(&self, wanted: &Wanted<'_, D>) -> Result<Pinned<D>, PinError> {
        let shared = &self.shared;
        if !shared.home.is_here() {
            return Err(PinError::Forked);
        }
        let mut entries = Vec::new();
        let missing = shared.look_up(wanted, Among::All, &mut entries)?;
        // SAFETY: as the caller promises.
        if let Some(pinned) = unsafe { self.pin_fewer(wanted, &entries, &missing) }? {
            return Ok(pinned);
        }
        if missing.is_empty() {
            self.note_hit();
            return Ok(Pinned::new(entries));
        }
        self.note_miss();
        let parts = cut(merge(missing), shared.bytes_max());
        for group in shared.choose(&parts, wanted) {
            self.register_group(&group, &parts[group.parts.clone()], wanted.write, &mut entries)?;
        }
        Ok(Pinned::new(entries))
    }

    pub(super) fn note_hit(&self) {
        add(&self.shared.counts.hits, 1);
    }

    pub(super) fn note_miss(&self) {
        add(&self.shared.counts.misses, 1);
    }

    /// As [`RegistrationCache::pin`], if everything is registered already: this never registers.
    pub fn check_if_registered(&self, runs: &[MemoryRun], write: bool) -> Option<Pinned<D>> {
        let shared = &self.shared;
        let mut entries = Vec::new();
        let wanted = Wanted { runs, allocations: &[], write, windows: 1, lasting: None };
        let is_all =
            shared.home.is_here() && shared.look_up(&wanted, Among::All, &mut entries).ok()?.is_empty();
        is_all.then(|| {
            self.note_hit();
            Pinned::new(entries)
        })
    }

    /// Registers memory until [`RegistrationCache::remove_arena`]: with all rights, or without writing where
    /// the program may not write either.
    ///
    /// # Errors
    /// [`PinError`]: it is not mapped, there is an arena that begins there, or a limit.
    ///
    /// # Safety
    /// The memory stays mapped until the arena is removed; servers read and write what later requests name of
    /// it.
    pub unsafe fn add_arena(&self, address: u64, bytes: u64) -> Result<(), PinError> {
        let shared = &self.shared;
        let pages = PageRange::around(address, bytes).ok_or(PinError::Overflow)?;
        if !shared.home.is_here() {
            return Err(PinError::Forked);
        }
        if shared.lock().index.has_arena(address) {
            return Err(PinError::ArenaExists(address));
        }
        // SAFETY: as the caller promises.
        let make = |write| unsafe { shared.make(address, address + bytes, write, None) };
        let arena = match make(true) {
            Err(error) if !is_limit(&error) => make(false),
            made => made,
        };
        let arena = arena.map_err(|error| shared.explain(&pages, false, error))?;
        shared.lock().index.insert_arena(Arc::new(arena)).ok_or(PinError::ArenaExists(address))
    }

    /// Deregisters an arena, when the requests that use it have ended. Says whether there was one.
    pub fn remove_arena(&self, address: u64) -> bool {
        // Dropped without the lock.
        let arena =
            if self.shared.home.is_here() { self.shared.lock().index.remove_arena(address) } else { None };
        arena.is_some()
    }

    /// What it has done, and what it holds.
    pub fn stats(&self) -> RegistrationStats {
        let shared = &self.shared;
        if !shared.home.is_here() {
            return RegistrationStats::default();
        }
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &shared.counts;
        let state = shared.lock();
        let (arenas, arena_bytes) = state.index.arenas();
        RegistrationStats {
            hits: of(&counts.hits),
            misses: of(&counts.misses),
            registrations: of(&counts.registrations),
            registered_pages: of(&counts.registered_pages),
            refused: of(&counts.refused),
            transient: of(&counts.transient),
            invalidated: of(&counts.invalidated),
            evicted: of(&counts.evicted),
            wrong: of(&counts.wrong),
            entries: state.index.entries() as u64,
            bytes: state.index.bytes(),
            arenas: arenas as u64,
            arena_bytes,
            foreign: shared.describe_keeping(),
        }
    }

    /// The watcher, from the first time that it is needed on.
    pub(super) fn watcher(&self) -> Option<&Arc<Watcher>> {
        if self.shared.keeping != Keeping::Watched {
            return None;
        }
        let start = || {
            let watcher = Watcher::of_this_process()?;
            let told: Weak<dyn Told> = Arc::downgrade(&self.shared) as Weak<dyn Told>;
            let seen = watcher.tell(told);
            Ok((watcher, seen))
        };
        self.shared.watcher.get_or_init(start).as_ref().ok().map(|(watcher, _)| watcher)
    }
}

impl<D: Device> Shared<D> {
    pub(super) fn lock(&self) -> MutexGuard<'_, State<D::Registration>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.device.limits().registration_bytes_max
    }

    fn describe_keeping(&self) -> String {
        match (self.keeping, self.watcher.get()) {
            (Keeping::Nothing, _) => "not cached: by choice".into(),
            (Keeping::OnDemand, _) => "on demand".into(),
            (Keeping::Watched, Some(Err(reason))) => format!("not cached: {reason}"),
            (Keeping::Watched, _) => "watched".into(),
        }
    }

    /// Applies what the watcher has told since the last time.
    pub(super) fn catch_up(&self, state: &mut State<D::Registration>) -> Dead<D::Registration> {
        let mut dead = Vec::new();
        if let Some(Ok((watcher, begun))) = self.watcher.get() {
            let mut seen = *state.seen.get_or_insert(*begun);
            while let Some(change) = watcher.next_change(&mut seen) {
                state.apply(change, watcher, &mut dead);
            }
            state.seen = Some(seen);
        }
        dead
    }

    /// Ends cached registrations that are no more, without a lock.
    pub(super) fn bury(&self, dead: Dead<D::Registration>) {
        add(&self.counts.invalidated, dead.len());
        for watch in dead.iter().filter_map(|entry| entry.watch.as_ref()) {
            watch.end();
        }
    }
}

impl<D: Device> Told for Shared<D> {
    fn told(&self) {
        let mut state = self.lock();
        let dead = self.catch_up(&mut state);
        drop(state);
        self.bury(dead);
    }
}
