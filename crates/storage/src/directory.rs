//! The storage directory of one I/O server.
//!
//! ```text
//!   DIR/weft-storage                             which storage this is, and whose: module `identity`
//!   DIR/weft-state                               its mark, and what is known of the metadata server: module `state`
//!   DIR/lock                                     locked (flock) while a server runs; holds its process number
//!   DIR/data/9e/37/000000000000012a              the data file of inode 298: module `tree`
//!   DIR/sums/9e/37/000000000000012a              its checksums: module `sums`
//!   DIR/held/9e/37/0000000000000001              marks of data files that there must be: module `held`
//!   DIR/held/loss-accepted                       there while it is accepted that most are missing: module `emptied`
//!   DIR/chains/0007/{data,sums,held}/…           the same of chain 7
//!   DIR/cost-model.toml                          what accesses cost here: module `calibrate`
//! ```
//!
//! The content of a data file is the bytes of the file that one chain holds, with nothing added. `data` and `sums` are
//! those of the chain that has the server's own number. A server that holds other chains, too, has a directory for each
//! ([`Directory::of_chain`]), so that the parts of one file that belong to different chains never meet.
//!
//! A server makes a storage only on request ([`Directory::format`]): a directory that is empty or missing may be a disk
//! that is not mounted.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use weft_host::{FileLock, LockError};

use weft_layout::ChainId;

use crate::disk::{ObjectInfo, Space};
use crate::emptied::{Emptied, accept_loss, refuse_emptied};
use crate::error::StorageError;
use crate::held::Held;
use crate::identity::{IDENTITY_FILE, IDENTITY_NEW, Identity, check_identity, no_storage, write_identity};
use crate::state::{RandomId, StateFile};
use crate::sums_directory::SumsDirectory;
use crate::tree::{c_string, create_in, fan_out, file_name, if_there, list_in, open_at, remove_in};

const LOCK_FILE: &str = "lock";
pub(crate) const DATA_DIRECTORY: &str = "data";
const SUMS_DIRECTORY: &str = "sums";
const HELD_DIRECTORY: &str = "held";
const CHAINS_DIRECTORY: &str = "chains";

/// An open, locked storage directory, and in it the data files of one chain.
#[derive(Debug)]
pub struct Directory {
    /// The storage directory.
    path: PathBuf,
    /// Where the data files of the chain are.
    data_path: PathBuf,
    storage: RandomId,
    data: File,
    sums: SumsDirectory,
    /// Held open, and so locked, as long as the directory is.
    lock: Arc<FileLock>,
    always_resident: bool,
    /// The fan-out directories that were made durable, with those above, since the server began.
    durable: Mutex<HashSet<u16>>,
    /// A sync of a fan-out directory failed.
    broken: AtomicBool,
    /// Most data files are missing, and that was accepted.
    emptied: Option<Emptied>,
}

impl Directory {
    /// The file in a storage directory that is locked (flock) while a server runs.
    pub fn lock_file(path: &Path) -> PathBuf {
        path.join(LOCK_FILE)
    }

    /// Makes a server's storage in a directory that holds none, and names it `storage`, which is random. The directory is made
    /// where it is missing.
    ///
    /// # Errors
    /// [`StorageError::WrongDirectory`] if it holds a storage or data, [`StorageError::InUse`], [`StorageError::Directory`].
    pub fn format(path: &Path, identity: &Identity, storage: &RandomId) -> Result<(), StorageError> {
        let failed = |what, at: &Path| {
            let path = at.to_path_buf();
            move |source| StorageError::Directory { what, path, source }
        };
        make_durably(path).map_err(failed("make the storage directory", path))?;
        let _lock = lock(path)?;
        let data = path.join(DATA_DIRECTORY);
        // An empty data directory may be what an interrupted making has left.
        let has_data =
            data.exists() && fs::read_dir(&data).map_or(true, |mut entries| entries.next().is_some());
        let there = [(Directory::is_formatted(path), IDENTITY_FILE), (has_data, DATA_DIRECTORY)];
        if let Some((_, there)) = there.iter().find(|(is_there, _)| *is_there) {
            let reason =
                format!("it holds {there} already, and a storage is never overwritten; nothing was changed");
            return Err(StorageError::WrongDirectory { path: path.to_path_buf(), reason });
        }
        StateFile::make(path).map_err(failed("write the state of", path))?;
        // The identity comes last: with it the storage is whole.
        let made = write_identity(path, &identity.text(storage)).and_then(|()| {
            fs::create_dir_all(&data)?;
            File::open(path)?.sync_all()?;
            fs::rename(path.join(IDENTITY_NEW), path.join(IDENTITY_FILE))?;
            File::open(path)?.sync_all()
        });
        made.map_err(failed("make a storage in", path))?;
        Ok(())
    }

    /// Whether there is a storage, of whatever server.
    pub fn is_formatted(path: &Path) -> bool {
        path.join(IDENTITY_FILE).exists()
    }

