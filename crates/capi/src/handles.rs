//! Connections, and how pointers become handles and paths again.

use crate::guard::{Failure, Outcome, call};
use std::ffi::OsStr;
use std::ffi::{CStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weft_client::{At, Client, ConnectOptions, File, Url};
use weft_wire::messages::ROOT_INO;

/// A connected file system (`weft_fs`).
#[allow(non_camel_case_types)]
pub struct weft_fs {
    pub(crate) client: Client,
    /// Where paths begin.
    root_ino: u64,
}

impl weft_fs {
    /// A path argument.
    ///
    /// # Safety
    /// As for [`bytes`].
    pub(crate) unsafe fn at<'a>(&self, path: *const c_char) -> Outcome<At<'a>> {
        // SAFETY: as the caller promises.
        Ok(At::child(self.root_ino, unsafe { bytes("path", path)? }))
    }
}

/// An open file (`weft_file`).
#[allow(non_camel_case_types)]
pub struct weft_file {
    pub(crate) file: File,
    pub(crate) client: Client,
}

/// `struct weft_connect_options`.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct weft_connect_options {
    /// Path of the file with the cluster's secret, or NULL.
    pub key_file: *const c_char,
    /// Longest wait for a server, or 0.
    pub timeout_ms: u32,
    /// Not 0: nobody waits for what is moved.
    pub background: u32,
    /// 0.
    pub reserved: [u32; 5],
}

/// The value behind a handle.
///
/// # Safety
/// `handle` is NULL or was returned by this library and not given back.
pub(crate) unsafe fn borrow<'a, T>(handle: *const T) -> Outcome<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::new(libc::EBADF, "the handle is NULL"))
}

/// Takes a handle back.
///
/// # Safety
/// As for [`borrow`], and it is not used any more.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Outcome<Box<T>> {
    if handle.is_null() {
        return Err(Failure::new(libc::EBADF, "the handle is NULL"));
    }
    // SAFETY: it came from Box::into_raw, and the caller gives it up.
    Ok(unsafe { Box::from_raw(handle) })
}

pub(crate) fn give<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// A string argument.
///
/// # Safety
/// `text` is NULL or ends with a zero, and lives as long as the result.
pub(crate) unsafe fn bytes<'a>(what: &str, text: *const c_char) -> Outcome<&'a [u8]> {
    if text.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// An array argument.
///
/// # Safety
/// It has `count` values, and lives as long as the result.
pub(crate) unsafe fn array<'a, T>(first: *const T, count: usize) -> Outcome<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::new(libc::EFAULT, "a list is NULL")),
        // SAFETY: as the caller promises.
        _ => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

/// A place for results.
///
/// # Safety
/// `place` is NULL, or valid for writing one value and used by nobody else.
pub(crate) unsafe fn result<'a, T>(what: &str, place: *mut T) -> Outcome<&'a mut T> {
    // SAFETY: as the caller promises.
    unsafe { place.as_mut() }.ok_or_else(|| Failure::invalid(format!("the {what} is NULL")))
}

/// See weft.h.
///
/// # Safety
/// `url` ends with a zero; `options` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_connect(
    url: *const c_char,
    options: *const weft_connect_options,
) -> *mut weft_fs {
    call("weft_connect", || {
        // SAFETY: as the caller promises.
        let text = unsafe { bytes("URL", url)? };
        let text = std::str::from_utf8(text).map_err(|_| Failure::invalid("the URL is not UTF-8"))?;
        let url = Url::parse(text).map_err(|error| Failure::invalid(error.to_string()))?;
        let mut wanted = ConnectOptions::default();
        // SAFETY: as the caller promises.
        if let Some(options) = unsafe { options.as_ref() } {
            if !options.key_file.is_null() {
                // SAFETY: as the caller promises.
                let path = unsafe { bytes("key file", options.key_file)? };
                wanted.key = Some(weft_client::read_key_file(Path::new(OsStr::from_bytes(path)))?);
            }
            wanted.background = options.background != 0;
            if options.timeout_ms != 0 {
                wanted.retry_timeout_ms = options.timeout_ms.into();
                wanted.connect_timeout_ms = wanted.connect_timeout_ms.min(wanted.retry_timeout_ms);
                wanted.reply_timeout_ms = wanted.reply_timeout_ms.min(wanted.retry_timeout_ms);
            }
        }
        let client = Client::connect(&url, wanted)?;
        let root_ino = if url.path() == "/" { ROOT_INO } else { client.stat(url.path(), true)?.ino };
        Ok(give(weft_fs { client, root_ino }))
    })
}

/// See weft.h.
///
/// # Safety
/// `fs` is from `weft_connect` and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_disconnect(fs: *mut weft_fs) -> c_int {
    call("weft_disconnect", || {
        // SAFETY: as the caller promises.
        drop(unsafe { take(fs)? });
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `fs` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_sync(fs: *const weft_fs) -> c_int {
    call("weft_sync", || {
        // SAFETY: as the caller promises.
        unsafe { borrow(fs)? }.client.sync_all()?;
        Ok(0)
    })
}
