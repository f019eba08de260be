//! The disk over io_uring.
//!
//! A read tries the page cache first (`preadv2` with `RWF_NOWAIT`). What is not there is brought there
//! by reads through the ring, all missing ranges at once, into one scrap of memory that nobody looks
//! at; then it is read from the cache. The caller's memory is thus never in the kernel's hands while
//! the caller may go away, and may be anything: a buffer, or a segment shared with a client. The price
//! is a second copy of bytes that came from a device, a small part of what the device costs.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{opcode, types};
use weft_layout::Extent;
use weft_reactor::ring;

use crate::buffers::Mapping;
use crate::directory::{Identity, SumsDirectory};
use crate::disk::{Disk, ObjectInfo, Seek, Space};
use crate::error::StorageError;
use crate::limits::FETCH_BYTES_MAX;
use crate::plain::{LocalFile, PlainDisk, read_at};
use crate::state::RandomId;

/// Data files in a local directory; waits for the device go through the reactor's io_uring. On a
/// reactor without a ring it does what [`PlainDisk`] does.
pub struct RingDisk {
    plain: PlainDisk,
    /// Where fetched bytes land; shared by all fetches of all threads, and never read.
    scrap: Arc<Mapping>,
    /// Cleared when the file system turns out not to support `RWF_NOWAIT`.
    nowait: AtomicBool,
}

impl RingDisk {
    /// Opens the storage directory of a server; see [`Directory::open`](crate::Directory::open).
    ///
    /// # Errors
    /// As [`Directory::open`](crate::Directory::open), or [`StorageError::Whole`] if there is no memory.
    pub fn open(path: &Path, identity: &Identity) -> Result<RingDisk, StorageError> {
        let plain = PlainDisk::open(path, identity)?;
        let scrap = Mapping::anonymous(FETCH_BYTES_MAX as usize)
            .map_err(|source| StorageError::Whole { what: "map memory for", source })?;
        Ok(RingDisk { plain, scrap: Arc::new(scrap), nowait: AtomicBool::new(true) })
    }

    /// Which storage it is.
    pub fn storage(&self) -> RandomId {
        self.plain.storage()
    }

    /// The ring reads that fetch one extent, already queued.
    fn fetch_one(&self, file: &LocalFile, extent: Extent, reads: &mut Vec<ring::Completion>) {
        let mut offset = extent.offset;
        let end = extent.offset.saturating_add(extent.bytes);
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

    /// Runs `fsync` or `fdatasync` through the ring on what `owner` keeps open.
    async fn sync_through_ring(owner: impl AsRawFd + 'static, flags: types::FsyncFlags) -> io::Result<()> {
        let entry = opcode::Fsync::new(types::Fd(owner.as_raw_fd())).flags(flags).build();
        // SAFETY: no memory is passed, and the keepalive owns the descriptor.
        let result = unsafe { ring::submit(entry, owner) }.await;
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }
}

impl AsRawFd for LocalFile {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}

impl Disk for RingDisk {
    type File = LocalFile;

    fn open(&self, ino: u64) -> io::Result<Option<LocalFile>> {
        self.plain.open(ino)
    }

    fn create(&self, ino: u64) -> io::Result<LocalFile> {
        self.plain.create(ino)
    }

    fn note(&self, file: &LocalFile, note: &[u8]) -> io::Result<()> {
        self.plain.note(file, note)
    }

    fn noted(&self, ino: u64) -> io::Result<Option<Vec<u8>>> {
        self.plain.noted(ino)
    }

    fn remove(&self, ino: u64) -> io::Result<bool> {
        self.plain.remove(ino)
    }

    fn size_of(&self, ino: u64) -> io::Result<Option<u64>> {
        self.plain.size_of(ino)
    }

    fn list(&self, after: Option<u64>, max: usize) -> io::Result<Vec<ObjectInfo>> {
        self.plain.list(after, max)
    }

    fn space(&self) -> io::Result<Space> {
        self.plain.space()
    }

