//! What processes that share one open file tell each other, and its counter.

use crate::files::position;
use crate::guard::{Failure, Outcome, call};
use crate::handles::{borrow, result, take, weft_file};
use crate::pending::weft_op;
use libc::off_t;
use std::ffi::c_int;
use weft_client::WrittenEnd;

/// `struct weft_written`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CWritten {
    /// The end of the furthest byte.
    pub end_bytes: u64,
    /// Not 0: something was written.
    pub touch: u64,
    /// Not 0: a write failed.
    pub unsure: u64,
}

impl CWritten {
    fn of(written: WrittenEnd) -> CWritten {
        let WrittenEnd { end_bytes, touch, unsure } = written;
        CWritten { end_bytes, touch: touch.into(), unsure: unsure.into() }
    }

    fn end(&self) -> WrittenEnd {
        WrittenEnd { end_bytes: self.end_bytes, touch: self.touch != 0, unsure: self.unsure != 0 }
    }
}

/// What others have written.
///
/// # Safety
/// `others` is NULL or valid.
unsafe fn written<'a>(others: *const CWritten) -> Outcome<&'a CWritten> {
    // SAFETY: as the caller promises.
    unsafe { others.as_ref() }.ok_or_else(|| Failure::invalid("what others have written is NULL"))
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `written` valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_get_written(file: *const weft_file, written: *mut CWritten) -> c_int {
    call("weft_get_written", || {
        // SAFETY: as the caller promises.
        let (file, written) = unsafe { (borrow(file)?, result("place for what was written", written)?) };
        *written = CWritten::of(file.file.written_end());
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `others` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_note_written(file: *const weft_file, others: *const CWritten) -> c_int {
    call("weft_note_written", || {
        // SAFETY: as the caller promises.
        let (file, others) = unsafe { (borrow(file)?, written(others)?) };
        file.file.note_written(&others.end());
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_note_size(file: *const weft_file, bytes: off_t) -> c_int {
    call("weft_note_size", || {
        // SAFETY: as the caller promises.
        unsafe { borrow(file)? }.file.note_size(position(bytes)?);
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle that is not used any more; `others` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_close_shared(file: *mut weft_file, others: *const CWritten) -> c_int {
    call("weft_close_shared", || {
        // SAFETY: as the caller promises.
        let others = unsafe { written(others) };
        // SAFETY: as the caller promises.
        let file = unsafe { take(file)? };
        file.file.close_shared(&others?.end())?;
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fetch_add(file: *const weft_file, add: i64) -> i64 {
    // SAFETY: as the caller promises.
    call("weft_fetch_add", || Ok(unsafe { borrow(file)? }.file.fetch_add(add)? as i64))
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fetch_set(file: *const weft_file, value: i64) -> i64 {
    call("weft_fetch_set", || {
        // SAFETY: as the caller promises.
        let file = unsafe { borrow(file)? };
        let value = u64::try_from(value).map_err(|_| Failure::invalid("the counter is never negative"))?;
        Ok(file.file.fetch_set(value)? as i64)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_start_fetch_add(file: *const weft_file, add: i64) -> *mut weft_op {
    // SAFETY: as the caller promises.
    call("weft_start_fetch_add", || Ok(weft_op::counting(unsafe { borrow(file)? }.file.start_fetch_add(add))))
}
