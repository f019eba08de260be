//! Split collectives: one call begins an access, another one ends it (MPI 4.0, 14.4.5). The first one carries
//! it out; MPI lets an implementation choose, and a program's memory is free for longer in this way.

use std::ffi::c_void;

use crate::error::{Class, MpiError, Result};
use crate::file::{MpiFile, Split, SplitKind};
use crate::sync::lock;

/// That none is under way: a file has one at most.
pub fn check_free(file: &MpiFile) -> Result<()> {
    match *lock(&file.split) {
        None => Ok(()),
        Some(_) => {
            let text = "a split collective is under way on this file; end it before another one is begun";
            Err(MpiError::new(Class::Other, text))
        }
    }
}

/// Keeps the result of one that was begun.
pub fn begun(file: &MpiFile, split: Split) {
    *lock(&file.split) = Some(split);
}

/// Ends it.
///
/// # Errors
/// Where none of this kind was begun, or with another buffer.
///
/// # Safety
/// `status` is the program's.
pub unsafe fn end(file: &MpiFile, kind: SplitKind, buffer: usize, status: *mut c_void) -> Result<()> {
    let mut split = lock(&file.split);
    let wrong = |text: &str| Err(MpiError::new(Class::Other, text));
    match &*split {
        None => wrong("a split collective is ended that was not begun, or whose beginning failed"),
        Some(begun) if begun.kind != kind => {
            wrong("a split collective is ended by the function of another one")
        }
        Some(begun) if begun.buffer != buffer => {
            wrong("a split collective is ended with another buffer than it was begun with")
        }
        Some(begun) => {
            // SAFETY: the caller's promise.
            unsafe { file.mpi.set_status(status, begun.bytes) };
            *split = None;
            Ok(())
        }
    }
}
