//! Descriptors and the ring.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_test_needs::Need;

use io_uring::{opcode, types};
use weft_reactor::{
    Elapsed, Interest, Reactor, ReactorOptions, ReactorStats, Readiness, ring, sleep, spawn, stats, timeout,
    yield_now,
};

const MS: Duration = Duration::from_millis(1);

fn pair() -> (UnixStream, UnixStream) {
    let (left, right) = UnixStream::pair().unwrap();
    left.set_nonblocking(true).unwrap();
    right.set_nonblocking(true).unwrap();
    (left, right)
}

/// A reactor with a ring, or `None` where the kernel does not allow one: then the error must say so.
fn ring_reactor(entries: u32) -> Option<Reactor> {
    let reactor = Reactor::new(ReactorOptions { ring_entries: Some(entries), spin_us: 0 });
    if Need::IoUring.is_met() {
        return Some(reactor.expect("the kernel offers it"));
    }
    let error = reactor.err().expect("the kernel does not offer it");
    assert!(error.to_string().contains("io_uring cannot be used here"), "{error}");
    None
}

#[test]
fn a_reader_and_a_writer_share_a_descriptor() {
    const TOTAL: usize = 8 << 20;
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        let (near, far) = pair();
        let near = Rc::new((Readiness::new(&near).unwrap(), near));
        let far = Rc::new((Readiness::new(&far).unwrap(), far));
        // Both ends send and receive at once, through buffers far smaller than the total.
        let mut tasks = Vec::new();
        for end in [&near, &far] {
            let writer = end.clone();
            tasks.push(spawn(async move {
                let block = [7u8; 64 << 10];
                let mut sent = 0;
                while sent < TOTAL {
                    let want = block.len().min(TOTAL - sent);
                    sent += writer.0.io(Interest::Write, || (&writer.1).write(&block[..want])).await.unwrap();
                }
                sent
            }));
            let reader = end.clone();
            tasks.push(spawn(async move {
                let mut block = vec![0u8; 48 << 10];
                let mut received = 0;
                while received < TOTAL {
                    let count = reader.0.io(Interest::Read, || (&reader.1).read(&mut block)).await.unwrap();
                    assert!(block[..count].iter().all(|byte| *byte == 7));
                    received += count;
                }
                received
            }));
        }
        for task in tasks {
            assert_eq!(task.await, TOTAL);
        }
    });
}

#[test]
fn several_tasks_wait_for_one_descriptor_and_closing_wakes_them() {
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        let (near, far) = pair();
        let near = Rc::new((Readiness::new(&near).unwrap(), near));
        let ended = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (near, ended) = (near.clone(), ended.clone());
            spawn(async move {
                let count = near.0.io(Interest::Read, || (&near.1).read(&mut [0u8; 8])).await.unwrap();
                assert_eq!(count, 0);
                ended.set(ended.get() + 1);
            });
        }
        let give_up = timeout(2 * MS, near.0.io(Interest::Read, || (&near.1).read(&mut [0u8; 8]))).await;
        assert_eq!(give_up.unwrap_err(), Elapsed);
        assert_eq!(ended.get(), 0);
        drop(far);
        while ended.get() < 3 {
            sleep(MS).await;
        }
        near.0.writable().await;
        near.0.readable().await;
    });
}

const MESSAGES: u64 = 200;

/// Gets messages from a peer that sends one once the one before was answered, and pauses after each. Returns what happened meanwhile.
async fn answer_messages(pause: Duration, limit: Duration) -> (ReactorStats, ReactorStats) {
    let (near, far) = pair();
    let near = (Readiness::new(&near).unwrap(), near);
    far.set_nonblocking(false).unwrap();
    let peer = std::thread::spawn(move || {
        for _ in 0..MESSAGES {
            (&far).write_all(&[1; 64]).unwrap();
            (&far).read_exact(&mut [0; 64]).unwrap();
            std::thread::sleep(pause);
        }
    });
    let before = stats();
    for _ in 0..MESSAGES {
        let message = near.0.io(Interest::Read, || (&near.1).read(&mut [0; 64]));
        assert_eq!(timeout(limit, message).await.unwrap().unwrap(), 64);
        near.0.clear(Interest::Read);
        near.0.io(Interest::Write, || (&near.1).write(&[2; 64])).await.unwrap();
    }
    let after = stats();
    peer.join().unwrap();
    (before, after)
}

#[test]
fn a_peer_that_reads_what_was_sent_wakes_nobody() {
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        // Long enough for a reactor to be asleep again that was woken for nothing.
        let (before, after) = answer_messages(MS, 3600 * 1000 * MS).await;
        let sleeps = after.sleeps - before.sleeps;
        assert!(sleeps <= MESSAGES + MESSAGES / 2, "{sleeps} wake-ups for {MESSAGES} messages");
    });
}

