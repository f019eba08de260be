//! The records of the namespace and their encodings: inodes, entries, layouts, and what callers see of them.

use crate::EngineError;
use crate::acl::Acl;
use crate::codec::{Encode, Reader, Writer};
use crate::flags::InodeFlags;
use crate::keys;
use crate::quota::Owner;
use weft_layout::Layout;

/// The inode number of the root directory.
pub const ROOT_INO: u64 = 1;

/// Permission bits of an inode's mode: set-user-id, set-group-id, sticky, and rwx three times.
pub const MODE_MASK: u32 = 0o7777;
pub(crate) const SET_UID: u32 = 0o4000;
pub(crate) const SET_GID: u32 = 0o2000;
pub(crate) const STICKY: u32 = 0o1000;

/// The largest size of a file.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

const INODE_VERSION: u8 = 1;
/// Of a small file: who takes it for striped would read zeros.
const SMALL_INODE_VERSION: u8 = 2;
/// Of an inode with flags, small or not: who knows of none would let it be changed.
const FLAGGED_INODE_VERSION: u8 = 3;
const ENTRY_VERSION: u8 = 1;
const LAYOUT_VERSION: u8 = 1;

/// A point in time since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, 0 to 999,999,999, counted forward from `seconds`.
    pub nanos: u32,
}

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A regular file, striped over I/O servers.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A Unix socket.
    Socket = 5,
    /// A character device.
    Char = 6,
    /// A block device.
    Block = 7,
}

impl Kind {
    /// The kind with this number, as stored and sent.
    pub fn from_number(number: u8) -> Option<Kind> {
        [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// A wish for a file's layout, for one file or as the default of a directory. What is not given comes from the
/// directory, then from the cluster's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayoutRequest {
    /// Bytes per strip, a multiple of 4096.
    pub strip_bytes: Option<u32>,
    /// How many I/O servers hold the file; 0 means all.
    pub server_count: Option<u16>,
    /// The id of the I/O server with the first strip; not given: spread by inode number.
    pub first_server: Option<u16>,
}

/// The attributes of an inode, as every operation returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// Tells two lives of one number apart.
    pub generation: u32,
    /// What it is.
    pub kind: Kind,
    /// Permission bits, `MODE_MASK`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that lead here; for a directory 2 and its subdirectories.
    pub nlink: u32,
    /// Bytes of a file (see `size_live`), of a symlink's target; entries of a directory.
    pub size: u64,
    /// Space in units of 512 bytes, estimated from the size.
    pub blocks: u64,
    /// Device number, for devices.
    pub rdev: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of contents or attributes.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// Where a file's bytes are.
    pub layout: Option<Layout>,
    /// The file may be longer than `size`: ask the I/O servers.
    pub size_live: bool,
    /// Names the present state of the size for `settle` and `truncate_commit`.
    pub epoch: u64,
}

/// The record under an `i` key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inode {
    pub ino: u64,
    pub generation: u32,
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    pub rdev: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// Counted up when the size's state changes such that a measurement of it begun before is void.
    pub epoch: u32,
    /// The truth about the size is with the I/O servers only.
    pub dirty_size: bool,
    /// Data files may exist even though the size is settled.
    pub ever_written: bool,
    pub layout: Option<Layout>,
    /// For files: whether the bytes lie with the inode (`ops/small.rs`).
    pub small: bool,
    /// For directories: what new files and subdirectories inherit.
    pub default_layout: Option<LayoutRequest>,
    /// For directories: the one that holds this one; the root's is itself.
    pub parent: u64,
    /// For directories: how many entries they have.
    pub entries: u64,
    /// How many extended attributes exist under `x`.
    pub xattrs: u32,
    /// The access control list, where it says more than the mode.
    pub acl: Option<Acl>,
    /// For directories: the list that new entries take.
    pub default_acl: Option<Acl>,
    /// For symbolic links.
    pub target: Option<Box<[u8]>>,
    /// The directory with a quota that it is below, or is; 0: none.
    pub tree: u64,
    /// See [`crate::flags`].
    pub flags: InodeFlags,
}

