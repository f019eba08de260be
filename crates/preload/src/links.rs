//! Walks along paths with symbolic links that lead from one side to the other, which neither side can resolve
//! alone.

use std::ffi::{CString, c_int};

use weft_client::At;
use weft_wire::messages::FileKind;

use crate::cwd;
use crate::guard::{Errno, Outcome, address, system};
use crate::mounts::{Made, Mount};
use crate::path_text::normal;
use crate::paths::{Place, Target, absolute, elsewhere};

/// Limit of symbolic links between the two sides that one call follows.
pub(crate) const LINKS_MAX: usize = 40;

/// A path that is being walked.
struct Way {
    /// The part that has been walked, without symbolic links; empty at a root.
    done: Vec<u8>,
    /// The part ahead. It begins with a slash only if it starts at the root.
    rest: Vec<u8>,
}

impl Way {
    /// The whole path, from the root.
    fn whole(&self) -> Vec<u8> {
        if self.rest.starts_with(b"/") {
            self.rest.clone()
        } else {
            [&self.done, &b"/"[..], &self.rest].concat()
        }
    }
}

/// Walks a path name by name and through symbolic links, with `follow` also one at its end. `look` returns
/// the target of a name that is a link. `stop` ends the walk after a link. Returns the walked path, or the
/// result of `stop`.
fn walk<T>(
    mut way: Way,
    follow: bool,
    mut look: impl FnMut(&Way, &[u8]) -> Outcome<Option<Vec<u8>>>,
    stop: impl Fn(&Way) -> Option<T>,
) -> Outcome<Result<Vec<u8>, T>> {
    let mut links = 0;
    while let Some(start) = way.rest.iter().position(|byte| *byte != b'/') {
        let length = way.rest[start..].iter().take_while(|byte| **byte != b'/').count();
        let name = way.rest[start..start + length].to_vec();
        let mut rest = way.rest[start + length..].to_vec();
        let is_last = rest.iter().all(|byte| *byte == b'/');
        if let Some(mut goal) = look(&way, &name)?.filter(|_| follow || !is_last) {
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno(libc::ELOOP));
            }
            if goal.starts_with(b"/") {
                way.done.clear();
            }
            goal.append(&mut rest);
            way.rest = goal;
            if let Some(found) = stop(&way) {
                return Ok(Err(found));
            }
        } else {
            let done = normal(&[&way.done, &b"/"[..], &name].concat());
            let ahead = rest.iter().take_while(|byte| **byte == b'/').count();
            way = Way { done: if done == b"/" { Vec::new() } else { done }, rest: rest.split_off(ahead) };
        }
    }
    Ok(Ok(way.done))
}

/// The targets of links in Weft: `look` for a walk that begins in the directory `ino`.
fn links_from(made: &'static Made, mut ino: u64) -> impl FnMut(&Way, &[u8]) -> Outcome<Option<Vec<u8>>> {
    move |way, name| {
        if way.rest.starts_with(b"/") {
            ino = made.root;
        }
        if name == b"." {
            return Ok(None);
        }
        let at = At::child(ino, name);
        let attr = made.client.stat(at.clone(), false)?;
        if attr.kind == FileKind::Symlink {
            return Ok(Some(made.client.readlink(at)?));
        }
        ino = attr.ino;
        Ok(None)
    }
}

/// The path to walk, and the directory that it begins in.
fn way_of(target: &Target, made: &Made) -> (Way, u64) {
    match target.split_at_directory() {
        Some((before, rest)) => (Way { done: before.to_vec(), rest: rest.to_vec() }, target.directory()),
        None => (Way { done: Vec::new(), rest: target.full.clone() }, made.root),
    }
}

/// The path after the first symbolic link with an absolute target on the way, if there is one.
pub(crate) fn through_links(target: &Target, follow: bool) -> Outcome<Option<Place>> {
    let made = target.mount.made()?;
    let (way, ino) = way_of(target, made);
    let stop = |way: &Way| {
        let place = way.rest.starts_with(b"/").then(|| absolute(&way.rest))?;
        Some(if matches!(place, Place::Local) { elsewhere(way.rest.clone()) } else { place })
    };
    match walk(way, follow, links_from(made, ino), stop) {
        Ok(found) => Ok(found.err()),
        Err(Errno(libc::ELOOP)) => Err(Errno(libc::ELOOP)),
        Err(_) => Ok(None),
    }
}

