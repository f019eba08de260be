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
//! compare a version with the checksum in `current`. Versions and tables are archives:
//!
//! ```text
//!   sections │ "TOC!", their number (u32), and for each: position, length (u64), name (u16 and bytes)
//!            │ "SFA!", 1, 0, xxh3-128 of the table of contents, its position, its length (u64)
//! ```
//!
//! Of a table of contents fjall takes memory for as many sections as it says before it compares the checksum: where a bit has
//! flipped, more than there is, which ends the process.

use crate::EngineError;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

const KEYSPACES: &str = "keyspaces";
/// fjall's own keyspace, and the one that this store makes.
const NUMBERS: [&str; 2] = ["0", "1"];
const CURRENT: &str = "current";
const CURRENT_BYTES: usize = 25;
const CONTENTS_MAGIC: &[u8] = b"TOC!";
const TRAILER_MAGIC: &[u8] = b"SFA!\x01\0";
const TRAILER_BYTES: usize = 38;
/// Archives have ten sections or fewer, with short names.
const CONTENTS_BYTES_MAX: u64 = 64 << 10;
/// Of a table in a version: its checksum with the kind of that, and the number of its last change.
const TABLE_REST_BYTES: usize = 25;

fn damaged(path: PathBuf, expected: impl Into<String>) -> EngineError {
    EngineError::Damaged { path: path.display().to_string(), offset: None, expected: expected.into() }
}

fn unreadable(path: &Path, error: &io::Error) -> EngineError {
    match error.kind() {
        io::ErrorKind::NotFound => damaged(path.to_owned(), "the store needs this file, and it is not there"),
        _ => EngineError::Store {
            action: "read a file of the store",
            reason: format!("{}: {error}", path.display()),
        },
    }
}

fn read(path: &Path) -> Result<Vec<u8>, EngineError> {
    std::fs::read(path).map_err(|error| unreadable(path, &error))
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
    let bytes = read(&version)?;
    if xxh3_128(&bytes) != checksum {
        return Err(damaged(version, format!("its checksum is not the one in {}", path.display())));
    }
    let tables =
        tables_of(&bytes).ok_or_else(|| damaged(version, "it does not say which tables there are"))?;
    tables.into_iter().try_for_each(|table| check_table(&keyspace.join("tables").join(table.to_string())))
}

/// Checks that a table has the table of contents that was written.
fn check_table(path: &Path) -> Result<(), EngineError> {
    match File::open(path).and_then(|mut file| contents(&mut file)) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(damaged(path.to_owned(), "its table of contents is not what was written")),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// The table of contents of an archive; `None` if it is not what was written.
fn contents(archive: &mut (impl Read + Seek)) -> io::Result<Option<Vec<u8>>> {
    let mut trailer = [0; TRAILER_BYTES];
    let end = archive.seek(SeekFrom::End(0))?;
    let Some(trailer_at) = end.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    archive.seek(SeekFrom::Start(trailer_at))?;
    archive.read_exact(&mut trailer)?;
    let checksum = u128::from_le_bytes(trailer[6..22].try_into().expect("16 bytes"));
    let at = u64::from_le_bytes(trailer[22..30].try_into().expect("8 bytes"));
    let bytes = trailer_at.checked_sub(at).filter(|bytes| *bytes <= CONTENTS_BYTES_MAX);
    let Some(bytes) = bytes.filter(|_| trailer.starts_with(TRAILER_MAGIC)) else { return Ok(None) };
    let mut contents = vec![0; bytes as usize];
    archive.seek(SeekFrom::Start(at))?;
    archive.read_exact(&mut contents)?;
    Ok((contents.starts_with(CONTENTS_MAGIC) && xxh3_128(&contents) == checksum).then_some(contents))
}

/// The numbers of the tables of a version; `None` if it is not one.
fn tables_of(version: &[u8]) -> Option<Vec<u64>> {
    let contents = contents(&mut Cursor::new(version)).ok()??;
    let mut rest = contents.get(CONTENTS_MAGIC.len()..)?;
    let mut section = None;
    for _ in 0..number(&mut rest, 4)? {
        let (at, bytes, name_bytes) = (number(&mut rest, 8)?, number(&mut rest, 8)?, number(&mut rest, 2)?);
        if rest.split_off(..name_bytes as usize)? == b"tables" {
            section = version.get(at as usize..)?.get(..bytes as usize);
        }
    }
    let mut section = section?;
    let mut tables = Vec::new();
    for _level in 0..number(&mut section, 1)? {
        for _run in 0..number(&mut section, 1)? {
            for _table in 0..number(&mut section, 4)? {
                tables.push(number(&mut section, 8)?);
                section.split_off(..TABLE_REST_BYTES)?;
            }
        }
    }
    Some(tables)
}

/// Takes a number of so many bytes off the beginning.
fn number(rest: &mut &[u8], bytes: usize) -> Option<u64> {
    let mut number = [0; 8];
    number[..bytes].copy_from_slice(rest.split_off(..bytes)?);
    Some(u64::from_le_bytes(number))
}

/// Whether there are tables of names.
pub(super) fn any(directory: &Path) -> bool {
    let tables = directory.join(KEYSPACES).join(NUMBERS[1]).join("tables");
    std::fs::read_dir(tables).is_ok_and(|mut tables| tables.next().is_some())
}
