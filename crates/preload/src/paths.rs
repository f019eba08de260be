//! Which file system a path is in.
//!
//! ```text
//!   /weft/a/../b        Weft: a/../b from the root (the server walks, so a may be a symbolic link)
//!   /weft/../etc/hosts  leaves: /etc/hosts
//!   /tmp/../weft/x      enters: x
//!   x                   in the current directory, here or there; or in a directory's descriptor
//! ```
//!
//! That much needs no system call and no server. Symbolic links that lead from one side to the other are looked for only when
//! a name was not found: a link `/tmp/l -> /weft/a`, or one in Weft with an absolute target, which the server does not know.

use std::ffi::{CStr, CString, c_char, c_int};

use weft_client::At;
use weft_wire::messages::FileKind;

use crate::guard::{Errno, Outcome, Returned, address, errno, is_inside, system, within};
use crate::mounts::{self, Made, Mount};
use crate::{cwd, table};

/// Symbolic links that one call follows from one side to the other.
const LINKS_MAX: usize = 40;

/// A path in Weft.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) mount: &'static Mount,
    /// Where `path` begins; 0: at the mount's root.
    dir: u64,
    /// Relative.
    path: Vec<u8>,
    /// The path from the mount's root, beginning with a slash.
    pub(crate) full: Vec<u8>,
}

/// Where a path leads.
pub(crate) enum Place {
    /// Nothing to do with Weft.
    Local,
    /// Here, by another path.
    Elsewhere(CString),
    Weft(Target),
}

impl Target {
    /// The mount's connections and the name as the client takes it.
    pub(crate) fn at(&self) -> Outcome<(&'static Made, At<'_>)> {
        let made = self.mount.made()?;
        let dir = if self.dir == 0 { made.root } else { self.dir };
        Ok((made, At::child(dir, &self.path)))
    }

    /// As [`Target::at`], for something that is to be made there; the mount's root is there.
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

/// An absolute path without empty names, `.` and `..`; no slash at its end.
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

/// What lies behind a prefix, with its slash; `None` where the path is not below it.
fn behind<'a>(prefix: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest[0] == b'/').then_some(rest)
}

fn has_dots(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b"..")
}

/// Whether names of a path go up above where it begins.
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

/// A path in a mount, which may leave it.
pub(crate) fn in_mount(mount: &'static Mount, full: Vec<u8>) -> Place {
    if leaves(&full) {
        let outside = normal(&[&mount.prefix[..], b"/", &full].concat());
        let again = absolute(&outside);
        return if matches!(again, Place::Local) { elsewhere(outside) } else { again };
    }
    let path = full.iter().position(|byte| *byte != b'/').map_or(&b""[..], |start| &full[start..]);
    Place::Weft(Target { mount, dir: 0, path: path.to_vec(), full })
}

fn elsewhere(path: Vec<u8>) -> Place {
    CString::new(path).map_or(Place::Local, Place::Elsewhere)
}

/// Where an absolute path leads.
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

/// Where a path leads from a directory's descriptor.
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
            Some((mount, dir)) if !path.is_empty() => in_mount(mount, [&dir[..], b"/", path].concat()),
            Some(_) => Place::Local,
            None if path.starts_with(b"..") => from_local_directory(path),
            None => Place::Local,
        };
    }
    let Some(open) = table::find_named(dirfd) else { return Place::Local };
    let shared = open.shared();
    let full = [shared.texts().path, b"/", path].concat();
    if has_dots(path) {
        return in_mount(open.mount, full);
    }
    Place::Weft(Target { mount: open.mount, dir: shared.ino, path: path.to_vec(), full })
}

/// The descriptor that a path names, as `/dev/stdin` does.
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

/// What is open there, if it is Weft's: the file itself, not the memory behind the descriptor.
fn by_descriptor(path: &[u8]) -> Option<Place> {
    let open = table::find_named(descriptor_of(path)?)?;
    let shared = open.shared();
    let full = shared.texts().path.to_vec();
    Some(Place::Weft(Target { mount: open.mount, dir: shared.ino, path: Vec::new(), full }))
}

/// `../weft/x` from a local directory.
fn from_local_directory(path: &[u8]) -> Place {
    let Some(here) = cwd::of_kernel() else { return Place::Local };
    absolute(&normal(&[&here[..], b"/", path].concat()))
}

/// Calls `local` or `weft` for the place that a path leads to. `follow`: a symbolic link at its end, too.
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

