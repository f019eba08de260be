//! The current directory, if it is in Weft.
//!
//! The kernel cannot be in such a directory. Its current directory is then one that was removed, so that
//! system calls that bypass this library find nothing instead of something else. This library knows the real
//! one. A program that is executed reads it from `WEFT_CWD`.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::guard::{Errno, Outcome, address, system};
use crate::memory::SpinLock;
use crate::mounts::{self, Mount};

/// The environment variable with the current directory.
pub(crate) const VARIABLE: &CStr = c"WEFT_CWD";
const REMOVED: &[u8] = b"/weft-cwd-";
const REMOVED_END: &[u8] = b" (deleted)";

/// A directory of Weft.
#[derive(Clone)]
pub(crate) struct Here {
    pub(crate) mount: &'static Mount,
    /// Its inode. It remains the current directory when it is renamed.
    pub(crate) ino: u64,
    /// Its path in the mount when last queried, without symbolic links and without a final slash.
    pub(crate) path: Vec<u8>,
}

static IS_INSIDE: AtomicBool = AtomicBool::new(false);
/// The current directory. Held over a fork.
pub(crate) static HERE: SpinLock<Option<Here>> = SpinLock::new(None);

/// Whether the current directory is in Weft.
pub(crate) fn is_inside() -> bool {
    IS_INSIDE.load(Ordering::Relaxed)
}

/// The current directory, if it is in Weft.
pub(crate) fn inside() -> Option<Here> {
    if is_inside() { HERE.with(|here| here.clone()) } else { None }
}

/// The kernel's current directory.
pub(crate) fn of_kernel() -> Option<Vec<u8>> {
    let mut path = vec![0u8; libc::PATH_MAX as usize];
    let length = system(libc::SYS_getcwd, [path.as_mut_ptr() as usize, path.len(), 0, 0, 0, 0]).ok()?;
    path.truncate(length.saturating_sub(1));
    Some(path)
}

impl Here {
    /// The value of [`VARIABLE`] for a program that is executed.
    pub(crate) fn to_pass_on(&self) -> Vec<u8> {
        [format!("{}:", self.ino).as_bytes(), &self.mount.prefix, &self.path].concat()
    }
}

/// Records that the current directory is in Weft.
pub(crate) fn note(here: Here) {
    HERE.with(|now| *now = Some(here));
    IS_INSIDE.store(true, Ordering::Relaxed);
}

/// Changes to a directory of Weft.
pub(crate) fn enter(here: Here) -> Outcome<()> {
    if !is_inside() {
        leave_the_kernel_nowhere()?;
    }
    note(here);
    restore_variable();
    Ok(())
}

/// Sets [`VARIABLE`] in the program's own environment.
pub(crate) fn restore_variable() {
    if let Some(told) = inside().and_then(|here| CString::new(here.to_pass_on()).ok()) {
        // SAFETY: both end with a zero.
        unsafe { libc::setenv(VARIABLE.as_ptr(), told.as_ptr(), 1) };
    }
}

/// Records that the program has changed to a local directory.
pub(crate) fn leave() {
    if !is_inside() {
        return;
    }
    IS_INSIDE.store(false, Ordering::Relaxed);
    HERE.with(|here| *here = None);
    // SAFETY: the name ends with a zero.
    unsafe { libc::unsetenv(VARIABLE.as_ptr()) };
}

fn leave_the_kernel_nowhere() -> Outcome<()> {
    let name =
        CString::new(format!("/tmp/weft-cwd-{}", std::process::id())).map_err(|_| Errno(libc::EINVAL))?;
    let (at, place) = (libc::AT_FDCWD as usize, address(name.as_ptr()));
    let made = system(libc::SYS_mkdirat, [at, place, 0o700, 0, 0, 0]);
    if !matches!(made, Ok(_) | Err(Errno(libc::EEXIST))) {
        // There is no removed directory to use. At least no relative names of the program are in the root.
        return system(libc::SYS_chdir, [address(c"/".as_ptr()), 0, 0, 0, 0, 0]).map(drop);
    }
    let moved = system(libc::SYS_chdir, [place, 0, 0, 0, 0, 0]).map(drop);
    let _ = system(libc::SYS_unlinkat, [at, place, libc::AT_REMOVEDIR as usize, 0, 0, 0]);
    moved
}

/// After exec: inode and path of the previous program's directory, unless the kernel's directory shows that
/// the process has moved since.
pub(crate) fn inherited() -> Option<(u64, &'static [u8])> {
    let text = mounts::variable(VARIABLE)?;
    let mut link = [0u8; 256];
    let at = libc::AT_FDCWD as usize;
    let arguments = [at, address(c"/proc/self/cwd".as_ptr()), link.as_mut_ptr() as usize, link.len(), 0, 0];
    let length = system(libc::SYS_readlinkat, arguments).unwrap_or(0);
    let link = &link[..length];
    let nowhere = link.ends_with(REMOVED_END) && link.windows(REMOVED.len()).any(|part| part == REMOVED);
    if !nowhere && link != b"/" {
        return None;
    }
    let text = text.to_bytes();
    let colon = text.iter().position(|byte| *byte == b':')?;
    let ino = std::str::from_utf8(&text[..colon]).ok()?.parse().ok()?;
    Some((ino, &text[colon + 1..]))
}
