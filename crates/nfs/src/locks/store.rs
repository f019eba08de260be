//! What a gateway must know of locks after a restart, in its directory.
//!
//! ```text
//!   state         the number of this start, for clients; the session at the metadata server that has the locks
//!   clients/HASH  a client to be told of a restart: its address, a line feed, its name        durable
//!   held          17 bytes for each change: + or -, inode, owner                              not durable
//! ```
//!
//! `held` outlives the process, which is enough: the session ends long before a machine has booted again. It
//! has at least what is held, for a lock is noted before it is asked for.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

const HEAD: &str = "weft nfs locks 1";
const RECORD_BYTES: usize = 17;
/// Records beyond those that are needed, from which on `held` is written anew.
const SPARE_RECORDS: usize = 4096;

/// A client that locks: the names of hosts are not unique, and neither are addresses behind a router.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Host {
    pub(crate) address: IpAddr,
    pub(crate) name: Vec<u8>,
}

/// An owner's number, and a file that it has locks of.
pub(super) type Held = (u64, u64);

/// The directory.
pub(super) struct Store {
    directory: PathBuf,
    held: File,
    records: usize,
    pairs: HashSet<Held>,
    /// Keeps other gateways out.
    lock: Option<weft_host::FileLock>,
}

/// What an earlier start has left.
pub(super) struct Left {
    /// This start: an odd number that is greater than that of any before.
    pub(super) state: u32,
    /// The session, and whether an earlier start was in it.
    pub(super) session: ([u8; 16], bool),
    /// Clients that had locks.
    pub(super) clients: Vec<Host>,
    /// What they may have had.
    pub(super) held: Vec<Held>,
}

fn odd(path: &Path, text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", path.display()))
}

/// Replaces a file, durably.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

