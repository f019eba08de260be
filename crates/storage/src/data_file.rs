//! An open data file: reading, writing and changing its bytes.
//!
//! ```text
//!   read    verify ─► disk.read            sums are compared before bytes leave
//!   write   begin_change ─► disk.write     sums are void before bytes change
//! ```
//!
//! A caller that reads before it writes, or that must exclude one who does, holds a turn at the range meanwhile
//! ([`DataFile::plain_turn`], [`DataFile::exclusive_turn`]).

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weft_layout::Extent;

use crate::disk::{Disk, Seek, check};
use crate::error::{Operation, StorageError};
use crate::handles::RecentlyUsed;
use crate::held;
use crate::mapped::MappedPieces;
use crate::ranges::{Ranges, Turn};
use crate::residency;
use crate::sums::format::BLOCK_BYTES;
use crate::sums::table::{FileSums, Table};
use crate::sums::under_way::Change;
use crate::syncs::{Losses, Syncs};
use crate::unsynced::{Mark, Unsynced};
use crate::windows::Windows;

/// What all data files of a server share.
pub(crate) struct Shared<D: Disk> {
    pub disk: D,
    /// Held while a data file is opened, made or removed, so that a handle of a removed file never
    /// stays behind under its number.
    pub open: Mutex<RecentlyUsed<u64, Opened<D>>>,
    pub windows: Windows,
    pub sums: Table,
    pub openings: AtomicU64,
    /// Data files of smaller inode numbers that are not there are lost.
    pub lost_below_ino: AtomicU64,
    pub losses: Losses,
    pub unsynced: Unsynced,
    /// Syncs of all data files, one at a time.
    pub syncs: Ranges,
    /// Syncs of marks, one at a time.
    pub marks: Ranges,
}

/// One opening of a data file.
pub(crate) struct Opened<D: Disk> {
    pub ino: u64,
    /// Tells apart the openings of one number, whose files may differ.
    pub opening: u64,
    pub file: D::File,
    pub ranges: Ranges,
    pub syncs: Syncs,
    pub sums: Arc<FileSums>,
    /// It was found to reach as far as its sums do.
    pub reaches_sums: AtomicBool,
    /// It was marked since it was opened.
    pub is_held: AtomicBool,
    pub unsynced: Mark,
}

pub(crate) fn failed(operation: Operation, ino: u64) -> impl Fn(std::io::Error) -> StorageError + Copy {
    move |source| StorageError::File { operation, ino, source }
}

/// An open data file. Clones are the same opening.
pub struct DataFile<D: Disk> {
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) opened: Arc<Opened<D>>,
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
        let asked_at = self.opened.syncs.last_begun();
        weft_reactor::spawn(self.clone().sync_in_turn(asked_at)).await
    }

    /// Syncs, unless a sync that began after number `asked_at` has succeeded meanwhile.
    async fn sync_in_turn(self, asked_at: u64) -> Result<(), StorageError> {
        let Some(turn) = self.opened.syncs.begin(asked_at).await else { return Ok(()) };
        let unsynced = &self.shared.unsynced;
        let note = unsynced.begin_sync(self.ino(), &self.opened.unsynced);
        let quiet_at = self.sums().state().quiet_at();
        let synced = self.shared.disk.sync(&self.opened.file).await;
        match &synced {
            Ok(()) => {
                // It is tried again with the next sync, as after a full disk. The data is durable without.
                let _ = self.hold(held::Mark::Synced);
                unsynced.synced(self.ino(), note);
                self.sums().state().synced(quiet_at);
                turn.succeeded();
            }
            Err(_) => self.shared.losses.note(self.ino()),
        }
        drop(turn);
        synced.map_err(failed(Operation::Sync, self.ino()))
    }

    /// How often a sync of it has failed; see [`DataFiles::losses`](crate::DataFiles::losses).
    pub fn losses(&self) -> u64 {
        self.shared.losses.of(self.ino())
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
    /// [`StorageError::Cut`] or [`StorageError::Foreign`] where the data file ends before data that has checksums, or is another
    /// one; or that of the disk.
    pub fn size(&self) -> Result<u64, StorageError> {
        let bytes = self.size_found()?;
        self.must_reach(bytes)?;
        Ok(bytes)
    }

    /// The same, whatever its sums say.
    pub(crate) fn size_found(&self) -> Result<u64, StorageError> {
        self.shared.disk.size(&self.opened.file).map_err(failed(Operation::Size, self.ino()))
    }

    /// Checks, once for each opening, that the data file reaches as far as its sums do.
    fn must_reach(&self, bytes: u64) -> Result<(), StorageError> {
        if self.opened.reaches_sums.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.compare_end(bytes)?;
        self.opened.reaches_sums.store(true, Ordering::Relaxed);
        Ok(())
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
        let end = self.size_found()?.next_multiple_of(BLOCK_BYTES).min(offset.saturating_add(bytes));
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
    pub async fn plain_turn(&self, extent: Extent) -> Turn<'_> {
        self.opened.ranges.turn(extent, false).await
    }

    /// A turn at a range, for a read-modify-write: until it ends no other turn touches the range.
    pub async fn exclusive_turn(&self, extent: Extent) -> Turn<'_> {
        self.opened.ranges.turn(extent, true).await
    }
}
