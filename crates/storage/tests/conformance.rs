//! One suite over every disk.

mod common;

use std::io::{IoSlice, IoSliceMut};
use weft_test_needs::Need;

use common::{directories, on_disk, pattern, plain_disk, plain_reactor, ring_disk, ring_reactor};
use weft_reactor::Reactor;
use weft_storage::{Disk, Extent, FaultDisk, FaultPlan, MemDisk};

fn conforms<D: Disk>(reactor: &Reactor, disk: &D) {
    reactor.run(async {
        missing_files(disk);
        reads_and_writes(disk).await;
        vectors_longer_than_one_call(disk).await;
        pieces(disk).await;
        sizes(disk).await;
        holes_and_space(disk).await;
        removal(disk).await;
        listing(disk).await;
        limits(disk).await;
    });
}

fn missing_files<D: Disk>(disk: &D) {
    assert!(disk.open(1).unwrap().is_none());
    assert_eq!(disk.size_of(1).unwrap(), None);
    assert!(!disk.remove(1).unwrap());
    assert_eq!(disk.list(None, 10).unwrap(), []);
}

async fn reads_and_writes<D: Disk>(disk: &D) {
    let file = disk.create(10).unwrap();
    let data = pattern(1, 300_000);
    disk.write(&file, 0, &data).await.unwrap();
    let mut whole = vec![0; data.len()];
    assert_eq!(disk.read(&file, 0, &mut whole).await.unwrap(), data.len());
    assert!(whole == data);
    // Beyond the end there are the bytes there are.
    let mut tail = vec![9; 100];
    assert_eq!(disk.read(&file, 299_990, &mut tail).await.unwrap(), 10);
    assert_eq!(tail[..10], data[299_990..]);
    assert_eq!(tail[10..], [9; 90]);
    assert_eq!(disk.read(&file, 300_000, &mut tail).await.unwrap(), 0);
    assert_eq!(disk.read(&file, 1 << 40, &mut tail).await.unwrap(), 0);
    assert_eq!(disk.read(&file, 0, &mut []).await.unwrap(), 0);
    disk.write(&file, 5, &[]).await.unwrap();
    // Created again, it is the same file.
    let again = disk.create(10).unwrap();
    disk.write(&again, 3, b"xyz").await.unwrap();
    disk.read(&file, 0, &mut whole).await.unwrap();
    assert_eq!(whole[..8], [data[0], data[1], data[2], b'x', b'y', b'z', data[6], data[7]]);
    disk.sync(&file).await.unwrap();
    disk.sync(&file).await.unwrap();
    // A disk that is late now and then says now and then that what it has is not there yet.
    let is_resident = (0..50).any(|_| disk.resident(&file, Extent { offset: 0, bytes: 300_000 }));
    assert!(is_resident || disk.raw_fd(&file).is_some());
}

async fn vectors_longer_than_one_call<D: Disk>(disk: &D) {
    let file = disk.create(11).unwrap();
    let data = pattern(2, 5000);
    // More slices than one system call takes, some of them empty.
    let mut from: Vec<IoSlice> = Vec::new();
    for byte in data.chunks(2) {
        from.push(IoSlice::new(&[]));
        from.push(IoSlice::new(byte));
    }
    disk.write_vectored(&file, 7, &mut from).await.unwrap();
    let mut back = vec![0; 5000];
    let mut to: Vec<IoSliceMut> = Vec::new();
    for slice in back.chunks_mut(3) {
        to.push(IoSliceMut::new(slice));
        to.push(IoSliceMut::new(&mut []));
    }
    assert_eq!(disk.read_vectored(&file, 7, &mut to).await.unwrap(), 5000);
    assert!(back == data);
}

async fn pieces<D: Disk>(disk: &D) {
    let file = disk.create(12).unwrap();
    let data = pattern(3, 10_000);
    disk.write(&file, 0, &data).await.unwrap();
    let extents = [(9_000, 500), (0, 1), (9_900, 300), (50_000, 70), (4, 0), (100, 900)];
    let extents = extents.map(|(offset, bytes)| Extent { offset, bytes });
    let mut to = vec![9; 1771 + 5];
    assert_eq!(disk.read_pieces(&file, &extents, &mut to).await.unwrap(), 500 + 1 + 100 + 900);
    let expected =
        [&data[9_000..9_500], &data[..1], &data[9_900..], &[0; 270], &data[100..1000], &[9; 5]].concat();
    assert!(to == expected);
}