fn text_of(state: u32, session: &[u8; 16]) -> String {
    format!("{HEAD}\nstate {state}\nsession {}\n", hex(session))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// Not fuzzed: the text is the gateway's own.
fn parse_state(text: &str) -> Option<(u32, [u8; 16])> {
    let mut lines = text.lines();
    let is_known = lines.next()? == HEAD;
    let state = lines.next()?.strip_prefix("state ")?.parse().ok()?;
    let session = u128::from_str_radix(lines.next()?.strip_prefix("session ")?, 16).ok()?;
    is_known.then_some((state, session.to_be_bytes()))
}

// Not fuzzed: the bytes are the gateway's own.
fn parse_client(bytes: &[u8]) -> Option<Host> {
    let at = bytes.iter().position(|byte| *byte == b'\n')?;
    let address = std::str::from_utf8(&bytes[..at]).ok()?.parse().ok()?;
    Some(Host { address, name: bytes[at + 1..].to_vec() })
}

fn pairs_of(records: &[u8]) -> HashSet<Held> {
    let mut pairs = HashSet::new();
    for record in records.chunks_exact(RECORD_BYTES) {
        let number = |at: usize| u64::from_be_bytes(record[at..at + 8].try_into().expect("8 bytes"));
        let pair = (number(1), number(9));
        match record[0] {
            b'+' => pairs.insert(pair),
            _ => pairs.remove(&pair),
        };
    }
    pairs
}

fn record(sign: u8, (ino, owner): Held) -> [u8; RECORD_BYTES] {
    let mut bytes = [sign; RECORD_BYTES];
    bytes[1..9].copy_from_slice(&ino.to_be_bytes());
    bytes[9..].copy_from_slice(&owner.to_be_bytes());
    bytes
}

/// Where a client's record is.
#[derive(Debug, Clone)]
pub(super) struct ClientFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl ClientFile {
    /// Notes durably that the client is to be told of a restart. This may take a while.
    pub(super) fn write(&self) -> io::Result<()> {
        replace(&self.path, &self.bytes)
    }

    /// It need not be told.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

impl Store {
    /// Begins a start with this directory, which is made if it is not there.
    pub(super) fn open(directory: &Path) -> io::Result<(Store, Left)> {
        let clients_dir = directory.join("clients");
        fs::create_dir_all(&clients_dir)?;
        let lock = weft_host::lock(&directory.join("lock")).map_err(|error| match error {
            weft_host::LockError::System(error) => error,
            weft_host::LockError::Held(process) => odd(
                directory,
                &format!("process {process} uses it: give each gateway a directory of its own"),
            ),
        })?;
        let path = directory.join("state");
        let earlier = match fs::read_to_string(&path) {
            Ok(text) => {
                Some(parse_state(&text).ok_or_else(|| odd(&path, "it has not what a gateway writes"))?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let session = earlier.map_or_else(weft_host::random, |(_, session)| Ok(session))?;
        let state = earlier.map_or(1, |(state, _)| (state | 1).wrapping_add(2));
        replace(&path, text_of(state, &session).as_bytes())?;
        let mut clients = Vec::new();
        for entry in fs::read_dir(&clients_dir)? {
            clients.extend(parse_client(&fs::read(entry?.path())?));
        }
        let path = directory.join("held");
        let pairs = match fs::read(&path) {
            Ok(records) => pairs_of(&records),
            Err(error) if error.kind() == io::ErrorKind::NotFound => HashSet::new(),
            Err(error) => return Err(error),
        };
        let held = OpenOptions::new().create(true).append(true).open(&path)?;
        let left = Left {
            state,
            session: (session, earlier.is_some()),
            clients,
            held: pairs.iter().copied().collect(),
        };
        let directory = directory.to_path_buf();
        let mut store = Store { directory, held, records: 0, pairs, lock: Some(lock) };
        store.compact()?;
        Ok((store, left))
    }

    /// Goes on with another number and another session.
    pub(super) fn begin_anew(&self, state: u32, session: &[u8; 16]) -> io::Result<()> {
        replace(&self.directory.join("state"), text_of(state, session).as_bytes())
    }

    /// The record of a client.
    pub(super) fn client(&self, host: &Host) -> ClientFile {
        let mut bytes = format!("{}\n", host.address).into_bytes();
        bytes.extend_from_slice(&host.name);
        let name = hex(&blake3::hash(&bytes).as_bytes()[..16]);
        ClientFile { path: self.directory.join("clients").join(name), bytes }
    }

    /// An owner may have locks of a file from now on.
    pub(super) fn note(&mut self, pair: Held) -> io::Result<()> {
        if self.pairs.insert(pair) { self.append(b'+', pair) } else { Ok(()) }
    }

    /// It has none any more.
    pub(super) fn forget(&mut self, pair: Held) -> io::Result<()> {
        if self.pairs.remove(&pair) { self.append(b'-', pair) } else { Ok(()) }
    }

    /// Another gateway may go on with the directory.
    pub(super) fn release(&mut self) {
        self.lock = None;
    }

    fn append(&mut self, sign: u8, pair: Held) -> io::Result<()> {
        self.held.write_all(&record(sign, pair))?;
        self.records += 1;
        if self.records > 2 * self.pairs.len() + SPARE_RECORDS { self.compact() } else { Ok(()) }
    }

    fn compact(&mut self) -> io::Result<()> {
        let path = self.directory.join("held");
        let new = path.with_extension("new");
        let records: Vec<u8> = self.pairs.iter().flat_map(|pair| record(b'+', *pair)).collect();
        fs::write(&new, records)?;
        fs::rename(&new, &path)?;
        self.held = OpenOptions::new().append(true).open(&path)?;
        self.records = self.pairs.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &[u8]) -> Host {
        Host { address: [10, 0, 0, 7].into(), name: name.to_vec() }
    }

    #[test]
    fn a_start_finds_what_the_one_before_left() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, left) = Store::open(dir.path()).unwrap();
        assert_eq!((left.state, left.session.1, left.clients.len(), left.held.len()), (1, false, 0, 0));
        let session = left.session.0;
        let (one, other) = (host(b"node7"), host(b"no\nde/../8"));
        store.client(&one).write().unwrap();
        store.client(&other).write().unwrap();
        store.client(&one).remove().unwrap();
        store.client(&one).remove().unwrap();
        for pair in [(1, 2), (3, 4), (1, 2)] {
            store.note(pair).unwrap();
        }
        store.forget((1, 2)).unwrap();
        assert!(Store::open(dir.path()).is_err(), "two gateways in one directory");
        drop(store);
        let (store, left) = Store::open(dir.path()).unwrap();
        assert_eq!((left.state, left.session), (3, (session, true)));
        assert_eq!((left.clients, left.held), (vec![other], vec![(3, 4)]));
        store.begin_anew(5, &[9; 16]).unwrap();
        drop(store);
        let (_, left) = Store::open(dir.path()).unwrap();
        assert_eq!((left.state, left.session), (7, ([9; 16], true)));
    }

    #[test]
    fn the_list_of_what_is_held_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(dir.path()).unwrap();
        store.note((1, 1)).unwrap();
        for _ in 0..SPARE_RECORDS * 2 {
            store.note((2, 2)).unwrap();
            store.forget((2, 2)).unwrap();
        }
        let bytes = fs::metadata(dir.path().join("held")).unwrap().len() as usize;
        assert!(bytes <= (SPARE_RECORDS + 8) * RECORD_BYTES, "{bytes}");
        assert_eq!(pairs_of(&fs::read(dir.path().join("held")).unwrap()), HashSet::from([(1, 1)]));
    }

    #[test]
    fn a_directory_of_another_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("state"), "something").unwrap();
        assert!(Store::open(dir.path()).is_err());
    }
}
