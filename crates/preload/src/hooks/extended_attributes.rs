//! Extended attributes.

use std::ffi::{c_char, c_int, c_void};

use libc::{size_t, ssize_t};

use crate::dispatch::{on_path, text};
use crate::guard::{Errno, Outcome, enter};
use crate::mounts::Made;
use crate::paths::Target;
use crate::privileges;
use crate::real::hooks;
use crate::table::find;

const HERE: c_int = libc::AT_FDCWD;
/// The longest name of an extended attribute, including its name space.
const XATTR_NAME_BYTES_MAX: usize = 255;

hooks! {
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t {
        let local = |_, path| getxattr::real(path, name, value, room);
        on_path(HERE, path, true, local, |target| get_xattr(inode(target, true)?, name, value, room))
    }

    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t {
        let local = |_, path| lgetxattr::real(path, name, value, room);
        on_path(HERE, path, false, local, |target| get_xattr(inode(target, false)?, name, value, room))
    }

    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, room: size_t) -> ssize_t where fd is open {
        get_xattr((open.mount.made()?, open.shared().ino), name, value, room)
    }

    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int) -> c_int {
        let local = |_, path| setxattr::real(path, name, value, bytes, flags);
        on_path(HERE, path, true, local, |target| set_xattr(inode(target, true)?, name, (value, bytes), flags))
    }

    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int) -> c_int {
        let local = |_, path| lsetxattr::real(path, name, value, bytes, flags);
        on_path(HERE, path, false, local, |target| set_xattr(inode(target, false)?, name, (value, bytes), flags))
    }

    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int) -> c_int
    where fd is open {
        set_xattr((open.mount.made()?, open.shared().ino), name, (value, bytes), flags)
    }

    fn listxattr(path: *const c_char, names: *mut c_char, room: size_t) -> ssize_t {
        let local = |_, path| listxattr::real(path, names, room);
        on_path(HERE, path, true, local, |target| list_xattrs(inode(target, true)?, names, room))
    }

    fn llistxattr(path: *const c_char, names: *mut c_char, room: size_t) -> ssize_t {
        let local = |_, path| llistxattr::real(path, names, room);
        on_path(HERE, path, false, local, |target| list_xattrs(inode(target, false)?, names, room))
    }

    fn flistxattr(fd: c_int, names: *mut c_char, room: size_t) -> ssize_t where fd is open {
        list_xattrs((open.mount.made()?, open.shared().ino), names, room)
    }

    fn removexattr(path: *const c_char, name: *const c_char) -> c_int {
        let local = |_, path| removexattr::real(path, name);
        on_path(HERE, path, true, local, |target| remove_xattr(inode(target, true)?, name))
    }

    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
        let local = |_, path| lremovexattr::real(path, name);
        on_path(HERE, path, false, local, |target| remove_xattr(inode(target, false)?, name))
    }

    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int where fd is open {
        remove_xattr((open.mount.made()?, open.shared().ino), name)
    }
}

fn inode(target: &Target, follow: bool) -> Outcome<(&'static Made, u64)> {
    let (made, at) = target.at()?;
    Ok((made, made.client.stat(at, follow)?.ino))
}

/// The name of an attribute.
///
/// # Safety
/// The name is NULL or ends with a zero.
unsafe fn name_of<'a>(name: *const c_char) -> Outcome<&'a [u8]> {
    // SAFETY: as the caller promises.
    let name = unsafe { text(name) }?;
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX { Err(Errno(libc::ERANGE)) } else { Ok(name) }
}

unsafe fn get_xattr(
    (made, ino): (&Made, u64),
    name: *const c_char,
    place: *mut c_void,
    room: size_t,
) -> Outcome<ssize_t> {
    // SAFETY: C passes a string, and a buffer of this size.
    unsafe { copy_out(&made.client.get_xattr(ino, name_of(name)?)?, place, room) }
}

unsafe fn set_xattr(
    (made, ino): (&Made, u64),
    name: *const c_char,
    (value, bytes): (*const c_void, size_t),
    flags: c_int,
) -> Outcome<c_int> {
    // SAFETY: C passes a string, and this many bytes.
    unsafe {
        let value = if bytes == 0 { &[] } else { std::slice::from_raw_parts(value.cast(), bytes) };
        made.client.set_xattr(ino, name_of(name)?, value, flags as u32)?;
    }
    privileges::given(ino);
    Ok(0)
}

unsafe fn list_xattrs((made, ino): (&Made, u64), place: *mut c_char, room: size_t) -> Outcome<ssize_t> {
    let names = made.client.list_xattrs(ino)?;
    let joined: Vec<u8> = names.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
    // SAFETY: C passes a buffer of this size.
    unsafe { copy_out(&joined, place.cast(), room) }
}

unsafe fn remove_xattr((made, ino): (&Made, u64), name: *const c_char) -> Outcome<c_int> {
    // SAFETY: C passes a string.
    made.client.remove_xattr(ino, unsafe { name_of(name)? })?;
    Ok(0)
}

/// Copies a value out, or returns its size if the buffer has size 0.
unsafe fn copy_out(value: &[u8], place: *mut c_void, room: size_t) -> Outcome<ssize_t> {
    if room != 0 {
        if value.len() > room {
            return Err(Errno(libc::ERANGE));
        }
        // SAFETY: as the caller promises; the value fits.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), place.cast(), value.len()) };
    }
    Ok(value.len() as ssize_t)
}
