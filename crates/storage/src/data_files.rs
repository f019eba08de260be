//! Data files by inode number, over any disk.
//!
//! A file whose inode has no data file here is empty: reading gives nothing, its size is 0. A data file
//! is made by the first write, extending truncation or allocation. So creating a file in the file
//! system touches no I/O server, and a server needs no word about files it holds no byte of.
//!
//! Where a server's storage was replaced, a missing data file of an older inode is not empty but lost: reading and writing it
//! fail, until it is truncated to nothing or the server is told that it never had a byte ([`DataFiles::lose_below`],
//! [`DataFiles::vouch_empty`]).
//!
//! **Failed syncs.** After a failed fsync Linux takes the pages that it could not write for clean: it tells each descriptor of
//! the error once, and the next fsync succeeds though the bytes are not on the disk. All clients share one descriptor of a data
//! file here, so one of them would be told for all. Therefore every failed sync counts as a loss of the file's unsynced
//! writes, and the count stays for as long as the server runs:
//!
//! ```text
//!   client A   write (losses 0)                 sync ── EIO             losses: 1
//!   client B          write (losses 0)                       sync ── done, losses 1: not what B's write was told, so B's is lost
//!   client C                                          write (losses 1)  sync ── done, losses 1: durable
//! ```
//!
//! Syncs of one file run one after the other. Else one could return success before another one, which took the kernel's
//! error for the same pages, has counted it.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_layout::{Extent, Layout};

use crate::disk::{Disk, ObjectInfo, Seek, Space, check};
use crate::error::{Operation, StorageError};
use crate::handles::RecentlyUsed;
use crate::limits::{LIST_MAX, OPEN_FILES, WINDOWS_MAX};
use crate::ranges::Ranges;
use crate::residency;
use crate::sums::format::BLOCK_BYTES;
use crate::sums::{Change, Damage, FileSums, SumsCounts, Table};
use crate::unsynced::{Mark, ToSync, Unsynced};
use crate::windows::{MappedPieces, Windows};

/// All data files of one I/O server. Clones are the same set; every thread of the server has one.
pub struct DataFiles<D: Disk> {
    shared: Arc<Shared<D>>,
}

struct Shared<D: Disk> {
    disk: D,
    /// Held while a data file is opened, made or removed, so that a handle of a removed file never
    /// stays behind under its number.
    open: Mutex<RecentlyUsed<u64, Opened<D>>>,
    windows: Windows,
    sums: Table,
    openings: AtomicU64,
    /// Data files of smaller inode numbers that are not there are lost.
    lost_below_ino: AtomicU64,
    losses: Mutex<Losses>,
    unsynced: Unsynced,
    /// Syncs of all data files, one at a time.
    syncs: Ranges,
}

/// How many syncs have failed.
#[derive(Default)]
struct Losses {
    /// Of a data file, where any has.
    of: HashMap<u64, u64>,
    /// Of all data files as a whole.
    of_whole: u64,
    all: u64,
}

struct Opened<D: Disk> {
    ino: u64,
    /// Tells apart the openings of one number, whose files may differ.
    opening: u64,
    file: D::File,
    ranges: Ranges,
    syncs: Syncs,
    sums: Arc<FileSums>,
    unsynced: Mark,
}

/// The syncs of one opening: one at a time, and one serves all who asked before it began.
#[derive(Default)]
struct Syncs {
    turns: Ranges,
    begun: AtomicU64,
    /// The last one that succeeded.
    succeeded: AtomicU64,
}

const NOTE_VERSION: u8 = 1;
/// Data files that are synced at a time, where all are.
const SYNCS_AT_ONCE: usize = 16;

/// A layout as it is kept beside a data file: a version, the strip size, first server, servers and ring, in little endian.
fn note_of(layout: &Layout) -> Vec<u8> {
    let mut note = vec![NOTE_VERSION];
    note.extend_from_slice(&layout.strip_bytes().to_le_bytes());
    for number in [layout.first_server(), layout.server_count(), layout.ring_servers()] {
        note.extend_from_slice(&number.to_le_bytes());
    }
    note
}

