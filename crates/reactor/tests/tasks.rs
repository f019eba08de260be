//! Tasks, wakes, timers and the things tasks wait for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use weft_reactor::{
    Elapsed, Event, LocalLock, Notify, Reactor, ReactorOptions, Semaphore, SendError, mailbox, sleep, spawn,
    stats, timeout, yield_now,
};

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn thousands_of_tasks_all_run() {
    let sum = Rc::new(Cell::new(0u64));
    reactor().run(async {
        let handles: Vec<_> = (0..20_000u64)
            .map(|n| {
                let sum = sum.clone();
                spawn(async move {
                    for _ in 0..n % 4 {
                        yield_now().await;
                    }
                    sum.set(sum.get() + n);
                    n
                })
            })
            .collect();
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.await, n as u64);
        }
    });
    assert_eq!(sum.get(), 19_999 * 20_000 / 2);
}

#[test]
fn a_detached_task_goes_on_and_a_cancelled_one_is_dropped() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    struct OnDrop(Rc<RefCell<Vec<&'static str>>>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.borrow_mut().push("dropped");
        }
    }
    reactor().run(async {
        let list = seen.clone();
        drop(spawn(async move {
            yield_now().await;
            list.borrow_mut().push("detached ran");
        }));
        let guard = OnDrop(seen.clone());
        let handle = spawn(async move {
            let _guard = guard;
            sleep(Duration::from_secs(3600)).await;
        });
        yield_now().await;
        assert!(!handle.is_finished());
        handle.cancel();
        sleep(MS).await;
        seen.borrow_mut().sort();
        assert_eq!(*seen.borrow(), ["detached ran", "dropped"]);
    });
}

#[test]
fn dropping_the_reactor_drops_its_tasks_and_what_they_spawn_meanwhile() {
    let live = Rc::new(());
    let reactor = reactor();
    struct SpawnOnDrop(Rc<()>);
    impl Drop for SpawnOnDrop {
        fn drop(&mut self) {
            let held = self.0.clone();
            spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            });
        }
    }
    reactor.run(async {
        for _ in 0..10 {
            let held = SpawnOnDrop(live.clone());
            spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            });
        }
        yield_now().await;
    });
    assert_eq!(Rc::strong_count(&live), 11);
    drop(reactor);
    assert_eq!(Rc::strong_count(&live), 1);
}

#[test]
fn tasks_survive_from_one_run_to_the_next() {
    let reactor = reactor();
    let mut handle = None;
    reactor.run(async {
        handle = Some(spawn(async {
            sleep(2 * MS).await;
            7
        }));
    });
    assert_eq!(reactor.run(handle.unwrap()), 7);
}

#[test]
#[should_panic(expected = "in the task")]
fn a_panic_in_a_task_unwinds_out_of_run() {
    reactor().run(async {
        let task = async { panic!("in the task") };
        spawn(task);
        std::future::pending::<()>().await;
    });
}

#[test]
fn timers_fire_in_order_and_never_early() {
    let order = Rc::new(RefCell::new(Vec::new()));
    reactor().run(async {
        let begin = Instant::now();
        let handles: Vec<_> = [12u32, 3, 9, 3, 6, 1]
            .into_iter()
            .enumerate()
            .map(|(index, delay_ms)| {
                let order = order.clone();
                spawn(async move {
                    sleep(delay_ms * MS).await;
                    assert!(begin.elapsed() >= delay_ms * MS);
                    order.borrow_mut().push((delay_ms, index));
                })
            })
            .collect();
        for handle in handles {
            handle.await;
        }
    });
    assert_eq!(*order.borrow(), [(1, 5), (3, 1), (3, 3), (6, 4), (9, 2), (12, 0)]);
}

#[test]
fn timeout_gives_the_output_or_elapsed_and_unfired_ones_cost_nothing() {
    reactor().run(async {
        assert_eq!(timeout(Duration::from_secs(60), async { 5 }).await, Ok(5));
        assert_eq!(timeout(MS, std::future::pending::<()>()).await, Err(Elapsed));
        for _ in 0..10_000 {
            let quick = yield_now();
            assert_eq!(timeout(Duration::from_secs(60), quick).await, Ok(()));
        }
        // Only live timers count towards the next sleep.
        let begin = Instant::now();
        sleep(2 * MS).await;
        assert!(begin.elapsed() < Duration::from_secs(10));
    });
}

#[test]
fn a_timer_that_comes_before_the_others_fires_in_time_and_one_that_is_dropped_delays_none() {
    reactor().run(async {
        let begin = Instant::now();
        let far = spawn(sleep(Duration::from_secs(3600)));
        sleep(5 * MS).await;
        let dropped = spawn(sleep(20 * MS));
        sleep(MS).await;
        dropped.cancel();
        sleep(40 * MS).await;
        assert!(begin.elapsed() < Duration::from_secs(60));
        far.cancel();
    });
}

#[test]
fn an_idle_reactor_sleeps_in_one_call() {
    reactor().run(async {
        let before = stats();
        sleep(50 * MS).await;
        let after = stats();
        assert!(after.sleeps - before.sleeps <= 3, "{before:?} {after:?}");
        assert!(after.looks - before.looks <= 3, "{before:?} {after:?}");
    });
}

#[test]
fn a_spinning_reactor_looks_before_it_sleeps() {
    let reactor = Reactor::new(ReactorOptions { ring_entries: None, spin_us: 2000 }).unwrap();
    reactor.run(async {
        let before = stats();
        sleep(20 * MS).await;
        let after = stats();
        assert!(after.looks - before.looks > 3, "{before:?} {after:?}");
        // A busy machine may leave it no time to sleep in the first 20 ms.
        let begun = std::time::Instant::now();
        while stats().sleeps == before.sleeps {
            assert!(begun.elapsed() < 10_000 * MS, "it spins and never sleeps");
            sleep(20 * MS).await;
        }
    });
}

