//! Locks, in the words of fcntl(2) and flock(2).
//!
//! ```text
//!   struct flock { l_whence = SEEK_SET, l_start = 100, l_len = 50 }   bytes 100–149
//!                { …                    l_start = 100, l_len = -50 }  bytes  50–99
//!                { …                    l_start = 100, l_len = 0 }    bytes 100–, however long the file becomes
//! ```

use crate::guard::{Failure, Outcome, call};
use crate::handles::{borrow, result, weft_file};
use libc::{c_int, flock, off_t};
use std::io::SeekFrom;
use weft_client::{File, LockKind, LockOwner, LockTarget, LockWait};

/// The bytes that a `struct flock` names.
fn target(file: &File, lock: &flock) -> Outcome<LockTarget> {
    if c_int::from(lock.l_whence) != libc::SEEK_SET && file.has_view() {
        return Err(Failure::invalid(
            "l_whence is SEEK_SET where the file has a view: locks are on bytes of the file",
        ));
    }
    let base = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => file.seek(SeekFrom::Current(0))? as off_t,
        libc::SEEK_END => file.stat()?.size as off_t,
        _ => return Err(Failure::invalid("l_whence is SEEK_SET, SEEK_CUR or SEEK_END")),
    };
    let too_large = || Failure::new(libc::EOVERFLOW, "the range ends beyond the largest offset");
    let start = base.checked_add(lock.l_start).ok_or_else(too_large)?;
    let (first, end) = match lock.l_len {
        0 => (start, None),
        bytes if bytes > 0 => (start, Some(start.checked_add(bytes).ok_or_else(too_large)?)),
        bytes => (start.checked_add(bytes).unwrap_or(-1), Some(start)),
    };
    let first = u64::try_from(first).map_err(|_| Failure::invalid("the range begins before the file"))?;
    Ok(end.map_or(LockTarget::range(first..), |end| LockTarget::range(first..end as u64)))
}

/// What a lock on bytes is to be; `None` ends it.
fn kind(lock: &flock) -> Outcome<Option<LockKind>> {
    match c_int::from(lock.l_type) {
        libc::F_RDLCK => Ok(Some(LockKind::Shared)),
        libc::F_WRLCK => Ok(Some(LockKind::Exclusive)),
        libc::F_UNLCK => Ok(None),
        _ => Err(Failure::invalid("l_type is F_RDLCK, F_WRLCK or F_UNLCK")),
    }
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `lock` valid for reading and writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fcntl_lock(file: *const weft_file, command: c_int, lock: *mut flock) -> c_int {
    call("weft_fcntl_lock", || {
        // SAFETY: as the caller promises.
        let (file, lock) = unsafe { (&borrow(file)?.file, result("lock", lock)?) };
        let owner = match command {
            libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK => LockOwner::Process,
            libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK => LockOwner::File,
            _ => {
                return Err(Failure::invalid(
                    "command is F_SETLK, F_SETLKW, F_GETLK, or one of these of open files (F_OFD_…)",
                ));
            }
        };
        let (target, kind) = (target(file, lock)?, kind(lock)?);
        if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
            let kind = kind.ok_or_else(|| Failure::invalid("only F_RDLCK and F_WRLCK can be asked for"))?;
            test(file, owner, target, kind, lock)?;
            return Ok(0);
        }
        let wait = match command {
            libc::F_SETLKW | libc::F_OFD_SETLKW => LockWait::UntilSignal,
            _ => LockWait::Never,
        };
        match kind {
            Some(kind) => file.lock_as(owner, target, kind, wait)?,
            None => file.unlock_as(owner, target)?,
        }
        Ok(0)
    })
}

/// Puts the lock that is in the way of one into `lock`, or `F_UNLCK`.
fn test(file: &File, owner: LockOwner, target: LockTarget, kind: LockKind, lock: &mut flock) -> Outcome<()> {
    let Some(holder) = file.lock_test_as(owner, target, kind)? else {
        lock.l_type = libc::F_UNLCK as _;
        return Ok(());
    };
    lock.l_type = if holder.exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = holder.first as off_t;
    lock.l_len = if holder.last >= i64::MAX as u64 { 0 } else { (holder.last - holder.first + 1) as off_t };
    lock.l_pid = holder.pid as _;
    Ok(())
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_flock(file: *const weft_file, operation: c_int) -> c_int {
    call("weft_flock", || {
        // SAFETY: as the caller promises.
        let file = &unsafe { borrow(file)? }.file;
        let wait = if operation & libc::LOCK_NB != 0 { LockWait::Never } else { LockWait::UntilSignal };
        match operation & !libc::LOCK_NB {
            libc::LOCK_SH => file.lock(LockTarget::Whole, LockKind::Shared, wait)?,
            libc::LOCK_EX => file.lock(LockTarget::Whole, LockKind::Exclusive, wait)?,
            libc::LOCK_UN => file.unlock(LockTarget::Whole)?,
            _ => {
                return Err(Failure::invalid(
                    "operation is LOCK_SH, LOCK_EX or LOCK_UN, with or without LOCK_NB",
                ));
            }
        }
        Ok(0)
    })
}
