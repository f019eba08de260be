//! Finds the process of a server, whoever started it: the one that holds the lock in the server's directory.
//!
//! The kernel's table of locks names the holder. This module does not try to take the lock: a server that
//! starts at the same moment could fail.

use super::process::{ProcessHandle, ProcessId};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const TABLE: &str = "/proc/locks";
/// The kernel returns the table page by page, and an entry can move from one page to another between two
/// reads. So it is read this often.
const LOOKS: usize = 3;

/// A file as named in the table.
#[derive(Debug, Clone, Copy)]
struct LockFile {
    device: (u32, u32),
    ino: u64,
}

/// The process that holds the lock of this file, if there is one.
///
/// # Errors
/// The file or the table cannot be read, so nothing is known.
pub fn holder_of(lock_file: &Path) -> io::Result<Option<(ProcessId, ProcessHandle)>> {
    let metadata = match fs::metadata(lock_file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata?,
    };
    let device = metadata.dev();
    let file = LockFile { device: (libc::major(device), libc::minor(device)), ino: metadata.ino() };
    let noted = fs::read_to_string(lock_file).ok().and_then(|text| text.trim().parse().ok());
    for _ in 0..LOOKS {
        for pid in holders(&fs::read_to_string(TABLE)?, file, noted) {
            let Some((id, handle)) = ProcessId::of(pid).and_then(|id| Some((id, id.handle()?))) else {
                continue;
            };
            // Only a process that still holds the lock is certain to be the one of the handle.
            if holders(&fs::read_to_string(TABLE)?, file, noted).contains(&pid) {
                return Ok(Some((id, handle)));
            }
        }
        if noted.and_then(ProcessHandle::open).is_none() {
            break;
        }
    }
    Ok(None)
}

/// Processes that hold a flock(2) of this file, from lines such as `1: FLOCK  ADVISORY  WRITE 3303 00:1b:1234
/// 0 EOF`. Some file systems (btrfs) show another device there than stat(2); then the process must also be
/// the one that the lock file names.
fn holders(table: &str, file: LockFile, noted: Option<u32>) -> Vec<u32> {
    let holder = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        if words.next() != Some("FLOCK") {
            return None;
        }
        let pid: u32 = words.nth(2)?.parse().ok()?;
        let mut place = words.next()?.split(':');
        let major = u32::from_str_radix(place.next()?, 16).ok()?;
        let minor = u32::from_str_radix(place.next()?, 16).ok()?;
        let ino: u64 = place.next()?.parse().ok()?;
        let is_meant = ino == file.ino && ((major, minor) == file.device || noted == Some(pid));
        is_meant.then_some(pid)
    };
    table.lines().filter_map(holder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_in_the_table() {
        let table = "1: FLOCK  ADVISORY  WRITE 3303 00:1b:1234 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 99 00:1b:1234 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 7 00:1b:1234 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 8 00:1c:1234 0 EOF\n\
                     4: OFDLCK ADVISORY  READ -1 00:1b:1234 0 0\n";
        let file = LockFile { device: (0, 0x1b), ino: 1234 };
        assert_eq!(holders(table, file, None), [3303]);
        assert_eq!(holders(table, file, Some(8)), [3303, 8]);
        assert!(holders(table, LockFile { ino: 1, ..file }, Some(8)).is_empty());
    }

    #[test]
    fn a_lock_of_this_process_is_its_own_and_a_free_one_nobody_s() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(holder_of(&path).unwrap().is_none());
        let file = fs::File::create(&path).unwrap();
        assert!(holder_of(&path).unwrap().is_none());
        file.lock().unwrap();
        assert_eq!(holder_of(&path).unwrap().unwrap().0.pid, std::process::id());
        file.unlock().unwrap();
        assert!(holder_of(&path).unwrap().is_none());
    }
}
