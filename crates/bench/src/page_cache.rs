//! Puts memory and the page cache into the state that a measurement needs.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const TMPFS_MAGIC: i64 = 0x0102_1994;
const SYS_CACHESTAT: libc::c_long = 451;
const PAGE_BYTES: u64 = 4096;

/// Writes this many bytes to a new file of the directory and removes it, so that the next write finds memory
/// that the machine has available. A virtual machine gets memory that it has not used for some time from its
/// host page by page. First writes to tmpfs are then ten times slower (250 to 370 MB/s; 2.8 to 3.1 GB/s into
/// memory that was just freed; 570 to 690 MB/s eight seconds later).
pub fn warm_memory(dir: &Path, bytes: u64) -> Result<()> {
    let path = dir.join("warm-up");
    let mut file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let zeros = vec![0; 1 << 20];
    let mut left = bytes;
    let mut written = Ok(());
    while left > 0 && written.is_ok() {
        let part = left.min(zeros.len() as u64);
        written = file.write_all(&zeros[..part as usize]);
        left -= part;
    }
    std::fs::remove_file(&path)?;
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Whether the files of a directory are in memory only.
pub fn is_memory(dir: &Path) -> Result<bool> {
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
    let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `path` is a C string. `about` has room for the result, which is read only on success.
    let about = unsafe {
        if libc::statfs(path.as_ptr(), about.as_mut_ptr()) != 0 {
            return Err(std::io::Error::last_os_error()).with_context(|| dir.display().to_string());
        }
        about.assume_init()
    };
    Ok(about.f_type as i64 == TMPFS_MAGIC)
}

/// Makes the data files of the cluster in `dir` durable and drops them from the page cache. Returns the bytes
/// that remain cached.
pub fn drop_data_files(dir: &Path) -> Result<u64> {
    let mut left = 0;
    for path in data_files(dir)? {
        // The servers may be removing files of an earlier access.
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            file => file.with_context(|| format!("cannot open {}", path.display()))?,
        };
        file.sync_data()?;
        // SAFETY: the call takes integers only.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        left += cached_bytes(&file);
    }
    Ok(left)
}

/// Files below the directories named `data` that are below `dir`.
fn data_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut dirs = vec![(dir.to_owned(), false)];
    while let Some((dir, is_data)) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let entry = entry?;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                dirs.push((entry.path(), is_data || entry.file_name() == "data"));
            } else if kind.is_file() && is_data {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Bytes of a file in the page cache; 0 if the kernel does not report it (before Linux 6.5).
fn cached_bytes(file: &File) -> u64 {
    let range = [0u64; 2];
    let mut pages = [0u64; 5];
    // SAFETY: both are live and as large as the call's structures.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0) };
    if result == 0 { pages[0] * PAGE_BYTES } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_files_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("io0/data/00");
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("1"), [1; 100_000]).unwrap();
        std::fs::write(dir.path().join("io0/log"), "log").unwrap();
        assert_eq!(data_files(dir.path()).unwrap(), [data.join("1")]);
        let left = drop_data_files(dir.path()).unwrap();
        assert!(left == 0 || is_memory(dir.path()).unwrap(), "{left} bytes are cached still");
        warm_memory(dir.path(), 3 << 20).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
