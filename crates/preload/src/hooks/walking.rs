//! `fts`: walks of several trees, as in `<fts.h>`. Implemented here if one of them begins in Weft.
//!
//! ```text
//!   roots ─► a ─► b ─► c          entries ahead: a list at each level
//!            │
//!            └ children ─► x ─► y ─► z      read when the directory is entered; each is freed after the walk
//!                                          has left it
//! ```
//!
//! The walk never changes the current directory, as with `FTS_NOCHDIR`: `fts_accpath` is the whole path. All
//! memory is from libc, since this library's allocator must not be used while signals may arrive.

use std::ffi::{c_char, c_int, c_ushort};
use std::ptr;

use libc::{dev_t, dirent};
use weft_client::c::set_errno;

use super::searching::begins_in_weft;
use super::walk_entries::*;
use super::{attributes, directories};
use crate::guard::{Errno, Outcome, enter, errno};
use crate::real::hooks;

/// `FTS` of glibc as far as programs access it, with this library's mark in the place of a descriptor.
#[repr(C)]
pub(crate) struct Walk {
    current: *mut Entry,
    children: *mut Entry,
    array: *mut *mut Entry,
    device: dev_t,
    path: *mut c_char,
    mark: c_int,
    path_bytes: c_int,
    array_entries: c_int,
    compare: Compare,
    options: c_int,
}

/// No descriptor has this number.
const MARK: c_int = -0x5745_4655;

const FOLLOW_ROOTS: c_int = 1;
const LOGICAL: c_int = 2;
const NO_STATUS: c_int = 8;
const PHYSICAL: c_int = 0x10;
const SEE_DOTS: c_int = 0x20;
const ONE_DEVICE: c_int = 0x40;
const OPTIONS: c_int = 0xff;
/// Only names were requested.
const NAMES_ONLY: c_int = 0x100;

hooks! {
    fn fts_open = fts64_open(paths: *const *const c_char, options: c_int, compare: Compare) -> *mut Walk {
        let mut is_ours = false;
        let mut at = paths;
        while !(*at).is_null() {
            is_ours = is_ours || begins_in_weft(*at);
            at = at.add(1);
        }
        if is_ours && !crate::guard::is_inside() { begin(paths, options, compare) } else { fts_open::real(paths, options, compare) }
    }

    fn fts_read = fts64_read(walk: *mut Walk) -> *mut Entry {
        if is_ours(walk) { next(&mut *walk) } else { fts_read::real(walk) }
    }

    fn fts_children = fts64_children(walk: *mut Walk, instruction: c_int) -> *mut Entry {
        if is_ours(walk) { children(&mut *walk, instruction) } else { fts_children::real(walk, instruction) }
    }

    fn fts_close = fts64_close(walk: *mut Walk) -> c_int {
        if !is_ours(walk) {
            return fts_close::real(walk);
        }
        free_list((*walk).children);
        let mut entry = (*walk).current;
        if !entry.is_null() && (*entry).info == BEGINNING {
            free_list((*entry).link);
        }
        while !entry.is_null() {
            // The list after the entry above all roots is not freed here: the walk has already passed it.
            let is_root = (*entry).level >= ROOT_LEVEL;
            let after = if is_root && !(*entry).link.is_null() { (*entry).link } else { (*entry).parent };
            free_entry(entry);
            entry = after;
        }
        libc::free(walk.cast());
        0
    }
}

/// # Safety
/// `walk` is a walk of libc or of this library.
unsafe fn is_ours(walk: *const Walk) -> bool {
    // SAFETY: as the caller promises. Both have a number there.
    unsafe { (*walk).mark == MARK }
}

fn failed<T>(errno: c_int) -> *mut T {
    enter(|| -> Outcome<*mut T> { Err(Errno(errno)) })
}

