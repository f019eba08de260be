//! What a process asks of its host: the host's name, the present boot, random bytes, the time, locked files,
//! what is mounted, how programs are executed, its own umask, and connections that are begun without waiting.
//!
//! ```text
//!   name()       "node7"
//!   boot_id()    the same for all processes until the machine starts again
//!   lock(path)   one process at a time; the file holds its number:  "3303\n"
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

mod addresses;
mod connect;
mod mounts;
pub mod program;
mod space;

pub use addresses::own_addresses;
pub use connect::{begin_connect, is_connected, raw_address};
pub use mounts::{Mount, mounts, mounts_in};
pub use space::{Space, space_of};

/// The name of this host.
pub fn name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Identity of the present boot, as the kernel writes it.
///
/// # Errors
/// There is no `/proc`.
pub fn boot_id_text() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Identity of the present boot; zeros where the kernel gives none.
pub fn boot_id() -> [u8; 16] {
    let digits = boot_id_text().unwrap_or_default().replace('-', "");
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// Random bytes of the kernel.
///
/// # Errors
/// Those of `getrandom`.
pub fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// Fills `bytes` with random bytes of the kernel.
///
/// # Errors
/// Those of `getrandom`.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: the kernel writes at most `rest.len()` bytes to `rest`.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => filled += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Time since 1970 by the wall clock.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Time since the machine was started, by a clock that goes on while the machine is suspended.
pub fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure. The clock is there since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Whole seconds since 1970 by the wall clock.
pub fn unix_s() -> u64 {
    since_1970().as_secs()
}

/// Microseconds since 1970.
pub fn unix_us() -> u64 {
    since_1970().as_micros() as u64
}

/// The umask of this process. The system call that reads it also sets it, so another thread could make a file in
/// between with none; the kernel's text has it without that. `None` where there is no `/proc`.
pub fn umask() -> Option<u32> {
    umask_in(&std::fs::read("/proc/self/status").ok()?)
}

// Not fuzzed: the text is the kernel's.
fn umask_in(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let digits = lines.find_map(|line| line.strip_prefix(b"Umask:"))?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?.trim(), 8).ok()
}

/// Why a file was not locked.
#[derive(Debug)]
pub enum LockError {
    /// The process with this number has it locked, as far as the file tells.
    Held(String),
    /// The operating system.
    System(io::Error),
}

/// Locks a file until it is dropped, and writes the number of this process into it. Makes the file where
/// there is none.
///
/// # Errors
/// See [`LockError`].
pub fn lock(path: &Path) -> Result<FileLock, LockError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(path).map_err(LockError::System)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => LockError::System(error),
        TryLockError::WouldBlock => {
            LockError::Held(std::fs::read_to_string(path).unwrap_or_default().trim().to_owned())
        }
    })?;
    // For people and for the error above only: on a full disk the lock holds without it.
    let process_id = std::process::id();
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{process_id}"));
    Ok(FileLock { file, process_id })
}

/// A locked file. Dropping it unlocks it, also where a child of this process that was forked meanwhile has the descriptor,
/// too; in such a child nothing happens.
#[derive(Debug)]
#[must_use = "dropping it unlocks the file"]
pub struct FileLock {
    file: File,
    process_id: u32,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if std::process::id() == self.process_id {
            // Closing it does the same where nobody else has it.
            let _ = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ_and_the_boot_does_not() {
        assert_ne!(random::<32>().unwrap(), random::<32>().unwrap());
        let mut many = vec![0; 1 << 16];
        fill_random(&mut many).unwrap();
        assert!(!many.ends_with(&[0; 16]) && boot_id() == boot_id() && !name().is_empty());
    }

    #[test]
    fn the_umask_is_read_whatever_the_name_of_the_program() {
        assert_eq!(umask_in(b"Name:\ta\xff\nUmask:\t0027\nState:\tR\n"), Some(0o027));
        assert_eq!(umask_in(b"Name:\tUmask: 1\nUmask:\tx\n"), None);
        assert!(umask().is_some_and(|mask| mask <= 0o777));
    }

    #[test]
    fn a_file_is_locked_by_one_and_says_by_whom() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = lock(&path).unwrap();
        // As a child that was forked meanwhile has it.
        let _of_a_child = held.file.try_clone().unwrap();
        let Err(LockError::Held(holder)) = lock(&path) else { panic!("it was locked twice") };
        assert_eq!(holder, std::process::id().to_string());
        drop(held);
        drop(lock(&path).unwrap());
    }
}
