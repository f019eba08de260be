//! The boundary between the program and this library: blocked signals, errno, and panics.
//!
//! ```text
//!   program ──► hook ──► enter( signals blocked, no cancellation, INSIDE ) ──► client ──► servers
//!                                                            │ its own libc calls arrive here as hooks,
//!                                                            └ see INSIDE, and continue to libc
//! ```
//!
//! A signal that arrives meanwhile is delivered when the operation is over, as with local files. So a handler
//! never interrupts the client, and may call anything.

use std::cell::Cell;
use std::ffi::{CString, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use weft_client::c::set_errno;
use weft_client::{Error, ErrorKind};

use crate::real::Real;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The program's signal mask while the thread is inside.
    static OWN_MASK: Cell<*const libc::sigset_t> = const { Cell::new(std::ptr::null()) };
    /// Whether a call that a signal interrupted is restarted after the handler.
    static GOES_ON: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// The errno of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        warn_once(&error);
        Errno(error.errno())
    }
}

/// The result of functions inside.
pub(crate) type Outcome<T> = Result<T, Errno>;

/// Types with a value that means failure in C.
pub(crate) trait Returned {
    /// -1 or NULL.
    const FAILED: Self;
}

impl Returned for i32 {
    const FAILED: i32 = -1;
}
impl Returned for i64 {
    const FAILED: i64 = -1;
}
impl Returned for isize {
    const FAILED: isize = -1;
}
impl<T> Returned for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// Whether the calling thread is already inside this library.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// While it lives, the thread is inside.
struct Inside {
    signals: MaybeUninit<libc::sigset_t>,
    cancel_state: c_int,
}

impl Inside {
    fn begin() -> Inside {
        let mut inside = Inside { signals: MaybeUninit::uninit(), cancel_state: 0 };
        let mut all = MaybeUninit::uninit();
        // SAFETY: the pointers are to live values. Signals for faults of the thread itself are not blocked.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for fault in
                [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT]
            {
                libc::sigdelset(all.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), inside.signals.as_mut_ptr());
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut inside.cancel_state);
        }
        INSIDE.set(true);
        inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
        let mut ours = 0;
        // SAFETY: the set and the state were written by `begin`.
        unsafe {
            pthread_setcancelstate(self.cancel_state, &mut ours);
            libc::pthread_sigmask(libc::SIG_SETMASK, self.signals.as_ptr(), std::ptr::null_mut());
        }
    }
}

/// Runs `body` inside. Returns -1 or NULL, and sets errno, on failure.
pub(crate) fn enter<T: Returned>(body: impl FnOnce() -> Outcome<T>) -> T {
    match within(body) {
        Ok(value) => value,
        Err(Errno(errno)) => {
            set_errno(errno);
            T::FAILED
        }
    }
}

/// Runs `body` inside. errno does not change. A panic becomes `EIO`: it never crosses into C.
pub(crate) fn within<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let before = errno();
    let inside = (!is_inside()).then(Inside::begin);
    if let Some(inside) = &inside {
        OWN_MASK.set(inside.signals.as_ptr());
    }
    // All requests of one call have the same trace id.
    let trace = weft_log::trace::Scope::begin();
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno(libc::EIO)));
    drop((trace, inside));
    set_errno(before);
    result
}

/// Runs `body` inside. A panic ends it, and is not reported.
pub(crate) fn run_inside(body: impl FnOnce()) {
    let _ = within(|| {
        body();
        Ok(())
    });
}

/// Runs `body`, a wait that [`is_signal_due`] ends. Repeats it if the signal's handler restarts system calls
/// (`SA_RESTART`).
pub(crate) fn enter_wait(mut body: impl FnMut() -> Outcome<c_int>) -> c_int {
    loop {
        GOES_ON.set(false);
        let result = enter(&mut body);
        if result != -1 || errno() != libc::EINTR || !GOES_ON.get() {
            return result;
        }
    }
}

/// Whether a signal is pending that would end a wait in the kernel.
pub(crate) fn is_signal_due() -> bool {
    let own_mask = OWN_MASK.get();
    let mut pending = MaybeUninit::uninit();
    // SAFETY: the pointers are to live values; the mask is that of this thread's `Inside`.
    unsafe {
        if own_mask.is_null() || libc::sigpending(pending.as_mut_ptr()) != 0 {
            return false;
        }
        for signal in 1..=libc::SIGRTMAX() {
            if libc::sigismember(pending.as_ptr(), signal) != 1 || libc::sigismember(own_mask, signal) == 1 {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            let harmless = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH].contains(&signal);
            match action.sa_sigaction {
                libc::SIG_IGN => continue,
                libc::SIG_DFL if harmless => continue,
                libc::SIG_DFL => GOES_ON.set(true),
                _ => GOES_ON.set(action.sa_flags & libc::SA_RESTART != 0),
            }
            return true;
        }
    }
    false
}

type Syscall = unsafe extern "C" fn(libc::c_long, usize, usize, usize, usize, usize, usize) -> libc::c_long;

static SYSCALL: Real = Real::new(c"syscall");

/// Makes a system call that reaches no hook and does not change errno.
pub(crate) fn system(number: libc::c_long, arguments: [usize; 6]) -> Outcome<usize> {
    let before = errno();
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: libc's `syscall` passes on as many arguments as the system call has. Callers pass those of this
    // one.
    let result = unsafe {
        let syscall: Syscall = std::mem::transmute(SYSCALL.get());
        syscall(number, a, b, c, d, e, f)
    };
    let outcome = if result == -1 { Err(Errno(errno())) } else { Ok(result as usize) };
    set_errno(before);
    outcome
}

/// An address as an argument of [`system`].
pub(crate) fn address<T>(place: *const T) -> usize {
    place.cast::<c_void>() as usize
}

static HAS_WARNED: AtomicBool = AtomicBool::new(false);

/// Reports on standard error, once, why the cluster cannot be used.
fn warn_once(error: &Error) {
    let is_worth_it =
        matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Untrusted | ErrorKind::Configuration);
    if is_worth_it && !HAS_WARNED.swap(true, Ordering::Relaxed) {
        warn(&error.to_string());
    }
}

static HAS_TOLD_OF_KERNEL: AtomicBool = AtomicBool::new(false);

/// The error for what would pass through a fifo or a socket with a name in Weft. Said on standard error, once.
pub(crate) fn nothing_passes() -> Errno {
    if !HAS_TOLD_OF_KERNEL.swap(true, Ordering::Relaxed) {
        warn(
            "fifos and sockets in Weft have only names under weft run, and nothing passes through them; use a \
             local directory for them, or a mount",
        );
    }
    Errno(libc::EOPNOTSUPP)
}

/// Writes a line to standard error, unless that is a file in Weft.
pub(crate) fn warn(text: &str) {
    let line = CString::new(format!("weft: {text}\n")).unwrap_or_default();
    let place = address(line.as_ptr());
    let _ = system(libc::SYS_write, [2, place, line.as_bytes().len(), 0, 0, 0]);
}
