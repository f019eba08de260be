//! What a server notes of its storage from run to run, so that an older copy of the storage is told from the newest.
//!
//! ```text
//!   weft-state    two records of 4096 bytes, written by turns in place; the sound one with the greater mark counts
//!
//!     weft-state 1
//!     mark 17                                   counted up when a run begins and ends, and while data changes
//!     run 6b1f…                                 random: which process wrote the mark
//!     meta 5f3a… 9 c02d…                        the metadata storage that was last met: its identity, mark and run
//!     lost_below 0                              a missing data file of a smaller inode number is lost, not empty
//!     check 1c291ca3                            CRC32C of the lines above
//! ```
//!
//! Both sides of a cluster remember each other's marks. A directory that is put back from a copy shows a smaller mark than the
//! others know, or the same one written by another run. Nothing is allocated when a record is rewritten, so a server whose
//! disk is full still starts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::StorageError;

/// Name of the file in a storage directory.
const STATE_FILE: &str = "weft-state";
const RECORD_BYTES: usize = 4096;
const RECORDS: usize = 2;

/// A number of 128 random bits that names a storage or a run of a server.
pub type RandomId = [u8; 16];

/// A storage as another server saw it last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Which storage.
    pub storage: RandomId,
    /// Its mark.
    pub mark: u64,
    /// The run that wrote the mark.
    pub run: RandomId,
}

/// What a server notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// Greater than that of every older copy of this storage.
    pub mark: u64,
    /// The run of the server that wrote the mark.
    pub run: RandomId,
    /// The metadata storage that this one belongs to, once it has met it.
    pub meta: Option<Seen>,
    /// Data files of smaller inode numbers that are not here are lost.
    pub lost_below_ino: u64,
}

/// The state file of an open storage directory.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    file: File,
    state: State,
    /// Which record is written next.
    next: usize,
}

impl StateFile {
    /// Makes the file, with room for all that will be written to it. One that is there stays as it is.
    pub(crate) fn make(directory: &Path) -> io::Result<()> {
        let path = directory.join(STATE_FILE);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if file.metadata()?.len() < (RECORDS * RECORD_BYTES) as u64 {
            for record in 0..RECORDS {
                file.write_all_at(&record_of(&State::default()), (record * RECORD_BYTES) as u64)?;
            }
        }
        file.sync_all()
    }

    /// Opens the file of a storage directory.
    ///
    /// # Errors
    /// [`StorageError::WrongDirectory`] if it is missing or damaged, [`StorageError::Directory`] if it cannot be read.
    pub fn open(directory: &Path) -> Result<StateFile, StorageError> {
        let path = directory.join(STATE_FILE);
        let wrong = |what: &str| StorageError::WrongDirectory {
            path: directory.to_path_buf(),
            reason: format!(
                "its file {STATE_FILE} {what}, so an older copy of the directory cannot be told from the newest: restore \
                 the directory from a whole copy, or have it replaced (weft help recovery)"
            ),
        };
        let failed = |source| StorageError::Directory { what: "read", path: path.clone(), source };
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(wrong("is missing")),
            opened => opened.map_err(failed)?,
        };
        let mut newest: Option<(usize, State)> = None;
        for record in 0..RECORDS {
            let mut bytes = [0; RECORD_BYTES];
            match file.read_exact_at(&mut bytes, (record * RECORD_BYTES) as u64) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
                result => result.map_err(failed)?,
            }
            let Some(state) = parse(&bytes) else { continue };
            if newest.is_none_or(|(_, other)| other.mark <= state.mark) {
                newest = Some((record, state));
            }
        }
        let (record, state) = newest.ok_or_else(|| wrong("is damaged"))?;
        Ok(StateFile { path, file, state, next: (record + 1) % RECORDS })
    }

    /// What is noted.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Notes something else, durably. The mark must not become smaller.
    ///
    /// # Errors
    /// [`StorageError::Directory`]; then what was noted before stays.
    pub fn write(&mut self, state: State) -> Result<(), StorageError> {
        debug_assert!(state.mark >= self.state.mark);
        // Of two records with the same mark the second one read would count, so a change without a new mark goes to both.
        let records = if state.mark == self.state.mark { RECORDS } else { 1 };
        for turn in 0..records {
            let at = ((self.next + turn) % RECORDS * RECORD_BYTES) as u64;
            self.file.write_all_at(&record_of(&state), at).and_then(|()| self.file.sync_data()).map_err(
                |source| StorageError::Directory { what: "write", path: self.path.clone(), source },
            )?;
        }
        self.next = (self.next + records) % RECORDS;
        self.state = state;
        Ok(())
    }

    /// Counts the mark up, as written by `run`.
    ///
    /// # Errors
    /// As [`StateFile::write`].
    pub fn raise_mark(&mut self, run: RandomId) -> Result<(), StorageError> {
        self.write(State { mark: self.state.mark + 1, run, ..self.state })
    }
}

