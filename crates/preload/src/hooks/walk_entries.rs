//! The entries of an `fts` walk ([`super::walking`]), in memory of libc.

use std::ffi::{CStr, c_char, c_int, c_long, c_ushort, c_void};
use std::ptr;

use libc::{dev_t, ino_t, nlink_t, size_t, stat as Stat};

use super::searching::joined;

/// `FTSENT`.
#[repr(C)]
pub(crate) struct Entry {
    pub(super) cycle: *mut Entry,
    pub(super) parent: *mut Entry,
    pub(super) link: *mut Entry,
    pub(super) number: c_long,
    pub(super) pointer: *mut c_void,
    pub(super) access_path: *mut c_char,
    pub(super) path: *mut c_char,
    pub(super) errno: c_int,
    pub(super) descriptor: c_int,
    pub(super) path_bytes: c_ushort,
    pub(super) name_bytes: c_ushort,
    pub(super) inode: ino_t,
    pub(super) device: dev_t,
    pub(super) links: nlink_t,
    pub(super) level: i16,
    pub(super) info: c_ushort,
    pub(super) flags: c_ushort,
    pub(super) instruction: c_ushort,
    pub(super) status: *mut Stat,
    /// The name begins here, and extends beyond the structure.
    pub(super) name: [c_char; 1],
}

/// The order of entries.
pub(super) type Compare = Option<unsafe extern "C" fn(*const *const Entry, *const *const Entry) -> c_int>;

pub(super) const AGAIN: c_ushort = 1;
pub(super) const FOLLOW: c_ushort = 2;
pub(super) const NO_INSTRUCTION: c_ushort = 3;
pub(super) const SKIP: c_ushort = 4;

pub(super) const DIRECTORY: c_ushort = 1;
pub(super) const CYCLE: c_ushort = 2;
pub(super) const OTHER: c_ushort = 3;
pub(super) const UNREADABLE: c_ushort = 4;
pub(super) const DOTS: c_ushort = 5;
pub(super) const DIRECTORY_AFTER: c_ushort = 6;
pub(super) const FAILED: c_ushort = 7;
pub(super) const FILE: c_ushort = 8;
pub(super) const BEGINNING: c_ushort = 9;
pub(super) const NOT_THERE: c_ushort = 10;
pub(super) const NOT_ASKED: c_ushort = 11;
pub(super) const LINK: c_ushort = 12;
pub(super) const DANGLING_LINK: c_ushort = 13;

pub(super) const ROOT_LEVEL: i16 = 0;

pub(super) unsafe fn is_dots(name: *const c_char) -> bool {
    // SAFETY: callers pass strings.
    matches!(unsafe { CStr::from_ptr(name) }.to_bytes(), b"." | b"..")
}

/// Creates an entry for a name in a directory, or for a root's path (`directory` is NULL). NULL without
/// memory.
///
/// # Safety
/// Strings.
pub(super) unsafe fn entry_of(directory: *const c_char, name: *const c_char) -> *mut Entry {
    // SAFETY: as the caller promises. There is space for the name after the entry, and zeroed bytes are a
    // valid entry.
    unsafe {
        let name_bytes = libc::strlen(name);
        let entry: *mut Entry = libc::calloc(1, size_of::<Entry>() + name_bytes).cast();
        let path = match directory.is_null() {
            true => libc::strdup(name),
            false => joined(directory, name),
        };
        let status: *mut Stat = libc::calloc(1, size_of::<Stat>()).cast();
        if entry.is_null() || path.is_null() || status.is_null() {
            [entry.cast::<c_void>(), path.cast(), status.cast()]
                .into_iter()
                .for_each(|place| libc::free(place));
            return ptr::null_mut();
        }
        ptr::copy_nonoverlapping(name, name_of(entry), name_bytes);
        ((*entry).path, (*entry).access_path, (*entry).status) = (path, path, status);
        ((*entry).path_bytes, (*entry).name_bytes) = (short(libc::strlen(path)), short(name_bytes));
        ((*entry).descriptor, (*entry).instruction) = (-1, NO_INSTRUCTION);
        entry
    }
}

pub(super) fn short(bytes: size_t) -> c_ushort {
    c_ushort::try_from(bytes).unwrap_or(c_ushort::MAX)
}

pub(super) unsafe fn name_of(entry: *mut Entry) -> *mut c_char {
    // SAFETY: callers pass entries. The name extends beyond the array in the structure.
    unsafe { (&raw mut (*entry).name).cast() }
}

/// Shortens a root's name to its last component. It is the whole path until the walk comes to it.
///
/// # Safety
/// A root.
pub(super) unsafe fn keep_last_name(root: *mut Entry) {
    // SAFETY: as the caller promises. The rest is part of the old name.
    unsafe {
        let name = name_of(root);
        let bytes = CStr::from_ptr(name).to_bytes();
        let Some(slash) = bytes.iter().rposition(|byte| *byte == b'/') else { return };
        let kept = bytes.len() - slash - 1;
        if slash != 0 || kept != 0 {
            ptr::copy(name.add(slash + 1), name, kept + 1);
            (*root).name_bytes = short(kept);
        }
    }
}

/// # Safety
/// Entries that nobody uses any more.
pub(super) unsafe fn free_list(mut entry: *mut Entry) {
    // SAFETY: as the caller promises.
    unsafe {
        while !entry.is_null() {
            let link = (*entry).link;
            free_entry(entry);
            entry = link;
        }
    }
}

pub(super) unsafe fn free_entry(entry: *mut Entry) {
    // SAFETY: callers pass an entry that nobody uses any more.
    unsafe {
        libc::free((*entry).path.cast());
        libc::free((*entry).status.cast());
        libc::free(entry.cast());
    }
}

/// A list that is being built.
pub(super) struct List {
    pub(super) first: *mut Entry,
    last: *mut Entry,
    count: usize,
}

impl List {
    pub(super) fn empty() -> List {
        List { first: ptr::null_mut(), last: ptr::null_mut(), count: 0 }
    }

    /// # Safety
    /// An entry in no list.
    pub(super) unsafe fn add(&mut self, entry: *mut Entry) {
        match self.count {
            0 => self.first = entry,
            // SAFETY: an entry.
            _ => unsafe { (*self.last).link = entry },
        }
        self.last = entry;
        self.count += 1;
    }

    /// Sorts the list in the program's order.
    ///
    /// # Safety
    /// The program's function takes entries.
    pub(super) unsafe fn sorted(&self, compare: Compare) -> *mut Entry {
        let Some(compare) = compare.filter(|_| self.count > 1) else { return self.first };
        // SAFETY: an array for all of them, NULL or of `malloc`; `qsort` passes pointers to its elements.
        unsafe {
            let array: *mut *mut Entry = libc::malloc(self.count * size_of::<*mut Entry>()).cast();
            if array.is_null() {
                return self.first;
            }
            let mut entry = self.first;
            for at in 0..self.count {
                *array.add(at) = entry;
                entry = (*entry).link;
            }
            let compare = std::mem::transmute::<
                unsafe extern "C" fn(*const *const Entry, *const *const Entry) -> c_int,
                unsafe extern "C" fn(*const c_void, *const c_void) -> c_int,
            >(compare);
            libc::qsort(array.cast(), self.count, size_of::<*mut Entry>(), Some(compare));
            for at in 0..self.count {
                let link = if at + 1 < self.count { *array.add(at + 1) } else { ptr::null_mut() };
                (**array.add(at)).link = link;
            }
            let first = *array;
            libc::free(array.cast());
            first
        }
    }
}
