//! What to copy, how, and what was done.

use super::side::Side;
use std::path::PathBuf;
use weft_wire::messages::LayoutWish;

/// How to copy.
pub struct Options {
    /// Copy directories and everything in them.
    pub recursive: bool,
    /// Keep mode, owner where allowed, and times.
    pub preserve: bool,
    /// How many files, or chunks of large ones, are copied at once.
    pub jobs: usize,
    /// Layout of the files that are created.
    pub layout: Option<LayoutWish>,
    /// The umask for new files.
    pub umask: u32,
}

/// A thing to copy: from a path on one side to a path on the other.
pub struct Pair {
    /// The source's side.
    pub from_side: Side,
    /// The source.
    pub from: PathBuf,
    /// The target's side.
    pub to_side: Side,
    /// The target's full name.
    pub to: PathBuf,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Files copied.
    pub files: u64,
    /// Bytes of file data that were written.
    pub bytes: u64,
    /// Failures: the path and the reason.
    pub failed: Vec<String>,
}
