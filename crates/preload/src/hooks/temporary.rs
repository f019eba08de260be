//! Temporary names: `mkstemp` and related functions, whose internal calls would not reach the hooks.

use std::ffi::{CStr, c_char, c_int};

use crate::dispatch::place_of;
use crate::guard::{Errno, enter};
use crate::paths::Place;
use crate::real::hooks;

const MARKS: &[u8] = b"XXXXXX";
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const ATTEMPTS: u32 = 1000;

hooks! {
    fn mkstemp = mkstemp64(template: *mut c_char) -> c_int {
        if is_ours(template) { make(template, 0, |path| open_new(path, 0)) } else { mkstemp::real(template) }
    }

    fn mkostemp = mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
        if is_ours(template) { make(template, 0, |path| open_new(path, flags)) } else { mkostemp::real(template, flags) }
    }

    fn mkstemps = mkstemps64(template: *mut c_char, suffix_bytes: c_int) -> c_int {
        if is_ours(template) {
            make(template, suffix_bytes, |path| open_new(path, 0))
        } else {
            mkstemps::real(template, suffix_bytes)
        }
    }

    fn mkostemps = mkostemps64(template: *mut c_char, suffix_bytes: c_int, flags: c_int) -> c_int {
        if is_ours(template) {
            make(template, suffix_bytes, |path| open_new(path, flags))
        } else {
            mkostemps::real(template, suffix_bytes, flags)
        }
    }

    fn mktemp(template: *mut c_char) -> *mut c_char {
        if !is_ours(template) {
            return mktemp::real(template);
        }
        // Finds a name that does not exist. An existing name counts as a failed creation.
        let unused = |path| match super::attributes::faccessat(libc::AT_FDCWD, path, libc::F_OK, libc::AT_SYMLINK_NOFOLLOW) {
            0 => enter(|| Err(Errno(libc::EEXIST))),
            _ => 0,
        };
        if make(template, 0, unused) < 0 {
            *template = 0;
        }
        template
    }

    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        if !is_ours(template) {
            return mkdtemp::real(template);
        }
        let made = make(template, 0, |path| super::names::mkdir(path, 0o700));
        if made < 0 { std::ptr::null_mut() } else { template }
    }
}

/// # Safety
/// The template is NULL or ends with a zero.
unsafe fn is_ours(template: *const c_char) -> bool {
    // SAFETY: as the caller promises.
    matches!(unsafe { place_of(libc::AT_FDCWD, template) }, Some(Place::Weft(_)))
}

unsafe fn open_new(path: *const c_char, flags: c_int) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: as the caller promises.
    unsafe { super::opening::open(path, flags, 0o600) }
}

/// Fills in letters until `create` succeeds with the name.
unsafe fn make(template: *mut c_char, suffix_bytes: c_int, create: impl Fn(*const c_char) -> c_int) -> c_int {
    // SAFETY: C passes a string that may be changed.
    let bytes = unsafe { CStr::from_ptr(template) }.to_bytes();
    let end = usize::try_from(suffix_bytes).ok().and_then(|suffix| bytes.len().checked_sub(suffix));
    let Some(start) =
        end.and_then(|end| end.checked_sub(MARKS.len())).filter(|at| bytes[*at..].starts_with(MARKS))
    else {
        return enter(|| Err(Errno(libc::EINVAL)));
    };
    for _ in 0..ATTEMPTS {
        let mut random = [0u8; MARKS.len()];
        // SAFETY: a live buffer.
        unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
        for (at, byte) in random.iter().enumerate() {
            // SAFETY: within the string.
            unsafe { *template.add(start + at) = LETTERS[usize::from(*byte) % LETTERS.len()] as c_char };
        }
        let made = create(template);
        if made >= 0 || crate::guard::errno() != libc::EEXIST {
            return made;
        }
    }
    enter(|| Err(Errno(libc::EEXIST)))
}
