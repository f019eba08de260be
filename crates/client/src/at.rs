//! How an operation names an inode.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use weft_wire::messages::{self, ROOT_INO};

/// A name: a directory's inode and a path relative to it. The metadata server walks the path, so that an operation is one
/// round trip however deep it goes.
///
/// ```
/// use weft_client::At;
/// let from_root: At = "/a/b".into();
/// let in_directory = At::child(7, b"b");
/// let itself = At::ino(7);
/// # let _ = (from_root, in_directory, itself);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At<'a> {
    dir: u64,
    path: Cow<'a, [u8]>,
    /// How messages name it.
    shown: Option<&'a OsStr>,
}

impl<'a> At<'a> {
    /// A path from the root of the file system; leading slashes are not needed.
    pub fn path(path: &'a (impl AsRef<OsStr> + ?Sized)) -> At<'a> {
        At { dir: ROOT_INO, path: Cow::Borrowed(path.as_ref().as_bytes()), shown: None }
    }

    /// An inode itself.
    pub fn ino(ino: u64) -> At<'static> {
        At { dir: ino, path: Cow::Borrowed(b""), shown: None }
    }

    /// A name, or a relative path, in the directory `dir`.
    pub fn child(dir: u64, name: &'a [u8]) -> At<'a> {
        At { dir, path: Cow::Borrowed(name), shown: None }
    }

    /// The same, which errors call by a name that says more than an inode's number.
    pub fn shown_as(self, name: &'a (impl AsRef<OsStr> + ?Sized)) -> At<'a> {
        At { shown: Some(name.as_ref()), ..self }
    }

    /// The inode's number where it is named by that alone.
    pub(crate) fn number(&self) -> Option<u64> {
        self.path.is_empty().then_some(self.dir)
    }

    pub(crate) fn to_wire(&self) -> messages::At {
        let leading = self.path.iter().take_while(|byte| **byte == b'/').count();
        // An empty path is the inode itself, which an operation on a name refuses with "not found". The root has a name.
        let is_root = self.dir == ROOT_INO && leading > 0 && leading == self.path.len();
        let path = if is_root { b"/".to_vec() } else { self.path[leading..].to_vec() };
        messages::At { dir: self.dir, path }
    }
}

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(shown) = self.shown {
            return write!(f, "{}", shown.display());
        }
        let path = String::from_utf8_lossy(&self.path);
        match (self.dir, path.is_empty()) {
            (ROOT_INO, _) => write!(f, "/{}", path.trim_start_matches('/')),
            (dir, true) => write!(f, "inode {dir}"),
            (dir, false) => write!(f, "{path} in inode {dir}"),
        }
    }
}

/// Texts and paths name what they lead to from the root.
macro_rules! from_paths {
    ($($path:ty),*) => { $(
        impl<'a> From<&'a $path> for At<'a> {
            fn from(path: &'a $path) -> At<'a> {
                At::path(path)
            }
        }
    )* };
}

from_paths!(str, OsStr, Path, PathBuf, String, OsString);

impl<'a> From<&'a [u8]> for At<'a> {
    fn from(path: &'a [u8]) -> At<'a> {
        At { dir: ROOT_INO, path: Cow::Borrowed(path), shown: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_from_the_root_with_or_without_a_slash() {
        for text in ["/a/b", "a/b", "//a/b"] {
            assert_eq!(At::from(text).to_wire(), messages::At { dir: ROOT_INO, path: b"a/b".to_vec() });
            assert_eq!(At::from(text).to_string(), "/a/b");
        }
        assert_eq!(At::ino(9).to_wire(), messages::At { dir: 9, path: vec![] });
        assert_eq!(At::child(9, b"x").to_string(), "x in inode 9");
        assert_eq!(At::child(9, b"x").shown_as("/dir/x").to_string(), "/dir/x");
        assert_eq!(At::from("/").to_string(), "/");
    }
}
