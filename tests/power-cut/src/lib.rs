//! A disk that knows what a power cut would leave, for tests of the metadata store, of data files and of whole clusters.
//!
//! ```text
//!   Disk        files and directories: what is durable, what is now, and the changes between the two
//!   Recorder    the disk, mounted: who is tested uses it like any other; images are taken at random moments
//!   History     what was done, and which of it was acknowledged as durable: what an image may have, and must have
//!   LocalFs     ext4 or XFS on a loop device over one file of a Disk: an image is then one of that device
//! ```
//!
//! A variable of each test says how many images it takes. Seeds are those of `weft_test_random`.

mod disk;
mod history;
mod local_fs;
mod recorder;

pub use disk::{Content, Directory, Disk, File, Image, Node, ROOT};
pub use history::{History, Shared, data_files};
pub use local_fs::{LocalFs, MountedImage, can_mount};
pub use recorder::{Cut, Recorder};

use std::path::{Path, PathBuf};
use weft_test_random::Random;

/// The number that the environment has under this name.
pub fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// A place for images: below `$WEFT_TEST_DIR`, else in memory where there is such a place.
pub fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let fallback = || if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    std::env::var_os("WEFT_TEST_DIR").map_or_else(fallback, PathBuf::from)
}

/// Bytes that no hole has.
pub fn noise(random: &mut Random, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|_| 1 + (random.next() % 255) as u8).collect()
}

/// `old` with `data` at `offset`.
pub fn written(old: &[u8], offset: u64, data: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    let end = offset as usize + data.len();
    new.resize(new.len().max(end), 0);
    new[offset as usize..end].copy_from_slice(data);
    new
}

/// `old` with zeros at `offset`, and longer where that is behind its end, unless its size is kept.
pub fn zeroed(old: &[u8], offset: u64, bytes: u64, keep_size: bool) -> Vec<u8> {
    let mut new = old.to_vec();
    let end = offset + bytes;
    if !keep_size {
        new.resize(new.len().max(end as usize), 0);
    }
    let length = new.len() as u64;
    new[offset.min(length) as usize..end.min(length) as usize].fill(0);
    new
}
