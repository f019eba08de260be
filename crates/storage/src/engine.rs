//! The disk engine: how a local disk waits for its device.
//!
//! ```text
//!            read of what is not cached                        fsync, fdatasync
//!   plain    on the calling thread                             on the calling thread
//!   ring     fetched through the reactor's io_uring, many      through the ring
//!            ranges at once; then copied from the cache
//! ```
//!
//! With the ring, a read tries the page cache first (`preadv2` with `RWF_NOWAIT`). What is missing is fetched
//! into one scrap of memory that nobody looks at, and then read from the cache. So the caller's memory is never
//! in the kernel's hands while the caller may go away, and may be anything: a buffer, or a segment shared with a
//! client. The price is a second copy of bytes that came from a device, a small part of what the device costs.

use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{opcode, types};
use weft_buffers::Mapping;
use weft_layout::Extent;
use weft_reactor::ring;

use crate::limits::FETCH_BYTES_MAX;
use crate::local_file::LocalFile;

/// How a [`LocalDisk`](crate::LocalDisk) waits for its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskEngine {
    /// By system calls that wait on the calling thread: for kernels and containers without io_uring.
    Plain,
    /// Through the reactor's io_uring. On a reactor without a ring it does what `Plain` does.
    Ring,
}

impl DiskEngine {
    /// As the status of a server shows it.
    pub fn name(self) -> &'static str {
        match self {
            DiskEngine::Plain => "plain",
            DiskEngine::Ring => "ring",
        }
    }
}

/// What of a file is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// The data, and what is needed to find it: `fdatasync`.
    Data,
    /// Everything: `fsync`.
    All,
}

/// The state of the engine [`DiskEngine::Ring`].
pub(crate) struct RingEngine {
    /// Where fetched bytes land; shared by all fetches of all threads, and never read.
    scrap: Arc<Mapping>,
    /// Cleared when the file system turns out not to support `RWF_NOWAIT`.
    nowait: AtomicBool,
}

impl RingEngine {
    pub(crate) fn new() -> io::Result<RingEngine> {
        let scrap = Arc::new(Mapping::anonymous(FETCH_BYTES_MAX as usize)?);
        Ok(RingEngine { scrap, nowait: AtomicBool::new(true) })
    }

    /// Reads what is in the page cache: `None` if the first byte is not.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system cannot tell.
    pub(crate) fn read_nowait(
        &self,
        file: &LocalFile,
        offset: u64,
        to: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        if !self.nowait.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        match file.read_at(offset, to, libc::RWF_NOWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => {
                if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
                    self.nowait.store(false, Ordering::Relaxed);
                }
                Err(error)
            }
            Ok(count) => Ok(Some(count)),
        }
    }

    /// Brings ranges into the page cache. An error shows again, to the caller, when the bytes are read.
    pub(crate) async fn fetch(&self, file: &LocalFile, extents: impl Iterator<Item = Extent>) {
        let mut reads = Vec::new();
        for extent in extents {
            let end = extent.offset.saturating_add(extent.bytes);
            let mut offset = extent.offset;
            while offset < end {
                let bytes = (end - offset).min(FETCH_BYTES_MAX);
                let entry = opcode::Read::new(types::Fd(file.fd()), self.scrap.as_ptr(), bytes as u32)
                    .offset(offset)
                    .build();
                // SAFETY: the keepalive owns the descriptor and the scrap memory, which is `bytes` long at
                // least. Several reads write to the scrap at once, but no Rust reference to it exists and
                // nobody reads it.
                reads.push(unsafe { ring::submit(entry, (file.clone(), self.scrap.clone())) });
                offset += bytes;
            }
        }
        for read in reads {
            read.await;
        }
    }
}

/// Makes what `owner` keeps open durable, through the ring.
pub(crate) async fn sync_through_ring(owner: impl AsRawFd + 'static, what: Durable) -> io::Result<()> {
    let flags = match what {
        Durable::Data => types::FsyncFlags::DATASYNC,
        Durable::All => types::FsyncFlags::empty(),
    };
    let entry = opcode::Fsync::new(types::Fd(owner.as_raw_fd())).flags(flags).build();
    // SAFETY: no memory is passed, and the keepalive owns the descriptor.
    let result = unsafe { ring::submit(entry, owner) }.await;
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// The same on the calling thread.
pub(crate) fn sync_on_thread(owner: &impl AsRawFd, what: Durable) -> io::Result<()> {
    loop {
        let fd = owner.as_raw_fd();
        // SAFETY: no memory is passed.
        let result = unsafe {
            match what {
                Durable::Data => libc::fdatasync(fd),
                Durable::All => libc::fsync(fd),
            }
        };
        match result {
            0 => return Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}
