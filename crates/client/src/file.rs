//! An open file: what it is, its cursor and view, locks, sizes, and its end. Reads and writes are in
//! `file_io.rs`.

use std::io::SeekFrom;
use std::sync::{Arc, Mutex};

use weft_layout::{Layout, Regions, View};
use weft_wire::messages::{Attr, Time};

use crate::Result;
use crate::access::{AccessOptions, IoStats};
use crate::call::Guard;
use crate::error::{Error, ErrorKind};
use crate::locks::{LockHolder, LockKind, LockOwner, LockTarget, LockWait};
use crate::open_file::OpenFile;
use crate::wait::lock;

/// An open file. All methods may be called by several threads at once. Dropping it closes it; [`File::close`]
/// says whether that succeeded.
///
/// The general calls are [`File::read_raw`] and [`File::write_raw`]: any regions of the file, any regions of
/// memory. The others are covers of these.
///
/// What a read finds: bytes of every write that had returned before the read began, by whatever client. Where
/// the file has holes it reads zeros. A read that overlaps a write under way sees, of each strip, the old or
/// the new bytes or some of both.
pub struct File {
    pub(crate) open: Arc<OpenFile>,
    pub(crate) cursor: Mutex<Cursor>,
}

/// Where [`File::read`] and [`File::write`] go on.
#[derive(Default)]
pub(crate) struct Cursor {
    pub position: u64,
    view: Option<View>,
}

impl Cursor {
    /// The bytes of the file that are seen at `position`.
    pub(crate) fn regions_at(&self, position: u64, bytes: u64) -> Result<Regions> {
        match &self.view {
            None => Ok(Regions::contiguous(position, bytes)),
            Some(view) => view.regions(position, bytes).map_err(|error| invalid(error.to_string())),
        }
    }
}

fn invalid(text: String) -> Error {
    Error::new("seek", ErrorKind::Invalid, text)
}

impl File {
    pub(crate) fn new(open: Arc<OpenFile>) -> File {
        File { open, cursor: Mutex::default() }
    }

    pub(crate) fn open(&self) -> &Arc<OpenFile> {
        &self.open
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.open.held.ino
    }

    /// Attributes as of the opening, or the last [`File::stat`] or [`File::flush`] through this handle. The
    /// size of a file that somebody may be writing (`size_live`) is a lower bound here.
    pub fn attr(&self) -> Attr {
        lock(&self.open.attr).clone()
    }

    /// How it is striped.
    pub fn layout(&self) -> Layout {
        self.open.held.layout
    }

    /// Whether this open created it.
    pub fn created(&self) -> bool {
        self.open.created
    }

    /// Attributes of the directory in which this open created it, right after that; told to clients that
    /// watch and named the directory by number.
    pub fn parent(&self) -> Option<&Attr> {
        self.open.parent.get()
    }

    /// How reads and writes of pieces are carried out.
    pub fn access(&self) -> AccessOptions {
        self.open.access()
    }

    /// Changes how they are carried out, for operations that begin from now on.
    pub fn set_access(&self, access: AccessOptions) {
        self.open.set_access(access);
    }

    /// What reads and writes through this handle have cost since it was opened.
    pub fn io_stats(&self) -> IoStats {
        self.open.stats()
    }

    /// Moves the cursor; positions are the view's if one is set. Returns where it is.
    pub fn seek(&self, to: SeekFrom) -> Result<u64> {
        let mut cursor = lock(&self.cursor);
        let (from, by) = match to {
            SeekFrom::Start(position) => (position, 0),
            SeekFrom::Current(by) => (cursor.position, by),
            SeekFrom::End(by) => {
                let file_bytes = self.stat()?.size;
                (cursor.view.as_ref().map_or(file_bytes, |view| view.view_size(file_bytes)), by)
            }
        };
        let position = from.checked_add_signed(by).filter(|position| *position <= i64::MAX as u64);
        cursor.position = position.ok_or_else(|| {
            invalid(format!("{by} bytes from {from} is before the beginning or beyond 2^63"))
                .on(&self.open.name)
        })?;
        Ok(cursor.position)
    }

