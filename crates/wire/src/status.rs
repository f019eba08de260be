//! How an operation ended, in terms that every edge (errno in C and FUSE, nfsstat3, Rust) can translate once.

macro_rules! statuses {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Result of an operation. Numbers are part of the wire format and never change their meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Status { $($(#[doc = $doc])* $name = $number,)* }

        impl Status {
            /// Every status, in order of number.
            pub const ALL: &'static [Status] = &[$(Status::$name),*];

            /// From the number on the wire.
            pub fn from_u32(number: u32) -> Option<Status> {
                match number { $($number => Some(Status::$name),)* _ => None }
            }

            /// A short text for people.
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
    Exists = 2, "it exists already";
    /// A directory was needed.
    NotDirectory = 3, "not a directory";
    /// A directory is not fit for this.
    IsDirectory = 4, "is a directory";
    /// The directory has entries.
    NotEmpty = 5, "directory not empty";
    /// Permission bits forbid it.
    Access = 6, "permission denied";
    /// Only the owner or root may.
    NotPermitted = 7, "operation not permitted";
    /// A name or path is too long.
    NameTooLong = 8, "name too long";
    /// Too many symbolic links.
    Loop = 9, "too many levels of symbolic links";
    /// The inode is gone, or the handle is from before it was replaced.
    Stale = 10, "stale file handle";
    /// An argument makes no sense.
    Invalid = 11, "invalid argument";
    /// Rename across what cannot be crossed.
    CrossDevice = 12, "cross-device link";
    /// No such extended attribute.
    NoXattr = 13, "no such attribute";
    /// Value or list does not fit.
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
    /// The peer did not prove its key, which may have expired or be revoked, or asked before it did.
    Unauthenticated = 20, "the key is not accepted";
    /// No valid capability, or its rights do not cover this.
    Capability = 21, "capability missing, expired, forged or of another";
    /// No version in common.
    Version = 22, "no protocol version in common";
    /// This server does not do that operation, or the inode is another server's.
    WrongServer = 23, "sent to the wrong server";
    /// Too many links.
    TooManyLinks = 24, "too many links";
    /// File too large.
    FileTooBig = 25, "file too large";
    /// Read-only.
    ReadOnly = 26, "read-only file system";
    /// The server is stopping; try another time.
    ShuttingDown = 27, "the server is shutting down";
    /// The server failed in a way that is its own fault.
    Internal = 28, "internal error of the server";
    /// Quota or a bound of the server is reached.
    Limit = 29, "a limit of the server is reached";
    /// Another owner has a lock that is in the way.
    Locked = 30, "locked by another";
    /// The wait for a lock would never end: those who are waited for wait for this owner.
    Deadlock = 31, "the wait for the lock would never end";
    /// Locks of this handle are lost: the metadata server had given up this client.
    LockLost = 32, "locks of this open file are lost";
    /// The server has no room for more locks.
    NoLocks = 33, "no room for more locks";
    /// The server's storage is not the one that the cluster knows, or is older.
    WrongStorage = 34, "not the storage that the cluster knows";
    /// The data was on a storage that is gone.
    Lost = 35, "the data is lost";
    /// What is on the server's disk is not what was written.
    Damaged = 36, "the data is damaged";
    /// The sender goes by an older map of the cluster than the server. The request was not executed: the sender fetches the map and
    /// repeats it.
    StaleMap = 37, "the map of the cluster is out of date";
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
