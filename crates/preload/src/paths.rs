//! Decides which file system a path is in.
//!
//! ```text
//!   /weft/a/../b        Weft: a/../b from the root (the server walks, so a may be a symbolic link)
//!   /weft/../etc/hosts  leaves: /etc/hosts
//!   /tmp/../weft/x      enters: x
//!   x                   in the current directory, local or Weft; or in a descriptor's directory
//! ```
//!
//! This needs no system call and no server. Symbolic links from one side to the other are looked up only when
//! a name was not found: a link `/tmp/l -> /weft/a`, or one in Weft with an absolute target, which the server
//! cannot resolve.

use std::ffi::{CString, c_int};

use weft_client::At;

use crate::guard::{Errno, Outcome};
use crate::mounts::{self, Made, Mount};
use crate::path_text::{behind, leaves, normal};
use crate::{cwd, table};

/// A path in Weft.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) mount: &'static Mount,
    /// The inode of the directory that `path` begins in; 0: the mount's root.
    dir: u64,
    /// Relative.
    path: Vec<u8>,
    /// The path from the mount's root, beginning with a slash.
    pub(crate) full: Vec<u8>,
    /// The length of the part of `full` that leads to `dir`.
    dir_bytes: usize,
}

/// Where a path is.
pub(crate) enum Place {
    /// Not in Weft.
    Local,
    /// Not in Weft, at this other path.
    Elsewhere(CString),
    Weft(Target),
}

impl Target {
    /// The mount's connections, and the name for the client.
    pub(crate) fn at(&self) -> Outcome<(&'static Made, At<'_>)> {
        let made = self.mount.made()?;
        let dir = if self.dir == 0 { made.root } else { self.dir };
        Ok((made, At::child(dir, &self.path)))
    }

    /// Whether it is a directory that is identified without a name: an open one, or the current one.
    pub(crate) fn is_known_directory(&self) -> bool {
        self.dir != 0 && self.path.split(|byte| *byte == b'/').all(|name| matches!(name, b"" | b"."))
    }

    /// The directory that the path begins in; 0 for the mount's root.
    pub(crate) fn directory(&self) -> u64 {
        self.dir
    }

    /// The path of the directory that the path begins in, and the path from there; `None` if it begins at the
    /// mount's root, or is that directory.
    pub(crate) fn split_at_directory(&self) -> Option<(&[u8], &[u8])> {
        (self.dir != 0 && !self.path.is_empty()).then(|| (&self.full[..self.dir_bytes], &self.path[..]))
    }

    /// Whether the path must be a directory, since it ends with a slash.
    pub(crate) fn ends_with_slash(&self) -> bool {
        self.path.ends_with(b"/")
    }

    /// As [`Target::at`], for something that will be created. The mount's root exists.
    pub(crate) fn at_new(&self) -> Outcome<(&'static Made, At<'_>)> {
        if normal(&self.full) == b"/" { Err(Errno(libc::EEXIST)) } else { self.at() }
    }

    /// The path as the program would write it.
    pub(crate) fn shown(&self) -> Vec<u8> {
        let full = normal(&self.full);
        let full = if full == b"/" { &b""[..] } else { &full };
        [&self.mount.prefix, full].concat()
    }
}

/// The place of a path in a mount, which may leave the mount.
pub(crate) fn in_mount(mount: &'static Mount, full: Vec<u8>) -> Place {
    if leaves(&full) {
        let outside = normal(&[&mount.prefix[..], b"/", &full].concat());
        let again = absolute(&outside);
        return if matches!(again, Place::Local) { elsewhere(outside) } else { again };
    }
    let path = full.iter().position(|byte| *byte != b'/').map_or(&b""[..], |start| &full[start..]);
    Place::Weft(Target { mount, dir: 0, path: path.to_vec(), full, dir_bytes: 0 })
}

/// The place of a path relative to a directory of a mount, which may leave the mount. `dir_path` is the
/// directory's path from the mount's root.
fn below(mount: &'static Mount, dir: u64, dir_path: &[u8], path: &[u8]) -> Place {
    let full = [dir_path, b"/", path].concat();
    if dir == 0 || leaves(&full) {
        return in_mount(mount, full);
    }
    Place::Weft(Target { mount, dir, path: path.to_vec(), full, dir_bytes: dir_path.len() })
}

/// The place of a path that left a mount.
pub(crate) fn elsewhere(path: Vec<u8>) -> Place {
    CString::new(path).map_or(Place::Local, Place::Elsewhere)
}

/// The place of an absolute path.
pub(crate) fn absolute(path: &[u8]) -> Place {
    for mount in mounts::all() {
        if let Some(rest) = behind(&mount.prefix, path) {
            return in_mount(mount, rest.to_vec());
        }
    }
    let odd = |pair: &[u8]| matches!(pair, b"//" | b"/.");
    if path.windows(2).any(odd) {
        let tidy = normal(path);
        for mount in mounts::all() {
            if let Some(rest) = behind(&mount.prefix, &tidy) {
                let slash: &[u8] = if path.ends_with(b"/") { b"/" } else { b"" };
                return in_mount(mount, [rest, slash].concat());
            }
        }
    }
    Place::Local
}

/// The place of a path relative to a descriptor.
pub(crate) fn resolve(dirfd: c_int, path: &[u8]) -> Place {
    if path.first() == Some(&b'/') {
        return by_descriptor(path).unwrap_or_else(|| absolute(path));
    }
    if path.starts_with(b"weft:")
        && let Some((mount, full)) = mounts::of_url(path)
    {
        return in_mount(mount, full);
    }
    if dirfd == libc::AT_FDCWD {
        return match cwd::inside() {
            Some(here) if !path.is_empty() => below(here.mount, here.ino, &here.path, path),
            Some(_) => Place::Local,
            None if path.starts_with(b"..") => from_local_directory(path),
            None => Place::Local,
        };
    }
    let Some(open) = table::find_named(dirfd) else { return Place::Local };
    let shared = open.shared();
    below(open.mount, shared.ino, shared.texts().path, path)
}

/// The descriptor that a path such as `/dev/stdin` names.
pub(crate) fn descriptor_of(path: &[u8]) -> Option<c_int> {
    match path {
        b"/dev/stdin" => Some(0),
        b"/dev/stdout" => Some(1),
        b"/dev/stderr" => Some(2),
        _ => {
            let digits = path.strip_prefix(b"/dev/fd/").or_else(|| path.strip_prefix(b"/proc/self/fd/"))?;
            std::str::from_utf8(digits).ok()?.parse().ok()
        }
    }
}

/// The open file of such a path, if it is in Weft: the file itself, not the memory behind the descriptor.
fn by_descriptor(path: &[u8]) -> Option<Place> {
    let open = table::find_named(descriptor_of(path)?)?;
    let shared = open.shared();
    let full = shared.texts().path.to_vec();
    let dir_bytes = full.len();
    Some(Place::Weft(Target { mount: open.mount, dir: shared.ino, path: Vec::new(), full, dir_bytes }))
}

/// The place of `../weft/x` from a local directory.
fn from_local_directory(path: &[u8]) -> Place {
    let Some(here) = cwd::of_kernel() else { return Place::Local };
    absolute(&normal(&[&here[..], b"/", path].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_have_names() {
        assert_eq!(descriptor_of(b"/dev/stdin"), Some(0));
        assert_eq!(descriptor_of(b"/proc/self/fd/17"), Some(17));
        assert_eq!(descriptor_of(b"/dev/fd/x"), None);
        assert_eq!(descriptor_of(b"/dev/null"), None);
    }
}
