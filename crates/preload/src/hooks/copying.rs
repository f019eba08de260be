//! Copies between descriptors that the kernel makes for local files. They are made here if one of the files
//! is in Weft.

use std::ffi::{c_int, c_uint, c_void};

use libc::{off_t, off64_t, size_t, ssize_t};

use super::{attributes, descriptors, files};
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
        if find(from).is_none() && find(to).is_none() {
            return copy_file_range::real(from, from_offset, to, to_offset, bytes, flags);
        }
        if flags != 0 {
            return enter(|| Err(Errno(libc::EINVAL)));
        }
        match range_bytes((from, from_offset), (to, to_offset), bytes) {
            Ok(bytes) => copy(from, from_offset, to, to_offset, bytes),
            Err(error) => {
                weft_client::c::set_errno(error);
                -1
            }
        }
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

/// How many bytes the kernel would copy by ranges: those that the file has before. Or its error: it refuses anything but
/// files, descriptors that are not open for it, and bytes of a file onto themselves.
unsafe fn range_bytes(
    from: (c_int, *const off64_t),
    to: (c_int, *const off64_t),
    bytes: size_t,
) -> Result<size_t, c_int> {
    let stat = |fd| {
        // SAFETY: zeros are a value of it, and it lives through the call.
        unsafe {
            let mut data: libc::stat = std::mem::zeroed();
            if attributes::fstat(fd, &mut data) == 0 { Ok(data) } else { Err(errno()) }
        }
    };
    let (source, goal) = (stat(from.0)?, stat(to.0)?);
    let kinds = [source, goal].map(|data| data.st_mode & libc::S_IFMT);
    if kinds.contains(&libc::S_IFDIR) {
        return Err(libc::EISDIR);
    }
    if kinds != [libc::S_IFREG; 2] {
        return Err(libc::EINVAL);
    }
    // SAFETY: no preconditions.
    let flags = |fd| unsafe { descriptors::fcntl(fd, libc::F_GETFL, 0) };
    let is_readable = flags(from.0) & libc::O_ACCMODE != libc::O_WRONLY;
    let is_writable = flags(to.0) & libc::O_ACCMODE != libc::O_RDONLY && flags(to.0) & libc::O_APPEND == 0;
    if !is_readable || !is_writable {
        return Err(libc::EBADF);
    }
    let place = |(fd, offset): (c_int, *const off64_t)| {
        // SAFETY: NULL, or the program's; the position of a file can be asked for.
        unsafe { offset.as_ref().copied().unwrap_or_else(|| files::lseek(fd, 0, libc::SEEK_CUR)) }
    };
    let (start, end) = (place(from), place(to));
    let most = bytes.min(off64_t::MAX as usize) as off64_t;
    // What the kernel makes up (/proc) has no size.
    let has_size = source.st_size > 0 || find(from.0).is_some();
    let bytes = if has_size { source.st_size.saturating_sub(start).clamp(0, most) } else { most };
    let is_same = (source.st_dev, source.st_ino) == (goal.st_dev, goal.st_ino);
    let overlaps = end.saturating_add(bytes) > start && end < start.saturating_add(bytes);
    if is_same && overlaps { Err(libc::EINVAL) } else { Ok(bytes as size_t) }
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