/// 32 hexadecimal digits.
pub fn hex(id: &RandomId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Option<RandomId> {
    let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)).flatten()
}

fn record_of(state: &State) -> [u8; RECORD_BYTES] {
    let mut text = format!("weft-state 1\nmark {}\nrun {}\n", state.mark, hex(&state.run));
    if let Some(meta) = &state.meta {
        text += &format!("meta {} {} {}\n", hex(&meta.storage), meta.mark, hex(&meta.run));
    }
    text += &format!("lost_below {}\n", state.lost_below_ino);
    text += &format!("check {:08x}\n", crc32c::crc32c(text.as_bytes()));
    let mut bytes = [0; RECORD_BYTES];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// `None`: not a whole record.
fn parse(bytes: &[u8]) -> Option<State> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    let (lines, check) = text.split_at(text.rfind("check ")?);
    if check.trim_end() != format!("check {:08x}", crc32c::crc32c(lines.as_bytes())) {
        return None;
    }
    let mut state = State::default();
    let mut lines = lines.lines();
    if lines.next()? != "weft-state 1" {
        return None;
    }
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["mark", mark] => state.mark = mark.parse().ok()?,
            ["run", run] => state.run = from_hex(run)?,
            ["meta", storage, mark, run] => {
                let (storage, run) = (from_hex(storage)?, from_hex(run)?);
                state.meta = Some(Seen { storage, mark: mark.parse().ok()?, run });
            }
            ["lost_below", ino] => state.lost_below_ino = ino.parse().ok()?,
            _ => return None,
        }
    }
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_state(mark: u64) -> State {
        let meta = Some(Seen { storage: [3; 16], mark: 9, run: [4; 16] });
        State { mark, run: [7; 16], meta, lost_below_ino: 99 }
    }

    #[test]
    fn what_is_noted_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        StateFile::make(directory.path()).unwrap();
        let mut file = StateFile::open(directory.path()).unwrap();
        assert_eq!(*file.state(), State::default());
        file.write(some_state(1)).unwrap();
        file.raise_mark([8; 16]).unwrap();
        let changed = State { lost_below_ino: 100, ..*file.state() };
        file.write(changed).unwrap();
        let again = StateFile::open(directory.path()).unwrap();
        assert_eq!(*again.state(), State { run: [8; 16], lost_below_ino: 100, ..some_state(2) });
        StateFile::make(directory.path()).unwrap();
        assert_eq!(
            StateFile::open(directory.path()).unwrap().state().mark,
            2,
            "making it again changes nothing"
        );
    }

    #[test]
    fn a_torn_record_leaves_the_one_before_and_two_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        StateFile::make(directory.path()).unwrap();
        let mut file = StateFile::open(directory.path()).unwrap();
        (1..=5).for_each(|mark| file.write(some_state(mark)).unwrap());
        let path = directory.path().join(STATE_FILE);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut torn = whole.clone();
            torn[at] ^= 0x10;
            std::fs::write(&path, &torn).unwrap();
            let mark = StateFile::open(directory.path()).unwrap().state().mark;
            assert!(mark == 5 || mark == 4, "byte {at}: mark {mark}");
            if torn[at] != 0x10 {
                let newest_is_first = parse(&whole[..RECORD_BYTES]).unwrap().mark == 5;
                let hit_newest = (at < RECORD_BYTES) == newest_is_first;
                assert_eq!(mark, if hit_newest { 4 } else { 5 }, "byte {at}");
            }
        }
        for wrong in [vec![0; whole.len()], Vec::new()] {
            std::fs::write(&path, wrong).unwrap();
            assert!(StateFile::open(directory.path()).unwrap_err().to_string().contains("is damaged"));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(StateFile::open(directory.path()).unwrap_err().to_string().contains("is missing"));
    }

    #[test]
    fn damaged_states_are_none_or_written_back_the_same() {
        let right = [some_state(3), State::default()].map(|state| record_of(&state).to_vec());
        weft_test_fuzz::run("state", &right, |bytes| {
            let _ = parse(bytes);
            // Without a right check nothing else would be reached.
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let lines = &text[..text.rfind("check ").unwrap_or(text.len())];
            let checked = format!("{lines}check {:08x}\n", crc32c::crc32c(lines.as_bytes()));
            if let Some(state) = parse(checked.as_bytes()) {
                assert_eq!(parse(&record_of(&state)), Some(state));
            }
        });
    }
}
