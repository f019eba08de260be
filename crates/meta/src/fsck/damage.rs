//! Every rule that a store can break, in words.

use crate::keys::readable;
use thiserror::Error;

/// A rule that the store breaks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum Damage {
    /// A record cannot be decoded.
    #[error("{0}")]
    Unreadable(String),
    /// A record of no known kind.
    #[error("the record with key {0} is of an unknown kind")]
    UnknownKey(String),
    /// The root directory is missing.
    #[error("there is no root directory")]
    NoRoot,
    /// An entry leads to an inode that is not there.
    #[error("entry {name:?} of directory {dir} leads to inode {ino}, which is missing")]
    MissingInode {
        /// Directory.
        dir: u64,
        /// Name of the entry.
        name: String,
        /// Where it leads.
        ino: u64,
    },
    /// An entry says that its inode is of another kind than it is.
    #[error("entry {name:?} of directory {dir} leads to inode {ino}, which is of another kind")]
    WrongKind {
        /// Directory.
        dir: u64,
        /// Name of the entry.
        name: String,
        /// Where it leads.
        ino: u64,
    },
    /// A name that no path can have.
    #[error("entry {name:?} of directory {dir} has a name that is not valid")]
    BadName {
        /// Directory.
        dir: u64,
        /// Name of the entry.
        name: String,
    },
    /// An entry is in only one of the two orders, or they disagree.
    #[error(
        "entry {name:?} of directory {dir} differs between its record by name and its record in listing order"
    )]
    OrderMismatch {
        /// Directory.
        dir: u64,
        /// Name of the entry.
        name: String,
    },
    /// An entry below something that is not a directory.
    #[error("inode {dir} has the entry {name:?} but is not a directory")]
    EntryWithoutDirectory {
        /// The inode.
        dir: u64,
        /// Name of the entry.
        name: String,
    },
    /// The link count is not what the entries say.
    #[error("inode {ino} counts {recorded} links, but has {found}")]
    LinkCount {
        /// The inode.
        ino: u64,
        /// In the inode.
        recorded: u32,
        /// Counted.
        found: u32,
    },
    /// The number of entries of a directory is not what it says.
    #[error("directory {ino} counts {recorded} entries, but has {found}")]
    EntryCount {
        /// The directory.
        ino: u64,
        /// In the inode.
        recorded: u64,
        /// Counted.
        found: u64,
    },
    /// A directory has an entry in another directory than its parent, or the root has one at all.
    #[error(
        "directory {ino} says that its parent is directory {recorded}, but it has the entry {name:?} in directory {dir}"
    )]
    BadParent {
        /// The directory.
        ino: u64,
        /// In the inode.
        recorded: u64,
        /// Where the entry is.
        dir: u64,
        /// Name of the entry.
        name: String,
    },
    /// The root directory's parent is not itself.
    #[error("the root directory says its parent is {0}")]
    RootParent(u64),
    /// A directory with several names.
    #[error("directory {ino} has {found} names")]
    ManyNames {
        /// The directory.
        ino: u64,
        /// How many.
        found: u32,
    },
    /// An inode that no entry leads to.
    #[error("inode {0} has no name")]
    NoName(u64),
    /// A directory that no path from the root reaches: its parents go round in a circle, or end at one that
    /// has no name.
    #[error("directory {0} cannot be reached from the root")]
    Unreachable(u64),
    /// An unlinked inode without an orphan record, or an orphan record for one that has names or is missing.
    #[error("the orphan record of inode {0} is missing or wrong")]
    BadOrphan(u64),
    /// An unlinked inode that nobody has open.
    #[error("inode {0} is unlinked and nobody has it open, but it still exists")]
    LeftOver(u64),
    /// Extended attributes of an inode that is not there.
    #[error("inode {0} is missing, but has extended attributes")]
    XattrOfNothing(u64),
    /// Extended attributes that the inode does not count.
    #[error("inode {ino} counts {recorded} extended attributes, but has {found}")]
    XattrCount {
        /// The inode.
        ino: u64,
        /// In the inode.
        recorded: u32,
        /// Counted.
        found: u32,
    },
    /// Bytes of a small file that is not there, or is striped.
    #[error("bytes lie with inode {0}, which is missing or keeps its bytes elsewhere")]
    BytesOfNothing(u64),
    /// A small file of another size than its bytes.
    #[error("small file {ino} is of {recorded} bytes, but {found} lie with its inode")]
    SmallSize {
        /// The inode.
        ino: u64,
        /// In the inode.
        recorded: u64,
        /// Found.
        found: u64,
    },
    /// A file without layout, a symbolic link without target, one of them elsewhere, or a value beyond its
    /// bounds.
    #[error("inode {0} lacks a field that its kind needs, or has one that it must not have")]
    BadInode(u64),
    /// A layout over more servers than there are.
    #[error("file {ino} is striped over a ring of {ring_servers} servers, but the cluster has {servers}")]
    LayoutServers {
        /// The file.
        ino: u64,
        /// In its layout.
        ring_servers: u16,
        /// In the cluster.
        servers: u16,
    },
    /// A garbage record for an inode that still exists: its data would be removed.
    #[error("inode {0} exists and has a garbage record")]
    LiveGarbage(u64),
    /// A number was given out that the superblock does not cover.
    #[error("number {number} is beyond the superblock's lease {lease}")]
    BeyondLease {
        /// An inode number or cookie.
        number: u64,
        /// The bound.
        lease: u64,
    },
    /// The number of inodes is not what the superblock says.
    #[error("the superblock counts {recorded} inodes, but there are {found}")]
    InodeCount {
        /// In the superblock.
        recorded: u64,
        /// Counted.
        found: u64,
    },
    /// A kept reply under a key that no session can have.
    #[error("the stored reply {0} belongs to no session")]
    ReplyOfNothing(String),
}

