//! One interface to the two sides of a copy: a local file system and a Weft file system.

use crate::local_dir::{Set, id_of, set_open, stat_open, stat_typed};
use anyhow::{Result, bail};
use rustix::fs::{FileType, Stat, Timespec};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weft_cli_common::connections::at;
use weft_cli_common::place::WeftPath;
use weft_client::{Client, SetAttr, SetTime};
use weft_layout::Layout;
use weft_wire::messages::{Attr, FileKind, LayoutWish, Time};

/// What chmod(2) sets.
const MODE_BITS: u32 = 0o7777;
/// Programs with the rights of their owner or group.
const SET_ID: u32 = 0o6000;

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

    /// Whether it is a program with the rights of its owner or group, and `other` has another one.
    pub(super) fn has_rights_of_another_than(&self, other: &Meta) -> bool {
        self.mode & SET_ID != 0 && (self.uid, self.gid) != (other.uid, other.gid)
    }

    /// Attributes for tests.
    #[cfg(test)]
    pub(super) fn sample(kind: Kind, size: u64, mtime_s: i64) -> Meta {
        let time = |seconds| Time { seconds, nanoseconds: 5 };
        let (atime, mtime) = (time(0), time(mtime_s));
        Meta { kind, mode: 0o644, size, id: (0, 0), uid: 0, gid: 0, atime, mtime, layout: None, attr: None }
    }

    #[cfg(test)]
    pub(super) fn owned_by(&self, uid: u32) -> Meta {
        Meta { uid, ..self.clone() }
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

impl From<&Stat> for Meta {
    fn from(stat: &Stat) -> Meta {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            _ => Kind::Other,
        };
        Meta {
            kind,
            mode: stat.st_mode & MODE_BITS,
            size: stat.st_size as u64,
            id: id_of(stat),
            uid: stat.st_uid,
            gid: stat.st_gid,
            atime: Time { seconds: stat.st_atime, nanoseconds: stat.st_atime_nsec as u32 },
            mtime: Time { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 },
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

    /// Attributes of what an argument leads to.
    pub fn meta(&self, path: &Path, follow: bool) -> Result<Meta> {
        Ok(match self {
            Side::Local => Meta::from(&stat_typed(path, follow)?),
            Side::Weft { client, .. } => Meta::from(&client.stat(at(path), follow)?),
        })
    }

    /// Of which files a server has lost data, or does not say. All are asked about at once.
    pub(super) fn doubtful(&self, all: &[&Meta]) -> Vec<bool> {
        let Side::Weft { client, .. } = self else { return vec![false; all.len()] };
        // Small files are at the metadata server.
        let striped = (0..all.len()).filter_map(|at| Some((at, all[at].attr.as_ref()?)));
        let (places, attrs): (Vec<usize>, Vec<&Attr>) = striped.unzip();
        let mut doubtful = vec![false; all.len()];
        if !attrs.is_empty() {
            let lost = client.lost_data(attrs).into_iter();
            places.into_iter().zip(lost).for_each(|(at, lost)| doubtful[at] = lost.unwrap_or(true));
        }
        doubtful
    }
}

/// The errno of a failure on either side.
pub(super) fn errno_of(error: &anyhow::Error) -> Option<i32> {
    let local = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    local.or_else(|| error.downcast_ref::<weft_client::Error>().map(weft_client::Error::errno))
}

/// Whether a file could not be read because its data is damaged or lost.
pub(super) fn is_unreadable(error: &anyhow::Error) -> bool {
    errno_of(error) == Some(libc::EIO)
}

/// Whether nothing could be made because something is there.
pub(super) fn is_there(error: &anyhow::Error) -> bool {
    errno_of(error) == Some(libc::EEXIST)
}

/// Sets what `meta` says by `set`: with one message, or with a second one without the owner where that is not permitted.
pub(super) fn set_weft_meta(
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

/// The same for a local file.
pub(super) fn local_set(meta: &Meta, times: bool, owner: bool) -> Set {
    let spec = |time: &Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Set {
        owner: owner.then_some((meta.uid, meta.gid)),
        mode: (meta.kind != Kind::Symlink).then_some(meta.mode),
        times: times.then(|| [spec(&meta.atime), spec(&meta.mtime)]),
    }
}

/// A file that is read.
pub(super) enum Source {
    Local(File),
    Weft { client: Client, file: weft_client::File },
}

impl Source {
    /// The layout that begins on the same server, if the source is in `cluster`.
    pub(super) fn beginning_in(&self, cluster: &Client) -> Option<LayoutWish> {
        match self {
            Source::Weft { client, file } if client.map().cluster_id == cluster.map().cluster_id => {
                let first_server_plus_1 = file.layout().first_server() + 1;
                Some(LayoutWish { strip_bytes: 0, server_count: 0, first_server_plus_1 })
            }
            _ => None,
        }
    }

    /// Device and inode.
    pub(super) fn id(&self) -> Result<(u64, u64)> {
        Ok(match self {
            Source::Local(file) => id_of(&stat_open(file)?),
            Source::Weft { file, .. } => (0, file.ino()),
        })
    }

    /// Its size, as far as that is known without asking.
    pub(super) fn bytes(&self) -> u64 {
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

    /// Sets the mode and, with `times`, the times, and with `owner` the owner where permitted. In a cluster it says with the same
    /// message how far the file was written.
    pub(super) fn set_meta(&self, meta: &Meta, times: bool, owner: bool) -> Result<()> {
        match self {
            Target::Local(file) => Ok(set_open(file, &local_set(meta, times, owner))?),
            Target::Weft { client, file } => {
                set_weft_meta(meta, times, owner, |set| client.report_and_set(file.ino(), set))
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
}
