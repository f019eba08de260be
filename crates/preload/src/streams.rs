//! `FILE` streams. libc reads and writes them by system calls that reach no hook. So streams on files in Weft
//! use functions of this library (`fopencookie`) and the descriptor's number, which `fileno` returns.
//!
//! ```text
//!   fopen("/weft/a")                    our stream on the descriptor
//!   bash: exec 1>/weft/log; echo x      `stdout` points to our stream as long as descriptor 1 is in Weft
//!   cat > /weft/log                     the same, before `main`
//! ```

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{FILE, off64_t, size_t, ssize_t};

use crate::guard::{Errno, enter, is_inside};
use crate::hooks::{descriptors, files, opening};
use crate::paths::{Place, place_of};
use crate::real::hooks;
use crate::table::find;

/// Size of a stream's buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// The offset of `_fileno` in glibc's `FILE`, on all 64-bit machines.
const FILENO_OFFSET: usize = 112;

#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// Our streams on descriptors 0, 1 and 2, once there were any.
static OURS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];
/// libc's standard streams.
static LIBCS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];
static ENDING: AtomicBool = AtomicBool::new(false);

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

/// The variable of a standard stream.
fn variable(fd: c_int) -> *mut *mut FILE {
    match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
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

/// Creates our stream on a descriptor.
unsafe fn stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions =
        Functions { read: read_cookie, write: write_cookie, seek: seek_cookie, close: close_cookie };
    // SAFETY: the functions take the cookie, a number. The layout of `FILE` is part of glibc's interface for
    // programs.
    unsafe {
        let stream = fopencookie(fd as usize as *mut c_void, mode, functions);
        if !stream.is_null() {
            stream.cast::<u8>().add(FILENO_OFFSET).cast::<c_int>().write(fd);
            libc::setvbuf(stream, ptr::null_mut(), libc::_IOFBF, BUFFER_BYTES);
        }
        stream
    }
}

unsafe extern "C" fn read_cookie(cookie: *mut c_void, buffer: *mut c_char, bytes: size_t) -> ssize_t {
    // SAFETY: the stream's buffer.
    unsafe { files::read(cookie as usize as c_int, buffer.cast(), bytes) }
}

unsafe extern "C" fn write_cookie(cookie: *mut c_void, buffer: *const c_char, bytes: size_t) -> ssize_t {
    // SAFETY: the stream's buffer. A cookie's failure is 0, not -1.
    unsafe { files::write(cookie as usize as c_int, buffer.cast(), bytes) }.max(0)
}

unsafe extern "C" fn seek_cookie(cookie: *mut c_void, position: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: the stream's position.
    unsafe {
        let found = files::lseek(cookie as usize as c_int, *position, whence);
        if found < 0 {
            return -1;
        }
        *position = found;
    }
    0
}

unsafe extern "C" fn close_cookie(cookie: *mut c_void) -> c_int {
    let fd = cookie as usize as c_int;
    if let Some(ours) = OURS.get(fd as usize) {
        ours.store(ptr::null_mut(), Ordering::Release);
    }
    // SAFETY: no preconditions.
    unsafe { descriptors::close(fd) }
}

/// Called after a descriptor was opened, copied to or closed: a standard stream follows it between libc and
/// Weft.
pub(crate) fn after_change(fd: c_int) {
    let Ok(at) = usize::try_from(fd) else { return };
    if at >= OURS.len() || is_inside() && OURS[at].load(Ordering::Acquire).is_null() && find(fd).is_none() {
        return;
    }
    // SAFETY: the variables are libc's, and point to streams that are never freed.
    unsafe {
        let variable = variable(fd);
        let ours = OURS[at].load(Ordering::Acquire);
        let is_ours = !ours.is_null() && *variable == ours;
        match (find(fd).is_some(), is_ours) {
            (true, false) => {
                let stream = if ours.is_null() { standard(fd) } else { ours };
                if stream.is_null() {
                    return;
                }
                LIBCS[at].store(*variable, Ordering::Release);
                OURS[at].store(stream, Ordering::Release);
                *variable = stream;
            }
            (false, true) => *variable = LIBCS[at].load(Ordering::Acquire),
            _ => {}
        }
    }
}

unsafe fn standard(fd: c_int) -> *mut FILE {
    // SAFETY: strings.
    unsafe {
        let stream = stream(fd, if fd == 0 { c"r".as_ptr() } else { c"w".as_ptr() });
        if fd == 2 && !stream.is_null() {
            libc::setvbuf(stream, ptr::null_mut(), libc::_IONBF, 0);
        }
        stream
    }
}

/// Called before `main`: standard descriptors may already be in Weft.
pub(crate) fn at_start() {
    for fd in 0..3 {
        after_change(fd);
    }
}

/// Called after `exit`: flushes our streams. Later writes are reported at once.
pub(crate) fn at_end() {
    for ours in &OURS {
        let stream = ours.load(Ordering::Acquire);
        if !stream.is_null() {
            // SAFETY: a live stream.
            unsafe { libc::fflush(stream) };
        }
    }
    ENDING.store(true, Ordering::Release);
}

/// Whether the program is ending.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Acquire)
}
