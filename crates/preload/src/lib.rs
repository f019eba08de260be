//! `libweft_preload.so`: unmodified programs access Weft without a mount, by `LD_PRELOAD`.
//!
//! ```text
//!   program ── open("/weft/a") ──► hook ──► paths: in Weft? ──► no:  libc's own function
//!                                                           └► yes: guard ──► weft-client ──► servers
//!
//!   hooks/     functions with libc's names; each asks `dispatch` or `table` and calls libc or weft-client
//!   dispatch       calls libc or Weft for a path            umask    the process's umask
//!   links          symbolic links between the two sides     privileges  what a file loses when written
//!   paths          which file system a name is in           cwd      a current directory in Weft
//!   table          which descriptors are in Weft            lock_sessions, lock_inheritance  owners of locks
//!   locked_ranges  what this process has locked
//!   mounts         clusters and this process's connections  shared   open files, over fork and exec
//!   guard          signals, errno, panics, system calls     path_text  normal paths
//!   keep           Weft's variables, kept over exec         real     libc's functions behind the hooks
//!   memory         this library's allocator
//! ```
//!
//! No file uses one above it in this list, except that `table` and `lock_sessions` use each other. `fork`
//! holds the locks of all over a fork.
//!
//! Calls on paths and descriptors outside Weft reach libc unchanged, after a look into a table or at the
//! first bytes of the path. Nothing is connected before it is needed, and no thread is ever started.
//! `docs/preload.md` says what works and lists every limit.

// In the test program the hooks do not have libc's names, so nothing calls them.
#![cfg_attr(test, allow(dead_code))]

mod cwd;
mod dispatch;
mod fork;
mod guard;
mod hooks;
mod keep;
mod links;
mod lock_inheritance;
mod lock_sessions;
mod locked_ranges;
mod memory;
mod mounts;
mod path_text;
mod paths;
mod privileges;
mod real;
mod shared;
mod strings;
mod table;
mod umask;

use hooks::{map, standard_streams, whereabouts};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Runs before `main`.
extern "C" fn start() {
    guard::run_inside(|| {
        fork::watch();
        keep::note_environment();
        mounts::read_environment();
        whereabouts::inherit();
        lock_inheritance::inherit();
    });
    standard_streams::at_start();
}

/// Runs after `exit` is called.
extern "C" fn end() {
    standard_streams::at_end();
    table::note_ending();
    map::write_all_back();
    guard::run_inside(table::report_all);
    lock_sessions::end();
}
