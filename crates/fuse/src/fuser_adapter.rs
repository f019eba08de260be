//! [`WeftFs`] behind the kernel's FUSE device, by the crate `fuser`. Only decoding and replying happen here, so that
//! another way to the kernel (FUSE over io_uring, say) is another file like this one.

use crate::callers::Requester;
use crate::directory::DirItem;
use crate::fs::{Changes, Errno, Found, Opened, Outcome, Told, WeftFs};
use crate::locks::LockAsked;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weft_client::SetTime;
use weft_wire::limits::NAME_BYTES_MAX;
use weft_wire::messages::{FileKind, Time, UMASK_SHIFT};

/// Largest read or write that the kernel sends: its own limit (`fs.fuse.max_pages_limit`) by default.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Largest copy for one request: the answer has 32 bits, and it can be interrupted in between.
const COPY_BYTES_MAX: u64 = 1 << 30;
/// Unit of counting space.
const STATFS_BLOCK_BYTES: u64 = 4096;
/// Files that can still be made, as told: the number has no bound but space.
const FILES_FREE: u64 = u32::MAX as u64;
/// What programs are told to read and write at a time.
const PREFERRED_IO_BYTES: u32 = 128 << 10;

/// What is asked of the kernel where it has it.
const WISHES: InitFlags = InitFlags::FUSE_ATOMIC_O_TRUNC
    .union(InitFlags::FUSE_AUTO_INVAL_DATA)
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_POSIX_LOCKS)
    .union(InitFlags::FUSE_FLOCK_LOCKS)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);

/// Has the kernel ask for access control lists and check permissions by them, also without `default_permissions`.
const KERNEL_CHECKS: InitFlags = InitFlags::FUSE_POSIX_ACL;

/// The file system as `fuser` drives it, from several threads.
pub(crate) struct FuserAdapter {
    pub(crate) fs: Arc<WeftFs>,
    pub(crate) max_background: u16,
    /// Whether the kernel can check permissions: whether it knows who is who.
    pub(crate) kernel_checks: bool,
}

impl From<Errno> for fuser::Errno {
    fn from(errno: Errno) -> fuser::Errno {
        fuser::Errno::from_i32(errno.0)
    }
}

fn requester(request: &Request) -> Requester {
    Requester { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

/// The mode of something new, with the umask, which the kernel leaves to the file system.
fn with_umask(mode: u32, umask: u32) -> u32 {
    mode | (umask & 0o777) << UMASK_SHIFT
}

fn system_time(time: &Time) -> SystemTime {
    if time.seconds >= 0 {
        UNIX_EPOCH + Duration::new(time.seconds as u64, time.nanoseconds)
    } else {
        UNIX_EPOCH - Duration::from_secs(time.seconds.unsigned_abs())
            + Duration::from_nanos(time.nanoseconds.into())
    }
}

/// `fuser` gives a time before 1970 as the epoch minus seconds minus nanoseconds, where nanoseconds count forwards.
fn time_to_set(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                Time { seconds: -(before.as_secs() as i64), nanoseconds: before.subsec_nanos() }
            }
        }),
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::Character => FileType::CharDevice,
        FileKind::Block => FileType::BlockDevice,
    }
}

fn file_attr(told: &Told) -> FileAttr {
    let attr = &told.attr;
    let is_file = attr.kind == FileKind::File;
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: told.blocks,
        atime: system_time(&attr.atime),
        mtime: system_time(&attr.mtime),
        ctime: system_time(&attr.ctime),
        crtime: system_time(&attr.btime),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: if is_file { PREFERRED_IO_BYTES } else { 4096 },
        flags: 0,
    }
}

/// For a directory entry of which only inode and kind are known; the kernel takes nothing else from it.
fn bare_attr(node: u64, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn open_flags(opened: &Opened) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct_io);
    flags.set(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES, opened.direct_io);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags
}

