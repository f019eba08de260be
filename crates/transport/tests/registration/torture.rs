//! Threads that map, unmap, remap, give back, fork and do I/O all at once, on memory that lies interleaved; every byte is checked.
//!
//! ```text
//!   places    │ A0  ──│ B0 ───│ C0    │ D0 ── │ A1 ───│ B1  ──│ …      thread A's I/O to A0 and A1 registers what lies in
//!             └ 32 KiB┘                                                 between, which B, C and D are just unmapping
//! ```
//!
//! The adapter's pages are pinned (registered buffers of an io_uring): a registration of memory that is gone goes on working, on
//! pages that nobody has any more. A cache that keeps such a registration is found out by the bytes, as the naive one here is.
//!
//! `WEFT_TORTURE_OPERATIONS=1000000` sets how many operations; without it, as many as fit into ten seconds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use weft_test_random::Random;
use weft_transport::registration::{PageRange, RegistrationCache, RegistrationOptions, page_bytes};
use weft_verbs::{Access, Device, Registration};
use weft_verbs_double::{Pinning, Pretend, PretendDevice, PretendOptions, PretendRegistration};

use crate::memory::{bytes, map, pointer, unmap};
use crate::peer::Peer;
use crate::{alone, options, runs};

const THREADS: u64 = 4;
const SLOTS: u64 = 8;
const SLOT_PAGES: u64 = 8;
const SECONDS: u64 = 10;

/// A piece of memory: address and bytes.
type Piece = (u64, u64);

/// What is tortured: something that gives keys for memory.
trait Keys: Sync {
    /// Calls back with a key for each piece, which are valid until that returns.
    fn with(&self, pieces: &[Piece], write: bool, act: &mut dyn FnMut(usize, u32));
}

impl Keys for RegistrationCache<PretendDevice> {
    fn with(&self, pieces: &[Piece], write: bool, act: &mut dyn FnMut(usize, u32)) {
        // SAFETY: the pieces are mapped, and their thread's alone.
        let pinned = unsafe { self.pin(&runs(pieces), &[], write) }.unwrap();
        for (number, (address, bytes)) in pieces.iter().enumerate() {
            act(number, pinned.find(*address, *bytes).unwrap().remote_key);
        }
    }
}

/// Keeps registrations as long as there is room, as caches do that are not told of `munmap`.
struct Naive {
    device: Arc<PretendDevice>,
    known: Mutex<BTreeMap<PageRange, Arc<PretendRegistration>>>,
}

impl Naive {
    fn registration(&self, (address, bytes): Piece) -> Arc<PretendRegistration> {
        let pages = PageRange::around(address, bytes).unwrap();
        let make = || {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            let (start, bytes) = (pages.start as usize, pages.bytes() as usize);
            // SAFETY: as for any registration, and here it goes wrong.
            unsafe { self.device.register(start, bytes, access) }.map(Arc::new)
        };
        let mut known = self.known.lock().unwrap();
        if let Some(registration) = known.get(&pages) {
            return registration.clone();
        }
        let registration = make().or_else(|_| {
            known.clear();
            make()
        });
        known.entry(pages).or_insert(registration.unwrap()).clone()
    }
}

impl Keys for Naive {
    fn with(&self, pieces: &[Piece], _write: bool, act: &mut dyn FnMut(usize, u32)) {
        for (number, piece) in pieces.iter().enumerate() {
            act(number, self.registration(*piece).remote_key());
        }
    }
}

/// Memory of a thread, and what is in it.
struct Slot {
    address: u64,
    content: Vec<u8>,
    /// Perhaps of several mappings, which cannot be moved together.
    is_patched: bool,
}

impl Slot {
    fn pages(&self) -> u64 {
        self.content.len() as u64 / page_bytes()
    }

    fn there(&mut self) -> &mut [u8] {
        // SAFETY: mapped as long as the slot is as it is, and the thread's alone.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.content.len()) }
    }

    /// Writes new bytes to some pages, with the processor.
    fn fill(&mut self, pages: std::ops::Range<u64>, random: &mut Random) {
        let part = bytes(pages.start)..bytes(pages.end);
        random.fill(&mut self.content[part.clone()]);
        let content = self.content[part.clone()].to_vec();
        self.there()[part].copy_from_slice(&content);
    }

