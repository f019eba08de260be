//! Data files in a local directory.
//!
//! ```text
//!   LocalDisk ─┬─ Directory    names of data files, and their durability
//!              ├─ LocalFile    preadv, pwritev, fallocate, … on the calling thread
//!              └─ Engine       what waits for the device: reads of what is not cached, and syncs
//! ```

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_layout::{ChainId, Extent};
use weft_reactor::ring;

use crate::directory::{Directory, size_of_file};
use crate::disk::{Disk, ObjectInfo, Seek, Space, check};
use crate::emptied::Emptied;
use crate::engine::{DiskEngine, Durable, RingEngine, sync_on_thread, sync_through_ring};
use crate::error::StorageError;
use crate::identity::Identity;
use crate::limits::IOV_MAX;
use crate::local_file::{LocalFile, signed};
use crate::residency;
use crate::state::RandomId;
use crate::sums_directory::SumsDirectory;

/// The extended attribute that notes are kept in.
const NOTE_ATTRIBUTE: &std::ffi::CStr = c"user.weft.layout";
/// The longest note.
const NOTE_BYTES_MAX: usize = 64;
/// There is no note; the file system keeps none; this is not one of ours.
const NO_NOTE: [i32; 3] = [libc::ENODATA, libc::EOPNOTSUPP, libc::ERANGE];

/// Data files in a local directory.
pub struct LocalDisk {
    directory: Directory,
    /// The engine; `None`: the plain one.
    ring: Option<RingEngine>,
}

impl LocalDisk {
    /// Opens the storage directory of a server; see [`Directory::open`].
    ///
    /// # Errors
    /// As [`Directory::open`], or [`StorageError::Whole`] if there is no memory.
    pub fn open(path: &Path, identity: &Identity, engine: DiskEngine) -> Result<LocalDisk, StorageError> {
        let directory = Directory::open(path, identity)?;
        LocalDisk::over(directory, engine)
    }

    /// The data files of another chain in the same storage; see [`Directory::of_chain`].
    ///
    /// # Errors
    /// As [`Directory::of_chain`], or [`StorageError::Whole`] if there is no memory.
    pub fn of_chain(&self, chain: ChainId) -> Result<LocalDisk, StorageError> {
        let engine = if self.ring.is_some() { DiskEngine::Ring } else { DiskEngine::Plain };
        LocalDisk::over(self.directory.of_chain(chain)?, engine)
    }

    fn over(directory: Directory, engine: DiskEngine) -> Result<LocalDisk, StorageError> {
        let ring = match engine {
            DiskEngine::Plain => None,
            DiskEngine::Ring => Some(
                RingEngine::new().map_err(|source| StorageError::Whole { what: "map memory for", source })?,
            ),
        };
        Ok(LocalDisk { directory, ring })
    }

    /// The data files that are missing, where that was accepted and they are most of them.
    pub fn emptied(&self) -> Option<Emptied> {
        self.directory.emptied()
    }

    /// Which storage it is.
    pub fn storage(&self) -> RandomId {
        self.directory.storage()
    }

    /// The engine, if it is the ring and this thread's reactor has one.
    fn ring(&self) -> Option<&RingEngine> {
        self.ring.as_ref().filter(|_| ring::is_available())
    }

    async fn make_durable(&self, owner: impl AsRawFd + 'static, what: Durable) -> io::Result<()> {
        match self.ring() {
            Some(_) => sync_through_ring(owner, what).await,
            None => sync_on_thread(&owner, what),
        }
    }
}

/// How kernels say that a file system has no copy_file_range.
const CANNOT_COPY: [i32; 4] = [libc::ENOSYS, libc::EOPNOTSUPP, libc::EXDEV, libc::EPERM];
/// What is copied at once where the kernel cannot do it.
const COPY_BYTES: u64 = 256 << 10;

fn copy_through_memory(
    from: &LocalFile,
    from_offset: u64,
    to: &LocalFile,
    to_offset: u64,
    bytes: u64,
) -> io::Result<u64> {
    let mut buffer = vec![0; bytes.min(COPY_BYTES) as usize];
    let read = from.inner.file.read_at(&mut buffer, from_offset)?;
    to.inner.file.write_all_at(&buffer[..read], to_offset)?;
    Ok(read as u64)
}

impl Disk for LocalDisk {
    type File = LocalFile;

    fn open(&self, ino: u64) -> io::Result<Option<LocalFile>> {
        Ok(self.directory.open_file(ino)?.map(|file| LocalFile::new(ino, file)))
    }

    fn create(&self, ino: u64) -> io::Result<LocalFile> {
        Ok(LocalFile::new(ino, self.directory.create_file(ino)?))
    }

    fn note(&self, file: &LocalFile, note: &[u8]) -> io::Result<()> {
        // SAFETY: the name is a C string, and `note` is live for the call.
        let set = unsafe {
            libc::fsetxattr(file.fd(), NOTE_ATTRIBUTE.as_ptr(), note.as_ptr().cast(), note.len(), 0)
        };
        match check(set as isize) {
            Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => Err(error),
            _ => Ok(()),
        }
    }

