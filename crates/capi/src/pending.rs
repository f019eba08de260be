//! Reads and writes that go on while the program does something else.

use crate::files::{Lists, lists};
use crate::guard::{Failure, Outcome, call};
use crate::handles::{borrow, give, result, take, weft_file};
use libc::{off_t, size_t, ssize_t};
use std::ffi::{c_int, c_void};
use weft_client::PendingRaw;
use weft_layout::{Extent, Regions};

/// An operation under way (`weft_op`).
#[allow(non_camel_case_types)]
pub struct weft_op {
    pending: PendingRaw,
}

fn one_piece(buffer: *const c_void, bytes: size_t, offset: off_t) -> Outcome<Lists> {
    let offset = u64::try_from(offset).map_err(|_| Failure::invalid("the offset is negative"))?;
    if buffer.is_null() && bytes != 0 {
        return Err(Failure::new(libc::EFAULT, "the buffer is NULL"));
    }
    Ok(Lists {
        memory: Regions::list([Extent { offset: buffer as u64, bytes: bytes as u64 }]),
        file: Regions::contiguous(offset, bytes as u64),
    })
}

/// # Safety
/// `file` is a handle; the memory stays valid, and is not touched, until the operation has ended.
unsafe fn start_read(file: *const weft_file, lists: Lists) -> Outcome<*mut weft_op> {
    // SAFETY: as the caller promises.
    let file = &unsafe { borrow(file)? }.file;
    // SAFETY: as the caller promises.
    let pending = unsafe { file.start_read_raw(std::ptr::null_mut(), &lists.memory, &lists.file) };
    Ok(give(weft_op { pending }))
}

/// # Safety
/// `file` is a handle; the memory stays valid until the operation has ended.
unsafe fn start_write(file: *const weft_file, lists: Lists) -> Outcome<*mut weft_op> {
    // SAFETY: as the caller promises.
    let file = &unsafe { borrow(file)? }.file;
    // SAFETY: as the caller promises.
    let pending = unsafe { file.start_write_raw(std::ptr::null(), &lists.memory, &lists.file) };
    Ok(give(weft_op { pending }))
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle; `buffer` is valid for writing until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_iread(
    file: *const weft_file,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> *mut weft_op {
    // SAFETY: as the caller promises.
    call("weft_iread", || unsafe { start_read(file, one_piece(buffer, bytes, offset)?) })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle; `buffer` is valid for reading until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_iwrite(
    file: *const weft_file,
    buffer: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> *mut weft_op {
    // SAFETY: as the caller promises.
    call("weft_iwrite", || unsafe { start_write(file, one_piece(buffer, bytes, offset)?) })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle; the arrays have as many values as said; the memory is valid for writing until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ireadv_list(
    file: *const weft_file,
    memory_count: size_t,
    memory_offsets: *const *const c_void,
    memory_lengths: *const size_t,
    file_count: size_t,
    file_offsets: *const u64,
    file_lengths: *const u64,
) -> *mut weft_op {
    // SAFETY: as the caller promises.
    call("weft_ireadv_list", || unsafe {
        let lists =
            lists(memory_count, memory_offsets, memory_lengths, file_count, file_offsets, file_lengths)?;
        start_read(file, lists)
    })
}

/// See weft.h.
///
/// # Safety
/// As for `weft_ireadv_list`; the memory is valid for reading until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_iwritev_list(
    file: *const weft_file,
    memory_count: size_t,
    memory_offsets: *const *const c_void,
    memory_lengths: *const size_t,
    file_count: size_t,
    file_offsets: *const u64,
    file_lengths: *const u64,
) -> *mut weft_op {
    // SAFETY: as the caller promises.
    call("weft_iwritev_list", || unsafe {
        let lists =
            lists(memory_count, memory_offsets, memory_lengths, file_count, file_offsets, file_lengths)?;
        start_write(file, lists)
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
        if !unsafe { &mut **place }.pending.test() {
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
        Ok(op.pending.wait()? as ssize_t)
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
    let mut failed = false;
    for index in 0..count {
        // SAFETY: as the caller promises.
        let op = unsafe { ops.add(index) };
        // SAFETY: as the caller promises.
        if unsafe { (*op).is_null() } {
            continue;
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { weft_wait(op) };
        failed |= bytes < 0;
        if !outcomes.is_null() {
            // SAFETY: as the caller promises.
            unsafe { *outcomes.add(index) = bytes };
        }
    }
    if failed { -1 } else { 0 }
}
