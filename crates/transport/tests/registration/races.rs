//! Moments that matter, sought out one by one; `torture` meets them too seldom.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_transport::registration::{RegistrationCache, RegistrationOptions, page_bytes};
use weft_verbs_double::{Pinning, Pretend, PretendDevice, PretendOptions};

use crate::memory::{Pages, bytes, map, pointer, unmap};
use crate::peer::Peer;
use crate::{alone, options, runs};

const TIME: Duration = Duration::from_millis(1500);

/// A thread with a server of its own; the cache is that of all.
struct Racer {
    cache: RegistrationCache<PretendDevice>,
    peer: Peer,
    next: u8,
    wrong: Arc<AtomicU64>,
}

impl Racer {
    /// The server writes one byte into each page of some: is it there?
    fn exchange(&mut self, addresses: &[u64]) {
        let pieces: Vec<_> = addresses.iter().map(|address| (*address + 5, 1)).collect();
        // SAFETY: mapped, and of this thread alone.
        let pinned = unsafe { self.cache.pin(&runs(&pieces), &[], true) }.unwrap();
        for (address, _) in pieces {
            self.next = self.next.wrapping_add(1);
            self.peer.put(address, pinned.find(address, 1).unwrap().remote_key, &[self.next]);
            // SAFETY: as above; the transfer is over.
            let there = unsafe { (address as *mut u8).read_volatile() };
            self.wrong.fetch_add(u64::from(there != self.next), Ordering::Relaxed);
        }
    }
}

/// Lets threads do their steps for a while, and says how many there were. No byte may go wrong.
fn race(steps: &[&(dyn Fn(&mut Racer) + Sync)]) {
    let fabric = Pretend::new(PretendOptions { pinning: Pinning::Pinned, ..PretendOptions::default() });
    let few = RegistrationOptions { entries_max: 64, ..options() };
    let cache = RegistrationCache::new(Peer::new(&fabric).device(), few);
    let (wrong, done) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    let until = Instant::now() + TIME;
    std::thread::scope(|scope| {
        for step in steps {
            let (cache, peer, wrong) = (cache.clone(), Peer::new(&fabric), wrong.clone());
            let done = &done;
            scope.spawn(move || {
                let mut racer = Racer { cache, peer, next: 0, wrong };
                while Instant::now() < until {
                    step(&mut racer);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} steps: {:?}", done.into_inner(), cache.stats());
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
}

/// One thread gets the address that another unmaps, before that one's `munmap` has returned.
#[test]
fn an_address_that_is_given_anew_at_once() {
    let _alone = alone();
    // A hole of two pages in the middle of nothing: too small for what others map.
    let nothing = map(0, 1001, libc::PROT_NONE);
    let place = nothing + 500 * page_bytes();
    unmap(place, 2);
    let step = |racer: &mut Racer| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces nothing.
        let got = unsafe { libc::mmap(pointer(place), bytes(2), protection, flags, -1, 0) };
        if got == pointer(place) {
            racer.exchange(&[place, place + page_bytes()]);
            unmap(place, 2);
        } else if got != libc::MAP_FAILED {
            unmap(got as u64, 2);
        }
    };
    race(&[&step, &step]);
    unmap(nothing, 500);
    unmap(place + 2 * page_bytes(), 499);
}

/// Some threads give back, or replace, pages that lie between those of another's I/O.
#[test]
fn holes_that_change_while_they_are_registered() {
    let _alone = alone();
    let memory = Pages::new(9);
    let give_back = |page: u64| {
        // SAFETY: a page of the thread's own.
        assert_eq!(unsafe { libc::madvise(pointer(page), bytes(1), libc::MADV_DONTNEED) }, 0);
    };
    let (first, last) = (memory.at(0), memory.at(8));
    let around = |racer: &mut Racer| {
        racer.exchange(&[first, last]);
        give_back(first);
        give_back(last);
    };
    let emptied = |hole: u64| {
        move |racer: &mut Racer| {
            give_back(hole);
            racer.exchange(&[hole]);
        }
    };
    let emptied = [2, 4, 6].map(|page| emptied(memory.at(page)));
    race(&[&around, &emptied[0], &emptied[1], &emptied[2]]);
    let replaced = |hole: u64| {
        move |racer: &mut Racer| {
            map(hole, 1, libc::PROT_READ | libc::PROT_WRITE);
            racer.exchange(&[hole]);
        }
    };
    let replaced = [2, 4, 6].map(|page| replaced(memory.at(page)));
    race(&[&around, &replaced[0], &replaced[1], &replaced[2]]);
}
