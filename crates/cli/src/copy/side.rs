//! One interface to the two sides of a copy: a local file system and a Weft file system.

use anyhow::{Context, Result, bail};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use weft_cli_common::connections::at;
use weft_cli_common::place::WeftPath;
use weft_cli_common::tree;
use weft_client::{Client, OpenOptions, SetAttr, SetTime};
use weft_layout::Layout;
use weft_wire::limits::SMALL_FILE_BYTES_MAX;
use weft_wire::messages::{Attr, FileKind, LayoutWish, Time};

/// Up to this size a file in Weft is written with one message, see `small_file_bytes` in the cluster file.
const AT_ONCE_BYTES_MAX: u64 = 16 << 10;

/// What chmod(2) sets.
const MODE_BITS: u32 = 0o7777;

/// Where one end of a copy is.
#[derive(Clone)]
pub enum Side {
    /// This machine.
    Local,
    /// A weft file system.
    Weft {
        /// The connection.
        client: Client,
        /// The argument that named it.
        given: WeftPath,
    },
}

/// The kind of a file, as far as copying needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file with data.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Other,
}

/// Attributes that copying needs.
#[derive(Debug, Clone)]
pub struct Meta {
    /// Its kind.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// Device and inode.
    pub id: (u64, u64),
    uid: u32,
    gid: u32,
    atime: Time,
    mtime: Time,
    /// Of a file in Weft.
    pub(super) layout: Option<Layout>,
    /// All attributes of a file in Weft.
    attr: Option<Attr>,
}

impl Meta {
    /// When its contents were last changed.
    pub fn mtime(&self) -> &Time {
        &self.mtime
    }

    /// Whether mode and, with `owner`, owner and group are the same. Links have no mode of their own.
    pub(super) fn has_same_attributes(&self, other: &Meta, owner: bool) -> bool {
        (self.kind == Kind::Symlink || self.mode == other.mode)
            && (!owner || (self.uid, self.gid) == (other.uid, other.gid))
    }

    /// Attributes for tests.
    #[cfg(test)]
    pub(super) fn sample(kind: Kind, size: u64, mtime_s: i64) -> Meta {
        let time = |seconds| Time { seconds, nanoseconds: 5 };
        let (atime, mtime) = (time(0), time(mtime_s));
        Meta { kind, mode: 0o644, size, id: (0, 0), uid: 0, gid: 0, atime, mtime, layout: None, attr: None }
    }

    /// The same attributes with other permission bits.
    pub fn with_mode(&self, mode: u32) -> Meta {
        Meta { mode, ..self.clone() }
    }
}

impl From<&Attr> for Meta {
    fn from(attr: &Attr) -> Meta {
        let kind = match attr.kind {
            FileKind::File => Kind::File,
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink,
            _ => Kind::Other,
        };
        Meta {
            kind,
            mode: attr.mode,
            size: attr.size,
            id: (0, attr.ino),
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime.clone(),
            mtime: attr.mtime.clone(),
            layout: attr.layout.filter(|_| attr.kind == FileKind::File),
            attr: (attr.kind == FileKind::File && attr.layout.is_some()).then(|| attr.clone()),
        }
    }
}

impl From<&std::fs::Metadata> for Meta {
    fn from(meta: &std::fs::Metadata) -> Meta {
        let file_type = meta.file_type();
        let kind = match () {
            () if file_type.is_file() => Kind::File,
            () if file_type.is_dir() => Kind::Directory,
            () if file_type.is_symlink() => Kind::Symlink,
            () => Kind::Other,
        };
        Meta {
            kind,
            mode: meta.mode() & 0o7777,
            size: meta.size(),
            id: (meta.dev(), meta.ino()),
            uid: meta.uid(),
            gid: meta.gid(),
            atime: Time { seconds: meta.atime(), nanoseconds: meta.atime_nsec() as u32 },
            mtime: Time { seconds: meta.mtime(), nanoseconds: meta.mtime_nsec() as u32 },
            layout: None,
            attr: None,
        }
    }
}

impl Side {
    /// Whether both are the same file system.
    pub fn is_same(&self, other: &Side) -> bool {
        match (self, other) {
            (Side::Local, Side::Local) => true,
            (Side::Weft { client, .. }, Side::Weft { client: other, .. }) => {
                client.map().cluster_id == other.map().cluster_id
            }
            _ => false,
        }
    }

