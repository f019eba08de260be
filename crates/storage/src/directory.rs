//! The storage directory of one I/O server.
//!
//! ```text
//!   DIR/weft-storage                    which storage this is, and whose: text, see below
//!   DIR/weft-state                      its mark, and what is known of the metadata server: see the module `state`
//!   DIR/lock                            locked (flock) while a server runs; holds its process number
//!   DIR/data/9e/37/000000000000012a     the data file of inode 298
//!   DIR/sums/9e/37/000000000000012a     its checksums: see the module `sums`
//!   DIR/cost-model.toml                 what accesses cost here; see the module `calibrate`
//! ```
//!
//! The two directory levels are the first two bytes, in hex, of `(ino >> 8) * 0x9e3779b97f4a7c15` (64
//! bits, wrapping): 65,536 directories, made when first needed. A data file's name is the inode number as 16
//! hex digits. Its content is the bytes of the file that live on this server, with nothing added.
//!
//! `weft-storage` is four lines, written once, by rename:
//!
//! ```text
//!   weft-storage 2
//!   cluster 00112233445566778899aabbccddeeff
//!   server 2
//!   storage 5f3a9c41d2e8b7060a1b2c3d4e5f6071
//! ```
//!
//! The first gives the format version (version 1 had no last line; it gets one when it is opened). The last is random, made with
//! the storage. A server refuses a directory that says anything else than it expects, so that a wrong path in a configuration
//! cannot mix the data of two servers. It makes a storage only when it is told to ([`Directory::format`]): a directory that is
//! empty or missing may be a disk that is not mounted.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use weft_host::LockError;

use crate::disk::{ObjectInfo, Space, fan_out};
use crate::error::StorageError;
use crate::state::{RandomId, StateFile, from_hex, hex};

/// The version of the format above.
pub const FORMAT_VERSION: u32 = 2;

const IDENTITY_FILE: &str = "weft-storage";
const IDENTITY_NEW: &str = "weft-storage.new";
const LOCK_FILE: &str = "lock";
pub(crate) const DATA_DIRECTORY: &str = "data";
const SUMS_DIRECTORY: &str = "sums";

/// Whose storage a directory is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The server's index in the cluster's ring of I/O servers.
    pub server_id: u16,
}

impl Identity {
    /// The lines that say whose it is, in a format version.
    fn lines(&self, version: u32) -> [String; 3] {
        let server = format!("server {}", self.server_id);
        [format!("weft-storage {version}"), format!("cluster {}", hex(&self.cluster_id)), server]
    }

    fn text(&self, storage: &RandomId) -> String {
        self.lines(FORMAT_VERSION).join("\n") + &format!("\nstorage {}\n", hex(storage))
    }
}

