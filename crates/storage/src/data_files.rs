//! Data files by inode number, over any disk.
//!
//! A file whose inode has no data file here is empty: reading gives nothing, its size is 0. A data file
//! is made by the first write, extending truncation or allocation. So creating a file in the file
//! system touches no I/O server, and a server needs no word about files it holds no byte of.
//!
//! Where a server's storage was replaced, a missing data file of an older inode is not empty but lost. Reading
//! and writing it fail until it is truncated to nothing, or [`DataFiles::vouch_empty`] says that it never had a
//! byte; see [`DataFiles::lose_below`]. The same holds for a data file that has had checksums and is gone: a mark or
//! its sidecar says that it must be there.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_layout::{Extent, Layout};

use crate::data_file::{DataFile, Opened, Shared, failed};
use crate::disk::{Disk, ObjectInfo, Space};
use crate::error::{Operation, StorageError};
use crate::handles::RecentlyUsed;
use crate::limits::{LIST_MAX, OPEN_FILES, WINDOWS_MAX};
use crate::note::{layout_in, note_of};
use crate::ranges::Ranges;
use crate::sums::table::{Damage, DamageKind, SumsCounts, Table};
use crate::sums_directory::SumsDirectory;
use crate::syncs::{Losses, Syncs};
use crate::unsynced::{Mark, Unsynced};
use crate::windows::Windows;

/// All data files of one I/O server. Clones are the same set; every thread of the server has one.
pub struct DataFiles<D: Disk> {
    pub(crate) shared: Arc<Shared<D>>,
}

/// What a server's data files use now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DataFilesStats {
    /// Data files kept open.
    pub open_files: usize,
    /// Windows kept mapped.
    pub windows: usize,
}

impl<D: Disk> Clone for DataFiles<D> {
    fn clone(&self) -> Self {
        DataFiles { shared: self.shared.clone() }
    }
}

impl<D: Disk> DataFiles<D> {
    /// The data files on `disk`, with the usual bounds.
    pub fn new(disk: D) -> Self {
        Self::with_bounds(disk, OPEN_FILES, WINDOWS_MAX)
    }

    /// The data files on `disk`, keeping at most `open_files` open while unused and `windows` mapped.
    pub fn with_bounds(disk: D, open_files: usize, windows: usize) -> Self {
        let shared = Shared {
            disk,
            open: Mutex::new(RecentlyUsed::new(open_files.max(1))),
            windows: Windows::new(windows),
            sums: Table::default(),
            openings: AtomicU64::new(0),
            lost_below_ino: AtomicU64::new(0),
            losses: Losses::default(),
            unsynced: Unsynced::default(),
            syncs: Ranges::default(),
            marks: Ranges::default(),
        };
        DataFiles { shared: Arc::new(shared) }
    }

    /// The disk below.
    pub fn disk(&self) -> &D {
        &self.shared.disk
    }

    /// The data file of an inode, if there is one.
    ///
    /// # Errors
    /// [`StorageError::Lost`], [`StorageError::Missing`], or that of the disk.
    pub fn open(&self, ino: u64) -> Result<Option<DataFile<D>>, StorageError> {
        match self.open_if_there(ino)? {
            None if self.may_be_lost(ino) => Err(StorageError::Lost { ino }),
            None if self.is_missing(ino)? => Err(self.missing(ino)),
            found => Ok(found),
        }
    }

    /// As [`DataFiles::has_lost`], also where the storage was replaced and the data file is missing since.
    ///
    /// # Errors
    /// That of the disk.
    pub fn has_lost_or_replaced(&self, ino: u64) -> Result<bool, StorageError> {
        Ok(self.has_lost(ino)? || self.may_be_lost(ino) && self.open_if_there(ino)?.is_none())
    }

    /// The data file of an inode, if there is one, for whom it makes no difference whether a replaced storage had one.
    ///
    /// # Errors
    /// [`StorageError::Missing`], or that of the disk.
    pub fn open_unless_missing(&self, ino: u64) -> Result<Option<DataFile<D>>, StorageError> {
        match self.open_if_there(ino)? {
            None if !self.may_be_lost(ino) && self.is_missing(ino)? => Err(self.missing(ino)),
            found => Ok(found),
        }
    }

