//! The plain disk: every call waits on the calling thread. For kernels and containers without
//! io_uring, and the base of [`RingDisk`](crate::RingDisk).

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_layout::Extent;

use crate::directory::{Directory, Identity, SumsDirectory, size_of_file};
use crate::disk::{Disk, ObjectInfo, Seek, Space, check};
use crate::error::StorageError;
use crate::limits::IOV_MAX;
use crate::residency;
use crate::state::RandomId;

/// The extended attribute that notes are kept in.
const NOTE_ATTRIBUTE: &std::ffi::CStr = c"user.weft.layout";
/// The longest note.
const NOTE_BYTES_MAX: usize = 64;
/// There is no note; the file system keeps none; this is not one of ours.
const NO_NOTE: [i32; 3] = [libc::ENODATA, libc::EOPNOTSUPP, libc::ERANGE];

/// Data files in a local directory, with plain `preadv` and `pwritev`.
pub struct PlainDisk {
    pub(crate) directory: Directory,
}

/// An open data file of a [`PlainDisk`] or a [`RingDisk`](crate::RingDisk).
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
}

impl PlainDisk {
    /// Opens the storage directory of a server; see [`Directory::open`].
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub fn open(path: &Path, identity: &Identity) -> Result<PlainDisk, StorageError> {
        Ok(PlainDisk { directory: Directory::open(path, identity)? })
    }

    /// Which storage it is.
    pub fn storage(&self) -> RandomId {
        self.directory.storage()
    }

    pub(crate) fn fallocate(file: &LocalFile, mode: i32, offset: u64, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (offset, bytes) = (signed(offset)?, signed(bytes)?);
        loop {
            // SAFETY: no memory is passed.
            if unsafe { libc::fallocate(file.fd(), mode, offset, bytes) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// An offset or length as the kernel wants it.
pub(crate) fn signed(number: u64) -> io::Result<i64> {
    i64::try_from(number).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

/// One `preadv2` with `flags`.
pub(crate) fn read_at(
    file: &LocalFile,
    offset: u64,
    to: &mut [IoSliceMut<'_>],
    flags: i32,
) -> io::Result<usize> {
    let count = to.len().min(IOV_MAX) as i32;
    let offset = signed(offset)?;
    // SAFETY: IoSliceMut has the layout of iovec, and the slices are live and writable for the call.
    check(unsafe { libc::preadv2(file.fd(), to.as_mut_ptr().cast(), count, offset, flags) })
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

impl Disk for PlainDisk {
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
        Self::fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
    }

    fn allocate(&self, file: &LocalFile, offset: u64, bytes: u64, keep_size: bool) -> io::Result<()> {
        let mode = if keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        Self::fallocate(file, mode, offset, bytes)
    }

    fn zero(&self, file: &LocalFile, offset: u64, bytes: u64) -> io::Result<()> {
        let zero_range = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        match Self::fallocate(file, zero_range, offset, bytes) {
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
        read_at(file, offset, to, 0).map(Some)
    }

    fn read_blocking(&self, file: &LocalFile, offset: u64, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        read_at(file, offset, to, 0)
    }

    async fn fetch(&self, _file: &LocalFile, _extents: &[Extent]) {}

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
        file.inner.file.sync_data()?;
        if !file.inner.name_durable.load(Ordering::Acquire) {
            // A removed file has no name to keep, and its directories may be gone.
            for directory in self.directory.directories_to_sync(file.inner.ino)? {
                directory.sync_all().inspect_err(|_| self.directory.note_broken())?;
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
}
