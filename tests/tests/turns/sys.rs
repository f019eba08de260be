//! System calls that the standard library does not have.

use libc::{c_int, c_void};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

const XATTR_LIST_BYTES: usize = 4096;

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero in a path")
}

fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn none(result: c_int) -> io::Result<()> {
    count(result as isize).map(drop)
}

pub fn rename_with(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c(from), c(to));
    // SAFETY: both paths end with a zero.
    none(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) })
}

/// Of a link itself.
pub fn set_times(path: &Path, seconds: i64) -> io::Result<()> {
    let (path, time) = (c(path), libc::timespec { tv_sec: seconds, tv_nsec: 7 });
    let times = [time, time];
    // SAFETY: the path ends with a zero, and there are two times.
    none(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) })
}

pub fn set_times_of(file: &File, seconds: i64) -> io::Result<()> {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 7 };
    let times = [time, time];
    // SAFETY: there are two times.
    none(unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) })
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8], flags: c_int) -> io::Result<()> {
    let (path, name) = (c(path), c(Path::new(name)));
    // SAFETY: both strings end with a zero, and the length is the value's.
    none(unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) })
}

pub fn xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (c(path), c(Path::new(name)));
    let mut value = vec![0; XATTR_LIST_BYTES];
    // SAFETY: both strings end with a zero, and the length is the buffer's.
    let bytes = count(unsafe {
        libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    })?;
    value.truncate(bytes);
    Ok(value)
}

pub fn remove_xattr(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (c(path), c(Path::new(name)));
    // SAFETY: both strings end with a zero.
    none(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) })
}

pub fn xattrs(path: &Path) -> io::Result<Vec<String>> {
    let (path, mut list) = (c(path), vec![0_u8; XATTR_LIST_BYTES]);
    // SAFETY: the path ends with a zero, and the length is the buffer's.
    let bytes = count(unsafe { libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) })?;
    let names = list[..bytes].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

pub fn fallocate(file: &File, mode: c_int, offset: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: no preconditions.
    none(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, bytes as i64) })
}

pub fn copy_range(from: (&File, u64), to: (&File, u64), bytes: usize) -> io::Result<usize> {
    let (mut start, mut end) = (from.1 as i64, to.1 as i64);
    // SAFETY: both offsets live through the call.
    count(unsafe {
        libc::copy_file_range(from.0.as_raw_fd(), &mut start, to.0.as_raw_fd(), &mut end, bytes, 0)
    })
}

pub fn flock(file: &File, how: c_int) -> io::Result<()> {
    // SAFETY: no preconditions.
    none(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) })
}

/// A lock of the open file, on a range.
pub fn lock_range(file: &File, kind: c_int, start: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: zeros are a value of it.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as i16, libc::SEEK_SET as i16);
    (lock.l_start, lock.l_len) = (start as i64, bytes as i64);
    // SAFETY: the call reads a lock, which lives through it.
    none(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) })
}

pub fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// From now on this thread acts as the user, who is in no other group than that of the same number.
pub fn act_as(user: u32) -> io::Result<()> {
    // SAFETY: the calls as such, which concern this thread alone; an empty list of groups has no address.
    let results = unsafe {
        [
            libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()),
            libc::syscall(libc::SYS_setresgid, user, user, user),
            libc::syscall(libc::SYS_setresuid, user, user, user),
        ]
    };
    results.into_iter().try_for_each(|result| count(result as isize).map(drop))
}

/// A shared mapping of a file from its beginning.
pub struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the pages may be used from any thread; tests use them from one at a time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(file: &File, bytes: usize) -> io::Result<Mapping> {
        // SAFETY: the kernel chooses the place.
        let start = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Mapping { start, bytes }) }
    }

    /// The bytes from `offset` on; all of them must be within the mapping and the file.
    pub fn load(&self, offset: usize, data: &mut [u8]) {
        assert!(offset + data.len() <= self.bytes);
        // SAFETY: the range is within the mapping, and as the caller says within the file.
        unsafe {
            ptr::copy_nonoverlapping(self.start.cast::<u8>().add(offset), data.as_mut_ptr(), data.len())
        };
    }

    /// As [`load`](Mapping::load), the other way.
    pub fn store(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.bytes);
        // SAFETY: the range is within the mapping, and as the caller says within the file.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.start.cast::<u8>().add(offset), data.len()) };
    }

    /// What was stored is in the file.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping's own range.
        none(unsafe { libc::msync(self.start, self.bytes, libc::MS_SYNC) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping's own range, which nobody uses any longer.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}
