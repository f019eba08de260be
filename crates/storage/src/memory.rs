//! Data files in memory, for tests and simulation: gone with the disk.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use weft_layout::Extent;

use crate::disk::{Disk, ObjectInfo, Seek, Space};
use crate::tree::fan_out;

/// A disk of a given size in memory. Its clones are the same disk, so that a "server" can be stopped
/// and started again on what it left.
#[derive(Clone)]
pub struct MemDisk {
    capacity_bytes: u64,
    used_bytes: Arc<AtomicU64>,
    /// By (fan-out, ino): the order of listings.
    files: Arc<Mutex<BTreeMap<(u16, u64), MemFile>>>,
}

/// An open data file of a [`MemDisk`].
#[derive(Clone)]
pub struct MemFile {
    inner: Arc<MemFileInner>,
}

struct MemFileInner {
    content: Mutex<Content>,
    used_bytes: Arc<AtomicU64>,
}

struct Content {
    bytes: Vec<u8>,
    modified: SystemTime,
    note: Option<Vec<u8>>,
}

impl Drop for MemFileInner {
    fn drop(&mut self) {
        let content = self.content.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.used_bytes.fetch_sub(content.bytes.len() as u64, Ordering::Relaxed);
    }
}

impl MemFile {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.inner.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemDisk {
    /// An empty disk that holds `capacity_bytes`; a hole takes room like data.
    pub fn new(capacity_bytes: u64) -> Self {
        MemDisk { capacity_bytes, used_bytes: Arc::default(), files: Arc::default() }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<(u16, u64), MemFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size that a file of `old` bytes can grow to, up to `wanted`.
    fn reachable(&self, old: u64, wanted: u64) -> u64 {
        let room = self.capacity_bytes.saturating_sub(self.used_bytes.load(Ordering::Relaxed));
        wanted.min(old.saturating_add(room))
    }

    fn resize(&self, content: &mut Content, bytes: u64) {
        let old = content.bytes.len() as u64;
        content.bytes.resize(bytes as usize, 0);
        self.used_bytes.fetch_add(bytes.wrapping_sub(old), Ordering::Relaxed);
        content.modified = SystemTime::now();
    }
}

fn full() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSPC)
}

impl Disk for MemDisk {
    type File = MemFile;

    fn open(&self, ino: u64) -> io::Result<Option<MemFile>> {
        Ok(self.files().get(&(fan_out(ino), ino)).cloned())
    }

    fn create(&self, ino: u64) -> io::Result<MemFile> {
        let new = || {
            let content = Content { bytes: Vec::new(), modified: SystemTime::now(), note: None };
            let inner = MemFileInner { content: Mutex::new(content), used_bytes: self.used_bytes.clone() };
            MemFile { inner: Arc::new(inner) }
        };
        Ok(self.files().entry((fan_out(ino), ino)).or_insert_with(new).clone())
    }

    fn note(&self, file: &MemFile, note: &[u8]) -> io::Result<()> {
        file.content().note = Some(note.to_vec());
        Ok(())
    }

    fn noted(&self, ino: u64) -> io::Result<Option<Vec<u8>>> {
        Ok(self.open(ino)?.and_then(|file| file.content().note.clone()))
    }

    fn remove(&self, ino: u64) -> io::Result<bool> {
        Ok(self.files().remove(&(fan_out(ino), ino)).is_some())
    }

    fn size_of(&self, ino: u64) -> io::Result<Option<u64>> {
        self.open(ino)?.map(|file| self.size(&file)).transpose()
    }