async fn sizes<D: Disk>(disk: &D) {
    let file = disk.create(13).unwrap();
    assert_eq!(disk.size(&file).unwrap(), 0);
    disk.write(&file, 4096, b"abc").await.unwrap();
    assert_eq!(disk.size(&file).unwrap(), 4099);
    assert_eq!(disk.size_of(13).unwrap(), Some(4099));
    disk.truncate(&file, 4097).unwrap();
    disk.truncate(&file, 9000).unwrap();
    assert_eq!(disk.size(&file).unwrap(), 9000);
    let mut back = vec![1; 10_000];
    assert_eq!(disk.read(&file, 0, &mut back).await.unwrap(), 9000);
    assert_eq!(back[4096], b'a');
    assert!(back[..4096].iter().chain(&back[4097..9000]).all(|byte| *byte == 0));
    disk.truncate(&file, 0).unwrap();
    assert_eq!(disk.size(&file).unwrap(), 0);
}

async fn holes_and_space<D: Disk>(disk: &D) {
    let file = disk.create(14).unwrap();
    let data = pattern(4, 20_000);
    disk.write(&file, 0, &data).await.unwrap();
    disk.punch(&file, 100, 15_000).unwrap();
    disk.punch(&file, 19_000, 50_000).unwrap();
    disk.punch(&file, 0, 0).unwrap();
    let mut back = vec![0; 20_000];
    assert_eq!(disk.read(&file, 0, &mut back).await.unwrap(), 20_000);
    assert!(back[..100] == data[..100] && back[15_100..19_000] == data[15_100..19_000]);
    assert!(back[100..15_100].iter().chain(&back[19_000..]).all(|byte| *byte == 0));

    disk.allocate(&file, 10_000, 40_000, true).unwrap();
    assert_eq!(disk.size(&file).unwrap(), 20_000);
    disk.allocate(&file, 10_000, 40_000, false).unwrap();
    assert_eq!(disk.size(&file).unwrap(), 50_000);
    disk.allocate(&file, 0, 10, false).unwrap();
    assert_eq!(disk.size(&file).unwrap(), 50_000);
    assert_eq!(disk.read(&file, 0, &mut back).await.unwrap(), 20_000);
    assert!(back[15_100..19_000] == data[15_100..19_000]);
    let space = disk.space().unwrap();
    assert!(space.available_bytes > 0 && space.available_bytes <= space.total_bytes);
}

async fn removal<D: Disk>(disk: &D) {
    let file = disk.create(15).unwrap();
    disk.write(&file, 0, b"old").await.unwrap();
    assert!(disk.remove(15).unwrap());
    assert!(!disk.remove(15).unwrap());
    assert!(disk.open(15).unwrap().is_none());
    let new = disk.create(15).unwrap();
    assert_eq!(disk.size(&new).unwrap(), 0);
    let mut back = [0; 3];
    assert_eq!(disk.read(&file, 0, &mut back).await.unwrap(), 3, "an open file outlives its name");
    assert_eq!(&back, b"old");
}

async fn listing<D: Disk>(disk: &D) {
    let mut expected: Vec<u64> = disk.list(None, 100).unwrap().iter().map(|object| object.ino).collect();
    for ino in (1000..1300).chain([u64::MAX, 1 << 63]) {
        let file = disk.create(ino).unwrap();
        disk.write(&file, ino % 7, b"x").await.unwrap();
        expected.push(ino);
    }
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let page = disk.list(cursor, 17).unwrap();
        if cursor.is_none() {
            // What is removed and made meanwhile does not disturb the rest.
            disk.remove(1000).unwrap();
            disk.create(5_000_000).unwrap();
        }
        for object in &page {
            if object.ino >= 1000 && object.ino < 1300 {
                assert_eq!(object.bytes, object.ino % 7 + 1);
                assert!(object.modified.elapsed().is_ok_and(|age| age.as_secs() < 3600));
            }
        }
        seen.extend(page.iter().map(|object| object.ino).filter(|ino| ![1000, 5_000_000].contains(ino)));
        match page.last().filter(|_| page.len() == 17) {
            Some(last) => cursor = Some(last.ino),
            None => break,
        }
    }
    seen.sort_unstable();
    expected.retain(|ino| *ino != 1000);
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

