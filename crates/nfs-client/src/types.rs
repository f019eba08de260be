//! What NFSv3 is about (RFC 1813, 2): handles, attributes, and what calls give back.

use std::fmt;
use std::sync::Arc;

use weft_onc_rpc::xdr::{Reader, Writer};

use crate::error::{Decoded, Malformed};

/// Most bytes of a handle (NFS3_FHSIZE).
pub const HANDLE_BYTES_MAX: usize = 64;
/// Longest name and longest path that are taken from a server. NFSv3 has no limit of its own.
pub const NAME_BYTES_MAX: usize = 1024;
/// See [`NAME_BYTES_MAX`].
pub const PATH_BYTES_MAX: usize = 4096;

/// A server's name for a file, and the path by which it was found, for errors.
#[derive(Clone)]
pub struct FileHandle {
    bytes: [u8; HANDLE_BYTES_MAX],
    length: u8,
    path: Arc<str>,
}

impl FileHandle {
    /// The handle of these bytes; `None` if they are too many.
    pub fn new(bytes: &[u8], path: Arc<str>) -> Option<FileHandle> {
        let mut handle = FileHandle { bytes: [0; HANDLE_BYTES_MAX], length: 0, path };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        handle.length = bytes.len() as u8;
        Some(handle)
    }

    /// Its bytes, which only the server understands.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }

    /// The path by which it was found, from the root of the server.
    pub fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// The path of a name in this directory.
    pub fn path_of(&self, name: &[u8]) -> Arc<str> {
        let name = String::from_utf8_lossy(name);
        format!("{}/{name}", self.path.trim_end_matches('/')).into()
    }

    pub(crate) fn read(reader: &mut Reader<'_>, path: Arc<str>) -> Decoded<FileHandle> {
        let bytes = reader.opaque(HANDLE_BYTES_MAX)?;
        FileHandle::new(bytes, path).ok_or(Malformed("a handle is too long"))
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &FileHandle) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for FileHandle {}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.path)?;
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The kind of a file (`ftype3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A block device.
    Block = 3,
    /// A character device.
    Character = 4,
    /// A symbolic link.
    Symlink = 5,
    /// A socket.
    Socket = 6,
    /// A named pipe.
    Fifo = 7,
}

impl FileKind {
    fn read(reader: &mut Reader<'_>) -> Decoded<FileKind> {
        Ok(match reader.u32()? {
            1 => FileKind::File,
            2 => FileKind::Directory,
            3 => FileKind::Block,
            4 => FileKind::Character,
            5 => FileKind::Symlink,
            6 => FileKind::Socket,
            7 => FileKind::Fifo,
            _ => return Err(Malformed("a file is of no known kind")),
        })
    }
}

/// A time since 1970 (`nfstime3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds.
    pub seconds: u32,
    /// The rest.
    pub nanoseconds: u32,
}

impl Time {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Decoded<Time> {
        Ok(Time { seconds: reader.u32()?, nanoseconds: reader.u32()? })
    }

    pub(crate) fn write(self, writer: Writer) -> Writer {
        writer.u32(self.seconds).u32(self.nanoseconds)
    }
}

/// Attributes (`fattr3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Its kind.
    pub kind: FileKind,
    /// Permissions, without the kind.
    pub mode: u32,
    /// How many names it has.
    pub nlink: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its size.
    pub size_bytes: u64,
    /// The space that it uses.
    pub used_bytes: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Its file system.
    pub fsid: u64,
    /// Its number in the file system.
    pub fileid: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of its data.
    pub mtime: Time,
    /// Last change of its attributes.
    pub ctime: Time,
}

/// Bytes of attributes in a message.
pub(crate) const ATTR_BYTES: usize = 84;

impl Attr {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Decoded<Attr> {
        Ok(Attr {
            kind: FileKind::read(reader)?,
            mode: reader.u32()?,
            nlink: reader.u32()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            size_bytes: reader.u64()?,
            used_bytes: reader.u64()?,
            device: (reader.u32()?, reader.u32()?),
            fsid: reader.u64()?,
            fileid: reader.u64()?,
            atime: Time::read(reader)?,
            mtime: Time::read(reader)?,
            ctime: Time::read(reader)?,
        })
    }

    /// Attributes that may be missing (`post_op_attr`).
    pub(crate) fn read_option(reader: &mut Reader<'_>) -> Decoded<Option<Attr>> {
        reader.option(Attr::read)
    }
}

/// What a file was before a change (`wcc_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    /// Its size.
    pub size_bytes: u64,
    /// Last change of its data.
    pub mtime: Time,
    /// Last change of its attributes.
    pub ctime: Time,
}

impl Before {
    fn read(reader: &mut Reader<'_>) -> Decoded<Before> {
        Ok(Before { size_bytes: reader.u64()?, mtime: Time::read(reader)?, ctime: Time::read(reader)? })
    }
}

/// A file before and after a change, as far as the server says (`wcc_data`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub before: Option<Before>,
    /// After.
    pub after: Option<Attr>,
}

impl Change {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Decoded<Change> {
        Ok(Change { before: reader.option(Before::read)?, after: Attr::read_option(reader)? })
    }
}

/// What SETATTR does to a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Nothing.
    #[default]
    Keep,
    /// Sets it to the server's time.
    Now,
    /// Sets it to this.
    At(Time),
}

impl SetTime {
    fn write(self, writer: Writer) -> Writer {
        match self {
            SetTime::Keep => writer.u32(0),
            SetTime::Now => writer.u32(1),
            SetTime::At(time) => time.write(writer.u32(2)),
        }
    }
}

