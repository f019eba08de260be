//! How often is registered.

use std::sync::Arc;

use weft_transport::registration::{
    ForeignMemory, PinError, Pinned, RegistrationCache, RegistrationOptions, page_bytes,
};
use weft_transport::{Allocation, BulkMemory, Lasting, Together};
use weft_verbs_double::{PretendDevice, PretendOptions};
use weft_wire::messages::MemoryRun;

use crate::memory::{Pages, map_shared, unmap};
use crate::{alone, cache, device, options, rows, runs};

fn pin(
    cache: &RegistrationCache<PretendDevice>,
    runs: &[MemoryRun],
    allocations: &[Allocation],
    write: bool,
) -> Result<Pinned<PretendDevice>, PinError> {
    // SAFETY: the tests keep their memory until they have dropped what they have pinned, and no peer uses it.
    unsafe { cache.pin(runs, allocations, write) }
}

fn not_cached() -> RegistrationOptions {
    RegistrationOptions { foreign: ForeignMemory::NotCached, ..options() }
}

#[test]
fn rows_of_one_array_are_one_registration() {
    let _alone = alone();
    let array = Pages::new(768 * 3);
    let cache = cache(options());
    let tile = [rows(array.address + 100, 3072, 3 * page_bytes() as i64, 768)];
    for hits in 0..3 {
        let pinned = pin(&cache, &tile, &[], true).unwrap();
        assert_eq!(pinned.regions().len(), 1);
        assert!(pinned.find(array.at(3) + 100, 3072).is_some());
        let stats = cache.stats();
        assert_eq!((stats.registrations, stats.hits, stats.misses), (1, hits, 1));
    }
    assert_eq!(cache.stats().registered_pages, 767 * 3 + 1);
    assert!(cache.check_if_registered(&runs(&[(array.at(7), 5)]), true).is_some(), "in a hole between rows");
    assert!(cache.check_if_registered(&runs(&[(array.at(767 * 3 + 1), 5)]), false).is_none());
}

#[test]
fn what_is_not_cached_ends_with_its_request() {
    let _alone = alone();
    let memory = Pages::new(4);
    let device = device(PretendOptions::default());
    let cache = RegistrationCache::new(device.clone(), not_cached());
    for _ in 0..3 {
        let pinned = pin(&cache, &runs(&[(memory.at(1), 5000)]), &[], true).unwrap();
        let region = pinned.regions()[0];
        assert_eq!((region.address, region.bytes), (memory.at(1), 2 * page_bytes()));
        assert_ne!(region.remote_key, 0);
    }
    let counts = weft_verbs::Device::counters(&*device).counts();
    assert_eq!((counts.registrations, counts.deregistrations), (3, 3));
    assert_eq!(cache.stats().foreign, "not cached: by choice");
    assert!(cache.check_if_registered(&runs(&[(memory.at(1), 5)]), false).is_none());
}

#[test]
fn holes_that_are_not_there_are_left_out() {
    let _alone = alone();
    let cache = cache(options());
    let memory = Pages::new(64);
    for hole in 1..=10 {
        memory.unmap(hole * 6 + 1, 1);
    }
    let pieces: Vec<_> = (0..32).map(|piece| (memory.at(piece * 2), page_bytes())).collect();
    let pinned = pin(&cache, &runs(&pieces), &[], true).unwrap();
    assert_eq!(pinned.regions().len(), 11);
    assert!(pieces.iter().all(|(address, bytes)| pinned.find(*address, *bytes).is_some()));
    let stats = cache.stats();
    assert_eq!((stats.registrations, stats.refused, stats.registered_pages), (11, 1, 63 - 10));
}

#[test]
fn a_small_group_is_registered_as_given() {
    let _alone = alone();
    let cache = cache(options());
    let memory = Pages::new(7);
    memory.unmap(1, 1);
    let pieces = runs(&[(memory.at(4), 8), (memory.at(0), 8), (memory.at(2), 8)]);
    let pinned = pin(&cache, &pieces, &[], true).unwrap();
    let addresses: Vec<_> = pinned.regions().iter().map(|region| region.address).collect();
    assert_eq!(addresses, [memory.at(0), memory.at(2), memory.at(4)]);
}

