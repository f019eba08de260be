//! Results of operations, in terms that every interface (errno in C and FUSE, nfsstat3, Rust) can translate.

macro_rules! statuses {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Result of an operation. Numbers are part of the wire format and never change their meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Status { $($(#[doc = $doc])* $name = $number,)* }

        impl Status {
            /// Every status, in order of number.
            pub const ALL: &'static [Status] = &[$(Status::$name),*];

            /// The status with this number on the wire.
            pub fn from_u32(number: u32) -> Option<Status> {
                match number { $($number => Some(Status::$name),)* _ => None }
            }

            /// A short text for messages.
            pub fn text(self) -> &'static str {
                match self { $(Status::$name => $text,)* }
            }
        }
    };
}

statuses! {
    /// Done.
    Ok = 0, "done";
    /// No such name or inode.
    NotFound = 1, "no such file or directory";
    /// The name exists.
    Exists = 2, "already exists";
    /// A directory was needed.
    NotDirectory = 3, "not a directory";
    /// The operation is not for directories.
    IsDirectory = 4, "is a directory";
    /// The directory has entries.
    NotEmpty = 5, "directory not empty";
    /// Permission bits forbid it.
    Access = 6, "permission denied";
    /// Only the owner or root may do this.
    NotPermitted = 7, "operation not permitted";
    /// A name or path is too long.
    NameTooLong = 8, "name too long";
    /// Too many symbolic links.
    Loop = 9, "too many levels of symbolic links";
    /// The inode is gone, or the handle is from before it was replaced.
    Stale = 10, "stale file handle";
    /// An argument is invalid.
    Invalid = 11, "invalid argument";
    /// Source and target are on different file systems.
    CrossDevice = 12, "cross-device link";
    /// No such extended attribute.
    NoXattr = 13, "no such attribute";
    /// A value or list is too large.
    TooBig = 14, "too large";
    /// In use.
    Busy = 15, "busy";
    /// The server's disk is full.
    NoSpace = 16, "no space left on the server";
    /// The server's disk failed.
    Io = 17, "input/output error on the server";
    /// The operation is not supported by this server.
    Unsupported = 18, "operation not supported";
    /// Message malformed.
    Malformed = 19, "malformed message";
    /// The peer did not prove its key, or the key has expired or was revoked.
    Unauthenticated = 20, "the key is not accepted";
    /// No valid capability, or its rights do not cover this.
    Capability = 21, "the capability is missing, expired, forged or of another holder";
    /// No version in common.
    Version = 22, "no protocol version in common";
    /// This server does not do the operation, or the inode belongs to another server.
    WrongServer = 23, "sent to the wrong server";
    /// Too many links.
    TooManyLinks = 24, "too many links";
    /// File too large.
    FileTooBig = 25, "file too large";
    /// Read-only.
    ReadOnly = 26, "read-only file system";
    /// The server is stopping; try again later.
    ShuttingDown = 27, "the server is shutting down";
    /// The server failed by a fault of its own.
    Internal = 28, "internal error on the server";
    /// A limit of the server is reached.
    Limit = 29, "a limit of the server is reached";
    /// Another owner has a conflicting lock.
    Locked = 30, "locked by another owner";
    /// The wait for a lock would never end: its holders wait for this owner.
    Deadlock = 31, "waiting for the lock would deadlock";
    /// Locks of this open file are lost: the metadata server had given up this client.
    LockLost = 32, "locks of this open file are lost";
    /// The server cannot hold more locks.
    NoLocks = 33, "the server has no space for more locks";
    /// The server's storage is not the one that the cluster knows, or is an older copy.
    WrongStorage = 34, "not the storage that the cluster knows";
    /// The data was on a storage that is lost.
    Lost = 35, "the data is lost";
    /// The data on the server's disk differs from what was written.
    Damaged = 36, "the data is damaged";
    /// The sender's map of the cluster is older than the server's. The request was not executed; the sender
    /// fetches the map and repeats it.
    StaleMap = 37, "the map of the cluster is out of date";
    /// A limit of a user, a group or a directory tree is reached.
    Quota = 38, "disk quota exceeded";
}

impl Status {
    /// The status that says it to a peer of this version of the protocol.
    pub fn for_version(self, version: u8) -> Status {
        match self {
            Status::Quota if version < 5 => Status::Limit,
            status => status,
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

    #[test]
    fn numbers_are_dense_and_go_both_ways() {
        for (number, status) in Status::ALL.iter().enumerate() {
            assert_eq!(*status as usize, number);
            assert_eq!(Status::from_u32(number as u32), Some(*status));
        }
        assert_eq!(Status::from_u32(Status::ALL.len() as u32), None);
    }
}
