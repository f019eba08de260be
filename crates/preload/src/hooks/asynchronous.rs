//! `aio_read` and related functions. The calling thread does the I/O before the call returns.
//!
//! ```text
//!   aio_read ──► I/O ──► store the result where libc reads it ──► notify the program (signal or thread)
//!   aio_error, aio_return, aio_suspend, aio_cancel     libc's own: they read that result
//! ```
//!
//! POSIX allows a request to complete at any time, also at once. libc handles requests for local files.

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::{off_t, sigevent, size_t, ssize_t};

use super::files;
use crate::guard::{Errno, address, enter, errno, system};
use crate::real::hooks;
use crate::table::find;
use weft_client::c::set_errno;

/// `struct aiocb` of glibc.
#[repr(C)]
pub(crate) struct Request {
    fd: c_int,
    what: c_int,
    priority: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    event: sigevent,
    next: *mut Request,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    result: ssize_t,
    offset: off_t,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::aiocb>(), "as libc has it");

/// `AIO_PRIO_DELTA_MAX`.
const PRIORITY_MAX: c_int = 20;

hooks! {
    fn aio_read = aio_read64(request: *mut Request) -> c_int {
        if find((*request).fd).is_none() { aio_read::real(request) } else { submit(request, libc::LIO_READ) }
    }

    fn aio_write = aio_write64(request: *mut Request) -> c_int {
        if find((*request).fd).is_none() { aio_write::real(request) } else { submit(request, libc::LIO_WRITE) }
    }

    fn aio_fsync = aio_fsync64(operation: c_int, request: *mut Request) -> c_int {
        if find((*request).fd).is_none() {
            return aio_fsync::real(operation, request);
        }
        if operation != libc::O_SYNC && operation != libc::O_DSYNC {
            return enter(|| Err(Errno(libc::EINVAL)));
        }
        note(request, files::fsync((*request).fd) as ssize_t);
        notify(&(*request).event);
        0
    }

    fn lio_listio = lio_listio64(mode: c_int, list: *const *mut Request, count: c_int, event: *mut sigevent) -> c_int {
        if count <= 0 || !matches!(mode, libc::LIO_WAIT | libc::LIO_NOWAIT) {
            return lio_listio::real(mode, list, count, event);
        }
        // Requests for local files go to libc, in a list with NULL for the others. libc also notifies the
        // program when all are done.
        let others = libc::calloc(count as size_t, size_of::<*mut Request>()).cast::<*mut Request>();
        if others.is_null() {
            return enter(|| Err(Errno(libc::EAGAIN)));
        }
        let mut failed = false;
        for at in 0..count as usize {
            let request = *list.add(at);
            if request.is_null() || (*request).what == libc::LIO_NOP || find((*request).fd).is_none() {
                *others.add(at) = request;
                continue;
            }
            let refused = submit(request, (*request).what) != 0;
            failed = failed || refused || mode == libc::LIO_WAIT && (*request).error != 0;
        }
        let result = lio_listio::real(mode, others, count, event);
        libc::free(others.cast());
        if failed && result == 0 { enter(|| Err(Errno(libc::EIO))) } else { result }
    }
}

/// Executes a request. Fails only if the request is invalid.
///
/// # Safety
/// `request` is valid as in C.
unsafe fn submit(request: *mut Request, what: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let Request { fd, buffer, bytes, offset, priority, .. } = ptr::read(request);
        let makes_sense =
            (0..=PRIORITY_MAX).contains(&priority) && matches!(what, libc::LIO_READ | libc::LIO_WRITE);
        if !makes_sense {
            set_errno(libc::EINVAL);
            note(request, -1);
            return -1;
        }
        let moved = match what {
            libc::LIO_READ => files::pread(fd, buffer, bytes, offset),
            _ => files::pwrite(fd, buffer, bytes, offset),
        };
        note(request, moved);
        notify(&(*request).event);
        0
    }
}

/// Stores the result where libc reads it.
///
/// # Safety
/// `request` is live.
unsafe fn note(request: *mut Request, result: ssize_t) {
    // SAFETY: as the caller promises.
    unsafe {
        (*request).result = result;
        (*request).error = if result < 0 { errno() } else { 0 };
    }
}

/// The argument of a notification thread.
struct Notice {
    function: unsafe extern "C" fn(libc::sigval),
    value: libc::sigval,
}

/// `struct sigevent` for notification by a thread.
#[repr(C)]
struct ByThread {
    value: libc::sigval,
    signal: c_int,
    how: c_int,
    function: Option<unsafe extern "C" fn(libc::sigval)>,
    attributes: *const libc::pthread_attr_t,
}

const _: () = assert!(size_of::<ByThread>() <= size_of::<sigevent>(), "a part of it");

/// Notifies the program that a request is done, as requested.
///
/// # Safety
/// `event` is valid as in C.
unsafe fn notify(event: &sigevent) {
    // SAFETY: as the caller promises.
    unsafe {
        match event.sigev_notify {
            libc::SIGEV_SIGNAL => signal(event),
            libc::SIGEV_THREAD => start_thread(ptr::from_ref(event).cast()),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`notify`].
unsafe fn signal(event: &sigevent) {
    #[repr(C)]
    struct Info {
        signal: c_int,
        errno: c_int,
        code: c_int,
        padding: c_int,
        pid: c_int,
        uid: libc::uid_t,
        value: libc::sigval,
        rest: [u64; 12],
    }
    const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>(), "as the kernel has it");
    // SAFETY: no preconditions.
    let (pid, uid) = unsafe { (libc::getpid(), libc::getuid()) };
    let info = Info {
        signal: event.sigev_signo,
        errno: 0,
        code: libc::SI_ASYNCIO,
        padding: 0,
        pid,
        uid,
        value: event.sigev_value,
        rest: [0; 12],
    };
    let _ = system(libc::SYS_rt_sigqueueinfo, [pid as usize, info.signal as usize, address(&info), 0, 0, 0]);
}

/// # Safety
/// As for [`notify`].
unsafe fn start_thread(event: *const ByThread) {
    // SAFETY: as the caller promises. The notice belongs to the thread and is allocated by libc, since
    // signals may arrive here.
    unsafe {
        let Some(function) = (*event).function else { return };
        let notice = libc::malloc(size_of::<Notice>()).cast::<Notice>();
        let mut detached: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut detached);
        libc::pthread_attr_setdetachstate(&mut detached, libc::PTHREAD_CREATE_DETACHED);
        let attributes =
            if (*event).attributes.is_null() { &raw const detached } else { (*event).attributes };
        if !notice.is_null() {
            notice.write(Notice { function, value: (*event).value });
            let mut thread = std::mem::zeroed();
            if libc::pthread_create(&mut thread, attributes, run, notice.cast()) != 0 {
                libc::free(notice.cast());
            }
        }
        libc::pthread_attr_destroy(&mut detached);
    }
}

extern "C" fn run(notice: *mut c_void) -> *mut c_void {
    // SAFETY: `start_thread` passes it to this thread.
    unsafe {
        let Notice { function, value } = notice.cast::<Notice>().read();
        libc::free(notice);
        function(value);
    }
    ptr::null_mut()
}
