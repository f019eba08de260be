//! What to copy, how, and what was done.

use super::side::Side;
use std::path::PathBuf;
use weft_wire::messages::LayoutWish;

/// How to copy.
pub struct Options {
    /// Copy directories and everything in them.
    pub recursive: bool,
    /// Keep mode and times.
    pub preserve: bool,
    /// Keep owner and group, where allowed.
    pub owner: bool,
    /// What becomes of files that are there.
    pub existing: Existing,
    /// Change nothing.
    pub dry_run: bool,
    /// Say what is done, line by line.
    pub verbose: bool,
    /// How many files, or chunks of large ones, are copied at once.
    pub jobs: usize,
    /// Layout of the files that are created.
    pub layout: Option<LayoutWish>,
    /// The umask for new files.
    pub umask: u32,
}

/// What becomes of a file that is there when it is to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// It is emptied, and written anew.
    #[default]
    Overwrite,
    /// It stays if it is not older than the source.
    Update,
    /// It stays.
    Keep,
}

/// A thing to copy: from a path on one side to a path on the other, as the arguments say.
#[derive(Clone)]
pub struct Pair {
    /// The source's side.
    pub from_side: Side,
    /// The source.
    pub from: PathBuf,
    /// The target's side.
    pub to_side: Side,
    /// The target's full name.
    pub to: PathBuf,
    /// Its last name was not given as an argument: it is the source's, in a directory that was.
    pub is_in_dir: bool,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Files copied.
    pub files: u64,
    /// Files that stayed as they were.
    pub same: u64,
    /// Files and directories removed.
    pub removed: u64,
    /// Bytes of file data that were written.
    pub bytes: u64,
    /// Failures: the path and the reason.
    pub failed: Vec<String>,
}