/// # Safety
/// As for `fts_open`.
unsafe fn begin(paths: *const *const c_char, options: c_int, compare: Compare) -> *mut Walk {
    if options & !OPTIONS != 0 {
        return failed(libc::EINVAL);
    }
    // SAFETY: zeroed bytes are a valid walk. The paths are strings, up to NULL.
    unsafe {
        let walk: *mut Walk = libc::calloc(1, size_of::<Walk>()).cast();
        // The entry before the first root, which is also the parent of all roots.
        let above = entry_of(ptr::null(), c"".as_ptr());
        if walk.is_null() || above.is_null() {
            libc::free(walk.cast());
            libc::free(above.cast());
            return failed(libc::ENOMEM);
        }
        (*above).level = ROOT_LEVEL - 1;
        (*above).info = BEGINNING;
        *walk = Walk { current: above, mark: MARK, compare, options, ..std::mem::zeroed() };
        let (mut all, mut at) = (List::empty(), paths);
        while !(*at).is_null() {
            let root = if **at == 0 { ptr::null_mut() } else { entry_of(ptr::null(), *at) };
            if root.is_null() {
                let errno = if **at == 0 { libc::ENOENT } else { libc::ENOMEM };
                free_list(all.first);
                fts_close(walk);
                return failed(errno);
            }
            ((*root).parent, (*root).level) = (above, ROOT_LEVEL);
            (*root).info = look(&*walk, root, options & FOLLOW_ROOTS != 0);
            if (*root).info == DOTS {
                (*root).info = DIRECTORY;
            }
            all.add(root);
            at = at.add(1);
        }
        (*above).link = all.sorted(compare);
        walk
    }
}

/// The next entry of a walk, or NULL; errno is 0 at the end.
///
/// # Safety
/// `walk` is a walk of this library.
unsafe fn next(walk: &mut Walk) -> *mut Entry {
    // SAFETY: entries of a walk live until it has left them.
    unsafe {
        let entry = walk.current;
        if entry.is_null() {
            set_errno(0);
            return entry;
        }
        let instruction = std::mem::replace(&mut (*entry).instruction, NO_INSTRUCTION);
        if instruction == AGAIN {
            (*entry).info = look(walk, entry, false);
            return entry;
        }
        if instruction == FOLLOW && matches!((*entry).info, LINK | DANGLING_LINK) {
            (*entry).info = look(walk, entry, true);
            return entry;
        }
        if (*entry).info == DIRECTORY {
            let elsewhere = walk.options & ONE_DEVICE != 0 && (*entry).device != walk.device;
            if instruction == SKIP || elsewhere {
                free_list(std::mem::replace(&mut walk.children, ptr::null_mut()));
                (*entry).info = DIRECTORY_AFTER;
                return entry;
            }
            if walk.options & NAMES_ONLY != 0 {
                walk.options &= !NAMES_ONLY;
                free_list(std::mem::replace(&mut walk.children, ptr::null_mut()));
            }
            if walk.children.is_null() {
                walk.children = list(walk, entry, false);
                if walk.children.is_null() {
                    // It is empty, or cannot be read.
                    (*entry).info = match errno() {
                        0 => DIRECTORY_AFTER,
                        errno => {
                            (*entry).errno = errno;
                            UNREADABLE
                        }
                    };
                    return entry;
                }
            }
            // An instruction of the program for the first child applies when the walk continues there, as in
            // libc.
            walk.current = std::mem::replace(&mut walk.children, ptr::null_mut());
            return walk.current;
        }
        leave(walk, entry)
    }
}

/// Continues with an entry, or after it if the program has said so.
///
/// # Safety
/// An entry of the walk.
unsafe fn come_to(walk: &mut Walk, entry: *mut Entry) -> *mut Entry {
    // SAFETY: as the caller promises.
    unsafe {
        walk.current = entry;
        if (*entry).level == ROOT_LEVEL {
            walk.device = (*entry).device;
            keep_last_name(entry);
            return entry;
        }
        match (*entry).instruction {
            SKIP => return leave(walk, entry),
            FOLLOW => {
                (*entry).info = look(walk, entry, true);
                (*entry).instruction = NO_INSTRUCTION;
            }
            _ => {}
        }
        entry
    }
}

/// Moves from an entry to the next one of its directory, or to the directory for the second time.
///
/// # Safety
/// The walk's current entry.
unsafe fn leave(walk: &mut Walk, entry: *mut Entry) -> *mut Entry {
    // SAFETY: as the caller promises.
    unsafe {
        let Entry { link, parent, level, .. } = *entry;
        // The entry above all roots is their parent as long as there are any.
        let above = if level < ROOT_LEVEL { entry } else { parent };
        if level >= ROOT_LEVEL {
            free_entry(entry);
        }
        if !link.is_null() {
            return come_to(walk, link);
        }
        walk.current = above;
        if (*above).level < ROOT_LEVEL {
            free_entry(above);
            walk.current = ptr::null_mut();
            set_errno(0);
            return ptr::null_mut();
        }
        (*above).info = if (*above).errno != 0 { FAILED } else { DIRECTORY_AFTER };
        above
    }
}

