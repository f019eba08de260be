//! Locks on files, among the processes of this host.
//!
//! ```text
//!   /dev/shm/weft-locks-CLUSTER     one file of no bytes; inode 7's bytes 100–199 are its bytes 7<<32 + 100 …
//! ```
//!
//! The kernel keeps the locks, with everything that belongs to them: who waits is woken, who dies loses them, a deadlock is an error.
//! Record locks belong to the process, as they should; those of `flock` and of open file descriptions to the open file in
//! this process. Bytes from 4 GiB on count as one.

use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicI64, Ordering};

use libc::off_t;

use crate::guard::{Errno, Outcome, address, system};
use crate::hooks::descriptors::move_away;
use crate::mounts;
use crate::shared::Kind;
use crate::table::Use;

/// Bytes of the lock file that belong to one inode.
const SLOT_BYTES: off_t = 1 << 32;

/// This process's descriptor of the lock file, and the generation it is of: locks of records are lost when any descriptor of their file
/// is closed, so there is only this one.
static PROCESS: AtomicI64 = AtomicI64::new(-1);

fn open_file(open: &Use) -> Outcome<c_int> {
    let id: String =
        open.mount.made()?.client.map().cluster_id.iter().map(|byte| format!("{byte:02x}")).collect();
    for directory in ["/dev/shm", "/tmp"] {
        let Ok(name) = CString::new(format!("{directory}/weft-locks-{id}")) else { continue };
        let (at, place) = (libc::AT_FDCWD as usize, address(name.as_ptr()));
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let opened = system(libc::SYS_openat, [at, place, flags as usize, 0, 0, 0]).or_else(|_| {
            let made = system(libc::SYS_openat, [at, place, (flags | libc::O_CREAT) as usize, 0o666, 0, 0])?;
            // Other users lock files of this cluster, too; the umask may have taken that away.
            let _ = system(libc::SYS_fchmod, [made, 0o666, 0, 0, 0, 0]);
            Ok::<usize, Errno>(made)
        });
        if let Ok(fd) = opened {
            return Ok(move_away(fd as c_int));
        }
    }
    Err(Errno(libc::ENOLCK))
}

fn of_process(open: &Use) -> Outcome<c_int> {
    let known = PROCESS.load(Ordering::Acquire);
    if known >= 0 && (known >> 32) as u32 == mounts::generation() {
        return Ok(known as c_int);
    }
    let fd = open_file(open)?;
    let fresh = i64::from(mounts::generation()) << 32 | i64::from(fd);
    match PROCESS.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(fd),
        Err(other) => {
            crate::shared::close(fd);
            crate::table::forget(fd);
            Ok(other as c_int)
        }
    }
}

fn of_open_file(open: &Use) -> Outcome<c_int> {
    let known = open.lock_fd.load(Ordering::Acquire);
    if known >= 0 && crate::table::is_internal(known) {
        return Ok(known);
    }
    let fd = open_file(open)?;
    match open.lock_fd.compare_exchange(known, fd, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(fd),
        Err(other) => {
            crate::shared::close(fd);
            crate::table::forget(fd);
            Ok(other)
        }
    }
}

fn slot(open: &Use) -> off_t {
    ((open.shared().ino & 0x3fff_ffff) as off_t) << 32
}

/// Runs a command on the lock file.
fn run(fd: c_int, command: c_int, lock: &mut libc::flock) -> Outcome<c_int> {
    let arguments = [fd as usize, command as usize, std::ptr::from_mut(lock) as usize, 0, 0, 0];
    system(libc::SYS_fcntl, arguments).map(|_| 0)
}

