//! Handles, windows, descriptors, and several threads at once.

mod common;

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;

use common::{on_disk, pattern, plain_disk, plain_reactor, ring_disk};
use weft_storage::limits::WINDOW_BYTES;
use weft_storage::{DataFiles, Extent, LocalDisk, MemDisk, StorageError};

fn local() -> (tempfile::TempDir, DataFiles<LocalDisk>) {
    let directory = on_disk();
    let disk = plain_disk(&directory);
    (directory, DataFiles::with_bounds(disk, 4, 2))
}

#[test]
fn handles_are_bounded_and_those_in_use_are_kept() {
    let (_directory, files) = local();
    plain_reactor().run(async {
        let kept = files.create(1000).unwrap();
        for ino in 0..50 {
            files.create(ino).unwrap().write(0, &ino.to_le_bytes()).await.unwrap();
            assert!(files.stats().open_files <= 4);
        }
        kept.write(0, b"still here").await.unwrap();
        let again = files.open(1000).unwrap().unwrap();
        assert_eq!(again.raw_fd(), kept.raw_fd(), "the same opening");
        for ino in 0..50u64 {
            let mut back = [0; 8];
            files.open(ino).unwrap().unwrap().read(0, &mut back).await.unwrap();
            assert_eq!(back, ino.to_le_bytes());
        }
    });
}

#[test]
fn only_writing_makes_a_data_file() {
    let (_directory, files) = local();
    plain_reactor().run(async {
        files.write_vectored(1, 5, &mut [IoSlice::new(&[])]).await.unwrap();
        files.truncate(1, 0).unwrap();
        files.punch(1, 0, 10).unwrap();
        files.allocate(1, 10, 0, false).unwrap();
        files.sync(1).await.unwrap();
        let mut to = [7; 4];
        assert_eq!(files.read_pieces(1, &[Extent { offset: 0, bytes: 3 }], &mut to).await.unwrap(), 0);
        assert_eq!(to, [0, 0, 0, 7]);
        assert!(!files.remove(1).unwrap());
        assert_eq!(files.list(None, 10).unwrap(), (vec![], None));
    });
}

#[test]
fn a_removed_file_is_gone_for_new_handles_only() {
    let (_directory, files) = local();
    plain_reactor().run(async {
        let old = files.create(1).unwrap();
        old.write(0, b"old").await.unwrap();
        assert!(files.remove(1).unwrap());
        assert!(files.open(1).unwrap().is_none());
        files.create(1).unwrap().write(0, b"newer").await.unwrap();
        assert_eq!((old.size().unwrap(), files.size(1).unwrap()), (3, 5));
    });
}

/// Copies between a window and this process as the server does with a client: by the kernel.
fn copy_by_kernel(read: bool, local: *mut u8, remote: *mut u8, bytes: usize) -> std::io::Result<usize> {
    let local = libc::iovec { iov_base: local.cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: remote.cast(), iov_len: bytes };
    // SAFETY: both ranges are mapped; where they are not backed, the kernel says so.
    let count = unsafe {
        if read {
            libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0)
        } else {
            libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0)
        }
    };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error())
}

fn memory_of(bytes: &mut [u8]) -> (NonNull<u8>, usize) {
    (NonNull::new(bytes.as_mut_ptr()).unwrap(), bytes.len())
}

#[test]
fn windows_show_the_file_and_survive_its_truncation() {
    let (_directory, files) = local();
    plain_reactor().run(async {
        let file = files.create(1).unwrap();
        let data = pattern(1, 10_000);
        file.write(WINDOW_BYTES - 5000, &data).await.unwrap();

        let whole = [Extent::new(WINDOW_BYTES - 5000, 10_000)];
        let pieces = file.mapped(&whole).unwrap();
        let addresses = pieces.addresses();
        let lengths: Vec<usize> = addresses.iter().map(|(_, bytes)| *bytes).collect();
        assert_eq!(lengths, [5000, 5000], "cut at the end of the window");
        let mut back = vec![0u8; 10_000];
        for ((address, bytes), back) in addresses.iter().zip(back.chunks_mut(5000)) {
            assert_eq!(copy_by_kernel(false, address.as_ptr(), back.as_mut_ptr(), *bytes).unwrap(), 5000);
        }
        assert!(back == data);
        drop(pieces);

        // By ourselves, out of the file and into it, with both sides cut differently.
        let list = [Extent::new(WINDOW_BYTES + 10, 100), Extent::new(WINDOW_BYTES - 300, 400)];
        let pieces = file.mapped(&list).unwrap();
        let (mut first, mut second) = ([0u8; 250], [0u8; 250]);
        let memory = [memory_of(&mut first), memory_of(&mut second)];
        // SAFETY: live arrays of this test's, as long as the pieces.
        assert_eq!(unsafe { pieces.copy_to(&memory) }, Ok(true));
        assert_eq!(first[..100], data[5010..5110]);
        assert_eq!(first[100..], data[4700..4850]);
        assert_eq!(second, data[4850..5100]);
        (first, second) = ([1; 250], [2; 250]);
        let memory = [memory_of(&mut first), memory_of(&mut second)];
        // SAFETY: as above.
        assert_eq!(unsafe { pieces.copy_from(&memory) }, Ok(true));
        file.read(WINDOW_BYTES - 300, &mut back[..410]).await.unwrap();
        assert_eq!(back[..150], [1; 150]);
        assert_eq!(back[150..400], [2; 250], "the second piece was written over the first");
        assert_eq!(back[400..410], [1; 10]);

        // A hole is not mapped: on tmpfs a look at it would fill it with memory. Nor is what lies beyond the end.
        assert!(file.mapped(&[Extent::new(0, 100)]).is_none());
        assert!(file.mapped(&[Extent::new(WINDOW_BYTES - 20_000, 20_000)]).is_none());
        assert!(file.mapped(&[Extent::new(WINDOW_BYTES + 5000, 8192)]).is_none());

        // Windows in use are not put out, and their number is bounded.
        file.write(10 * WINDOW_BYTES, b"x").await.unwrap();
        let far = [Extent::new(10 * WINDOW_BYTES, 1)];
        assert!(file.mapped(&far).is_none());
        drop(pieces);
        let rest = file.mapped(&[Extent::new(WINDOW_BYTES, 5000)]).unwrap();
        assert!(file.mapped(&far).is_some());
        assert_eq!(files.stats().windows, 2);

        // A cut file gives an error, not a signal; and a copy of our own is not whole.
        file.truncate(10).unwrap();
        let (address, _) = rest.addresses()[0];
        let error = copy_by_kernel(false, address.as_ptr(), back.as_mut_ptr(), 100).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        // SAFETY: a live vector, longer than the pieces.
        assert_eq!(unsafe { rest.copy_to(&[memory_of(&mut back)]) }, Ok(false));
        assert!(file.mapped(&[Extent::new(WINDOW_BYTES, 100)]).is_none());
        file.write(0, b"anew").await.unwrap();
        assert!(file.mapped(&[Extent::new(0, 4)]).is_some());

        drop(rest);
        files.shrink_idle();
        files.shrink_idle();
        assert_eq!(files.stats().windows, 0);
        file.write(0, b"x").await.unwrap();
        file.mapped(&[Extent::new(0, 1)]).unwrap();
        files.remove(1).unwrap();
        assert_eq!(files.stats().windows, 0);
    });
    assert!(DataFiles::new(MemDisk::new(100)).create(1).unwrap().mapped(&[Extent::new(0, 1)]).is_none());
}

