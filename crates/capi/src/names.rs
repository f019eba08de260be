//! Names and attributes.

use crate::files::CLayout;
use crate::guard::{Failure, Outcome, call};
use crate::handles::{borrow, bytes, result, weft_fs};
use libc::{gid_t, mode_t, off_t, size_t, ssize_t, stat, statvfs, timespec, uid_t};
use std::ffi::{c_char, c_int, c_uint, c_void};
use weft_client::{Client, SetAttr, SetTime, c};
use weft_wire::limits::NAME_BYTES_MAX;
use weft_wire::messages::Attr;

const STATVFS_BLOCK_BYTES: u64 = 4096;

/// With the space that it takes.
pub(crate) fn status_with_blocks(client: &Client, attr: &Attr) -> Outcome<stat> {
    let mut status = c::stat_of(attr);
    status.st_blocks = client.blocks(attr)? as libc::blkcnt_t;
    Ok(status)
}

fn time_to_set(time: &timespec) -> Outcome<Option<SetTime>> {
    let teach = |_| Failure::invalid("nanoseconds are 0 to 999,999,999, UTIME_NOW or UTIME_OMIT");
    c::time_to_set(time).map_err(teach)
}

/// # Safety
/// `times` is NULL or two valid values.
pub(crate) unsafe fn times_to_set(times: *const timespec) -> Outcome<SetAttr> {
    if times.is_null() {
        return Ok(SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() });
    }
    // SAFETY: as the caller promises.
    let times = unsafe { &*times.cast::<[timespec; 2]>() };
    Ok(SetAttr { atime: time_to_set(&times[0])?, mtime: time_to_set(&times[1])?, ..SetAttr::default() })
}

/// Copies a value out as the calls of the system do: all of it, its size if nothing is asked for, or an
/// error.
///
/// # Safety
/// `place` is valid for writing `room` bytes.
unsafe fn copy_out(value: &[u8], place: *mut c_void, room: size_t) -> Outcome<ssize_t> {
    if room != 0 {
        if value.len() > room {
            return Err(Failure::new(libc::ERANGE, format!("{} bytes do not fit in {room}", value.len())));
        }
        // SAFETY: as the caller promises; the value fits.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), place.cast(), value.len()) };
    }
    Ok(value.len() as ssize_t)
}

/// Defines functions of a path; each returns what `$returned` makes of the body's value.
macro_rules! on_path {
    (
        $returned:expr => $returns:ty;
        $($name:ident($fs:ident, $client:ident, $at:ident $(, $argument:ident: $kind:ty)*) $body:block)*
    ) => { $(
        /// See weft.h.
        ///
        /// # Safety
        /// `fs` is a handle; pointers are NULL or to strings, structures or memory as weft.h says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fs: *const weft_fs,
            path: *const c_char
            $(, $argument: $kind)*
        ) -> $returns {
            // SAFETY: as the caller promises.
            call(stringify!($name), || unsafe {
                let $fs = borrow(fs)?;
                let $client = &$fs.client;
                let $at = $fs.at(path)?;
                Ok($returned($body))
            })
        }
    )* };
}

