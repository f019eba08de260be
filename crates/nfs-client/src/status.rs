//! What NFS and MOUNT servers answer (RFC 1813, 2.6 and 5.2.1): its name, its errno, and what it means.

/// Declares the statuses: number, name, errno, meaning.
macro_rules! statuses {
    ($($number:literal $name:ident $errno:ident $meaning:literal,)*) => {
        const KNOWN: &[(u32, &str, i32, &str)] = &[$(($number, stringify!($name), libc::$errno, $meaning),)*];
    };
}

statuses! {
    1 NFS3ERR_PERM EPERM "only the owner or root may do this",
    2 NFS3ERR_NOENT ENOENT "no such file or directory",
    5 NFS3ERR_IO EIO "the server's storage failed",
    6 NFS3ERR_NXIO ENXIO "no such device",
    13 NFS3ERR_ACCES EACCES "permission denied for this user, or for this host",
    17 NFS3ERR_EXIST EEXIST "it exists already",
    18 NFS3ERR_XDEV EXDEV "the two are on different file systems",
    19 NFS3ERR_NODEV ENODEV "no such device",
    20 NFS3ERR_NOTDIR ENOTDIR "not a directory",
    21 NFS3ERR_ISDIR EISDIR "it is a directory",
    22 NFS3ERR_INVAL EINVAL "the server takes no such argument",
    27 NFS3ERR_FBIG EFBIG "larger than the server's files may be",
    28 NFS3ERR_NOSPC ENOSPC "no space left on the server",
    30 NFS3ERR_ROFS EROFS "exported read-only",
    31 NFS3ERR_MLINK EMLINK "too many links",
    63 NFS3ERR_NAMETOOLONG ENAMETOOLONG "the name is too long for the server",
    66 NFS3ERR_NOTEMPTY ENOTEMPTY "the directory is not empty",
    69 NFS3ERR_DQUOT EDQUOT "the user's quota is used up",
    70 NFS3ERR_STALE ESTALE "the file was removed, or is exported no more",
    71 NFS3ERR_REMOTE EREMOTE "it is on yet another server",
    10001 NFS3ERR_BADHANDLE ESTALE "the server does not know this handle; connect again",
    10002 NFS3ERR_NOT_SYNC EAGAIN "it was changed meanwhile",
    10003 NFS3ERR_BAD_COOKIE EINVAL "the place in the directory is valid no more; list it again",
    10004 NFS3ERR_NOTSUPP EOPNOTSUPP "the server does not offer this",
    10005 NFS3ERR_TOOSMALL EINVAL "a single entry is larger than was asked for",
    10006 NFS3ERR_SERVERFAULT EREMOTEIO "the server failed; its log may say why",
    10007 NFS3ERR_BADTYPE EINVAL "the server has no files of this kind",
    10008 NFS3ERR_JUKEBOX EAGAIN "the server needs more time; try again later",
}

/// What an NFS server answered instead of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// The server needs more time: the call is sent again.
    pub const JUKEBOX: Status = Status(10008);
    /// There is no such name.
    pub const NOENT: Status = Status(2);
    /// The name exists.
    pub const EXIST: Status = Status(17);

    fn known(self) -> Option<&'static (u32, &'static str, i32, &'static str)> {
        KNOWN.iter().find(|known| known.0 == self.0)
    }

    /// Its name in RFC 1813.
    pub fn name(self) -> String {
        self.known().map_or_else(|| format!("status {}", self.0), |known| known.1.to_string())
    }

    /// The same of the MOUNT protocol, whose statuses have the same numbers.
    pub fn mount_name(self) -> String {
        self.name().replace("NFS3ERR_", "MNT3ERR_")
    }

    /// The errno that says it best.
    pub fn errno(self) -> i32 {
        self.known().map_or(libc::EIO, |known| known.2)
    }

    /// What it means.
    pub fn meaning(self) -> &'static str {
        self.known().map_or("RFC 1813 has no such status", |known| known.3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_names_and_errnos() {
        assert_eq!(Status(70).name(), "NFS3ERR_STALE");
        assert_eq!((Status(10004).errno(), Status(63).errno()), (libc::EOPNOTSUPP, libc::ENAMETOOLONG));
        assert_eq!((Status(4711).name(), Status(4711).errno()), ("status 4711".to_string(), libc::EIO));
        assert_eq!(Status(13).mount_name(), "MNT3ERR_ACCES");
    }
}