#[test]
fn threads_share_the_data_files() {
    let directory = on_disk();
    let disk = ring_disk(&directory);
    let files = DataFiles::with_bounds(disk, 8, 2);
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let files = files.clone();
            std::thread::spawn(move || {
                common::ring_reactor().run(async {
                    for round in 0..200u64 {
                        let ino = round % 20;
                        let data = [thread as u8 + 1; 512];
                        files.write_vectored(ino, thread * 512, &mut [IoSlice::new(&data)]).await.unwrap();
                        let mut back = [0; 512];
                        let file = files.open(ino).unwrap().unwrap();
                        file.read(thread * 512, &mut back).await.unwrap();
                        assert_eq!(back, data);
                        // Everybody makes and removes this one: each handle stays consistent in itself.
                        let contended = files.create(99).unwrap();
                        contended.write(0, b"x").await.unwrap();
                        files.remove(99).unwrap();
                        if round % 50 == 0 {
                            file.sync().await.unwrap();
                        }
                    }
                })
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(files.size(99).unwrap(), 0);
    assert_eq!(files.list(None, 100).unwrap().0.len(), 20);
    assert!(files.list(None, 100).unwrap().0.iter().all(|object| object.bytes == 4 * 512));
}

#[test]
fn what_was_lost_with_a_storage_is_an_error_until_the_file_is_emptied() {
    plain_reactor().run(async {
        let files = DataFiles::new(MemDisk::new(1 << 20));
        files.write_vectored(3, 0, &mut [IoSlice::new(b"kept")]).await.unwrap();
        files.lose_below(100);
        let is_lost = |result: Result<(), StorageError>| matches!(result, Err(StorageError::Lost { ino: 7 }));
        let mut back = [1; 4];
        let read = files.read_vectored(7, 0, &mut [IoSliceMut::new(&mut back)]).await;
        assert!(is_lost(read.map(drop)) && back == [1; 4]);
        assert!(is_lost(files.read_pieces(7, &[Extent { offset: 0, bytes: 4 }], &mut back).await.map(drop)));
        assert!(is_lost(files.write_vectored(7, 0, &mut [IoSlice::new(b"new")]).await));
        assert!(is_lost(files.truncate(7, 10)) && is_lost(files.punch(7, 0, 1)));
        assert!(is_lost(files.allocate(7, 0, 1, false)) && is_lost(files.zero(7, 0, 1, false)));
        assert_eq!((files.size(7).unwrap(), files.size_if_there(7).unwrap()), (0, None));
        assert!(files.open_if_there(7).unwrap().is_none());

        // What is there is not lost, nor what is younger, nor what never had a byte.
        assert_eq!(files.size(3).unwrap(), 4);
        assert!(files.open(100).unwrap().is_none());
        files.vouch_empty(8).unwrap();
        files.write_vectored(8, 0, &mut [IoSlice::new(b"x")]).await.unwrap();
        files.vouch_empty(3).unwrap();
        assert_eq!(files.size(3).unwrap(), 4, "what is there stays");
        files.truncate(7, 0).unwrap();
        files.write_vectored(7, 0, &mut [IoSlice::new(b"again")]).await.unwrap();
        assert_eq!(files.size(7).unwrap(), 5);
        files.remove(7).unwrap();
        assert!(is_lost(files.open(7).map(drop)));
    });
}