    /// Whether a data file that was just not there must be there.
    fn is_missing(&self, ino: u64) -> Result<bool, StorageError> {
        let Some(sums) = self.disk().sums() else { return Ok(false) };
        // It may have been made or removed meanwhile.
        let is_missing = sums.expects(ino).and_then(|expected| {
            Ok(expected
                && self.with_none_opened(|disk| {
                    io::Result::Ok(disk.size_of(ino)?.is_none() && sums.expects(ino)?)
                })?)
        });
        is_missing.map_err(failed(Operation::Open, ino))
    }

    fn missing(&self, ino: u64) -> StorageError {
        self.table().tell_lost(ino, 0, 0, DamageKind::Missing);
        StorageError::Missing { ino }
    }

    /// Whether data of this inode that was here is gone, or another file's is in its place. Not where the storage was replaced.
    ///
    /// # Errors
    /// That of the disk.
    pub fn has_lost(&self, ino: u64) -> Result<bool, StorageError> {
        let size = match self.open_if_there(ino)? {
            Some(file) => file.size(),
            None if self.is_missing(ino)? => Err(self.missing(ino)),
            None => Ok(0),
        };
        match size {
            Err(lost) if lost.is_loss() => Ok(true),
            size => size.map(|_| false),
        }
    }

    /// The data file of an inode, if there is one, for whom it makes no difference whether one that is missing is lost.
    ///
    /// # Errors
    /// That of the disk.
    pub fn open_if_there(&self, ino: u64) -> Result<Option<DataFile<D>>, StorageError> {
        self.find(ino, |disk| disk.open(ino))
    }

    /// The data file of an inode, made if there is none.
    ///
    /// # Errors
    /// That of the disk.
    pub fn create(&self, ino: u64) -> Result<DataFile<D>, StorageError> {
        self.create_unless_lost(ino, None)
    }

    /// As [`DataFiles::create`]; a data file that is made, or empty, tells from then on how its file is striped.
    ///
    /// # Errors
    /// That of the disk.
    pub fn create_in(&self, ino: u64, layout: &Layout) -> Result<DataFile<D>, StorageError> {
        self.create_unless_lost(ino, Some(layout))
    }

    fn create_unless_lost(&self, ino: u64, layout: Option<&Layout>) -> Result<DataFile<D>, StorageError> {
        if self.may_be_lost(ino)
            && let Some(found) = self.open(ino)?
        {
            return Ok(found);
        }
        self.make(ino, layout, Missing::IsLost)
    }

    /// Notes how the file of a data file is striped, where that was just made. A failure is none: only a recovery needs it.
    pub fn note_layout(&self, file: &DataFile<D>, layout: &Layout) {
        let _ = self.shared.disk.note(&file.opened.file, &note_of(layout));
    }

    /// How the file of this inode is striped, if its data file is here and tells.
    ///
    /// # Errors
    /// That of the disk.
    pub fn layout_of(&self, ino: u64) -> Result<Option<Layout>, StorageError> {
        let note = self.shared.disk.noted(ino).map_err(failed(Operation::Open, ino))?;
        Ok(note.and_then(|note| layout_in(&note)))
    }

    /// Opens the data file, or makes it; one that is empty gets a note of its layout.
    fn make(&self, ino: u64, layout: Option<&Layout>, missing: Missing) -> Result<DataFile<D>, StorageError> {
        let mut sidecar = None;
        let made = self.find(ino, |disk| {
            let file = match disk.sums() {
                Some(sums) => {
                    let Some((file, found)) = open_or_make(disk, sums, ino, missing)? else {
                        return Ok(None);
                    };
                    sidecar = Some(found);
                    file
                }
                None => disk.create(ino)?,
            };
            if let Some(layout) = layout
                && disk.size(&file)? == 0
            {
                // Only a recovery needs it, and does without; the write that follows must not fail for it.
                let _ = disk.note(&file, &note_of(layout));
            }
            Ok(Some(file))
        })?;
        let made = made.ok_or_else(|| self.missing(ino))?;
        if let Some(sidecar) = sidecar {
            made.sums().found(sidecar).map_err(failed(Operation::Open, ino))?;
        }
        Ok(made)
    }

