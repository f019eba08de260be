//! The lock of a cluster's directory.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

const LOCK_POLL: Duration = Duration::from_millis(5);

/// Held while servers of a cluster are started or stopped and `run.json` is changed, so that two commands
/// cannot do this at the same time.
pub(super) fn lock(dir: &Path, pause: &mut dyn FnMut(Duration) -> bool) -> Result<File> {
    let path = dir.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if pause(LOCK_POLL) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("interrupted while waiting for another command that has locked {}", path.display())
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// Held while a cluster file is edited, so that two commands cannot edit it, or start servers, at the same
/// time.
pub fn lock_to_edit(dir: &Path) -> Result<File> {
    lock(dir, &mut |time| {
        std::thread::sleep(time);
        true
    })
}