    /// A path as text for messages.
    pub fn display(&self, path: &Path) -> String {
        match self {
            Side::Local => path.display().to_string(),
            Side::Weft { given, .. } => given.with_path(path.into()).typed(),
        }
    }

    /// Attributes.
    pub fn meta(&self, path: &Path, follow: bool) -> Result<Meta> {
        Ok(match self {
            Side::Local if follow => Meta::from(&std::fs::metadata(path)?),
            Side::Local => Meta::from(&std::fs::symlink_metadata(path)?),
            Side::Weft { client, .. } => Meta::from(&client.stat(at(path), follow)?),
        })
    }

    /// The entries of a directory.
    pub fn list(&self, dir: &Path) -> Result<Vec<(OsString, Meta)>> {
        if let Side::Weft { client, .. } = self {
            let entries = tree::list(client, dir)?.into_iter();
            return Ok(entries.map(|entry| (entry.name, Meta::from(&entry.attr))).collect());
        }
        let mut all = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            match entry.metadata() {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                meta => all.push((entry.file_name(), Meta::from(&meta?))),
            }
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }

    /// Names in the directory of a file; none if it cannot be listed.
    pub(super) fn list_parent(&self, path: &Path) -> Vec<OsString> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let listed = self.list(parent.unwrap_or(Path::new(".")));
        listed.unwrap_or_default().into_iter().map(|(name, _)| name).collect()
    }

    /// Which of some files in a directory cannot be vouched for by all the servers that have data of them. `all` are their
    /// attributes, asked about at once; one by one only where that fails.
    pub(super) fn doubtful(&self, all: &[(PathBuf, Meta)]) -> Vec<bool> {
        let Side::Weft { client, .. } = self else { return vec![false; all.len()] };
        // Small files are at the metadata server.
        let striped: Vec<usize> = (0..all.len()).filter(|at| all[*at].1.attr.is_some()).collect();
        let attrs: Vec<Attr> = striped.iter().filter_map(|at| all[*at].1.attr.clone()).collect();
        let found: Vec<bool> = match client.allocated_bytes_known(&attrs) {
            Ok(known) => known.iter().zip(&attrs).map(|(known, attr)| misses_data(*known, attr)).collect(),
            Err(_) => {
                let one = |attr| client.allocated_bytes_known([attr]);
                attrs
                    .iter()
                    .map(|attr| one(attr).is_ok_and(|known| !misses_data(known[0], attr)))
                    .map(|is_there| !is_there)
                    .collect()
            }
        };
        let mut doubtful = vec![false; all.len()];
        striped.into_iter().zip(found).for_each(|(at, is_doubtful)| doubtful[at] = is_doubtful);
        doubtful
    }

    /// Where a symbolic link points.
    pub fn read_link(&self, path: &Path) -> Result<PathBuf> {
        Ok(match self {
            Side::Local => std::fs::read_link(path)?,
            Side::Weft { client, .. } => PathBuf::from(OsString::from_vec(client.readlink(at(path))?)),
        })
    }

    /// Makes a symbolic link. Replaces anything but a directory.
    pub fn make_symlink(&self, target: &Path, path: &Path) -> Result<()> {
        if self.meta(path, false).is_ok_and(|there| there.kind != Kind::Directory) {
            self.remove(path)?;
        }
        match self {
            Side::Local => std::os::unix::fs::symlink(target, path)?,
            Side::Weft { client, .. } => {
                client.symlink(at(path), target.as_os_str().as_bytes())?;
            }
        }
        Ok(())
    }

    /// Removes anything but a directory.
    pub(super) fn remove(&self, path: &Path) -> Result<()> {
        match self {
            Side::Local => std::fs::remove_file(path)?,
            Side::Weft { client, .. } => client.unlink(at(path))?,
        }
        Ok(())
    }

    /// Removes an empty directory.
    pub(super) fn remove_dir(&self, path: &Path) -> Result<()> {
        match self {
            Side::Local => std::fs::remove_dir(path)?,
            Side::Weft { client, .. } => client.rmdir(at(path))?,
        }
        Ok(())
    }

    /// Gives a file another name in the same directory, in place of what has that name.
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        match self {
            Side::Local => std::fs::rename(from, to)?,
            Side::Weft { client, .. } => client.rename(at(from), at(to), 0)?,
        }
        Ok(())
    }

    /// Whether a new file of this size is there with one message: nobody finds a part of it under its name.
    pub(super) fn makes_at_once(&self, bytes: u64) -> bool {
        matches!(self, Side::Weft { .. }) && bytes <= AT_ONCE_BYTES_MAX
    }

    /// Makes a directory. Returns false if it existed.
    pub fn make_dir(&self, path: &Path, mode: u32) -> Result<bool> {
        let made = match self {
            Side::Local => std::fs::DirBuilder::new().mode(mode).create(path).map_err(anyhow::Error::from),
            Side::Weft { client, .. } => client.mkdir(at(path), mode).map(drop).map_err(anyhow::Error::from),
        };
        match made {
            Ok(()) => Ok(true),
            Err(_) if self.meta(path, false).is_ok_and(|there| there.kind == Kind::Directory) => Ok(false),
            Err(error) => Err(error.context(format!("cannot make the directory {}", self.display(path)))),
        }
    }

    /// Opens a file for reading.
    pub(super) fn open(&self, path: &Path) -> Result<Source> {
        Ok(match self {
            Side::Local => Source::Local(File::open(path)?),
            Side::Weft { client, .. } => {
                let file = client.open(at(path), &OpenOptions::new().read(true))?;
                Source::Weft { client: client.clone(), file }
            }
        })
    }

    /// Opens a file for writing, as `how` says. Without a requested layout, a new file that is not small begins
    /// on the same server as `source` if that is in the same cluster. If the other parameters are the defaults too,
    /// servers can copy by themselves.
    pub(super) fn create(
        &self,
        path: &Path,
        mode: u32,
        how: How,
        layout: Option<&LayoutWish>,
        source: &Source,
    ) -> Result<Target> {
        let (truncate, exclusive) = (how == How::Empty, how == How::New);
        Ok(match self {
            Side::Local => {
                let mut options = File::options();
                options.write(true).create(true).truncate(truncate).create_new(exclusive).mode(mode);
                Target::Local(options.open(path)?)
            }
            Side::Weft { client, .. } => {
                let is_large = source.bytes() > u64::from(SMALL_FILE_BYTES_MAX);
                let options = OpenOptions::new().write(true).create(true).truncate(truncate).mode(mode);
                let options = options.striped(is_large);
                let options = if exclusive { options.create_new(true) } else { options };
                let beginning = || source.beginning_in(client).filter(|_| is_large);
                let layout = layout.cloned().or_else(beginning);
                let options = layout.into_iter().fold(options, OpenOptions::layout);
                Target::Weft { client: client.clone(), file: client.open(at(path), &options)? }
            }
        })
    }

    /// Sets the mode and, with `times`, the times, and with `owner` the owner where permitted. Links have no mode
    /// of their own.
    pub fn set_meta(&self, path: &Path, meta: &Meta, times: bool, owner: bool) -> Result<()> {
        match self {
            Side::Local => set_local_meta(path, meta, times, owner),
            Side::Weft { client, .. } => {
                set_weft_meta(meta, times, owner, |set| client.setattr(at(path), false, set).map(drop))
            }
        }
    }
}

