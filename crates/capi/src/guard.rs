//! The border: errors become errno and a text, panics become `EIO`.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weft_client::c::set_errno;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static STRERROR: RefCell<CString> = RefCell::default();
}

/// Why a call failed.
pub(crate) struct Failure {
    errno: c_int,
    text: String,
}

impl Failure {
    /// An error of the caller's.
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Failure {
        Failure { errno, text: text.into() }
    }

    /// A bad argument.
    pub(crate) fn invalid(text: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, text)
    }
}

impl From<weft_client::Error> for Failure {
    fn from(error: weft_client::Error) -> Failure {
        Failure { errno: error.errno(), text: error.to_string() }
    }
}

impl From<weft_layout::LayoutError> for Failure {
    fn from(error: weft_layout::LayoutError) -> Failure {
        Failure::invalid(error.to_string())
    }
}

/// What the functions behind the border return.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Values that mean failure in C.
pub(crate) trait Returned {
    /// -1 or NULL.
    const FAILED: Self;
}

macro_rules! failed_is_minus_1 {
    ($($number:ty),*) => { $(impl Returned for $number { const FAILED: Self = -1; })* };
}
failed_is_minus_1!(i32, i64, isize);

impl<T> Returned for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}
impl<T> Returned for *const T {
    const FAILED: Self = std::ptr::null();
}

/// Runs `body` for the C function `name`.
pub(crate) fn call<T: Returned>(name: &str, body: impl FnOnce() -> Outcome<T>) -> T {
    // All requests of one call have one id.
    let _trace = weft_log::trace::Scope::begin();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(
            libc::EIO,
            "internal error of libweft; please report what was said on standard error",
        ),
    };
    let text = format!("{name}: {}", failure.text).replace('\0', " ");
    LAST_ERROR.set(CString::new(text).unwrap_or_default());
    set_errno(failure.errno);
    T::FAILED
}

/// The whole text of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn weft_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

/// Short text of an errno value.
#[unsafe(no_mangle)]
pub extern "C" fn weft_strerror(error: c_int) -> *const c_char {
    let mut buffer = [0u8; 128];
    // SAFETY: the buffer is as long as said; strerror_r ends what it writes with a zero.
    let status = unsafe { libc::strerror_r(error, buffer.as_mut_ptr().cast(), buffer.len()) };
    let text = CStr::from_bytes_until_nul(&buffer).ok().filter(|_| status == 0);
    STRERROR.set(text.unwrap_or(c"unknown error").to_owned());
    STRERROR.with_borrow(|text| text.as_ptr())
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn weft_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the text ends with a zero and lives until this thread's next failure.
        unsafe { CStr::from_ptr(weft_last_error()) }.to_str().unwrap().to_string()
    }

    #[test]
    fn failures_leave_errno_and_text() {
        let result: c_int = call("weft_x", || Err(Failure::new(libc::ENOTDIR, "no\0 directory")));
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTDIR));
        assert_eq!((result, last().as_str()), (-1, "weft_x: no  directory"));
    }

    #[test]
    fn panics_stop_at_the_border() {
        let result: *mut u8 = call("weft_x", || panic!("on purpose"));
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
        assert!(result.is_null() && last().contains("internal error"));
    }
}