/// `fcntl` with a lock.
pub(crate) fn record(open: &Use, command: c_int, lock: &mut libc::flock) -> Outcome<c_int> {
    if open.kind() != Kind::File {
        return Err(Errno(libc::EBADF));
    }
    let access = open.flags() & libc::O_ACCMODE;
    let sets = !matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    let refused = match c_int::from(lock.l_type) {
        libc::F_RDLCK => access == libc::O_WRONLY,
        libc::F_WRLCK => access == libc::O_RDONLY,
        _ => false,
    };
    if sets && refused {
        return Err(Errno(libc::EBADF));
    }
    let base = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => open.shared().position.load(Ordering::Acquire) as off_t,
        libc::SEEK_END => open.file()?.stat()?.size as off_t,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let start = base.checked_add(lock.l_start).ok_or(Errno(libc::EOVERFLOW))?;
    let (start, bytes) = if lock.l_len < 0 { (start + lock.l_len, -lock.l_len) } else { (start, lock.l_len) };
    if start < 0 {
        return Err(Errno(libc::EINVAL));
    }
    let first = start.min(SLOT_BYTES - 1);
    let end = if bytes == 0 { SLOT_BYTES } else { start.saturating_add(bytes).clamp(first + 1, SLOT_BYTES) };
    let slot = slot(open);
    let mut ours = *lock;
    (ours.l_whence, ours.l_start, ours.l_len) = (libc::SEEK_SET as _, slot + first, end - first);
    let is_of_process = matches!(command, libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK);
    if !is_of_process && lock.l_pid != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let fd = if is_of_process { of_process(open)? } else { of_open_file(open)? };
    run(fd, command, &mut ours)?;
    if sets {
        open.locked.store(true, Ordering::Release);
    } else {
        lock.l_type = ours.l_type;
        if c_int::from(ours.l_type) != libc::F_UNLCK {
            (lock.l_whence, lock.l_start, lock.l_pid) =
                (libc::SEEK_SET as _, (ours.l_start - slot).max(0), ours.l_pid);
            let end = ours.l_start + ours.l_len - slot;
            lock.l_len = if ours.l_len == 0 || end >= SLOT_BYTES { 0 } else { end - lock.l_start };
        }
    }
    Ok(0)
}

/// `lockf`: a record lock from the position on.
pub(crate) fn lockf(open: &Use, command: c_int, bytes: off_t) -> Outcome<c_int> {
    // SAFETY: zeroed bytes are a valid `struct flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_whence, lock.l_len) = (libc::SEEK_CUR as _, bytes);
    let (kind, fcntl) = match command {
        libc::F_LOCK => (libc::F_WRLCK, libc::F_SETLKW),
        libc::F_TLOCK => (libc::F_WRLCK, libc::F_SETLK),
        libc::F_ULOCK => (libc::F_UNLCK, libc::F_SETLK),
        libc::F_TEST => (libc::F_WRLCK, libc::F_GETLK),
        _ => return Err(Errno(libc::EINVAL)),
    };
    lock.l_type = kind as _;
    record(open, fcntl, &mut lock)?;
    match command == libc::F_TEST && c_int::from(lock.l_type) != libc::F_UNLCK {
        true => Err(Errno(libc::EACCES)),
        false => Ok(0),
    }
}

/// `flock`. It conflicts with other `flock`s only, so it has a place of its own: the slot of the inode in the upper half.
pub(crate) fn flock(open: &Use, operation: c_int) -> Outcome<c_int> {
    // SAFETY: as above.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    let kind = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => libc::F_RDLCK,
        libc::LOCK_EX => libc::F_WRLCK,
        libc::LOCK_UN => libc::F_UNLCK,
        _ => return Err(Errno(libc::EINVAL)),
    };
    lock.l_type = kind as _;
    (lock.l_whence, lock.l_start, lock.l_len) = (libc::SEEK_SET as _, 1 << 62 | slot(open), 1);
    let wait = operation & libc::LOCK_NB == 0;
    run(of_open_file(open)?, if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK }, &mut lock)
}

/// A descriptor of the file is closed: the process's record locks on it end.
pub(crate) fn end_with(open: &Use) {
    let known = PROCESS.load(Ordering::Acquire);
    if !open.locked.load(Ordering::Acquire) || known < 0 || (known >> 32) as u32 != mounts::generation() {
        return;
    }
    // SAFETY: as above.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_UNLCK as _;
    (lock.l_whence, lock.l_start, lock.l_len) = (libc::SEEK_SET as _, slot(open), SLOT_BYTES);
    let _ = run(known as c_int, libc::F_SETLK, &mut lock);
}
