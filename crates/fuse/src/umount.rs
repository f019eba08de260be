//! Unmounting.
//!
//! ```text
//!   in /proc/self/mountinfo as fuse.weft? ── no ──► not a Weft mount
//!      │ yes
//!   by force? ── yes ──► abort its connection: who waits for a server gets an error
//!      │
//!   umount2 (root), else fusermount3 -u ── done
//!      │ EBUSY
//!   its process is gone (ENOTCONN)? ── yes ──► detach: nobody can use it any more
//!      │ no, or no answer within a moment
//!   say who uses it
//! ```

use crate::options::MountError;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weft_host::{Mount, mounts};

/// A mount that is alive answers in this time, if its servers do.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Unmounts the Weft file system on `dir`. Fails with [`MountError::Busy`] while it is in use. A mount whose
/// serving process is dead is detached at once.
pub fn umount(dir: &Path) -> Result<(), MountError> {
    unmount(&find_mount(dir)?.dir, false)
}

/// As [`umount`], but takes the mount out of sight even while it is in use; it ends when its last user does.
pub fn umount_lazy(dir: &Path) -> Result<(), MountError> {
    unmount(&find_mount(dir)?.dir, true)
}

/// As [`umount_lazy`], but those that wait for an answer, such as of servers that are gone, get an error (`ECONNABORTED`) at
/// once, and so do all who use it still.
pub fn umount_by_force(dir: &Path) -> Result<(), MountError> {
    let mount = find_mount(dir)?;
    abort(&mount)?;
    match unmount(&mount.dir, true) {
        // It was gone with its connection, or its process took it away first.
        Err(_) if !mounts().iter().any(|now| now.dir == mount.dir && now.device == mount.device) => Ok(()),
        outcome => outcome,
    }
}

/// Ends the connection of a mount, so that nobody waits on it any more.
fn abort(mount: &Mount) -> Result<(), MountError> {
    let failed = |reason: String| MountError::Unmount { dir: mount.dir.clone(), reason };
    let path = c_path(&mount.dir)?;
    // SAFETY: `path` is a string that ends with a zero and lives through the call.
    if unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::UMOUNT_NOFOLLOW) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // Somebody uses it still; but the connection is gone.
        Some(libc::EBUSY) => Ok(()),
        Some(libc::EPERM) => {
            let minor = mount.device.split(':').nth(1).unwrap_or_default();
            let file = Path::new("/sys/fs/fuse/connections").join(minor).join("abort");
            let why =
                |error| failed(format!("{} cannot be written ({error}); try it as root", file.display()));
            std::fs::write(&file, "1").map_err(why)
        }
        _ => Err(failed(std::io::Error::last_os_error().to_string())),
    }
}

fn c_path(dir: &Path) -> Result<CString, MountError> {
    CString::new(dir.as_os_str().as_bytes()).map_err(|_| MountError::Unmount {
        dir: dir.to_path_buf(),
        reason: "its name contains a zero byte".into(),
    })
}

fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    match unmount_once(dir, lazy) {
        Err(MountError::Busy { .. }) if is_dead(dir) => unmount_once(dir, true),
        outcome => outcome,
    }
}

fn unmount_once(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let dir = dir.to_path_buf();
    let flags = if lazy { libc::MNT_DETACH } else { 0 };
    let path = c_path(&dir)?;
    // SAFETY: `path` is a string that ends with a zero and lives through the call.
    if unsafe { libc::umount2(path.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EBUSY) => Err(MountError::Busy { users: users_of(&dir), dir }),
        Some(libc::EPERM) => fusermount(&dir, lazy),
        _ => Err(MountError::Unmount { dir, reason: error.to_string() }),
    }
}

/// Users other than root unmount through the set-user-id helper.
fn fusermount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let failed = |reason: String| MountError::Unmount { dir: dir.to_path_buf(), reason };
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(dir).output().map_err(|error| {
        failed(format!("fusermount3 cannot be run ({error}); install the package fuse3, or unmount as root"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if text.contains("busy") {
        return Err(MountError::Busy { dir: dir.to_path_buf(), users: users_of(dir) });
    }
    Err(failed(text))
}

/// The mount point as the kernel has it. Does not look at the mount itself, which may hang or be dead, unless `dir` is a
/// symbolic link.
fn find_mount(dir: &Path) -> Result<Mount, MountError> {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let resolved = match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => absolute,
    };
    let mount_on = |dir: &Path| mounts().into_iter().rev().find(|mount| mount.dir == dir && mount.is_weft());
    let behind_link = || mount_on(&resolved.canonicalize().ok()?);
    mount_on(&resolved).or_else(behind_link).ok_or_else(|| MountError::NotMounted(dir.to_path_buf()))
}

/// Whether the process behind the mount is gone. One that waits for its servers is not. A child asks: whoever waits for such a
/// process cannot even be killed before it answers, and is left behind.
fn is_dead(dir: &Path) -> bool {
    let Ok(path) = c_path(dir) else { return false };
    // SAFETY: the child calls nothing but close, stat and _exit, which is allowed after a fork of any process.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            // Nobody is to wait for it because it holds the end of a pipe.
            for standard in 0..3 {
                libc::close(standard);
            }
            let mut found = std::mem::zeroed();
            let failed = libc::stat(path.as_ptr(), &raw mut found) != 0;
            libc::_exit(i32::from(failed && *libc::__errno_location() == libc::ENOTCONN));
        }
        child
    };
    let (start, mut status) = (Instant::now(), 0);
    while child > 0 && start.elapsed() < ANSWER_TIMEOUT {
        // SAFETY: the status lives through the call.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Processes with something open, mapped or their working directory under `dir`, by reading links only.
fn users_of(dir: &Path) -> Vec<String> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut users = Vec::new();
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if uses(&process.path(), dir) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            users.push(format!("{} ({pid})", name.trim()));
        }
    }
    users
}

fn uses(process: &Path, dir: &Path) -> bool {
    let leads_there = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    if leads_there(process.join("cwd"))
        || leads_there(process.join("root"))
        || leads_there(process.join("exe"))
    {
        return true;
    }
    ["fd", "map_files"].iter().any(|links| {
        std::fs::read_dir(process.join(links))
            .is_ok_and(|entries| entries.flatten().any(|entry| leads_there(entry.path())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mounted_is_not_unmounted() {
        let dir = std::env::temp_dir();
        assert!(matches!(umount(&dir), Err(MountError::NotMounted(_))));
    }

    #[test]
    fn users_are_found_by_their_links() {
        let here = std::env::current_dir().unwrap();
        let me = format!("({})", std::process::id());
        assert!(users_of(&here).iter().any(|user| user.ends_with(&me)));
    }
}
