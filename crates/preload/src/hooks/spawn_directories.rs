//! Directories in which programs are spawned: `posix_spawn_file_actions_addchdir_np`.
//!
//! The kernel cannot change to a directory of Weft. The child changes to `/`, and the program reads its
//! directory from its environment. That value is kept here, by the address of the file actions.

use std::ffi::c_void;

use crate::cwd::Here;
use crate::guard::run_inside;
use crate::memory::SpinLock;

/// The initial directory of a program.
#[derive(Clone)]
pub(crate) enum Beginning {
    /// The directory of the process that starts it.
    Same,
    /// A local directory.
    Local,
    Weft(Here),
}

/// Held over a fork.
pub(crate) static NOTED: SpinLock<Vec<(usize, Beginning)>> = SpinLock::new(Vec::new());

/// Records the directory of file actions, or that they are new or destroyed.
pub(super) fn note(actions: *mut c_void, beginning: Beginning) {
    run_inside(|| {
        NOTED.with(|noted| {
            noted.retain(|(other, _)| *other != actions as usize);
            if !matches!(beginning, Beginning::Same) {
                noted.push((actions as usize, beginning));
            }
        });
    });
}

/// The directory of file actions. Called inside only.
pub(super) fn of(actions: *const c_void) -> Beginning {
    NOTED.with(|noted| {
        let found = noted.iter().find(|(other, _)| *other == actions as usize);
        found.map_or(Beginning::Same, |(_, beginning)| beginning.clone())
    })
}
