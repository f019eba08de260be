//! That the cache learns of everything that happens to memory, over an adapter whose pages are pinned: one that uses what is gone
//! writes into pages that nobody has any more, and that is seen.

use std::time::{Duration, Instant};
use weft_test_needs::Need;

use weft_transport::registration::{
    PinError, RegistrationCache, RegistrationOptions, RegistrationStats, page_bytes,
};
use weft_verbs_double::{Pinning, Pretend, PretendDevice, PretendOptions};

use crate::memory::{Pages, bytes, map, map_shared, pointer, unmap};
use crate::peer::Peer;
use crate::{alone, options, runs};

/// A cache and a server.
struct Site {
    cache: RegistrationCache<PretendDevice>,
    peer: Peer,
    next: u8,
}

impl Site {
    fn new() -> Site {
        Site::with(RegistrationOptions { verify: true, ..options() }, Pinning::Pinned)
    }

    fn with(options: RegistrationOptions, pinning: Pinning) -> Site {
        let fabric = Pretend::new(PretendOptions { pinning, ..PretendOptions::default() });
        let peer = Peer::new(&fabric);
        Site { cache: RegistrationCache::new(peer.device(), options), peer, next: 1 }
    }

    /// The server writes one byte into each page of some; they must appear there, and be read from there again.
    fn exchange(&mut self, addresses: &[u64]) {
        let pieces: Vec<_> = addresses.iter().map(|address| (*address + 5, 1)).collect();
        // SAFETY: mapped, and of this test alone.
        let pinned = unsafe { self.cache.pin(&runs(&pieces), &[], true) }.unwrap();
        for (address, _) in pieces {
            let key = pinned.find(address, 1).unwrap().remote_key;
            self.next = self.next.wrapping_add(1);
            self.peer.put(address, key, &[self.next]);
            // SAFETY: as above; the transfer is over.
            let there = unsafe { (address as *mut u8).read_volatile() };
            assert_eq!(there, self.next, "the byte went elsewhere: {:?}", self.stats());
            // SAFETY: as above.
            unsafe { (address as *mut u8).write_volatile(!self.next) };
            let mut back = [0];
            self.peer.get(address, key, &mut back);
            assert_eq!(back, [!self.next], "the byte came from elsewhere");
        }
    }

    fn stats(&self) -> RegistrationStats {
        self.cache.stats()
    }

    /// Registrations and invalidations so far.
    fn counts(&self) -> (u64, u64) {
        let stats = self.stats();
        assert_eq!(stats.wrong, 0);
        (stats.registrations, stats.invalidated)
    }
}

#[test]
fn memory_that_is_unmapped_and_mapped_again_is_registered_again() {
    let _alone = alone();
    let (mut site, memory) = (Site::new(), Pages::new(8));
    site.exchange(&[memory.at(1), memory.at(5)]);
    site.exchange(&[memory.at(2)]);
    assert_eq!(site.counts(), (1, 0));
    memory.unmap(3, 1);
    memory.map_again(3);
    site.exchange(&[memory.at(1), memory.at(3), memory.at(5)]);
    assert_eq!(site.counts(), (2, 1));
    map(memory.at(2), 2, libc::PROT_READ | libc::PROT_WRITE);
    site.exchange(&[memory.at(2), memory.at(3), memory.at(4)]);
    assert_eq!(site.counts(), (3, 2));
    site.exchange(&[memory.at(3)]);
    assert_eq!(site.counts(), (3, 2));
}

#[test]
fn what_is_unmapped_is_deregistered_without_another_request() {
    let _alone = alone();
    let (mut site, memory) = (Site::new(), Pages::new(8));
    site.exchange(&[memory.at(1)]);
    memory.unmap(0, 8);
    let begun = Instant::now();
    while site.counts() != (1, 1) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(site.stats().bytes, 0);
}

