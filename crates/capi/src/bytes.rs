//! Contiguous parts of a file: one buffer, or an array of pieces, at the cursor or at an offset.
//!
//! ```text
//!   weft_read     one buffer   at the cursor ┐
//!   weft_pread    one buffer   at an offset  ├─► read: an array of iovec, which the client uses as it is
//!   weft_readv    pieces       at the cursor │
//!   weft_preadv   pieces       at an offset  ┘
//! ```

use crate::files::position;
use crate::guard::{Failure, Outcome, call};
use crate::handles::{array, borrow, weft_file};
use libc::{iovec, off_t, size_t, ssize_t};
use std::ffi::{c_int, c_void};

/// A buffer of the caller's. Nothing is written to one that is `const`.
fn buffer(memory: *const c_void, bytes: size_t) -> [iovec; 1] {
    [iovec { iov_base: memory.cast_mut(), iov_len: bytes }]
}

/// An array of the caller's.
///
/// # Safety
/// `first` has `count` pieces.
unsafe fn pieces<'a>(first: *const iovec, count: c_int) -> Outcome<&'a [iovec]> {
    let count = usize::try_from(count).map_err(|_| Failure::invalid("the number of pieces is negative"))?;
    // SAFETY: as the caller promises.
    unsafe { array(first, count) }
}

fn check(pieces: &[iovec]) -> Outcome<()> {
    match pieces.iter().any(|piece| piece.iov_base.is_null() && piece.iov_len > 0) {
        true => Err(Failure::new(libc::EFAULT, "the buffer is NULL")),
        false => Ok(()),
    }
}

/// # Safety
/// `file` is a handle; the pieces are valid for writing and nobody else's.
unsafe fn read(file: *const weft_file, pieces: &[iovec], offset: Option<off_t>) -> Outcome<ssize_t> {
    check(pieces)?;
    let offset = offset.map(position).transpose()?;
    // SAFETY: as the caller promises.
    Ok(unsafe { borrow(file)?.file.read_pieces(pieces, offset)? } as ssize_t)
}

/// # Safety
/// `file` is a handle; the pieces are valid for reading.
unsafe fn write(file: *const weft_file, pieces: &[iovec], offset: Option<off_t>) -> Outcome<ssize_t> {
    check(pieces)?;
    let offset = offset.map(position).transpose()?;
    // SAFETY: as the caller promises.
    Ok(unsafe { borrow(file)?.file.write_pieces(pieces, offset)? } as ssize_t)
}

/// Defines a function that reads or writes.
macro_rules! transfers {
    ($($name:ident($file:ident $(, $argument:ident: $kind:ty)*) $body:expr;)*) => { $(
        /// See weft.h.
        ///
        /// # Safety
        /// `file` is a handle; the memory is valid for writing if it is read into, else for reading.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($file: *const weft_file $(, $argument: $kind)*) -> ssize_t {
            // SAFETY: as the caller promises.
            call(stringify!($name), || unsafe { $body })
        }
    )* };
}

transfers! {
    weft_read(file, memory: *mut c_void, bytes: size_t) read(file, &buffer(memory, bytes), None);
    weft_write(file, memory: *const c_void, bytes: size_t) write(file, &buffer(memory, bytes), None);
    weft_pread(file, memory: *mut c_void, bytes: size_t, offset: off_t)
        read(file, &buffer(memory, bytes), Some(offset));
    weft_pwrite(file, memory: *const c_void, bytes: size_t, offset: off_t)
        write(file, &buffer(memory, bytes), Some(offset));
    weft_readv(file, list: *const iovec, count: c_int) read(file, pieces(list, count)?, None);
    weft_writev(file, list: *const iovec, count: c_int) write(file, pieces(list, count)?, None);
    weft_preadv(file, list: *const iovec, count: c_int, offset: off_t)
        read(file, pieces(list, count)?, Some(offset));
    weft_pwritev(file, list: *const iovec, count: c_int, offset: off_t)
        write(file, pieces(list, count)?, Some(offset));
}
