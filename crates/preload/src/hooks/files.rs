//! Reading, writing, and other operations on the contents of open files.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::{iovec, off_t, size_t, ssize_t};
use weft_layout::{Extent, Regions};

use crate::guard::{Errno, Outcome, enter};
use crate::real::hooks;
use crate::shared::Kind;
use crate::table::{Use, find, is_ending};
use crate::{lock_sessions, privileges};

/// Upper limit of bytes that the kernel moves in one call.
const MOVED_BYTES_MAX: usize = 0x7fff_f000;
const IOV_MAX: usize = 1024;

hooks! {
    fn read = __read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t where fd is open {
        read_next(&open, &one(buffer, bytes))
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, room: size_t) -> ssize_t {
        match find(fd) {
            Some(_) if bytes <= room => read(fd, buffer, bytes),
            _ => __read_chk::real(fd, buffer, bytes, room),
        }
    }

    fn write = __write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t where fd is open {
        write_next(&open, one(buffer, bytes), appends(&open))
    }

    fn pread = pread64 = __pread64(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t
    where fd is open {
        read_at(&open, &one(buffer, bytes), place(offset)?)
    }

    fn __pread_chk = __pread64_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t {
        match find(fd) {
            Some(_) if bytes <= room => pread(fd, buffer, bytes, offset),
            _ => __pread_chk::real(fd, buffer, bytes, offset, room),
        }
    }

    fn pwrite = pwrite64 = __pwrite64(fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t) -> ssize_t
    where fd is open {
        write_there(&open, one(buffer, bytes), place(offset)?, appends(&open))
    }

    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t where fd is open {
        read_next(&open, &pieces(list, count)?)
    }

    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t where fd is open {
        write_next(&open, pieces(list, count)?, appends(&open))
    }

    fn preadv = preadv64(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t where fd is open {
        read_at(&open, &pieces(list, count)?, place(offset)?)
    }

    fn pwritev = pwritev64(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t where fd is open {
        write_there(&open, pieces(list, count)?, place(offset)?, appends(&open))
    }

    fn preadv2 = preadv64v2(fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        match find(fd) {
            None => preadv2::real(fd, list, count, offset, flags),
            Some(_) if flags & !libc::RWF_HIPRI != 0 => enter(|| Err(Errno(libc::EOPNOTSUPP))),
            Some(_) if offset == -1 => readv(fd, list, count),
            Some(_) => preadv(fd, list, count, offset),
        }
    }

    fn pwritev2 = pwritev64v2(fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        match find(fd) {
            None => pwritev2::real(fd, list, count, offset, flags),
            Some(_) if flags & !WRITE_FLAGS != 0 => enter(|| Err(Errno(libc::EOPNOTSUPP))),
            Some(open) => enter(|| {
                let appends = flags & libc::RWF_APPEND != 0 || appends(&open);
                let written = match offset {
                    -1 => write_next(&open, pieces(list, count)?, appends)?,
                    _ => write_there(&open, pieces(list, count)?, place(offset)?, appends)?,
                };
                if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
                    sync(&open)?;
                }
                Ok(written)
            }),
        }
    }

    fn lseek = lseek64 = __lseek = llseek(fd: c_int, offset: off_t, whence: c_int) -> off_t where fd is open {
        seek(&open, offset, whence)
    }

    fn fsync(fd: c_int) -> c_int where fd is open { sync(&open) }

    fn fdatasync(fd: c_int) -> c_int where fd is open { sync(&open) }

    fn syncfs(fd: c_int) -> c_int where fd is open { sync(&open) }

    fn sync_file_range(fd: c_int, offset: off_t, bytes: off_t, flags: std::ffi::c_uint) -> c_int where fd is open {
        sync(&open)
    }

    fn ftruncate = ftruncate64(fd: c_int, bytes: off_t) -> c_int where fd is open { cut(&open, bytes) }

    fn fallocate = fallocate64(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int where fd is open {
        allocate(&open, mode, offset, bytes)
    }

    fn posix_fallocate = posix_fallocate64(fd: c_int, offset: off_t, bytes: off_t) -> c_int {
        match find(fd) {
            None => posix_fallocate::real(fd, offset, bytes),
            Some(open) => match crate::guard::within(|| allocate(&open, 0, offset, bytes)) {
                Ok(_) => 0,
                Err(Errno(errno)) => errno,
            },
        }
    }

    fn posix_fadvise = posix_fadvise64(fd: c_int, offset: off_t, bytes: off_t, advice: c_int) -> c_int {
        match find(fd) {
            None => posix_fadvise::real(fd, offset, bytes, advice),
            Some(_) => 0,
        }
    }

    fn readahead(fd: c_int, offset: off_t, bytes: size_t) -> ssize_t {
        match find(fd) {
            None => readahead::real(fd, offset, bytes),
            Some(_) => 0,
        }
    }
}

/// Flags of `pwritev2` that are known here.
const WRITE_FLAGS: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;

fn appends(open: &Use) -> bool {
    open.flags() & libc::O_APPEND != 0
}

fn place(offset: off_t) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Errno(libc::EINVAL))
}

fn one(buffer: *const c_void, bytes: size_t) -> Regions {
    Regions::contiguous(buffer as u64, bytes.min(MOVED_BYTES_MAX) as u64)
}

/// # Safety
/// The list has `count` pieces.
unsafe fn pieces(list: *const iovec, count: c_int) -> Outcome<Regions> {
    let count = usize::try_from(count).ok().filter(|count| *count <= IOV_MAX).ok_or(Errno(libc::EINVAL))?;
    // SAFETY: as the caller promises.
    let list = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(list, count) } };
    let extent = |piece: &iovec| Extent { offset: piece.iov_base as u64, bytes: piece.iov_len as u64 };
    Ok(Regions::list(list.iter().filter(|piece| piece.iov_len > 0).map(extent).collect::<Vec<_>>()))
}