#[test]
fn memory_that_moves_is_registered_again() {
    let _alone = alone();
    let (mut site, memory, target) = (Site::new(), Pages::new(8), Pages::new(8));
    site.exchange(&[memory.at(1), memory.at(6)]);
    site.exchange(&[target.at(2)]);
    // SAFETY: pages of this test's own.
    unsafe {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let moved = libc::mremap(pointer(memory.at(4)), bytes(4), bytes(4), flags, pointer(target.at(0)));
        assert_eq!(moved as u64, target.at(0));
    }
    map(memory.at(4), 4, libc::PROT_READ | libc::PROT_WRITE);
    site.exchange(&[memory.at(1), memory.at(6), target.at(2), target.at(3)]);
    // SAFETY: as above.
    let moved = unsafe {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        libc::mremap(pointer(memory.at(4)), bytes(4), bytes(4), flags, pointer(0))
    };
    assert_ne!(moved, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    site.exchange(&[memory.at(6), moved as u64]);
    site.exchange(&[moved as u64 + page_bytes()]);
    map(moved as u64, 4, libc::PROT_READ | libc::PROT_WRITE);
    site.exchange(&[moved as u64]);
    unmap(moved as u64, 4);
}

#[test]
fn pages_that_are_given_back_are_registered_again() {
    let _alone = alone();
    for advice in [libc::MADV_DONTNEED, libc::MADV_FREE] {
        let (mut site, memory) = (Site::new(), Pages::new(8));
        site.exchange(&[memory.at(0), memory.at(7)]);
        // SAFETY: pages of this test's own.
        assert_eq!(unsafe { libc::madvise(pointer(memory.at(3)), bytes(1), advice) }, 0);
        // The page may still be going: not registered as a hole, but where it is used.
        site.exchange(&[memory.at(0), memory.at(7)]);
        assert_eq!(site.counts(), (3, 1));
        site.exchange(&[memory.at(0), memory.at(3), memory.at(7)]);
        assert_eq!(site.counts(), (4, 1));
        site.exchange(&[memory.at(1), memory.at(5)]);
        assert_eq!(site.counts(), (5, 1));
    }
}

#[test]
fn rights_may_come_and_go() {
    let _alone = alone();
    let (mut site, memory) = (Site::new(), Pages::new(8));
    site.exchange(&[memory.at(1)]);
    for protection in [libc::PROT_NONE, libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
        memory.protect(0, 8, protection);
    }
    site.exchange(&[memory.at(1)]);
    assert_eq!(site.counts(), (1, 0));
}

#[test]
fn a_child_has_nothing_and_takes_nothing() {
    let _alone = alone();
    let (mut site, memory) = (Site::new(), Pages::new(8));
    site.exchange(&[memory.at(1)]);
    let pieces = runs(&[(memory.at(1), 8)]);
    // SAFETY: mapped, and of this test alone.
    let held = unsafe { site.cache.pin(&pieces, &[], true) }.unwrap();
    // SAFETY: the child uses nothing that another thread may have had locked, but for what this test is about.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        let pinned = unsafe { site.cache.pin(&pieces, &[], true) };
        let is_refused = matches!(pinned, Err(PinError::Forked));
        let is_empty = site.cache.check_if_registered(&pieces, true).is_none() && site.stats().entries == 0;
        memory.unmap(0, 8);
        drop(held);
        drop(site.cache);
        // SAFETY: no handlers, no destructors.
        unsafe { libc::_exit(if is_refused && is_empty { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    site.exchange(&[memory.at(1)]);
    assert_eq!(site.counts(), (1, 0));
}

#[test]
fn a_child_that_lives_on_does_not_keep_memory_watched() {
    let _alone = alone();
    let (mut site, memory) = (Site::new(), Pages::new(8));
    site.exchange(&[memory.at(1)]);
    // SAFETY: the child only sleeps until it is ended.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no memory is passed.
            unsafe { libc::pause() };
        }
    }
    drop(site);
    memory.unmap(1, 1);
    // SAFETY: the child just made.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

#[test]
fn two_adapters_watch_the_same_memory() {
    let _alone = alone();
    let (mut site, mut other, memory) = (Site::new(), Site::new(), Pages::new(8));
    for _ in 0..3 {
        site.exchange(&[memory.at(1), memory.at(4)]);
        other.exchange(&[memory.at(3), memory.at(6)]);
        map(memory.at(3), 1, libc::PROT_READ | libc::PROT_WRITE);
    }
    site.exchange(&[memory.at(3)]);
    drop(site);
    other.exchange(&[memory.at(3), memory.at(4)]);
    map(memory.at(3), 1, libc::PROT_READ | libc::PROT_WRITE);
    other.exchange(&[memory.at(3), memory.at(4)]);
}

#[test]
fn memory_of_files_between_private_memory_is_not_cached() {
    let _alone = alone();
    // Not pinned: some kernels do not register memory of files with an io_uring.
    let (mut site, memory) = (Site::with(options(), Pinning::Copied), Pages::new(8));
    let shared = map_shared(1);
    // SAFETY: pages of this test's own.
    unsafe {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        libc::mremap(pointer(shared), bytes(1), bytes(1), flags, pointer(memory.at(3)));
    }
    for round in 1..4 {
        site.exchange(&[memory.at(1), memory.at(5)]);
        assert_eq!((site.stats().entries, site.stats().transient), (0, round));
    }
    site.exchange(&[memory.at(4)]);
    assert_eq!(site.stats().entries, 1);
}

#[test]
fn verifying_finds_a_page_that_was_exchanged() {
    let _alone = alone();
    // Frame numbers are shown to root.
    if !Need::Root.is_met() {
        return;
    }
    let (mut site, memory) = (Site::new(), Pages::new(8));
    // SAFETY: the promise is broken, which is what is to be found.
    unsafe { site.cache.add_arena(memory.at(0), 8 * page_bytes()) }.unwrap();
    site.exchange(&[memory.at(1)]);
    map(memory.at(1), 1, libc::PROT_READ | libc::PROT_WRITE);
    site.exchange(&[memory.at(0), memory.at(1), memory.at(2)]);
    assert_eq!((site.stats().wrong, site.stats().misses), (1, 1));
}

#[test]
fn what_was_watched_along_is_watched_no_more() {
    let _alone = alone();
    let (mut site, memory) = (Site::new(), Pages::new(9));
    site.exchange(&[memory.at(4)]);
    // What is left of the mapping were two, and nothing is registered in them.
    memory.unmap(4, 1);
    let is_one_again = || {
        // SAFETY: pages of this test's own; the kernel moves what is one mapping.
        let moved = unsafe { libc::mremap(pointer(memory.at(0)), bytes(9), bytes(9), libc::MREMAP_MAYMOVE) };
        moved != libc::MAP_FAILED
    };
    memory.map_again(4);
    let is_so = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        is_one_again()
    });
    assert!(is_so, "they are one with the new page only if neither is watched");
}

/// Threads of this process with such a name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|comm| comm.starts_with(name)).count()
}