/// Where a path leads; `None` if it is certainly none of ours.
///
/// # Safety
/// The path is NULL or ends with a zero.
pub(crate) unsafe fn place_of(dirfd: c_int, path: *const c_char) -> Option<Place> {
    if path.is_null() || is_inside() {
        return None;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let plain = !mounts::has_prefix() && !bytes.starts_with(b"weft:") && !bytes.is_empty();
    if plain && (bytes.starts_with(b"/") || dirfd == libc::AT_FDCWD && !cwd::is_inside()) {
        return None;
    }
    within(|| Ok(resolve(dirfd, bytes))).ok()
}

/// The path after the first symbolic link that leads to an absolute target, if there is one on the way.
pub(crate) fn through_links(target: &Target, follow: bool) -> Outcome<Option<Place>> {
    let made = target.mount.made()?;
    let mut path = target.full.clone();
    let mut done: Vec<u8> = Vec::new();
    let mut links = 0;
    while let Some(start) = path.iter().position(|byte| *byte != b'/') {
        let stop = path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |at| start + at);
        let (name, rest) = (path[start..stop].to_vec(), path[stop..].to_vec());
        let is_last = rest.iter().all(|byte| *byte == b'/');
        let candidate = normal(&[&done[..], b"/", &name].concat());
        let Ok(attr) = made.client.stat(made.at(&candidate), false) else { return Ok(None) };
        if attr.kind == FileKind::Symlink && (follow || !is_last) {
            links += 1;
            let goal = made.client.readlink(made.at(&candidate))?;
            if goal.starts_with(b"/") {
                let whole = [&goal[..], &rest].concat();
                let place = absolute(&whole);
                return Ok(Some(if matches!(place, Place::Local) { elsewhere(whole) } else { place }));
            }
            if links > LINKS_MAX {
                return Err(Errno(libc::ELOOP));
            }
            path = [&goal[..], &rest].concat();
        } else {
            (done, path) = (candidate, rest);
        }
    }
    Ok(None)
}

/// The path from the mount's root without symbolic links, of something that exists.
pub(crate) fn true_path(target: &Target) -> Outcome<Vec<u8>> {
    let made = target.mount.made()?;
    let mut path = target.full.clone();
    let mut done: Vec<u8> = b"/".to_vec();
    let mut links = 0;
    while let Some(start) = path.iter().position(|byte| *byte != b'/') {
        let stop = path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |at| start + at);
        let (name, rest) = (path[start..stop].to_vec(), path[stop..].to_vec());
        let candidate = normal(&[&done[..], b"/", &name].concat());
        if matches!(name.as_slice(), b"." | b"..") {
            (done, path) = (candidate, rest);
            continue;
        }
        if made.client.stat(made.at(&candidate), false)?.kind != FileKind::Symlink {
            (done, path) = (candidate, rest);
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno(libc::ELOOP));
        }
        let goal = made.client.readlink(made.at(&candidate))?;
        if goal.starts_with(b"/") {
            done = b"/".to_vec();
        }
        path = [&goal[..], &rest].concat();
    }
    Ok(done)
}

/// The path of an open directory, which was `before` when it was opened and may have moved.
pub(crate) fn path_of_directory(mount: &'static Mount, ino: u64, before: &[u8]) -> Outcome<Vec<u8>> {
    let made = mount.made()?;
    if made.client.stat(made.at(before), true).is_ok_and(|attr| attr.ino == ino) {
        return Ok(before.to_vec());
    }
    let mut path = Vec::new();
    let mut child = ino;
    while child != made.root {
        let parent = made.client.read_dir_page(child, 0, 1, false)?.parent;
        let mut entries = made.client.read_dir(At::ino(parent))?.flatten();
        let entry = entries.find(|entry| entry.ino == child).ok_or(Errno(libc::ENOENT))?;
        path = [b"/", &entry.name[..], &path].concat();
        if parent == child {
            return Err(Errno(libc::ENOENT));
        }
        child = parent;
    }
    Ok(path)
}

/// The place in Weft that a local path leads to by a symbolic link.
fn through_local_links(dirfd: c_int, path: &[u8], follow: bool) -> Option<Place> {
    let base = match path.first() {
        Some(b'/') => Vec::new(),
        _ if dirfd == libc::AT_FDCWD => cwd::of_kernel()?,
        _ => read_link(format!("/proc/self/fd/{dirfd}").as_bytes())?,
    };
    let mut path = [&base[..], b"/", path].concat();
    // From a local directory's descriptor, which may be above the prefix.
    if let found @ Place::Weft(_) = absolute(&path) {
        return Some(found);
    }
    let mut done: Vec<u8> = Vec::new();
    let mut links = 0;
    while let Some(start) = path.iter().position(|byte| *byte != b'/') {
        let stop = path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |at| start + at);
        let (name, rest) = (path[start..stop].to_vec(), path[stop..].to_vec());
        let is_last = rest.iter().all(|byte| *byte == b'/');
        let candidate = normal(&[&done[..], b"/", &name].concat());
        match read_link(&candidate).filter(|_| follow || !is_last) {
            Some(goal) => {
                links += 1;
                if links > LINKS_MAX {
                    return None;
                }
                let from = if goal.starts_with(b"/") { Vec::new() } else { done.clone() };
                path = [&from[..], b"/", &goal, &rest].concat();
                done.clear();
                if let found @ Place::Weft(_) = absolute(&path[1..]) {
                    return Some(found);
                }
            }
            None => (done, path) = (candidate, rest),
        }
    }
    None
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
    }

    #[test]
    fn a_path_leaves_by_more_dots_than_names() {
        assert!(!leaves(b"/a/../b") && !leaves(b"") && !leaves(b"/a/b/../.."));
        assert!(leaves(b"/..") && leaves(b"/a/../../b") && leaves(b"../x/y/z"));
        assert!(has_dots(b"a/..") && !has_dots(b"a/..b/..."));
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