    /// Lets the cursor, and [`Place::View`](crate::Place::View), go through a view of the file: a [`View`] of
    /// any type, or a [`Partition`](weft_layout::Partition) (PVFS 3.3). `None`: the file itself again. The
    /// cursor goes to 0.
    pub fn set_view(&self, view: Option<View>) {
        *lock(&self.cursor) = Cursor { position: 0, view };
    }

    /// Whether the cursor goes through a view.
    pub fn has_view(&self) -> bool {
        lock(&self.cursor).view.is_some()
    }

    /// The regions of the file that are `bytes` bytes at `position` of the view.
    pub(crate) fn view_regions(&self, position: u64, bytes: u64) -> Result<Regions> {
        lock(&self.cursor).regions_at(position, bytes)
    }

    /// What it was opened by.
    pub(crate) fn name(&self) -> &str {
        &self.open.name
    }

    /// Locks for this open file. Locks of ranges are as those of fcntl(2): a new one replaces what it
    /// overlaps of the same owner's. They hold between all clients and mounts, and keep nobody from reading
    /// or writing who does not ask for a lock.
    ///
    /// # Errors
    /// [`weft_wire::Status::Locked`] (`EAGAIN`) where another has it and `wait` is [`LockWait::Never`];
    /// [`weft_wire::Status::Deadlock`] (`EDEADLK`) where the wait for a range would never end; `EINTR` where
    /// it was ended; [`weft_wire::Status::LockLost`] (`EIO`) once for each loss of locks of this open file. A lock that is granted
    /// after that ends the loss: reads and writes succeed again, when all that was lost is locked again or given up.
    pub fn lock(&self, target: LockTarget, kind: LockKind, wait: LockWait<'_>) -> Result<()> {
        self.lock_as(LockOwner::File, target, kind, wait)
    }

    /// Fails while locks that were taken through this open file are lost. As reads and writes do, which look
    /// by themselves, it notices that the connection to the metadata server is lost, and makes it again: for
    /// programs that read and write by another handle than they lock.
    ///
    /// # Errors
    /// [`weft_wire::Status::LockLost`] (`EIO`).
    pub fn check_locks(&self) -> Result<()> {
        self.open.check_locks().map_err(|error| error.on(&self.open.name))
    }

    /// As [`File::lock`], for a certain owner.
    pub fn lock_as(
        &self,
        owner: LockOwner,
        target: LockTarget,
        kind: LockKind,
        wait: LockWait<'_>,
    ) -> Result<()> {
        self.lock_then(owner, target, kind, wait, &|| ())
    }

    /// As [`File::lock_as`]. `granted` is called when the lock is held and, if it was lost before, while reads and writes through
    /// this open file still fail: for who must first forget what it has cached.
    ///
    /// # Errors
    /// As of [`File::lock`].
    pub fn lock_then(
        &self,
        owner: LockOwner,
        target: LockTarget,
        kind: LockKind,
        wait: LockWait<'_>,
        granted: &dyn Fn(),
    ) -> Result<()> {
        self.open.lock(owner, target, kind, wait, granted).map_err(|error| error.on(&self.open.name))
    }

    /// Attributes of a small file, as the reply to its last read or write by this handle had them. `None` if the file is striped: then
    /// no reply to a write has them.
    pub fn small_attr(&self) -> Option<Attr> {
        (self.open.held.small_bytes() > 0).then(|| self.attr())
    }

    /// From now on reads and changes of the contents through this open file fail while `locks` does: it tells of locks that are
    /// taken by other means than this open file, as in another session. It is asked before each request is sent, and replaces
    /// one of the same name. A forked child does not rely on it.
    pub fn rely_on(&self, name: &'static str, locks: Arc<dyn Guard>) {
        self.open.rely_on(name, locks);
    }