#[test]
fn the_watch_lasts_from_the_first_memory_to_the_end_of_the_cache() {
    let _alone = alone();
    let (mut site, memory) = (Site::new(), Pages::new(8));
    let gone_within_a_while = || {
        (0..6000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            threads("weft-watch") == 0
        })
    };
    assert!(gone_within_a_while(), "of earlier tests");
    site.exchange(&[memory.at(1)]);
    assert_eq!(site.stats().foreign.as_str(), "watched");
    // A thread gives itself its name once it runs.
    let both_run = (0..6000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        threads("weft-watch") == 2
    });
    assert!(both_run);
    drop(site);
    assert!(gone_within_a_while());
}

#[test]
fn a_program_that_closes_all_descriptors_is_survived() {
    let _alone = alone();
    let (mut site, memory) = (Site::new(), Pages::new(8));
    site.exchange(&[memory.at(1)]);
    let is_watch = |fd: &i32| {
        std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|to| to.ends_with("anon_inode:[userfaultfd]"))
    };
    let fd = (0..1000).find(is_watch).unwrap();
    // Something else takes its place, so that nothing here closes a descriptor of another test.
    // SAFETY: no memory but a name that ends with 0 is passed.
    unsafe {
        let other = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        assert_eq!(libc::dup3(other, fd, libc::O_CLOEXEC), fd);
        libc::close(other);
    }
    for round in 1..4 {
        map(memory.at(1), 1, libc::PROT_READ | libc::PROT_WRITE);
        site.exchange(&[memory.at(1), memory.at(3)]);
        assert_eq!(site.stats().transient, round);
    }
}

/// Rows three pages apart in an array of 600, so many registrations as they take now.
fn regions_of_rows(site: &Site, array: &Pages) -> usize {
    let rows = crate::rows(array.address, page_bytes(), 3 * page_bytes() as i64, 200);
    // SAFETY: the array is mapped.
    unsafe { site.cache.pin(&[rows], &[], true) }.unwrap().regions().len()
}

/// Has the cache doubt all of an array, as a heap's end that was given back.
fn give_back(site: &mut Site, array: &Pages) {
    site.exchange(&[array.at(0)]);
    // SAFETY: pages of this test's own.
    assert_eq!(unsafe { libc::madvise(pointer(array.address), bytes(600), libc::MADV_DONTNEED) }, 0);
}

#[test]
fn memory_that_was_given_back_and_taken_again_is_one_registration() {
    let _alone = alone();
    let (mut site, array) = (Site::with(options(), Pinning::Pinned), Pages::new(600));
    give_back(&mut site, &array);
    // Threads of this process may be found awake, and then nothing is known of them.
    let begun = Instant::now();
    while regions_of_rows(&site, &array) != 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", site.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    site.exchange(&[array.at(100), array.at(101), array.at(599)]);
    assert_eq!(site.stats().wrong, 0);
}

#[test]
fn what_was_given_back_stays_watched_until_it_is_unmapped() {
    let _alone = alone();
    let (mut site, array) = (Site::with(options(), Pinning::Pinned), Pages::new(600));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A thread that is always awake may be giving memory back, as far as anybody knows.
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        give_back(&mut site, &array);
        let begun = Instant::now();
        while site.stats().entries > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        map(array.address, 600, libc::PROT_READ | libc::PROT_WRITE);
        let regions = regions_of_rows(&site, &array);
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(regions, 1);
    });
}
