//! The cache: what is looked up, registered, kept and dropped, and in which order, so that nothing stale is ever used.
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
//! Memory that was given back with `madvise` needs more care: the kernel tells of it *before* the pages go, and not when they
//! are gone. For the pieces of a request that is enough, because the program promises to leave their pages alone. A hole that is
//! registered along with them may be losing its pages just now; so holes with such memory (`doubtful`) are not registered until
//! they were unmapped, or the program has used them as pieces.
//!
//! No lock is held while the adapter registers or deregisters. Whoever holds a lock of the cache may free memory and so wait in
//! `munmap` until the watch has read of it: its reader takes no lock of the cache.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use weft_verbs::{Access, Device, Registration, VerbsError};
use weft_wire::messages::MemoryRun;

use super::cost::RegistrationCost;
use super::fewer::MANY_REGIONS;
use super::frames::Frames;
use super::group::{Group, PageRange, cost_ns, cut, merge, plan};
use super::home::Home;
use super::index::{Index, Span};
use super::ranges::Ranges;
use super::watch::{Change, Told, Watch, Watcher};
use super::{
    ForeignMemory, PinError, Pinned, PinnedRegion, RegistrationOptions, RegistrationStats, holes, page_bytes,
};
use crate::link::Allocation;
use crate::runs::span;

/// A group of so few parts that was refused is registered part by part, without asking the system for holes (NC 4.3).
const FEW_PARTS: usize = 4;
/// An allocation that the program named is registered as a whole when that costs at most so many times what its parts in this
/// request cost: other parts of an array are used later.
const WHOLE_FACTOR: u64 = 4;
/// Allocations for which it is remembered what their parts have cost so far.
const SPENT_MAX: usize = 256;
/// A run of so many pieces whose pages touch is looked at as a whole.
const MANY_PIECES: u64 = 64;
/// Ranges that stay watched because they are doubtful.
const DOUBTS_WATCHED_MAX: usize = 256;

/// A registration.
pub struct Entry<R> {
    start: u64,
    end: u64,
    is_writable: bool,
    registration: ManuallyDrop<R>,
    watch: Option<Watch>,
    frames: Option<Frames>,
    home: Home,
}

impl<R> Span for Entry<R> {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.end
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }
}

impl<R: Registration> Entry<R> {
    pub fn region(&self) -> PinnedRegion {
        PinnedRegion {
            address: self.start,
            bytes: self.end - self.start,
            local_key: self.registration.local_key(),
            remote_key: self.registration.remote_key(),
        }
    }
}

impl<R> Drop for Entry<R> {
    fn drop(&mut self) {
        // In a forked child it is the parent's registration: ending it would end the parent's.
        if self.home.is_here() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.registration) };
        }
    }
}

/// A registration that is being made.
struct Attempt {
    number: u64,
    range: PageRange,
    /// It must not stay.
    is_touched: bool,
}

pub(super) struct State<R> {
    index: Index<Entry<R>>,
    attempts: Vec<Attempt>,
    attempts_begun: u64,
    pub(super) doubtful: Ranges,
    /// Changes that added to what is doubtful.
    pub(super) doubts: u64,
    /// What is doubtful stays watched, so that its unmapping is told.
    doubts_watched: Vec<Watch>,
    /// What was refused as one registration, until something of it is unmapped.
    pub(super) apart: Ranges,
    /// Changes that were applied.
    seen: Option<u64>,
    /// What parts of allocations have cost so far, in nanoseconds.
    spent: Vec<(Allocation, u64)>,
}

/// Registrations that are cached no more.
pub(super) type Dead<R> = Vec<Arc<Entry<R>>>;

/// What is to be registered, and what is known of it.
pub(super) struct Wanted<'a, D: Device> {
    pub runs: &'a [MemoryRun],
    pub allocations: &'a [Allocation],
    pub write: bool,
    /// The whole read or write takes about so many times as much.
    pub windows: u64,
    /// What is registered for all of it.
    pub lasting: Option<&'a Pinned<D>>,
}

/// Where registrations are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    All,
    Arenas,
}