    /// Opens a server's storage directory.
    ///
    /// # Errors
    /// [`StorageError::NoStorage`] if it holds none, [`StorageError::InUse`] if another server has it open,
    /// [`StorageError::WrongDirectory`] if it is not that of `identity` or lacks a part, [`StorageError::Emptied`] if most data
    /// files are missing, [`StorageError::Directory`] if the local file system refuses.
    pub fn open(path: &Path, identity: &Identity) -> Result<Directory, StorageError> {
        let failed = |what, at: &Path| {
            let path = at.to_path_buf();
            move |source| StorageError::Directory { what, path, source }
        };
        let data_path = path.join(DATA_DIRECTORY);
        if !Directory::is_formatted(path) && !data_path.exists() {
            return Err(no_storage(path));
        }
        let lock = lock(path)?;
        let storage = check_identity(path, identity)?;
        if !data_path.is_dir() {
            let reason = format!(
                "it has no directory {DATA_DIRECTORY}, in which the data was: put that back, or have the server replaced (weft \
                 help recovery)"
            );
            return Err(StorageError::WrongDirectory { path: path.to_path_buf(), reason });
        }
        File::open(path).and_then(|dir| dir.sync_all()).map_err(failed("sync", path))?;
        sync_above(path).map_err(failed("sync the directories above", path))?;
        Directory::of_parts(path, path, storage, Arc::new(lock))
    }

    /// Has the next start go on although most data files are missing.
    ///
    /// # Errors
    /// [`StorageError::NoStorage`], [`StorageError::Directory`].
    pub fn accept_loss(path: &Path) -> Result<(), StorageError> {
        if !Directory::is_formatted(path) {
            return Err(no_storage(path));
        }
        accept_loss(&path.join(HELD_DIRECTORY))
    }

    /// The data files that are missing, where that was accepted and they are most of them.
    pub fn emptied(&self) -> Option<Emptied> {
        self.emptied
    }

