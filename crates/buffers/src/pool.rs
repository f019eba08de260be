//! The pool: blocks by the buddy method, shares of clients, and zones that come and go.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::mapping::Mapping;
use crate::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN};

/// Bytes a client may hold for each byte that nobody holds.
pub const SHARE_OF_FREE: usize = 2;

/// Block sizes: `BUFFER_BYTES_MIN << order`.
const ORDERS: usize = (BUFFER_BYTES_MAX / BUFFER_BYTES_MIN).trailing_zeros() as usize + 1;
/// Calls of `shrink_idle` that a zone outlives unused: registering it again costs more than its memory for
/// half a minute.
const ZONE_IDLE_CALLS: u8 = 30;
/// Length of one address space's largest pages, so that a zone can be one.
const ZONE_ALIGNMENT: usize = BUFFER_BYTES_MAX;

/// A bounded pool of transfer memory for the tasks of one thread. Clones are the same pool.
#[derive(Clone)]
pub struct BufferPool {
    state: Rc<RefCell<PoolState>>,
}

/// What a pool holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// The bound.
    pub budget_bytes: usize,
    /// In buffers that are in use.
    pub used_bytes: usize,
    /// Memory that was touched since it was last given back to the system.
    pub committed_bytes: usize,
    /// Clients that hold buffers.
    pub clients: usize,
    /// Requests that wait.
    pub waiting: usize,
}

/// Makes zones of a pool known to an adapter, for as long as they have memory. It is called from within the
/// pool, and must not use it.
pub trait ZoneKeeper {
    /// Buffers of this zone are about to be given out: its memory is there, and stays until its end.
    fn begin(&self, start: NonNull<u8>, bytes: usize);

    /// No buffer of the zone is in use, and its memory is about to go.
    fn end(&self, start: NonNull<u8>, bytes: usize);
}

struct PoolState {
    memory: Mapping,
    granules: Granules,
    /// Free blocks by order, as numbers of their first leaf (a leaf is the smallest block).
    free: [BTreeSet<u32>; ORDERS],
    used_bytes: usize,
    held: HashMap<u64, usize>,
    waiters: VecDeque<Rc<Waiter>>,
}

/// The parts in which memory is had from the system and given back: leaves or, where they are kept, zones.
struct Granules {
    /// Leaves of one: `1 << order`.
    order: usize,
    /// For each, how often `shrink_idle` has found it free since it was used; `None` while it has no memory.
    idle_calls: Vec<Option<u8>>,
    /// When it has been found free so often, its memory goes.
    idle_calls_max: u8,
    /// So many keep their memory.
    kept: usize,
    keeper: Option<Rc<dyn ZoneKeeper>>,
}

struct Waiter {
    client: u64,
    want_bytes: usize,
    granted: RefCell<Option<Buffer>>,
    waker: RefCell<Option<Waker>>,
}

impl BufferPool {
    /// A pool of `budget_bytes`, rounded down to whole 2 MiB blocks, at least one. No memory is
    /// committed before it is used.
    ///
    /// # Errors
    /// That of `mmap`.
    pub fn new(budget_bytes: usize) -> io::Result<BufferPool> {
        let blocks = (budget_bytes / BUFFER_BYTES_MAX).max(1);
        let mut free: [BTreeSet<u32>; ORDERS] = Default::default();
        free[ORDERS - 1].extend((0..blocks).map(|block| (block << (ORDERS - 1)) as u32));
        let granules = Granules {
            order: 0,
            idle_calls: vec![None; blocks << (ORDERS - 1)],
            idle_calls_max: 1,
            kept: 0,
            keeper: None,
        };
        let state = PoolState {
            granules,
            memory: Mapping::aligned(blocks * BUFFER_BYTES_MAX, ZONE_ALIGNMENT)?,
            free,
            used_bytes: 0,
            held: HashMap::new(),
            waiters: VecDeque::new(),
        };
        Ok(BufferPool { state: Rc::new(RefCell::new(state)) })
    }

    /// From now on memory is had and given back by zones of 2 MiB, on huge pages where the system has them,
    /// and `keeper` told. The first `kept` zones (at least one, at most all) begin now and stay to the end of
    /// the pool; others begin when they are needed, and end when [`BufferPool::shrink_idle`] has found them
    /// idle for long.
    ///
    /// # Panics
    /// If a buffer is in use.
    pub fn keep_zones(&self, kept: usize, keeper: Rc<dyn ZoneKeeper>) {
        self.state.borrow_mut().keep_zones(kept, keeper);
    }