#[test]
fn memory_that_is_not_there_is_named() {
    let _alone = alone();
    let cache = cache(options());
    let memory = Pages::new(64);
    memory.unmap(50, 1);
    let mut pieces: Vec<_> = (0..32).map(|piece| (memory.at(piece * 2), 8)).collect();
    let error = pin(&cache, &runs(&pieces), &[], true).unwrap_err().to_string();
    assert!(
        error.contains(&format!("{:#x} (4096 bytes from there) is not mapped", memory.at(50))),
        "{error}"
    );
    pieces.truncate(20);
    assert!(pin(&cache, &runs(&pieces), &[], true).is_ok());
    let error = pin(&cache, &runs(&[(memory.at(49), 3 * page_bytes())]), &[], false).unwrap_err();
    assert!(matches!(error, PinError::NotMapped { address, .. } if address == memory.at(50)));
    let error = pin(&cache, &[MemoryRun { segment: 3, ..rows(0, 5, 0, 1) }], &[], false).unwrap_err();
    assert!(matches!(error, PinError::Segment(3)));
    assert!(matches!(pin(&cache, &runs(&[(u64::MAX - 1, 5)]), &[], false), Err(PinError::Overflow)));
    assert!(pin(&cache, &[], &[], true).unwrap().regions().is_empty());
}

#[test]
fn memory_that_is_only_read_may_be_read_only() {
    let _alone = alone();
    let memory = Pages::new(4);
    memory.protect(0, 2, libc::PROT_READ);
    let cache = cache(options());
    let pieces = runs(&[(memory.at(1), 2 * page_bytes())]);
    assert_eq!(pin(&cache, &pieces, &[], false).unwrap().regions().len(), 1);
    let error = pin(&cache, &pieces, &[], true).unwrap_err().to_string();
    assert!(
        error.contains(&format!("{:#x} (8192 bytes from there) is not writable", memory.at(1))),
        "{error}"
    );
    // More rights later: registered anew, and the one with fewer is of no use any more.
    memory.protect(0, 2, libc::PROT_READ | libc::PROT_WRITE);
    pin(&cache, &pieces, &[], true).unwrap();
    assert!(cache.check_if_registered(&pieces, false).is_some());
    assert_eq!((cache.stats().registrations, cache.stats().entries), (2, 1));
}

#[test]
fn allocations_are_registered_as_wholes() {
    let _alone = alone();
    let array = Pages::new(2000);
    let whole = Allocation { address: array.address, bytes: 2000 * page_bytes() };
    // Twenty pages between rows are too many to be registered for nothing, but few enough for an array.
    let pieces = [rows(array.at(3), page_bytes(), 20 * page_bytes() as i64, 90)];
    let alone = cache(options());
    assert_eq!(pin(&alone, &pieces, &[], true).unwrap().regions().len(), 90);
    let told = cache(options());
    let pinned = pin(&told, &pieces, &[whole], true).unwrap();
    assert_eq!(pinned.regions().len(), 1);
    assert_eq!(pinned.regions()[0].bytes, whole.bytes);
    let rows = [rows(array.at(5), page_bytes(), 30 * page_bytes() as i64, 60)];
    assert!(told.check_if_registered(&rows, true).is_some());
}

#[test]
fn an_allocation_saves_many_registrations_where_nothing_is_cached() {
    let _alone = alone();
    let array = Pages::new(1080);
    let whole = Allocation { address: array.address, bytes: 1080 * page_bytes() };
    let pieces = [rows(array.at(3), page_bytes(), 12 * page_bytes() as i64, 90)];
    let cache = cache(not_cached());
    assert_eq!(pin(&cache, &pieces, &[], true).unwrap().regions().len(), 90);
    assert_eq!(pin(&cache, &pieces, &[whole], true).unwrap().regions().len(), 1);
    // A few are cheaper than all of a large array.
    let few = [rows(array.at(3), page_bytes(), 12 * page_bytes() as i64, 9)];
    assert_eq!(pin(&cache, &few, &[whole], true).unwrap().regions().len(), 9);
}

#[test]
fn wrong_allocations_do_no_harm() {
    let _alone = alone();
    let array = Pages::new(400);
    array.unmap(399, 1);
    let pieces = [rows(array.at(3), page_bytes(), 20 * page_bytes() as i64, 19)];
    for allocations in [
        [Allocation { address: array.address, bytes: 400 * page_bytes() }].as_slice(),
        &[Allocation { address: 0, bytes: 1 << 40 }],
        &[
            Allocation { address: array.at(10), bytes: 100 * page_bytes() },
            Allocation { address: 5, bytes: 0 },
        ],
        &[Allocation { address: u64::MAX, bytes: u64::MAX }],
    ] {
        let cache = cache(options());
        let pinned = pin(&cache, &pieces, allocations, true).unwrap();
        for row in 0..19 {
            assert!(pinned.find(array.at(3 + 20 * row), page_bytes()).is_some(), "{allocations:?}");
        }
    }
}