/// The entries ahead in the current directory, as `fts_children` returns them.
///
/// # Safety
/// `walk` is a walk of this library.
unsafe fn children(walk: &mut Walk, instruction: c_int) -> *mut Entry {
    if instruction != 0 && instruction != NAMES_ONLY {
        return failed(libc::EINVAL);
    }
    set_errno(0);
    let entry = walk.current;
    // SAFETY: entries of a walk live until it has left them.
    unsafe {
        if entry.is_null() || !matches!((*entry).info, BEGINNING | DIRECTORY) {
            return ptr::null_mut();
        }
        if (*entry).info == BEGINNING {
            return (*entry).link;
        }
        free_list(std::mem::replace(&mut walk.children, ptr::null_mut()));
        walk.options |= instruction;
        walk.children = list(walk, entry, instruction == NAMES_ONLY);
        walk.children
    }
}

/// Reads a directory. Returns NULL, with errno if it cannot be read, or with errno 0 if it is empty.
///
/// # Safety
/// An entry of the walk.
unsafe fn list(walk: &Walk, directory: *mut Entry, names_only: bool) -> *mut Entry {
    // SAFETY: the path is a string. The stream is open until it is closed here. Entries are zeroed and then
    // filled.
    unsafe {
        let stream = directories::opendir((*directory).access_path);
        if stream.is_null() {
            return ptr::null_mut();
        }
        let mut all = List::empty();
        let lazy = walk.options & (NO_STATUS | PHYSICAL) == NO_STATUS | PHYSICAL;
        let result = loop {
            set_errno(0);
            let found: *mut dirent = directories::readdir(stream);
            if found.is_null() {
                break errno();
            }
            let name = (*found).d_name.as_ptr();
            if is_dots(name) && walk.options & SEE_DOTS == 0 {
                continue;
            }
            let entry = entry_of((*directory).path, name);
            if entry.is_null() {
                break libc::ENOMEM;
            }
            ((*entry).parent, (*entry).level) = (directory, (*directory).level + 1);
            (*entry).inode = (*found).d_ino;
            let known = !matches!((*found).d_type, libc::DT_DIR | libc::DT_UNKNOWN);
            (*entry).info = if names_only || lazy && known { NOT_ASKED } else { look(walk, entry, false) };
            all.add(entry);
        };
        directories::closedir(stream);
        if result != 0 {
            free_list(all.first);
            set_errno(result);
            return ptr::null_mut();
        }
        set_errno(0);
        all.sorted(walk.compare)
    }
}

/// Reads an entry's attributes, and returns its kind.
///
/// # Safety
/// An entry of the walk, or one that is to be.
unsafe fn look(walk: &Walk, entry: *mut Entry, follow: bool) -> c_ushort {
    // SAFETY: its path is a string. It has memory for attributes. The entries above outlive it.
    unsafe {
        let (path, status) = ((*entry).access_path, (*entry).status);
        let followed = follow || walk.options & LOGICAL != 0;
        let mut result =
            if followed { attributes::stat(path, status) } else { attributes::lstat(path, status) };
        if result != 0 && followed {
            let before = errno();
            result = attributes::lstat(path, status);
            if result == 0 && (*status).st_mode & libc::S_IFMT == libc::S_IFLNK {
                set_errno(0);
                return DANGLING_LINK;
            }
            result = -1;
            set_errno(before);
        }
        if result != 0 {
            (*entry).errno = errno();
            ptr::write_bytes(status, 0, 1);
            return NOT_THERE;
        }
        ((*entry).device, (*entry).inode, (*entry).links) =
            ((*status).st_dev, (*status).st_ino, (*status).st_nlink);
        match (*status).st_mode & libc::S_IFMT {
            libc::S_IFDIR => {}
            libc::S_IFLNK => return LINK,
            libc::S_IFREG => return FILE,
            _ => return OTHER,
        }
        if is_dots((*entry).name.as_ptr()) {
            return DOTS;
        }
        let mut above = (*entry).parent;
        while !above.is_null() && (*above).level >= ROOT_LEVEL {
            if ((*above).inode, (*above).device) == ((*entry).inode, (*entry).device) {
                (*entry).cycle = above;
                return CYCLE;
            }
            above = (*above).parent;
        }
        DIRECTORY
    }
}
