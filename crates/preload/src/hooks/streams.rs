//! `fopen` and the like. libc reads and writes a `FILE` by system calls that reach no hook. So a stream on a
//! file in Weft uses functions of this library; see [`super::standard_streams`].

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use libc::FILE;

use super::standard_streams::{begin_again, is_ours, stream, variable};
use super::{descriptors, opening, wide_streams};
use crate::dispatch::place_of;
use crate::guard::{Errno, enter};
use crate::paths::Place;
use crate::real::hooks;
use crate::table::find;

hooks! {
    fn fopen = fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        match place_of(libc::AT_FDCWD, path) {
            None => fopen::real(path, mode),
            Some(Place::Elsewhere(other)) => fopen::real(other.as_ptr(), mode),
            Some(Place::Local) => {
                let stream = fopen::real(path, mode);
                // libc's own `open` does not find a link from a local path into Weft.
                if stream.is_null() && crate::guard::errno() == libc::ENOENT { open_stream(path, mode) } else { stream }
            }
            Some(Place::Weft(_)) => open_stream(path, mode),
        }
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        match find(fd) {
            None => fdopen::real(fd, mode),
            Some(open) => on_descriptor(fd, open.flags(), mode),
        }
    }

    fn freopen = freopen64(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE {
        let is_weft = matches!(place_of(libc::AT_FDCWD, path), Some(Place::Weft(_)));
        if is_weft || is_ours(old) { reopen(path, mode, old) } else { freopen::real(path, mode, old) }
    }
}

/// A stream on a descriptor in Weft, which was opened with these flags.
unsafe fn on_descriptor(fd: c_int, flags: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: C passes a string.
    unsafe {
        let Some(wanted) = flags_of(mode) else { return enter(|| Err(Errno(libc::EINVAL))) };
        let (access, is_all) = (flags & libc::O_ACCMODE, |access| access == libc::O_RDWR);
        if !is_all(access) && access != wanted & libc::O_ACCMODE {
            return enter(|| Err(Errno(libc::EINVAL)));
        }
        if wanted & libc::O_APPEND != 0 && flags & libc::O_APPEND == 0 {
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_APPEND);
        }
        if wanted & libc::O_CLOEXEC != 0 {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        if wide_streams::refuses_mode(mode) { ptr::null_mut() } else { stream(fd, mode) }
    }
}

/// `freopen` of a stream of ours, or to a file in Weft. The program may go on with the old pointer. So a stream
/// of ours stays, with another file on its descriptor. One of libc's cannot become ours: the program gets a new
/// one, and the old one fails with `EBADF`.
unsafe fn reopen(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE {
    // SAFETY: C passes strings and a live stream.
    unsafe {
        libc::fflush(old);
        let fd = libc::fileno(old);
        let opened = match flags_of(mode) {
            None => enter(|| Err(Errno(libc::EINVAL))),
            Some(_) if wide_streams::refuses_mode(mode) => -1,
            Some(flags) if path.is_null() => {
                opening::open(crate::shared::link_name(fd).as_ptr().cast(), flags, 0o666)
            }
            Some(flags) => opening::open(path, flags, 0o666),
        };
        if opened < 0 {
            let before = crate::guard::errno();
            leave_nothing_on(fd);
            weft_client::c::set_errno(before);
            return ptr::null_mut();
        }
        let is_standard = (0..3).any(|standard| *variable(standard) == old);
        if !is_standard && !is_ours(old) {
            leave_nothing_on(fd);
            return stream(opened, mode);
        }
        descriptors::dup2(opened, fd);
        descriptors::close(opened);
        if flags_of(mode).is_some_and(|flags| flags & libc::O_CLOEXEC != 0) {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        let now = if is_standard { *variable(fd) } else { old };
        if is_ours(now) {
            begin_again(now, mode);
        } else {
            libc::clearerr(now);
        }
        now
    }
}

/// Replaces a descriptor by one that nothing can be read from or written to.
unsafe fn leave_nothing_on(fd: c_int) {
    // SAFETY: a string, and descriptors.
    unsafe {
        let nothing = libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        if fd >= 0 && nothing >= 0 {
            descriptors::dup2(nothing, fd);
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        descriptors::close(nothing);
    }
}

/// Flags of `open` for a mode of `fopen`.
unsafe fn flags_of(mode: *const c_char) -> Option<c_int> {
    // SAFETY: C passes a string.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let mode = mode.split(|byte| *byte == b',').next().unwrap_or_default();
    let plus = mode.contains(&b'+');
    let access = |alone| if plus { libc::O_RDWR } else { alone };
    let flags = match mode.first()? {
        b'r' => access(libc::O_RDONLY),
        b'w' => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        b'a' => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    let flag = |letter: u8, flag| if mode.contains(&letter) { flag } else { 0 };
    Some(flags | flag(b'x', libc::O_EXCL) | flag(b'e', libc::O_CLOEXEC))
}

unsafe fn open_stream(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: C passes strings.
    unsafe {
        let Some(flags) = flags_of(mode) else { return enter(|| Err(Errno(libc::EINVAL))) };
        if wide_streams::refuses_mode(mode) {
            return ptr::null_mut();
        }
        let fd = opening::open(path, flags, 0o666);
        if fd < 0 { ptr::null_mut() } else { stream(fd, mode) }
    }
}
