//! Streams of wide characters.
//!
//! glibc has none of its buffers for wide characters in a stream of [`super::standard_streams`], which is one of bytes, and its functions
//! for them crash. Those here fail on such a stream as on any that bytes were read from or written to; those with a format
//! (`fwprintf`, `fwscanf`) look at its orientation themselves.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{FILE, size_t, wchar_t};

use super::standard_streams::variable;
use crate::guard::warn;
use crate::real::hooks;

/// A wide character, or [`WEOF`].
#[allow(non_camel_case_types)]
type wint_t = u32;
const WEOF: wint_t = u32::MAX;
/// Offsets of `_wide_data` and `_mode` in glibc's `FILE`, on all 64-bit machines.
const WIDE_DATA_OFFSET: usize = 160;
const MODE_OFFSET: usize = 192;
/// `_wide_data` of a stream that has no place for wide characters.
const NO_WIDE_DATA: usize = usize::MAX;

static HAS_TOLD: AtomicBool = AtomicBool::new(false);

/// Whether a stream is one of bytes and can be nothing else. If so, sets errno, and says so on standard error, once.
unsafe fn refuses(stream: *mut FILE) -> bool {
    // SAFETY: a stream of libc's, whose layout is part of its interface for programs.
    let (wide_data, mode) = unsafe {
        let stream = stream.cast::<u8>();
        (stream.add(WIDE_DATA_OFFSET).cast::<usize>().read(), stream.add(MODE_OFFSET).cast::<c_int>().read())
    };
    let refuses = mode < 0 && wide_data == NO_WIDE_DATA;
    if refuses {
        tell();
    }
    refuses
}

/// Whether a mode of `fopen` asks for a stream of wide characters (`ccs=`). If so, sets errno, and says so.
pub(super) unsafe fn refuses_mode(mode: *const c_char) -> bool {
    // SAFETY: C passes a string.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let refuses = mode.windows(5).any(|part| part == b",ccs=");
    if refuses {
        tell();
    }
    refuses
}

fn tell() {
    if !HAS_TOLD.swap(true, Ordering::Relaxed) {
        warn(
            "streams of files in Weft are for bytes only under weft run: functions for wide characters fail with EOPNOTSUPP; use \
             those for bytes, or a mount",
        );
    }
    weft_client::c::set_errno(libc::EOPNOTSUPP);
}

hooks! {
    fn fgetwc = getwc(stream: *mut FILE) -> wint_t {
        if refuses(stream) { WEOF } else { fgetwc::real(stream) }
    }

    fn fgetwc_unlocked = getwc_unlocked(stream: *mut FILE) -> wint_t {
        if refuses(stream) { WEOF } else { fgetwc_unlocked::real(stream) }
    }

    fn getwchar() -> wint_t {
        if refuses(*variable(0)) { WEOF } else { getwchar::real() }
    }

    fn getwchar_unlocked() -> wint_t {
        if refuses(*variable(0)) { WEOF } else { getwchar_unlocked::real() }
    }

    fn ungetwc(character: wint_t, stream: *mut FILE) -> wint_t {
        if refuses(stream) { WEOF } else { ungetwc::real(character, stream) }
    }

    fn fgetws(text: *mut wchar_t, characters: c_int, stream: *mut FILE) -> *mut wchar_t {
        if refuses(stream) { ptr::null_mut() } else { fgetws::real(text, characters, stream) }
    }

    fn fgetws_unlocked(text: *mut wchar_t, characters: c_int, stream: *mut FILE) -> *mut wchar_t {
        if refuses(stream) { ptr::null_mut() } else { fgetws_unlocked::real(text, characters, stream) }
    }

    fn __fgetws_chk(text: *mut wchar_t, room: size_t, characters: c_int, stream: *mut FILE) -> *mut wchar_t {
        if refuses(stream) { ptr::null_mut() } else { __fgetws_chk::real(text, room, characters, stream) }
    }

    fn __fgetws_unlocked_chk(
        text: *mut wchar_t,
        room: size_t,
        characters: c_int,
        stream: *mut FILE,
    ) -> *mut wchar_t {
        if refuses(stream) { ptr::null_mut() } else { __fgetws_unlocked_chk::real(text, room, characters, stream) }
    }

    fn fputwc = putwc(character: wchar_t, stream: *mut FILE) -> wint_t {
        if refuses(stream) { WEOF } else { fputwc::real(character, stream) }
    }

    fn fputwc_unlocked = putwc_unlocked(character: wchar_t, stream: *mut FILE) -> wint_t {
        if refuses(stream) { WEOF } else { fputwc_unlocked::real(character, stream) }
    }

    fn putwchar(character: wchar_t) -> wint_t {
        if refuses(*variable(1)) { WEOF } else { putwchar::real(character) }
    }

    fn putwchar_unlocked(character: wchar_t) -> wint_t {
        if refuses(*variable(1)) { WEOF } else { putwchar_unlocked::real(character) }
    }

    fn fputws(text: *const wchar_t, stream: *mut FILE) -> c_int {
        if refuses(stream) { -1 } else { fputws::real(text, stream) }
    }

    fn fputws_unlocked(text: *const wchar_t, stream: *mut FILE) -> c_int {
        if refuses(stream) { -1 } else { fputws_unlocked::real(text, stream) }
    }
}