    fn noted(&self, ino: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.directory.open_file(ino)? else { return Ok(None) };
        let mut note = [0; NOTE_BYTES_MAX];
        // SAFETY: the name is a C string, and `note` is live and writable.
        let got = unsafe {
            libc::fgetxattr(file.as_raw_fd(), NOTE_ATTRIBUTE.as_ptr(), note.as_mut_ptr().cast(), note.len())
        };
        match check(got) {
            Ok(bytes) => Ok(Some(note[..bytes].to_vec())),
            Err(error) if NO_NOTE.contains(&error.raw_os_error().unwrap_or(0)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, ino: u64) -> io::Result<bool> {
        self.directory.remove_file(ino)
    }

    fn size_of(&self, ino: u64) -> io::Result<Option<u64>> {
        Ok(self.directory.examine(ino)?.map(|(bytes, _)| bytes))
    }

    fn list(&self, after: Option<u64>, max: usize) -> io::Result<Vec<ObjectInfo>> {
        self.directory.list(after, max)
    }

    fn space(&self) -> io::Result<Space> {
        self.directory.space()
    }

    fn size(&self, file: &LocalFile) -> io::Result<u64> {
        size_of_file(&file.inner.file)
    }

    fn truncate(&self, file: &LocalFile, bytes: u64) -> io::Result<()> {
        signed(bytes)?;
        file.inner.file.set_len(bytes)
    }

    fn punch(&self, file: &LocalFile, offset: u64, bytes: u64) -> io::Result<()> {
        file.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
    }

    fn allocate(&self, file: &LocalFile, offset: u64, bytes: u64, keep_size: bool) -> io::Result<()> {
        let mode = if keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        file.fallocate(mode, offset, bytes)
    }

    fn zero(&self, file: &LocalFile, offset: u64, bytes: u64) -> io::Result<()> {
        let zero_range = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        match file.fallocate(zero_range, offset, bytes) {
            // tmpfs, for one, has the two halves only.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                self.punch(file, offset, bytes)?;
                self.allocate(file, offset, bytes, true)
            }
            zeroed => zeroed,
        }
    }

    fn seek(&self, file: &LocalFile, offset: u64, what: Seek) -> io::Result<Option<u64>> {
        let whence = match what {
            Seek::Data => libc::SEEK_DATA,
            Seek::Hole => libc::SEEK_HOLE,
        };
        // Nobody uses the position of the descriptor. SAFETY: no memory is passed.
        match check(unsafe { libc::lseek(file.fd(), signed(offset)?, whence) } as isize) {
            Ok(found) => Ok(Some(found as u64)),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            // A file system that knows no holes.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let size = self.size(file)?;
                Ok((offset < size).then_some(if what == Seek::Data { offset } else { size }))
            }
            Err(error) => Err(error),
        }
    }

    fn copy_some(
        &self,
        from: &LocalFile,
        from_offset: u64,
        to: &LocalFile,
        to_offset: u64,
        bytes: u64,
    ) -> io::Result<u64> {
        let (mut from_at, mut to_at) = (signed(from_offset)?, signed(to_offset)?);
        // SAFETY: the two offsets are live and writable for the call.
        let copied = check(unsafe {
            libc::copy_file_range(from.fd(), &mut from_at, to.fd(), &mut to_at, bytes as usize, 0)
        });
        match copied {
            Ok(copied) => Ok(copied as u64),
            Err(error) if CANNOT_COPY.contains(&error.raw_os_error().unwrap_or(0)) => {
                copy_through_memory(from, from_offset, to, to_offset, bytes)
            }
            Err(error) => Err(error),
        }
    }

    fn read_cached(
        &self,
        file: &LocalFile,
        offset: u64,
        to: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        let always_resident = self.directory.always_resident();
        let Some(ring) = self.ring().filter(|_| !always_resident) else {
            return file.read_at(offset, to, 0).map(Some);
        };
        match ring.read_nowait(file, offset, to) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            result => return result,
        }
        let bytes = to.iter().map(|slice| slice.len() as u64).sum();
        if !self.resident(file, Extent { offset, bytes }) {
            return Ok(None);
        }
        file.read_at(offset, to, 0).map(Some)
    }

    fn read_blocking(&self, file: &LocalFile, offset: u64, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        file.read_at(offset, to, 0)
    }

    async fn fetch(&self, file: &LocalFile, extents: &[Extent]) {
        if let Some(ring) = self.ring() {
            let missing = extents.iter().filter(|extent| !self.resident(file, **extent));
            ring.fetch(file, missing.copied()).await;
        }
    }

    fn resident(&self, file: &LocalFile, extent: Extent) -> bool {
        self.directory.always_resident() || residency::is_cached(&file.inner.file, extent)
    }

    async fn write_some(&self, file: &LocalFile, offset: u64, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = from.len().min(IOV_MAX) as i32;
        let offset = signed(offset)?;
        // SAFETY: IoSlice has the layout of iovec, and the slices are live for the call.
        check(unsafe { libc::pwritev(file.fd(), from.as_ptr().cast(), count, offset) })
    }

    async fn sync(&self, file: &LocalFile) -> io::Result<()> {
        self.make_durable(file.clone(), Durable::Data).await?;
        if !file.inner.name_durable.load(Ordering::Acquire) {
            // A removed file has no name to keep, and its directories may be gone.
            for directory in self.directory.directories_to_sync(file.inner.ino)? {
                let synced = self.make_durable(directory, Durable::All).await;
                synced.inspect_err(|_| self.directory.note_broken())?;
            }
            self.directory.directories_are_durable(file.inner.ino);
            file.inner.name_durable.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn sync_whole(&self) -> io::Result<bool> {
        self.directory.sync_whole()
    }

    fn raw_fd(&self, file: &LocalFile) -> Option<RawFd> {
        Some(file.fd())
    }

    fn sums(&self) -> Option<&SumsDirectory> {
        Some(self.directory.sums())
    }

    async fn sync_sums(&self, sidecar: &Arc<File>) -> io::Result<()> {
        self.make_durable(sidecar.clone(), Durable::Data).await
    }
}