/// `None`: no layout, or one of a version to come.
fn layout_in(note: &[u8]) -> Option<Layout> {
    let [NOTE_VERSION, numbers @ ..] = note else { return None };
    let (strip_bytes, rest) = numbers.split_first_chunk()?;
    let (first, rest) = rest.split_first_chunk()?;
    let (servers, rest) = rest.split_first_chunk()?;
    let ring: [u8; 2] = rest.try_into().ok()?;
    let [first, servers, ring] = [*first, *servers, ring].map(u16::from_le_bytes);
    Layout::new(u32::from_le_bytes(*strip_bytes), first, servers, ring).ok()
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
            losses: Mutex::default(),
            unsynced: Unsynced::default(),
            syncs: Ranges::default(),
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
    /// [`StorageError::Lost`], or that of the disk.
    pub fn open(&self, ino: u64) -> Result<Option<DataFile<D>>, StorageError> {
        match self.open_if_there(ino)? {
            None if self.may_be_lost(ino) => Err(StorageError::Lost { ino }),
            found => Ok(found),
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
        if self.may_be_lost(ino)
            && let Some(found) = self.open(ino)?
        {
            return Ok(found);
        }
        self.make(ino)
    }

    /// As [`DataFiles::create`]; a data file that is made, or empty, tells from then on how its file is striped.
    ///
    /// # Errors
    /// That of the disk.
    pub fn create_in(&self, ino: u64, layout: &Layout) -> Result<DataFile<D>, StorageError> {
        if self.may_be_lost(ino)
            && let Some(found) = self.open(ino)?
        {
            return Ok(found);
        }
        let made = self.find(ino, |disk| {
            disk.sums().map_or(Ok(()), |sums| sums.settle_removal(ino))?;
            let file = disk.create(ino)?;
            if disk.size(&file)? == 0 {
                // Only a recovery needs it, and does without; the write that follows must not fail for it.
                let _ = disk.note(&file, &note_of(layout));
            }
            Ok(Some(file))
        })?;
        Ok(made.expect("a file that was created is there"))
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

    fn make(&self, ino: u64) -> Result<DataFile<D>, StorageError> {
        let made = self.find(ino, |disk| {
            disk.sums().map_or(Ok(()), |sums| sums.settle_removal(ino))?;
            disk.create(ino).map(Some)
        })?;
        Ok(made.expect("a file that was created is there"))
    }

    /// From now on data files of smaller inode numbers that are not there count as lost.
    pub fn lose_below(&self, ino: u64) {
        self.shared.lost_below_ino.store(ino, Ordering::Release);
    }

    /// Notes that a data file which is not there never had a byte, by making an empty one.
    ///
    /// # Errors
    /// That of the disk.
    pub fn vouch_empty(&self, ino: u64) -> Result<(), StorageError> {
        self.make(ino).map(drop)
    }

    fn may_be_lost(&self, ino: u64) -> bool {
        ino < self.shared.lost_below_ino.load(Ordering::Acquire)
    }

    fn find(
        &self,
        ino: u64,
        open: impl FnOnce(&D) -> std::io::Result<Option<D::File>>,
    ) -> Result<Option<DataFile<D>>, StorageError> {
        let handle = |opened| Some(DataFile { shared: self.shared.clone(), opened });
        let mut cache = self.cache();
        if let Some(opened) = cache.get(ino) {
            return Ok(handle(opened));
        }
        let Some(file) = open(&self.shared.disk).map_err(failed(Operation::Open, ino))? else {
            return Ok(None);
        };
        let opening = self.shared.openings.fetch_add(1, Ordering::Relaxed);
        let sums = self.shared.sums.of(ino);
        let (ranges, syncs) = (Ranges::default(), Syncs::default());
        let unsynced = Mark::default();
        let opened = Arc::new(Opened { ino, opening, file, ranges, syncs, sums, unsynced });
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
        self.shared.losses_of(ino)
    }

    /// How often a sync of any data file, or of all of them, has failed.
    pub fn losses_of_all(&self) -> u64 {
        self.shared.losses().all
    }

    /// Makes durable what was written to any data file until now, with sizes and names. All are tried. Goes on to its end, and
    /// counts failures, also when nobody waits for it any more.
    ///
    /// # Errors
    /// The first one of the disk.
    pub async fn sync_all(&self) -> Result<(), StorageError> {
        let files = self.clone();
        weft_reactor::spawn(async move { files.sync_all_in_turn().await }).await
    }

    async fn sync_all_in_turn(&self) -> Result<(), StorageError> {
        let turns = &self.shared.syncs;
        let turn = AllTurn { number: turns.ask(Extent::new(0, u64::MAX), true), shared: self.shared.clone() };
        std::future::poll_fn(|cx| turns.poll(turn.number, cx.waker())).await;
        match self.shared.unsynced.to_sync() {
            ToSync::Whole => self.sync_whole().await,
            ToSync::Files(inos) => self.sync_each(inos).await,
        }
    }

    async fn sync_whole(&self) -> Result<(), StorageError> {
        self.shared.unsynced.begin_whole();
        let synced = match self.sync_file_system().await {
            Ok(true) => Ok(()),
            // It cannot be done as a whole.
            Ok(false) => self.sync_listed().await,
            Err(source) => Err(StorageError::Whole { what: "sync", source }),
        };
        if synced.is_err() {
            self.shared.unsynced.whole_failed();
        }
        synced
    }

    /// [`Disk::sync_whole`], on a thread of its own.
    async fn sync_file_system(&self) -> std::io::Result<bool> {
        let (sender, mut done) = weft_reactor::mailbox(1);
        let shared = self.shared.clone();
        std::thread::Builder::new().name("weft-syncfs".into()).spawn(move || {
            let synced = shared.disk.sync_whole();
            if synced.is_err() {
                shared.note_loss_of_whole();
            }
            // It is waited for as long as the reactor runs.
            let _ = sender.send(synced);
        })?;
        done.receive().await.unwrap_or_else(|| Err(std::io::Error::other("the thread that syncs has ended")))
    }

    async fn sync_listed(&self) -> Result<(), StorageError> {
        let (mut cursor, mut result) = (None, Ok(()));
        loop {
            let (page, next) = self.list(cursor, LIST_MAX)?;
            result = result.and(self.sync_each(page.iter().map(|object| object.ino).collect()).await);
            cursor = next;
            if cursor.is_none() {
                return result;
            }
        }
    }

    async fn sync_each(&self, inos: Vec<u64>) -> Result<(), StorageError> {
        let mut result = Ok(());
        for inos in inos.chunks(SYNCS_AT_ONCE) {
            let one = |ino: &u64| {
                let (files, ino) = (self.clone(), *ino);
                weft_reactor::spawn(async move { files.sync_if_there(ino).await })
            };
            let under_way: Vec<_> = inos.iter().map(one).collect();
            for synced in under_way {
                result = result.and(synced.await);
            }
        }
        result
    }

    async fn sync_if_there(&self, ino: u64) -> Result<(), StorageError> {
        match self.open_if_there(ino)? {
            Some(file) => file.sync().await,
            None => {
                self.shared.unsynced.forget(ino);
                Ok(())
            }
        }
    }

    /// The exact local size in bytes.
    ///
    /// # Errors
    /// That of the disk.
    pub fn size(&self, ino: u64) -> Result<u64, StorageError> {
        let cached = self.cache().get(ino);
        let size = match cached {
            Some(opened) => self.shared.disk.size(&opened.file),
            None => self.shared.disk.size_of(ino).map(|size| size.unwrap_or(0)),
        };
        size.map_err(failed(Operation::Size, ino))
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
            0 if self.may_be_lost(ino) => Some(self.make(ino)?),
            0 => self.open(ino)?,
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

    /// Removes a data file. Says whether there was one. Handles that are in use stay usable, and their
    /// file is gone with the last of them.
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

impl<D: Disk> Shared<D> {
    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn losses_of(&self, ino: u64) -> u64 {
        let losses = self.losses();
        losses.of.get(&ino).copied().unwrap_or(0) + losses.of_whole
    }

    fn note_loss(&self, ino: u64) {
        let mut losses = self.losses();
        losses.all += 1;
        *losses.of.entry(ino).or_default() += 1;
    }

    fn note_loss_of_whole(&self) {
        let mut losses = self.losses();
        losses.all += 1;
        losses.of_whole += 1;
    }
}

pub(crate) fn failed(operation: Operation, ino: u64) -> impl Fn(std::io::Error) -> StorageError + Copy {
    move |source| StorageError::File { operation, ino, source }
}

/// An open data file. Clones are the same opening.
pub struct DataFile<D: Disk> {
    shared: Arc<Shared<D>>,
    opened: Arc<Opened<D>>,
}

impl<D: Disk> Clone for DataFile<D> {
    fn clone(&self) -> Self {
        DataFile { shared: self.shared.clone(), opened: self.opened.clone() }
    }
}

impl<D: Disk> DataFile<D> {
    /// The inode number.
    pub fn ino(&self) -> u64 {
        self.opened.ino
    }

    pub(crate) fn disk(&self) -> &D {
        &self.shared.disk
    }

    pub(crate) fn file(&self) -> &D::File {
        &self.opened.file
    }

    pub(crate) fn sums(&self) -> &Arc<FileSums> {
        &self.opened.sums
    }

    pub(crate) fn table(&self) -> &Table {
        &self.shared.sums
    }

    /// Reads until `to` is full or the file ends; says how much there was.
    ///
    /// # Errors
    /// That of the disk.
    pub async fn read_vectored(&self, offset: u64, to: &mut [IoSliceMut<'_>]) -> Result<usize, StorageError> {
        let bytes = to.iter().map(|slice| slice.len() as u64).sum();
        self.verify(&[Extent::new(offset, bytes)]).await?;
        self.read_verified(offset, to).await
    }

    /// The same for what [`DataFile::verify`] was just called for.
    ///
    /// # Errors
    /// That of the disk.
    pub async fn read_verified(&self, offset: u64, to: &mut [IoSliceMut<'_>]) -> Result<usize, StorageError> {
        let read = self.shared.disk.read_vectored(&self.opened.file, offset, to).await;
        read.map_err(failed(Operation::Read, self.ino()))
    }

    /// [`DataFile::read_vectored`] into one slice.
    ///
    /// # Errors
    /// That of the disk.
    pub async fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize, StorageError> {
        self.read_vectored(offset, &mut [IoSliceMut::new(to)]).await
    }

    /// Reads many pieces into `to`, one behind the other, with zeros for what the file does not have;
    /// says how many bytes it had. Pieces that have to wait for the device wait together.
    ///
    /// # Errors
    /// That of the disk.
    ///
    /// # Panics
    /// If `to` is shorter than all pieces together.
    pub async fn read_pieces(&self, pieces: &[Extent], to: &mut [u8]) -> Result<usize, StorageError> {
        self.verify(pieces).await?;
        let read = self.shared.disk.read_pieces(&self.opened.file, pieces, to).await;
        read.map_err(failed(Operation::Read, self.ino()))
    }

    /// Writes all of `from`; the slices are used up. After an error an unknown part may have been
    /// written.
    ///
    /// # Errors
    /// That of the disk; see [`StorageError::is_full`].
    pub async fn write_vectored(&self, offset: u64, from: &mut [IoSlice<'_>]) -> Result<(), StorageError> {
        let bytes = from.iter().map(|slice| slice.len() as u64).sum();
        let change = self.begin_change(&[Extent::new(offset, bytes)]).await?;
        self.write_within(&change, offset, from).await
    }

    /// The same within a change that was begun for it.
    ///
    /// # Errors
    /// That of the disk; see [`StorageError::is_full`].
    pub async fn write_within(
        &self,
        _change: &Change<'_>,
        offset: u64,
        from: &mut [IoSlice<'_>],
    ) -> Result<(), StorageError> {
        let written = self.shared.disk.write_vectored(&self.opened.file, offset, from).await;
        written.map_err(failed(Operation::Write, self.ino()))
    }

    /// [`DataFile::write_vectored`] from one slice.
    ///
    /// # Errors
    /// That of the disk.
    pub async fn write(&self, offset: u64, from: &[u8]) -> Result<(), StorageError> {
        self.write_vectored(offset, &mut [IoSlice::new(from)]).await
    }

    /// Makes what was written durable, with the file's size and name. Goes on to its end, and counts a failure, also when
    /// nobody waits for it any more.
    ///
    /// # Errors
    /// That of the disk.
    pub async fn sync(&self) -> Result<(), StorageError> {
        let asked_at = self.opened.syncs.begun.load(Ordering::SeqCst);
        weft_reactor::spawn(self.clone().sync_in_turn(asked_at)).await
    }

    /// Syncs, unless a sync that began after number `asked_at` has succeeded meanwhile.
    async fn sync_in_turn(self, asked_at: u64) -> Result<(), StorageError> {
        let syncs = &self.opened.syncs;
        let whole = Extent::new(0, u64::MAX);
        let turn = SyncTurn { number: syncs.turns.ask(whole, true), opened: self.opened.clone() };
        std::future::poll_fn(|cx| syncs.turns.poll(turn.number, cx.waker())).await;
        if syncs.succeeded.load(Ordering::SeqCst) > asked_at {
            return Ok(());
        }
        let number = syncs.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let unsynced = &self.shared.unsynced;
        let note = unsynced.begin_sync(self.ino(), &self.opened.unsynced);
        let synced = self.shared.disk.sync(&self.opened.file).await;
        match &synced {
            Ok(()) => {
                unsynced.synced(self.ino(), note);
                syncs.succeeded.store(number, Ordering::SeqCst);
            }
            Err(_) => self.shared.note_loss(self.ino()),
        }
        drop(turn);
        synced.map_err(failed(Operation::Sync, self.ino()))
    }

    /// See [`DataFiles::losses`].
    pub fn losses(&self) -> u64 {
        self.shared.losses_of(self.ino())
    }

    /// A change of it has ended that no sync has made durable.
    pub(crate) fn note_unsynced(&self) {
        self.shared.unsynced.note(self.ino(), &self.opened.unsynced);
    }

    /// Where its changes are noted.
    pub(crate) fn unsynced(&self) -> (&Unsynced, &Mark) {
        (&self.shared.unsynced, &self.opened.unsynced)
    }

    /// The exact local size in bytes.
    ///
    /// # Errors
    /// That of the disk.
    pub fn size(&self) -> Result<u64, StorageError> {
        self.shared.disk.size(&self.opened.file).map_err(failed(Operation::Size, self.ino()))
    }

    /// Sets the local size.
    ///
    /// # Errors
    /// That of the disk.
    pub fn truncate(&self, bytes: u64) -> Result<(), StorageError> {
        let _change = self.begin_cut_now(bytes)?;
        let cut = self.shared.disk.truncate(&self.opened.file, bytes);
        self.shared.windows.forget(self.ino());
        cut.map_err(failed(Operation::Truncate, self.ino()))
    }

    /// Makes a range read as zeros and gives its space back; the size stays.
    ///
    /// # Errors
    /// That of the disk.
    pub fn punch(&self, offset: u64, bytes: u64) -> Result<(), StorageError> {
        let _change = self.begin_change_now(&[self.within(offset, bytes)?])?;
        let punched = self.shared.disk.punch(&self.opened.file, offset, bytes);
        self.shared.windows.forget(self.ino());
        punched.map_err(failed(Operation::Punch, self.ino()))
    }

    /// What a file has of a range, and the rest of its last block.
    fn within(&self, offset: u64, bytes: u64) -> Result<Extent, StorageError> {
        let end = self.size()?.next_multiple_of(BLOCK_BYTES).min(offset.saturating_add(bytes));
        Ok(Extent::new(offset.min(end), end.saturating_sub(offset)))
    }

    /// Makes sure that later writes to a range find space; extends the file unless `keep_size`.
    ///
    /// # Errors
    /// That of the disk.
    pub fn allocate(&self, offset: u64, bytes: u64, keep_size: bool) -> Result<(), StorageError> {
        // No byte of it changes, but its size.
        let allocated = self.shared.disk.allocate(&self.opened.file, offset, bytes, keep_size);
        self.note_unsynced();
        allocated.map_err(failed(Operation::Allocate, self.ino()))
    }

    /// Makes a range read as zeros and sure that later writes to it find space; the size stays.
    ///
    /// # Errors
    /// That of the disk.
    pub fn zero(&self, offset: u64, bytes: u64) -> Result<(), StorageError> {
        let _change = self.begin_change_now(&[self.within(offset, bytes)?])?;
        let zeroed = self.shared.disk.zero(&self.opened.file, offset, bytes);
        self.shared.windows.forget(self.ino());
        zeroed.map_err(failed(Operation::Punch, self.ino()))
    }

    /// The first offset from `offset` on with what is looked for; `None` if there is none, as from the end of the file on.
    ///
    /// # Errors
    /// That of the disk.
    pub fn seek(&self, offset: u64, what: Seek) -> Result<Option<u64>, StorageError> {
        self.shared.disk.seek(&self.opened.file, offset, what).map_err(failed(Operation::Seek, self.ino()))
    }

    /// Copies up to `bytes` bytes from `offset` on to `to_offset` of another file; says how many, 0 at the end of this one. The
    /// local file system may let both files share the space.
    ///
    /// # Errors
    /// That of the disk.
    pub fn copy_some(
        &self,
        offset: u64,
        to: &DataFile<D>,
        to_offset: u64,
        bytes: u64,
    ) -> Result<u64, StorageError> {
        self.verify_now(&[Extent::new(offset, bytes)])?;
        let _change = to.begin_change_now(&[Extent::new(to_offset, bytes)])?;
        let (from_file, to_file) = (&self.opened.file, &to.opened.file);
        let copied = self.shared.disk.copy_some(from_file, offset, to_file, to_offset, bytes);
        // Where space is shared, pages of the target go from memory.
        self.shared.windows.forget(to.ino());
        copied.map_err(failed(Operation::Copy, to.ino()))
    }

    /// Whether a range can be read without waiting for a device, as far as is known.
    pub fn resident(&self, extent: Extent) -> bool {
        self.shared.disk.resident(&self.opened.file, extent)
    }

    /// Brings ranges into the page cache without holding up the thread: before `sendfile`, or a copy
    /// out of a window, of what is not resident.
    pub async fn fetch(&self, extents: &[Extent]) {
        self.shared.disk.fetch(&self.opened.file, extents).await
    }

    /// The local descriptor, if the disk has such; open as long as this handle lives.
    pub fn raw_fd(&self) -> Option<RawFd> {
        self.shared.disk.raw_fd(&self.opened.file)
    }

    /// The bytes of `pieces` at addresses of this process; `None` if that is not to be had and the caller must read or write
    /// instead: where a page is not in memory, so also where there is a hole or the file ends, since a look at a mapped
    /// hole of a tmpfs file fills it with memory.
    pub fn mapped(&self, pieces: &[Extent]) -> Option<MappedPieces> {
        let fd = self.raw_fd()?;
        self.shared.windows.pieces(self.opened.ino, self.opened.opening, fd, pieces)
    }

    /// Moves the time of the last change on, after copies into mapped pages: the kernel does not notice these.
    ///
    /// # Errors
    /// That of the file system.
    pub fn note_written(&self) -> Result<(), StorageError> {
        let Some(fd) = self.raw_fd() else { return Ok(()) };
        let time = |nanoseconds| libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
        let times = [time(libc::UTIME_OMIT), time(libc::UTIME_NOW)];
        // SAFETY: two live times; the descriptor is open as long as this handle.
        check(unsafe { libc::futimens(fd, times.as_ptr()) } as isize)
            .map(drop)
            .map_err(failed(Operation::Write, self.ino()))
    }

    /// Bytes of whole pages that are in memory of those that `extent` touches; `None` where there is no telling.
    pub fn cached_bytes(&self, extent: Extent) -> Option<u64> {
        residency::cached_bytes(self.raw_fd()?, extent)
    }

    /// A turn at a range, for a write: it shares the range with others of its kind, but not with an exclusive one.
    pub async fn plain_turn(&self, extent: Extent) -> RangeTurn<D> {
        self.turn(extent, false).await
    }

    /// A turn at a range, for a read-modify-write: until it ends no other turn touches the range.
    pub async fn exclusive_turn(&self, extent: Extent) -> RangeTurn<D> {
        self.turn(extent, true).await
    }

    async fn turn(&self, extent: Extent, exclusive: bool) -> RangeTurn<D> {
        let ranges = &self.opened.ranges;
        let turn = RangeTurn { number: ranges.ask(extent, exclusive), opened: self.opened.clone() };
        std::future::poll_fn(|cx| ranges.poll(turn.number, cx.waker())).await;
        turn
    }
}

/// A turn at a range of a data file; it ends when this is dropped.
pub struct RangeTurn<D: Disk> {
    number: u64,
    opened: Arc<Opened<D>>,
}

impl<D: Disk> Drop for RangeTurn<D> {
    fn drop(&mut self) {
        self.opened.ranges.end(self.number);
    }
}

/// A turn to sync all data files; it ends when this is dropped.
struct AllTurn<D: Disk> {
    number: u64,
    shared: Arc<Shared<D>>,
}

impl<D: Disk> Drop for AllTurn<D> {
    fn drop(&mut self) {
        self.shared.syncs.end(self.number);
    }
}

/// A turn to sync a data file; it ends when this is dropped.
struct SyncTurn<D: Disk> {
    number: u64,
    opened: Arc<Opened<D>>,
}

impl<D: Disk> Drop for SyncTurn<D> {
    fn drop(&mut self) {
        self.opened.syncs.turns.end(self.number);
    }
}