    /// From now on data files of smaller inode numbers that are not there count as lost.
    pub fn lose_below(&self, ino: u64) {
        self.shared.lost_below_ino.store(ino, Ordering::Release);
    }

    /// Accepts the loss of a data file. One that is missing is made, empty. One that was cut keeps the rest. One that has the
    /// checksums of another inode is emptied.
    ///
    /// # Errors
    /// That of the disk.
    pub fn vouch_empty(&self, ino: u64) -> Result<(), StorageError> {
        let file = self.make(ino, None, Missing::IsEmpty)?;
        match file.size() {
            Err(StorageError::Cut { bytes, .. }) => file.truncate(bytes),
            Err(StorageError::Foreign { .. }) => file.truncate(0),
            size => size.map(drop),
        }
    }

    fn may_be_lost(&self, ino: u64) -> bool {
        ino < self.shared.lost_below_ino.load(Ordering::Acquire)
    }

    fn find(
        &self,
        ino: u64,
        mut open: impl FnMut(&D) -> io::Result<Option<D::File>>,
    ) -> Result<Option<DataFile<D>>, StorageError> {
        let handle = |opened| Some(DataFile { shared: self.shared.clone(), opened });
        let mut cache = self.cache();
        if let Some(opened) = cache.get(ino) {
            return Ok(handle(opened));
        }
        let mut found = open(&self.shared.disk);
        if found.as_ref().is_err_and(lacks_descriptors) {
            // Those that are kept open for a later use serve a present one.
            let now = cache.time();
            drop(cache.remove_unused_since(now));
            found = open(&self.shared.disk);
        }
        let Some(file) = found.map_err(failed(Operation::Open, ino))? else { return Ok(None) };
        let opening = self.shared.openings.fetch_add(1, Ordering::Relaxed);
        let sums = self.shared.sums.of(ino);
        let (ranges, syncs) = (Ranges::default(), Syncs::default());
        let (unsynced, reaches_sums) = (Mark::default(), AtomicBool::new(false));
        let is_held = AtomicBool::new(false);
        let opened =
            Arc::new(Opened { ino, opening, file, ranges, syncs, sums, reaches_sums, is_held, unsynced });
        // With all handles in use the bound is passed by one; the bound on requests keeps that small.
        let (_, old) = cache.make_room();
        cache.insert(ino, opened.clone());
        drop(cache);
        drop(old);
        Ok(handle(opened))
    }

    /// What was counted of checksums.
    pub fn sums_counts(&self) -> &SumsCounts {
        &self.shared.sums.counts
    }

    /// Damage that was found since the last call.
    pub fn take_damage(&self) -> Vec<Damage> {
        self.shared.sums.take_damage()
    }

    pub(crate) fn table(&self) -> &Table {
        &self.shared.sums
    }

    /// Does something while no data file is opened, made or removed.
    pub(crate) fn with_none_opened<T>(&self, action: impl FnOnce(&D) -> T) -> T {
        let _cache = self.cache();
        action(&self.shared.disk)
    }

