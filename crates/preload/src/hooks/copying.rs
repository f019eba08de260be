//! Copies between descriptors that the kernel makes for local files. They are made here if one of the files
//! is in Weft.

use std::ffi::{c_int, c_uint, c_void};

use libc::{off_t, off64_t, size_t, ssize_t};

use super::files;
use crate::guard::{Errno, enter, errno};
use crate::real::hooks;
use crate::table::find;

const PIECE_BYTES: usize = 1 << 20;

hooks! {
    fn sendfile = sendfile64(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t) -> ssize_t {
        if find(to).is_none() && find(from).is_none() {
            return sendfile::real(to, from, offset, bytes);
        }
        copy(from, offset, to, std::ptr::null_mut(), bytes)
    }

    fn copy_file_range(
        from: c_int,
        from_offset: *mut off64_t,
        to: c_int,
        to_offset: *mut off64_t,
        bytes: size_t,
        flags: c_uint,
    ) -> ssize_t {
        let (source, goal) = (find(from), find(to));
        if source.is_none() && goal.is_none() {
            return copy_file_range::real(from, from_offset, to, to_offset, bytes, flags);
        }
        if flags != 0 {
            return enter(|| Err(Errno(libc::EINVAL)));
        }
        if goal.is_some_and(|goal| goal.flags() & libc::O_APPEND != 0) {
            return enter(|| Err(Errno(libc::EBADF)));
        }
        copy(from, from_offset, to, to_offset, bytes)
    }

    fn splice(
        from: c_int,
        from_offset: *mut off64_t,
        to: c_int,
        to_offset: *mut off64_t,
        bytes: size_t,
        flags: c_uint,
    ) -> ssize_t {
        if find(from).is_some() || find(to).is_some() {
            // The kernel's error for files that do not support it. Programs then read and write.
            return enter(|| Err(Errno(libc::EINVAL)));
        }
        splice::real(from, from_offset, to, to_offset, bytes, flags)
    }
}

/// Mapped memory for copies.
struct Buffer(*mut c_void);

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: a whole mapping.
        unsafe { libc::syscall(libc::SYS_munmap, self.0, PIECE_BYTES) };
    }
}

/// Copies up to `bytes`, by one or several reads and writes. Given offsets advance instead of the
/// descriptors' positions.
unsafe fn copy(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    bytes: size_t,
) -> ssize_t {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let place = unsafe { libc::syscall(libc::SYS_mmap, 0usize, PIECE_BYTES, protection, flags, -1, 0usize) };
    if place == -1 {
        return -1;
    }
    let buffer = Buffer(place as *mut c_void);
    let mut moved = 0;
    while moved < bytes {
        let piece = (bytes - moved).min(PIECE_BYTES);
        // SAFETY: the buffer is live and large enough; offsets are NULL or the program's.
        let (read, written) = unsafe {
            let read = match from_offset.as_ref() {
                Some(offset) => files::pread(from, buffer.0, piece, *offset),
                None => files::read(from, buffer.0, piece),
            };
            if read <= 0 {
                (read, 0)
            } else {
                let written = match to_offset.as_ref() {
                    Some(offset) => files::pwrite(to, buffer.0, read as size_t, *offset),
                    None => files::write(to, buffer.0, read as size_t),
                };
                (read, written)
            }
        };
        let count = written.max(0);
        if read > count && from_offset.is_null() {
            let before = errno();
            // SAFETY: no preconditions. Bytes that were read but not written are to be read again.
            unsafe { files::lseek(from, (count - read) as off_t, libc::SEEK_CUR) };
            weft_client::c::set_errno(before);
        }
        // SAFETY: NULL, or the program's.
        unsafe {
            from_offset.as_mut().into_iter().for_each(|offset| *offset += count as off_t);
            to_offset.as_mut().into_iter().for_each(|offset| *offset += count as off_t);
        }
        moved += count as usize;
        if read < 0 || written < 0 {
            return if moved > 0 { moved as ssize_t } else { -1 };
        }
        if read == 0 || written < read {
            break;
        }
    }
    moved as ssize_t
}