async fn limits<D: Disk>(disk: &D) {
    let file = disk.create(16).unwrap();
    assert!(disk.write(&file, u64::MAX - 10, &[1; 100]).await.is_err());
    assert!(disk.truncate(&file, u64::MAX).is_err());
    assert_eq!(disk.size(&file).unwrap(), 0);
}

#[test]
fn plain_disk_conforms() {
    for directory in directories() {
        conforms(&plain_reactor(), &plain_disk(&directory));
    }
}

#[test]
fn ring_disk_conforms_with_and_without_a_ring() {
    for directory in directories() {
        conforms(&ring_reactor(), &ring_disk(&directory));
    }
    let directory = on_disk();
    conforms(&plain_reactor(), &ring_disk(&directory));
}

#[test]
fn memory_disk_conforms() {
    conforms(&plain_reactor(), &MemDisk::new(1 << 30));
}

#[test]
fn fault_disk_conforms_without_faults() {
    conforms(&plain_reactor(), &FaultDisk::new(MemDisk::new(1 << 30), FaultPlan::default()));
}

#[test]
fn disks_conform_under_short_and_late_transfers() {
    for seed in weft_test_random::seeds().take(4) {
        let plan = FaultPlan {
            seed,
            short_per_mille: 400,
            delay_per_mille: 20,
            delay_ms_max: 1,
            ..FaultPlan::default()
        };
        conforms(&plain_reactor(), &FaultDisk::new(MemDisk::new(1 << 30), plan));
        let directory = on_disk();
        let disk = ring_disk(&directory);
        conforms(&ring_reactor(), &FaultDisk::new(disk, plan));
    }
}

/// Drops a file's clean pages from the page cache.
fn evict(fd: i32) {
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
}

#[test]
fn what_is_not_cached_comes_through_the_ring_in_few_calls() {
    let directory = on_disk();
    let disk = ring_disk(&directory);
    ring_reactor().run(async {
        let file = disk.create(1).unwrap();
        let data = pattern(5, 6 << 20);
        disk.write(&file, 0, &data).await.unwrap();
        disk.sync(&file).await.unwrap();
        let all = Extent { offset: 0, bytes: 6 << 20 };
        if !Need::IoUring.is_met() {
            return;
        }
        assert!(weft_reactor::ring::is_available());
        evict(disk.raw_fd(&file).unwrap());
        if disk.resident(&file, all) {
            return weft_test_needs::skip(
                "the file system of the temporary directory keeps everything in memory",
            );
        }
        let extents: Vec<Extent> =
            (0..40).map(|n| Extent { offset: (n * 37 % 40) * 150_000, bytes: 60_000 }).collect();
        let mut to = vec![0; 40 * 60_000];
        assert_eq!(disk.read_pieces(&file, &extents, &mut to).await.unwrap(), to.len());
        for (extent, part) in extents.iter().zip(to.chunks(60_000)) {
            assert!(part == &data[extent.offset as usize..][..60_000]);
        }

        evict(disk.raw_fd(&file).unwrap());
        let before = weft_reactor::stats();
        disk.fetch(&file, &extents).await;
        let after = weft_reactor::stats();
        let operations = after.ring_operations - before.ring_operations;
        let submits = after.ring_submits - before.ring_submits;
        assert!(operations > 0 && submits <= operations.div_ceil(16), "{before:?} {after:?}");

        disk.fetch(&file, &[all]).await;
        assert!(disk.resident(&file, all));
        assert!(disk.resident(&file, Extent { offset: 0, bytes: 1 << 40 }), "as far as the file goes");
        evict(disk.raw_fd(&file).unwrap());
        let mut whole = vec![0; data.len() + 100];
        assert_eq!(disk.read(&file, 0, &mut whole).await.unwrap(), data.len());
        assert!(whole[..data.len()] == data);

        // A task that goes away in the middle leaves nothing behind.
        evict(disk.raw_fd(&file).unwrap());
        let mut gone = vec![0; 1 << 20];
        let read = disk.read(&file, 0, &mut gone);
        let _ = weft_reactor::timeout(std::time::Duration::ZERO, read).await;
    });
}
