//! Replies of the file system.

use std::time::Duration;

/// Flags of an open file.
pub mod open_flags {
    /// Bypass the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Pages that are already cached remain valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The kernel may cache the listing of a directory.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// Writes that bypass the page cache may run in parallel (Linux 6.2).
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// The header of every reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The request.
    pub unique: u64,
    /// 0, or an errno; then there is no body.
    pub errno: i32,
    /// Length of the body.
    pub body_bytes: usize,
}

impl ReplyHeader {
    /// Length of a header.
    pub const BYTES: usize = 16;

    /// Encodes the header.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let length = (Self::BYTES + self.body_bytes) as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..8].copy_from_slice(&(-self.errno).to_ne_bytes());
        bytes[8..].copy_from_slice(&self.unique.to_ne_bytes());
        bytes
    }
}

/// A time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileTime {
    /// Seconds since 1970.
    pub seconds: i64,
    /// 0 … 999,999,999, always forwards.
    pub nanoseconds: u32,
}

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Number of the inode, as programs see it.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last read.
    pub atime: FileTime,
    /// Time of the last write.
    pub mtime: FileTime,
    /// Time of the last change of contents or attributes.
    pub ctime: FileTime,
    /// Kind (`S_IFREG` and so on) and permissions.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// For device files: which, in the kernel's encoding of 32 bits.
    pub device: u32,
    /// The preferred I/O size for programs.
    pub block_bytes: u32,
}

/// The inode of a name, and how long it may be cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// The inode's number for later requests; 0: the name is missing.
    pub node: u64,
    /// Distinguishes inodes that had the same number.
    pub generation: u64,
    /// How long the name may be cached.
    pub entry_valid: Duration,
    /// How long the attributes may be cached.
    pub attr_valid: Duration,
    /// Attributes of the inode.
    pub attributes: Attributes,
}

/// A file, or directory, that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenReply {
    /// Number for later requests.
    pub handle: u64,
    /// See [`open_flags`].
    pub flags: u32,
}

/// A conflicting lock, or `F_UNLCK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockFound {
    /// Its first byte.
    pub first: u64,
    /// Its last byte.
    pub last: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// Who has it.
    pub pid: u32,
}

/// Space of the file system, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size of a block.
    pub block_bytes: u32,
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for users other than root.
    pub available: u64,
    /// Used and free inodes together.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// The longest name.
    pub name_bytes_max: u32,
}

/// One name of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Number of the inode.
    pub ino: u64,
    /// The position after it.
    pub position: u64,
    /// Kind, as in a mode.
    pub mode: u32,
    /// The name.
    pub name: &'a [u8],
}

const ATTRIBUTES_BYTES: usize = 88;
const ENTRY_BYTES: usize = 40 + ATTRIBUTES_BYTES;
const DIRECTORY_ENTRY_BYTES: usize = 24;
const KIND_SHIFT: u32 = 12;

/// The body of a reply that is being written into memory.
///
/// What does not fit is omitted, and [`Body::fits`] then returns false.
pub struct Body<'a> {
    memory: &'a mut [u8],
    length: usize,
    fits: bool,
}

impl<'a> Body<'a> {
    /// An empty body in `memory`.
    pub fn new(memory: &'a mut [u8]) -> Body<'a> {
        Body { memory, length: 0, fits: true }
    }

    /// Bytes written.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether everything fitted so far.
    pub fn fits(&self) -> bool {
        self.fits
    }

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        match self.memory.get_mut(self.length..).and_then(|rest| rest.get_mut(..bytes.len())) {
            Some(place) if self.fits => {
                place.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            _ => self.fits = false,
        }
        self
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    /// Appends a 64-bit number: a position, or the count of a wide copy.
    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    /// Appends a count of bytes: of a write, or the size of an extended attribute.
    pub fn count(&mut self, bytes: u32) -> &mut Self {
        self.u32(bytes).u32(0)
    }

    fn attributes_alone(&mut self, attr: &Attributes) -> &mut Self {
        let times = [attr.atime, attr.mtime, attr.ctime];
        self.u64(attr.ino).u64(attr.size).u64(attr.blocks);
        for time in times {
            self.u64(time.seconds as u64);
        }
        for time in times {
            self.u32(time.nanoseconds);
        }
        self.u32(attr.mode).u32(attr.links).u32(attr.uid).u32(attr.gid).u32(attr.device);
        self.u32(attr.block_bytes).u32(0)
    }

    /// Appends attributes that may be cached for this long.
    pub fn attributes(&mut self, attr: &Attributes, valid: Duration) -> &mut Self {
        self.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).attributes_alone(attr)
    }

    fn zeros_to(&mut self, end: usize) -> &mut Self {
        const ZEROS: [u8; 32] = [0; 32];
        let missing = end.saturating_sub(self.length).min(ZEROS.len());
        self.bytes(&ZEROS[..missing])
    }

    /// Appends the inode of a name.
    pub fn entry(&mut self, entry: &Entry) -> &mut Self {
        self.u64(entry.node).u64(entry.generation);
        self.u64(entry.entry_valid.as_secs()).u64(entry.attr_valid.as_secs());
        self.u32(entry.entry_valid.subsec_nanos()).u32(entry.attr_valid.subsec_nanos());
        self.attributes_alone(&entry.attributes)
    }

    /// Appends an open file.
    pub fn opened(&mut self, opened: &OpenReply) -> &mut Self {
        self.u64(opened.handle).u32(opened.flags).u32(0)
    }

    /// Appends the result 0 of an ioctl(2), and what its argument leads to where that is written.
    pub fn ioctl(&mut self, data: &[u8]) -> &mut Self {
        self.u32(0).u32(0).u32(0).u32(0).bytes(data)
    }

    /// Appends a conflicting lock.
    pub fn lock(&mut self, found: &LockFound) -> &mut Self {
        self.u64(found.first).u64(found.last).u32(found.kind).u32(found.pid)
    }

    /// Appends the space of the file system.
    pub fn space(&mut self, space: &Space) -> &mut Self {
        self.u64(space.blocks).u64(space.free).u64(space.available).u64(space.files).u64(space.files_free);
        self.u32(space.block_bytes).u32(space.name_bytes_max).u32(space.block_bytes);
        let end = self.length + 28;
        self.zeros_to(end)
    }

    /// Appends a name of a directory and, with `entry`, its inode. Returns whether it fitted; otherwise
    /// nothing is written.
    pub fn directory_entry(&mut self, name: &DirectoryEntry<'_>, entry: Option<&Entry>) -> bool {
        let name_bytes = (DIRECTORY_ENTRY_BYTES + name.name.len()).next_multiple_of(8);
        let needed = name_bytes + entry.map_or(0, |_| ENTRY_BYTES);
        if !self.fits || self.memory.len() - self.length < needed {
            return false;
        }
        if let Some(entry) = entry {
            self.entry(entry);
        }
        let end = self.length + name_bytes;
        self.u64(name.ino).u64(name.position).u32(name.name.len() as u32).u32(name.mode >> KIND_SHIFT & 0xf);
        self.bytes(name.name).zeros_to(end);
        true
    }
}
