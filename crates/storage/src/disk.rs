//! The seam between data files and what keeps them.
//!
//! A disk implements single attempts, which may move less than asked; the provided methods complete
//! them. So a disk that injects short transfers tests the same loops that a real one runs.
//!
//! Reads have three forms, since only the disk knows what would wait for a device:
//!
//! ```text
//!   read_cached    what can be had at once, or None          (one system call for what is cached)
//!   fetch          brings byte ranges into the cache, many at once, without holding up the thread
//!   read_blocking  the rest; waits if the cache has lost it again meanwhile
//! ```

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::SystemTime;

use weft_layout::Extent;

use crate::sums_directory::SumsDirectory;

/// One object of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The file's inode number.
    pub ino: u64,
    /// The local size in bytes.
    pub bytes: u64,
    /// When its data last changed.
    pub modified: SystemTime,
}

/// The room on a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// All bytes.
    pub total_bytes: u64,
    /// Bytes that this server may still use.
    pub available_bytes: u64,
    /// All files the disk can hold; 0 where it has no such bound.
    pub files: u64,
    /// Files that can still be made; 0 where `files` is.
    pub files_available: u64,
}

/// What is looked for in a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// Bytes that were written.
    Data,
    /// A range without any, which reads as zeros; the end of the file is one.
    Hole,
}