    /// Bytes that are not as they should be.
    fn wrong_bytes(&mut self) -> u64 {
        let content = std::mem::take(&mut self.content);
        // SAFETY: as in `there`.
        let there = unsafe { std::slice::from_raw_parts(self.address as *const u8, content.len()) };
        let wrong =
            if there == content { 0 } else { there.iter().zip(&content).filter(|(a, b)| a != b).count() };
        self.content = content;
        wrong as u64
    }
}

/// All threads.
struct Torture<'a> {
    keys: &'a dyn Keys,
    fabric: &'a Pretend,
    /// Where places are, and nothing else is.
    base: u64,
    operations: AtomicU64,
    operations_max: u64,
    until: Option<Instant>,
    wrong_bytes: AtomicU64,
    barrier: Barrier,
    seed: u64,
}

impl Torture<'_> {
    fn is_over(&self) -> bool {
        self.operations.fetch_add(1, Ordering::Relaxed) >= self.operations_max
            || self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn run(&self) {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut worker = Worker::new(self, thread);
                    self.barrier.wait();
                    while !self.is_over() {
                        worker.step();
                    }
                    worker.finish();
                });
            }
        });
    }
}

struct Worker<'a> {
    torture: &'a Torture<'a>,
    random: Random,
    peer: Peer,
    places: Vec<u64>,
    slots: Vec<Slot>,
    child: Option<libc::pid_t>,
}