/// How a file is opened for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// It is emptied, or made.
    Empty,
    /// It is made, and must not be there.
    New,
    /// It keeps what it has, or is made.
    GoOn,
}

/// Whether the servers of a file have less than its size, or cannot all tell. A file with holes has less as well.
fn misses_data(allocated_bytes: Option<u64>, attr: &Attr) -> bool {
    allocated_bytes.is_none_or(|bytes| bytes < attr.size)
}

/// Whether a file could not be read because its data is damaged or lost.
pub(super) fn is_unreadable(error: &anyhow::Error) -> bool {
    let local = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let errno = local.or_else(|| error.downcast_ref::<weft_client::Error>().map(weft_client::Error::errno));
    errno == Some(libc::EIO)
}

/// Whether nothing could be made because something is there.
pub(super) fn is_there(error: &anyhow::Error) -> bool {
    let local = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let errno = local.or_else(|| error.downcast_ref::<weft_client::Error>().map(weft_client::Error::errno));
    errno == Some(libc::EEXIST)
}

/// Sets what `meta` says by `set`: with one message, or with a second one without the owner where that is not permitted.
fn set_weft_meta(
    meta: &Meta,
    all: bool,
    owner: bool,
    set: impl Fn(&SetAttr) -> weft_client::Result<()>,
) -> Result<()> {
    let time = |time: &Time| all.then(|| SetTime::To(time.clone()));
    let without_owner = SetAttr {
        mode: (meta.kind != Kind::Symlink).then_some(meta.mode),
        atime: time(&meta.atime),
        mtime: time(&meta.mtime),
        ..SetAttr::default()
    };
    if owner {
        let with_owner = SetAttr { uid: Some(meta.uid), gid: Some(meta.gid), ..without_owner.clone() };
        match set(&with_owner) {
            Err(error) if error.errno() == libc::EPERM => {}
            done => return Ok(done?),
        }
    }
    Ok(set(&without_owner)?)
}

