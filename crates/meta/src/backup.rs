//! A backup of the whole store: taken in pages while it is in use, kept in one file, and made into a store again.
//!
//! ```text
//!   metadata thread   hold view ─ page ─ (others' changes) ─ page ─ … ─ last page ─ drop view      a page: a fraction of a ms
//!                                   │                         │
//!   file              head │ block (records) │ block │ … │ end
//! ```
//!
//! The file, with integers in little endian:
//!
//! ```text
//!   head    "WEFT-NAMES 1\n"  cluster 16  storage 16  taken_s u64  crc u32      crc: CRC32C of all before it
//!   block   bytes u32, not 0   crc u32    the records: key_bytes u16, value_bytes u32, key, value
//!   end     0 u32              crc u32    records u64, blocks u64
//! ```
//!
//! The checksum of a block is over its number, its length and its bytes; the first block is 0, and the end counts as a block. Keys rise
//! over the whole file, so that a state has one form. What follows the end is an error, and so is its absence: a backup that was
//! interrupted is none.

use crate::engine::{Batch, Engine, FjallEngine, FjallOptions, Pair};
use crate::namespace::{Namespace, encode_number};
use crate::{EngineError, keys};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 13] = b"WEFT-NAMES 1\n";
const HEAD_BYTES: usize = MAGIC.len() + 16 + 16 + 8 + 4;
const BLOCK_HEAD_BYTES: usize = 8;
const RECORD_HEAD_BYTES: usize = 6;
/// A block is written when it has so many bytes.
const BLOCK_BYTES: usize = 256 * 1024;
/// A longer one is damaged: no record is so long.
const BLOCK_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of one commit while a store is made.
const COMMIT_BYTES: usize = 1024 * 1024;
/// Where a store is made, beside the place it gets.
const LOADING: &str = "names.loading";

/// Which store a backup is of, and when it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BackupHead {
    /// The cluster.
    pub cluster: [u8; 16],
    /// The metadata storage.
    pub storage: [u8; 16],
    /// When it was begun, in seconds since 1970.
    pub taken_s: u64,
}

/// How much a backup has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BackupSize {
    /// Records of the store.
    pub records: u64,
    /// Blocks of the file.
    pub blocks: u64,
}

/// Why a backup was not taken over.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file could not be read or written.
    #[error("cannot read or write it: {0}")]
    Io(#[from] io::Error),
    /// It is no backup, or not a whole one.
    #[error("it is damaged, or no whole backup: {0}")]
    Damaged(&'static str),
    /// The store could not be made.
    #[error(transparent)]
    Store(#[from] EngineError),
}

fn checksum(number: u64, bytes: u32, contents: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), &bytes.to_le_bytes());
    crc32c::crc32c_append(crc, contents)
}

/// Writes a backup, record by record in the order of their keys.
pub struct BackupWriter<W: Write> {
    to: W,
    block: Vec<u8>,
    size: BackupSize,
}

impl<W: Write> BackupWriter<W> {
    /// Begins one.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn begin(mut to: W, head: &BackupHead) -> io::Result<BackupWriter<W>> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&head.cluster);
        bytes.extend_from_slice(&head.storage);
        bytes.extend_from_slice(&head.taken_s.to_le_bytes());
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        to.write_all(&bytes)?;
        Ok(BackupWriter { to, block: Vec::new(), size: BackupSize::default() })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Those of the file; a key or value that no store has.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a record is too long for a backup");
        let key_bytes = u16::try_from(key.len()).map_err(|_| too_long())?;
        let value_bytes = u32::try_from(value.len()).map_err(|_| too_long())?;
        if value.len() > BLOCK_BYTES_MAX - BLOCK_BYTES - usize::from(u16::MAX) - RECORD_HEAD_BYTES {
            return Err(too_long());
        }
        self.block.extend_from_slice(&key_bytes.to_le_bytes());
        self.block.extend_from_slice(&value_bytes.to_le_bytes());
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        self.size.records += 1;
        if self.block.len() >= BLOCK_BYTES { self.write_block() } else { Ok(()) }
    }

    fn write_block(&mut self) -> io::Result<()> {
        let bytes = self.block.len() as u32;
        let crc = checksum(self.size.blocks, bytes, &self.block);
        self.to.write_all(&bytes.to_le_bytes())?;
        self.to.write_all(&crc.to_le_bytes())?;
        self.to.write_all(&self.block)?;
        self.block.clear();
        self.size.blocks += 1;
        Ok(())
    }

    /// Writes the end. The file must be synced afterwards.
    ///
    /// # Errors
    /// Those of the file.
    pub fn end(mut self) -> io::Result<(W, BackupSize)> {
        if !self.block.is_empty() {
            self.write_block()?;
        }
        let counts = [self.size.records.to_le_bytes(), self.size.blocks.to_le_bytes()].concat();
        let crc = checksum(self.size.blocks, 0, &counts);
        self.to.write_all(&0u32.to_le_bytes())?;
        self.to.write_all(&crc.to_le_bytes())?;
        self.to.write_all(&counts)?;
        self.to.flush()?;
        Ok((self.to, self.size))
    }
}