on_path! {
    |()| 0 => c_int;
    weft_stat(_fs, client, path, status: *mut stat) {
        *result("status", status)? = status_with_blocks(client, &client.stat(path, true)?)?;
    }
    weft_lstat(_fs, client, path, status: *mut stat) {
        *result("status", status)? = status_with_blocks(client, &client.stat(path, false)?)?;
    }
    weft_access(_fs, client, path, mode: c_int) { client.access(path, true, mode as u32)?; }
    weft_mkdir(_fs, client, path, mode: mode_t) { client.mkdir(path, mode & 0o7777)?; }
    weft_rmdir(_fs, client, path) { client.rmdir(path)?; }
    weft_unlink(_fs, client, path) { client.unlink(path)?; }
    weft_rename(fs, client, from, to: *const c_char, flags: c_uint) { client.rename(from, fs.at(to)?, flags)?; }
    weft_link(fs, client, from, to: *const c_char) { client.link(from, false, fs.at(to)?)?; }
    weft_truncate(_fs, client, path, size: off_t) {
        let size = u64::try_from(size).map_err(|_| Failure::invalid("the size is negative"))?;
        client.truncate(path, size)?;
    }
    weft_chmod(_fs, client, path, mode: mode_t) {
        client.setattr(path, true, &SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() })?;
    }
    weft_chown(_fs, client, path, owner: uid_t, group: gid_t) {
        client.setattr(path, true, &owners(owner, group))?;
    }
    weft_lchown(_fs, client, path, owner: uid_t, group: gid_t) {
        client.setattr(path, false, &owners(owner, group))?;
    }
    weft_utimens(_fs, client, path, times: *const timespec, flags: c_int) {
        if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 {
            return Err(Failure::invalid("flags are 0 or AT_SYMLINK_NOFOLLOW"));
        }
        client.setattr(path, flags == 0, &times_to_set(times)?)?;
    }
    weft_setxattr(_fs, client, path, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) {
        let value = if size == 0 { &[] } else { std::slice::from_raw_parts(value.cast(), size) };
        client.set_xattr(client.stat(path, true)?.ino, bytes("name", name)?, value, flags as u32)?;
    }
    weft_removexattr(_fs, client, path, name: *const c_char) {
        client.remove_xattr(client.stat(path, true)?.ino, bytes("name", name)?)?;
    }
    weft_get_layout(_fs, client, path, layout: *mut CLayout) {
        let attr = client.stat(path, true)?;
        let found = attr.layout.ok_or_else(|| Failure::new(libc::ENODATA, "it has no layout of its own"))?;
        *result("layout", layout)? = CLayout::of(&found);
    }
    weft_set_layout(_fs, client, path, layout: *const CLayout) {
        client.set_layout(path, layout.as_ref().map(CLayout::wish).transpose()?.as_ref())?;
    }
}

fn owners(owner: uid_t, group: gid_t) -> SetAttr {
    SetAttr {
        uid: (owner != uid_t::MAX).then_some(owner),
        gid: (group != gid_t::MAX).then_some(group),
        ..SetAttr::default()
    }
}

/// See weft.h.
///
/// # Safety
/// `fs` is a handle; `target` and `path` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_symlink(
    fs: *const weft_fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    call("weft_symlink", || unsafe {
        let fs = borrow(fs)?;
        fs.client.symlink(fs.at(path)?, bytes("target", target)?)?;
        Ok(0)
    })
}

on_path! {
    |bytes| bytes => ssize_t;
    weft_readlink(_fs, client, path, target: *mut c_char, room: size_t) {
        let found = client.readlink(path)?;
        copy_out(&found[..found.len().min(room)], target.cast(), room)?
    }
    weft_getxattr(_fs, client, path, name: *const c_char, value: *mut c_void, room: size_t) {
        let ino = client.stat(path, true)?.ino;
        copy_out(&client.get_xattr(ino, bytes("name", name)?)?, value, room)?
    }
    weft_listxattr(_fs, client, path, names: *mut c_char, room: size_t) {
        let found = client.list_xattrs(client.stat(path, true)?.ino)?;
        let joined: Vec<u8> = found.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
        copy_out(&joined, names.cast(), room)?
    }
}

/// See weft.h.
///
/// # Safety
/// `fs` is a handle, `space` valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_statvfs(fs: *const weft_fs, space: *mut statvfs) -> c_int {
    call("weft_statvfs", || {
        // SAFETY: as the caller promises.
        let (fs, space) = unsafe { (borrow(fs)?, result("space", space)?) };
        let found = fs.client.statfs_at(fs.client.stat("/", true)?.ino)?;
        // SAFETY: zeroed bytes are a valid `statvfs`.
        *space = unsafe { std::mem::zeroed() };
        space.f_bsize = STATVFS_BLOCK_BYTES;
        space.f_frsize = STATVFS_BLOCK_BYTES;
        space.f_blocks = found.space_bytes / STATVFS_BLOCK_BYTES;
        space.f_bfree = found.free_bytes / STATVFS_BLOCK_BYTES;
        space.f_bavail = found.available_bytes / STATVFS_BLOCK_BYTES;
        space.f_files = found.files;
        space.f_namemax = NAME_BYTES_MAX as u64;
        Ok(0)
    })
}
