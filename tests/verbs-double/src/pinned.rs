//! Pages that the kernel pins for us as it does for an adapter, without one: as registered buffers of an io_uring.
//!
//! Such a buffer stands for the pages that were there when it was registered, whatever is mapped at its address later. Bytes
//! go in and out through a file in memory, because a registered buffer can only be the memory side of reading or writing
//! a file:
//!
//! ```text
//!   copy_out:  pinned pages ── write ──► file ── pread ──► bytes
//!   copy_in:   bytes ── pwrite ──► file ── read ──► pinned pages
//! ```

use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

/// As many registered buffers as an io_uring may have.
pub(crate) const SLOTS: u32 = 1 << 14;
/// The largest of them.
pub(crate) const SLOT_BYTES_MAX: u64 = 1 << 30;

pub(crate) struct PinnedPages {
    ring: IoUring,
    file: File,
    free: Vec<u32>,
}

impl PinnedPages {
    pub(crate) fn new() -> io::Result<PinnedPages> {
        let ring = IoUring::new(8)?;
        ring.submitter().register_buffers_sparse(SLOTS)?;
        // SAFETY: a name that ends with 0, and a flag.
        let fd = unsafe { libc::memfd_create(c"pretended-link".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        Ok(PinnedPages { ring, file, free: (0..SLOTS).rev().collect() })
    }

    /// Pins memory and gives its slot.
    pub(crate) fn pin(&mut self, address: u64, bytes: u64) -> io::Result<u32> {
        let slot = self.free.pop().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        self.fill(slot, address, bytes).inspect_err(|_| self.free.push(slot))?;
        Ok(slot)
    }

    pub(crate) fn unpin(&mut self, slot: u32) {
        if self.fill(slot, 0, 0).is_ok() {
            self.free.push(slot);
        }
    }

    fn fill(&self, slot: u32, address: u64, bytes: u64) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: address as *mut _, iov_len: bytes as usize };
        // SAFETY: the kernel pins the pages; that they are written to is what whoever registers them allows.
        unsafe { self.ring.submitter().register_buffers_update(slot, &[buffer], None) }
    }

    pub(crate) fn copy_out(&mut self, slot: u32, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let file = types::Fd(self.file.as_raw_fd());
        let length = bytes.len() as u32;
        self.do_whole(
            opcode::WriteFixed::new(file, address as *const u8, length, slot as u16).build(),
            length,
        )?;
        self.file.read_exact_at(bytes, 0)
    }

    pub(crate) fn copy_in(&mut self, slot: u32, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, 0)?;
        let file = types::Fd(self.file.as_raw_fd());
        let length = bytes.len() as u32;
        self.do_whole(opcode::ReadFixed::new(file, address as *mut u8, length, slot as u16).build(), length)
    }

    fn do_whole(&mut self, entry: io_uring::squeue::Entry, length: u32) -> io::Result<()> {
        // SAFETY: the buffer is registered in its slot; the file outlives the call, which waits for the end.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        // A wait that is interrupted after the submission counts as a success, without an end.
        let result = loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if let Some(done) = self.ring.completion().next() {
                break done.result();
            }
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        if result as u32 == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}
