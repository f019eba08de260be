//! The buffer pool: bounds, fairness, progress, and memory given back.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use weft_buffers::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, Buffer, BufferPool, ZoneKeeper};
use weft_reactor::{Reactor, ReactorOptions, sleep, spawn, timeout, yield_now};

const MIB: usize = 1 << 20;
const ZONE: usize = BUFFER_BYTES_MAX;

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

/// What a keeper was told, checked as it is told.
#[derive(Default)]
struct Zones {
    begun: RefCell<BTreeSet<usize>>,
    begins: Cell<usize>,
}

impl ZoneKeeper for Zones {
    fn begin(&self, start: NonNull<u8>, bytes: usize) {
        assert_eq!((start.as_ptr() as usize % ZONE, bytes), (0, ZONE));
        assert!(has_memory(start, bytes));
        assert!(self.begun.borrow_mut().insert(start.as_ptr() as usize), "begun twice");
        self.begins.set(self.begins.get() + 1);
    }

    fn end(&self, start: NonNull<u8>, bytes: usize) {
        assert_eq!(bytes, ZONE);
        assert!(has_memory(start, bytes), "told too late");
        assert!(self.begun.borrow_mut().remove(&(start.as_ptr() as usize)), "ended and not begun");
    }
}

impl Zones {
    fn count(&self) -> usize {
        self.begun.borrow().len()
    }

    fn have(&self, buffer: &mut Buffer) -> bool {
        let (start, last) = (buffer.as_mut_ptr() as usize, buffer.as_mut_ptr() as usize + buffer.len() - 1);
        start / ZONE == last / ZONE && self.begun.borrow().contains(&(start / ZONE * ZONE))
    }
}

/// Whether all pages of a mapping are there.
fn has_memory(start: NonNull<u8>, bytes: usize) -> bool {
    let mut pages = vec![0u8; bytes / 4096];
    // SAFETY: asks about a live mapping; one byte is written for each page.
    assert_eq!(unsafe { libc::mincore(start.as_ptr().cast(), bytes, pages.as_mut_ptr()) }, 0);
    pages.iter().all(|page| page & 1 == 1)
}

/// A pool as it is, and one with zones.
fn pools(budget_bytes: usize) -> [BufferPool; 2] {
    let with_zones = BufferPool::new(budget_bytes).unwrap();
    with_zones.keep_zones(2, Rc::new(Zones::default()));
    [BufferPool::new(budget_bytes).unwrap(), with_zones]
}

#[test]
fn buffers_are_aligned_separate_and_come_back() {
    let pool = BufferPool::new(8 * MIB).unwrap();
    reactor().run(async {
        let mut held = Vec::new();
        let mut starts = HashSet::new();
        for n in 0..12u8 {
            let mut buffer = pool.take(u64::from(n), 100_000).await;
            assert_eq!(buffer.len(), 100_000);
            assert_eq!(buffer.as_mut_ptr() as usize % 4096, 0);
            assert!(starts.insert(buffer.as_mut_ptr()));
            buffer.fill(n);
            held.push(buffer);
        }
        for (n, buffer) in held.iter().enumerate() {
            assert!(buffer.iter().all(|byte| *byte == n as u8));
        }
        assert_eq!(pool.stats().used_bytes, 12 * 128 * 1024);
        assert_eq!(pool.stats().clients, 12);
        drop(held);
        // All halves were joined again: the largest buffers are to be had.
        let large: Vec<_> = (0..3).map(|client| pool.try_take_more(client, 3 * MIB).unwrap()).collect();
        assert!(large.iter().take(2).all(|buffer| buffer.len() == BUFFER_BYTES_MAX));
        drop(large);
        assert_eq!(pool.stats().used_bytes, 0);
        assert_eq!(pool.take(1, 0).await.len(), 1);
    });
}

#[test]
fn a_client_alone_gets_two_thirds_and_a_newcomer_finds_room() {
    for pool in pools(32 * MIB) {
        reactor().run(two_thirds_and_room(pool));
    }
}