impl<'a> Worker<'a> {
    fn new(torture: &'a Torture<'a>, thread: u64) -> Worker<'a> {
        let place = |slot| torture.base + (slot * THREADS + thread) * SLOT_PAGES * page_bytes();
        let mut worker = Worker {
            torture,
            random: Random(torture.seed + 0x9e37_79b9 * (thread + 1)),
            peer: Peer::new(torture.fabric),
            places: (0..SLOTS).map(place).collect(),
            slots: Vec::new(),
            child: None,
        };
        for place in worker.places.clone() {
            let slot = worker.map_slot(Some(place));
            worker.slots.push(slot);
        }
        worker
    }

    fn step(&mut self) {
        let slot = self.random.below(SLOTS) as usize;
        match self.random.below(200) {
            0..100 => self.transfer(),
            100..120 => self.map_anew(slot),
            120..132 => self.map_over(slot),
            132..144 => self.give_back(slot, libc::MADV_DONTNEED),
            144..152 => self.give_back(slot, libc::MADV_FREE),
            152..164 => self.move_away(slot, 0),
            164..170 => self.move_away(slot, libc::MREMAP_DONTUNMAP),
            170..178 => self.protect(slot),
            178..199 => self.transfer_from_heap(),
            _ => self.fork(),
        }
    }

    /// New memory with new bytes, at a place if that is free, else anywhere.
    fn map_slot(&mut self, place: Option<u64>) -> Slot {
        let pages = 1 + self.random.below(SLOT_PAGES);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let at_place = place.map(|place| {
            // SAFETY: replaces nothing.
            unsafe { libc::mmap(pointer(place), bytes(pages), protection, flags, -1, 0) as u64 }
        });
        let address = match at_place {
            Some(address) if Some(address) == place => address,
            _ => map(0, pages, protection),
        };
        let mut slot = Slot { address, content: vec![0; bytes(pages)], is_patched: false };
        slot.fill(0..pages, &mut self.random);
        slot
    }

    fn map_anew(&mut self, slot: usize) {
        unmap(self.slots[slot].address, self.slots[slot].pages());
        let place = self.places[slot];
        self.slots[slot] = self.map_slot(Some(place));
    }

    /// Some pages of a slot.
    fn some_pages(&mut self, slot: usize) -> std::ops::Range<u64> {
        let pages = self.slots[slot].pages();
        let first = self.random.below(pages);
        first..first + 1 + self.random.below(pages - first)
    }

    fn map_over(&mut self, slot: usize) {
        let pages = self.some_pages(slot);
        let at = self.slots[slot].address + pages.start * page_bytes();
        map(at, pages.end - pages.start, libc::PROT_READ | libc::PROT_WRITE);
        self.slots[slot].is_patched = true;
        self.slots[slot].fill(pages, &mut self.random);
    }

    fn give_back(&mut self, slot: usize, advice: i32) {
        let pages = self.some_pages(slot);
        let at = self.slots[slot].address + pages.start * page_bytes();
        // SAFETY: pages of this thread's own.
        assert_eq!(unsafe { libc::madvise(pointer(at), bytes(pages.end - pages.start), advice) }, 0);
        let slot = &mut self.slots[slot];
        if advice == libc::MADV_DONTNEED && self.random.below(2) == 0 {
            slot.content[bytes(pages.start)..bytes(pages.end)].fill(0);
        } else {
            slot.fill(pages, &mut self.random);
        }
    }

    /// Moves a slot to its place if that is free, else anywhere.
    fn move_away(&mut self, slot: usize, flag: i32) {
        let (old, pages) = (self.slots[slot].address, self.slots[slot].pages());
        let reserved = self.map_slot(Some(self.places[slot]).filter(|place| *place != old));
        let (target, target_pages) = (reserved.address, reserved.pages());
        if target_pages < pages || self.slots[slot].is_patched {
            // A new one after all.
            unmap(old, pages);
            self.slots[slot] = reserved;
            return;
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | flag;
        // SAFETY: from one mapping of this thread's own over another.
        let moved = unsafe { libc::mremap(pointer(old), bytes(pages), bytes(pages), flags, pointer(target)) };
        assert_eq!(moved as u64, target, "{}", std::io::Error::last_os_error());
        if target_pages > pages {
            unmap(target + pages * page_bytes(), target_pages - pages);
        }
        if flag != 0 {
            unmap(old, pages);
        }
        self.slots[slot].address = target;
        self.check(slot);
    }

    fn protect(&mut self, slot: usize) {
        let pages = self.some_pages(slot);
        let at = self.slots[slot].address + pages.start * page_bytes();
        for protection in [libc::PROT_READ, libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE] {
            // SAFETY: pages of this thread's own, which nobody uses meanwhile.
            let result = unsafe { libc::mprotect(pointer(at), bytes(pages.end - pages.start), protection) };
            assert_eq!(result, 0);
        }
        self.slots[slot].is_patched = true;
        self.check(slot);
    }

    /// I/O to or from pieces of some slots, in one request.
    fn transfer(&mut self) {
        let first = self.random.below(SLOTS);
        let count = 1 + self.random.below(4);
        let mut pieces = Vec::new();
        for slot in (first..first + count).map(|slot| (slot % SLOTS) as usize) {
            let size = self.slots[slot].content.len() as u64;
            let at = self.random.below(size);
            let bytes = 1 + self.random.below((size - at).min(9000));
            pieces.push((slot, at as usize, bytes as usize));
        }
        let addresses: Vec<Piece> = pieces
            .iter()
            .map(|(slot, at, bytes)| (self.slots[*slot].address + *at as u64, *bytes as u64))
            .collect();
        let is_write = self.random.below(2) == 0;
        let (slots, peer, random) = (&mut self.slots, &mut self.peer, &mut self.random);
        let mut wrong = 0;
        self.torture.keys.with(&addresses, is_write, &mut |number, key| {
            let (slot, at, bytes) = pieces[number];
            let content = &mut slots[slot].content[at..at + bytes];
            if is_write {
                random.fill(content);
                peer.put(addresses[number].0, key, content);
            } else {
                let mut got = vec![0; bytes];
                peer.get(addresses[number].0, key, &mut got);
                wrong += got.iter().zip(content).filter(|(got, is)| *got != *is).count() as u64;
            }
        });
        self.torture.wrong_bytes.fetch_add(wrong, Ordering::Relaxed);
        for (slot, ..) in pieces {
            self.check(slot);
        }
    }

    /// I/O to memory that `malloc` gives and takes back, large and small.
    fn transfer_from_heap(&mut self) {
        let size_max = [300, 20_000, 500_000][self.random.below(3) as usize];
        let size = 1 + self.random.below(size_max) as usize;
        let mut buffer = vec![0; size];
        let mut content = vec![0; size];
        self.random.fill(&mut buffer);
        let piece = [(buffer.as_mut_ptr() as u64, size as u64)];
        self.torture.keys.with(&piece, false, &mut |_, key| self.peer.get(piece[0].0, key, &mut content));
        let mut wrong = content.iter().zip(&buffer).filter(|(got, is)| got != is).count();
        self.random.fill(&mut content);
        self.torture.keys.with(&piece, true, &mut |_, key| self.peer.put(piece[0].0, key, &content));
        wrong += content.iter().zip(&buffer).filter(|(is, got)| got != is).count();
        self.torture.wrong_bytes.fetch_add(wrong as u64, Ordering::Relaxed);
    }

    /// A child that checks its copy, overwrites and unmaps it, while the parent goes on.
    fn fork(&mut self) {
        self.wait_for_child();
        // SAFETY: the child neither allocates nor locks.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let wrong: u64 = self.slots.iter_mut().map(Slot::wrong_bytes).sum();
            for slot in &mut self.slots {
                slot.there().fill(0x55);
                unmap(slot.address, slot.pages());
            }
            // SAFETY: no handlers, no destructors.
            unsafe { libc::_exit(i32::from(wrong > 0)) };
        }
        assert!(child > 0);
        self.child = Some(child);
    }

    fn wait_for_child(&mut self) {
        if let Some(child) = self.child.take() {
            let mut status = 0;
            // SAFETY: waits for a child of this thread's.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            let wrong = u64::from(!libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0);
            self.torture.wrong_bytes.fetch_add(wrong, Ordering::Relaxed);
        }
    }

    fn check(&mut self, slot: usize) {
        let wrong = self.slots[slot].wrong_bytes();
        if wrong > 0 {
            self.torture.wrong_bytes.fetch_add(wrong, Ordering::Relaxed);
            // Counted once.
            let pages = self.slots[slot].pages();
            self.slots[slot].fill(0..pages, &mut self.random);
        }
    }

    fn finish(mut self) {
        self.wait_for_child();
        for slot in 0..self.slots.len() {
            self.check(slot);
            unmap(self.slots[slot].address, self.slots[slot].pages());
        }
    }
}

