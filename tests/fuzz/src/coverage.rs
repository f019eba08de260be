//! Which code a program has reached, where it is built to count that (`-C passes=sancov-module`).
//!
//! The compiler gives every edge of the control flow a counter of 8 bits, and has each module register its counters when the
//! program starts.

use std::sync::Mutex;

/// The counters of a module.
struct Counters {
    begin: usize,
    bytes: usize,
}

static ALL: Mutex<Vec<Counters>> = Mutex::new(Vec::new());
/// By counter: whether it was ever other than 0.
static SEEN: Mutex<Vec<bool>> = Mutex::new(Vec::new());

/// Called by the start of each module whose code is counted.
///
/// # Safety
/// `begin` to `end` are counters that stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(begin: *mut u8, end: *mut u8) {
    let counters = Counters { begin: begin as usize, bytes: end as usize - begin as usize };
    ALL.lock().expect("no thread panics").push(counters);
}

/// Called by the start of each module, with tables that are not needed here.
#[unsafe(no_mangle)]
pub extern "C" fn __sanitizer_cov_pcs_init(_begin: *const usize, _end: *const usize) {}

/// Whether code was reached since the last call that never was before. Never where nothing is counted.
pub(crate) fn find_new() -> bool {
    let (all, mut seen) = (ALL.lock().expect("no thread panics"), SEEN.lock().expect("no thread panics"));
    let mut is_new = false;
    let mut first = 0;
    for counters in all.iter() {
        let known = seen.len().max(first + counters.bytes);
        seen.resize(known, false);
        for index in 0..counters.bytes {
            // SAFETY: the module has registered this byte, and it stays. Other threads count there meanwhile.
            let counter =
                unsafe { std::sync::atomic::AtomicU8::from_ptr((counters.begin + index) as *mut u8) };
            if counter.swap(0, std::sync::atomic::Ordering::Relaxed) != 0 && !seen[first + index] {
                (seen[first + index], is_new) = (true, true);
            }
        }
        first += counters.bytes;
    }
    is_new
}