/// An open, locked storage directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    storage: RandomId,
    data: File,
    sums: SumsDirectory,
    /// Held open, and so locked, as long as the directory is.
    _lock: File,
    always_resident: bool,
    /// The fan-out directories that were made durable, with those above, since the server began.
    durable: Mutex<HashSet<u16>>,
    /// A sync of a fan-out directory failed.
    broken: AtomicBool,
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
    /// [`StorageError::WrongDirectory`] if it is not that of `identity` or lacks a part, [`StorageError::Directory`] if the
    /// local file system refuses.
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
        let data = File::open(&data_path).map_err(failed("open the data directory", &data_path))?;
        File::open(path).and_then(|dir| dir.sync_all()).map_err(failed("sync", path))?;
        sync_above(path).map_err(failed("sync the directories above", path))?;
        let always_resident = is_in_memory(&data).map_err(failed("examine", &data_path))?;
        Ok(Directory {
            path: path.to_path_buf(),
            storage,
            data,
            sums: SumsDirectory::new(path.join(SUMS_DIRECTORY)),
            _lock: lock,
            always_resident,
            durable: Mutex::default(),
            broken: AtomicBool::new(false),
        })
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
        list_in(&self.path.join(DATA_DIRECTORY), after, max, |ino| {
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

/// The sidecars of a storage directory's data files, below a directory that is made with the first of them.
#[derive(Debug)]
pub struct SumsDirectory {
    path: PathBuf,
    opened: OnceLock<File>,
    /// Sidecars that were removed, while that is not durable: a power cut may bring them back.
    removed: Mutex<HashSet<u64>>,
}

/// From so many removed sidecars on each removal is made durable at once.
const REMOVED_MAX: usize = 1 << 20;

impl SumsDirectory {
    fn new(path: PathBuf) -> SumsDirectory {
        SumsDirectory { path, opened: OnceLock::new(), removed: Mutex::default() }
    }

    fn opened(&self) -> io::Result<Option<&File>> {
        if self.opened.get().is_none()
            && let Some(file) = if_there(File::open(&self.path))?
        {
            let _ = self.opened.set(file);
        }
        Ok(self.opened.get())
    }

    pub(crate) fn open_file(&self, ino: u64) -> io::Result<Option<File>> {
        match self.opened()? {
            Some(directory) => if_there(open_at(directory, &file_name(ino), libc::O_RDWR)),
            None => Ok(None),
        }
    }

    pub(crate) fn create_file(&self, ino: u64) -> io::Result<File> {
        if self.opened()?.is_none() {
            match fs::DirBuilder::new().mode(0o700).create(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        create_in(self.opened()?.ok_or(io::ErrorKind::NotFound)?, ino)
    }

    /// Removes a sidecar if there is one, before its data file is removed.
    pub(crate) fn remove_file(&self, ino: u64) -> io::Result<()> {
        let Some(directory) = self.opened()? else { return Ok(()) };
        if remove_in(directory, ino)? {
            self.removed().insert(ino);
            if self.removed().len() > REMOVED_MAX {
                self.settle_removal(ino)?;
            }
        }
        Ok(())
    }

    /// Makes sure that no power cut brings the sidecar of an older data file of this number back: before one is made.
    pub(crate) fn settle_removal(&self, ino: u64) -> io::Result<()> {
        if !self.removed().contains(&ino) {
            return Ok(());
        }
        if let Some(directory) = self.opened()?
            && let Some(inner) =
                if_there(open_at(directory, &file_name(ino)[..5], libc::O_RDONLY | libc::O_DIRECTORY))?
        {
            inner.sync_all()?;
        }
        self.removed().remove(&ino);
        Ok(())
    }

    /// The same for all that were removed until now, or some of them.
    pub(crate) fn settle_removals(&self) -> io::Result<()> {
        const AT_ONCE: usize = 64;
        let mut places: Vec<(u16, u64)> =
            self.removed().iter().take(4096).map(|ino| (fan_out(*ino), *ino)).collect();
        places.sort_unstable();
        for same in places.chunk_by(|one, other| one.0 == other.0).take(AT_ONCE) {
            self.settle_removal(same[0].1)?;
            let mut removed = self.removed();
            for (_, ino) in same {
                removed.remove(ino);
            }
        }
        Ok(())
    }

    fn removed(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At most `max` sidecars after `after`, in the order of data files.
    pub(crate) fn list(&self, after: Option<u64>, max: usize) -> io::Result<Vec<u64>> {
        list_in(&self.path, after, max, |ino| Ok(Some(ino)))
    }
}

fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn create_in(directory: &File, ino: u64) -> io::Result<File> {
    let name = file_name(ino);
    match open_at(directory, &name, libc::O_RDWR | libc::O_CREAT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => return result,
    }
    make_directory(directory, &name[..2])?;
    make_directory(directory, &name[..5])?;
    open_at(directory, &name, libc::O_RDWR | libc::O_CREAT)
}

fn remove_in(directory: &File, ino: u64) -> io::Result<bool> {
    let name = c_string(&file_name(ino));
    // SAFETY: `name` is a live C string.
    match unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) } {
        0 => Ok(true),
        _ => if_there(Err(io::Error::last_os_error())).map(|removed: Option<bool>| removed.is_some()),
    }
}

fn open_at(directory: &File, name: &str, flags: i32) -> io::Result<File> {
    let name = c_string(name);
    // SAFETY: `name` is a live C string.
    let fd = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn make_directory(directory: &File, name: &str) -> io::Result<()> {
    let name = c_string(name);
    // SAFETY: `name` is a live C string.
    match unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), 0o700) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            error => Err(error),
        },
    }
}

