//! What fjall takes for granted of its tables' directories, checked before it opens them.
//!
//! ```text
//!   keyspaces/0, keyspaces/1    fjall's own records, and ours
//!     current                   number of the version (u64), xxh3-128 of its file, 0
//!     v7                        the tables, each with its checksum
//!     tables/12                 blocks, each with its checksum: checked when it is read
//! ```
//!
//! fjall removes a keyspace that has no `current`, or whose name it cannot find, with all its tables, and it does not
//! compare a version with the checksum in `current`.

use crate::EngineError;
use std::io;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

const KEYSPACES: &str = "keyspaces";
/// fjall's own keyspace, and the one that this store makes.
const NUMBERS: [&str; 2] = ["0", "1"];
const CURRENT: &str = "current";
const CURRENT_BYTES: usize = 25;

fn damaged(path: PathBuf, expected: impl Into<String>) -> EngineError {
    EngineError::Damaged { path: path.display().to_string(), offset: None, expected: expected.into() }
}

fn read(path: &Path) -> Result<Vec<u8>, EngineError> {
    std::fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => damaged(path.to_owned(), "the store needs this file, and it is not there"),
        _ => EngineError::Store {
            action: "read a file of the store",
            reason: format!("{}: {error}", path.display()),
        },
    })
}

/// Checks which version each keyspace is at, and that version's file.
pub(super) fn check(directory: &Path) -> Result<(), EngineError> {
    NUMBERS.iter().try_for_each(|number| check_keyspace(&directory.join(KEYSPACES).join(number)))
}

fn check_keyspace(keyspace: &Path) -> Result<(), EngineError> {
    let path = keyspace.join(CURRENT);
    let current = read(&path)?;
    let bytes: &[u8; CURRENT_BYTES] = current.as_slice().try_into().map_err(|_| {
        damaged(path.clone(), format!("it has {} bytes instead of {CURRENT_BYTES}", current.len()))
    })?;
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("8 of 25 bytes"));
    let checksum = u128::from_le_bytes(bytes[8..24].try_into().expect("16 of 25 bytes"));
    if bytes[24] != 0 {
        return Err(damaged(path, "its last byte names a checksum that is not known"));
    }
    let version = keyspace.join(format!("v{number}"));
    if xxh3_128(&read(&version)?) != checksum {
        return Err(damaged(version, format!("its checksum is not the one in {}", path.display())));
    }
    Ok(())
}

/// Whether there are tables of names.
pub(super) fn any(directory: &Path) -> bool {
    let tables = directory.join(KEYSPACES).join(NUMBERS[1]).join("tables");
    std::fs::read_dir(tables).is_ok_and(|mut tables| tables.next().is_some())
}
