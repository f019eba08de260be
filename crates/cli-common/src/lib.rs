//! What Weft's programs share: their arguments, connections and output, and a cluster on this machine.
//!
//! ```text
//!   place     what an argument means: a local path, or a path in a weft file system
//!   session   connections and keys
//!   size      sizes as people write and read them
//!   output    tables, JSON, errors
//!   tree      directories, walked and removed
//!   launch/   a whole cluster on this machine
//!   programs  where the other programs are
//! ```

pub mod launch;
pub mod output;
pub mod place;
pub mod programs;
pub mod session;
pub mod size;
pub mod tree;

/// The command has told what went wrong; only the exit code is left to set.
#[derive(Debug, thiserror::Error)]
#[error("some of it failed")]
pub struct Reported;

/// Exit code of `weft serve` where a new start would end the same way: EX_CONFIG of sysexits.h.
pub const PERMANENT: u8 = 78;

/// Whoever read the output has had enough (`weft ls | head`).
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
