//! Open directories.

use crate::guard::{Failure, Outcome, call};
use crate::handles::{borrow, give, result, take, weft_fs};
use libc::stat;
use std::ffi::{c_char, c_int};
use weft_client::ReadDir;
use weft_client::c::{entry_type, set_errno, stat_of};
use weft_wire::limits::NAME_BYTES_MAX;
use weft_wire::messages::Attr;

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
    entries: ReadDir,
    current: weft_dirent,
}

impl weft_dir {
    fn next(&mut self, with_attrs: bool) -> Outcome<Option<(&weft_dirent, Option<Attr>)>> {
        self.entries.set_attributes(with_attrs);
        let Some(entry) = self.entries.next() else { return Ok(None) };
        let entry = entry?;
        let current = &mut self.current;
        (current.ino, current.cookie, current.kind) = (entry.ino, entry.cookie, entry_type(entry.kind));
        let length = entry.name.len().min(NAME_BYTES_MAX);
        current.name[..length].copy_from_slice(&entry.name[..length]);
        current.name[length..].fill(0);
        Ok(Some((&self.current, entry.attr)))
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
        let mut entries = client.read_names(at)?;
        entries.fill()?;
        let current = weft_dirent { ino: 0, cookie: 0, kind: 0, name: [0; NAME_BYTES_MAX + 1] };
        Ok(give(weft_dir { entries, current }))
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
        let entry = dir.next(false)?.map_or(std::ptr::null(), |(entry, _)| std::ptr::from_ref(entry));
        set_errno(0);
        Ok(entry)
    })
}

/// See weft.h.
///
/// # Safety
/// As for `weft_readdir`; `status` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_readdir_plus(dir: *mut weft_dir, status: *mut stat) -> *const weft_dirent {
    call("weft_readdir_plus", || {
        // SAFETY: as the caller promises.
        let (dir, status) = unsafe { (result("directory", dir)?, result("status", status)?) };
        let entry = match dir.next(true)? {
            Some((entry, Some(attr))) => {
                *status = stat_of(&attr);
                std::ptr::from_ref(entry)
            }
            Some((entry, None)) => {
                let text = format!("the server did not tell the attributes of inode {}", entry.ino);
                return Err(Failure::new(libc::EPROTO, text));
            }
            None => std::ptr::null(),
        };
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
        unsafe { result("directory", dir)? }.entries.seek(cookie);
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