async fn two_thirds_and_room(pool: BufferPool) {
    let mut greedy = Vec::new();
    while let Some(buffer) = pool.try_take_more(1, 2 * MIB) {
        greedy.push(buffer);
    }
    let held = pool.stats().used_bytes;
    assert!((20 * MIB..=22 * MIB).contains(&held), "{held}");
    // More and more newcomers: each gets something at once.
    let mut others = Vec::new();
    for client in 2..11 {
        let buffer = timeout(Duration::ZERO, pool.take(client, 2 * MIB)).await.unwrap();
        others.push(buffer);
    }
    assert!(others[0].len() == 2 * MIB);
    assert!(others.last().unwrap().len() < 2 * MIB);
}

#[test]
fn a_greedy_client_does_not_starve_another() {
    for pool in pools(4 * MIB) {
        reactor().run(greed_starves_nobody(pool));
    }
}

async fn greed_starves_nobody(pool: BufferPool) {
    let greedy_done = Rc::new(Cell::new(0));
    for _ in 0..500 {
        let (pool, greedy_done) = (pool.clone(), greedy_done.clone());
        spawn(async move {
            let buffer = pool.take(1, MIB).await;
            sleep(Duration::from_millis(1)).await;
            drop(buffer);
            greedy_done.set(greedy_done.get() + 1);
        });
    }
    for _ in 0..4 {
        yield_now().await;
    }
    assert!(pool.stats().waiting > 300);
    for _ in 0..20 {
        let before = greedy_done.get();
        drop(pool.take(2, MIB).await);
        assert!(greedy_done.get() - before <= 8, "served before the queue of the other");
        sleep(Duration::from_millis(1)).await;
    }
    assert!(greedy_done.get() < 500);
    while greedy_done.get() < 500 {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(pool.stats().used_bytes, 0);
}

#[test]
fn requests_that_hold_one_and_want_another_always_finish() {
    let pool = BufferPool::new(2 * MIB).unwrap();
    reactor().run(async {
        let tasks: Vec<_> = (0..300u64)
            .map(|n| {
                let pool = pool.clone();
                spawn(async move {
                    let first = pool.take(n % 5, 512 * 1024).await;
                    yield_now().await;
                    let second = pool.try_take_more(n % 5, 512 * 1024);
                    yield_now().await;
                    drop(second);
                    first.len()
                })
            })
            .collect();
        for task in tasks {
            assert!(task.await >= BUFFER_BYTES_MIN);
        }
        assert_eq!(pool.stats().waiting, 0);
        assert_eq!(pool.stats().used_bytes, 0);
    });
}

#[test]
fn waiters_of_one_client_are_served_in_order_and_may_give_up() {
    let pool = BufferPool::new(2 * MIB).unwrap();
    reactor().run(async {
        let mut held = Vec::new();
        for client in 0..32 {
            held.push(pool.take(client, 1).await);
        }
        assert!(pool.try_take_more(100, 1).is_none());
        assert!(timeout(Duration::from_millis(2), pool.take(100, 1)).await.is_err());
        assert_eq!(pool.stats().waiting, 0);
        let next = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..10)
            .map(|n| {
                let (pool, next) = (pool.clone(), next.clone());
                spawn(async move {
                    let _buffer = pool.take(100, 1).await;
                    assert_eq!(next.replace(n + 1), n);
                })
            })
            .collect();
        // One in the middle gives up with its buffer granted but not fetched.
        let mut quitter = Box::pin(pool.take(200, 1));
        assert!(timeout(Duration::from_millis(1), &mut quitter).await.is_err());
        held.pop();
        drop(quitter);
        for task in tasks {
            task.await;
        }
        assert_eq!(next.get(), 10);
        drop(held);
        assert_eq!(pool.stats().used_bytes, 0);
    });
}