/// Where data files are kept. Shared by all threads of a server; the futures run on a
/// [`weft_reactor::Reactor`].
#[allow(async_fn_in_trait)] // Used with static dispatch on one thread's reactor: no `Send` is wanted.
pub trait Disk: Send + Sync + 'static {
    /// An open data file. It stays usable after the file was removed, as in Unix.
    type File: Clone + Send + Sync + 'static;

    /// Opens a data file, if there is one.
    fn open(&self, ino: u64) -> io::Result<Option<Self::File>>;

    /// Opens a data file, made empty if there is none.
    fn create(&self, ino: u64) -> io::Result<Self::File>;

    /// Keeps a few bytes beside an open data file, as durable as its size is. A disk that cannot does nothing.
    fn note(&self, file: &Self::File, note: &[u8]) -> io::Result<()>;

    /// What was kept beside a data file, if there is such.
    fn noted(&self, ino: u64) -> io::Result<Option<Vec<u8>>>;

    /// Removes a data file. Says whether there was one.
    fn remove(&self, ino: u64) -> io::Result<bool>;

    /// The size of a data file, if there is one, without opening it.
    fn size_of(&self, ino: u64) -> io::Result<Option<u64>>;

    /// At most `max` objects after `after` in the disk's own order, which never changes. The objects
    /// that exist throughout are listed once each, whatever is made or removed meanwhile.
    fn list(&self, after: Option<u64>, max: usize) -> io::Result<Vec<ObjectInfo>>;

    /// The room on the disk.
    fn space(&self) -> io::Result<Space>;

    /// The size of an open data file.
    fn size(&self, file: &Self::File) -> io::Result<u64>;

    /// Cuts a data file, or extends it with a hole.
    fn truncate(&self, file: &Self::File, bytes: u64) -> io::Result<()>;

    /// Makes a range read as zeros and gives its space back; the size stays.
    fn punch(&self, file: &Self::File, offset: u64, bytes: u64) -> io::Result<()>;

    /// Makes sure that later writes to a range find space. Extends the file to its end unless
    /// `keep_size`.
    fn allocate(&self, file: &Self::File, offset: u64, bytes: u64, keep_size: bool) -> io::Result<()>;

    /// Makes a range read as zeros and sure that later writes to it find space; the size stays.
    fn zero(&self, file: &Self::File, offset: u64, bytes: u64) -> io::Result<()>;

    /// The first offset from `offset` on with what is looked for; `None` if there is none, as from the end of the file on. A
    /// disk that knows no holes says that all is data.
    fn seek(&self, file: &Self::File, offset: u64, what: Seek) -> io::Result<Option<u64>>;

    /// One attempt to copy a range of one file into another, or elsewhere into the same one: how much was copied, 0 at the end
    /// of `from`. Ranges of one file must not overlap.
    fn copy_some(
        &self,
        from: &Self::File,
        from_offset: u64,
        to: &Self::File,
        to_offset: u64,
        bytes: u64,
    ) -> io::Result<u64>;

    /// One attempt to read what needs no waiting: `None` if the first byte does, 0 at the end.
    fn read_cached(
        &self,
        file: &Self::File,
        offset: u64,
        to: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>>;

    /// One attempt to read, waiting if need be: 0 at the end.
    fn read_blocking(&self, file: &Self::File, offset: u64, to: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Brings byte ranges into the cache. A hint: errors show when the bytes are read.
    async fn fetch(&self, file: &Self::File, extents: &[Extent]);

    /// Whether a range can be read without waiting, as far as is known.
    fn resident(&self, file: &Self::File, extent: Extent) -> bool;

    /// One attempt to write: how much was written, never 0 for a nonempty write.
    async fn write_some(&self, file: &Self::File, offset: u64, from: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Makes data, size and name durable.
    async fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Makes all data files with their names durable, also those that were changed before this was opened; waits on the calling
    /// thread. `false`: this disk cannot, and they are to be synced one by one.
    fn sync_whole(&self) -> io::Result<bool>;

    /// The local descriptor, for `sendfile` and mappings, if the disk has such.
    fn raw_fd(&self, file: &Self::File) -> Option<RawFd>;

    /// Where the sums of data files are kept; `None`: this disk keeps none.
    fn sums(&self) -> Option<&SumsDirectory> {
        None
    }

    /// Makes the bytes of a sidecar durable without holding up the thread, where that can be.
    async fn sync_sums(&self, sidecar: &Arc<File>) -> io::Result<()> {
        sidecar.sync_data()
    }

    /// Reads until all of `to` is full or the file ends; says how much there was.
    async fn read_vectored(
        &self,
        file: &Self::File,
        mut offset: u64,
        mut to: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let mut done = 0;
        loop {
            // Also drops empty pieces at the front.
            IoSliceMut::advance_slices(&mut to, 0);
            if to.is_empty() {
                return Ok(done);
            }
            let count = match retry(|| self.read_cached(file, offset, to))? {
                Some(count) => count,
                None => {
                    let bytes = to.iter().map(|slice| slice.len() as u64).sum();
                    self.fetch(file, &[Extent { offset, bytes }]).await;
                    retry(|| self.read_blocking(file, offset, to))?
                }
            };
            if count == 0 {
                return Ok(done);
            }
            done += count;
            offset += count as u64;
            IoSliceMut::advance_slices(&mut to, count);
        }
    }

    /// [`Disk::read_vectored`] into one slice.
    async fn read(&self, file: &Self::File, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(file, offset, &mut [IoSliceMut::new(to)]).await
    }

    /// Reads many pieces of the file into `to`, one behind the other; what lies beyond the file's end
    /// is filled with zeros. All pieces that need waiting for are fetched at once. Says how many bytes
    /// the file had.
    ///
    /// # Panics
    /// If `to` is shorter than all pieces together.
    async fn read_pieces(&self, file: &Self::File, pieces: &[Extent], to: &mut [u8]) -> io::Result<usize> {
        let mut present = 0;
        let mut waiting: Vec<(Extent, usize)> = Vec::new();
        let mut at = 0;
        for piece in pieces {
            let target = &mut to[at..at + piece.bytes as usize];
            let (count, ended) = read_what_is_cached(self, file, piece.offset, target)?;
            present += count;
            let rest = Extent { offset: piece.offset + count as u64, bytes: piece.bytes - count as u64 };
            if ended {
                target[count..].fill(0);
            } else if rest.bytes > 0 {
                waiting.push((rest, at + count));
            }
            at += piece.bytes as usize;
        }
        if waiting.is_empty() {
            return Ok(present);
        }
        let extents: Vec<Extent> = waiting.iter().map(|(extent, _)| *extent).collect();
        self.fetch(file, &extents).await;
        for (extent, at) in waiting {
            let target = &mut to[at..at + extent.bytes as usize];
            let count = self.read(file, extent.offset, target).await?;
            target[count..].fill(0);
            present += count;
        }
        Ok(present)
    }

    /// Writes all of `from`. After an error an unknown part of it may have been written.
    async fn write_vectored(
        &self,
        file: &Self::File,
        mut offset: u64,
        from: &mut [IoSlice<'_>],
    ) -> io::Result<()> {
        let mut rest = from;
        loop {
            IoSlice::advance_slices(&mut rest, 0);
            if rest.is_empty() {
                return Ok(());
            }
            match self.write_some(file, offset, rest).await {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    offset += count as u64;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// [`Disk::write_vectored`] from one slice.
    async fn write(&self, file: &Self::File, offset: u64, from: &[u8]) -> io::Result<()> {
        self.write_vectored(file, offset, &mut [IoSlice::new(from)]).await
    }
}

/// Reads from the cache until it would wait, the file ends or `to` is full: (bytes, whether it ended).
fn read_what_is_cached<D: Disk + ?Sized>(
    disk: &D,
    file: &D::File,
    offset: u64,
    to: &mut [u8],
) -> io::Result<(usize, bool)> {
    let mut done = 0;
    while done < to.len() {
        let rest = &mut to[done..];
        let at = offset + done as u64;
        match retry(|| disk.read_cached(file, at, &mut [IoSliceMut::new(rest)]))? {
            Some(0) => return Ok((done, true)),
            Some(count) => done += count,
            None => break,
        }
    }
    Ok((done, false))
}

/// Makes a call until it is not interrupted by a signal.
fn retry<R>(mut call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The error of a call that returns -1, or its result.
pub(crate) fn check(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
