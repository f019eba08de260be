//! `dlopen`: a library in Weft is loaded from a copy in memory, as programs are.
//!
//! ```text
//!   dlopen("/weft/venv/x.so")   ──► memfd with its bytes ──► libc's dlopen("/proc/self/fd/N")
//!   dlopen("libm.so.6")         ──► libc's dlopen, with the caller's return address (for its search path)
//! ```
//!
//! Each state of a file is copied once, and the copy's descriptor stays open: libc identifies a loaded
//! library by its name.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};

use weft_client::OpenOptions;
use weft_wire::messages::{Attr, Time};

use super::programs;
use crate::dispatch::{on_path, place_of};
use crate::guard::Outcome;
use crate::memory::SpinLock;
use crate::paths::{Place, Target};
use crate::real::Real;
use crate::table;

/// A library that was copied: the file, and its state.
pub(crate) struct Copied {
    device: u64,
    ino: u64,
    changed: Time,
    /// Never freed.
    name: *const c_char,
}

// SAFETY: a name is never changed.
unsafe impl Send for Copied {}

/// Held over a fork.
pub(crate) static COPIED: SpinLock<Vec<Copied>> = SpinLock::new(Vec::new());

/// Where a call of `dlopen` continues.
#[repr(C)]
struct Way {
    path: *const c_char,
    real: *mut c_void,
}

unsafe extern "C" fn way_of(path: *const c_char) -> Way {
    static REAL: Real = Real::new(c"dlopen");
    // SAFETY: the arguments are those of C's `dlopen`.
    Way { path: unsafe { loadable(path) }, real: REAL.get() }
}

/// A path that the dynamic linker can open; if there is none, the given path.
///
/// # Safety
/// NULL or a string.
unsafe fn loadable(path: *const c_char) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe {
        if path.is_null() || libc::strchr(path, c_int::from(b'/')).is_null() {
            return path;
        }
        if let None | Some(Place::Local) = place_of(libc::AT_FDCWD, path) {
            return path;
        }
        let found = Cell::new(path);
        let weft = |target: &Target| {
            found.set(copy(target)?);
            Ok(0)
        };
        on_path(libc::AT_FDCWD, path, true, |_, _| 0, weft);
        found.get()
    }
}

fn copy(target: &Target) -> Outcome<*const c_char> {
    let (made, at) = target.at()?;
    let file = made.client.open(at, &OpenOptions::new().read(true))?;
    let Attr { ino, ctime: changed, .. } = file.stat()?;
    let device = made.device;
    let is_it = |copied: &&Copied| (copied.device, copied.ino) == (device, ino) && copied.changed == changed;
    if let Some(name) = COPIED.with(|all| all.iter().find(is_it).map(|copied| copied.name)) {
        return Ok(name);
    }
    let fd = programs::copy_of(&file, &target.shown())?;
    table::set_kept(fd);
    let name = CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default().into_raw();
    COPIED.with(|all| all.push(Copied { device, ino, changed, name }));
    Ok(name)
}

/// Continues in libc with the same return address: libc uses the search path of the calling library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn dlopen() -> *mut c_void {
    naked_asm!(
        "push rsi",
        "call {way_of}",
        "pop rsi",
        "mov rdi, rax",
        "jmp rdx",
        way_of = sym way_of,
    )
}

#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg(target_arch = "aarch64")]
unsafe extern "C" fn dlopen() -> *mut c_void {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "str x1, [sp, #16]",
        "bl {way_of}",
        "mov x16, x1",
        "ldr x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        way_of = sym way_of,
    )
}