#[test]
fn arenas_stay_until_they_are_removed() {
    let _alone = alone();
    let arena = Pages::new(10);
    let cache = cache(not_cached());
    // SAFETY: unmapped after the arena was removed.
    unsafe { cache.add_arena(arena.address + 10, 9 * page_bytes()) }.unwrap();
    // SAFETY: as above.
    let error = unsafe { cache.add_arena(arena.address + 10, 1) }.unwrap_err();
    assert!(matches!(error, PinError::ArenaExists(_)));
    let inside = [rows(arena.address + 10, 100, 5000, 7)];
    assert_eq!(pin(&cache, &inside, &[], true).unwrap().regions().len(), 1);
    assert!(cache.check_if_registered(&runs(&[(arena.address + 9, 2)]), true).is_none());
    assert_eq!((cache.stats().registrations, cache.stats().arenas), (1, 1));
    let held = pin(&cache, &inside, &[], false).unwrap();
    assert!(cache.remove_arena(arena.address + 10) && !cache.remove_arena(arena.address + 10));
    assert_eq!(held.regions().len(), 1, "its request goes on");
    assert!(cache.check_if_registered(&inside, false).is_none());
}

#[test]
fn arenas_may_be_read_only() {
    let _alone = alone();
    let arena = Pages::new(2);
    arena.protect(0, 2, libc::PROT_READ);
    let cache = cache(options());
    // SAFETY: unmapped after the cache is gone, which nobody uses in between.
    unsafe { cache.add_arena(arena.address, page_bytes()) }.unwrap();
    assert!(cache.check_if_registered(&runs(&[(arena.address, 5)]), false).is_some());
    assert!(cache.check_if_registered(&runs(&[(arena.address, 5)]), true).is_none());
    // SAFETY: refused.
    let error = unsafe { cache.add_arena(8, 8) }.unwrap_err();
    assert!(matches!(error, PinError::NotMapped { .. }), "{error}");
}

#[test]
fn limits_are_kept() {
    let _alone = alone();
    let memory = Pages::new(40);
    let page = |number| runs(&[(memory.at(number), 1)]);
    let few = RegistrationOptions { entries_max: 3, bytes_max: 4 * page_bytes(), ..options() };
    let cache = cache(few);
    for number in 0..4 {
        pin(&cache, &page(number * 10), &[], true).unwrap();
        assert!(pin(&cache, &page(0), &[], true).is_ok(), "used all the time");
    }
    let is_cached = |number| cache.check_if_registered(&page(number), true).is_some();
    assert_eq!([0, 10, 20, 30].map(is_cached), [true, false, true, true]);
    pin(&cache, &runs(&[(memory.at(1), 5 * page_bytes())]), &[], true).unwrap();
    assert!(!is_cached(1), "larger than all that may stay");
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.evicted, stats.transient), (3, 1, 1));
}

#[test]
fn when_the_system_has_no_room_unused_ones_make_it() {
    let _alone = alone();
    let memory = Pages::new(40);
    let device = device(PretendOptions { pinned_bytes_max: 4 * page_bytes(), ..PretendOptions::default() });
    let cache = RegistrationCache::new(device, options());
    let page = |number| runs(&[(memory.at(number), 1)]);
    let used = pin(&cache, &page(0), &[], true).unwrap();
    for number in [10, 20, 30] {
        pin(&cache, &page(number), &[], true).unwrap();
    }
    pin(&cache, &runs(&[(memory.at(2), 2 * page_bytes())]), &[], true).unwrap();
    let is_cached = |number| cache.check_if_registered(&page(number), true).is_some();
    assert_eq!([0, 10, 20, 30].map(is_cached), [true, false, false, true]);
    let error = pin(&cache, &runs(&[(memory.at(5), 4 * page_bytes())]), &[], true).unwrap_err();
    assert!(matches!(error, PinError::Limit(_)), "{error}");
    drop(used);
    assert!(pin(&cache, &runs(&[(memory.at(5), 4 * page_bytes())]), &[], true).is_ok());
}

#[test]
fn a_group_for_which_there_is_no_room_is_registered_without_its_holes() {
    let _alone = alone();
    let memory = Pages::new(40);
    let device = device(PretendOptions { pinned_bytes_max: 10 * page_bytes(), ..PretendOptions::default() });
    let cache = RegistrationCache::new(device, options());
    let pinned = pin(&cache, &[rows(memory.address, 8, 4 * page_bytes() as i64, 10)], &[], true).unwrap();
    assert_eq!(pinned.regions().len(), 10);
}

