//! From a path to what it names: one walk per operation, so one round trip per operation for the client.
//!
//! ```text
//!   At { dir: 1, path: "a/link/../f" }     a -> directory 7; link -> symlink "/b" -> root, then b -> directory 9;
//!                                          .. -> its parent; f: the last name, given back with the directory
//! ```

use crate::MetaError;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::inode::{Entry, Inode, Kind, ROOT_INO};
use crate::op::Op;
use crate::permission::{EXECUTE, require};

/// The longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest path.
pub const PATH_BYTES_MAX: usize = 4096;
/// The longest target of a symbolic link.
pub const TARGET_BYTES_MAX: usize = 4095;
/// How many symbolic links one walk follows.
pub const SYMLINKS_MAX: u32 = 40;

/// How many names one walk passes, those in the targets of symbolic links included: more than any path has without links.
/// A walk holds up everybody else.
pub const WALK_NAMES_MAX: u32 = 4096;

/// A file by path: relative to the directory `dir`; from the root if the path begins with a slash; `dir` itself (any
/// kind of inode) if the path is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At<'a> {
    /// Where the path starts.
    pub dir: u64,
    /// Zero or more names between slashes.
    pub path: &'a [u8],
}

impl<'a> At<'a> {
    /// The inode itself.
    pub fn ino(ino: u64) -> At<'static> {
        At { dir: ino, path: b"" }
    }

    /// A path below a directory.
    pub fn new(dir: u64, path: &'a (impl AsRef<[u8]> + ?Sized)) -> At<'a> {
        At { dir, path: path.as_ref() }
    }
}

/// When a symbolic link in the last place is followed (one in the middle always is).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    Always,
    /// Only if the path goes on with a slash, which asks for a directory.
    BeforeSlash,
    /// Unless the path goes on with a slash: a file cannot be made there, whatever the link leads to.
    NotBeforeSlash,
    Never,
}

/// How a path ended if not with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Empty,
    Root,
    Dot,
    DotDot,
}

/// Where a walk ended.
pub(crate) enum Walked {
    /// At an inode without a last name: empty path, `.`, `..`, `/`.
    Itself { inode: Inode, end: End },
    /// At a name in a directory; `slash` if the path ended with one, so only a directory will do.
    Name { dir: Inode, name: Vec<u8>, entry: Option<Entry>, slash: bool },
}

impl<E: Engine> Op<'_, E> {
    /// Walks to the last name of `at`. The caller needs search permission on every directory passed.
    pub(crate) fn walk(&mut self, caller: &Caller, at: At, follow: Follow) -> Result<Walked, MetaError> {
        if at.path.len() > PATH_BYTES_MAX {
            return Err(MetaError::NameTooLong);
        }
        if at.path.contains(&0) {
            return Err(MetaError::Invalid("a path with a zero byte"));
        }
        let mut dir = self.need(at.dir)?;
        let mut end = End::Empty;
        let mut path = std::borrow::Cow::Borrowed(at.path);
        let mut position = 0;
        let mut links = 0;
        let mut names = 0;
        loop {
            if position == 0 && path.first() == Some(&b'/') {
                dir = self.need_dir(ROOT_INO)?;
            }
            let Some((start, stop)) = next_name(&path, position) else {
                if position > 0 || path.first() == Some(&b'/') {
                    end = if end == End::Empty { End::Root } else { end };
                    require_dir(&dir)?;
                }
                return Ok(Walked::Itself { inode: dir, end });
            };
            names += 1;
            if names > WALK_NAMES_MAX {
                return Err(MetaError::Loop);
            }
            require_dir(&dir)?;
            require(caller, &dir, EXECUTE)?;
            let name = &path[start..stop];
            position = stop;
            match name {
                b"." => end = End::Dot,
                b".." => {
                    dir = self.need_dir(dir.parent)?;
                    end = End::DotDot;
                }
                _ if name.len() > NAME_BYTES_MAX => return Err(MetaError::NameTooLong),
                _ => {
                    let entry = self.entry(dir.ino, name)?;
                    let last = next_name(&path, stop).is_none();
                    let slash = last && stop < path.len();
                    let through = !last
                        || match follow {
                            Follow::Always => true,
                            Follow::BeforeSlash => slash,
                            Follow::NotBeforeSlash => !slash,
                            Follow::Never => false,
                        };
                    match entry {
                        Some(entry) if entry.kind == Kind::Symlink && through => {
                            links += 1;
                            if links > SYMLINKS_MAX {
                                return Err(MetaError::Loop);
                            }
                            path = self.splice(entry.ino, &path[stop..])?.into();
                            position = 0;
                        }
                        _ if last => {
                            return Ok(Walked::Name { name: name.to_vec(), dir, entry, slash });
                        }
                        Some(entry) => {
                            dir = self.need(entry.ino)?;
                            end = End::Dot;
                        }
                        None => return Err(MetaError::NotFound),
                    }
                }
            }
        }
    }

    /// The path that remains once a symbolic link's target replaces what led to it; `rest` is empty or begins with a
    /// slash.
    fn splice(&mut self, link: u64, rest: &[u8]) -> Result<Vec<u8>, MetaError> {
        let target = self.need(link)?.target.ok_or(MetaError::Stale)?;
        let mut path = target.into_vec();
        path.extend_from_slice(rest);
        if path.len() > PATH_BYTES_MAX + TARGET_BYTES_MAX {
            return Err(MetaError::NameTooLong);
        }
        Ok(path)
    }

    /// The existing inode `at` names.
    pub(crate) fn resolve(&mut self, caller: &Caller, at: At, follow: Follow) -> Result<Inode, MetaError> {
        match self.walk(caller, at, follow)? {
            Walked::Itself { inode, .. } => Ok(inode),
            Walked::Name { entry: None, .. } => Err(MetaError::NotFound),
            Walked::Name { entry: Some(entry), slash, .. } => {
                let inode = self.need(entry.ino)?;
                if slash {
                    require_dir(&inode)?;
                }
                Ok(inode)
            }
        }
    }
}

pub(crate) fn require_dir(inode: &Inode) -> Result<(), MetaError> {
    if inode.is_dir() { Ok(()) } else { Err(MetaError::NotDirectory) }
}

/// Start and end of the next name at or after `position`.
fn next_name(path: &[u8], position: usize) -> Option<(usize, usize)> {
    let start = position + path[position..].iter().position(|byte| *byte != b'/')?;
    let stop =
        path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |length| start + length);
    Some((start, stop))
}
