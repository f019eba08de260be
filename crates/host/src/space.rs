//! The space of file systems of this host.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Its size.
    pub bytes: u64,
    /// What is free.
    pub free_bytes: u64,
    /// What is free for others than root.
    pub available_bytes: u64,
}

/// The space of the file system that has `path`; `None` if that cannot be told.
pub fn space_of(path: &Path) -> Option<Space> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero bytes are a valid `statvfs`.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is a live C string, `stat` is live and writable.
    let result = unsafe { libc::statvfs(path.as_ptr(), &mut stat) };
    (result == 0).then_some(Space {
        bytes: stat.f_blocks * stat.f_frsize,
        free_bytes: stat.f_bfree * stat.f_frsize,
        available_bytes: stat.f_bavail * stat.f_frsize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_space_and_what_is_not_there_has_none() {
        let space = space_of(Path::new("/")).unwrap();
        assert!(space.bytes >= space.free_bytes && space.free_bytes >= space.available_bytes);
        assert_eq!(space_of(Path::new("/nowhere/at/all")), None);
    }
}