/// Reads a backup, block by block; memory is bounded by the longest block.
pub struct BackupReader<R: Read> {
    from: R,
    head: BackupHead,
    size: BackupSize,
    last_key: Option<Vec<u8>>,
    ended: bool,
}

fn read_whole(from: &mut impl Read, to: &mut [u8], missing: &'static str) -> Result<(), BackupError> {
    from.read_exact(to).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => BackupError::Damaged(missing),
        _ => BackupError::Io(error),
    })
}

impl<R: Read> BackupReader<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn begin(mut from: R) -> Result<BackupReader<R>, BackupError> {
        let mut bytes = [0; HEAD_BYTES];
        read_whole(&mut from, &mut bytes, "it ends within its head")?;
        let (said, crc) = bytes.split_at(HEAD_BYTES - 4);
        if !said.starts_with(MAGIC) {
            return Err(BackupError::Damaged("it does not begin as a backup of version 1 does"));
        }
        if crc != crc32c::crc32c(said).to_le_bytes() {
            return Err(BackupError::Damaged("the checksum of its head is another"));
        }
        let fixed = |at: usize| said[at..at + 16].try_into().expect("16 bytes");
        let at = MAGIC.len();
        let taken_s = u64::from_le_bytes(said[at + 32..at + 40].try_into().expect("8 bytes"));
        let head = BackupHead { cluster: fixed(at), storage: fixed(at + 16), taken_s };
        Ok(BackupReader { from, head, size: BackupSize::default(), last_key: None, ended: false })
    }

    /// Which store it is of.
    pub fn head(&self) -> &BackupHead {
        &self.head
    }

    /// How much was read so far.
    pub fn size(&self) -> BackupSize {
        self.size
    }

    /// The records of the next block; `None` after the last, when the end was found to be right.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn next_block(&mut self) -> Result<Option<Vec<Pair>>, BackupError> {
        if self.ended {
            return Ok(None);
        }
        let mut head = [0; BLOCK_HEAD_BYTES];
        read_whole(&mut self.from, &mut head, "it ends without its end mark")?;
        let bytes = u32::from_le_bytes(head[..4].try_into().expect("4 bytes"));
        let crc = u32::from_le_bytes(head[4..].try_into().expect("4 bytes"));
        if bytes as usize > BLOCK_BYTES_MAX {
            return Err(BackupError::Damaged("a block is longer than blocks are"));
        }
        let mut contents = vec![0; if bytes == 0 { 16 } else { bytes as usize }];
        read_whole(&mut self.from, &mut contents, "it ends within a block")?;
        if checksum(self.size.blocks, bytes, &contents) != crc {
            return Err(BackupError::Damaged("the checksum of a block is another"));
        }
        if bytes == 0 {
            return self.check_end(&contents).map(|()| None);
        }
        self.size.blocks += 1;
        self.records_of(&contents).map(Some)
    }

    fn check_end(&mut self, counts: &[u8]) -> Result<(), BackupError> {
        let expected = [self.size.records.to_le_bytes(), self.size.blocks.to_le_bytes()].concat();
        if counts != expected {
            return Err(BackupError::Damaged("it has another number of records than its end says"));
        }
        if self.from.read(&mut [0; 1])? != 0 {
            return Err(BackupError::Damaged("something follows its end"));
        }
        self.ended = true;
        Ok(())
    }

    fn records_of(&mut self, mut rest: &[u8]) -> Result<Vec<Pair>, BackupError> {
        let cut = || BackupError::Damaged("a record does not end with its block");
        let mut pairs = Vec::new();
        while !rest.is_empty() {
            let (head, after) = rest.split_at_checked(RECORD_HEAD_BYTES).ok_or_else(cut)?;
            let key_bytes = u16::from_le_bytes([head[0], head[1]]);
            let value_bytes = u32::from_le_bytes(head[2..].try_into().expect("4 bytes"));
            let (key, after) = after.split_at_checked(key_bytes.into()).ok_or_else(cut)?;
            let (value, after) = after.split_at_checked(value_bytes as usize).ok_or_else(cut)?;
            if key.is_empty() || self.last_key.as_deref().is_some_and(|last| last >= key) {
                return Err(BackupError::Damaged("its keys do not rise"));
            }
            self.last_key = Some(key.to_vec());
            self.size.records += 1;
            pairs.push((key.to_vec(), value.to_vec()));
            rest = after;
        }
        Ok(pairs)
    }
}

