//! Logging of servers, mounts, commands and libraries: where `tracing` events go, and the ids that identify
//! one call in all logs.
//!
//! ```text
//!   tracing::debug!(trace, "…") ──► Log ── Filter (target, level) ──► Line ──► Sink: standard error,
//!                                                                              a file, the system log
//!
//!   2026-01-31T12:00:00.123Z info  io0: listens on 127.0.0.1:7401 target=weft_server::server
//!   2026-01-31T12:00:01.456Z debug io0: Write is done op=Write ino=12 trace=8f6d2c01b5a7e934
//!     target=weft_server::session (one line)
//! ```
//!
//! Servers, mounts and commands start logging with [`start`]. A library must not write to its program's
//! output unasked: [`start_in_library`] logs only if `$WEFT_LOG` is set, and keeps a subscriber that a Rust
//! program has set for itself.
//!
//! An event that outsiders can cause at will (a wrong key, a foreign protocol) goes through [`once_a_minute`]
//! or a [`Budget`], so that it cannot fill a disk. An event is one line, whatever text it contains: control
//! characters are escaped.
//!
//! A library that logs takes no lock and starts no thread, since its program may fork at any time.

mod filter;
mod line;
mod seldom;
mod sink;
mod subscriber;
mod time;
pub mod trace;

pub use filter::{Filter, FilterError};
pub use seldom::{Budget, once_a_minute};
pub use sink::{Sink, redirect_to};
pub use subscriber::{set_filter, start, start_in_library};
pub use time::{coarse_ms, time, timestamp_now};
/// Used by the macros.
pub use tracing;

/// The default filter.
pub const LEVELS_DEFAULT: &str = "info";

/// Logs information: `info!(server, "listens on {address}")`.
#[macro_export]
macro_rules! info {
    ($server:expr, $($event:tt)*) => { $crate::tracing::info!(server = %$server, $($event)*) };
}

/// Logs a problem that an administrator should look at: `warning!(server, "cannot write: {error}")`.
#[macro_export]
macro_rules! warning {
    ($server:expr, $($event:tt)*) => { $crate::tracing::warn!(server = %$server, $($event)*) };
}
