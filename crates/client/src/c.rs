//! What the front doors that speak C (libweft, the preload library, the mount) say in the same words: errno, `struct stat`, `d_type`,
//! and times to set.
//!
//! ```text
//!   Attr { kind: Directory, mode: 0o755, … } ──► stat.st_mode = S_IFDIR | 0o755, dirent.d_type = DT_DIR
//! ```

use libc::{c_int, mode_t, off_t, stat, timespec};
use weft_wire::messages::{Attr, FileKind, Time};

use crate::SetTime;

/// What programs are told to read and write at a time.
pub const PREFERRED_IO_BYTES: libc::blksize_t = 128 << 10;

/// Sets this thread's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// The bits of `st_mode` that say what an inode is.
pub fn type_bits(kind: FileKind) -> mode_t {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::Character => libc::S_IFCHR,
        FileKind::Block => libc::S_IFBLK,
    }
}

/// `d_type` of a directory entry.
pub fn entry_type(kind: FileKind) -> u8 {
    (type_bits(kind) >> 12) as u8
}

/// What `mknod` with this mode makes that is no regular file; `None` for a regular file, `Err` with an errno for what cannot be
/// made.
pub fn special_kind(mode: mode_t) -> Result<Option<FileKind>, c_int> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(None),
        libc::S_IFIFO => Ok(Some(FileKind::Fifo)),
        libc::S_IFSOCK => Ok(Some(FileKind::Socket)),
        libc::S_IFCHR => Ok(Some(FileKind::Character)),
        libc::S_IFBLK => Ok(Some(FileKind::Block)),
        _ => Err(libc::EINVAL),
    }
}

/// Attributes as `struct stat`; `st_dev` is 0.
pub fn stat_of(attr: &Attr) -> stat {
    // SAFETY: zeroed bytes are a valid `stat`.
    let mut status: stat = unsafe { std::mem::zeroed() };
    status.st_ino = attr.ino;
    status.st_mode = type_bits(attr.kind) | attr.mode;
    status.st_nlink = attr.nlink.into();
    status.st_uid = attr.uid;
    status.st_gid = attr.gid;
    status.st_rdev = attr.rdev.into();
    status.st_size = attr.size as off_t;
    status.st_blksize = PREFERRED_IO_BYTES;
    status.st_blocks = attr.size.div_ceil(512) as libc::blkcnt_t;
    (status.st_atime, status.st_atime_nsec) = (attr.atime.seconds, attr.atime.nanoseconds.into());
    (status.st_mtime, status.st_mtime_nsec) = (attr.mtime.seconds, attr.mtime.nanoseconds.into());
    (status.st_ctime, status.st_ctime_nsec) = (attr.ctime.seconds, attr.ctime.nanoseconds.into());
    status
}

/// A time as `utimensat` takes it; `None` for one that is to stay, `Err` with an errno for one that makes no sense.
pub fn time_to_set(time: &timespec) -> Result<Option<SetTime>, c_int> {
    match time.tv_nsec {
        libc::UTIME_OMIT => Ok(None),
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        nanoseconds @ 0..1_000_000_000 => {
            Ok(Some(SetTime::To(Time { seconds: time.tv_sec, nanoseconds: nanoseconds as u32 })))
        }
        _ => Err(libc::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_what_c_calls_them() {
        assert_eq!(entry_type(FileKind::Directory), libc::DT_DIR);
        assert_eq!(entry_type(FileKind::Symlink), libc::DT_LNK);
        assert_eq!(special_kind(libc::S_IFIFO | 0o644), Ok(Some(FileKind::Fifo)));
        assert_eq!(special_kind(0o644), Ok(None));
        assert_eq!(special_kind(libc::S_IFDIR), Err(libc::EINVAL));
    }

    #[test]
    fn times_to_set_may_be_now_or_left() {
        let time = |tv_nsec| timespec { tv_sec: 5, tv_nsec };
        assert_eq!(time_to_set(&time(libc::UTIME_OMIT)), Ok(None));
        assert_eq!(time_to_set(&time(libc::UTIME_NOW)), Ok(Some(SetTime::Now)));
        assert_eq!(time_to_set(&time(7)), Ok(Some(SetTime::To(Time { seconds: 5, nanoseconds: 7 }))));
        assert_eq!(time_to_set(&time(1_000_000_000)), Err(libc::EINVAL));
    }
}
