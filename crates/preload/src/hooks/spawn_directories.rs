//! Directories that programs are spawned in: `posix_spawn_file_actions_addchdir_np`.
//!
//! The child's kernel cannot go to one of Weft. It goes to `/`, and the program that it executes finds in its environment where it is.
//! What it is to find is kept here, by the address of the file actions that name it.

use std::ffi::c_void;

use crate::cwd::Here;
use crate::guard::within;
use crate::memory::SpinLock;

/// Where a program begins.
#[derive(Clone)]
pub(crate) enum Beginning {
    /// Where the process is that starts it.
    Same,
    /// In a local directory.
    Local,
    Weft(Here),
}

/// Held over a fork.
pub(crate) static NOTED: SpinLock<Vec<(usize, Beginning)>> = SpinLock::new(Vec::new());

/// File actions lead to a directory, or are new, or are no more.
pub(super) fn note(actions: *mut c_void, beginning: Beginning) {
    let _ = within(|| {
        NOTED.with(|noted| {
            noted.retain(|(other, _)| *other != actions as usize);
            if !matches!(beginning, Beginning::Same) {
                noted.push((actions as usize, beginning));
            }
        });
        Ok(())
    });
}

/// Where they lead; only called within.
pub(super) fn of(actions: *const c_void) -> Beginning {
    NOTED.with(|noted| {
        let found = noted.iter().find(|(other, _)| *other == actions as usize);
        found.map_or(Beginning::Same, |(_, beginning)| beginning.clone())
    })
}
