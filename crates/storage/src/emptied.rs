//! Noticing at the start that most data files are gone: their disk is not mounted, or they were removed below the server.
//!
//! Data files that are missing one by one are noticed when they are accessed. A server without most of them must not start: files
//! would be lost that are there again as soon as the disk is mounted.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::StorageError;
use crate::held::{Held, group_of};
use crate::tree::{has_places, if_there};

/// In the directory of marks: a start without the data files was accepted.
const ACCEPTED: &str = "loss-accepted";
/// Groups of marks that are looked at. All data files of a group are in one directory.
const GROUPS: usize = 256;
/// Data files that are looked for in each of them.
const FILES_OF_GROUP: usize = 4;
/// Fewer missing data files are lost one by one.
const MANY: usize = 16;

/// Most data files that there must be are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emptied {
    /// Data files that were looked for, a sample.
    pub looked_for: usize,
    /// Those of them that are missing.
    pub missing: usize,
    /// The data directory has nothing of a storage.
    pub is_bare: bool,
}

fn look(held: &Held, data: &Path, is_there: impl Fn(u64) -> io::Result<bool>) -> io::Result<Option<Emptied>> {
    let (marked, _) = held.list(None, GROUPS)?;
    let sample = marked
        .chunk_by(|one, other| group_of(*one) == group_of(*other))
        .flat_map(|group| group.iter().take(FILES_OF_GROUP));
    let (mut looked_for, mut missing) = (0, 0);
    for ino in sample {
        looked_for += 1;
        missing += usize::from(!is_there(*ino)?);
    }
    if missing == 0 {
        return Ok(None);
    }
    let is_bare = !has_places(data)?;
    let is_most = missing >= MANY && missing * 2 > looked_for;
    Ok((is_bare || is_most).then_some(Emptied { looked_for, missing, is_bare }))
}

/// Refuses a storage most of whose data files are missing, unless that was accepted; says so then.
pub(crate) fn refuse_emptied(
    held_path: &Path,
    held: &Held,
    data: &Path,
    is_there: impl Fn(u64) -> io::Result<bool>,
) -> Result<Option<Emptied>, StorageError> {
    let failed = |what, path: &Path| {
        let path = path.to_path_buf();
        move |source| StorageError::Directory { what, path, source }
    };
    let found = look(held, data, is_there).map_err(failed("look for the data files in", data))?;
    let accepted = held_path.join(ACCEPTED);
    let is_accepted = accepted.exists();
    match found {
        Some(emptied) if !is_accepted => Err(StorageError::Emptied { path: data.to_path_buf(), emptied }),
        None if is_accepted => {
            // The next time is another one.
            if_there(fs::remove_file(&accepted)).map_err(failed("remove", &accepted))?;
            Ok(None)
        }
        found => Ok(found),
    }
}

/// Accepts that data files are missing, until a start finds most of them again.
pub(crate) fn accept_loss(held_path: &Path) -> Result<(), StorageError> {
    let path: PathBuf = held_path.join(ACCEPTED);
    let made =
        fs::DirBuilder::new().recursive(true).mode(0o700).create(held_path).and_then(|()| {
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)
        });
    made.map(drop).map_err(|source| StorageError::Directory { what: "write", path, source })
}
