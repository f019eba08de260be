//! Hooks that take a path call libc or Weft here, depending on where the path is.
//!
//! ```text
//!   open("/tmp/l/b")   libc: ENOENT ──► a link /tmp/l -> /weft/a on the way? ──► Weft: /a/b
//!   open("/weft/l")    Weft: ENOENT ──► a link /l -> /etc/hosts?             ──► libc: /etc/hosts
//! ```

use std::ffi::{CStr, c_char, c_int};

use weft_client::c::set_errno;

use crate::guard::{Errno, Outcome, Returned, errno, is_inside, within};
use crate::links::{LINKS_MAX, through_links, through_local_links};
use crate::paths::{Place, Target, descriptor_of, resolve};
use crate::{cwd, mounts};

/// Calls `local` or `weft` for the place of a path. `follow`: also follow a symbolic link at its end.
///
/// # Safety
/// The path is NULL or ends with a zero.
pub(crate) unsafe fn on_path<T: Returned + PartialEq>(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    local: impl Fn(c_int, *const c_char) -> T,
    weft: impl Fn(&Target) -> Outcome<T>,
) -> T {
    // SAFETY: as the caller promises.
    let Some(mut place) = (unsafe { place_of(dirfd, path) }) else { return local(dirfd, path) };
    // SAFETY: as the caller promises.
    if !follow && descriptor_of(unsafe { CStr::from_ptr(path) }.to_bytes()).is_some() {
        return local(dirfd, path);
    }
    for _ in 0..LINKS_MAX {
        match &place {
            Place::Local => {
                let result = local(dirfd, path);
                if result != T::FAILED || errno() != libc::ENOENT || !mounts::has_prefix() {
                    return result;
                }
                // SAFETY: as the caller promises.
                let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
                match within(|| Ok(through_local_links(dirfd, bytes, follow))) {
                    Ok(Some(target)) => place = target,
                    _ => {
                        set_errno(libc::ENOENT);
                        return result;
                    }
                }
            }
            Place::Elsewhere(other) => return local(libc::AT_FDCWD, other.as_ptr()),
            Place::Weft(target) => {
                let before = errno();
                let outcome = within(|| match weft(target) {
                    Err(Errno(libc::ENOENT | libc::ENOTDIR))
                        if let Some(next) = through_links(target, follow)? =>
                    {
                        Ok(Err(next))
                    }
                    // The directory that the path begins in was removed.
                    Err(Errno(libc::ESTALE)) if target.directory() != 0 => Err(Errno(libc::ENOENT)),
                    other => other.map(Ok),
                });
                match outcome {
                    Ok(Ok(value)) => {
                        set_errno(before);
                        return value;
                    }
                    Ok(Err(next)) => place = next,
                    Err(Errno(errno)) => {
                        set_errno(errno);
                        return T::FAILED;
                    }
                }
            }
        }
    }
    set_errno(libc::ELOOP);
    T::FAILED
}

/// A text that a program gives beside a path: the target of a link, the name of an attribute.
///
/// # Safety
/// It is NULL or ends with a zero.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a [u8]> {
    match text.is_null() {
        true => Err(Errno(libc::EFAULT)),
        // SAFETY: as the caller promises.
        false => Ok(unsafe { CStr::from_ptr(text) }.to_bytes()),
    }
}

/// The place of a path; `None` if it is certainly not in Weft.
///
/// # Safety
/// The path is NULL or ends with a zero.
pub(crate) unsafe fn place_of(dirfd: c_int, path: *const c_char) -> Option<Place> {
    if path.is_null() || is_inside() {
        return None;
    }
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if bytes.len() >= libc::PATH_MAX as usize {
        // The kernel reports the error.
        return None;
    }
    let plain = !mounts::has_prefix() && !bytes.starts_with(b"weft:") && !bytes.is_empty();
    if plain && (bytes.starts_with(b"/") || dirfd == libc::AT_FDCWD && !cwd::is_inside()) {
        return None;
    }
    within(|| Ok(resolve(dirfd, bytes))).ok()
}