    fn cache(&self) -> MutexGuard<'_, RecentlyUsed<u64, Opened<D>>> {
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until `to` is full or the local data ends; says how much there was.
    ///
    /// # Errors
    /// That of the disk.
    pub async fn read_vectored(
        &self,
        ino: u64,
        offset: u64,
        to: &mut [IoSliceMut<'_>],
    ) -> Result<usize, StorageError> {
        match self.open(ino)? {
            Some(file) => file.read_vectored(offset, to).await,
            None => Ok(0),
        }
    }

    /// Reads many pieces into `to`, one behind the other, with zeros for what the file does not have;
    /// says how many bytes it had.
    ///
    /// # Errors
    /// That of the disk.
    ///
    /// # Panics
    /// If `to` is shorter than all pieces together.
    pub async fn read_pieces(
        &self,
        ino: u64,
        pieces: &[Extent],
        to: &mut [u8],
    ) -> Result<usize, StorageError> {
        if let Some(file) = self.open(ino)? {
            return file.read_pieces(pieces, to).await;
        }
        let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        to[..bytes as usize].fill(0);
        Ok(0)
    }

    /// Writes all of `from`, making the data file if there is none. The slices are used up. After an
    /// error an unknown part may have been written; other data is as it was.
    ///
    /// # Errors
    /// That of the disk; see [`StorageError::is_full`].
    pub async fn write_vectored(
        &self,
        ino: u64,
        offset: u64,
        from: &mut [IoSlice<'_>],
    ) -> Result<(), StorageError> {
        if from.iter().all(|slice| slice.is_empty()) {
            return Ok(());
        }
        self.create(ino)?.write_vectored(offset, from).await
    }

    /// Makes what was written durable, with the file's size and name.
    ///
    /// # Errors
    /// That of the disk.
    pub async fn sync(&self, ino: u64) -> Result<(), StorageError> {
        match self.open(ino)? {
            Some(file) => file.sync().await,
            None => Ok(()),
        }
    }

    /// How often a sync of this data file has failed. What was written at another count may be lost, and no later sync makes it
    /// durable.
    pub fn losses(&self, ino: u64) -> u64 {
        self.shared.losses.of(ino)
    }

    /// How often a sync of any data file, or of all of them, has failed.
    pub fn losses_of_all(&self) -> u64 {
        self.shared.losses.all()
    }

    /// The exact local size in bytes.
    ///
    /// # Errors
    /// As for [`DataFiles::open`] and [`DataFile::size`].
    pub fn size(&self, ino: u64) -> Result<u64, StorageError> {
        self.open_unless_missing(ino)?.map_or(Ok(0), |file| file.size())
    }

    /// The exact local size in bytes of a data file, if there is one.
    ///
    /// # Errors
    /// That of the disk.
    pub fn size_if_there(&self, ino: u64) -> Result<Option<u64>, StorageError> {
        self.shared.disk.size_of(ino).map_err(failed(Operation::Size, ino))
    }

    /// Sets the local size.
    ///
    /// # Errors
    /// That of the disk.
    pub fn truncate(&self, ino: u64, bytes: u64) -> Result<(), StorageError> {
        let file = match bytes {
            0 => match self.open(ino) {
                Err(lost) if lost.is_loss() => Some(self.make(ino, None, Missing::IsEmpty)?),
                found => found?,
            },
            _ => Some(self.create(ino)?),
        };
        file.map_or(Ok(()), |file| file.truncate(bytes))
    }

    /// Makes a range read as zeros and gives its space back; the size stays.
    ///
    /// # Errors
    /// That of the disk.
    pub fn punch(&self, ino: u64, offset: u64, bytes: u64) -> Result<(), StorageError> {
        self.open(ino)?.map_or(Ok(()), |file| file.punch(offset, bytes))
    }

    /// Makes sure that later writes to a range find space; extends the file unless `keep_size`.
    ///
    /// # Errors
    /// That of the disk.
    pub fn allocate(&self, ino: u64, offset: u64, bytes: u64, keep_size: bool) -> Result<(), StorageError> {
        if bytes == 0 {
            return Ok(());
        }
        self.create(ino)?.allocate(offset, bytes, keep_size)
    }

    /// Makes a range read as zeros and sure that later writes to it find space; extends the file unless `keep_size`.
    ///
    /// # Errors
    /// That of the disk.
    pub fn zero(&self, ino: u64, offset: u64, bytes: u64, keep_size: bool) -> Result<(), StorageError> {
        if bytes == 0 {
            return Ok(());
        }
        let file = self.create(ino)?;
        file.zero(offset, bytes)?;
        if keep_size { Ok(()) } else { file.allocate(offset, bytes, false) }
    }

    /// Removes data files whose inodes are gone; those that are not there are no error. No crash leaves a mark of one that was
    /// removed: the marks are cleared durably before.
    ///
    /// # Errors
    /// The first of the disk; none is removed if the marks cannot be cleared.
    pub async fn remove_all(&self, inos: &[u64]) -> Result<(), StorageError> {
        const AT_ONCE: usize = 32;
        let mut sorted = inos.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        self.clear_marks(&sorted).await?;
        for batch in sorted.chunks(AT_ONCE) {
            batch.iter().try_for_each(|ino| self.remove(*ino).map(drop))?;
            weft_reactor::yield_now().await;
        }
        Ok(())
    }

    /// Removes a data file. Says whether there was one. Handles that are in use stay usable, and their
    /// file is gone with the last of them. Waits where its mark was not cleared before, as [`DataFiles::remove_all`] does.
    ///
    /// # Errors
    /// That of the disk.
    pub fn remove(&self, ino: u64) -> Result<bool, StorageError> {
        let mut cache = self.cache();
        let old = cache.remove(ino);
        match &old {
            Some(opened) => self.shared.sums.detach(&opened.sums),
            None => self.shared.sums.detach_queued(ino),
        }
        let disk = &self.shared.disk;
        let removed =
            disk.sums().map_or(Ok(()), |sums| sums.remove_file(ino)).and_then(|()| disk.remove(ino));
        if let (Err(_), Some(sums)) = (&removed, disk.sums()) {
            // The data file stays, and what is written to it must not meet older sums again.
            let _ = sums.settle_removal(ino);
        }
        let removed = removed.map_err(failed(Operation::Remove, ino));
        drop(cache);
        drop(old);
        self.shared.windows.forget(ino);
        if removed.is_ok() {
            self.shared.unsynced.forget(ino);
        }
        removed
    }

    /// A page of all data files, at most `max` (and 4096), and the cursor for the next page: `None` when
    /// this was the last. Begin with `None`. The order is the disk's own. A file that exists throughout
    /// is listed once, whatever is made or removed meanwhile.
    ///
    /// # Errors
    /// That of the disk.
    pub fn list(
        &self,
        cursor: Option<u64>,
        max: usize,
    ) -> Result<(Vec<ObjectInfo>, Option<u64>), StorageError> {
        let max = max.clamp(1, LIST_MAX);
        let whole = |source| StorageError::Whole { what: "list", source };
        let page = self.shared.disk.list(cursor, max).map_err(whole)?;
        let next = page.last().filter(|_| page.len() == max).map(|last| last.ino);
        Ok((page, next))
    }

    /// The room on the disk.
    ///
    /// # Errors
    /// That of the disk.
    pub fn space(&self) -> Result<Space, StorageError> {
        self.shared.disk.space().map_err(|source| StorageError::Whole { what: "get the room of", source })
    }

    /// Unmaps windows that were not used since the last call. To be called now and then.
    pub fn shrink_idle(&self) {
        self.shared.windows.shrink_idle();
    }

    /// What is in use now.
    pub fn stats(&self) -> DataFilesStats {
        DataFilesStats { open_files: self.cache().len(), windows: self.shared.windows.len() }
    }
}

/// Whether the process, or the host, has no descriptor left.
fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// How to treat a data file that must be there and is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    IsLost,
    IsEmpty,
}

/// A data file, made if there is none, and its sidecar if it has one. `None`: it is lost. Where that is as good as an empty one, a
/// sidecar that is there without it goes for good before a data file is made.
fn open_or_make<D: Disk>(
    disk: &D,
    sums: &SumsDirectory,
    ino: u64,
    missing: Missing,
) -> io::Result<Option<(D::File, Option<File>)>> {
    let sidecar = sums.open_file(ino)?;
    if sidecar.is_some() || sums.held().has(ino)? {
        if let Some(file) = disk.open(ino)? {
            return Ok(Some((file, sidecar)));
        }
        if missing == Missing::IsLost && sums.expects(ino)? {
            return Ok(None);
        }
        sums.remove_file(ino)?;
    }
    sums.settle_removal(ino)?;
    Ok(Some((disk.create(ino)?, None)))
}