fn fabric() -> Pretend {
    Pretend::new(PretendOptions { pinning: Pinning::Pinned, ..PretendOptions::default() })
}

fn device(fabric: &Pretend) -> Arc<PretendDevice> {
    Peer::new(fabric).device()
}

/// Tortures, and returns operations and wrong bytes.
fn torture(keys: &dyn Keys, fabric: &Pretend, operations_max: u64, seconds: Option<u64>) -> (u64, u64) {
    // An area where nothing is, for the places.
    let pages = THREADS * SLOTS * SLOT_PAGES;
    let base = map(0, pages, libc::PROT_NONE);
    unmap(base, pages);
    let torture = Torture {
        keys,
        fabric,
        base,
        operations: AtomicU64::new(0),
        operations_max,
        until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        wrong_bytes: AtomicU64::new(0),
        barrier: Barrier::new(THREADS as usize),
        seed: weft_test_random::seed(),
    };
    torture.run();
    let operations = torture.operations.into_inner() - THREADS;
    (operations, torture.wrong_bytes.into_inner())
}

#[test]
fn no_byte_goes_wrong() {
    let _alone = alone();
    let asked = std::env::var("WEFT_TORTURE_OPERATIONS").ok();
    let operations: Option<u64> = asked.map(|text| text.parse().expect("a number of operations"));
    let fabric = fabric();
    let few = RegistrationOptions { entries_max: 48, bytes_max: 2 << 20, ..options() };
    let cache = RegistrationCache::new(device(&fabric), few);
    let seconds = if operations.is_some() { None } else { Some(SECONDS) };
    let begun = Instant::now();
    let (operations, wrong) = torture(&cache, &fabric, operations.unwrap_or(u64::MAX), seconds);
    let stats = cache.stats();
    println!("{operations} operations in {:?}, {wrong} wrong bytes: {stats:?}", begun.elapsed());
    assert_eq!(wrong, 0, "{stats:?}");
    let seen = [stats.hits, stats.invalidated, stats.evicted, stats.refused];
    assert!(operations < 1000 || seen.iter().all(|count| *count > 10), "not much of a torture: {stats:?}");
}

#[test]
fn a_cache_that_is_not_told_corrupts() {
    let _alone = alone();
    let fabric = fabric();
    let naive = Naive { device: device(&fabric), known: Mutex::new(BTreeMap::new()) };
    let (operations, wrong) = torture(&naive, &fabric, 2000, Some(SECONDS));
    println!("{wrong} wrong bytes after {operations} operations");
    assert!(wrong > 0, "the torture would not find a stale registration");
}
