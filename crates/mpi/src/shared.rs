//! Memory that processes of one host share: a file in memory, which the others open through `/proc`. It has no
//! name, so nothing of it is left when they end.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

/// A part of the memory of several processes.
pub struct Shared {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory at an address that is valid in all threads.
unsafe impl Send for Shared {}

/// A file in memory, of `bytes` zeros. Memory is taken as it is touched.
pub fn file(bytes: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name is a string.
    let fd = checked(unsafe { libc::memfd_create(c"weft-mpi".as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: it was made above, and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is passed.
    checked(unsafe { libc::ftruncate(fd.as_raw_fd(), length) })?;
    Ok(fd)
}

fn checked(code: libc::c_int) -> io::Result<libc::c_int> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}

impl Shared {
    /// The first `bytes` of descriptor `fd` of process `process`, which is open there until this returns.
    pub fn of(process: u64, fd: u64, bytes: usize) -> io::Result<Shared> {
        let path = CString::new(format!("/proc/{process}/fd/{fd}"))?;
        // SAFETY: the path is a string.
        let fd = checked(unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) })?;
        // SAFETY: it was opened above, and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zeros are a valid status.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the status is written.
        checked(unsafe { libc::fstat(fd.as_raw_fd(), &mut status) })?;
        if (status.st_size as u64) < bytes as u64 {
            // Another file than was meant: the process is one of another namespace.
            return Err(io::ErrorKind::InvalidData.into());
        }
        Shared::mapped(bytes, libc::MAP_SHARED, fd.as_raw_fd())
    }

    /// Memory of this process alone.
    pub fn own(bytes: usize) -> io::Result<Shared> {
        Shared::mapped(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
    }

    fn mapped(bytes: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Shared> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Shared { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::Other)?, bytes })
    }

    /// Where it begins: at a page.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `of`; who has an address of it has this, too.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_the_same_memory() {
        let file = file(10_000).unwrap();
        let open = |bytes| Shared::of(u64::from(std::process::id()), file.as_raw_fd() as u64, bytes);
        let (one, two) = (open(10_000).unwrap(), open(10_000).unwrap());
        // SAFETY: both are mapped, and have so many bytes.
        unsafe {
            one.base().as_ptr().add(9_999).write(77);
            assert_eq!(two.base().as_ptr().add(9_999).read(), 77);
        }
        assert!(open(1 << 20).is_err());
        drop(file);
        assert!(Shared::of(u64::MAX, 3, 1).is_err());
    }
}
