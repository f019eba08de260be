//! What `weft` and `weft-bench` share: arguments, connections, output, and a cluster on this machine.
//!
//! ```text
//!   place        arguments: a local path, or a path in a Weft file system
//!   connections  one connection per file system, with its key
//!   size         sizes with units, as text
//!   output       tables, JSON, errors
//!   told         failures, with the path that was typed
//!   tree         walking and removing directories
//!   launch/      starting and supervising a cluster on this machine
//!   programs     finding Weft's other programs
//! ```

pub mod connections;
pub mod launch;
pub mod output;
pub mod place;
pub mod programs;
pub mod size;
pub mod told;
pub mod tree;

/// The command has reported what failed; only the exit code is left to set.
#[derive(Debug, thiserror::Error)]
#[error("the command failed in part")]
pub struct Reported;

/// Exit code of `weft serve` if a restart would fail the same way: EX_CONFIG of sysexits.h.
pub const PERMANENT: u8 = 78;

/// Whether the error means that the reader of the output has closed the pipe (`weft ls | head`).
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
