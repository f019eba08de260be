//! Each request of the kernel to the operation of [`WeftFs`] that it is, and what that says back.

use super::answer::Answer;
use super::panics::{Ended, guarded};
use crate::directory::DirItem;
use crate::ending;
use crate::fs::WeftFs;
use crate::locks::{Interrupts, LockAsked};
use crate::metrics::Metrics;
use crate::outcome::{Changes, Errno, Found, Opened, Outcome, Told};
use crate::slow::Served;
use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_client::{Client, c};
use weft_fuse_wire::{
    Attributes, Body, CopyRange, DirectoryEntry, Entry, FileTime, Header, LockFound, LockRequest, Malformed,
    OpenReply, Request, SetAttributes, SetTime, Space, open_flags,
};
use weft_gateway::Process;
use weft_wire::limits::NAME_BYTES_MAX;
use weft_wire::messages::{FileKind, Time, UMASK_SHIFT};

/// Largest copy for one request: it can be interrupted in between, and an old kernel has 32 bits for the count.
const COPY_BYTES_MAX: u64 = 1 << 30;
/// Unit of counting space.
const STATFS_BLOCK_BYTES: u64 = 4096;
/// Files that can still be made, as told: the number has no bound but space.
const FILES_FREE: u64 = u32::MAX as u64;
/// What programs are told to read and write at a time.
const PREFERRED_IO_BYTES: u32 = 128 << 10;

/// An extended attribute that is never there, and asked for only for the sake of the request: see `ring.rs`.
pub(super) const NUDGE: &[u8] = b"security.weft-nudge";

thread_local! {
    /// The request that this thread serves, and the thread that made it.
    static SERVED: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
    /// A signal has come for that thread.
    static SIGNALLED: Cell<bool> = const { Cell::new(false) };
}

/// Gives requests to the file system.
pub(crate) struct Dispatcher {
    fs: Arc<WeftFs>,
    /// Where the file system is mounted.
    dir: PathBuf,
    interrupts: Interrupts,
    /// From when on a request is slow; 0: never.
    slow_ms: u64,
    /// What is counted, where somebody looks at it.
    metrics: Option<Arc<Metrics>>,
}

impl Dispatcher {
    pub(crate) fn new(
        fs: Arc<WeftFs>,
        dir: PathBuf,
        slow_ms: u64,
        metrics: Option<Arc<Metrics>>,
    ) -> Dispatcher {
        Dispatcher { fs, dir, interrupts: Interrupts::default(), slow_ms, metrics }
    }

