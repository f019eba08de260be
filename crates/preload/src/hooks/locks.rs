//! File locks of fcntl(2), lockf(3) and flock(2). The metadata server holds them against all clients.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::off_t;
use weft_client::{File, LockKind, LockOwner, LockTarget, LockWait};

use crate::guard::{Errno, Outcome, is_signal_due};
use crate::lock_sessions::{
    by_open_file, by_process, check_open_file, note_if_lost, note_locked_again, open_file_owner, owner,
    rely_on,
};
use crate::locked_ranges::{self, Owner};
use crate::shared::{EXCLUSIVELY, Kind, NOT_LOCKED, SHARED};
use crate::table::Use;

/// The operation on a lock.
enum Operation {
    Lock(LockKind, bool),
    Unlock,
}

/// The byte range of a `struct flock`.
fn target_of(open: &Use, lock: &libc::flock) -> Outcome<LockTarget> {
    let base = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => open.shared().position.load(Ordering::Acquire) as off_t,
        libc::SEEK_END => open.file()?.stat()?.size as off_t,
        _ => return Err(Errno(libc::EINVAL)),
    };
    range(base, lock.l_start, lock.l_len)
}

fn range(base: off_t, start: off_t, length: off_t) -> Outcome<LockTarget> {
    let too_large = Errno(libc::EOVERFLOW);
    let start = base.checked_add(start).ok_or(too_large)?;
    let (first, last) = match length {
        0 => (start, off_t::MAX),
        1.. => (start, start.checked_add(length - 1).ok_or(too_large)?),
        _ => (start.checked_add(length).ok_or(Errno(libc::EINVAL))?, start - 1),
    };
    if first < 0 || last < first {
        return Err(Errno(libc::EINVAL));
    }
    Ok(LockTarget::Range { first: first as u64, last: last as u64 })
}

fn obey(file: &File, owner: LockOwner, target: LockTarget, operation: Operation) -> Outcome<()> {
    let until = || is_signal_due();
    match operation {
        Operation::Unlock => file.unlock_as(owner, target)?,
        Operation::Lock(kind, false) => file.lock_as(owner, target, kind, LockWait::Never)?,
        Operation::Lock(kind, true) => file.lock_as(owner, target, kind, LockWait::Until(&until))?,
    }
    Ok(())
}

/// Executes an operation on a lock of the open file. Where its locks are lost, the first one after that fails.
fn obey_by_open_file(open: &Use, target: LockTarget, operation: Operation) -> Outcome<()> {
    if !open.shared().locks.are_lost() {
        check_open_file(open)?;
    }
    let locks = matches!(operation, Operation::Lock(..));
    let whole = match (&target, &operation) {
        (LockTarget::Range { .. }, _) => None,
        (LockTarget::Whole, Operation::Unlock) => Some(NOT_LOCKED),
        (LockTarget::Whole, Operation::Lock(LockKind::Shared, _)) => Some(SHARED),
        (LockTarget::Whole, Operation::Lock(LockKind::Exclusive, _)) => Some(EXCLUSIVELY),
    };
    let obeyed = by_open_file(open, |file| {
        obey(file, open_file_owner(), target, operation)?;
        if locks {
            rely_on(open, file, false)?;
            note_locked_again(open, file);
        }
        Ok(())
    });
    if let Some(kind) = whole {
        // A lock that is to be converted is released first.
        let kind = if obeyed.is_ok() { kind } else { NOT_LOCKED };
        open.whole().whole_known.store(kind, Ordering::Release);
        open.shared().locks.note_whole(kind);
    }
    obeyed
}

/// `fcntl` with a lock.
pub(crate) fn record(open: &Use, command: c_int, lock: &mut libc::flock) -> Outcome<c_int> {
    if open.kind() != Kind::File {
        return Err(Errno(libc::EBADF));
    }
    let is_of_process = matches!(command, libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK);
    if !is_of_process && lock.l_pid != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let target = target_of(open, lock)?;
    let kind = match c_int::from(lock.l_type) {
        libc::F_RDLCK => Some(LockKind::Shared),
        libc::F_WRLCK => Some(LockKind::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(Errno(libc::EINVAL)),
    };
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        let kind = kind.ok_or(Errno(libc::EINVAL))?;
        let holder = match is_of_process {
            true => by_process(open, |file| Ok(file.lock_test_as(owner(), target, kind)?))?,
            false => by_open_file(open, |file| Ok(file.lock_test_as(open_file_owner(), target, kind)?))?,
        };
        let Some(holder) = holder else {
            lock.l_type = libc::F_UNLCK as _;
            return Ok(0);
        };
        let kind = if holder.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
        let bytes = if holder.last >= off_t::MAX as u64 { 0 } else { holder.last - holder.first + 1 };
        (lock.l_type, lock.l_whence) = (kind as _, libc::SEEK_SET as _);
        (lock.l_start, lock.l_len) = (holder.first as off_t, bytes as off_t);
        lock.l_pid = holder.pid as libc::pid_t;
        return Ok(0);
    }
    match kind {
        Some(LockKind::Shared) => open.check_readable()?,
        Some(LockKind::Exclusive) => open.check_writable()?,
        None => {}
    }
    let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
    let operation = kind.map_or(Operation::Unlock, |kind| Operation::Lock(kind, waits));
    let is_all = target == LockTarget::Range { first: 0, last: off_t::MAX as u64 };
    if kind.is_some() {
        open.locked.store(true, Ordering::Release);
    }
    let obeyed = match is_of_process {
        true => by_process(open, |file| {
            obey(file, owner(), target, operation)?;
            if kind.is_some() { rely_on(open, file, true) } else { Ok(()) }
        }),
        false => obey_by_open_file(open, target, operation),
    };
    note_if_lost(open, &obeyed);
    obeyed?;
    if let LockTarget::Range { first, last } = target {
        let by = if is_of_process { Owner::process(open.shared().ino) } else { Owner::open(open.whole()) };
        locked_ranges::note(by, (first, last), kind.is_some());
    }
    if kind.is_none() && is_all {
        open.locked.store(false, Ordering::Release);
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

/// `flock`: the whole file, whatever ranges are locked.
pub(crate) fn flock(open: &Use, operation: c_int) -> Outcome<c_int> {
    let waits = operation & libc::LOCK_NB == 0;
    let operation = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => Operation::Lock(LockKind::Shared, waits),
        libc::LOCK_EX => Operation::Lock(LockKind::Exclusive, waits),
        libc::LOCK_UN => Operation::Unlock,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let obeyed = obey_by_open_file(open, LockTarget::Whole, operation);
    note_if_lost(open, &obeyed);
    obeyed.map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted_from_anywhere_and_backwards() {
        let bytes = |first, last| Ok(LockTarget::Range { first, last });
        assert_eq!(range(0, 10, 5), bytes(10, 14));
        assert_eq!(range(100, -10, 0), bytes(90, i64::MAX as u64));
        assert_eq!(range(0, 10, -4), bytes(6, 9));
        assert_eq!(range(0, 0, 0), bytes(0, i64::MAX as u64));
        assert_eq!(range(0, -1, 5), Err(Errno(libc::EINVAL)));
        assert_eq!(range(0, 3, -4), Err(Errno(libc::EINVAL)));
        assert_eq!(range(i64::MAX, 1, 5), Err(Errno(libc::EOVERFLOW)));
    }
}