/// Reads a backup to its end, and says what it is of and how much it has.
///
/// # Errors
/// [`BackupError`] where anything is not as it was written.
pub fn verify_backup(from: impl Read) -> Result<(BackupHead, BackupSize), BackupError> {
    let mut reader = BackupReader::begin(from)?;
    let mut has_names = false;
    while let Some(pairs) = reader.next_block()? {
        has_names |= pairs.iter().any(|(key, _)| key == keys::SUPER_FORMAT);
    }
    if !has_names {
        return Err(BackupError::Damaged("there is no file system in it"));
    }
    Ok((*reader.head(), reader.size()))
}

/// Makes a store of a backup beside `directory`, with a note in it that it is one, and returns where. Nothing that is there is
/// changed; what an interrupted loading has left is removed.
///
/// # Errors
/// [`BackupError`].
pub fn prepare_store(file: &File, directory: &Path) -> Result<PathBuf, BackupError> {
    verify_backup(BufReader::new(file))?;
    io::Seek::rewind(&mut &*file)?;
    let loading = directory.with_file_name(LOADING);
    match std::fs::remove_dir_all(&loading) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut engine = FjallEngine::open(&loading, &FjallOptions::default())?;
    let mut reader = BackupReader::begin(BufReader::new(file))?;
    let (mut batch, mut batch_bytes) = (Batch::default(), 0);
    while let Some(pairs) = reader.next_block()? {
        for (key, value) in pairs {
            batch_bytes += key.len() + value.len();
            batch.put(key, value);
            if batch_bytes >= COMMIT_BYTES {
                engine.commit(&batch)?;
                batch.clear();
                batch_bytes = 0;
            }
        }
    }
    batch.put(keys::SUPER_LOADED, encode_number(reader.head().taken_s));
    engine.commit(&batch)?;
    engine.syncer().sync()?;
    Ok(loading)
}

/// A page of the state that a backup is of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackupPage {
    /// Records, in the order of their keys.
    pub pairs: Vec<Pair>,
    /// There are no more.
    pub finished: bool,
}