    /// Gives back what this open file has locked of `target`.
    pub fn unlock(&self, target: LockTarget) -> Result<()> {
        self.unlock_as(LockOwner::File, target)
    }

    /// As [`File::unlock`], for a certain owner.
    pub fn unlock_as(&self, owner: LockOwner, target: LockTarget) -> Result<()> {
        self.open.unlock(owner, target).map_err(|error| error.on(&self.open.name))
    }

    /// Gives back all that an owner has locked of this file.
    pub fn unlock_all_as(&self, owner: LockOwner) -> Result<()> {
        self.open.unlock_all(owner).map_err(|error| error.on(&self.open.name))
    }

    /// A lock of another that would be in the way of this one.
    pub fn lock_test(&self, target: LockTarget, kind: LockKind) -> Result<Option<LockHolder>> {
        self.lock_test_as(LockOwner::File, target, kind)
    }

    /// As [`File::lock_test`], for a certain owner.
    pub fn lock_test_as(
        &self,
        owner: LockOwner,
        target: LockTarget,
        kind: LockKind,
    ) -> Result<Option<LockHolder>> {
        self.open.lock_test(owner, target, kind).map_err(|error| error.on(&self.open.name))
    }

    /// Writes `data` at the beginning of a new file, which is small, and sets its times, with one message. `None` if that cannot be
    /// done so, and nothing was written: write it as usual. Else whether the times are set; servers of before cannot, and only the
    /// owner may.
    ///
    /// # Errors
    /// As of [`File::write_at`].
    pub fn write_with_times(&self, data: &[u8], atime: &Time, mtime: &Time) -> Result<Option<bool>> {
        let written = self.open.write_with_times(data, atime, mtime);
        written.map_err(|error| error.on(&self.open.name))
    }

    /// Cuts or extends the file to `file_bytes`; what is added reads as zeros.
    pub fn truncate(&self, file_bytes: u64) -> Result<()> {
        self.open.truncate_while(None, file_bytes).map_err(|error| error.on(&self.open.name))
    }

    /// As [`File::truncate`], by requests that are sent only while `guard` allows it.
    ///
    /// # Errors
    /// Those of [`File::truncate`], and of `guard`.
    pub fn truncate_while(&self, guard: Option<Arc<dyn Guard>>, file_bytes: u64) -> Result<()> {
        self.open.truncate_while(guard, file_bytes).map_err(|error| error.on(&self.open.name))
    }

    /// Moves the times of modification and of status change to now, as a write does, and tells the metadata
    /// server so. Whoever has the file open for writing may.
    pub fn touch(&self) -> Result<()> {
        self.open.touch().map_err(|error| error.on(&self.open.name))
    }

    /// Frees the space under a range; it reads as zeros. The size stays.
    pub fn punch(&self, offset: u64, bytes: u64) -> Result<()> {
        self.open.punch(offset, bytes).map_err(|error| error.on(&self.open.name))
    }

    /// Reserves space for a range; the file reaches at least to its end then, unless `keep_size`.
    pub fn allocate(&self, offset: u64, bytes: u64, keep_size: bool) -> Result<()> {
        self.open.allocate(offset, bytes, keep_size).map_err(|error| error.on(&self.open.name))
    }

    /// Makes a range zeros for which space is reserved; the file reaches at least to its end then, unless
    /// `keep_size`.
    pub fn zero(&self, offset: u64, bytes: u64, keep_size: bool) -> Result<()> {
        self.open.zero(offset, bytes, keep_size).map_err(|error| error.on(&self.open.name))
    }

