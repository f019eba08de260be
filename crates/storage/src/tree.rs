//! A tree of files by inode number: data files, and their sidecars.
//!
//! ```text
//!   9e/37/000000000000012a      inode 298
//! ```
//!
//! The two directory levels are the first two bytes, in hex, of `(ino >> 8) * 0x9e3779b97f4a7c15` (64 bits, wrapping):
//! 65,536 directories, made when first needed. A file's name is the inode number as 16 hex digits.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

/// The place of an object in the order of listings, and of its data file in the directory tree: the
/// first byte of the hash names the outer directory, the second the inner one. 256 numbers in a row
/// share a place, so that files made one after the other rarely need a new directory.
pub(crate) fn fan_out(ino: u64) -> u16 {
    // Fibonacci hashing: the high bits of the product depend on all bits of the number.
    ((ino >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

/// What was found, or `None` where nothing is there.
pub(crate) fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a file, made with the directories above it if it is missing.
pub(crate) fn create_in(directory: &File, ino: u64) -> io::Result<File> {
    let name = file_name(ino);
    match open_at(directory, &name, libc::O_RDWR | libc::O_CREAT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => return result,
    }
    make_directory(directory, &name[..2])?;
    make_directory(directory, &name[..5])?;
    open_at(directory, &name, libc::O_RDWR | libc::O_CREAT)
}

/// Removes a file; says whether there was one.
pub(crate) fn remove_in(directory: &File, ino: u64) -> io::Result<bool> {
    let name = c_string(&file_name(ino));
    // SAFETY: `name` is a live C string.
    match unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) } {
        0 => Ok(true),
        _ => if_there(Err(io::Error::last_os_error())).map(|removed: Option<bool>| removed.is_some()),
    }
}

/// Opens what has this name below a directory.
pub(crate) fn open_at(directory: &File, name: &str, flags: i32) -> io::Result<File> {
    let name = c_string(name);
    // SAFETY: `name` is a live C string.
    let fd = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn make_directory(directory: &File, name: &str) -> io::Result<()> {
    let name = c_string(name);
    // SAFETY: `name` is a live C string.
    match unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), 0o700) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            error => Err(error),
        },
    }
}

/// At most `max` of what `examine` gives for the files below a directory, in order of (fan-out, ino), after `after`.
pub(crate) fn list_in<T>(
    directory: &Path,
    after: Option<u64>,
    max: usize,
    examine: impl Fn(u64) -> io::Result<Option<T>>,
) -> io::Result<Vec<T>> {
    let start = after.map(fan_out).unwrap_or(0);
    let mut found = Vec::new();
    for outer in hex_names::<2>(directory)?.into_iter().filter(|outer| *outer >= u64::from(start >> 8)) {
        let outer_path = directory.join(format!("{outer:02x}"));
        for inner in hex_names::<2>(&outer_path)? {
            let place = (outer << 8 | inner) as u16;
            if place < start {
                continue;
            }
            for ino in hex_names::<16>(&outer_path.join(format!("{inner:02x}")))? {
                if after.is_some_and(|after| (place, ino) <= (start, after)) {
                    continue;
                }
                found.extend(examine(ino)?);
                if found.len() >= max {
                    return Ok(found);
                }
            }
        }
    }
    Ok(found)
}

/// Whether a directory has any of the outer directories of such a tree.
pub(crate) fn has_places(directory: &Path) -> io::Result<bool> {
    Ok(!hex_names::<2>(directory)?.is_empty())
}

/// `xx/yy/<ino>`, relative to the data directory.
pub(crate) fn file_name(ino: u64) -> String {
    let place = fan_out(ino);
    format!("{:02x}/{:02x}/{ino:016x}", place >> 8, place & 0xff)
}

/// The name of a file as the kernel wants it.
pub(crate) fn c_string(name: &str) -> CString {
    CString::new(name).expect("names of data files are hex digits and slashes")
}

/// The entries of a directory that are lower-case hex of exactly `DIGITS` digits, as sorted numbers.
/// A directory that is gone is empty.
fn hex_names<const DIGITS: usize>(path: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => result?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| name.len() == DIGITS) else { continue };
        if name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
            numbers.extend(u64::from_str_radix(name, 16).ok());
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}
