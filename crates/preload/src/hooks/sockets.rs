//! Sockets that are bound to names: what passes through them is the kernel's, which knows no names in Weft.

use std::ffi::{CString, c_int};

use libc::{sockaddr, sockaddr_un, socklen_t};

use crate::dispatch::place_of;
use crate::guard::{enter, nothing_passes};
use crate::paths::Place;
use crate::real::hooks;

hooks! {
    fn bind(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int {
        if is_in_weft(address, bytes) { enter(|| Err(nothing_passes())) } else { bind::real(fd, address, bytes) }
    }

    fn connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int {
        if is_in_weft(address, bytes) { enter(|| Err(nothing_passes())) } else { connect::real(fd, address, bytes) }
    }
}

/// Whether it is the address of a Unix socket with a name in Weft.
///
/// # Safety
/// The address is NULL or has this length.
unsafe fn is_in_weft(address: *const sockaddr, bytes: socklen_t) -> bool {
    let path_at = std::mem::offset_of!(sockaddr_un, sun_path);
    if address.is_null() || (bytes as usize) <= path_at {
        return false;
    }
    // SAFETY: the caller says so; the family comes first, and the path behind it is as long as the rest.
    let (family, path) = unsafe {
        let path = std::slice::from_raw_parts(address.cast::<u8>().add(path_at), bytes as usize - path_at);
        ((*address).sa_family, path)
    };
    if c_int::from(family) != libc::AF_UNIX || path[0] == 0 {
        return false;
    }
    let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
    let Ok(path) = CString::new(&path[..end]) else { return false };
    // SAFETY: it ends with a zero.
    matches!(unsafe { place_of(libc::AT_FDCWD, path.as_ptr()) }, Some(Place::Weft(_)))
}