impl<E: Engine> Namespace<E> {
    /// Keeps the present state for a backup, and says which store it is of. One backup at a time: another one's state is given up.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn begin_backup(&mut self, taken_s: u64) -> Result<BackupHead, EngineError> {
        let storage = self.own_storage([0; 16])?.storage;
        self.engine.hold_view()?;
        Ok(BackupHead { cluster: self.cluster_uuid(), storage, taken_s })
    }

    /// Records of the kept state behind the key `after`, one at least, and more as long as they have no more than `bytes_max`.
    /// `None` if it is not kept any more: the store was opened anew meanwhile, as on a full disk.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn backup_page(&self, after: &[u8], bytes_max: usize) -> Result<Option<BackupPage>, EngineError> {
        // The key that follows `after`.
        let from = if after.is_empty() { Vec::new() } else { [after, &[0]].concat() };
        let Some(view) = self.engine.view(&from) else { return Ok(None) };
        let mut page = BackupPage { finished: true, ..BackupPage::default() };
        let mut bytes = 0;
        for pair in view {
            let (key, value) = pair?;
            bytes += key.len() + value.len() + RECORD_HEAD_BYTES + 2;
            if bytes > bytes_max && !page.pairs.is_empty() {
                page.finished = false;
                break;
            }
            page.pairs.push((key, value));
        }
        Ok(Some(page))
    }

    /// Ends a backup: its state is kept no longer.
    pub fn end_backup(&mut self) {
        self.engine.drop_view();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, MemEngine, NamespaceOptions, Timestamp};

    const HEAD: BackupHead = BackupHead { cluster: [1; 16], storage: [2; 16], taken_s: 77 };

    fn backup(records: usize, value_bytes: usize) -> Vec<u8> {
        let mut writer = BackupWriter::begin(Vec::new(), &HEAD).unwrap();
        for number in 0..records {
            let value = vec![number as u8; value_bytes + number % 3];
            writer.add(format!("k{number:08}").as_bytes(), &value).unwrap();
        }
        writer.add(keys::SUPER_FORMAT, b"x").unwrap();
        writer.end().unwrap().0
    }

    #[test]
    fn what_was_written_is_read_again_in_blocks() {
        let bytes = backup(5000, 300);
        let mut reader = BackupReader::begin(bytes.as_slice()).unwrap();
        assert_eq!(*reader.head(), HEAD);
        let mut pairs = Vec::new();
        while let Some(block) = reader.next_block().unwrap() {
            assert!(block.len() < 2000, "memory is bounded");
            pairs.extend(block);
        }
        assert_eq!(pairs.len(), 5001);
        assert_eq!(pairs[7], (b"k00000007".to_vec(), vec![7; 301]));
        assert_eq!(reader.size().records, 5001);
        assert_eq!(verify_backup(bytes.as_slice()).unwrap(), (HEAD, reader.size()));
    }

    #[test]
    fn every_flipped_byte_and_every_truncation_is_found() {
        let bytes = backup(40, 10);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(verify_backup(damaged.as_slice()).is_err(), "bit {bit} of byte {at}");
            }
            assert!(verify_backup(&bytes[..at]).is_err(), "cut at byte {at}");
        }
        assert!(verify_backup([bytes.as_slice(), b"x"].concat().as_slice()).is_err(), "something follows");
    }

    #[test]
    fn blocks_of_a_sound_backup_in_another_order_are_found() {
        let bytes = backup(3000, 300);
        let block_bytes =
            |at: usize| BLOCK_HEAD_BYTES + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let first = HEAD_BYTES;
        let second = first + block_bytes(first);
        let third = second + block_bytes(second);
        let swapped =
            [&bytes[..first], &bytes[second..third], &bytes[first..second], &bytes[third..]].concat();
        assert!(verify_backup(swapped.as_slice()).is_err());
        let without = [&bytes[..first], &bytes[second..]].concat();
        assert!(verify_backup(without.as_slice()).is_err());
    }

    #[test]
    fn keys_that_do_not_rise_are_refused() {
        let mut writer = BackupWriter::begin(Vec::new(), &HEAD).unwrap();
        writer.add(b"b", b"").unwrap();
        writer.add(b"a", b"").unwrap();
        let bytes = writer.end().unwrap().0;
        assert!(verify_backup(bytes.as_slice()).unwrap_err().to_string().contains("do not rise"));
    }

    /// Pages of one state, while another commit comes between any two of them.
    fn pages_are_of_one_moment<E: Engine>(engine: E) {
        let mut namespace = Namespace::open(engine, NamespaceOptions::default()).unwrap();
        let number = |value: u64| value.to_be_bytes().to_vec();
        let mut batch = Batch::default();
        (0..500u64).for_each(|key| batch.put(keys::run(key), number(0)));
        namespace.engine.commit(&batch).unwrap();
        namespace.begin_backup(5).unwrap();
        let (mut after, mut pairs, mut turns) = (Vec::new(), Vec::new(), 0);
        loop {
            let page = namespace.backup_page(&after, 400).unwrap().unwrap();
            after = page.pairs.last().unwrap().0.clone();
            pairs.extend(page.pairs);
            if page.finished {
                break;
            }
            turns += 1;
            let mut batch = Batch::default();
            (0..500u64).for_each(|key| batch.put(keys::run(key), number(turns)));
            batch.put(keys::run(1000 + turns), number(turns));
            batch.delete(keys::run(turns));
            namespace.engine.commit(&batch).unwrap();
        }
        let runs: Vec<&Pair> = pairs.iter().filter(|(key, _)| key[0] == keys::RUN).collect();
        assert_eq!(runs.len(), 500);
        assert!(runs.iter().all(|(_, value)| *value == number(0)));
        assert!(turns > 10, "{turns} pages");
        assert!(pairs.windows(2).all(|two| two[0].0 < two[1].0));
        namespace.end_backup();
        assert_eq!(namespace.backup_page(&[], 400).unwrap(), None);
    }

    fn formatted<E: Engine>(mut engine: E) -> E {
        let now = Timestamp { seconds: 0, nanos: 0 };
        Namespace::format(&mut engine, [1; 16], &Caller::root(), now).unwrap();
        engine
    }

    #[test]
    fn a_backup_is_of_one_moment_in_memory() {
        pages_are_of_one_moment(formatted(MemEngine::default()));
    }

    #[test]
    fn a_backup_is_of_one_moment_on_disk() {
        let directory = tempfile::tempdir().unwrap();
        pages_are_of_one_moment(formatted(
            FjallEngine::open(&directory.path().join("names"), &FjallOptions::default()).unwrap(),
        ));
    }

    #[test]
    fn a_store_made_of_a_backup_is_the_one_that_was_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let engine = formatted(MemEngine::default());
        let mut namespace = Namespace::open(engine, NamespaceOptions::default()).unwrap();
        namespace.own_storage([9; 16]).unwrap();
        namespace.raise_mark(&[4; 16]).unwrap();
        let head = namespace.begin_backup(123).unwrap();
        let path = directory.path().join("backup");
        let mut writer = BackupWriter::begin(File::create(&path).unwrap(), &head).unwrap();
        let page = namespace.backup_page(&[], usize::MAX).unwrap().unwrap();
        page.pairs.iter().for_each(|(key, value)| writer.add(key, value).unwrap());
        writer.end().unwrap();
        let names = directory.path().join("names");
        for _ in 0..2 {
            // The second time as after an interruption.
            prepare_store(&File::open(&path).unwrap(), &names).unwrap();
        }
        let loading = directory.path().join(LOADING);
        std::fs::rename(&loading, &names).unwrap();
        let engine = FjallEngine::open(&names, &FjallOptions::default()).unwrap();
        let mut again = Namespace::open(engine, NamespaceOptions::default()).unwrap();
        assert!(again.was_loaded().unwrap() && !namespace.was_loaded().unwrap());
        assert_eq!(again.own_storage([0; 16]).unwrap(), namespace.own_storage([0; 16]).unwrap());
        let mut op = again.begin();
        op.loading_is_done();
        op.commit().unwrap();
        assert!(!again.was_loaded().unwrap());
        let mut damaged = std::fs::read(&path).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert!(prepare_store(&File::open(&path).unwrap(), &directory.path().join("other/names")).is_err());
        assert!(!directory.path().join("other").exists(), "nothing is made before all was read");
    }

    #[test]
    fn damaged_backups_are_refused_or_written_back_the_same() {
        weft_test_fuzz::run("backup", &[backup(3, 5), backup(0, 0)], |bytes| {
            let Ok((head, size)) = verify_backup(bytes) else { return };
            let mut reader = BackupReader::begin(bytes).expect("it was verified");
            let mut writer = BackupWriter::begin(Vec::new(), &head).expect("it is memory");
            while let Some(pairs) = reader.next_block().expect("it was verified") {
                pairs.iter().for_each(|(key, value)| writer.add(key, value).expect("it was in one"));
            }
            let (again, again_size) = writer.end().expect("it is memory");
            assert_eq!(again_size.records, size.records);
            assert_eq!(verify_backup(again.as_slice()).expect("it was just written").0, head);
        });
    }
}