impl<R> State<R> {
    fn apply(&mut self, change: Change, watcher: &Arc<Watcher>, dead: &mut Dead<R>) {
        let range = match change {
            Change::Unmapped(range) | Change::Emptied(range) => range,
            Change::Unknown => PageRange { start: 0, end: u64::MAX },
        };
        match change {
            Change::Unmapped(_) => {
                self.doubtful.remove(&range);
                self.apart.around(&range).iter().for_each(|part| self.apart.remove(part));
                self.unwatch_doubts();
            }
            Change::Emptied(_) if self.doubts_watched.len() < DOUBTS_WATCHED_MAX => {
                self.doubts_watched.push(watcher.keep(range));
                self.doubt(range);
            }
            Change::Emptied(_) | Change::Unknown => self.doubt(range),
        }
        for attempt in self.attempts.iter_mut().filter(|attempt| attempt.range.overlaps(&range)) {
            attempt.is_touched = true;
        }
        dead.extend(self.index.take_touched(&range));
    }

    fn doubt(&mut self, range: PageRange) {
        self.doubtful.add(range);
        self.doubts += 1;
    }

    /// Ends the watching of what is doubtful no more.
    pub(super) fn unwatch_doubts(&mut self) {
        let State { doubts_watched, doubtful, .. } = self;
        doubts_watched.retain(|watch| doubtful.overlaps(watch.range()));
    }

    /// Begins to register a range with these parts of a request in it.
    fn begin(&mut self, range: PageRange, parts: &[PageRange]) -> u64 {
        // The program uses the parts: it is not giving them back.
        for part in parts {
            self.doubtful.remove(part);
        }
        let is_touched = self.doubtful.overlaps_between(&range, parts);
        self.attempts_begun += 1;
        self.attempts.push(Attempt { number: self.attempts_begun, range, is_touched });
        self.attempts_begun
    }

    /// Ends it, and says whether the registration may stay.
    fn end(&mut self, number: u64) -> bool {
        let at = self.attempts.iter().position(|attempt| attempt.number == number);
        at.is_some_and(|at| !self.attempts.swap_remove(at).is_touched)
    }

    /// Adds to what was spent on parts of an allocation, and returns the sum.
    fn spend(&mut self, allocation: Allocation, cost_ns: u64) -> u64 {
        if let Some((_, spent_ns)) = self.spent.iter_mut().find(|(known, _)| *known == allocation) {
            *spent_ns = spent_ns.saturating_add(cost_ns);
            return *spent_ns;
        }
        if self.spent.len() == SPENT_MAX {
            self.spent.remove(0);
        }
        self.spent.push((allocation, cost_ns));
        cost_ns
    }
}

#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    registrations: AtomicU64,
    registered_pages: AtomicU64,
    refused: AtomicU64,
    transient: AtomicU64,
    invalidated: AtomicU64,
    evicted: AtomicU64,
    wrong: AtomicU64,
}

/// Each of many registrations for one request costs about as much again: keys in messages, windows, places in lists.
fn keys_factor(registrations: usize) -> u64 {
    if registrations < MANY_REGIONS { 1 } else { 2 }
}

fn add(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Ordering::Relaxed);
}

/// How registrations of memory that is no arena stay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    Watched,
    OnDemand,
    Nothing,
}

/// The system has no room for a registration.
fn is_limit(error: &VerbsError) -> bool {
    let limits = [libc::ENOMEM, libc::EAGAIN, libc::ENOSPC];
    matches!(error, VerbsError::Register { source, .. }
        if source.raw_os_error().is_some_and(|code| limits.contains(&code)))
}

