//! Attributes and errors of both sides.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use weft_nfs_client::{Attr, FileKind, Time};

/// Times before it were set, and nothing has changed since.
const OLD: i64 = 1_000_000_000;

pub fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().expect("an error of the system")
}

/// How they differ.
pub fn compare_attr(there: &Attr, here: &Metadata) -> Option<String> {
    let kind = match here.file_type() {
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_symlink() => FileKind::Symlink,
        kind if kind.is_fifo() => FileKind::Fifo,
        _ => FileKind::File,
    };
    let mut different = Vec::new();
    let mut same = |what, there: i64, here: i64| {
        if there != here {
            different.push(format!("{what} {there}, here {here}"));
        }
    };
    same("kind", there.kind as i64, kind as i64);
    if kind != FileKind::Symlink {
        same("mode", there.mode.into(), (here.mode() & 0o7777).into());
    }
    same("links", there.nlink.into(), here.nlink() as i64);
    if kind == FileKind::File || kind == FileKind::Symlink {
        same("size", there.size_bytes as i64, here.len() as i64);
    }
    if here.mtime() < OLD || i64::from(there.mtime.seconds) < OLD {
        same("mtime", there.mtime.seconds.into(), here.mtime());
        same("its nanoseconds", there.mtime.nanoseconds.into(), here.mtime_nsec());
    }
    (!different.is_empty()).then(|| different.join("; "))
}

/// Sets times, of a link too.
pub fn set_times(at: &Path, atime: Time, mtime: Time) {
    let path = std::ffi::CString::new(at.as_os_str().as_encoded_bytes()).unwrap();
    let times = [atime, mtime]
        .map(|time| libc::timespec { tv_sec: time.seconds.into(), tv_nsec: time.nanoseconds.into() });
    // SAFETY: a string that ends, and two times.
    let set =
        unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}