impl Damage {
    /// Whether it can be repaired by itself. What cannot be needs a person, or a newer version.
    pub fn is_repairable(&self) -> bool {
        !matches!(self, Damage::UnknownKey(_))
            && !matches!(self, Damage::Unreadable(text) if text.contains("key s:"))
    }

    /// The inodes that the text names and that may have a path.
    pub fn inos(&self) -> Vec<u64> {
        match self {
            Damage::MissingInode { dir, .. }
            | Damage::BadName { dir, .. }
            | Damage::OrderMismatch { dir, .. }
            | Damage::EntryWithoutDirectory { dir, .. } => vec![*dir],
            Damage::WrongKind { dir, ino, .. } => vec![*dir, *ino],
            Damage::BadParent { ino, recorded, dir, .. } => vec![*ino, *recorded, *dir],
            Damage::LinkCount { ino, .. }
            | Damage::EntryCount { ino, .. }
            | Damage::ManyNames { ino, .. }
            | Damage::XattrCount { ino, .. }
            | Damage::SmallSize { ino, .. }
            | Damage::LayoutServers { ino, .. }
            | Damage::BytesOfNothing(ino)
            | Damage::BadOrphan(ino)
            | Damage::BadInode(ino)
            | Damage::LiveGarbage(ino) => vec![*ino],
            Damage::NoName(_)
            | Damage::Unreachable(_)
            | Damage::LeftOver(_)
            | Damage::XattrOfNothing(_)
            | Damage::RootParent(_)
            | Damage::Unreadable(_)
            | Damage::UnknownKey(_)
            | Damage::NoRoot
            | Damage::BeyondLease { .. }
            | Damage::InodeCount { .. }
            | Damage::ReplyOfNothing(_) => Vec::new(),
        }
    }

    pub(super) fn unknown(key: &[u8]) -> Damage {
        Damage::UnknownKey(readable(key))
    }
}