pub(super) struct Shared<D: Device> {
    /// Tells caches apart.
    pub(super) number: u64,
    device: Arc<D>,
    pub(super) options: RegistrationOptions,
    pub(super) cost: RegistrationCost,
    pub(super) keeping: Keeping,
    counts: Counts,
    home: Home,
    /// Before the watcher: what is watched ends first.
    state: Mutex<State<D::Registration>>,
    /// Since the first foreign memory: the watcher, and the changes that it had told before; or why there is none.
    watcher: OnceLock<Result<(Arc<Watcher>, u64), String>>,
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
        let state = State {
            index: Index::new(),
            attempts: Vec::new(),
            attempts_begun: 0,
            doubtful: Ranges::default(),
            doubts: 0,
            doubts_watched: Vec::new(),
            apart: Ranges::default(),
            seen: None,
            spent: Vec::new(),
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
            state: Mutex::new(state),
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

    /// Registers everything that pieces of memory need and that is not registered, by as few registrations as the costs allow:
    /// groups with holes between the pieces, or the allocations that the pieces are parts of. Wrong allocations do no harm.
    /// `write`: the server writes into the pieces. Pieces have plain addresses (segment 0).
    ///
    /// # Errors
    /// [`PinError`]; nothing stays registered for the request then but what is cached.
    ///
    /// # Safety
    /// As for [`crate::Link::submit`]: until the [`Pinned`] is dropped the pieces stay mapped, and with `write` nobody else uses
    /// them while a peer does.
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

    /// Registers memory until [`RegistrationCache::remove_arena`]: with all rights, or without writing where the program may
    /// not write either.
    ///
    /// # Errors
    /// [`PinError`]: it is not mapped, there is an arena that begins there, or a limit.
    ///
    /// # Safety
    /// The memory stays mapped until the arena is removed; servers read and write what later requests name of it.
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

    /// Registers a group, or after a refusal what is really there of it.
    fn register_group(
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

    /// The watcher, from the first time that it is needed on.
    fn watcher(&self) -> Option<&Arc<Watcher>> {
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

    /// Finds what is registered of the pieces, and returns the pages of those that are not.
    pub(super) fn look_up(
        &self,
        wanted: &Wanted<'_, D>,
        among: Among,
        found: &mut Vec<Arc<Entry<D::Registration>>>,
    ) -> Result<Vec<PageRange>, PinError> {
        let watcher = self.watcher.get().and_then(|watcher| watcher.as_ref().ok());
        let is_settled = watcher.is_none_or(|(watcher, _)| watcher.settle());
        let among = if is_settled { among } else { Among::Arenas };
        let mut state = self.lock();
        let dead = self.catch_up(&mut state);
        let lasting = wanted.lasting;
        let mut lookup =
            Lookup { shared: self, state: &mut state, among, write: wanted.write, lasting, found, dead };
        let mut missing = Vec::new();
        let looked = wanted.runs.iter().try_for_each(|run| lookup.run(run, &mut missing));
        let dead = lookup.dead;
        drop(state);
        self.bury(dead);
        looked.map(|()| missing)
    }

    /// Groups the parts of a request, or takes the allocations that they are parts of.
    pub(super) fn choose(&self, parts: &[PageRange], wanted: &Wanted<'_, D>) -> Vec<Group> {
        let mut state = self.lock();
        let mut whole = self.choose_allocations(&mut state, parts, wanted);
        whole.sort_unstable_by_key(|group| group.parts.start);
        let is_cached = self.keeping != Keeping::Nothing;
        let may_join = |hole: &PageRange| !is_cached || !state.doubtful.overlaps(hole);
        let mut groups = Vec::new();
        let mut done = 0;
        let ends = whole.iter().map(|group| group.parts.start).chain([parts.len()]);
        for (at, end) in ends.enumerate() {
            let rest = plan(&parts[done..end], &self.cost, self.bytes_max(), may_join);
            let moved =
                |group: Group| Group { parts: group.parts.start + done..group.parts.end + done, ..group };
            groups.extend(rest.into_iter().map(moved));
            if let Some(group) = whole.get(at) {
                done = group.parts.end;
                groups.push(group.clone());
            }
        }
        groups
    }

    /// The allocations that are worth being registered as wholes: parts of no two of these are the same.
    fn choose_allocations(
        &self,
        state: &mut State<D::Registration>,
        parts: &[PageRange],
        wanted: &Wanted<'_, D>,
    ) -> Vec<Group> {
        let mut chosen: Vec<Group> = Vec::new();
        for allocation in wanted.allocations {
            let Some(range) = PageRange::around(allocation.address, allocation.bytes) else { continue };
            let first = parts.partition_point(|part| part.start < range.start);
            let end = parts.partition_point(|part| part.end <= range.end);
            let is_taken = chosen.iter().any(|other| first < other.parts.end && other.parts.start < end);
            let bytes_max = self.bytes_max().min(self.options.bytes_max);
            if first >= end || is_taken || range.bytes() > bytes_max {
                continue;
            }
            let groups = plan(&parts[first..end], &self.cost, self.bytes_max(), |_| true);
            if groups.len() as u64 * wanted.windows < 2
                || state.doubtful.overlaps_between(&range, &parts[first..end])
            {
                continue;
            }
            let parts_ns = cost_ns(&groups, &self.cost);
            let worth_ns = match self.keeping {
                // Other windows of the same read or write are all that it is used for later.
                Keeping::Nothing => parts_ns.saturating_mul(wanted.windows * keys_factor(groups.len())),
                _ => state.spend(*allocation, parts_ns).max(parts_ns.saturating_mul(WHOLE_FACTOR)),
            };
            let is_worth = self.cost.of_ns(range.pages()) <= worth_ns;
            if is_worth || groups.len() > self.options.entries_max / 2 {
                chosen.push(Group { range, parts: first..end });
            }
        }
        chosen
    }

    /// Plans a group that was refused again, around the holes in which there is nothing that could be registered.
    fn plan_mapped(
        &self,
        range: &PageRange,
        parts: &[PageRange],
        write: bool,
    ) -> Result<Vec<Group>, PinError> {
        let mapped = holes::mapped(*range).unwrap_or_default();
        let is_usable = |part: &&holes::Mapped| {
            let is_allowed = if write { part.is_writable } else { part.is_readable };
            is_allowed && part.is_private_anonymous
        };
        let usable = merge(mapped.iter().filter(is_usable).map(|part| part.range).collect());
        let is_there = |hole: &PageRange| usable.iter().any(|range| range.contains(hole));
        Ok(plan(parts, &self.cost, self.bytes_max(), is_there))
    }

    /// Registers whole pages; when there is no room, what is cached and not used makes some.
    ///
    /// # Safety
    /// As for [`RegistrationCache::pin`].
    unsafe fn make_with_room(
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
    unsafe fn make(
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
    fn shrink(&self, state: &mut State<D::Registration>) -> Vec<Arc<Entry<D::Registration>>> {
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
    fn explain(&self, part: &PageRange, write: bool, error: VerbsError) -> PinError {
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

impl<D: Device> Told for Shared<D> {
    fn told(&self) {
        let mut state = self.lock();
        let dead = self.catch_up(&mut state);
        drop(state);
        self.bury(dead);
    }
}

/// One look at the index, with the lock held.
struct Lookup<'a, D: Device> {
    shared: &'a Shared<D>,
    state: &'a mut State<D::Registration>,
    /// What is cached may be used only if all that was unmapped is known.
    among: Among,
    write: bool,
    lasting: Option<&'a Pinned<D>>,
    found: &'a mut Vec<Arc<Entry<D::Registration>>>,
    dead: Dead<D::Registration>,
}

impl<D: Device> Lookup<'_, D> {
    fn run(&mut self, run: &MemoryRun, missing: &mut Vec<PageRange>) -> Result<(), PinError> {
        if run.segment != 0 {
            return Err(PinError::Segment(run.segment));
        }
        if run.bytes == 0 || run.count == 0 {
            return Ok(());
        }
        let (low, end) = span(run).ok_or(PinError::Overflow)?;
        let whole = PageRange::around(low, end - low).ok_or(PinError::Overflow)?;
        // With `verify` every piece is looked at: what is between them may have changed.
        if !self.shared.options.verify && self.is_registered(low, end) {
            return Ok(());
        }
        let has_holes = run.stride_bytes.unsigned_abs() >= run.bytes.saturating_add(page_bytes());
        if run.count >= MANY_PIECES && !has_holes {
            missing.push(whole);
            return Ok(());
        }
        for piece in 0..run.count {
            let address = run.address.wrapping_add((run.stride_bytes as u64).wrapping_mul(piece));
            if !self.is_registered(address, address + run.bytes) {
                missing.extend(PageRange::around(address, run.bytes));
            }
        }
        Ok(())
    }

    /// Whether something holds these bytes; it is added to what was found.
    fn is_registered(&mut self, address: u64, end: u64) -> bool {
        let holds = |entry: &Entry<_>| entry.start <= address && end <= entry.end;
        if !self.shared.options.verify && self.found.last().is_some_and(|last| holds(last.deref())) {
            return true;
        }
        let mut lasting = self.lasting.iter().flat_map(|lasting| lasting.entries.iter());
        if let Some(entry) = lasting.find(|entry| holds(entry)) {
            self.found.push(entry.clone());
            return true;
        }
        let index = &mut self.state.index;
        let entry = match self.among {
            Among::All => index.find(address, end, self.write),
            Among::Arenas => index.find_arena(address, end, self.write),
        };
        match entry {
            Some(entry) if self.is_right(&entry, address, end) => {
                self.found.push(entry);
                true
            }
            _ => false,
        }
    }

    /// In the `verify` mode: whether the pages are those that were registered.
    fn is_right(&mut self, entry: &Entry<D::Registration>, address: u64, end: u64) -> bool {
        let pages = PageRange::around(address, end - address);
        let (Some(frames), Some(pages)) = (&entry.frames, pages) else { return true };
        if frames.are_still(&pages).unwrap_or(true) {
            return true;
        }
        add(&self.shared.counts.wrong, 1);
        self.dead.extend(self.state.index.take_touched(&pages));
        false
    }
}
