//! The disk as a mounted file system, so that an engine uses it like any other; every change goes through.

use crate::disk::{Directory, Disk, File, Image, Node, ROOT};
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session, TimeOrNow,
    WriteFlags,
};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weft_test_random::Random;

/// All changes come through the kernel, so what it knows stays true.
const TTL: Duration = Duration::from_secs(3600);

/// An image of a disk, and when it was taken.
pub struct Cut {
    /// What is left.
    pub image: Image,
    /// How much had been acknowledged as durable.
    pub durable: i64,
    /// The number of changes and syncs of the disk so far.
    pub event: u64,
}

/// Images taken at random moments.
struct Camera {
    random: Random,
    cuts: Vec<Cut>,
    cuts_max: usize,
}

/// A disk that is mounted. Dropping it unmounts.
pub struct Recorder {
    /// The disk.
    pub disk: Arc<Mutex<Disk>>,
    camera: Arc<Mutex<Camera>>,
    /// How much has been acknowledged as durable; kept by the test.
    pub durable: Arc<AtomicI64>,
    mount_point: tempfile::TempDir,
    session: Option<BackgroundSession>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Mounts `disk`; `cuts_max` images will be taken of it. Files cannot be mapped: a thread of this process that waits for a page
    /// would hold up those that have to answer for it.
    pub fn mount(disk: Disk, durable: i64, random: Random, cuts_max: usize) -> Recorder {
        assert!(Path::new("/dev/fuse").exists(), "/dev/fuse is not there: power cuts cannot be tested");
        let disk = Arc::new(Mutex::new(disk));
        let durable = Arc::new(AtomicI64::new(durable));
        let camera = Arc::new(Mutex::new(Camera { random, cuts: Vec::new(), cuts_max }));
        let mount_point = tempfile::tempdir().unwrap();
        let fs = Fs { disk: disk.clone(), camera: camera.clone(), durable: durable.clone() };
        let session = Session::new(fs, mount_point.path(), &Config::default()).unwrap().spawn().unwrap();
        Recorder { disk, camera, durable, mount_point, session: Some(session) }
    }

    /// Where the disk is mounted.
    pub fn mount_point(&self) -> &Path {
        self.mount_point.path()
    }

    /// A directory on the disk.
    pub fn directory(&self) -> PathBuf {
        self.mount_point.path().join("store")
    }

    /// The images taken so far.
    pub fn take_cuts(&self) -> Vec<Cut> {
        std::mem::take(&mut lock(&self.camera).cuts)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // The thread that serves the disk may fail with ECONNABORTED when the connection ends.
            let mut ended = session.umount_and_join();
            let place = CString::new(self.mount_point.path().as_os_str().as_bytes()).expect("a path");
            // The kernel closes the files of a killed process's io_uring a moment after its end; until then the disk is busy.
            for _ in 0..200 {
                if !self.is_mounted() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
                // SAFETY: a C string.
                if unsafe { libc::umount2(place.as_ptr(), 0) } != 0 {
                    ended = Err(std::io::Error::last_os_error());
                }
            }
            assert!(!self.is_mounted(), "the disk is mounted still: {ended:?}");
        }
    }
}

impl Recorder {
    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the kernel has a list of mounts");
        mounts.contains(&format!(" {} ", self.mount_point.path().display()))
    }
}

struct Fs {
    disk: Arc<Mutex<Disk>>,
    camera: Arc<Mutex<Camera>>,
    durable: Arc<AtomicI64>,
}

impl Fs {
    /// Makes a change, and sometimes takes an image: of `n` events each is as likely to be among those that are kept.
    fn change<T>(&self, change: impl FnOnce(&mut Disk) -> T) -> T {
        let mut disk = lock(&self.disk);
        let result = change(&mut disk);
        disk.events += 1;
        let event = disk.events;
        let mut camera = lock(&self.camera);
        let cuts_max = camera.cuts_max as u64;
        if camera.random.below(event) < cuts_max {
            let mut random = Random(camera.random.next());
            // Read before the image: what is acknowledged later need not be in it.
            let durable = self.durable.load(Ordering::SeqCst);
            let cut = Cut { image: disk.cut(&mut random), durable, event };
            if camera.cuts.len() < camera.cuts_max {
                camera.cuts.push(cut);
            } else {
                let place = camera.random.below(cuts_max) as usize;
                camera.cuts[place] = cut;
            }
        }
        result
    }

