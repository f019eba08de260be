//! Functions of libc that look up many names. Their internal calls would not reach the hooks.
//!
//! ```text
//!   glob     libc's own, with our functions for directories and attributes (GLOB_ALTDIRFUNC)
//!   nftw     implemented here if the walk begins in Weft
//! ```

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use libc::{dirent, size_t, stat as Stat};

use super::{attributes, directories};
use crate::dispatch::{on_path, place_of};
use crate::guard::{Errno, enter, errno};
use crate::mounts;
use crate::paths::{Place, Target};
use crate::real::hooks;

const HERE: c_int = libc::AT_FDCWD;
const GLOB_ALTDIRFUNC: c_int = 1 << 9;

/// `glob_t` of glibc.
#[repr(C)]
pub(crate) struct Glob {
    count: size_t,
    paths: *mut *mut c_char,
    reserved: size_t,
    flags: c_int,
    close: unsafe extern "C" fn(*mut libc::DIR) -> c_int,
    read: unsafe extern "C" fn(*mut libc::DIR) -> *mut dirent,
    open: unsafe extern "C" fn(*const c_char) -> *mut libc::DIR,
    lstat: unsafe extern "C" fn(*const c_char, *mut Stat) -> c_int,
    stat: unsafe extern "C" fn(*const c_char, *mut Stat) -> c_int,
}

/// `struct FTW`.
#[repr(C)]
pub(crate) struct Level {
    base: c_int,
    level: c_int,
}

pub(crate) type Visit = unsafe extern "C" fn(*const c_char, *const Stat, c_int, *mut Level) -> c_int;
pub(crate) type SimpleVisit = unsafe extern "C" fn(*const c_char, *const Stat, c_int) -> c_int;

/// The kinds of visited files, as `<ftw.h>` numbers them.
const FILE: c_int = 0;
const DIRECTORY: c_int = 1;
const UNREADABLE: c_int = 2;
const UNKNOWN: c_int = 3;
const LINK: c_int = 4;
const DIRECTORY_AFTER: c_int = 5;
const DANGLING_LINK: c_int = 6;

const PHYSICAL: c_int = 1;
const CHANGES_DIRECTORY: c_int = 4;
const DEPTH: c_int = 8;
const ACTIONS: c_int = 16;

const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

hooks! {
    fn glob = glob64(pattern: *const c_char, flags: c_int, on_error: *const c_void, found: *mut Glob) -> c_int {
        let ours = mounts::has_prefix() && flags & GLOB_ALTDIRFUNC == 0 && !crate::guard::is_inside();
        if !ours {
            return glob::real(pattern, flags, on_error, found);
        }
        let place = &mut *found;
        (place.close, place.read, place.open) = (directories::closedir, directories::readdir, directories::opendir);
        (place.lstat, place.stat) = (attributes::lstat, attributes::stat);
        let result = glob::real(pattern, flags | GLOB_ALTDIRFUNC, on_error, found);
        (*found).flags &= !GLOB_ALTDIRFUNC;
        result
    }

    fn nftw = nftw64(path: *const c_char, visit: Visit, open_max: c_int, flags: c_int) -> c_int {
        if !begins_in_weft(path) {
            return nftw::real(path, visit, open_max, flags);
        }
        if flags & CHANGES_DIRECTORY != 0 {
            return enter(|| Err(Errno(libc::EOPNOTSUPP)));
        }
        walk(path, flags, &|path, stat, kind, level| visit(path, stat, kind, level))
    }

    fn ftw = ftw64(path: *const c_char, visit: SimpleVisit, open_max: c_int) -> c_int {
        if !begins_in_weft(path) {
            return ftw::real(path, visit, open_max);
        }
        walk(path, 0, &|path, stat, kind, _| visit(path, stat, if kind == DANGLING_LINK { UNKNOWN } else { kind }))
    }

    fn ftok(path: *const c_char, id: c_int) -> libc::key_t {
        if !begins_in_weft(path) {
            return ftok::real(path, id);
        }
        let mut stat: Stat = std::mem::zeroed();
        match attributes::stat(path, &mut stat) {
            0 => stat.st_ino as c_int & 0xffff | (stat.st_dev as c_int & 0xff) << 16 | (id & 0xff) << 24,
            _ => -1,
        }
    }

    fn name_to_handle_at(
        dirfd: c_int,
        path: *const c_char,
        handle: *mut c_void,
        mount: *mut c_int,
        flags: c_int,
    ) -> c_int {
        let local = |dirfd, path| name_to_handle_at::real(dirfd, path, handle, mount, flags);
        if crate::table::find(dirfd).is_some() && *path == 0 {
            return enter(|| Err(Errno(libc::EOPNOTSUPP)));
        }
        on_path(dirfd, path, true, local, refused)
    }

    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: c_uint) -> c_int {
        on_path(HERE, path, true, |_, path| inotify_add_watch::real(fd, path, mask), refused)
    }

    fn fanotify_mark(fd: c_int, flags: c_uint, mask: u64, dirfd: c_int, path: *const c_char) -> c_int {
        let local = |dirfd, path| fanotify_mark::real(fd, flags, mask, dirfd, path);
        if path.is_null() { local(dirfd, path) } else { on_path(dirfd, path, true, local, refused) }
    }

    fn chroot(path: *const c_char) -> c_int {
        on_path(HERE, path, true, |_, path| chroot::real(path), refused)
    }
}

