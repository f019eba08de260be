//! What the tests share: reactors, and directories on the local disk and in memory.
#![allow(dead_code)] // Each test binary uses its part.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use weft_reactor::{Reactor, ReactorOptions};
use weft_storage::{Directory, DiskEngine, Identity, LocalDisk};

pub const IDENTITY: Identity = Identity { cluster_id: [7; 16], server_id: 2 };

/// Makes the storage of a directory, unless it has one.
pub fn formatted(directory: &TempDir) -> &Path {
    if !Directory::is_formatted(directory.path()) {
        Directory::format(directory.path(), &IDENTITY, &[5; 16]).unwrap();
    }
    directory.path()
}

pub fn plain_disk(directory: &TempDir) -> LocalDisk {
    LocalDisk::open(formatted(directory), &IDENTITY, DiskEngine::Plain).unwrap()
}

pub fn ring_disk(directory: &TempDir) -> LocalDisk {
    LocalDisk::open(formatted(directory), &IDENTITY, DiskEngine::Ring).unwrap()
}

/// A reactor without a ring.
pub fn plain_reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

/// A reactor with a ring, where the kernel allows one.
pub fn ring_reactor() -> Reactor {
    let options = ReactorOptions { ring_entries: Some(32), spin_us: 0 };
    Reactor::new(options).unwrap_or_else(|error| {
        eprintln!("going on without a ring: {error}");
        plain_reactor()
    })
}

/// A fresh directory on the disk that the build uses.
pub fn on_disk() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Fresh directories: one on disk, and one in memory where the system has `/dev/shm`.
pub fn directories() -> Vec<TempDir> {
    let memory = PathBuf::from("/dev/shm");
    let mut all = vec![on_disk()];
    if memory.is_dir() {
        all.extend(TempDir::new_in(memory).ok());
    }
    all
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