/// Reads from `offset` on.
pub(crate) fn read_at(open: &Use, memory: &Regions, offset: u64) -> Outcome<ssize_t> {
    let file = open.file()?;
    open.check_readable()?;
    lock_sessions::check(open)?;
    let bytes = memory.total_bytes();
    if bytes == 0 {
        return Ok(0);
    }
    // SAFETY: the program passes this memory to be written.
    let read = unsafe { file.read_raw(std::ptr::null_mut(), memory, &Regions::contiguous(offset, bytes)) };
    Ok(read? as ssize_t)
}

/// Writes from `offset` on.
fn write_at(open: &Use, memory: &Regions, offset: u64) -> Outcome<ssize_t> {
    let bytes = memory.total_bytes();
    open.note_written();
    let regions = Regions::contiguous(offset, bytes);
    // SAFETY: the program passes this memory to be read.
    let written = unsafe { open.file()?.write_raw(std::ptr::null(), memory, &regions) }? as ssize_t;
    if is_ending() {
        open.report()?;
    }
    Ok(written)
}

/// Writes at the end of the file. Returns the new end.
fn append(open: &Use, memory: &Regions) -> Outcome<u64> {
    open.note_written();
    let end = open.file()?.append(&gathered(memory))? + memory.total_bytes();
    if is_ending() {
        open.report()?;
    }
    Ok(end)
}

/// Checks before every write: whether it may be made, how many of its bytes, and which privileges the file
/// loses. `offset` is `None` for an append.
fn before_write(open: &Use, memory: Regions, offset: Option<u64>) -> Outcome<Regions> {
    let file = open.file().map_err(|error| match error {
        Errno(libc::EISDIR) => Errno(libc::EBADF),
        other => other,
    })?;
    open.check_writable()?;
    lock_sessions::check(open)?;
    let bytes = memory.total_bytes();
    if bytes == 0 {
        return Ok(memory);
    }
    let room = match (largest_file_bytes(), offset) {
        (u64::MAX, _) => bytes,
        (largest, Some(offset)) => largest.saturating_sub(offset),
        (largest, None) => largest.saturating_sub(file.stat()?.size),
    };
    if room == 0 {
        return Err(beyond_the_limit());
    }
    privileges::take_away(open)?;
    Ok(if room < bytes { first_bytes(&memory, room) } else { memory })
}

/// The size limit of files for this process (`RLIMIT_FSIZE`).
fn largest_file_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a live place.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    if limit.rlim_cur == libc::RLIM_INFINITY { u64::MAX } else { limit.rlim_cur }
}

/// Reports that a file would exceed the size limit, as the kernel does: also by a signal.
fn beyond_the_limit() -> Errno {
    // SAFETY: no preconditions. The signal is delivered when the call is over.
    unsafe { libc::raise(libc::SIGXFSZ) };
    Errno(libc::EFBIG)
}

/// Fails if this size exceeds both the limit and the file's current size.
pub(crate) fn check_size(wanted_bytes: u64, size: impl FnOnce() -> Outcome<u64>) -> Outcome<()> {
    let largest = largest_file_bytes();
    if largest != u64::MAX && wanted_bytes > largest && wanted_bytes > size()? {
        return Err(beyond_the_limit());
    }
    Ok(())
}

fn first_bytes(memory: &Regions, mut bytes: u64) -> Regions {
    let mut kept = Vec::new();
    for extent in memory.extents() {
        let part = extent.bytes.min(bytes);
        if part > 0 {
            kept.push(Extent { offset: extent.offset, bytes: part });
        }
        bytes -= part;
    }
    Regions::list(kept)
}

/// Reads at the descriptor's position. Concurrent readers get different bytes: one that finds that another
/// has moved the position reads again.
pub(crate) fn read_next(open: &Use, memory: &Regions) -> Outcome<ssize_t> {
    let position = &open.shared().position;
    loop {
        let offset = position.load(Ordering::Acquire);
        let read = read_at(open, memory, offset)?;
        let after = offset + read as u64;
        if position.compare_exchange(offset, after, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return Ok(read);
        }
    }
}

