//! Open files: opening, positions, sizes, attributes.

use crate::guard::{Failure, Outcome, call};
use crate::handles::{array, borrow, give, result, take, weft_file, weft_fs};
use libc::{mode_t, off_t, size_t, ssize_t, stat, timespec};
use std::ffi::{c_char, c_int, c_void};
use std::io::SeekFrom;
use weft_client::{At, File, OpenOptions};
use weft_layout::Layout;
use weft_wire::messages::LayoutWish;

/// `struct weft_layout`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CLayout {
    /// Strip size.
    pub strip_bytes: u32,
    /// Servers.
    pub server_count: u16,
    /// 0.
    pub reserved: u16,
    /// First server of the ring; -1 in a wish: any.
    pub first_server: i32,
}

impl CLayout {
    pub(crate) fn wish(&self) -> Outcome<LayoutWish> {
        let first_server_plus_1 = u16::try_from(self.first_server + 1)
            .map_err(|_| Failure::invalid("first_server is -1 or a server of the ring"))?;
        Ok(LayoutWish { strip_bytes: self.strip_bytes, server_count: self.server_count, first_server_plus_1 })
    }

    pub(crate) fn of(layout: &Layout) -> CLayout {
        CLayout {
            strip_bytes: layout.strip_bytes(),
            server_count: layout.server_count(),
            reserved: 0,
            first_server: layout.first_server().into(),
        }
    }
}

/// # Safety
/// `path` is a string.
unsafe fn open(
    fs: &weft_fs,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    layout: Option<&CLayout>,
) -> Outcome<*mut weft_file> {
    let access = flags & libc::O_ACCMODE;
    let mut options = OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .create(flags & libc::O_CREAT != 0)
        .create_new(flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL)
        .truncate(flags & libc::O_TRUNC != 0)
        .follow(flags & libc::O_NOFOLLOW == 0)
        .sync(flags & (libc::O_SYNC | libc::O_DSYNC) != 0)
        .append(flags & libc::O_APPEND != 0)
        .mode(mode & 0o7777);
    if let Some(layout) = layout {
        options = options.layout(layout.wish()?);
    }
    // SAFETY: as the caller promises.
    let file = fs.client.open(unsafe { fs.at(path)? }, &options)?;
    Ok(give(weft_file { file, client: fs.client.clone() }))
}

/// See weft.h.
///
/// # Safety
/// `fs` is a handle, `path` a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_open(
    fs: *const weft_fs,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> *mut weft_file {
    // SAFETY: as the caller promises.
    call("weft_open", || unsafe { open(borrow(fs)?, path, flags, mode, None) })
}

/// See weft.h.
///
/// # Safety
/// As for `weft_open`; `layout` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_open_layout(
    fs: *const weft_fs,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    layout: *const CLayout,
) -> *mut weft_file {
    // SAFETY: as the caller promises.
    call("weft_open_layout", || unsafe { open(borrow(fs)?, path, flags, mode, layout.as_ref()) })
}