    /// Has waits of the calling thread end when whoever made its request is interrupted; `waits` is called while it waits.
    pub(super) fn end_waits_of_this_thread(&self, waits: impl Fn() + 'static) {
        let interrupts = self.interrupts.clone();
        weft_client::end_waits_when(move || {
            waits();
            let (unique, thread) = SERVED.get();
            // The kernel says so once, of the first signal.
            SIGNALLED.set(SIGNALLED.get() || interrupts.take(unique));
            SIGNALLED.get() && ending::is_ended(thread)
        });
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The connection to the servers.
    pub(super) fn client(&self) -> &Client {
        self.fs.client()
    }

    /// Serves one request, as far as it makes sense.
    pub(super) fn serve(
        &self,
        header: &Header,
        request: Result<Request<'_>, Malformed>,
        answer: impl Answer,
    ) -> Ended {
        let request = match request {
            Ok(request) => request,
            Err(malformed) => {
                tracing::warn!("{malformed}");
                answer.done(Err(Errno(libc::EINVAL)));
                return Ended::Well;
            }
        };
        let operation = self.fs.client().operation();
        let (served, name) = (Served::begin(self.metrics.is_some()), request.name());
        let written_bytes = if let Request::Write { data, .. } = &request { data.len() } else { 0 };
        let ended = guarded(name, &served, self.metrics.as_deref(), answer, |answer| {
            self.serve_well_formed(header, request, answer);
        });
        if let Some(metrics) = &self.metrics {
            served.count(metrics, name);
            metrics.written(written_bytes);
        }
        served.end(self.fs.client(), header, name, self.slow_ms, operation.trace());
        ended
    }

    fn serve_well_formed(&self, header: &Header, request: Request<'_>, answer: impl Answer) {
        SERVED.set((header.unique, header.pid));
        SIGNALLED.set(false);
        let who = Process { uid: header.uid, gid: header.gid, pid: header.pid };
        let (fs, node) = (&self.fs, header.node);
        match request {
            Request::Lookup { name } => answer.reply(fs.lookup(who, node, os(name)), put_found),
            Request::Forget { lookups } => {
                fs.forget(node, lookups);
                answer.none();
            }
            Request::ForgetMany(forgets) => {
                forgets.for_each(|(node, lookups)| fs.forget(node, lookups));
                answer.none();
            }
            Request::GetAttributes => answer.reply(fs.getattr(who, node), put_attributes),
            Request::SetAttributes(set) => {
                answer.reply(fs.setattr(who, node, set.handle, changes(&set)), put_attributes);
            }
            Request::ReadLink => answer.reply(fs.readlink(who, node), |body, target| {
                body.bytes(&target);
            }),
            Request::Symlink { name, target } => {
                answer.reply(fs.symlink(who, node, os(name), target), put_entry);
            }
            Request::MakeNode { name, mode, umask, device } => {
                let mode = with_umask(mode, umask);
                answer.reply(fs.mknod(who, node, os(name), mode, device), put_entry);
            }
            Request::MakeDirectory { name, mode, umask } => {
                answer.reply(fs.mkdir(who, node, os(name), with_umask(mode, umask)), put_entry);
            }
            Request::Unlink { name } => answer.done(fs.unlink(who, node, os(name))),
            Request::RemoveDirectory { name } => answer.done(fs.rmdir(who, node, os(name))),
            Request::Rename { name, new_dir, new_name, flags } => {
                answer.done(fs.rename(who, (node, os(name)), (new_dir, os(new_name)), flags));
            }
            Request::Link { node: linked, name } => {
                answer.reply(fs.link(who, linked, node, os(name)), put_entry);
            }
            Request::Open { flags } => answer.reply(fs.open(who, node, flags), put_opened),
            Request::Create { name, flags, mode, umask } => {
                let created = fs.create(who, node, os(name), with_umask(mode, umask), flags);
                answer.reply(created, put_created);
            }
            Request::CreateUnnamed { flags, mode, umask } => {
                answer.reply(fs.create_unnamed(who, node, with_umask(mode, umask), flags), put_created);
            }
            Request::Read { handle, offset, bytes, flags } => {
                fs.read(who, handle, flags, offset, bytes as usize, answer);
            }
            Request::Write { handle, offset, data, manner } => {
                answer.reply(fs.write(who, handle, offset, data, manner), put_count);
            }
            Request::Flush { handle, owner } => {
                let unlocked = fs.unlock_closer(handle, owner);
                answer.done(fs.flush(handle).and(unlocked));
            }
            Request::Release { handle } => answer.done(fs.release(handle)),
            Request::Fsync { handle } => answer.done(fs.fsync(handle)),
            Request::Fallocate { handle, offset, bytes, mode } => {
                answer.done(fs.fallocate(who, handle, offset, bytes, mode));
            }
            Request::Seek { handle, offset, whence } => {
                answer.reply(fs.seek(handle, offset, whence), |body, found| {
                    body.u64(found);
                });
            }
            Request::CopyRange(CopyRange { from, to, bytes, wide }) => {
                let copied = fs.copy_range(who, from, to, bytes.min(COPY_BYTES_MAX));
                answer.reply(copied, |body, copied| match wide {
                    true => {
                        body.u64(copied);
                    }
                    false => put_count(body, copied as usize),
                });
            }
            Request::GetLock(lock) => answer.reply(self.get_lock(&lock), |body, found| {
                body.lock(&found);
            }),
            Request::SetLock { lock, wait } => self.set_lock(header, &lock, wait, answer),
            // The kernel drops a listing that it keeps when the directory's modification time is another.
            Request::OpenDirectory => answer.reply(fs.open_directory(who, node), |body, handle| {
                body.opened(&OpenReply { handle, flags: open_flags::CACHE_DIR | open_flags::KEEP_CACHE });
            }),
            Request::ReadDirectory { handle, position, bytes, with_attributes } => {
                self.read_directory(handle, position, bytes as usize, with_attributes, answer);
            }
            Request::ReleaseDirectory { handle } => {
                fs.release_directory(handle);
                answer.done(Ok(()));
            }
            Request::FsyncDirectory => answer.done(fs.sync_names()),
            Request::GetXattr { name: NUDGE, .. } => answer.done(Err(Errno(libc::ENODATA))),
            Request::GetXattr { name, bytes } => put_xattr(answer, bytes, fs.getxattr(who, node, os(name))),
            Request::SetXattr { name, value, flags } => {
                answer.done(fs.setxattr(who, node, os(name), value, flags));
            }
            Request::ListXattrs { bytes } => put_xattr(answer, bytes, fs.listxattr(who, node)),
            Request::RemoveXattr { name } => answer.done(fs.removexattr(who, node, os(name))),
            Request::Access { mask } => answer.done(fs.access(who, node, mask)),
            Request::Ioctl { command, data } => {
                answer.reply(fs.ioctl(who, node, command, data), |body, written| {
                    body.ioctl(&written);
                });
            }
            Request::StatFs => answer.reply(fs.statfs(node), |body, space| {
                let files_free = match space.files_max {
                    0 => FILES_FREE,
                    files_max => files_max.saturating_sub(space.files),
                };
                body.space(&Space {
                    block_bytes: STATFS_BLOCK_BYTES as u32,
                    blocks: space.space_bytes / STATFS_BLOCK_BYTES,
                    free: space.free_bytes / STATFS_BLOCK_BYTES,
                    available: space.available_bytes / STATFS_BLOCK_BYTES,
                    files: space.files + files_free,
                    files_free,
                    name_bytes_max: NAME_BYTES_MAX as u32,
                });
            }),
            Request::Interrupt { unique } => {
                self.interrupts.came(unique);
                answer.none();
            }
            Request::Destroy => answer.done(Ok(())),
            // Also FUSE_STATX: a kernel that has it asks at each statx(2) that wants the time of birth, whatever it has cached.
            Request::Other => answer.done(Err(Errno(libc::ENOSYS))),
        }
    }

    fn read_directory(
        &self,
        handle: u64,
        position: u64,
        bytes: usize,
        with_attributes: bool,
        mut answer: impl Answer,
    ) {
        let memory = answer.body();
        let room = bytes.min(memory.len());
        let mut body = Body::new(&mut memory[..room]);
        let emit = |item: DirItem<'_>| {
            // Without a node, a name is only listed.
            let entry = with_attributes.then(|| item.told.as_ref().map(entry).unwrap_or_default());
            let (name, mode) = (item.name, c::type_bits(item.kind));
            let name = DirectoryEntry { ino: item.node, position: item.position, mode, name };
            !body.directory_entry(&name, entry.as_ref())
        };
        let listed = self.fs.read_directory(handle, position, with_attributes, emit);
        let length = body.length();
        answer.send(listed.map(|()| length));
    }

