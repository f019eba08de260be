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

use std::ffi::{CStr, CString, c_char, c_int};

use weft_client::At;
use weft_wire::messages::FileKind;

use crate::guard::{Errno, Outcome, Returned, address, errno, is_inside, system, within};
use crate::mounts::{self, Made, Mount};
use crate::{cwd, table};

/// Limit of symbolic links between the two sides that one call follows.
const LINKS_MAX: usize = 40;

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

/// Normalises an absolute path: without empty names, `.` and `..`, and without a final slash.
pub(crate) fn normal(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let mut normal = Vec::with_capacity(path.len() + 1);
    for name in names {
        normal.push(b'/');
        normal.extend_from_slice(name);
    }
    if normal.is_empty() {
        normal.push(b'/');
    }
    normal
}

/// Removes empty names and `.` from a path, which may make it much shorter. `..` stays, since a symbolic link
/// may precede it.
pub(crate) fn tidy(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.flat_map(|name| [&b"/"[..], name]).flatten().copied().collect()
}

/// The part of a path after a prefix, with its slash; `None` if the path is not below it.
fn behind<'a>(prefix: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest[0] == b'/').then_some(rest)
}

/// Whether a path goes above its start.
fn leaves(path: &[u8]) -> bool {
    let mut depth = 0i32;
    path.split(|byte| *byte == b'/').any(|name| {
        match name {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        depth < 0
    })
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

fn elsewhere(path: Vec<u8>) -> Place {
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
fn descriptor_of(path: &[u8]) -> Option<c_int> {
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

/// Calls `local` or `weft` for the place of a path. `follow`: also follow a symbolic link at its end.
///
/// # Safety
/// The path is NULL or ends with a zero.
pub(crate) unsafe fn on_path<T: Returned + PartialEq>(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    local: impl Fn(c_int, *const c_char) -> T,
    weft: impl Fn(&Target) -> Outcome<T>,
) -> T {
    // SAFETY: as the caller promises.
    let Some(mut place) = (unsafe { place_of(dirfd, path) }) else { return local(dirfd, path) };
    // SAFETY: as the caller promises.
    if !follow && descriptor_of(unsafe { CStr::from_ptr(path) }.to_bytes()).is_some() {
        return local(dirfd, path);
    }
    for _ in 0..LINKS_MAX {
        match &place {
            Place::Local => {
                let result = local(dirfd, path);
                if result != T::FAILED || errno() != libc::ENOENT || !mounts::has_prefix() {
                    return result;
                }
                // SAFETY: as the caller promises.
                let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
                match within(|| Ok(through_local_links(dirfd, bytes, follow))) {
                    Ok(Some(target)) => place = target,
                    _ => {
                        weft_client::c::set_errno(libc::ENOENT);
                        return result;
                    }
                }
            }
            Place::Elsewhere(other) => return local(libc::AT_FDCWD, other.as_ptr()),
            Place::Weft(target) => {
                let before = errno();
                let outcome = within(|| match weft(target) {
                    Err(Errno(libc::ENOENT | libc::ENOTDIR))
                        if let Some(next) = through_links(target, follow)? =>
                    {
                        Ok(Err(next))
                    }
                    // The directory that the path begins in was removed.
                    Err(Errno(libc::ESTALE)) if target.dir != 0 => Err(Errno(libc::ENOENT)),
                    other => other.map(Ok),
                });
                match outcome {
                    Ok(Ok(value)) => {
                        weft_client::c::set_errno(before);
                        return value;
                    }
                    Ok(Err(next)) => place = next,
                    Err(Errno(errno)) => {
                        weft_client::c::set_errno(errno);
                        return T::FAILED;
                    }
                }
            }
        }
    }
    weft_client::c::set_errno(libc::ELOOP);
    T::FAILED
}

/// The place of a path; `None` if it is certainly not in Weft.
///
/// # Safety
/// The path is NULL or ends with a zero.
pub(crate) unsafe fn place_of(dirfd: c_int, path: *const c_char) -> Option<Place> {
    if path.is_null() || is_inside() {
        return None;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if bytes.len() >= libc::PATH_MAX as usize {
        // The kernel reports the error.
        return None;
    }
    let plain = !mounts::has_prefix() && !bytes.starts_with(b"weft:") && !bytes.is_empty();
    if plain && (bytes.starts_with(b"/") || dirfd == libc::AT_FDCWD && !cwd::is_inside()) {
        return None;
    }
    within(|| Ok(resolve(dirfd, bytes))).ok()
}

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

impl Target {
    /// The path to walk, and the directory that it begins in.
    fn way(&self, made: &Made) -> (Way, u64) {
        if self.dir == 0 || self.path.is_empty() {
            return (Way { done: Vec::new(), rest: self.full.clone() }, made.root);
        }
        (Way { done: self.full[..self.dir_bytes].to_vec(), rest: self.path.clone() }, self.dir)
    }
}

/// The path after the first symbolic link with an absolute target on the way, if there is one.
pub(crate) fn through_links(target: &Target, follow: bool) -> Outcome<Option<Place>> {
    let made = target.mount.made()?;
    let (way, ino) = target.way(made);
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
    let (way, ino) = target.way(made);
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
        let parent = client.read_dir_page(child, 0, 1, false).map_err(gone)?.parent;
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
fn through_local_links(dirfd: c_int, path: &[u8], follow: bool) -> Option<Place> {
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
    fn paths_are_made_plain() {
        for (path, plain) in
            [("/", "/"), ("", "/"), ("//a///b/", "/a/b"), ("/a/./b/../c", "/a/c"), ("/../..", "/")]
        {
            assert_eq!(normal(path.as_bytes()), plain.as_bytes(), "{path}");
        }
        assert_eq!(tidy(b"/./a//b/../c/"), b"/a/b/../c");
        assert_eq!(tidy(b"/"), b"");
    }

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

    #[test]
    fn a_path_leaves_by_more_dots_than_names() {
        assert!(!leaves(b"/a/../b") && !leaves(b"") && !leaves(b"/a/b/../.."));
        assert!(leaves(b"/..") && leaves(b"/a/../../b") && leaves(b"../x/y/z"));
    }

    #[test]
    fn descriptors_have_names() {
        assert_eq!(descriptor_of(b"/dev/stdin"), Some(0));
        assert_eq!(descriptor_of(b"/proc/self/fd/17"), Some(17));
        assert_eq!(descriptor_of(b"/dev/fd/x"), None);
        assert_eq!(descriptor_of(b"/dev/null"), None);
    }

    #[test]
    fn a_prefix_ends_where_a_name_ends() {
        assert_eq!(behind(b"/weft", b"/weft/a"), Some(&b"/a"[..]));
        assert_eq!(behind(b"/weft", b"/weft"), Some(&b""[..]));
        assert_eq!(behind(b"/weft", b"/wefts"), None);
        assert_eq!(behind(b"/weft", b"/we"), None);
    }
}