fn reply_entry(reply: ReplyEntry, outcome: Outcome<Told>) {
    match outcome {
        Ok(told) => {
            let (attr, generation) = (file_attr(&told), Generation(told.attr.generation));
            reply.entry_with_ttls(&told.attr_valid, &told.entry_valid, &attr, generation);
        }
        Err(errno) => reply.error(errno.into()),
    }
}

fn reply_attr(reply: ReplyAttr, outcome: Outcome<Told>) {
    match outcome {
        Ok(told) => reply.attr(&told.attr_valid, &file_attr(&told)),
        Err(errno) => reply.error(errno.into()),
    }
}

fn reply_empty(reply: ReplyEmpty, outcome: Outcome<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno.into()),
    }
}

/// A value or a list of names: its size if nothing is asked for, else all of it, or `ERANGE`.
fn reply_xattr(reply: ReplyXattr, size_max: u32, outcome: Outcome<Vec<u8>>) {
    match outcome {
        Ok(value) if size_max == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size_max as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno.into()),
    }
}

fn lock_asked(
    request: &Request,
    (handle, owner, first, last, pid): (FileHandle, LockOwner, u64, u64, u32),
    kind: i32,
    wait: bool,
) -> LockAsked {
    let exclusive = kind == libc::F_WRLCK;
    LockAsked { handle: handle.0, owner: owner.0, first, last, exclusive, pid, tid: request.pid(), wait }
}