/// Resident bytes of this process.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn memory_is_committed_when_used_and_given_back_when_idle() {
    let pool = BufferPool::new(64 * MIB).unwrap();
    reactor().run(async {
        assert_eq!(pool.stats().committed_bytes, 0);
        let mut held: Vec<_> = Vec::new();
        for client in 0..16 {
            let mut buffer = pool.take(client, 2 * MIB).await;
            buffer.fill(1);
            held.push(buffer);
        }
        let busy = resident_bytes();
        let committed = pool.stats().committed_bytes;
        assert!(committed >= 20 * MIB);
        pool.shrink_idle();
        pool.shrink_idle();
        assert_eq!(pool.stats().committed_bytes, committed, "buffers in use stay");
        let mut kept = held.pop().unwrap();
        drop(held);
        pool.shrink_idle();
        assert_eq!(pool.stats().committed_bytes, committed, "recently used memory stays");
        pool.shrink_idle();
        assert!(pool.stats().committed_bytes <= 2 * MIB);
        assert!(kept.iter().all(|byte| *byte == 1));
        assert!(resident_bytes() + 16 * MIB < busy);
        kept.fill(2);
    });
}

#[derive(Debug, Clone)]
enum Step {
    Take { client: u64, bytes: usize },
    GiveBack(usize),
    Idle(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..4, 1usize..3 * MIB).prop_map(|(client, bytes)| Step::Take { client, bytes }),
        5 => any::<usize>().prop_map(Step::GiveBack),
        2 => (1usize..40).prop_map(Step::Idle),
    ]
}

proptest! {
    #![proptest_config(weft_test_random::cases(100))]
    #[test]
    fn buffers_are_in_zones_that_have_begun_and_not_ended(
        steps in proptest::collection::vec(step(), 1..120),
        kept in 0usize..5,
    ) {
        let (pool, zones) = (BufferPool::new(8 * MIB).unwrap(), Rc::new(Zones::default()));
        pool.keep_zones(kept, zones.clone());
        let kept = kept.clamp(1, 4);
        prop_assert_eq!(zones.count(), kept);
        let mut held: Vec<(u8, Buffer)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Take { client, bytes } => {
                    if let Some(mut buffer) = pool.try_take_more(client, bytes) {
                        buffer.fill(number as u8);
                        held.push((number as u8, buffer));
                    }
                }
                Step::GiveBack(which) if !held.is_empty() => drop(held.swap_remove(which % held.len())),
                Step::GiveBack(_) => {}
                Step::Idle(calls) => (0..calls).for_each(|_| pool.shrink_idle()),
            }
            for (mark, buffer) in &mut held {
                prop_assert!(zones.have(buffer));
                prop_assert!(buffer.iter().step_by(1021).all(|byte| byte == mark));
            }
            prop_assert_eq!(pool.stats().committed_bytes, zones.count() * ZONE);
            prop_assert!(zones.count() >= kept);
        }
        drop(held);
        (0..40).for_each(|_| pool.shrink_idle());
        prop_assert_eq!(zones.count(), kept);
        drop(pool);
        prop_assert_eq!(zones.count(), 0);
    }
}

#[test]
fn zones_begin_when_they_are_needed_and_end_after_a_long_idleness() {
    let (pool, zones) = (BufferPool::new(16 * MIB).unwrap(), Rc::new(Zones::default()));
    pool.keep_zones(2, zones.clone());
    assert_eq!((zones.count(), pool.stats().committed_bytes), (2, 2 * ZONE));
    // Small buffers share a zone, and what is given back is used again: nothing begins.
    for _ in 0..100 {
        let several: Vec<_> = (0..8).map(|client| pool.try_take_more(client, 256 << 10).unwrap()).collect();
        drop(several);
    }
    assert_eq!(zones.begins.get(), 2);
    let whole: Vec<_> = (0..4).map(|client| pool.try_take_more(client, ZONE).unwrap()).collect();
    assert_eq!(zones.begins.get(), 4);
    (0..100).for_each(|_| pool.shrink_idle());
    drop(whole);
    (0..20).for_each(|_| pool.shrink_idle());
    assert_eq!(zones.count(), 4, "it may be needed again soon");
    (0..20).for_each(|_| pool.shrink_idle());
    assert_eq!((zones.count(), pool.stats().committed_bytes), (2, 2 * ZONE));
    let kept = pool.try_take_more(1, 1).unwrap();
    drop(pool);
    assert_eq!(zones.count(), 2, "a buffer keeps its zone");
    drop(kept);
    assert_eq!(zones.count(), 0);
}
