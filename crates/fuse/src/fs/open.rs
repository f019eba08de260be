//! Open files: what is read and written, and when the servers are told of it.

use super::{EXECUTE_BITS, NEW_MODE, OpenFile, READ_AHEAD_VALID, ToldSize, WeftFs};
use crate::kernel::answer::Answer;
use crate::locks::Lockers;
use crate::notify::ALL_BYTES;
use crate::options::CacheMode;
use crate::outcome::{Errno, Opened, Outcome, SET_ID_BITS, Told};
use crate::read_ahead::{ReadAhead, Reader};
use crate::refills::Refills;
use crate::set_id::SetIdBits;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use weft_client::{At, Client, File, OpenOptions, SetAttr};
use weft_fuse_wire::WriteManner;
use weft_gateway::{Asked, Process};
use weft_wire::messages::{Attr, Caller};

impl WeftFs {
    pub(crate) fn create(
        &self,
        who: Process,
        parent: u64,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Outcome<(Told, Opened)> {
        let options = open_options(flags).create(true).mode(mode & NEW_MODE);
        let options = if flags & libc::O_EXCL != 0 { options.create_new(true) } else { options };
        let (making, asked) = self.making(parent, name);
        let client = self.callers.client(who);
        let file = self.named(who, &[parent], client.open(self.at(parent, name), &options))?;
        let attr = match file.attr() {
            attr if file.created() => attr,
            // The least that its size can be is not for the kernel.
            attr if attr.size_live => {
                self.report_writes(attr.ino)?;
                client.getattr(attr.ino)?
            }
            attr => self.with_own_changes(&client, &asked, attr)?,
        };
        match file.parent() {
            Some(parent) => making.made(&asked, parent),
            None => making.followed.set(!file.created()),
        }
        let created = file.created();
        let opened = match created {
            true => self.add_created(file, flags, &asked),
            false => self.add_file(file, flags, None, &asked),
        };
        // A new file keeps the set-id bits that it was made with, although `creat` says to truncate.
        if !created {
            self.truncated_at_open(who, &opened, flags)?;
        }
        Ok((self.tell_entry(&asked, parent, attr), opened))
    }

    /// A file in a directory that has no name there. That it gets none with `O_EXCL` the kernel sees to as well.
    pub(crate) fn create_unnamed(
        &self,
        who: Process,
        parent: u64,
        mode: u32,
        flags: i32,
    ) -> Outcome<(Told, Opened)> {
        let options = open_options(flags).create_new(flags & libc::O_EXCL != 0).mode(mode & NEW_MODE);
        let asked = self.coherence.ask();
        let made = self.callers.client(who).create_unnamed(At::ino(self.ino(parent)), &options);
        let file = self.named(who, &[parent], made)?;
        let attr = file.attr();
        let opened = self.add_created(file, flags, &asked);
        self.coherence.looked_up(attr.ino);
        Ok((self.tell(&asked, attr), opened))
    }

    pub(crate) fn open(&self, who: Process, node: u64, flags: i32) -> Outcome<Opened> {
        let ino = self.ino(node);
        let (epoch, asked) = (self.epochs.now(ino), self.coherence.ask());
        let file = self.callers.client(who).open(At::ino(ino), &open_options(flags))?;
        let attr = file.attr();
        let until = Instant::now() + self.coherence.valid(&asked).min(self.behaviour.attr_timeout);
        let told = (!attr.size_live).then_some(ToldSize { bytes: attr.size, epoch, until });
        let opened = self.add_file(file, flags, told, &asked);
        self.truncated_at_open(who, &opened, flags)?;
        Ok(opened)
    }

    /// Who truncates without being root ends set-id bits, as by a write.
    fn truncated_at_open(&self, who: Process, opened: &Opened, flags: i32) -> Outcome<()> {
        if flags & libc::O_TRUNC == 0 || self.callers.identities().is_root(who.uid) {
            return Ok(());
        }
        let open = self.file(opened.handle)?;
        self.clear_set_id(who, &open)
    }

    fn add_created(&self, file: File, flags: i32, asked: &Asked) -> Opened {
        let ino = file.attr().ino;
        self.notes.lock(&ino).entry(ino).or_default().created = Some(Instant::now());
        self.add_file(file, flags, None, asked)
    }

    fn add_file(&self, file: File, flags: i32, told: Option<ToldSize>, asked: &Asked) -> Opened {
        let attr = file.attr();
        let append = flags & libc::O_APPEND != 0;
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if flags & libc::O_TRUNC != 0 {
            self.changed(attr.ino);
            self.reports.changed(attr.ino);
            self.coherence.emptied(attr.ino);
        }
        let streamed = self.is_streamed(&attr, flags);
        let ahead = streamed.then(ReadAhead::default);
        // Pages that a write leaves in the cache are dropped at the next open, as the file's time has changed: who only writes
        // is quicker without them. And the kernel would compute the position of an appending write from a size that
        // may be old; without the page cache the server's position is the only one.
        let write_only = flags & libc::O_ACCMODE == libc::O_WRONLY;
        let direct_io =
            self.behaviour.cache == CacheMode::Never || streamed || write_only || (append && writable);
        let open = Arc::new(OpenFile {
            ino: attr.ino,
            lockers: Lockers::default(),
            file,
            only_appends: AtomicBool::new(append),
            direct_io,
            synced: flags & libc::O_DSYNC != 0,
            writable,
            ahead,
            set_id: SetIdBits::default(),
            told: told.filter(|_| flags & libc::O_DIRECT == 0 && self.behaviour.cache != CacheMode::Never),
        });
        if writable {
            let looked = open.set_id.look();
            self.writers.lock(&attr.ino).entry(attr.ino).or_default().open.push(open.clone());
            if attr.mode & SET_ID_BITS == 0 {
                open.set_id.found(&looked, None, Instant::now() + self.coherence.valid(asked));
            }
        }
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.files.lock(&handle).insert(handle, open);
        let keep_cache = self.pages_still_good(&attr) && flags & libc::O_TRUNC == 0;
        Opened { handle, direct_io, keep_cache }
    }

    /// The size of an open file that nobody was writing when it was opened, and that nobody has changed, or opened for writing, since
    /// then: its servers need not be asked for it. Who does is not answered before this mount was told.
    fn told_bytes(&self, open: &OpenFile) -> Option<u64> {
        let ToldSize { bytes, epoch, until } = open.told.as_ref()?;
        let holds = self.epochs.now(open.ino) == *epoch && Instant::now() < *until;
        holds.then_some(*bytes)
    }

    /// Whether a file that is being opened is read past the page cache, with reading ahead here: large, only read, and no
    /// program, for what is mapped and mapped again is better kept.
    fn is_streamed(&self, attr: &Attr, flags: i32) -> bool {
        self.behaviour.cache == CacheMode::Auto
            && attr.size >= self.behaviour.stream_bytes_min
            && !self.behaviour.attr_timeout.is_zero()
            && flags & (libc::O_ACCMODE | libc::O_DIRECT) == libc::O_RDONLY
            && attr.mode & EXECUTE_BITS == 0
    }

    /// Compares the attributes of a file that is being opened with those of the open before.
    fn pages_still_good(&self, attr: &Attr) -> bool {
        let now = (!attr.size_live).then(|| (attr.size, attr.mtime.clone(), attr.ctime.clone()));
        let mut shard = self.notes.lock(&attr.ino);
        let note = shard.entry(attr.ino).or_default();
        let same_pages = now.is_some() && note.pages == now;
        note.pages = now;
        drop(shard);
        self.coherence.opened(attr.ino);
        same_pages
    }

    /// Has the kernel ask for the attributes of `ino` again.
    fn invalidate(&self, ino: u64) {
        self.coherence.attributes_changed(ino);
    }

    /// Has the kernel forget what it knows of `ino`, for others may have changed it.
    pub(crate) fn forget_contents(&self, ino: u64) {
        self.changed(ino);
        self.coherence.contents_changed(ino);
    }

    /// The connection to the servers.
    pub(crate) fn client(&self) -> &Client {
        self.callers.root()
    }

    /// See [`Client::keep_locks`].
    pub(crate) fn look_after_locks(&self) {
        // Whoever uses the mount is told if the server stays away.
        let _ = self.callers.root().keep_locks();
    }

    /// Reads up to `bytes`, and answers with them.
    pub(crate) fn read(
        &self,
        who: Process,
        handle: u64,
        flags: i32,
        offset: u64,
        bytes: usize,
        answer: impl Answer,
    ) {
        let open = match self.file(handle) {
            Ok(open) => open,
            Err(errno) => return answer.send(Err(errno)),
        };
        // The program may have turned it on after the open.
        let direct = flags & libc::O_DIRECT != 0;
        let ahead = open.ahead.as_ref().filter(|_| !direct);
        if ahead.is_none() {
            let bytes = offset..offset.saturating_add(bytes as u64);
            self.refills(open.ino, |refills| refills.reading(who.pid, &bytes));
        }
        let reader = Reader {
            client: self.callers.root(),
            buffers: &self.read_buffers,
            epochs: &self.epochs,
            file: &open.file,
            valid: self.behaviour.attr_timeout.min(READ_AHEAD_VALID),
            told_bytes: if direct { None } else { self.told_bytes(&open) },
        };
        match ahead {
            Some(ahead) => ahead.read(&reader, offset, bytes, answer),
            None => reader.read(offset, bytes, answer),
        }
    }

    /// Writes all of `data`.
    pub(crate) fn write(
        &self,
        who: Process,
        handle: u64,
        offset: u64,
        data: &[u8],
        manner: WriteManner,
    ) -> Outcome<usize> {
        let open = self.file(handle)?;
        if manner.flags & libc::O_APPEND == 0 && !manner.written_back {
            self.check_place_is_free(&open)?;
        }
        if manner.clear_set_id {
            self.clear_set_id(who, &open)?;
        }
        if !manner.written_back {
            self.refills(open.ino, Refills::writing);
        }
        if manner.written_back {
            self.check_locks_of_writers(open.ino)?;
        }
        // Pages of a mapping have their place, whichever open file the kernel sends them by.
        let appends = manner.flags & libc::O_APPEND != 0 && !manner.written_back;
        let written = match appends {
            true => open.file.append(data),
            false => open.file.write_at(data, offset).map(|_| offset),
        };
        self.changed(open.ino);
        if appends && !open.direct_io {
            self.forget_misplaced(open.ino, offset, data.len(), written.as_ref().ok());
        }
        if !manner.written_back {
            if written.is_ok() {
                self.coherence.written_to(open.ino, offset + data.len() as u64);
            }
            let bytes = written.as_ref().map_or(ALL_BYTES, |&at| at..at + data.len() as u64);
            if self.refills(open.ino, |refills| refills.written(who.pid, &bytes)) == Some(true) {
                self.coherence.refilled(open.ino, bytes);
            }
        }
        written?;
        // `RWF_DSYNC` and `RWF_SYNC`. Where the kernel caches writes it sends an fsync instead.
        if manner.flags & libc::O_DSYNC != 0 && open.direct_io && !open.synced {
            self.sync(&open)?;
        }
        Ok(data.len())
    }

    /// Which open file a changed page of a mapping was changed through, the kernel does not tell.
    fn check_locks_of_writers(&self, ino: u64) -> Outcome<()> {
        let writers = self.writers.lock(&ino).get(&ino).map(|writers| writers.open.clone());
        Ok(writers.into_iter().flatten().try_for_each(|open| open.file.check_locks())?)
    }

    /// The kernel lets a program clear `O_APPEND` of an open file that may only be appended to (chattr +a).
    fn check_place_is_free(&self, open: &OpenFile) -> Outcome<()> {
        if !open.only_appends.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.callers.root().flags(open.ino)? & FS_APPEND_FL != 0 {
            return Err(Errno(libc::EPERM));
        }
        open.only_appends.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The kernel cached an appended write at `offset`, where it took the end of the file to be. The servers put it elsewhere.
    fn forget_misplaced(&self, ino: u64, offset: u64, bytes: usize, written: Option<&u64>) {
        match written {
            Some(&at) if at == offset => {}
            Some(&at) => self.coherence.refilled(ino, offset.min(at)..offset.max(at) + bytes as u64),
            None => self.coherence.refilled(ino, offset..offset + bytes as u64),
        }
    }

    fn refills<T>(&self, ino: u64, note: impl FnOnce(&mut Refills) -> T) -> Option<T> {
        self.writers.lock(&ino).get_mut(&ino).map(|writers| note(&mut writers.refills))
    }

    fn clear_set_id(&self, who: Process, open: &OpenFile) -> Outcome<()> {
        let Some(looked) = open.set_id.to_clear(who.uid) else { return Ok(()) };
        let (root, asked) = (self.callers.root(), self.coherence.ask());
        let attr = root.getattr(open.ino)?;
        let cleared = self.callers.client(who).caller().mode_after_change(attr.mode, attr.gid);
        if cleared != attr.mode {
            // Not as root, whom the servers may take for nobody.
            let owner = root.with_caller(Caller { uid: attr.uid, gid: attr.gid, groups: Vec::new() });
            owner.setattr(
                At::ino(open.ino),
                false,
                &SetAttr { mode: Some(cleared), ..SetAttr::default() },
            )?;
            self.invalidate(open.ino);
        }
        let left_by = (cleared & SET_ID_BITS != 0).then_some(who.uid);
        open.set_id.found(&looked, left_by, Instant::now() + self.coherence.valid(&asked));
        Ok(())
    }

    /// At every close of a descriptor: what was written is known to the metadata server when close returns.
    pub(crate) fn flush(&self, handle: u64) -> Outcome<()> {
        let open = self.file(handle)?;
        if open.writable {
            self.report_of(&open)?;
            open.file.check_losses()?;
        }
        Ok(())
    }

    /// At the last close.
    pub(crate) fn release(&self, handle: u64) -> Outcome<()> {
        let Some(open) = self.files.lock(&handle).remove(&handle) else { return Err(Errno(libc::EBADF)) };
        open.lockers.release(&open.file);
        if open.writable {
            // Where it fails, the close tries again, and tells.
            let _ = self.report_of(&open);
            let mut shard = self.writers.lock(&open.ino);
            if let Some(writers) = shard.get_mut(&open.ino) {
                writers.open.retain(|writer| !Arc::ptr_eq(writer, &open));
                if writers.open.is_empty() {
                    shard.remove(&open.ino);
                }
            }
        }
        // Somebody may be reporting for it right now; then it closes when they are done.
        match Arc::into_inner(open) {
            Some(open) => Ok(self.closing.close(open.file)?),
            None => Ok(()),
        }
    }

    pub(crate) fn fsync(&self, handle: u64) -> Outcome<()> {
        self.sync(&*self.file(handle)?)
    }

    fn sync(&self, open: &OpenFile) -> Outcome<()> {
        open.file.sync_contents()?;
        self.report_of(open)?;
        Ok(open.file.sync_attributes()?)
    }

    pub(crate) fn fallocate(
        &self,
        who: Process,
        handle: u64,
        offset: u64,
        bytes: u64,
        mode: i32,
    ) -> Outcome<()> {
        let open = self.file(handle)?;
        self.changed_by(who, &open)?;
        let changed = open.file.fallocate(mode, offset, bytes);
        self.blocks.reserved(open.ino);
        self.changed(open.ino);
        changed?;
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
            self.coherence.written_to(open.ino, offset.saturating_add(bytes));
        }
        Ok(())
    }

    /// Where data, or a hole, is next.
    pub(crate) fn seek(&self, handle: u64, offset: u64, whence: i32) -> Outcome<u64> {
        let open = self.file(handle)?;
        let found = match whence {
            libc::SEEK_DATA => open.file.seek_data(offset)?,
            libc::SEEK_HOLE => open.file.seek_hole(offset)?,
            _ => return Err(Errno(libc::EINVAL)),
        };
        found.ok_or(Errno(libc::ENXIO))
    }

    pub(crate) fn copy_range(
        &self,
        who: Process,
        (from, from_offset): (u64, u64),
        (to, to_offset): (u64, u64),
        bytes: u64,
    ) -> Outcome<u64> {
        let (from, to) = (self.file(from)?, self.file(to)?);
        self.changed_by(who, &to)?;
        let from_bytes = self.told_bytes(&from);
        let root = self.callers.root();
        let copied = root.copy_range_of(&from.file, from_offset, from_bytes, &to.file, to_offset, bytes);
        if !copied.as_ref().is_ok_and(|copied| copied.hole_bytes == 0) {
            self.blocks.reserved(to.ino);
        }
        self.changed(to.ino);
        let bytes = copied?.bytes;
        if bytes > 0 {
            self.coherence.written_to(to.ino, to_offset + bytes);
        }
        Ok(bytes)
    }

    /// Who changes a file otherwise than by a write, without being root, ends set-id bits as by one.
    pub(super) fn changed_by(&self, who: Process, open: &OpenFile) -> Outcome<()> {
        if self.callers.identities().is_root(who.uid) { Ok(()) } else { self.clear_set_id(who, open) }
    }

    pub(crate) fn sync_names(&self) -> Outcome<()> {
        Ok(self.callers.root().sync_names()?)
    }
}

/// The kernel opens the file to execute it (`__FMODE_EXEC`), which takes no permission to read.
const EXECUTES: i32 = 0x20;

/// A file that may only be appended to, as linux/fs.h has it.
const FS_APPEND_FL: u32 = 0x20;

fn open_options(flags: i32) -> OpenOptions {
    let access = flags & libc::O_ACCMODE;
    // Linux lets also a file be truncated that is opened for reading only; it takes the permission to write.
    let truncates = flags & libc::O_TRUNC != 0;
    OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY || truncates)
        .truncate(truncates)
        .execute(flags & EXECUTES != 0)
        .append(flags & libc::O_APPEND != 0)
        .sync(flags & (libc::O_SYNC | libc::O_DSYNC) != 0)
}
