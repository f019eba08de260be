//! What operations bring to light, as far as it must be the same everywhere.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Times before it were set by a call; others are those of changes, which differ.
const SET_BEFORE: i64 = 1_000_000;

/// What an operation brought to light.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Done,
    Count(usize),
    Bytes(Bytes),
    Names(Vec<String>),
    Attributes {
        mode: u32,
        owner: (u32, u32),
        /// Links and size of what is no directory.
        countable: (u64, u64),
        /// When it was changed, if a call has set that.
        time: Option<(i64, i64)>,
    },
    /// Each mount has its own attributes of it (docs/semantics.md).
    RemovedDirectory,
}

/// Shown as runs of equal ones, which is what operations write.
#[derive(PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|one, next| one == next);
        f.debug_list().entries(runs.map(|run| format!("{}*{}", run.len(), run[0]))).finish()
    }
}

/// The same, or an errno.
pub type Outcome = Result<Seen, i32>;

impl Seen {
    pub fn bytes(bytes: Vec<u8>) -> Seen {
        Seen::Bytes(Bytes(bytes))
    }

    /// In whichever order.
    pub fn names(mut names: Vec<String>) -> Seen {
        names.sort();
        Seen::Names(names)
    }
}

pub fn done(result: io::Result<()>) -> io::Result<Seen> {
    result.map(|()| Seen::Done)
}

pub fn attributes(data: &fs::Metadata) -> Seen {
    if data.is_dir() && data.nlink() == 0 {
        return Seen::RemovedDirectory;
    }
    Seen::Attributes {
        mode: data.mode(),
        owner: (data.uid(), data.gid()),
        countable: if data.is_dir() { (0, 0) } else { (data.nlink(), data.size()) },
        time: (data.mtime() < SET_BEFORE).then(|| (data.mtime(), data.mtime_nsec())),
    }
}

pub fn outcome(result: io::Result<Seen>) -> Outcome {
    result.map_err(|error| errno(&error))
}

pub fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}