fn set_local_meta(path: &Path, meta: &Meta, all: bool, owner: bool) -> Result<()> {
    if owner {
        match std::os::unix::fs::lchown(path, Some(meta.uid), Some(meta.gid)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            set => set.with_context(|| format!("cannot set the owner of {}", path.display()))?,
        }
    }
    if meta.kind != Kind::Symlink {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(meta.mode))?;
    }
    if all {
        set_local_times(path, meta).with_context(|| format!("cannot set the times of {}", path.display()))?;
    }
    Ok(())
}

fn set_local_times(path: &Path, meta: &Meta) -> Result<()> {
    let spec = |time: &Time| libc::timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    let times = [spec(&meta.atime), spec(&meta.mtime)];
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string, and there are two times.
    let result =
        unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// A file that is read.
pub(super) enum Source {
    Local(File),
    Weft { client: Client, file: weft_client::File },
}

impl Source {
    /// The layout that begins on the same server, if the source is in `cluster`.
    fn beginning_in(&self, cluster: &Client) -> Option<LayoutWish> {
        match self {
            Source::Weft { client, file } if client.map().cluster_id == cluster.map().cluster_id => {
                let first_server_plus_1 = file.layout().first_server() + 1;
                Some(LayoutWish { strip_bytes: 0, server_count: 0, first_server_plus_1 })
            }
            _ => None,
        }
    }

    /// Its size, as far as that is known without asking.
    fn bytes(&self) -> u64 {
        match self {
            Source::Local(file) => file.metadata().map_or(0, |meta| meta.len()),
            Source::Weft { file, .. } => file.attr().size,
        }
    }

    /// Reads at `offset`. Returns 0 at the end of the file.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(match self {
            Source::Local(file) => file.read_at(buffer, offset)?,
            Source::Weft { file, .. } => file.read_at(buffer, offset)?,
        })
    }

    /// The next range with data in `offset..end`; `None` if there are only holes.
    pub(super) fn next_data(&self, offset: u64, end: u64) -> Result<Option<Range<u64>>> {
        let file = match self {
            Source::Local(file) => file,
            Source::Weft { file, .. } => return next_data_in_weft(file, offset, end),
        };
        let data = match seek(file, offset, libc::SEEK_DATA) {
            // ENXIO: there is no data after `offset` (lseek(2)).
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
            // A file system without holes.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(Some(offset..end)),
            data => data?,
        };
        if data >= end {
            return Ok(None);
        }
        let hole = seek(file, data, libc::SEEK_HOLE)?;
        if hole <= data {
            bail!("the holes of the source changed while it was copied");
        }
        Ok(Some(data..hole.min(end)))
    }
}

fn next_data_in_weft(file: &weft_client::File, offset: u64, end: u64) -> Result<Option<Range<u64>>> {
    let Some(data) = file.seek_data(offset)?.filter(|data| *data < end) else { return Ok(None) };
    // Truncated meanwhile: the end of the file is a hole.
    let hole = file.seek_hole(data)?.unwrap_or(end);
    Ok(Some(data..hole.clamp(data + 1, end)))
}