    /// The data files of another chain in the same storage: an empty set at first.
    ///
    /// # Errors
    /// [`StorageError::Directory`], [`StorageError::Emptied`].
    pub fn of_chain(&self, chain: ChainId) -> Result<Directory, StorageError> {
        let home = self.path.join(CHAINS_DIRECTORY).join(format!("{:04x}", chain.0));
        let data = home.join(DATA_DIRECTORY);
        let make = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&data)?;
            // That they are there does not say that their names are durable.
            data.ancestors().skip(1).take(3).try_for_each(|above| File::open(above)?.sync_all())
        };
        make().map_err(|source| StorageError::Directory { what: "make", path: data.clone(), source })?;
        Directory::of_parts(&self.path, &home, self.storage, self.lock.clone())
    }

    fn of_parts(
        path: &Path,
        home: &Path,
        storage: RandomId,
        lock: Arc<FileLock>,
    ) -> Result<Directory, StorageError> {
        let data_path = home.join(DATA_DIRECTORY);
        let failed = |what| {
            let path = data_path.clone();
            move |source| StorageError::Directory { what, path, source }
        };
        let data = File::open(&data_path).map_err(failed("open the data directory"))?;
        let always_resident = is_in_memory(&data).map_err(failed("examine"))?;
        let held_path = home.join(HELD_DIRECTORY);
        let mut directory = Directory {
            path: path.to_path_buf(),
            sums: SumsDirectory::new(home.join(SUMS_DIRECTORY), Held::new(held_path.clone())),
            data_path,
            storage,
            data,
            lock,
            always_resident,
            durable: Mutex::default(),
            broken: AtomicBool::new(false),
            emptied: None,
        };
        let is_there = |ino| directory.examine(ino).map(|found| found.is_some());
        directory.emptied =
            refuse_emptied(&held_path, directory.sums.held(), &directory.data_path, is_there)?;
        Ok(directory)
    }

    /// Which storage this is.
    pub fn storage(&self) -> RandomId {
        self.storage
    }

    /// The sidecars of the data files.
    pub(crate) fn sums(&self) -> &SumsDirectory {
        &self.sums
    }

    /// Whether the file system keeps everything in memory (tmpfs), so that no read waits.
    pub(crate) fn always_resident(&self) -> bool {
        self.always_resident
    }

    pub(crate) fn open_file(&self, ino: u64) -> io::Result<Option<File>> {
        if_there(open_at(&self.data, &file_name(ino), libc::O_RDWR))
    }

    pub(crate) fn create_file(&self, ino: u64) -> io::Result<File> {
        create_in(&self.data, ino)
    }

    pub(crate) fn remove_file(&self, ino: u64) -> io::Result<bool> {
        remove_in(&self.data, ino)
    }

    /// The size and time of the last change of a data file, if there is one.
    pub(crate) fn examine(&self, ino: u64) -> io::Result<Option<(u64, SystemTime)>> {
        let name = c_string(&file_name(ino));
        // SAFETY: all-zero bytes are a valid `stat`.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `name` is a live C string, `stat` is live and writable.
        if unsafe { libc::fstatat(self.data.as_raw_fd(), name.as_ptr(), &mut stat, 0) } != 0 {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::NotFound => Ok(None),
                error => Err(error),
            };
        }
        let since_epoch = Duration::new(stat.st_mtime.max(0) as u64, stat.st_mtime_nsec as u32);
        Ok(Some((stat.st_size as u64, SystemTime::UNIX_EPOCH + since_epoch)))
    }

    /// The directories to sync, innermost first, so that a data file's name is durable.
    ///
    /// # Errors
    /// Also if a sync of a directory has failed before: which names it lost is not known, and a second sync would succeed without
    /// them.
    pub(crate) fn directories_to_sync(&self, ino: u64) -> io::Result<Vec<File>> {
        if self.broken.load(Ordering::Acquire) {
            return Err(io::Error::other(
                "names of data files could not be made durable before: check the disk, then start this server again",
            ));
        }
        let name = file_name(ino);
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let inner = open_at(&self.data, &name[..5], flags)?;
        if self.durable().contains(&fan_out(ino)) {
            return Ok(vec![inner]);
        }
        Ok(vec![inner, open_at(&self.data, &name[..2], flags)?, self.data.try_clone()?])
    }

    /// Notes that a directory could not be synced. No further name becomes durable while this server runs.
    pub(crate) fn note_broken(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Notes that the directories above a data file were synced.
    pub(crate) fn directories_are_durable(&self, ino: u64) {
        self.durable().insert(fan_out(ino));
    }

    fn durable(&self) -> MutexGuard<'_, HashSet<u16>> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Syncs the file system that the data is on; see [`crate::Disk::sync_whole`].
    pub(crate) fn sync_whole(&self) -> io::Result<bool> {
        const FUSE_SUPER_MAGIC: u32 = 0x6573_5546;
        // Linux does not pass syncfs(2) on to most file systems in user space, and says that it is done.
        if file_system_of(&self.data)? == FUSE_SUPER_MAGIC {
            return Ok(false);
        }
        // SAFETY: no memory is passed.
        match unsafe { libc::syncfs(self.data.as_raw_fd()) } {
            0 => Ok(true),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// At most `max` objects in order of (fan-out, ino), after `after`.
    pub(crate) fn list(&self, after: Option<u64>, max: usize) -> io::Result<Vec<ObjectInfo>> {
        list_in(&self.data_path, after, max, |ino| {
            Ok(self.examine(ino)?.map(|(bytes, modified)| ObjectInfo { ino, bytes, modified }))
        })
    }

    pub(crate) fn space(&self) -> io::Result<Space> {
        // SAFETY: all-zero bytes are a valid `statvfs`.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is live and writable.
        if unsafe { libc::fstatvfs(self.data.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Space {
            total_bytes: stat.f_blocks * stat.f_frsize,
            available_bytes: stat.f_bavail * stat.f_frsize,
            files: stat.f_files,
            files_available: stat.f_favail,
        })
    }
}

/// Makes a directory with those above it, and their names durable, so far as they may be opened. That they are there already does
/// not say that their names are durable: who made them may have been killed before.
fn make_durably(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    sync_above(path)
}

fn sync_above(path: &Path) -> io::Result<()> {
    for above in path.canonicalize()?.ancestors().skip(1) {
        match File::open(above) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            opened => opened?.sync_all()?,
        }
    }
    Ok(())
}

fn lock(directory: &Path) -> Result<FileLock, StorageError> {
    let path = directory.join(LOCK_FILE);
    weft_host::lock(&path).map_err(|error| match error {
        LockError::System(source) => StorageError::Directory { what: "lock", path, source },
        LockError::Held(holder) => StorageError::InUse { path: directory.to_path_buf(), holder },
    })
}

/// Whether a file is on a file system that keeps everything in memory.
pub(crate) fn is_in_memory(data: &impl AsRawFd) -> io::Result<bool> {
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    Ok([libc::TMPFS_MAGIC as u32, RAMFS_MAGIC].contains(&file_system_of(data)?))
}

/// Which kind of file system a file is on.
fn file_system_of(data: &impl AsRawFd) -> io::Result<u32> {
    // SAFETY: all-zero bytes are a valid `statfs`.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is live and writable.
    if unsafe { libc::fstatfs(data.as_raw_fd(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The field's type differs among C libraries; all magic numbers are 32 bits long.
    Ok(stat.f_type as u32)
}

/// The size of an open file whose position nobody uses. That it is asked for by a seek costs a third of a `statx`, and every
/// small request asks.
pub(crate) fn size_of_file(mut file: &File) -> io::Result<u64> {
    file.seek(io::SeekFrom::End(0))
}