#[test]
fn messages_arrive_from_other_threads_in_order() {
    let (sender, mut messages) = mailbox::<(usize, u32)>(64);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for n in 0..2_000 {
                    let mut message = (thread, n);
                    while let Err(SendError::Full(back)) = sender.send(message) {
                        message = back;
                        std::thread::yield_now();
                    }
                    // Now and then let the reactor fall asleep.
                    if n % 500 == 0 {
                        std::thread::sleep(2 * MS);
                    }
                }
            })
        })
        .collect();
    drop(sender);
    let mut next = [0u32; 4];
    reactor().run(async {
        while let Some((thread, n)) = messages.receive().await {
            assert_eq!(n, next[thread]);
            next[thread] += 1;
        }
    });
    assert_eq!(next, [2_000; 4]);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn two_reactors_play_ping_pong() {
    let (to_far, mut far_messages) = mailbox::<u32>(1);
    let (to_near, mut near_messages) = mailbox::<u32>(1);
    let far = std::thread::spawn(move || {
        reactor().run(async move {
            let task = spawn(async move {
                while let Some(n) = far_messages.receive().await {
                    to_near.send(n + 1).unwrap();
                }
            });
            task.await;
        });
    });
    reactor().run(async move {
        for n in 0..2_000 {
            to_far.send(n).unwrap();
            assert_eq!(near_messages.receive().await, Some(n + 1));
        }
    });
    far.join().unwrap();
}

#[test]
fn a_mailbox_refuses_when_full_or_closed() {
    let (sender, mut messages) = mailbox(2);
    assert_eq!(sender.send(1), Ok(()));
    assert_eq!(sender.send(2), Ok(()));
    assert_eq!(sender.send(3), Err(SendError::Full(3)));
    assert_eq!(messages.try_receive(), Some(1));
    drop(messages);
    assert!(sender.is_closed());
    assert_eq!(sender.send(4), Err(SendError::Closed(4)));
}

#[test]
fn wakes_race_with_the_end_of_a_reactor() {
    for _ in 0..50 {
        let (sender, mut messages) = mailbox::<u32>(1_000_000);
        let thread = std::thread::spawn(move || while sender.send(1).is_ok() {});
        let reactor = reactor();
        reactor.run(async move {
            spawn(async move { while messages.receive().await.is_some() {} });
            yield_now().await;
            yield_now().await;
        });
        drop(reactor);
        thread.join().unwrap();
    }
}

#[test]
fn an_event_wakes_all_and_a_notice_wakes_one() {
    reactor().run(async {
        let event = Rc::new(Event::new());
        let notify = Rc::new(Notify::new());
        let woken = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (event, notify, woken) = (event.clone(), notify.clone(), woken.clone());
            spawn(async move {
                event.wait().await;
                notify.notified().await;
                woken.set(woken.get() + 1);
            });
        }
        yield_now().await;
        event.set();
        assert!(event.is_set());
        sleep(MS).await;
        assert_eq!(woken.get(), 0);
        notify.notify();
        sleep(MS).await;
        assert_eq!(woken.get(), 1);
        notify.notify();
        sleep(MS).await;
        notify.notify();
        sleep(MS).await;
        assert_eq!(woken.get(), 3);
        notify.notify();
        notify.notify();
        notify.notified().await;
        assert_eq!(timeout(MS, notify.notified()).await, Err(Elapsed));
    });
}

#[test]
fn the_lock_is_fair() {
    reactor().run(async {
        let lock = Rc::new(LocalLock::new(Vec::new()));
        let held = lock.lock().await;
        let handles: Vec<_> = (0..50)
            .map(|n| {
                let lock = lock.clone();
                spawn(async move {
                    for round in 0..3 {
                        let mut list = lock.lock().await;
                        yield_now().await;
                        list.push((round, n));
                    }
                })
            })
            .collect();
        yield_now().await;
        assert_eq!(lock.waiting(), 50);
        assert!(lock.try_lock().is_none());
        drop(held);
        for handle in handles {
            handle.await;
        }
        let expected: Vec<_> = (0..3).flat_map(|round| (0..50).map(move |n| (round, n))).collect();
        assert_eq!(Rc::into_inner(lock).unwrap().into_inner(), expected);
    });
}

#[test]
fn a_dropped_waiter_lets_the_others_pass() {
    reactor().run(async {
        let semaphore = Semaphore::new(2);
        let all = semaphore.try_acquire(2).unwrap();
        // Waits for more than comes free at first, then gives up: those behind it must go on.
        let big = spawn({
            let semaphore = semaphore.clone();
            async move { timeout(5 * MS, semaphore.acquire(3)).await.is_err() }
        });
        yield_now().await;
        let small = spawn({
            let semaphore = semaphore.clone();
            async move { drop(semaphore.acquire(1).await) }
        });
        yield_now().await;
        drop(all);
        assert_eq!(semaphore.waiting(), 2);
        assert!(semaphore.try_acquire(1).is_none(), "nobody overtakes");
        assert!(big.await);
        small.await;
        assert_eq!((semaphore.available(), semaphore.waiting()), (2, 0));

        // A grant that arrives at a future which is dropped before it sees it is passed on.
        let held = semaphore.try_acquire(2).unwrap();
        let mut first = Box::pin(semaphore.acquire(1));
        std::future::poll_fn(|cx| {
            assert!(first.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(held);
        drop(first);
        assert_eq!(semaphore.available(), 2);
    });
}
