//! `libweft_preload.so`: unmodified programs reach Weft without a mount, by `LD_PRELOAD`.
//!
//! ```text
//!   program ── open("/weft/a") ──► hook ──► paths: whose is it? ──► not Weft's: libc's own function, as if nothing were here
//!                                                └── Weft's: guard ──► weft-client ──► servers
//!
//!   hooks/     functions under libc's names; each asks `paths` or `table` and goes one way or the other
//!   paths      which file system a name is in                cwd      a current directory in Weft
//!   table      which descriptors are Weft's                  shared   what their copies share, over fork and exec
//!   mounts     clusters and this process's connections       guard    signals, errno, panics
//!   memory     an allocator of its own                       real     what the hooks hide
//!   privileges what a file loses when it is written        lock_sessions  whose locks are
//! ```
//!
//! Whatever a program does with paths and descriptors that are not Weft's reaches libc unchanged, by the same function, after a look at
//! a table or at the path's first bytes. Nothing is connected, and no thread is ever started. `docs/preload.md` says what
//! works and every limit.

// In the tests' own program nothing goes under libc's names, and so nothing calls it.
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

/// Before `main`.
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

/// After `exit` was called.
extern "C" fn end() {
    streams::at_end();
    hooks::map::write_all_back();
    let _ = guard::within(|| {
        table::report_all();
        Ok(())
    });
    lock_sessions::end();
}