/// Attributes to set (`sattr3`); what is `None` stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: the file is cut, or continued with zeros.
    pub size_bytes: Option<u64>,
    /// Last access.
    pub atime: SetTime,
    /// Last change of its data.
    pub mtime: SetTime,
}

impl SetAttr {
    pub(crate) fn write(&self, writer: Writer) -> Writer {
        let writer = writer.option(self.mode, Writer::u32).option(self.uid, Writer::u32);
        let writer = writer.option(self.gid, Writer::u32).option(self.size_bytes, Writer::u64);
        self.mtime.write(self.atime.write(writer))
    }
}

/// How CREATE treats a name that exists (`createhow3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// It is taken as it is, with these attributes.
    Unchecked(SetAttr),
    /// It is an error.
    Guarded(SetAttr),
    /// It is an error, unless this very call has created it: a repeated call succeeds.
    Exclusive([u8; 8]),
}

/// What MKNOD makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A block device with major and minor number.
    Block(u32, u32),
    /// A character device.
    Character(u32, u32),
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
}

/// When written data has to be on stable storage (`stable_how`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stable {
    /// With the next COMMIT.
    Unstable = 0,
    /// Before the reply, with the attributes that are needed to find it.
    Data = 1,
    /// Before the reply, with all attributes.
    File = 2,
}

/// Result of LOOKUP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file.
    pub handle: FileHandle,
    /// Its attributes.
    pub attr: Option<Attr>,
    /// Those of the directory.
    pub dir_attr: Option<Attr>,
}

/// Result of ACCESS: bits of `Access::READ` and the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// What is allowed of what was asked for.
    pub allowed: u32,
    /// The file's attributes.
    pub attr: Option<Attr>,
}

impl Access {
    /// Read a file or directory.
    pub const READ: u32 = 1;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 2;
    /// Change data or names that exist.
    pub const MODIFY: u32 = 4;
    /// Append data or add names.
    pub const EXTEND: u32 = 8;
    /// Remove a name in a directory.
    pub const DELETE: u32 = 16;
    /// Execute a file.
    pub const EXECUTE: u32 = 32;
}

/// Result of READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Bytes that came, fewer at the end of the file or where the server says so.
    pub bytes: usize,
    /// Whether the file ends behind them.
    pub is_end: bool,
    /// The file's attributes.
    pub attr: Option<Attr>,
}

/// Result of WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes that were taken, perhaps not all.
    pub bytes: usize,
    /// How safe they are now.
    pub stable: Stable,
    /// Changes where the server may have lost unstable data: those written under another one have to be written again.
    pub verifier: [u8; 8],
    /// The file before and after.
    pub change: Change,
}

/// Result of COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// That of [`Written`].
    pub verifier: [u8; 8],
    /// The file before and after.
    pub change: Change,
}

/// Result of CREATE, MKDIR, SYMLINK and MKNOD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// The file, if the server says so; else it has to be looked up.
    pub handle: Option<FileHandle>,
    /// Its attributes.
    pub attr: Option<Attr>,
    /// The directory before and after.
    pub dir: Change,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Number of the file.
    pub fileid: u64,
    /// The name.
    pub name: Vec<u8>,
    /// Where the next entry is.
    pub cookie: u64,
    /// Attributes, where READDIRPLUS gives them.
    pub attr: Option<Attr>,
    /// The file, where READDIRPLUS gives it.
    pub handle: Option<FileHandle>,
}

/// Where a listing goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cookie {
    /// Behind this entry; 0 is the beginning.
    pub cookie: u64,
    /// What the server gave with it.
    pub verifier: [u8; 8],
}

/// Result of READDIR and READDIRPLUS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Names, in the server's order.
    pub entries: Vec<Entry>,
    /// Where the next page begins.
    pub next: Cookie,
    /// Whether there is none.
    pub is_end: bool,
    /// The directory's attributes.
    pub dir_attr: Option<Attr>,
}

/// Result of FSSTAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsStat {
    /// Size of the file system.
    pub total_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Free for this user.
    pub available_bytes: u64,
    /// How many files there may be.
    pub total_files: u64,
    /// How many more.
    pub free_files: u64,
    /// How many more for this user.
    pub available_files: u64,
    /// Seconds for which this is not expected to change.
    pub unchanged_s: u32,
}

/// Result of FSINFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsInfo {
    /// Most bytes of a READ.
    pub read_bytes_max: u32,
    /// Best size of a READ.
    pub read_bytes_best: u32,
    /// Most bytes of a WRITE.
    pub write_bytes_max: u32,
    /// Best size of a WRITE.
    pub write_bytes_best: u32,
    /// Best size of a READDIR.
    pub readdir_bytes_best: u32,
    /// Size that a file may have.
    pub file_bytes_max: u64,
    /// How exact times are.
    pub time_step: Time,
    /// Bits: 1 hard links, 2 symbolic links, 8 one PATHCONF for all, 16 times can be set.
    pub properties: u32,
}

/// Result of PATHCONF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathConf {
    /// Most hard links of a file.
    pub links_max: u32,
    /// Longest name.
    pub name_bytes_max: u32,
    /// Longer names are refused, not cut.
    pub no_trunc: bool,
    /// Only root gives files away.
    pub chown_restricted: bool,
    /// Names that differ in case only are the same.
    pub case_insensitive: bool,
    /// The case of names is kept.
    pub case_preserving: bool,
}