    fn list(&self, after: Option<u64>, max: usize) -> io::Result<Vec<ObjectInfo>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let start = after.map_or(Unbounded, |ino| Excluded((fan_out(ino), ino)));
        let files = self.files();
        let info = |(key, file): (&(u16, u64), &MemFile)| {
            let content = file.content();
            ObjectInfo { ino: key.1, bytes: content.bytes.len() as u64, modified: content.modified }
        };
        Ok(files.range((start, Unbounded)).take(max).map(info).collect())
    }

    fn space(&self) -> io::Result<Space> {
        let used = self.used_bytes.load(Ordering::Relaxed);
        Ok(Space {
            total_bytes: self.capacity_bytes,
            available_bytes: self.capacity_bytes.saturating_sub(used),
            files: 0,
            files_available: 0,
        })
    }

    fn size(&self, file: &MemFile) -> io::Result<u64> {
        Ok(file.content().bytes.len() as u64)
    }

    fn truncate(&self, file: &MemFile, bytes: u64) -> io::Result<()> {
        let mut content = file.content();
        if self.reachable(content.bytes.len() as u64, bytes) < bytes {
            return Err(full());
        }
        self.resize(&mut content, bytes);
        Ok(())
    }

    fn punch(&self, file: &MemFile, offset: u64, bytes: u64) -> io::Result<()> {
        let mut content = file.content();
        let size = content.bytes.len() as u64;
        let (begin, end) = (offset.min(size), offset.saturating_add(bytes).min(size));
        content.bytes[begin as usize..end as usize].fill(0);
        Ok(())
    }

    fn allocate(&self, file: &MemFile, offset: u64, bytes: u64, keep_size: bool) -> io::Result<()> {
        let end = offset.saturating_add(bytes);
        if bytes == 0 || keep_size || end <= self.size(file)? {
            return Ok(());
        }
        self.truncate(file, end)
    }

    fn zero(&self, file: &MemFile, offset: u64, bytes: u64) -> io::Result<()> {
        self.punch(file, offset, bytes)
    }

    fn seek(&self, file: &MemFile, offset: u64, what: Seek) -> io::Result<Option<u64>> {
        let size = self.size(file)?;
        Ok((offset < size).then_some(if what == Seek::Data { offset } else { size }))
    }

    fn copy_some(
        &self,
        from: &MemFile,
        from_offset: u64,
        to: &MemFile,
        to_offset: u64,
        bytes: u64,
    ) -> io::Result<u64> {
        let data = {
            let content = from.content();
            let size = content.bytes.len() as u64;
            let (begin, end) = (from_offset.min(size), from_offset.saturating_add(bytes).min(size));
            content.bytes[begin as usize..end as usize].to_vec()
        };
        let end = to_offset + data.len() as u64;
        let mut content = to.content();
        let size = content.bytes.len() as u64;
        if !data.is_empty() && end > size {
            if self.reachable(size, end) < end {
                return Err(full());
            }
            self.resize(&mut content, end);
        }
        if !data.is_empty() {
            content.bytes[to_offset as usize..end as usize].copy_from_slice(&data);
        }
        Ok(data.len() as u64)
    }

    fn read_cached(
        &self,
        file: &MemFile,
        offset: u64,
        to: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        self.read_blocking(file, offset, to).map(Some)
    }

    fn read_blocking(&self, file: &MemFile, offset: u64, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let content = file.content();
        let mut rest = content.bytes.get(offset.min(usize::MAX as u64) as usize..).unwrap_or_default();
        let before = rest.len();
        for slice in to {
            let (head, tail) = rest.split_at(slice.len().min(rest.len()));
            slice[..head.len()].copy_from_slice(head);
            rest = tail;
        }
        Ok(before - rest.len())
    }

    async fn fetch(&self, _file: &MemFile, _extents: &[Extent]) {}

    fn resident(&self, _file: &MemFile, _extent: Extent) -> bool {
        true
    }

    async fn write_some(&self, file: &MemFile, offset: u64, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes: u64 = from.iter().map(|slice| slice.len() as u64).sum();
        let mut content = file.content();
        let end = offset.checked_add(bytes).ok_or(io::Error::from_raw_os_error(libc::EFBIG))?;
        let old = content.bytes.len() as u64;
        let reached = self.reachable(old, end.max(old));
        if reached <= offset && bytes > 0 {
            return Err(full());
        }
        self.resize(&mut content, reached);
        let mut at = offset as usize;
        for slice in from {
            let count = slice.len().min(content.bytes.len() - at);
            content.bytes[at..at + count].copy_from_slice(&slice[..count]);
            at += count;
        }
        Ok(at - offset as usize)
    }

    fn sync_whole(&self) -> io::Result<bool> {
        Ok(true)
    }

    async fn sync(&self, _file: &MemFile) -> io::Result<()> {
        Ok(())
    }

    fn raw_fd(&self, _file: &MemFile) -> Option<RawFd> {
        None
    }
}