    /// Waits, in turn, for a buffer of `want_bytes` (at most 2 MiB are given), or of less when memory is
    /// short. A task that already holds a buffer must use [`BufferPool::try_take_more`] instead.
    pub async fn take(&self, client: u64, want_bytes: usize) -> Buffer {
        let nobody_waits = self.state.borrow().waiters.is_empty();
        if nobody_waits && let Some(buffer) = self.try_take(client, want_bytes) {
            return buffer;
        }
        let waiter =
            Rc::new(Waiter { client, want_bytes, granted: RefCell::new(None), waker: RefCell::new(None) });
        self.state.borrow_mut().waiters.push_back(waiter.clone());
        // Those that wait may all be over their share while this client is not.
        self.serve_waiters();
        let waiting = Waiting { pool: self, waiter };
        std::future::poll_fn(|cx| {
            if let Some(buffer) = waiting.waiter.granted.take() {
                return Poll::Ready(buffer);
            }
            waiting.waiter.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Another buffer for a task that holds one already, if memory is free, the client's share allows
    /// it and nobody waits.
    pub fn try_take_more(&self, client: u64, want_bytes: usize) -> Option<Buffer> {
        if self.state.borrow().waiters.is_empty() { self.try_take(client, want_bytes) } else { None }
    }

    /// Gives memory that was not used since the last call back to the system; of zones that are kept, what
    /// was not used for 30 calls. To be called now and then, about once a second.
    pub fn shrink_idle(&self) {
        self.state.borrow_mut().shrink_idle();
    }

    /// What the pool holds now.
    pub fn stats(&self) -> PoolStats {
        let state = self.state.borrow();
        PoolStats {
            budget_bytes: state.memory.bytes(),
            used_bytes: state.used_bytes,
            committed_bytes: state.granules.committed() * state.granules.bytes(),
            clients: state.held.len(),
            waiting: state.waiters.len(),
        }
    }

    fn try_take(&self, client: u64, want_bytes: usize) -> Option<Buffer> {
        let (leaf, order) = self.state.borrow_mut().allocate(client, want_bytes)?;
        let bytes = (BUFFER_BYTES_MIN << order).min(want_bytes.max(1));
        // SAFETY: the block lies within the mapping.
        let start = unsafe { self.state.borrow().memory.as_ptr().add(leaf as usize * BUFFER_BYTES_MIN) };
        Some(Buffer { pool: self.clone(), client, leaf, order, start, bytes })
    }

    /// Gives out what is free, in order, passing by those who are over their share.
    fn serve_waiters(&self) {
        let mut refused = HashSet::new();
        let mut at = 0;
        while !self.state.borrow().is_full() {
            let Some(waiter) = self.state.borrow().waiters.get(at).cloned() else { return };
            if refused.contains(&waiter.client) {
                at += 1;
                continue;
            }
            let Some(buffer) = self.try_take(waiter.client, waiter.want_bytes) else {
                // Not even the smallest block: the client's other requests would fare alike.
                refused.insert(waiter.client);
                continue;
            };
            self.state.borrow_mut().waiters.remove(at);
            waiter.granted.replace(Some(buffer));
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
    }
}

/// Takes a waiter out of the queue when its future ends or is dropped. A buffer that was granted and
/// not fetched goes back with the waiter.
struct Waiting<'a> {
    pool: &'a BufferPool,
    waiter: Rc<Waiter>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pool.state.borrow_mut().waiters.retain(|other| !Rc::ptr_eq(other, &self.waiter));
    }
}

impl PoolState {
    fn is_full(&self) -> bool {
        self.free.iter().all(BTreeSet::is_empty)
    }

    /// Takes a block for a client: the largest that is free, within what is wanted and the client's
    /// share. A client that holds nothing gets the smallest at least, if any is free.
    fn allocate(&mut self, client: u64, want_bytes: usize) -> Option<(u32, usize)> {
        let held = self.held.get(&client).copied().unwrap_or(0);
        let free_bytes = self.memory.bytes() - self.used_bytes;
        let wanted = want_bytes.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX).next_power_of_two();
        let highest = (wanted / BUFFER_BYTES_MIN).trailing_zeros() as usize;
        let within_share = |order: &usize| {
            let bytes = BUFFER_BYTES_MIN << order;
            let free_after = free_bytes.saturating_sub(bytes);
            held + bytes <= SHARE_OF_FREE * free_after || (held == 0 && *order == 0)
        };
        for order in (0..=highest).rev().filter(within_share) {
            if let Some(leaf) = self.allocate_block(order) {
                self.granules.use_block(leaf, order, &self.memory);
                self.used_bytes += BUFFER_BYTES_MIN << order;
                *self.held.entry(client).or_insert(0) += BUFFER_BYTES_MIN << order;
                return Some((leaf, order));
            }
        }
        None
    }

    /// Takes a free block of this order, halving a larger one if there is no other.
    fn allocate_block(&mut self, order: usize) -> Option<u32> {
        let from = (order..ORDERS).find(|order| !self.free[*order].is_empty())?;
        let leaf = self.free[from].pop_first()?;
        for half in (order..from).rev() {
            self.free[half].insert(leaf + (1 << half));
        }
        Some(leaf)
    }

    fn release(&mut self, client: u64, mut leaf: u32, mut order: usize) {
        let bytes = BUFFER_BYTES_MIN << order;
        self.used_bytes -= bytes;
        if let Some(held) = self.held.get_mut(&client) {
            *held -= bytes;
            if *held == 0 {
                self.held.remove(&client);
            }
        }
        while order + 1 < ORDERS && self.free[order].remove(&(leaf ^ (1 << order))) {
            leaf &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(leaf);
    }

    fn keep_zones(&mut self, kept: usize, keeper: Rc<dyn ZoneKeeper>) {
        assert_eq!(self.used_bytes, 0, "zones can be kept only from the beginning");
        let zones = self.memory.bytes() / BUFFER_BYTES_MAX;
        self.memory.release(0, self.memory.bytes());
        self.memory.prefer_huge_pages();
        self.granules = Granules {
            order: ORDERS - 1,
            idle_calls: vec![None; zones],
            idle_calls_max: ZONE_IDLE_CALLS,
            kept: kept.clamp(1, zones),
            keeper: Some(keeper),
        };
        for zone in 0..self.granules.kept {
            self.granules.use_block((zone << (ORDERS - 1)) as u32, ORDERS - 1, &self.memory);
        }
    }

    fn shrink_idle(&mut self) {
        for order in self.granules.order..ORDERS {
            // From the end: blocks are given out from the beginning.
            for first in self.free[order].iter().rev() {
                self.granules.shrink_free(*first, order, &mut self.memory);
            }
        }
    }
}

impl Granules {
    fn bytes(&self) -> usize {
        BUFFER_BYTES_MIN << self.order
    }

    /// How many have memory.
    fn committed(&self) -> usize {
        self.idle_calls.iter().flatten().count()
    }

    /// The granules of a block.
    fn of_block(&self, leaf: u32, order: usize) -> std::ops::Range<usize> {
        let (first, behind) = (leaf as usize, leaf as usize + (1 << order));
        first >> self.order..((behind - 1) >> self.order) + 1
    }

    /// Notes that a block is used; a zone that had no memory gets it.
    fn use_block(&mut self, leaf: u32, order: usize, memory: &Mapping) {
        for granule in self.of_block(leaf, order) {
            let before = self.idle_calls[granule].replace(0);
            if let (None, Some(keeper)) = (before, &self.keeper) {
                let offset = granule * self.bytes();
                memory.populate(offset, self.bytes());
                keeper.begin(memory.at(offset), self.bytes());
            }
        }
    }

    /// Gives the memory of granules of a free block back that were idle for long.
    fn shrink_free(&mut self, leaf: u32, order: usize, memory: &mut Mapping) {
        for granule in self.of_block(leaf, order).rev() {
            let Some(calls) = self.idle_calls[granule] else { continue };
            if calls < self.idle_calls_max {
                self.idle_calls[granule] = Some(calls + 1);
            } else if granule >= self.kept {
                let offset = granule * self.bytes();
                if let Some(keeper) = &self.keeper {
                    keeper.end(memory.at(offset), self.bytes());
                }
                memory.release(offset, self.bytes());
                self.idle_calls[granule] = None;
            }
        }
    }
}

impl Drop for PoolState {
    fn drop(&mut self) {
        let Some(keeper) = &self.granules.keeper else { return };
        let begun = self.granules.idle_calls.iter().enumerate().filter(|(_, calls)| calls.is_some());
        for (zone, _) in begun {
            keeper.end(self.memory.at(zone * BUFFER_BYTES_MAX), BUFFER_BYTES_MAX);
        }
    }
}

/// Page-aligned memory from a [`BufferPool`], given back on drop. Its content is whatever was there.
pub struct Buffer {
    pool: BufferPool,
    client: u64,
    leaf: u32,
    order: usize,
    start: *mut u8,
    bytes: usize,
}

impl Buffer {
    /// Where it begins, for system calls.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is within the pool's mapping, which the pool in this struct keeps, is
        // initialised (by the kernel, with zeros) and belongs to this buffer alone.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.state.borrow_mut().release(self.client, self.leaf, self.order);
        self.pool.serve_waiters();
    }
}