/// Refuses operations that the kernel can do only with its own files.
fn refused(_: &Target) -> crate::guard::Outcome<c_int> {
    Err(Errno(libc::EOPNOTSUPP))
}

/// # Safety
/// The path is NULL or ends with a zero.
pub(super) unsafe fn begins_in_weft(path: *const c_char) -> bool {
    // SAFETY: as the caller promises.
    matches!(unsafe { place_of(HERE, path) }, Some(Place::Weft(_)))
}

type Visitor<'a> = &'a dyn Fn(*const c_char, *const Stat, c_int, *mut Level) -> c_int;

/// The directories above the current one of a walk. If links are followed, none of these is entered again.
struct Above<'a> {
    inode: (u64, u64),
    above: Option<&'a Above<'a>>,
}

/// A path in memory from libc: this library's allocator must not be used while signals may arrive.
struct Path(*mut c_char);

/// Joins a directory and a name, in memory from libc; NULL without memory.
///
/// # Safety
/// Strings.
pub(super) unsafe fn joined(dir: *const c_char, name: *const c_char) -> *mut c_char {
    // SAFETY: as the caller promises. The buffer has space for both, a slash and a zero.
    unsafe {
        let (dir_bytes, name_bytes) = (libc::strlen(dir), libc::strlen(name));
        let place = libc::malloc(dir_bytes + name_bytes + 2).cast::<c_char>();
        if !place.is_null() {
            ptr::copy_nonoverlapping(dir, place, dir_bytes);
            let slash = dir_bytes > 0 && *dir.add(dir_bytes - 1) != b'/' as c_char;
            let at = dir_bytes + usize::from(slash);
            if slash {
                *place.add(dir_bytes) = b'/' as c_char;
            }
            ptr::copy_nonoverlapping(name, place.add(at), name_bytes + 1);
        }
        place
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        // SAFETY: NULL, or from `malloc`.
        unsafe { libc::free(self.0.cast()) };
    }
}

/// # Safety
/// A string.
unsafe fn walk(path: *const c_char, flags: c_int, visit: Visitor<'_>) -> c_int {
    // SAFETY: as the caller promises.
    let base = unsafe { CStr::from_ptr(path) }.to_bytes();
    let base = base.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    // SAFETY: as the caller promises.
    let result = unsafe { step(path, base as c_int, 0, flags, visit, None) };
    if flags & ACTIONS != 0 && matches!(result, SKIP_SUBTREE | SKIP_SIBLINGS) { 0 } else { result }
}

/// Visits a file and everything below it.
///
/// # Safety
/// A string.
unsafe fn step(
    path: *const c_char,
    base: c_int,
    level: c_int,
    flags: c_int,
    visit: Visitor<'_>,
    above: Option<&Above<'_>>,
) -> c_int {
    // SAFETY: zeroed bytes are valid attributes; the path is a string.
    unsafe {
        let mut stat: Stat = std::mem::zeroed();
        let mut place = Level { base, level };
        let mut call = |stat: &Stat, kind| visit(path, stat, kind, &mut place);
        let physical = flags & PHYSICAL != 0;
        if (physical || attributes::stat(path, &mut stat) != 0) && attributes::lstat(path, &mut stat) != 0 {
            return if level == 0 || errno() != libc::EACCES { -1 } else { call(&stat, UNKNOWN) };
        }
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR => {}
            libc::S_IFLNK => return call(&stat, if physical { LINK } else { DANGLING_LINK }),
            _ => return call(&stat, FILE),
        }
        let here = Above { inode: (stat.st_dev, stat.st_ino), above };
        let mut way = above;
        while let Some(other) = way {
            if other.inode == here.inode {
                return 0;
            }
            way = other.above;
        }
        let mut names: *mut *mut dirent = ptr::null_mut();
        let count = directories::scandir(path, &mut names, None, None);
        if count < 0 {
            return call(&stat, UNREADABLE);
        }
        let before = if flags & DEPTH == 0 { call(&stat, DIRECTORY) } else { 0 };
        let skips = flags & ACTIONS != 0 && before == SKIP_SUBTREE;
        let mut result = if skips { 0 } else { before };
        for at in 0..count as usize {
            let entry = *names.add(at);
            let name = (*entry).d_name.as_ptr();
            let is_dots = matches!(CStr::from_ptr(name).to_bytes(), b"." | b"..");
            if result == 0 && !skips && !is_dots {
                let child = Path(joined(path, name));
                if child.0.is_null() {
                    result = -1;
                } else {
                    let base = libc::strlen(child.0) - libc::strlen(name);
                    result = step(child.0, base as c_int, level + 1, flags, visit, Some(&here));
                }
                if flags & ACTIONS != 0 && result == SKIP_SUBTREE {
                    result = 0;
                }
            }
            libc::free(entry.cast());
        }
        libc::free(names.cast());
        if flags & ACTIONS != 0 && result == SKIP_SIBLINGS && before != SKIP_SIBLINGS {
            result = 0;
        }
        if result == 0 && flags & DEPTH != 0 { call(&stat, DIRECTORY_AFTER) } else { result }
    }
}