fn seek(file: &File, offset: u64, whence: i32) -> std::io::Result<u64> {
    // SAFETY: the descriptor is open; no memory is involved.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    u64::try_from(found).map_err(|_| std::io::Error::last_os_error())
}

/// A file that is written.
pub(super) enum Target {
    Local(File),
    Weft { client: Client, file: weft_client::File },
}

impl Target {
    /// Copies a range of the source, with its holes, to the same place on the servers. `None` if the two
    /// files are not opened by the same client.
    pub(super) fn copy_from(&self, source: &Source, offset: u64, bytes: u64) -> Result<Option<u64>> {
        match (source, self) {
            (Source::Weft { client: from, file: source }, Target::Weft { client, file })
                if from.map().cluster_id == client.map().cluster_id =>
            {
                match client.copy_range(source, offset, file, offset, bytes) {
                    // The same cluster over another connection.
                    Err(error) if error.errno() == libc::EXDEV => Ok(None),
                    copied => Ok(Some(copied?)),
                }
            }
            _ => Ok(None),
        }
    }

    pub(super) fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        match self {
            Target::Local(file) => file.write_all_at(data, offset)?,
            Target::Weft { file, .. } => drop(file.write_at(data, offset)?),
        }
        Ok(())
    }

    /// Writes the contents of a new file. Returns whether it has mode and times of `meta` now, and with `owner` its owner, or `None` if
    /// it is to be written in parts.
    pub(super) fn write_whole(&self, data: &[u8], meta: &Meta, owner: bool) -> Result<Option<bool>> {
        let Target::Weft { file, .. } = self else { return Ok(None) };
        let Some(has_times) = file.write_with_times(data, &meta.atime, &meta.mtime)? else { return Ok(None) };
        let attr = file.attr();
        let has_mode = attr.mode & MODE_BITS == meta.mode & MODE_BITS;
        let has_owner = (attr.uid, attr.gid) == (meta.uid, meta.gid);
        Ok(Some(has_times && has_mode && (has_owner || !owner)))
    }

    pub(super) fn set_len(&self, bytes: u64) -> Result<()> {
        match self {
            Target::Local(file) => file.set_len(bytes)?,
            Target::Weft { file, .. } => file.truncate(bytes)?,
        }
        Ok(())
    }

    /// Makes durable what was written.
    pub(super) fn sync(&self) -> Result<()> {
        match self {
            Target::Local(file) => file.sync_data()?,
            Target::Weft { file, .. } => file.sync_data()?,
        }
        Ok(())
    }

    /// Sets mode and times, and with `owner` the owner where permitted. In a cluster it says with the same message how far the file
    /// was written. `path` is where it is.
    pub(super) fn set_meta(&self, path: &Path, meta: &Meta, owner: bool) -> Result<()> {
        match self {
            Target::Local(_) => set_local_meta(path, meta, true, owner),
            Target::Weft { client, file } => {
                set_weft_meta(meta, true, owner, |set| client.report_and_set(file.ino(), set))
            }
        }
    }

    /// Flushes the file, to report errors that closing it would hide.
    pub(super) fn flush(&self) -> Result<()> {
        if let Target::Weft { file, .. } = self {
            file.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_holes_are_found() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"x").unwrap();
        file.write_all_at(b"y", 1 << 20).unwrap();
        file.set_len(4 << 20).unwrap();
        let source = Source::Local(file);
        let first = source.next_data(0, 4 << 20).unwrap().unwrap();
        assert_eq!(first.start, 0);
        let tail = source.next_data(2 << 20, 4 << 20).unwrap();
        assert!(tail.is_none_or(|data| data.start == 2 << 20), "no file system invents data elsewhere");
    }

    #[test]
    fn local_attributes_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::write(&from, "x").unwrap();
        std::fs::write(&to, "x").unwrap();
        std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o640)).unwrap();
        let mut meta = Side::Local.meta(&from, false).unwrap();
        meta.mtime = Time { seconds: 1_000_000, nanoseconds: 7 };
        Side::Local.set_meta(&to, &meta, true, true).unwrap();
        let there = Side::Local.meta(&to, false).unwrap();
        assert_eq!((there.mode, there.mtime), (0o640, meta.mtime));
    }
}
