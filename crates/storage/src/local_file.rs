//! An open data file of a local directory.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::disk::check;
use crate::limits::IOV_MAX;

/// An open data file of a [`LocalDisk`](crate::LocalDisk).
#[derive(Clone)]
pub struct LocalFile {
    pub(crate) inner: Arc<LocalFileInner>,
}

pub(crate) struct LocalFileInner {
    pub(crate) ino: u64,
    pub(crate) file: File,
    /// Set when the file's name was made durable since it was opened.
    pub(crate) name_durable: AtomicBool,
}

impl LocalFile {
    pub(crate) fn new(ino: u64, file: File) -> Self {
        LocalFile { inner: Arc::new(LocalFileInner { ino, file, name_durable: AtomicBool::new(false) }) }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.inner.file.as_raw_fd()
    }

    /// One `preadv2` with `flags`.
    pub(crate) fn read_at(&self, offset: u64, to: &mut [IoSliceMut<'_>], flags: i32) -> io::Result<usize> {
        let count = to.len().min(IOV_MAX) as i32;
        let offset = signed(offset)?;
        // SAFETY: IoSliceMut has the layout of iovec, and the slices are live and writable for the call.
        check(unsafe { libc::preadv2(self.fd(), to.as_mut_ptr().cast(), count, offset, flags) })
    }

    /// `fallocate` with `mode`, for any range but an empty one.
    pub(crate) fn fallocate(&self, mode: i32, offset: u64, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (offset, bytes) = (signed(offset)?, signed(bytes)?);
        loop {
            // SAFETY: no memory is passed.
            if unsafe { libc::fallocate(self.fd(), mode, offset, bytes) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl AsRawFd for LocalFile {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}

/// An offset or length as the kernel wants it.
pub(crate) fn signed(number: u64) -> io::Result<i64> {
    i64::try_from(number).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}