    fn get_lock(&self, lock: &LockRequest) -> Outcome<LockFound> {
        let held = self.fs.test_lock(lock_asked(lock, false))?;
        Ok(match held {
            Some(held) => LockFound {
                first: held.first,
                last: held.last,
                kind: if held.exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as u32,
                pid: held.pid,
            },
            None => LockFound { first: lock.first, last: lock.last, kind: libc::F_UNLCK as u32, pid: 0 },
        })
    }

    fn set_lock(&self, header: &Header, lock: &LockRequest, wait: bool, answer: impl Answer) {
        let asked = lock_asked(lock, wait);
        if lock.kind == libc::F_UNLCK as u32 {
            return answer.done(self.fs.unlock(asked));
        }
        let (interrupt, later) = (self.interrupts.expect(header.unique), answer.later());
        self.fs.start_lock(asked, interrupt, later);
    }
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// The mode of something new, with the umask, which the kernel leaves to the file system.
fn with_umask(mode: u32, umask: u32) -> u32 {
    mode | (umask & 0o777) << UMASK_SHIFT
}

fn lock_asked(lock: &LockRequest, wait: bool) -> LockAsked {
    LockAsked {
        handle: lock.handle,
        owner: lock.owner,
        first: lock.first,
        last: lock.last,
        exclusive: lock.kind == libc::F_WRLCK as u32,
        pid: lock.pid,
        flock: lock.flock,
        wait,
    }
}

fn changes(set: &SetAttributes) -> Changes {
    let time = |time: SetTime| match time {
        SetTime::Now => weft_client::SetTime::Now,
        SetTime::To(FileTime { seconds, nanoseconds }) => {
            weft_client::SetTime::To(Time { seconds, nanoseconds })
        }
    };
    let (atime, mtime) = (set.atime.map(time), set.mtime.map(time));
    Changes { mode: set.mode, uid: set.uid, gid: set.gid, size: set.size, atime, mtime }
}

fn file_time(time: &Time) -> FileTime {
    FileTime { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

fn attributes(told: &Told) -> Attributes {
    let attr = &told.attr;
    Attributes {
        ino: attr.ino,
        size: attr.size,
        blocks: told.blocks,
        atime: file_time(&attr.atime),
        mtime: file_time(&attr.mtime),
        ctime: file_time(&attr.ctime),
        mode: c::type_bits(attr.kind) | attr.mode & 0o7777,
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        device: attr.rdev,
        block_bytes: if attr.kind == FileKind::File { PREFERRED_IO_BYTES } else { 4096 },
    }
}

fn entry(told: &Told) -> Entry {
    Entry {
        node: told.attr.ino,
        generation: told.attr.generation,
        entry_valid: told.entry_valid,
        attr_valid: told.attr_valid,
        attributes: attributes(told),
    }
}

fn put_entry(body: &mut Body<'_>, told: Told) {
    body.entry(&entry(&told));
}

fn put_found(body: &mut Body<'_>, found: Found) {
    match found {
        Found::Inode(told) => put_entry(body, told),
        // Node 0 says that there is none, and for how long.
        Found::Nothing { entry_valid } => {
            body.entry(&Entry { entry_valid, ..Entry::default() });
        }
    }
}

fn put_attributes(body: &mut Body<'_>, told: Told) {
    body.attributes(&attributes(&told), told.attr_valid);
}

fn put_opened(body: &mut Body<'_>, opened: Opened) {
    let direct = open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES;
    let mut flags = if opened.direct_io { direct } else { 0 };
    flags |= if opened.keep_cache { open_flags::KEEP_CACHE } else { 0 };
    body.opened(&OpenReply { handle: opened.handle, flags });
}

fn put_created(body: &mut Body<'_>, (told, opened): (Told, Opened)) {
    put_entry(body, told);
    put_opened(body, opened);
}

fn put_count(body: &mut Body<'_>, bytes: usize) {
    body.count(bytes as u32);
}

/// A value or a list of names: its size if nothing is asked for, else all of it, or `ERANGE`.
fn put_xattr(answer: impl Answer, bytes_max: u32, outcome: Outcome<Vec<u8>>) {
    let outcome = outcome.and_then(|value| match bytes_max as usize {
        0 => Ok(value),
        room if value.len() > room => Err(Errno(libc::ERANGE)),
        _ => Ok(value),
    });
    answer.reply(outcome, |body, value| match bytes_max {
        0 => {
            body.count(value.len() as u32);
        }
        _ => {
            body.bytes(&value);
        }
    });
}