    /// Where the first data at or behind `offset` is; `None` if there is none, as at the end of the file
    /// (`ENXIO` in lseek(2)). What was never written, or punched, is no data, as far as the servers' local
    /// file systems tell: in their blocks.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.open.next_data(offset).map_err(|error| error.on(&self.open.name))
    }

    /// Where the first hole at or behind `offset` is: the end of the file at the latest. `None` from there
    /// on.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.open.next_hole(offset).map_err(|error| error.on(&self.open.name))
    }

    /// Space that the file takes on its servers, in bytes.
    pub fn allocated_bytes(&self) -> Result<u64> {
        self.open.allocated_bytes().map_err(|error| error.on(&self.open.name))
    }

    /// Makes durable what was written to the file, its size and its times.
    pub fn sync_data(&self) -> Result<()> {
        self.open.sync_data().map_err(|error| error.on(&self.open.name))
    }

    /// As [`File::sync_data`], for who can write again what was lost: makes durable what the servers have.
    /// Returns whether that is all that was acknowledged since the file was opened; if it is not, a server
    /// may have lost writes. Then the file is to be opened anew before it is written again.
    pub fn sync_what_is_left(&self) -> Result<bool> {
        self.open.sync_what_is_left().map_err(|error| error.on(&self.open.name))
    }

    /// The first part of [`File::sync_data`]: makes durable what was written to the I/O servers.
    /// [`File::flush`] and [`File::sync_attributes`] are the others.
    pub fn sync_contents(&self) -> Result<()> {
        self.open.sync_contents().map_err(|error| error.on(&self.open.name))
    }

    /// The last part of [`File::sync_data`]: makes durable what the metadata server was told.
    pub fn sync_attributes(&self) -> Result<()> {
        self.open.sync_attributes().map_err(|error| error.on(&self.open.name))
    }

    /// Tells the metadata server what was written through this handle; the attributes after it, or `None`
    /// when there was nothing to tell. Nothing has to be flushed for others to see what was written, or how
    /// long the file is.
    pub fn flush(&self) -> Result<Option<Attr>> {
        self.open.flush().map_err(|error| error.on(&self.open.name))
    }

    /// As [`File::flush`], for who only wants attributes: a server that is gone, and cannot say how far a
    /// write came that failed, is no error. What is known for certain is told, and the rest when the server
    /// is back.
    pub fn flush_known(&self) -> Result<Option<Attr>> {
        self.open.flush_known().map_err(|error| error.on(&self.open.name))
    }

    /// An error if an I/O server has told since the file was opened that it may have lost acknowledged writes
    /// to it which were not yet durable. Asks nobody: [`File::sync_data`] does, and fails from then on too.
    ///
    /// # Errors
    /// `EIO`.
    pub fn check_losses(&self) -> Result<()> {
        self.open.check_losses().map_err(|error| error.on(&self.open.name))
    }

    /// Attributes now.
    pub fn stat(&self) -> Result<Attr> {
        self.open.stat().map_err(|error| error.on(&self.open.name))
    }

    /// Closes the file; what was started and not waited for goes on.
    ///
    /// # Errors
    /// If what was written could not be reported. All of it is on the I/O servers all the same.
    pub fn close(self) -> Result<()> {
        match Arc::into_inner(self.open) {
            Some(open) => open.close().map_err(|error| error.on(&open.name)),
            None => Ok(()),
        }
    }

    /// As [`File::close`], and the message to the metadata server waits for those of other files, if nothing
    /// has to be reported and nothing was ever locked through this one: it goes with the next
    /// [`Client::send_closes`](crate::Client::send_closes), before the file is opened again by its number or
    /// truncated, when sixteen are waiting, or when the last handle of the client is dropped. Until then the
    /// file counts as open at the server: one that was open for writing as one that somebody may be writing,
    /// one without a name as there. Returns how many wait now; where it is not 0, somebody should call
    /// [`Client::send_closes`](crate::Client::send_closes) within a few milliseconds.
    ///
    /// # Errors
    /// As [`File::close`].
    pub fn close_later(self) -> Result<usize> {
        match Arc::into_inner(self.open) {
            Some(open) => open.close_later().map_err(|error| error.on(&open.name)),
            None => Ok(0),
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File {{ name: {:?}, ino: {} }}", self.open.name, self.ino())
    }
}