/// See weft.h.
///
/// # Safety
/// As for `weft_open_layout`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_creat(
    fs: *const weft_fs,
    path: *const c_char,
    mode: mode_t,
    layout: *const CLayout,
) -> *mut weft_file {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    // SAFETY: as the caller promises.
    call("weft_creat", || unsafe { open(borrow(fs)?, path, flags, mode, layout.as_ref()) })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle; `buffer` is valid for writing `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_file_export(
    file: *const weft_file,
    buffer: *mut c_void,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: as the caller promises.
    call("weft_file_export", || unsafe { fill(&borrow(file)?.file.export()?, buffer, bytes) })
}

/// See weft.h.
///
/// # Safety
/// As for `weft_file_export`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_file_share(
    file: *const weft_file,
    buffer: *mut c_void,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: as the caller promises.
    call("weft_file_share", || unsafe { fill(&borrow(file)?.file.share()?, buffer, bytes) })
}

/// Copies the description of an open file to where C wants it.
///
/// # Safety
/// `buffer` is valid for writing `bytes`.
unsafe fn fill(description: &[u8], buffer: *mut c_void, bytes: size_t) -> Outcome<ssize_t> {
    let needed = description.len();
    if bytes == 0 {
        return Ok(needed as ssize_t);
    }
    if buffer.is_null() {
        return Err(Failure::new(libc::EFAULT, "the buffer is NULL"));
    }
    if bytes < needed {
        let text = format!("the buffer is of {bytes} bytes, and {needed} are needed");
        return Err(Failure::new(libc::ERANGE, text));
    }
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(description.as_ptr(), buffer.cast(), needed) };
    Ok(needed as ssize_t)
}

/// See weft.h.
///
/// # Safety
/// `fs` is a handle; `buffer` is valid for reading `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_file_import(
    fs: *const weft_fs,
    buffer: *const c_void,
    bytes: size_t,
) -> *mut weft_file {
    call("weft_file_import", || {
        // SAFETY: as the caller promises.
        let (fs, exported) = unsafe { (borrow(fs)?, array(buffer.cast::<u8>(), bytes)?) };
        Ok(give(weft_file { file: fs.client.import(exported)?, client: fs.client.clone() }))
    })
}

/// See weft.h.
///
/// # Safety
/// As for `weft_file_import`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_file_import_shared(
    fs: *const weft_fs,
    buffer: *const c_void,
    bytes: size_t,
) -> *mut weft_file {
    call("weft_file_import_shared", || {
        // SAFETY: as the caller promises.
        let (fs, shared) = unsafe { (borrow(fs)?, array(buffer.cast::<u8>(), bytes)?) };
        Ok(give(weft_file { file: fs.client.import_shared(shared)?, client: fs.client.clone() }))
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_close(file: *mut weft_file) -> c_int {
    call("weft_close", || {
        // SAFETY: as the caller promises.
        unsafe { take(file)? }.file.close()?;
        Ok(0)
    })
}

pub(crate) fn position(offset: off_t) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Failure::invalid("the offset is negative"))
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_lseek(file: *const weft_file, offset: off_t, whence: c_int) -> off_t {
    call("weft_lseek", || {
        // SAFETY: as the caller promises.
        let file = &unsafe { borrow(file)? }.file;
        let target = match whence {
            libc::SEEK_DATA | libc::SEEK_HOLE => SeekFrom::Start(data_or_hole(file, offset, whence)?),
            libc::SEEK_SET => SeekFrom::Start(position(offset)?),
            libc::SEEK_CUR => SeekFrom::Current(offset),
            libc::SEEK_END => SeekFrom::End(offset),
            _ => {
                return Err(Failure::invalid(
                    "whence is SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE",
                ));
            }
        };
        Ok(file.seek(target)? as off_t)
    })
}

/// Where data or a hole is next.
fn data_or_hole(file: &File, offset: off_t, whence: c_int) -> Outcome<u64> {
    if file.has_view() {
        return Err(Failure::invalid("data and holes are the file's, and the cursor is in a view of it"));
    }
    let none = || Failure::new(libc::ENXIO, "the offset is at the end of the file, or no data follows");
    let offset = u64::try_from(offset).map_err(|_| none())?;
    let found = if whence == libc::SEEK_DATA { file.seek_data(offset) } else { file.seek_hole(offset) };
    found?.ok_or_else(none)
}

/// See weft.h.
///
/// # Safety
/// `from` and `to` are handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_copy_range(
    from: *const weft_file,
    from_offset: off_t,
    to: *const weft_file,
    to_offset: off_t,
    bytes: size_t,
) -> ssize_t {
    call("weft_copy_range", || {
        // SAFETY: as the caller promises.
        let (from, to) = unsafe { (borrow(from)?, borrow(to)?) };
        let (from_offset, to_offset) = (position(from_offset)?, position(to_offset)?);
        let bytes = (bytes as u64).min(isize::MAX as u64);
        Ok(to.client.copy_range(&from.file, from_offset, &to.file, to_offset, bytes)? as ssize_t)
    })
}

/// Defines a function of an open file that takes numbers only and returns 0.
macro_rules! on_file {
    ($($name:ident($file:ident $(, $argument:ident: $kind:ty)*) $body:block)*) => { $(
        /// See weft.h.
        ///
        /// # Safety
        /// `file` is a handle.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(file: *const weft_file $(, $argument: $kind)*) -> c_int {
            call(stringify!($name), || {
                // SAFETY: as the caller promises.
                let $file: &File = unsafe { &borrow(file)?.file };
                $body
                Ok(0)
            })
        }
    )* };
}

on_file! {
    weft_ftruncate(file, bytes: off_t) { file.truncate(position(bytes)?)?; }
    weft_punch(file, offset: off_t, bytes: off_t) { file.punch(position(offset)?, position(bytes)?)?; }
    weft_allocate(file, offset: off_t, bytes: off_t, keep_size: c_int) {
        file.allocate(position(offset)?, position(bytes)?, keep_size != 0)?;
    }
    weft_fallocate(file, mode: c_int, offset: off_t, bytes: off_t) {
        file.fallocate(mode, position(offset)?, position(bytes)?)?;
    }
    weft_fsync(file) { file.sync_data()?; }
    weft_fdatasync(file) {
        // Size and name are the matter of the handle that was shared.
        if file.is_covered() { file.sync_contents()?; } else { file.sync_data()?; }
    }
    weft_flush(file) { file.flush()?; }
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `status` valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fstat(file: *const weft_file, status: *mut stat) -> c_int {
    call("weft_fstat", || {
        // SAFETY: as the caller promises.
        let (file, status) = unsafe { (borrow(file)?, result("status", status)?) };
        *status = crate::names::status_with_blocks(&file.client, &file.file.stat()?)?;
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `times` NULL or two valid values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_futimens(file: *const weft_file, times: *const timespec) -> c_int {
    call("weft_futimens", || {
        // SAFETY: as the caller promises.
        let (file, changes) = unsafe { (borrow(file)?, crate::names::times_to_set(times)?) };
        // A report of writes after this would set the time of modification again.
        file.file.flush()?;
        file.client.setattr(At::ino(file.file.ino()), false, &changes)?;
        Ok(0)
    })
}

/// See weft.h.
///
/// # Safety
/// `file` is a handle, `layout` valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_fget_layout(file: *const weft_file, layout: *mut CLayout) -> c_int {
    call("weft_fget_layout", || {
        // SAFETY: as the caller promises.
        let (file, layout) = unsafe { (borrow(file)?, result("layout", layout)?) };
        *layout = CLayout::of(&file.file.layout());
        Ok(0)
    })
}
