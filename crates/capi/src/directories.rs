//! Open directories.

use crate::guard::{Outcome, call};
use crate::handles::{borrow, give, result, take, weft_fs};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use weft_client::Client;
use weft_client::c::{entry_type, set_errno};
use weft_wire::limits::{DIRECTORY_PAGE_ENTRIES_MAX, NAME_BYTES_MAX};
use weft_wire::messages::Entry;

/// `struct weft_dirent`.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct weft_dirent {
    /// Inode.
    pub ino: u64,
    /// Where to go on after it.
    pub cookie: u64,
    /// As `d_type`.
    pub kind: u8,
    /// Ends with a zero.
    pub name: [u8; NAME_BYTES_MAX + 1],
}

/// An open directory (`weft_dir`).
#[allow(non_camel_case_types)]
pub struct weft_dir {
    client: Client,
    ino: u64,
    page: VecDeque<Entry>,
    after: u64,
    at_end: bool,
    current: weft_dirent,
}

impl weft_dir {
    fn next(&mut self) -> Outcome<Option<&weft_dirent>> {
        while self.page.is_empty() && !self.at_end {
            let reply = self.client.read_dir_page(self.ino, self.after, DIRECTORY_PAGE_ENTRIES_MAX, false)?;
            self.at_end = reply.end;
            self.page = reply.entries.into();
        }
        let Some(entry) = self.page.pop_front() else { return Ok(None) };
        self.after = entry.cookie;
        let mut name = [0; NAME_BYTES_MAX + 1];
        let length = entry.name.len().min(NAME_BYTES_MAX);
        name[..length].copy_from_slice(&entry.name[..length]);
        self.current =
            weft_dirent { ino: entry.ino, cookie: entry.cookie, kind: entry_type(entry.kind), name };
        Ok(Some(&self.current))
    }
}

/// See weft.h.
///
/// # Safety
/// `fs` is a handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_opendir(fs: *const weft_fs, path: *const c_char) -> *mut weft_dir {
    call("weft_opendir", || {
        // SAFETY: as the caller promises.
        let (client, at) = unsafe {
            let fs = borrow(fs)?;
            (&fs.client, fs.at(path)?)
        };
        let ino = client.stat(at, true)?.ino;
        let first = client.read_dir_page(ino, 0, DIRECTORY_PAGE_ENTRIES_MAX, false)?;
        Ok(give(weft_dir {
            client: client.clone(),
            ino,
            page: first.entries.into(),
            after: 0,
            at_end: first.end,
            current: weft_dirent { ino: 0, cookie: 0, kind: 0, name: [0; NAME_BYTES_MAX + 1] },
        }))
    })
}

/// See weft.h.
///
/// # Safety
/// `dir` is a handle, used by one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_readdir(dir: *mut weft_dir) -> *const weft_dirent {
    call("weft_readdir", || {
        // SAFETY: as the caller promises.
        let dir = unsafe { result("directory", dir)? };
        let entry = dir.next()?.map_or(std::ptr::null(), std::ptr::from_ref);
        set_errno(0);
        Ok(entry)
    })
}

/// See weft.h.
///
/// # Safety
/// As for `weft_readdir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_seekdir(dir: *mut weft_dir, cookie: u64) -> c_int {
    call("weft_seekdir", || {
        // SAFETY: as the caller promises.
        let dir = unsafe { result("directory", dir)? };
        dir.page.clear();
        (dir.after, dir.at_end) = (cookie, false);
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `dir` is a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_closedir(dir: *mut weft_dir) -> c_int {
    call("weft_closedir", || {
        // SAFETY: as the caller promises.
        drop(unsafe { take(dir)? });
        Ok(0)
    })
}