impl Inode {
    /// A new inode with no names yet, all times `now`.
    pub fn new(
        ino: u64,
        generation: u32,
        kind: Kind,
        mode: u32,
        uid: u32,
        gid: u32,
        now: Timestamp,
    ) -> Inode {
        Inode {
            ino,
            generation,
            kind,
            mode: mode & MODE_MASK,
            uid,
            gid,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            size: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            epoch: 0,
            dirty_size: false,
            ever_written: false,
            layout: None,
            small: false,
            default_layout: None,
            parent: 0,
            entries: 0,
            xattrs: 0,
            acl: None,
            default_acl: None,
            target: None,
            tree: 0,
            flags: 0,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Takes away set-user-id; and set-group-id where the group may execute, or whoever is the cause is not `trusted_with_group`,
    /// that is root or a member: for them the bit without execution means mandatory locking.
    pub fn drop_set_id(&mut self, trusted_with_group: bool) {
        self.mode &= !SET_UID;
        if self.mode & 0o010 != 0 || !trusted_with_group {
            self.mode &= !SET_GID;
        }
    }

    /// Whom it counts for, and with how many bytes.
    pub fn charge(&self) -> (Owner, u64) {
        let owner = Owner { uid: self.uid, gid: self.gid, tree: self.tree };
        (owner, if self.kind == Kind::File { self.size } else { 0 })
    }

    /// Whether data files may exist for it on the I/O servers.
    pub fn may_have_data(&self) -> bool {
        self.kind == Kind::File && (self.ever_written || self.dirty_size)
    }

    /// What callers see; `incarnation` distinguishes the epochs of different runs of the server.
    pub fn attr(&self, incarnation: u32) -> Attr {
        let size = match self.kind {
            Kind::Directory => self.entries,
            Kind::Symlink => self.target.as_ref().map_or(0, |target| target.len() as u64),
            _ => self.size,
        };
        Attr {
            ino: self.ino,
            generation: self.generation,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size,
            blocks: if self.kind == Kind::File { size.div_ceil(512) } else { 0 },
            rdev: self.rdev,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            layout: self.layout,
            size_live: self.dirty_size,
            epoch: self.public_epoch(incarnation),
        }
    }

    pub fn public_epoch(&self, incarnation: u32) -> u64 {
        u64::from(incarnation) << 32 | u64::from(self.epoch)
    }

    // Fuzzed by records: fsck/tests.rs
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Inode, EngineError> {
        let version = match value.first() {
            Some(version @ (&SMALL_INODE_VERSION | &FLAGGED_INODE_VERSION)) => *version,
            _ => INODE_VERSION,
        };
        let mut from = Reader::with_version(key, value, version)?;
        let ino = keys::number_of(key).ok_or_else(|| from.damaged("key"))?;
        let kind = Kind::from_number(from.u8("kind")?).ok_or_else(|| from.damaged("kind"))?;
        let flags = from.u8("flags")?;
        let mode = u32::from(from.u16("mode")?);
        let (uid, gid, nlink) = (from.u32("uid")?, from.u32("gid")?, from.u32("nlink")?);
        let (generation, epoch) = (from.u32("generation")?, from.u32("epoch")?);
        let mut inode = Inode::new(ino, generation, kind, mode, uid, gid, Timestamp::default());
        inode.nlink = nlink;
        inode.epoch = epoch;
        inode.xattrs = from.u32("xattrs")?;
        inode.size = from.u64("size")?;
        inode.atime = read_time(&mut from, "atime")?;
        inode.mtime = read_time(&mut from, "mtime")?;
        inode.ctime = read_time(&mut from, "ctime")?;
        inode.btime = read_time(&mut from, "btime")?;
        match kind {
            Kind::Directory => {
                inode.parent = from.u64("parent")?;
                inode.entries = from.u64("entries")?;
            }
            Kind::Char | Kind::Block => inode.rdev = from.u64("rdev")?,
            _ => {}
        }
        inode.dirty_size = flags & 1 != 0;
        inode.ever_written = flags & 2 != 0;
        if flags & 4 != 0 {
            inode.layout = Some(read_layout(&mut from)?);
        }
        if flags & 8 != 0 {
            inode.default_layout = Some(read_request(&mut from)?);
        }
        if flags & 16 != 0 {
            inode.target = Some(from.short_bytes("target")?.into());
        }
        if flags & 32 != 0 {
            inode.acl = read_acl(&mut from, "acl")?;
        }
        if flags & 64 != 0 {
            inode.default_acl = read_acl(&mut from, "default acl")?;
        }
        if flags & 128 != 0 {
            inode.tree = from.u64("tree")?;
        }
        inode.small = version == SMALL_INODE_VERSION;
        if version == FLAGGED_INODE_VERSION {
            inode.small = from.u8("small")? != 0;
            inode.flags = from.u8("inode flags")?;
        }
        from.end()?;
        Ok(inode)
    }
}

impl Encode for Inode {
    fn encode_to(&self, out: &mut Writer) {
        out.u8(match (self.flags, self.small) {
            (0, false) => INODE_VERSION,
            (0, true) => SMALL_INODE_VERSION,
            _ => FLAGGED_INODE_VERSION,
        });
        out.u8(self.kind as u8);
        out.u8(u8::from(self.dirty_size)
            | u8::from(self.ever_written) << 1
            | u8::from(self.layout.is_some()) << 2
            | u8::from(self.default_layout.is_some()) << 3
            | u8::from(self.target.is_some()) << 4
            | u8::from(self.acl.is_some()) << 5
            | u8::from(self.default_acl.is_some()) << 6
            | u8::from(self.tree != 0) << 7);
        out.u16(self.mode as u16);
        for value in [self.uid, self.gid, self.nlink, self.generation, self.epoch, self.xattrs] {
            out.u32(value);
        }
        out.u64(self.size);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            write_time(out, time);
        }
        match self.kind {
            Kind::Directory => {
                out.u64(self.parent);
                out.u64(self.entries);
            }
            Kind::Char | Kind::Block => out.u64(self.rdev),
            _ => {}
        }
        if let Some(layout) = &self.layout {
            write_layout(out, layout);
        }
        if let Some(request) = &self.default_layout {
            write_request(out, request);
        }
        if let Some(target) = &self.target {
            out.short_bytes(target);
        }
        for acl in self.acl.iter().chain(&self.default_acl) {
            out.short_bytes(&acl.value());
        }
        if self.tree != 0 {
            out.u64(self.tree);
        }
        if self.flags != 0 {
            out.u8(self.small.into());
            out.u8(self.flags);
        }
    }
}

fn read_acl(from: &mut Reader, field: &'static str) -> Result<Option<Acl>, EngineError> {
    let value = from.short_bytes(field)?;
    Acl::parse(value).map_err(|_| from.damaged(field))
}

fn write_time(out: &mut Writer, time: Timestamp) {
    out.i64(time.seconds);
    out.u32(time.nanos);
}

fn read_time(from: &mut Reader, field: &'static str) -> Result<Timestamp, EngineError> {
    Ok(Timestamp { seconds: from.i64(field)?, nanos: from.u32(field)? })
}

fn write_layout(out: &mut Writer, layout: &Layout) {
    out.u32(layout.strip_bytes());
    out.u16(layout.first_server());
    out.u16(layout.server_count());
    out.u16(layout.ring_servers());
}

fn read_layout(from: &mut Reader) -> Result<Layout, EngineError> {
    let strip_bytes = from.u32("strip bytes")?;
    let (first, count) = (from.u16("first server")?, from.u16("server count")?);
    let ring = from.u16("ring servers")?;
    Layout::new(strip_bytes, first, count, ring).map_err(|_| from.damaged("layout"))
}

fn write_request(out: &mut Writer, request: &LayoutRequest) {
    out.u8(u8::from(request.strip_bytes.is_some())
        | u8::from(request.server_count.is_some()) << 1
        | u8::from(request.first_server.is_some()) << 2);
    out.u32(request.strip_bytes.unwrap_or(0));
    out.u16(request.server_count.unwrap_or(0));
    out.u16(request.first_server.unwrap_or(0));
}

fn read_request(from: &mut Reader) -> Result<LayoutRequest, EngineError> {
    let given = from.u8("layout request")?;
    let strip_bytes = from.u32("strip bytes")?;
    let (count, first) = (from.u16("server count")?, from.u16("first server")?);
    Ok(LayoutRequest {
        strip_bytes: (given & 1 != 0).then_some(strip_bytes),
        server_count: (given & 2 != 0).then_some(count),
        first_server: (given & 4 != 0).then_some(first),
    })
}

/// A value that is a layout alone: garbage records.
pub(crate) fn encode_layout(layout: &Layout) -> Vec<u8> {
    let mut out = Writer::with_version(LAYOUT_VERSION, 16);
    write_layout(&mut out, layout);
    out.bytes
}

pub(crate) fn decode_layout(key: &[u8], value: &[u8]) -> Result<Layout, EngineError> {
    let mut from = Reader::with_version(key, value, LAYOUT_VERSION)?;
    let layout = read_layout(&mut from)?;
    from.end()?;
    Ok(layout)
}

/// Where a name leads: the value under an `n` key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub ino: u64,
    pub kind: Kind,
    /// The entry's place in the listing, never used twice.
    pub cookie: u64,
}

