//! Handles, windows, descriptors, and several threads at once.

mod common;

use std::io::IoSlice;

use common::{IDENTITY, on_disk, pattern, plain_reactor};
use weft_storage::limits::WINDOW_BYTES;
use weft_storage::{DataFiles, Extent, MemDisk, PlainDisk, RingDisk};

fn local() -> (tempfile::TempDir, DataFiles<PlainDisk>) {
    let directory = on_disk();
    let disk = PlainDisk::open(directory.path(), &IDENTITY).unwrap();
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

#[test]
fn windows_show_the_file_and_survive_its_truncation() {
    let (_directory, files) = local();
    plain_reactor().run(async {
        let file = files.create(1).unwrap();
        let data = pattern(1, 10_000);
        file.write(WINDOW_BYTES - 5000, &data).await.unwrap();

        let window = file.map(WINDOW_BYTES - 5000, 10_000).unwrap();
        assert_eq!(window.bytes(), 5000, "up to the end of the window");
        let rest = file.map(WINDOW_BYTES, 5000).unwrap();
        assert_eq!(rest.bytes(), 5000);
        let mut back = vec![0u8; 10_000];
        assert_eq!(copy_by_kernel(false, window.as_ptr(), back.as_mut_ptr(), 5000).unwrap(), 5000);
        assert_eq!(copy_by_kernel(false, rest.as_ptr(), back[5000..].as_mut_ptr(), 5000).unwrap(), 5000);
        assert!(back == data);

        // Into the file as well.
        let mut new = pattern(2, 100);
        assert_eq!(copy_by_kernel(true, rest.as_ptr(), new.as_mut_ptr(), 100).unwrap(), 100);
        file.read(WINDOW_BYTES, &mut back[..100]).await.unwrap();
        assert!(back[..100] == new);

        // Beyond the end only after the file has grown there.
        // SAFETY: within the window's mapping, which is 64 MiB long.
        let beyond = unsafe { rest.as_ptr().add(1 << 20) };
        assert!(copy_by_kernel(true, beyond, new.as_mut_ptr(), 100).is_err());
        file.grow_to(WINDOW_BYTES + (1 << 20) + 100).unwrap();
        file.grow_to(5).unwrap();
        assert_eq!(copy_by_kernel(true, beyond, new.as_mut_ptr(), 100).unwrap(), 100);
        assert_eq!(file.size().unwrap(), WINDOW_BYTES + (1 << 20) + 100);
        file.read(WINDOW_BYTES + (1 << 20), &mut back[..100]).await.unwrap();
        assert!(back[..100] == new);

        // A hole is not mapped: on tmpfs a look at it would fill it with memory.
        assert!(file.map(0, 100).is_none());
        assert!(file.map(WINDOW_BYTES - 20_000, 20_000).is_none());

        // Windows in use are not put out, and their number is bounded.
        file.write(10 * WINDOW_BYTES, b"x").await.unwrap();
        assert!(file.map(10 * WINDOW_BYTES, 1).is_none());
        drop(window);
        assert!(file.map(10 * WINDOW_BYTES, 1).is_some());
        assert_eq!(files.stats().windows, 2);

        // A cut file gives an error, not a signal.
        file.truncate(10).unwrap();
        let error = copy_by_kernel(false, rest.as_ptr(), back.as_mut_ptr(), 100).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));

        drop(rest);
        files.shrink_idle();
        files.shrink_idle();
        assert_eq!(files.stats().windows, 0);
        file.write(0, b"x").await.unwrap();
        file.map(0, 1).unwrap();
        files.remove(1).unwrap();
        assert_eq!(files.stats().windows, 0);
    });
    assert!(DataFiles::new(MemDisk::new(100)).create(1).unwrap().map(0, 1).is_none());
}

#[test]
fn threads_share_the_data_files() {
    let directory = on_disk();
    let disk = RingDisk::open(directory.path(), &IDENTITY).unwrap();
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