    fn size(&self, file: &LocalFile) -> io::Result<u64> {
        self.plain.size(file)
    }

    fn truncate(&self, file: &LocalFile, bytes: u64) -> io::Result<()> {
        self.plain.truncate(file, bytes)
    }

    fn punch(&self, file: &LocalFile, offset: u64, bytes: u64) -> io::Result<()> {
        self.plain.punch(file, offset, bytes)
    }

    fn allocate(&self, file: &LocalFile, offset: u64, bytes: u64, keep_size: bool) -> io::Result<()> {
        self.plain.allocate(file, offset, bytes, keep_size)
    }

    fn zero(&self, file: &LocalFile, offset: u64, bytes: u64) -> io::Result<()> {
        self.plain.zero(file, offset, bytes)
    }

    fn seek(&self, file: &LocalFile, offset: u64, what: Seek) -> io::Result<Option<u64>> {
        self.plain.seek(file, offset, what)
    }

    fn copy_some(
        &self,
        from: &LocalFile,
        from_offset: u64,
        to: &LocalFile,
        to_offset: u64,
        bytes: u64,
    ) -> io::Result<u64> {
        self.plain.copy_some(from, from_offset, to, to_offset, bytes)
    }

    fn read_cached(
        &self,
        file: &LocalFile,
        offset: u64,
        to: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        if self.plain.directory.always_resident() || !ring::is_available() {
            return self.plain.read_cached(file, offset, to);
        }
        if self.nowait.load(Ordering::Relaxed) {
            match read_at(file, offset, to, libc::RWF_NOWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    self.nowait.store(false, Ordering::Relaxed);
                }
                result => return result.map(Some),
            }
        }
        let bytes = to.iter().map(|slice| slice.len() as u64).sum();
        if self.resident(file, Extent { offset, bytes }) {
            return self.plain.read_cached(file, offset, to);
        }
        Ok(None)
    }

    fn read_blocking(&self, file: &LocalFile, offset: u64, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.plain.read_blocking(file, offset, to)
    }

    async fn fetch(&self, file: &LocalFile, extents: &[Extent]) {
        if !ring::is_available() {
            return;
        }
        let mut reads = Vec::new();
        for extent in extents {
            if !self.resident(file, *extent) {
                self.fetch_one(file, *extent, &mut reads);
            }
        }
        for read in reads {
            // An error shows again, to the caller, when the bytes are read.
            read.await;
        }
    }

    fn resident(&self, file: &LocalFile, extent: Extent) -> bool {
        self.plain.resident(file, extent)
    }

    async fn write_some(&self, file: &LocalFile, offset: u64, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.plain.write_some(file, offset, from).await
    }

    async fn sync(&self, file: &LocalFile) -> io::Result<()> {
        if !ring::is_available() {
            return self.plain.sync(file).await;
        }
        Self::sync_through_ring(file.clone(), types::FsyncFlags::DATASYNC).await?;
        if !file.inner.name_durable.load(Ordering::Acquire) {
            let above = &self.plain.directory;
            for directory in above.directories_to_sync(file.inner.ino)? {
                let synced = Self::sync_through_ring(directory, types::FsyncFlags::empty()).await;
                synced.inspect_err(|_| above.note_broken())?;
            }
            above.directories_are_durable(file.inner.ino);
            file.inner.name_durable.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn sync_whole(&self) -> io::Result<bool> {
        self.plain.sync_whole()
    }

    fn raw_fd(&self, file: &LocalFile) -> Option<RawFd> {
        self.plain.raw_fd(file)
    }

    fn sums(&self) -> Option<&SumsDirectory> {
        self.plain.sums()
    }

    async fn sync_sums(&self, sidecar: &Arc<File>) -> io::Result<()> {
        if !ring::is_available() {
            return self.plain.sync_sums(sidecar).await;
        }
        Self::sync_through_ring(sidecar.try_clone()?, types::FsyncFlags::DATASYNC).await
    }
}