/// Writes at the descriptor's position, or at the end of the file. Concurrent writers write one after the
/// other.
pub(crate) fn write_next(open: &Use, memory: Regions, appends: bool) -> Outcome<ssize_t> {
    let position = &open.shared().position;
    let here = (!appends).then(|| position.load(Ordering::Acquire));
    let memory = before_write(open, memory, here)?;
    let bytes = memory.total_bytes();
    if bytes == 0 {
        return Ok(0);
    }
    if appends {
        position.store(append(open, &memory)?, Ordering::Release);
        return Ok(bytes as ssize_t);
    }
    let offset = position.fetch_add(bytes, Ordering::AcqRel);
    let written = write_at(open, &memory, offset);
    if written.is_err() {
        let _ = position.compare_exchange(offset + bytes, offset, Ordering::AcqRel, Ordering::Acquire);
    }
    written
}

/// Writes from `offset` on, or at the end of the file, as on Linux.
fn write_there(open: &Use, memory: Regions, offset: u64, appends: bool) -> Outcome<ssize_t> {
    let memory = before_write(open, memory, (!appends).then_some(offset))?;
    match (memory.total_bytes(), appends) {
        (0, _) => Ok(0),
        (bytes, true) => append(open, &memory).map(|_| bytes as ssize_t),
        (_, false) => write_at(open, &memory, offset),
    }
}

/// Truncates or extends an open file.
fn cut(open: &Use, bytes: off_t) -> Outcome<c_int> {
    if open.flags() & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(Errno(libc::EINVAL));
    }
    let (file, bytes) = (open.file()?, place(bytes)?);
    lock_sessions::check(open)?;
    check_size(bytes, || Ok(file.stat()?.size))?;
    privileges::take_away(open)?;
    file.truncate(bytes)?;
    Ok(0)
}

fn gathered(memory: &Regions) -> Vec<u8> {
    let mut all = Vec::with_capacity(memory.total_bytes() as usize);
    for extent in memory.extents() {
        // SAFETY: the program passes this memory to be read.
        all.extend_from_slice(unsafe {
            std::slice::from_raw_parts(extent.offset as *const u8, extent.bytes as usize)
        });
    }
    all
}

/// Changes the position.
fn seek(open: &Use, offset: off_t, whence: c_int) -> Outcome<off_t> {
    if open.kind() == Kind::Path {
        return Err(Errno(libc::EBADF));
    }
    let shared = open.shared();
    let size = || -> Outcome<off_t> { Ok(open.file()?.stat()?.size as off_t) };
    let base = match whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => shared.position.load(Ordering::Acquire) as off_t,
        libc::SEEK_END => size()?,
        libc::SEEK_DATA | libc::SEEK_HOLE => {
            let (file, from) = (open.file()?, u64::try_from(offset).map_err(|_| Errno(libc::ENXIO))?);
            let found = if whence == libc::SEEK_DATA { file.seek_data(from)? } else { file.seek_hole(from)? };
            found.ok_or(Errno(libc::ENXIO))? as off_t - offset
        }
        _ => return Err(Errno(libc::EINVAL)),
    };
    let to = base.checked_add(offset).ok_or(Errno(libc::EOVERFLOW))?;
    shared.position.store(place(to)?, Ordering::Release);
    Ok(to)
}

fn sync(open: &Use) -> Outcome<c_int> {
    match open.kind() {
        Kind::File => {
            super::map::write_file_back(open.shared().ino)?;
            open.file()?.sync_data()?;
            open.report()?;
        }
        Kind::Directory => open.mount.made()?.client.sync_names()?,
        Kind::Path => return Err(Errno(libc::EBADF)),
    }
    Ok(0)
}

fn allocate(open: &Use, mode: c_int, offset: off_t, bytes: off_t) -> Outcome<c_int> {
    const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: c_int = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    if bytes <= 0 {
        return Err(Errno(libc::EINVAL));
    }
    let (offset, bytes) = (place(offset)?, place(bytes)?);
    open.check_writable()?;
    let (file, keep_size) = (open.file()?, mode & libc::FALLOC_FL_KEEP_SIZE != 0);
    lock_sessions::check(open)?;
    if !keep_size {
        check_size(offset.saturating_add(bytes), || Ok(file.stat()?.size))?;
    }
    privileges::take_away(open)?;
    open.note_written();
    match mode {
        0 | libc::FALLOC_FL_KEEP_SIZE => file.allocate(offset, bytes, keep_size)?,
        PUNCH => file.punch(offset, bytes)?,
        libc::FALLOC_FL_ZERO_RANGE | ZERO_KEEP => file.zero(offset, bytes, keep_size)?,
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    }
    Ok(0)
}