    fn attr(&self, ino: u64) -> Option<FileAttr> {
        let disk = lock(&self.disk);
        let (kind, size) = match disk.nodes.get(&ino)? {
            Node::File(file) => (FileType::RegularFile, file.now.bytes),
            Node::Directory(_) => (FileType::Directory, 0),
        };
        Some(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            // SAFETY: these calls only return numbers.
            uid: unsafe { libc::geteuid() },
            // SAFETY: as above.
            gid: unsafe { libc::getegid() },
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn tell(&self, ino: Option<u64>, reply: ReplyEntry) {
        match ino.and_then(|ino| self.attr(ino)) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }
}

fn text(name: &OsStr) -> &str {
    name.to_str().expect("names of a store are ASCII")
}

impl Filesystem for Fs {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = lock(&self.disk).lookup(parent.0, text(name));
        self.tell(found, reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino.0) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(bytes) = size {
            self.change(|disk| disk.set_len(ino.0, bytes));
        }
        self.getattr(request, ino, handle, reply);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let node = Node::Directory(Directory::default());
        let ino = self.change(|disk| disk.make(parent.0, text(name), node));
        self.tell(Some(ino), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.change(|disk| disk.remove(parent.0, text(name)));
        reply.ok();
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let is_empty = {
            let disk = lock(&self.disk);
            disk.lookup(parent.0, text(name)).is_some_and(|ino| disk.names(ino).is_empty())
        };
        if !is_empty {
            return reply.error(Errno::ENOTEMPTY);
        }
        self.change(|disk| disk.remove(parent.0, text(name)));
        reply.ok();
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.change(|disk| disk.rename(parent.0, text(name), new_parent.0, text(new_name)));
        reply.ok();
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(lock(&self.disk).open(ino.0)), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let (ino, handle) = self.change(|disk| {
            let ino = disk.make(parent.0, text(name), Node::File(File::default()));
            (ino, disk.open(ino))
        });
        let attr = self.attr(ino).expect("it was just made");
        reply.created(&TTL, &attr, Generation(0), FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut disk = lock(&self.disk);
        if disk.fail_reads {
            return reply.error(Errno::EIO);
        }
        let data = disk.file(ino.0).map(|file| file.now.read(offset, size as usize));
        drop(disk);
        reply.data(&data.unwrap_or_default());
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if lock(&self.disk).fail_writes {
            return reply.error(Errno::EIO);
        }
        self.change(|disk| disk.write(ino.0, offset, data));
        reply.written(data.len() as u32);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
            self.change(|disk| disk.zero(ino.0, offset, length));
        }
        let end = offset + length;
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && self.attr(ino.0).is_some_and(|attr| attr.size < end) {
            self.change(|disk| disk.set_len(ino.0, end));
        }
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.disk).close(handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.change(|disk| disk.sync_file(ino.0, handle.0)) {
            true => reply.ok(),
            false => reply.error(Errno::EIO),
        }
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.change(|disk| disk.sync_directory(ino.0)) {
            true => reply.ok(),
            false => reply.error(Errno::EIO),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let disk = lock(&self.disk);
        let dots = [(".".to_string(), ino.0), ("..".to_string(), ROOT)];
        let names = dots.into_iter().chain(disk.names(ino.0)).enumerate();
        for (place, (name, of)) in names.skip(offset as usize) {
            let kind = match disk.nodes.get(&of) {
                Some(Node::File(_)) => FileType::RegularFile,
                _ => FileType::Directory,
            };
            if reply.add(INodeNo(of), place as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        const BLOCKS: u64 = 1 << 30;
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, 4096, 255, 4096);
    }
}
