//! `fopen` and the like. libc reads and writes a `FILE` by system calls that reach no hook. So a stream on a
//! file in Weft uses functions of this library; see [`super::standard_streams`].

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use libc::FILE;

use super::standard_streams::{stream, variable};
use super::{descriptors, opening};
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
        if find(fd).is_some() { stream(fd, mode) } else { fdopen::real(fd, mode) }
    }

    fn freopen = freopen64(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE {
        if !matches!(place_of(libc::AT_FDCWD, path), Some(Place::Weft(_))) {
            return freopen::real(path, mode, old);
        }
        let Some(flags) = flags_of(mode) else { return enter(|| Err(Errno(libc::EINVAL))) };
        let opened = opening::open(path, flags, 0o666);
        if opened < 0 {
            return ptr::null_mut();
        }
        libc::fflush(old);
        let standard = (0..3).find(|fd| *variable(*fd) == old);
        match standard {
            Some(fd) => {
                descriptors::dup2(opened, fd);
                descriptors::close(opened);
                *variable(fd)
            }
            None => {
                libc::fclose(old);
                stream(opened, mode)
            }
        }
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
        let fd = opening::open(path, flags, 0o666);
        if fd < 0 { ptr::null_mut() } else { stream(fd, mode) }
    }
}
