//! Making a store so that a kill or a power cut at any moment leaves either none or a whole one, and making the names
//! of its files durable.
//!
//! ```text
//!   DIR/new/...      fjall makes a store here; then every file and directory of it is synced
//!   DIR/...          its parts are moved up, DIR is synced, and last comes `version`, by which a store is known
//! ```
//!
//! What an interrupted making has left is removed by the next one: without `version` no commit was ever accepted. fjall
//! alone would fail on it, as it takes care that none of its files exists. It also does not sync the directory that
//! holds a keyspace's directory: after a power cut the keyspace could be missing, and with it all that was synced.

use super::{journal, record, tables};
use crate::EngineError;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// fjall's mark of a store, written last.
const VERSION: &str = "version";
/// Where a store is made.
const NEW: &str = "new";
/// What fjall makes besides: the keyspaces, its own lock, and journals.
const PARTS: [&str; 2] = ["keyspaces", "lock"];
/// Directories above the store that may have been made with it.
const ANCESTORS: usize = 2;

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> EngineError {
    move |error| EngineError::Store { action, reason: error.to_string() }
}

/// Whether there is a store: it was made to the end.
pub(super) fn is_store(directory: &Path) -> bool {
    directory.join(VERSION).exists()
}

/// Makes a store in `directory` with `make`, unless there is one.
pub(super) fn make_if_missing(
    directory: &Path,
    make: impl FnOnce(&Path) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    if is_store(directory) {
        return Ok(());
    }
    if directory.join(record::FILE).exists() || tables::any(directory) {
        return Err(EngineError::Damaged {
            path: directory.join(VERSION).display().to_string(),
            offset: None,
            expected: "there is a store beside it, and it is not there".into(),
        });
    }
    remove_leftovers(directory).map_err(failed("remove what an interrupted making of it has left"))?;
    let new = directory.join(NEW);
    make(&new)?;
    move_up(directory, &new).map_err(failed("put a new store in its place"))
}

fn remove_leftovers(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_journal = path.extension().is_some_and(|extension| extension == "jnl");
        if is_journal && journal::has_batches(&path)? {
            let text = format!("{} holds data, but there is no file `{VERSION}` beside it", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        if entry.file_type()?.is_dir() && (name == NEW || PARTS.iter().any(|part| name == *part)) {
            std::fs::remove_dir_all(path)?;
        } else if is_journal || PARTS.iter().any(|part| name == *part) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn move_up(directory: &Path, new: &Path) -> io::Result<()> {
    sync_tree(new)?;
    for entry in std::fs::read_dir(new)? {
        let name = entry?.file_name();
        if name != VERSION {
            std::fs::rename(new.join(&name), directory.join(&name))?;
        }
    }
    sync_directory(new)?;
    sync_directory(directory)?;
    std::fs::rename(new.join(VERSION), directory.join(VERSION))?;
    std::fs::remove_dir(new)?;
    sync_directory(directory)
}

/// Takes a store's files away from all but their owner: replies that it keeps have capabilities in them. What is made later is
/// below directories that only the owner may pass.
pub(super) fn make_private(directory: &Path) -> io::Result<()> {
    let set = |path: &Path, mode: u32| {
        if path.metadata()?.permissions().mode() & 0o777 == mode {
            return Ok(());
        }
        match std::fs::set_permissions(path, Permissions::from_mode(mode)) {
            // The owner is somebody else, who lets this process write.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            result => result,
        }
    };
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_private(&entry.path())?;
        } else {
            match set(&entry.path(), 0o600) {
                // The store has removed or renamed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
    }
    set(directory, 0o700)
}

/// Makes the names of a store's directories durable, and of those that it is in, so far as they may be opened.
pub(super) fn sync_directories(directory: &Path) -> io::Result<()> {
    sync_below(directory)?;
    for above in directory.ancestors().skip(1).take(ANCESTORS).filter(|above| !above.as_os_str().is_empty()) {
        match sync_directory(above) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            result => result?,
        }
    }
    Ok(())
}

fn sync_below(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_below(&entry.path())?;
        }
    }
    sync_directory(directory)
}

fn sync_tree(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    sync_directory(directory)
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
