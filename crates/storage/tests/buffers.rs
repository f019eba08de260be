//! The buffer pool: bounds, fairness, progress, and memory given back.

mod common;

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use common::plain_reactor;
use weft_reactor::{sleep, spawn, timeout, yield_now};
use weft_storage::BufferPool;
use weft_storage::limits::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN};

const MIB: usize = 1 << 20;

#[test]
fn buffers_are_aligned_separate_and_come_back() {
    let pool = BufferPool::new(8 * MIB).unwrap();
    plain_reactor().run(async {
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
    let pool = BufferPool::new(32 * MIB).unwrap();
    plain_reactor().run(async {
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
    });
}

#[test]
fn a_greedy_client_does_not_starve_another() {
    let pool = BufferPool::new(4 * MIB).unwrap();
    plain_reactor().run(async {
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
    });
}

#[test]
fn requests_that_hold_one_and_want_another_always_finish() {
    let pool = BufferPool::new(2 * MIB).unwrap();
    plain_reactor().run(async {
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
    plain_reactor().run(async {
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
    plain_reactor().run(async {
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
