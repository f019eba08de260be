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
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::{FILE, off64_t, size_t, ssize_t};

use super::{descriptors, files};
use crate::guard::is_inside;
use crate::table::find;

/// Size of a stream's buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// The offset of `_fileno` in glibc's `FILE`, on all 64-bit machines.
const FILENO_OFFSET: usize = 112;
/// Those of its table of functions, and of the function to read of a stream of `fopencookie`.
const VTABLE_OFFSET: usize = 216;
const READ_COOKIE_OFFSET: usize = 232;
/// glibc's flags of a `FILE`.
const NO_READS: c_int = 0x4;
const NO_WRITES: c_int = 0x8;
const IS_APPENDING: c_int = 0x1000;

#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn __fpurge(stream: *mut FILE);
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The table of functions of streams of `fopencookie`, once there were any.
static VTABLE: AtomicUsize = AtomicUsize::new(0);
/// [`read_cookie`], as glibc has it in a stream: mangled by a secret of the process.
static READ_COOKIE: AtomicUsize = AtomicUsize::new(0);
/// Our streams on descriptors 0, 1 and 2, once there were any.
static OURS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];
/// libc's standard streams.
static LIBCS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(ptr::null_mut()) }; 3];

/// The variable of a standard stream.
pub(super) fn variable(fd: c_int) -> *mut *mut FILE {
    match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    }
}

/// Creates our stream on a descriptor.
pub(super) unsafe fn stream(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions =
        Functions { read: read_cookie, write: write_cookie, seek: seek_cookie, close: close_cookie };
    // SAFETY: the functions take the cookie, a number. The layout of `FILE` is part of glibc's interface for
    // programs.
    unsafe {
        let stream = fopencookie(fd as usize as *mut c_void, mode, functions);
        if !stream.is_null() {
            READ_COOKIE.store(field(stream, READ_COOKIE_OFFSET), Ordering::Release);
            VTABLE.store(field(stream, VTABLE_OFFSET), Ordering::Release);
            stream.cast::<u8>().add(FILENO_OFFSET).cast::<c_int>().write(fd);
            libc::setvbuf(stream, ptr::null_mut(), libc::_IOFBF, BUFFER_BYTES);
            seek_to_start(stream, CStr::from_ptr(mode).to_bytes());
        }
        stream
    }
}

unsafe fn field(stream: *mut FILE, offset: usize) -> usize {
    // SAFETY: as the caller promises, the stream has a number there.
    unsafe { stream.cast::<u8>().add(offset).cast::<usize>().read() }
}

/// Whether a stream is one of [`stream`].
pub(super) unsafe fn is_ours(stream: *mut FILE) -> bool {
    // SAFETY: a live stream. Those with this table of functions have the cookie's functions behind it.
    unsafe {
        let is_cookie = !stream.is_null() && field(stream, VTABLE_OFFSET) == VTABLE.load(Ordering::Acquire);
        is_cookie && field(stream, READ_COOKIE_OFFSET) == READ_COOKIE.load(Ordering::Acquire)
    }
}

/// A stream that only appends begins at the end of the file.
unsafe fn seek_to_start(stream: *mut FILE, mode: &[u8]) {
    if mode.starts_with(b"a") && !mode.contains(&b'+') {
        let before = crate::guard::errno();
        // SAFETY: a live stream. What cannot seek has no position.
        unsafe { libc::fseek(stream, 0, libc::SEEK_END) };
        weft_client::c::set_errno(before);
    }
}

/// Has a stream of ours begin again with another file on its descriptor, and in this mode.
pub(super) unsafe fn begin_again(stream: *mut FILE, mode: *const c_char) {
    // SAFETY: a live stream of ours, whose flags are its first field, and a string.
    unsafe {
        let mode = CStr::from_ptr(mode).to_bytes();
        let flags = stream.cast::<c_int>();
        let wanted = match (mode.first(), mode.contains(&b'+')) {
            (Some(b'a'), true) => IS_APPENDING,
            (_, true) => 0,
            (Some(b'r'), _) => NO_WRITES,
            (Some(b'a'), _) => IS_APPENDING | NO_READS,
            _ => NO_READS,
        };
        __fpurge(stream);
        let before = crate::guard::errno();
        libc::fseek(stream, 0, libc::SEEK_SET);
        weft_client::c::set_errno(before);
        libc::clearerr(stream);
        flags.write(flags.read() & !(NO_READS | NO_WRITES | IS_APPENDING) | wanted);
        seek_to_start(stream, mode);
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

/// Called after `exit`: flushes our streams.
pub(crate) fn at_end() {
    for ours in &OURS {
        let stream = ours.load(Ordering::Acquire);
        if !stream.is_null() {
            // SAFETY: a live stream.
            unsafe { libc::fflush(stream) };
        }
    }
}