/// At most `max` of what `examine` gives for the files below a directory, in order of (fan-out, ino), after `after`.
fn list_in<T>(
    directory: &Path,
    after: Option<u64>,
    max: usize,
    examine: impl Fn(u64) -> io::Result<Option<T>>,
) -> io::Result<Vec<T>> {
    let start = after.map(fan_out).unwrap_or(0);
    let mut found = Vec::new();
    for outer in hex_names::<2>(directory)?.into_iter().filter(|outer| *outer >= u64::from(start >> 8)) {
        let outer_path = directory.join(format!("{outer:02x}"));
        for inner in hex_names::<2>(&outer_path)? {
            let place = (outer << 8 | inner) as u16;
            if place < start {
                continue;
            }
            for ino in hex_names::<16>(&outer_path.join(format!("{inner:02x}")))? {
                if after.is_some_and(|after| (place, ino) <= (start, after)) {
                    continue;
                }
                found.extend(examine(ino)?);
                if found.len() >= max {
                    return Ok(found);
                }
            }
        }
    }
    Ok(found)
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

/// `xx/yy/<ino>`, relative to the data directory.
fn file_name(ino: u64) -> String {
    let place = fan_out(ino);
    format!("{:02x}/{:02x}/{ino:016x}", place >> 8, place & 0xff)
}

fn c_string(name: &str) -> CString {
    CString::new(name).expect("names of data files are hex digits and slashes")
}

/// The entries of a directory that are lower-case hex of exactly `DIGITS` digits, as sorted numbers.
/// A directory that is gone is empty.
fn hex_names<const DIGITS: usize>(path: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => result?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| name.len() == DIGITS) else { continue };
        if name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
            numbers.extend(u64::from_str_radix(name, 16).ok());
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn lock(directory: &Path) -> Result<File, StorageError> {
    let path = directory.join(LOCK_FILE);
    weft_host::lock(&path).map_err(|error| match error {
        LockError::System(source) => StorageError::Directory { what: "lock", path, source },
        LockError::Held(holder) => StorageError::InUse { path: directory.to_path_buf(), holder },
    })
}

fn no_storage(path: &Path) -> StorageError {
    let found = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => "there is no such directory".to_string(),
        Err(error) => format!("it cannot be listed: {error}"),
        Ok(entries) => match entries.count() {
            0 => "it is empty".to_string(),
            entries => format!("it has {entries} entries, but no {IDENTITY_FILE} among them"),
        },
    };
    StorageError::NoStorage { path: path.to_path_buf(), found }
}

/// Compares the identity file with what is expected; returns which storage it is.
fn check_identity(directory: &Path, identity: &Identity) -> Result<RandomId, StorageError> {
    let path = directory.join(IDENTITY_FILE);
    let wrong = |reason| Err(StorageError::WrongDirectory { path: directory.to_path_buf(), reason });
    let failed = |what| {
        let path = path.clone();
        move |source| StorageError::Directory { what, path, source }
    };
    let found = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return wrong(format!(
                "it holds data but no {IDENTITY_FILE} file that says whose: check the configured path"
            ));
        }
        Err(error) => return Err(failed("read")(error)),
    };
    let line = |n: usize| found.lines().nth(n).unwrap_or("nothing");
    let version = if line(0) == "weft-storage 1" { 1 } else { FORMAT_VERSION };
    for (n, wants) in identity.lines(version).iter().enumerate() {
        let (subject, has) = (["format", "cluster", "server"][n], line(n));
        if has != wants {
            return wrong(format!(
                "its {subject} line says `{has}` where `{wants}` is expected: check the configured path and server"
            ));
        }
    }
    if version == 1 {
        let storage = weft_host::random().map_err(failed("make a name for"))?;
        StateFile::make(directory).map_err(failed("write the state beside"))?;
        write_identity(directory, &identity.text(&storage))
            .and_then(|()| fs::rename(directory.join(IDENTITY_NEW), &path))
            .map_err(failed("write"))?;
        return Ok(storage);
    }
    match line(3).strip_prefix("storage ").and_then(from_hex) {
        Some(storage) if found == identity.text(&storage) => Ok(storage),
        _ => wrong(format!("its {IDENTITY_FILE} file has lines that this version does not know")),
    }
}

/// Writes the identity under its first name.
fn write_identity(directory: &Path, text: &str) -> io::Result<()> {
    let temporary = directory.join(IDENTITY_NEW);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
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

/// The size of an open file.
pub(crate) fn size_of_file(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.size())
}