#[test]
fn shared_memory_is_registered_for_each_request() {
    let _alone = alone();
    let address = map_shared(4);
    let cache = cache(options());
    for _ in 0..2 {
        assert_eq!(pin(&cache, &runs(&[(address, 8192)]), &[], true).unwrap().regions().len(), 1);
    }
    let stats = cache.stats();
    assert_eq!((stats.registrations, stats.transient, stats.entries), (2, 2, 0));
    unmap(address, 4);
}

/// Pages of an array, three apart, each registered by a request of its own as if it were an array.
fn scattered(cache: &RegistrationCache<PretendDevice>, array: &Pages, count: u64) -> MemoryRun {
    for number in 0..count {
        pin(cache, &runs(&[(array.at(3 * number), page_bytes())]), &[], true).unwrap();
    }
    assert_eq!(cache.stats().entries, count);
    rows(array.address, page_bytes(), 3 * page_bytes() as i64, count)
}

#[test]
fn many_small_registrations_become_one_for_a_fresh_array() {
    let _alone = alone();
    let (cache, array) = (cache(options()), Pages::new(600));
    let rows = scattered(&cache, &array, 200);
    let pinned = pin(&cache, std::slice::from_ref(&rows), &[], true).unwrap();
    assert_eq!(pinned.regions().len(), 1);
    assert_eq!((cache.stats().registrations, cache.stats().entries), (201, 1), "the old ones are dropped");
    let pinned = pin(&cache, &[rows], &[], true).unwrap();
    assert_eq!((pinned.regions().len(), cache.stats().registrations), (1, 201));
}

#[test]
fn what_cannot_be_one_registration_is_not_tried_again_until_something_of_it_is_unmapped() {
    let _alone = alone();
    let (cache, array) = (cache(options()), Pages::new(600));
    array.unmap(301, 1);
    let rows = scattered(&cache, &array, 200);
    for _ in 0..3 {
        assert_eq!(pin(&cache, std::slice::from_ref(&rows), &[], true).unwrap().regions().len(), 200);
        assert_eq!((cache.stats().refused, cache.stats().registrations), (1, 200));
    }
    array.map_again(301);
    array.unmap(303, 1);
    array.map_again(303);
    assert_eq!(pin(&cache, &[rows], &[], true).unwrap().regions().len(), 1);
    assert_eq!((cache.stats().refused, cache.stats().entries), (1, 1));
}

/// A request's memory, as one of two.
fn one_of(together: &Arc<Together>, run: MemoryRun) -> BulkMemory {
    BulkMemory { together: Some(together.clone()), ..vec![run].into() }
}

#[test]
fn requests_share_one_registration_and_the_last_of_them_ends_it() {
    let _alone = alone();
    let (cache, array) = (cache(not_cached()), Pages::new(64));
    let lasting = Arc::new(Lasting::default());
    let halves = [array.at(0), array.at(4)].map(|at| rows(at, page_bytes(), 8 * page_bytes() as i64, 8));
    let pin = |memory: &BulkMemory| {
        // SAFETY: the array is there until both are dropped.
        unsafe { cache.pin_bulk(memory, true) }
    };
    let together = Arc::new(Together::new(halves.to_vec(), 1, &lasting));
    let memory = halves.clone().map(|half| one_of(&together, half));
    drop(together);
    let pinned: Vec<_> = memory.iter().map(|memory| pin(memory).unwrap()).collect();
    assert_eq!((pinned[0].regions().len(), pinned[0].regions()), (1, pinned[1].regions()));
    let counts = || weft_verbs::Device::counters(&**cache.device()).counts();
    assert_eq!((counts().registrations, counts().deregistrations), (1, 0));
    drop((memory, pinned));
    assert_eq!((counts().registrations, counts().deregistrations), (1, 1));

    // One whose memory is wrong fails by itself.
    array.unmap(60, 1);
    let together = Arc::new(Together::new(halves.to_vec(), 1, &lasting));
    let memory = halves.map(|half| one_of(&together, half));
    drop(together);
    let good = pin(&memory[0]).unwrap();
    assert!(matches!(pin(&memory[1]), Err(PinError::NotMapped { address, .. }) if address == array.at(60)));
    drop((memory, good));
    assert_eq!(counts().registrations, counts().deregistrations);
}