#[test]
fn sleeps_with_limits_of_time_that_something_else_ends_set_the_timer_of_the_kernel_once() {
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        let (before, after) = answer_messages(Duration::ZERO, 60 * 1000 * MS).await;
        let (sleeps, alarms) = (after.sleeps - before.sleeps, after.alarms - before.alarms);
        assert!(sleeps > 2 && alarms <= 1, "{alarms} for {sleeps} sleeps");
    });
}

#[test]
fn a_descriptor_can_be_registered_again_after_drop() {
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        let (near, mut far) = pair();
        drop(Readiness::new(&near).unwrap());
        let again = Readiness::new(&near).unwrap();
        assert!(Readiness::new(&near).is_err(), "registered twice");
        again.clear(Interest::Read);
        far.write_all(b"x").unwrap();
        timeout(1000 * MS, again.readable()).await.unwrap();
        let file = tempfile::tempfile().unwrap();
        assert!(Readiness::new(&file).is_err(), "regular files cannot be waited for");
    });
}

fn read_entry(file: &File, buffer: &mut [u8], offset: u64) -> ring::Entry {
    opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32)
        .offset(offset)
        .build()
}

#[test]
fn the_ring_takes_more_operations_than_it_has_entries() {
    let Some(reactor) = ring_reactor(8) else { return };
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&(0..=255u8).cycle().take(1000).collect::<Vec<u8>>()).unwrap();
    let file = Rc::new(file);
    reactor.run(async {
        assert!(ring::is_available());
        let before = stats();
        let tasks: Vec<_> = (0..1000u64)
            .map(|offset| {
                let file = file.clone();
                spawn(async move {
                    let mut buffer = vec![0u8; 1];
                    let entry = read_entry(&file, &mut buffer, offset);
                    let buffer = Rc::new(buffer);
                    // SAFETY: the keepalive owns the buffer's heap memory and the file; both are only
                    // looked at after the completion.
                    let result = unsafe { ring::submit(entry, (buffer.clone(), file)) }.await;
                    assert_eq!(result, 1);
                    buffer[0]
                })
            })
            .collect();
        for (offset, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await, offset as u8);
        }
        let after = stats();
        assert_eq!(after.ring_operations - before.ring_operations, 1000);
        assert!(after.ring_submits - before.ring_submits <= 300, "{after:?}");
    });
}

#[test]
fn memory_of_a_dropped_read_lives_until_its_completion() {
    let Some(reactor) = ring_reactor(8) else { return };
    let alive = Rc::new(());
    let (reading, mut writing) = pair();
    let reading = Rc::new(File::from(std::os::fd::OwnedFd::from(reading)));
    reactor.run(async {
        // A read of an empty pipe-like descriptor stays in the kernel until there is data.
        reading_flags_blocking(&reading);
        let mut buffer = vec![0u8; 4096];
        let entry = read_entry(&reading, &mut buffer, 0);
        let keepalive = (buffer, reading.clone(), alive.clone());
        // SAFETY: the keepalive owns the memory and the descriptor.
        let read = unsafe { ring::submit(entry, keepalive) };
        assert!(timeout(2 * MS, read).await.is_err());
        assert_eq!(Rc::strong_count(&alive), 2, "the kernel still owns the buffer");
        writing.write_all(b"late").unwrap();
        while Rc::strong_count(&alive) > 1 {
            sleep(MS).await;
        }
    });
}

fn reading_flags_blocking(file: &File) {
    // SAFETY: sets the status flags of a descriptor that is open.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) }, 0);
}

#[test]
fn dropping_the_reactor_ends_operations_in_flight_and_frees_their_memory() {
    let Some(reactor) = ring_reactor(8) else { return };
    let alive = Rc::new(());
    let begin = Instant::now();
    reactor.run(async {
        for _ in 0..20 {
            let alive = alive.clone();
            spawn(async move {
                let time = Box::new(types::Timespec::new().sec(3600));
                let entry = opcode::Timeout::new(&*time).build();
                // SAFETY: the keepalive owns the timespec.
                unsafe { ring::submit(entry, (time, alive)) }.await
            });
        }
        yield_now().await;
        sleep(MS).await;
    });
    assert_eq!(Rc::strong_count(&alive), 21);
    drop(reactor);
    assert_eq!(Rc::strong_count(&alive), 1);
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn without_a_ring_operations_say_so() {
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        assert!(!ring::is_available());
        // SAFETY: a no-op refers to no memory.
        assert_eq!(unsafe { ring::submit(opcode::Nop::new().build(), ()) }.await, -libc::ENOSYS);
    });
    assert!(!ring::is_available());
}

#[test]
fn a_ring_that_cannot_be_had_is_explained() {
    let result = Reactor::new(ReactorOptions { ring_entries: Some(u32::MAX), spin_us: 0 });
    let message = result.err().expect("no kernel makes a ring that large").to_string();
    assert!(message.contains("make the reactor without a ring and use the plain disk"), "{message}");
}