impl Encode for Entry {
    fn encode_to(&self, out: &mut Writer) {
        out.u8(ENTRY_VERSION);
        out.u64(self.ino);
        out.u8(self.kind as u8);
        out.u64(self.cookie);
    }
}

impl Entry {
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Entry, EngineError> {
        let mut from = Reader::with_version(key, value, ENTRY_VERSION)?;
        let ino = from.u64("ino")?;
        let kind = Kind::from_number(from.u8("kind")?).ok_or_else(|| from.damaged("kind"))?;
        let entry = Entry { ino, kind, cookie: from.u64("cookie")? };
        from.end()?;
        Ok(entry)
    }

    /// The value under the `o` key of the same entry.
    pub fn encode_order(&self, name: &[u8]) -> Vec<u8> {
        let mut out = Writer::with_version(ENTRY_VERSION, 10 + name.len());
        out.u64(self.ino);
        out.u8(self.kind as u8);
        out.bytes.extend_from_slice(name);
        out.bytes
    }

    /// The entry and its name from an `o` record.
    pub fn decode_order(key: &[u8], value: &[u8]) -> Result<(Entry, Vec<u8>), EngineError> {
        let mut from = Reader::with_version(key, value, ENTRY_VERSION)?;
        let cookie = keys::cookie_of(key).ok_or_else(|| from.damaged("key"))?;
        let ino = from.u64("ino")?;
        let kind = Kind::from_number(from.u8("kind")?).ok_or_else(|| from.damaged("kind"))?;
        Ok((Entry { ino, kind, cookie }, from.remainder().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_survive_encoding_and_damage_names_the_key() {
        let now = Timestamp { seconds: -5, nanos: 999_999_999 };
        let key = keys::inode(77);
        for kind in (1..=7).filter_map(Kind::from_number) {
            let mut inode = Inode::new(77, 3, kind, 0o6755, 10, 20, now);
            inode.size = 1 << 40;
            inode.dirty_size = kind == Kind::File;
            inode.layout = (kind == Kind::File).then(|| Layout::new(65536, 1, 3, 4).unwrap());
            inode.parent = if kind == Kind::Directory { 5 } else { 0 };
            inode.rdev = if kind == Kind::Block { 0x801 } else { 0 };
            inode.target = (kind == Kind::Symlink).then(|| b"../over/there".as_slice().into());
            for (small, flags) in [(false, 0), (true, 0), (true, 0x10), (false, 0xf0)] {
                (inode.small, inode.flags) = (small, flags);
                assert_eq!(Inode::decode(&key, &inode.encode()).unwrap(), inode);
            }
            let value = inode.encode();
            for bytes in 0..value.len() {
                let error = Inode::decode(&key, &value[..bytes]).unwrap_err();
                assert!(error.to_string().contains("i:77:"), "{error}");
            }
        }
    }

    #[test]
    fn layout_requests_survive_encoding() {
        let mut inode = Inode::new(2, 0, Kind::Directory, 0o755, 0, 0, Timestamp::default());
        inode.default_layout =
            Some(LayoutRequest { strip_bytes: None, server_count: Some(0), first_server: Some(9) });
        assert_eq!(Inode::decode(&keys::inode(2), &inode.encode()).unwrap(), inode);
    }
}
