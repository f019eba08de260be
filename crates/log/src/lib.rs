//! Logging of servers, mounts, the command line and libraries: where `tracing` events go, and the ids by which one request is
//! followed through all of them.
//!
//! ```text
//!   tracing::debug!(trace, "…") ──► Log ── Filter (target, level) ──► Line ──► Sink: standard error · a file · the system's log
//!
//!   2026-01-31T12:00:00.123Z info  io0: listens on 127.0.0.1:7401 target=weft_server::server
//!   2026-01-31T12:00:01.456Z debug io0: Write is done op=Write ino=12 trace=8f6d2c01b5a7e934 target=weft_server::session
//! ```
//!
//! Servers, mounts and the command line say what they want with [`start`]. A library has no say in its program's output: with
//! [`start_in_library`] it is silent unless `$WEFT_LOG` is set, and a subscriber that a Rust program has set for itself stays.
//!
//! An event that an outsider can cause at will (a wrong key, a foreign protocol) goes through [`once_a_minute`] or a [`Budget`], so
//! that it fills no disk. An event is one line, whatever others have put into it: control characters are escaped.
//!
//! Nothing here takes a lock or starts a thread where a library logs, for its program may fork at any time.

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
/// For the macros.
pub use tracing;

/// What is said where nothing else is asked for.
pub const LEVELS_DEFAULT: &str = "info";

/// Good to know: `info!(server, "listens on {address}")`.
#[macro_export]
macro_rules! info {
    ($server:expr, $($event:tt)*) => { $crate::tracing::info!(server = %$server, $($event)*) };
}

/// Somebody should look: `warning!(server, "cannot write: {error}")`.
#[macro_export]
macro_rules! warning {
    ($server:expr, $($event:tt)*) => { $crate::tracing::warn!(server = %$server, $($event)*) };
}