impl Filesystem for FuserAdapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let available = config.capabilities();
        let wishes = if self.kernel_checks { WISHES.union(KERNEL_CHECKS) } else { WISHES };
        let _ = config.add_capabilities(wishes & available);
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        // The kernel offers what its backing device has; a greater read-ahead is set there after mounting.
        if let Err(most) = config.set_max_readahead(REQUEST_BYTES_MAX) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(self.max_background);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.fs.lookup(requester(request), parent.0, name) {
            Ok(Found::Inode(told)) => reply_entry(reply, Ok(told)),
            // Node 0 says that there is none, and for how long.
            Ok(Found::Nothing { entry_valid }) => {
                let nothing = bare_attr(0, FileKind::File);
                reply.entry_with_ttls(&Duration::ZERO, &entry_valid, &nothing, Generation(0));
            }
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.fs.forget(ino.0, lookups);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply_attr(reply, self.fs.getattr(requester(request), ino.0));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes =
            Changes { mode, uid, gid, size, atime: atime.map(time_to_set), mtime: mtime.map(time_to_set) };
        reply_attr(reply, self.fs.setattr(requester(request), ino.0, handle.map(|handle| handle.0), changes));
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.fs.readlink(requester(request), ino.0) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        reply_entry(reply, self.fs.mknod(requester(request), parent.0, name, with_umask(mode, umask), rdev));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        reply_entry(reply, self.fs.mkdir(requester(request), parent.0, name, with_umask(mode, umask)));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.unlink(requester(request), parent.0, name));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.rmdir(requester(request), parent.0, name));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        reply_entry(reply, self.fs.symlink(requester(request), parent.0, name, target));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name), (new_parent.0, new_name));
        reply_empty(reply, self.fs.rename(requester(request), from, to, flags.bits()));
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(reply, self.fs.link(requester(request), ino.0, parent.0, name));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.fs.open(requester(request), ino.0, flags.0) {
            Ok(opened) => reply.opened(FileHandle(opened.handle), open_flags(&opened)),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.fs.read(handle.0, offset, size as usize, |outcome| match outcome {
            Ok(data) => reply.data(data),
            Err(errno) => reply.error(errno.into()),
        });
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let clear_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.fs.write(handle.0, offset, data, clear_set_id) {
            Ok(bytes) => reply.written(bytes as u32),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let unlocked = self.fs.unlock_closer(handle.0, owner.0);
        reply_empty(reply, self.fs.flush(handle.0).and(unlocked));
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.fs.release(handle.0));
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.fs.fsync(handle.0));
    }

    fn getlk(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let asked = lock_asked(request, (handle, owner, first, last, pid), kind, false);
        match self.fs.test_lock(asked) {
            Ok(Some(held)) => {
                let kind = if held.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                reply.locked(held.first, held.last, kind, held.pid);
            }
            Ok(None) => reply.locked(first, last, libc::F_UNLCK, 0),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        pid: u32,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        let asked = lock_asked(request, (handle, owner, first, last, pid), kind, wait);
        if kind == libc::F_UNLCK {
            return reply_empty(reply, self.fs.unlock(asked));
        }
        self.fs.start_lock(asked, move |outcome| reply_empty(reply, outcome));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.fs.open_directory(requester(request), ino.0) {
            // The kernel drops a listing that it keeps when the directory's modification time is another.
            Ok(handle) => {
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE)
            }
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let emit = |item: DirItem<'_>| {
            reply.add(INodeNo(item.node), item.position, file_type(item.kind), OsStr::from_bytes(item.name))
        };
        match self.fs.read_directory(handle.0, offset, false, emit) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let emit = |item: DirItem<'_>| {
            let name = OsStr::from_bytes(item.name);
            match &item.told {
                Some(told) => {
                    let (attr, generation) = (file_attr(told), Generation(told.attr.generation));
                    // One timeout serves both here, as in `create`.
                    let valid = told.attr_valid.min(told.entry_valid);
                    reply.add(attr.ino, item.position, name, &valid, &attr, generation)
                }
                // The kernel takes no attributes for the names `.` and `..`.
                None => {
                    let attr = bare_attr(item.node, item.kind);
                    reply.add(attr.ino, item.position, name, &Duration::ZERO, &attr, Generation(0))
                }
            }
        };
        match self.fs.read_directory(handle.0, offset, true, emit) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs.release_directory(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.fs.sync_all());
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.fs.statfs() {
            Ok(space) => reply.statfs(
                space.space_bytes / STATFS_BLOCK_BYTES,
                space.free_bytes / STATFS_BLOCK_BYTES,
                space.available_bytes / STATFS_BLOCK_BYTES,
                space.files + FILES_FREE,
                FILES_FREE,
                STATFS_BLOCK_BYTES as u32,
                NAME_BYTES_MAX as u32,
                STATFS_BLOCK_BYTES as u32,
            ),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.fs.setxattr(requester(request), ino.0, name, value, flags));
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, size, self.fs.getxattr(requester(request), ino.0, name));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, size, self.fs.listxattr(requester(request), ino.0));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.removexattr(requester(request), ino.0, name));
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.access(requester(request), ino.0, mask.bits() as u32));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.fs.create(requester(request), parent.0, name, with_umask(mode, umask), flags) {
            Ok((told, opened)) => {
                let (attr, generation) = (file_attr(&told), Generation(told.attr.generation));
                // One timeout serves both here: the shorter, so that neither is believed too long.
                let valid = told.attr_valid.min(told.entry_valid);
                reply.created(&valid, &attr, generation, FileHandle(opened.handle), open_flags(&opened));
            }
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.fs.fallocate(requester(request), handle.0, offset, length, mode));
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.fs.seek(handle.0, offset as u64, whence) {
            Ok(found) => reply.offset(found as i64),
            Err(errno) => reply.error(errno.into()),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _ino_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((handle_in.0, offset_in), (handle_out.0, offset_out));
        match self.fs.copy_range(requester(request), from, to, length.min(COPY_BYTES_MAX)) {
            Ok(copied) => reply.written(copied as u32),
            Err(errno) => reply.error(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_the_number_that_the_kernel_expects() {
        assert_eq!(INodeNo::ROOT.0, crate::fs::ROOT_NODE);
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds_counting_forwards() {
        let time = Time { seconds: -2, nanoseconds: 500_000_000 };
        assert_eq!(UNIX_EPOCH.duration_since(system_time(&time)).unwrap(), Duration::from_millis(1500));
        let from_kernel = TimeOrNow::SpecificTime(UNIX_EPOCH - Duration::new(2, 500_000_000));
        assert!(matches!(time_to_set(from_kernel), SetTime::To(set) if set == time));
    }
}
