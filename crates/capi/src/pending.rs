//! Reads and writes that go on while the program does something else.

use crate::guard::{Failure, Outcome, call};
use crate::handles::{array, give, result, take, weft_file};
use crate::lists::Request;
use libc::{off_t, size_t, ssize_t};
use std::ffi::{c_int, c_void};
use weft_client::{Direction, PendingCall, PendingRaw, Progress, finish_all, finish_some};

/// An operation under way (`weft_op`).
#[allow(non_camel_case_types)]
pub struct weft_op {
    under_way: UnderWay,
}

#[allow(clippy::large_enum_variant, reason = "an operation is on the heap as it is")]
enum UnderWay {
    /// A read or write, which comes to a number of bytes.
    Transfer(PendingRaw),
    /// A change of the counter.
    Count(PendingCall<u64>),
}

impl weft_op {
    pub(crate) fn started(pending: PendingRaw) -> *mut weft_op {
        give(weft_op { under_way: UnderWay::Transfer(pending) })
    }

    pub(crate) fn counting(pending: PendingCall<u64>) -> *mut weft_op {
        give(weft_op { under_way: UnderWay::Count(pending) })
    }

    fn progress(&mut self) -> &mut dyn Progress {
        match &mut self.under_way {
            UnderWay::Transfer(pending) => pending,
            UnderWay::Count(pending) => pending,
        }
    }

    fn wait(self) -> Outcome<ssize_t> {
        Ok(match self.under_way {
            UnderWay::Transfer(pending) => pending.wait()? as ssize_t,
            UnderWay::Count(pending) => pending.wait()? as ssize_t,
        })
    }
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle; `buffer` is valid for writing until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_start_pread(
    file: *const weft_file,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> *mut weft_op {
    // SAFETY: as the caller promises.
    call("weft_start_pread", || unsafe {
        Request::plain(buffer, bytes, offset)?.start(file, Direction::Read)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle; `buffer` is valid for reading until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_start_pwrite(
    file: *const weft_file,
    buffer: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> *mut weft_op {
    // SAFETY: as the caller promises.
    call("weft_start_pwrite", || unsafe {
        Request::plain(buffer, bytes, offset)?.start(file, Direction::Write)
    })
}

/// The operation that `op` points to.
///
/// # Safety
/// `op` is NULL or points to NULL or to a handle.
unsafe fn pointed<'a>(op: *mut *mut weft_op) -> Outcome<&'a mut *mut weft_op> {
    // SAFETY: as the caller promises.
    let place = unsafe { result("operation", op)? };
    if place.is_null() {
        Err(Failure::invalid("there is no operation: it has ended before"))
    } else {
        Ok(place)
    }
}

/// See weft.h.
///
/// # Safety
/// `op` points to a handle or NULL, `outcome` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_test(op: *mut *mut weft_op, outcome: *mut ssize_t) -> c_int {
    call("weft_test", || {
        // SAFETY: as the caller promises.
        let place = unsafe { pointed(op)? };
        // SAFETY: as the caller promises.
        if !unsafe { &mut **place }.progress().test() {
            return Ok(0);
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { weft_wait(op) };
        if !outcome.is_null() {
            // SAFETY: as the caller promises.
            unsafe { *outcome = bytes };
        }
        Ok(1)
    })
}

/// See weft.h.
///
/// # Safety
/// `op` points to a handle or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_wait(op: *mut *mut weft_op) -> ssize_t {
    call("weft_wait", || {
        // SAFETY: as the caller promises.
        let place = unsafe { pointed(op)? };
        // SAFETY: as the caller promises; the handle is forgotten at once.
        let op = unsafe { take(std::mem::replace(place, std::ptr::null_mut()))? };
        op.wait()
    })
}

/// See weft.h.
///
/// # Safety
/// `ops` has `count` handles or NULLs; `outcomes` is NULL or has room for as many results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_wait_all(
    count: size_t,
    ops: *mut *mut weft_op,
    outcomes: *mut ssize_t,
) -> c_int {
    let driven: c_int = call("weft_wait_all", || {
        // SAFETY: as the caller promises; no two are the same.
        let under_way = unsafe { array(ops, count)?.iter().filter_map(|op| op.as_mut()) };
        finish_all(under_way.map(|op| op.progress()));
        Ok(0)
    });
    let mut failed = driven < 0;
    for index in 0..count {
        // SAFETY: as the caller promises.
        if unsafe { !(*ops.add(index)).is_null() } {
            // SAFETY: as the caller promises.
            failed |= unsafe { end_one(ops, outcomes, index) } < 0;
        }
    }
    if failed { -1 } else { 0 }
}

/// Ends one of several operations, and notes its result, which is also returned.
///
/// # Safety
/// As for [`weft_wait_all`]; `index` is less than `count`, and that place is not NULL.
unsafe fn end_one(ops: *mut *mut weft_op, outcomes: *mut ssize_t, index: usize) -> ssize_t {
    // SAFETY: as the caller promises.
    let bytes = unsafe { weft_wait(ops.add(index)) };
    if !outcomes.is_null() {
        // SAFETY: as the caller promises.
        unsafe { *outcomes.add(index) = bytes };
    }
    bytes
}

/// See weft.h.
///
/// # Safety
/// As for [`weft_wait_all`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_wait_some(
    count: size_t,
    ops: *mut *mut weft_op,
    outcomes: *mut ssize_t,
) -> ssize_t {
    let mut over = Vec::new();
    let driven: c_int = call("weft_wait_some", || {
        // SAFETY: as the caller promises; no two are the same.
        let places = unsafe { array(ops, count)? };
        let (at, under_way): (Vec<_>, Vec<_>) = places
            .iter()
            .enumerate()
            // SAFETY: as the caller promises.
            .filter_map(|(at, op)| unsafe { op.as_mut() }.map(|op| (at, op.progress())))
            .unzip();
        over.extend(finish_some(under_way).into_iter().map(|position| at[position]));
        Ok(0)
    });
    if driven < 0 {
        return -1;
    }
    for index in &over {
        // SAFETY: as the caller promises.
        unsafe { end_one(ops, outcomes, *index) };
    }
    over.len() as ssize_t
}
