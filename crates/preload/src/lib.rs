//! `libweft_preload.so`: unmodified programs access Weft without a mount, by `LD_PRELOAD`.
//!
//! ```text
//!   program ── open("/weft/a") ──► hook ──► paths: in Weft? ──► no:  libc's own function
//!                                                           └► yes: guard ──► weft-client ──► servers
//!
//!   hooks/     functions with libc's names; each asks `paths` or `table` and calls libc or weft-client
//!   paths          which file system a name is in            cwd      a current directory in Weft
//!   table          which descriptors are in Weft             shared   open files, over fork and exec
//!   mounts         clusters and this process's connections   guard    signals, errno, panics
//!   memory         this library's allocator                  real     libc's functions behind the hooks
//!   lock_sessions  owners of locks                           privileges  what a file loses when written
//! ```
//!
//! Calls on paths and descriptors outside Weft reach libc unchanged, after a look into a table or at the
//! first bytes of the path. Nothing is connected before it is needed, and no thread is ever started.
//! `docs/preload.md` says what works and lists every limit.

// In the test program the hooks do not have libc's names, so nothing calls them.
#![cfg_attr(test, allow(dead_code))]

mod cwd;
mod fork;
mod guard;
mod hooks;
mod lock_sessions;
mod memory;
mod mounts;
mod paths;
mod privileges;
mod real;
mod shared;
mod streams;
mod table;

#[global_allocator]
static OWN: memory::Own = memory::Own::new();

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
    let _ = guard::within(|| {
        fork::watch();
        mounts::read_environment();
        cwd::inherit();
        lock_sessions::inherit();
        Ok(())
    });
    streams::at_start();
}

/// Runs after `exit` is called.
extern "C" fn end() {
    streams::at_end();
    hooks::map::write_all_back();
    let _ = guard::within(|| {
        table::report_all();
        Ok(())
    });
    lock_sessions::end();
}
