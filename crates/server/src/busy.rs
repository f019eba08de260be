//! Which inodes the requests are about: the busiest ones, in bounded memory.
//!
//! Each thread has a sketch of [`SLOTS`] slots. An inode that has none takes that of the least busy one, and starts with its load
//! (the Space-Saving algorithm of Metwally, Agrawal and El Abbadi, ICDT 2005, section 3.1): an inode with more than one part in
//! [`SLOTS`] of the load always has a slot. Loads are halved every second, so that what was busy yesterday makes room.
//!
//! ```text
//!   inode   load   requests   read   written        load: decides who stays
//!       7    610      90000    3 G         0        the others rise only, from when the slot was taken:
//!      12     34        210      0      12 M        two looks give rates
//! ```

use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use weft_wire::messages::BusyInode;
use weft_wire::{Op, Status};

/// Inodes that a thread's sketch holds.
const SLOTS: usize = 128;
/// Requests between two looks at the time.
const AGING_REQUESTS: u32 = 64;
/// Inodes in a reply: those of all slots, so that one that was not in the reply before has not been counted before.
const LISTED_MAX: usize = 1024;
/// So many bytes are as much load as a request.
const BYTES_PER_LOAD: u64 = 64 << 10;

#[derive(Debug, Clone, Copy)]
struct Slot {
    inode: BusyInode,
    load: u64,
}

/// The busiest inodes of one thread.
#[derive(Default)]
struct Sketch {
    slots: Vec<Slot>,
    /// Too few for it to matter that others may choose the numbers.
    places: FxHashMap<u64, usize>,
    requests: u32,
    aged_ms: u64,
}

impl Sketch {
    fn note(&mut self, ino: u64, read_bytes: u64, written_bytes: u64, now_ms: u64) {
        self.requests += 1;
        if self.requests >= AGING_REQUESTS {
            self.requests = 0;
            self.age(now_ms);
        }
        let place = match self.places.get(&ino) {
            Some(place) => *place,
            None => self.take_place(ino),
        };
        let Slot { inode, load } = &mut self.slots[place];
        inode.requests += 1;
        inode.read_bytes += read_bytes;
        inode.written_bytes += written_bytes;
        *load = load.saturating_add(1 + (read_bytes + written_bytes) / BYTES_PER_LOAD);
    }

    fn age(&mut self, now_ms: u64) {
        let seconds = now_ms.saturating_sub(self.aged_ms) / 1000;
        if seconds == 0 {
            return;
        }
        self.aged_ms = now_ms;
        for slot in &mut self.slots {
            slot.load = slot.load.checked_shr(seconds as u32).unwrap_or(0);
        }
    }

    fn take_place(&mut self, ino: u64) -> usize {
        let inode = BusyInode { ino, ..BusyInode::default() };
        let place = self.slots.len();
        if place < SLOTS {
            self.slots.push(Slot { inode, load: 0 });
            self.places.insert(ino, place);
            return place;
        }
        let place = (0..SLOTS).min_by_key(|place| self.slots[*place].load).unwrap_or(0);
        self.places.remove(&self.slots[place].inode.ino);
        self.places.insert(ino, place);
        self.slots[place].inode = inode;
        place
    }
}

/// One thread's own sketch, which others only look at.
pub(crate) struct Noter(Arc<Mutex<Sketch>>);

impl Noter {
    /// Notes a request about `ino` that is done. 0: it is about none.
    pub fn note(&self, ino: u64, op: Op, status: Status, moved_bytes: u64, now_ms: u64) {
        if ino == 0 || status != Status::Ok {
            return;
        }
        let (read_bytes, written_bytes) = if op.reads_file() { (moved_bytes, 0) } else { (0, moved_bytes) };
        let mut sketch = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sketch.note(ino, read_bytes, written_bytes, now_ms);
    }
}

/// The sketches of all threads of a server.
#[derive(Default)]
pub(crate) struct Busy(Mutex<Vec<Arc<Mutex<Sketch>>>>);

impl Busy {
    /// A new thread's sketch.
    pub fn noter(&self) -> Noter {
        let sketch = Arc::<Mutex<Sketch>>::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sketch.clone());
        Noter(sketch)
    }

    /// The busiest inodes at all threads, the busiest first.
    pub fn list(&self, now_ms: u64) -> Vec<BusyInode> {
        let mut all: HashMap<u64, Slot> = HashMap::new();
        for sketch in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let mut sketch = sketch.lock().unwrap_or_else(PoisonError::into_inner);
            sketch.age(now_ms);
            for Slot { inode, load } in &sketch.slots {
                let fresh = Slot { inode: BusyInode { ino: inode.ino, ..BusyInode::default() }, load: 0 };
                let sum = all.entry(inode.ino).or_insert(fresh);
                sum.load = sum.load.saturating_add(*load);
                sum.inode.requests += inode.requests;
                sum.inode.read_bytes += inode.read_bytes;
                sum.inode.written_bytes += inode.written_bytes;
            }
        }
        let mut all: Vec<Slot> = all.into_values().collect();
        all.sort_by_key(|slot| (std::cmp::Reverse(slot.load), slot.inode.ino));
        all.truncate(LISTED_MAX);
        all.into_iter().map(|slot| slot.inode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(noter: &Noter, ino: u64, bytes: u64, now_ms: u64) {
        noter.note(ino, Op::Read, Status::Ok, bytes, now_ms);
    }

    #[test]
    fn a_busy_inode_is_found_among_many_others_at_several_threads() {
        let busy = Busy::default();
        let noters = [busy.noter(), busy.noter()];
        for turn in 0..100_000 {
            let noter = &noters[turn as usize % 2];
            read(noter, 1000 + turn, 4096, turn / 100);
            if turn % 20 < 2 {
                read(noter, 7, 4096, turn / 100);
            }
        }
        let listed = busy.list(1000);
        assert_eq!((listed.len(), listed[0].ino), (2 * SLOTS - 1, 7));
        let BusyInode { requests, read_bytes, written_bytes, .. } = listed[0];
        assert!((9_000..=10_000).contains(&requests), "{requests}");
        assert_eq!((read_bytes, written_bytes), (4096 * requests, 0));
    }

    #[test]
    fn what_was_busy_makes_room() {
        let busy = Busy::default();
        let noter = busy.noter();
        (0..SLOTS as u64).for_each(|ino| (0..1000).for_each(|_| read(&noter, 1 + ino, 1 << 20, 1000)));
        let is_listed = |ino: u64, now_ms| busy.list(now_ms).iter().any(|inode| inode.ino == ino);
        for turn in 0..100u64 {
            read(&noter, 500 + turn % 4, 0, 90_000 + turn);
        }
        assert!((500..504).all(|ino| is_listed(ino, 90_200)));
    }

    #[test]
    fn failures_and_requests_about_nothing_are_no_load() {
        let busy = Busy::default();
        let noter = busy.noter();
        noter.note(0, Op::Ping, Status::Ok, 0, 1);
        noter.note(7, Op::Read, Status::NotFound, 0, 1);
        assert!(busy.list(1).is_empty());
        noter.note(7, Op::Write, Status::Ok, 100, 1);
        noter.note(7, Op::GetAttr, Status::Ok, 0, 1);
        let expected = BusyInode { ino: 7, requests: 2, read_bytes: 0, written_bytes: 100 };
        assert_eq!(busy.list(1), [expected]);
    }
}