/// The path from the mount's root without symbolic links, of an existing file; empty for the root.
pub(crate) fn true_path(target: &Target) -> Outcome<Vec<u8>> {
    let made = target.mount.made()?;
    let (way, ino) = way_of(target, made);
    let walked = walk(way, true, links_from(made, ino), |_| None::<()>)?;
    walked.map_err(|()| Errno(libc::ELOOP))
}

/// The path of a directory that is open or the current one. It was `before`, and the directory may have
/// moved. Empty for the root.
pub(crate) fn path_of_directory(mount: &'static Mount, ino: u64, before: &[u8]) -> Outcome<Vec<u8>> {
    let made = mount.made()?;
    // A process that may use a directory may know its path.
    let client = &made.as_root;
    if client.stat(made.at(before), true).is_ok_and(|attr| attr.ino == ino) {
        return Ok(before.to_vec());
    }
    let gone = |error: weft_client::Error| match error.errno() {
        libc::ESTALE => Errno(libc::ENOENT),
        _ => error.into(),
    };
    let mut path = Vec::new();
    let mut child = ino;
    while child != made.root {
        let parent = client.read_dir_page(child, (0, 0), 1, false).map_err(gone)?.parent;
        let mut entries = client.read_dir(At::ino(parent)).map_err(gone)?.flatten();
        let entry = entries.find(|entry| entry.ino == child).ok_or(Errno(libc::ENOENT))?;
        path = [b"/", &entry.name[..], &path].concat();
        if parent == child {
            return Err(Errno(libc::ENOENT));
        }
        child = parent;
    }
    Ok(path)
}

/// The place in Weft that a local path reaches through a symbolic link.
pub(crate) fn through_local_links(dirfd: c_int, path: &[u8], follow: bool) -> Option<Place> {
    let base = match path.first() {
        Some(b'/') => Vec::new(),
        _ if dirfd == libc::AT_FDCWD => cwd::of_kernel()?,
        _ => read_link(format!("/proc/self/fd/{dirfd}").as_bytes())?,
    };
    let in_weft = |way: &Way| Some(absolute(&way.whole())).filter(|place| matches!(place, Place::Weft(_)));
    let way = Way { done: base, rest: path.to_vec() };
    // Relative to a local directory's descriptor, which may be above the prefix.
    if let found @ Some(_) = in_weft(&way) {
        return found;
    }
    let look = |way: &Way, name: &[u8]| Ok(read_link(&normal(&[&way.done[..], b"/", name].concat())));
    walk(way, follow, look, in_weft).ok()?.err()
}

fn read_link(path: &[u8]) -> Option<Vec<u8>> {
    let name = CString::new(path).ok()?;
    let mut found = vec![0u8; libc::PATH_MAX as usize];
    let at = libc::AT_FDCWD as usize;
    let place = found.as_mut_ptr() as usize;
    let arguments = [at, address(name.as_ptr()), place, found.len(), 0, 0];
    let length = system(libc::SYS_readlinkat, arguments).ok()?;
    found.truncate(length);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_goes_through_links_and_ends_where_it_is_told() {
        let links = |_: &Way, name: &[u8]| -> Outcome<Option<Vec<u8>>> {
            Ok(match name {
                b"up" => Some(b"../x".to_vec()),
                b"top" => Some(b"/t/up".to_vec()),
                b"loop" => Some(b"loop".to_vec()),
                _ => None,
            })
        };
        let from = |rest: &[u8]| Way { done: b"/a".to_vec(), rest: rest.to_vec() };
        let whole = |path: &[u8], follow| walk(from(path), follow, links, |_| None::<()>);
        assert_eq!(whole(b"b/up/c", false), Ok(Ok(b"/a/x/c".to_vec())));
        assert_eq!(whole(b"b/up", false), Ok(Ok(b"/a/b/up".to_vec())));
        assert_eq!(whole(b"b/up", true), Ok(Ok(b"/a/x".to_vec())));
        assert_eq!(whole(b"top", true), Ok(Ok(b"/x".to_vec())));
        assert_eq!(whole(b"../..", true), Ok(Ok(Vec::new())));
        assert_eq!(whole(b"loop/x", false), Err(Errno(libc::ELOOP)));
        let to_root = |way: &Way| way.rest.starts_with(b"/").then(|| way.whole());
        assert_eq!(walk(from(b"b/top/c"), true, links, to_root), Ok(Err(b"/t/up/c".to_vec())));
    }
}
