//! fjall's journals before fjall reads them: what a power cut has torn is cut off, and damage is refused.
//!
//! The form of a batch, in format 3:
//!
//! ```text
//!   01 items:u32 seqno:u64
//!   02 type:u8 compression:u8 keyspace:u64 key:u16 value:u32 stored:u32 <key> <stored value>     for each item
//!   03 xxh3 of the items:u64 "FJL" 03
//!   00 ...                                                         after the last batch: preallocated
//! ```
//!
//! A journal is sound up to its first bad batch. Whether the rest may be cut depends on how the store was left, which the
//! record beside the journal tells (`record.rs`):
//!
//! ```text
//!   closed in order        all of it was synced: nothing may be cut
//!   killed                 the page cache is whole: batches were written one after the other, so at most the last is torn
//!   power cut              pages written since the last sync are there in any choice: sound batches may follow a torn one
//!   no record              as killed, without a known length
//! ```
//!
//! Older journals were synced whole before their successor began, so nothing of them may be cut.

use super::record::{BootId, Record};
use super::{Batch, space};
use crate::EngineError;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// Of a batch's first part, and of its last.
const EDGE_BYTES: usize = 13;
/// Of an item, without key and value.
const ITEM_BYTES: usize = 21;
/// Numbers of batches that follow each other are not further apart.
const SEQNO_GAP_MAX: u64 = 1 << 32;
/// How much is read at once in search of the end.
const WINDOW_BYTES: usize = 256 * 1024;
const MAGIC: [u8; 4] = *b"FJL\x03";

/// What is sure of a store's journals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing was noted.
    Nothing,
    /// All was synced when the store was closed.
    Closed { oldest: u64, number: u64, bytes: u64 },
    /// The process was killed, or is this one; the kernel is the same.
    Killed { number: u64, bytes: u64 },
    /// The kernel has started anew: this much had been synced, at least.
    PowerCut { number: u64, bytes: u64 },
}

impl Known {
    pub fn new(record: Option<&Record>, boot: &BootId) -> Known {
        match record {
            None => Known::Nothing,
            Some(record) if record.closed => {
                Known::Closed { oldest: record.oldest, number: record.number, bytes: record.written }
            }
            Some(record) if record.boot == *boot && *boot != BootId::default() => {
                Known::Killed { number: record.number, bytes: record.written }
            }
            Some(record) => Known::PowerCut { number: record.synced_number, bytes: record.synced },
        }
    }

    /// Says what is wrong with the numbers of the journals there are, in order.
    fn wrong_numbers(&self, numbers: &[u64]) -> Option<String> {
        let (first, last) = (*numbers.first()?, *numbers.last()?);
        let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1).map(|pair| pair[0] + 1);
        let missing = match *self {
            Known::Nothing => gap,
            Known::Closed { oldest, number, .. } => {
                let edge = if first != oldest { Some(oldest) } else { None };
                edge.or(gap).or((last < number).then_some(number))
            }
            // The oldest may have been removed since it was noted, or not yet.
            Known::Killed { number, .. } => gap.or((last < number).then_some(number)),
            // Names that were removed, or made, may be there or not.
            Known::PowerCut { number, .. } => (last < number).then_some(number),
        };
        missing.map(|number| {
            format!("journals {first} to {last} are there, but {number}.jnl is not what is expected")
        })
    }

    /// How much of the newest journal must be sound.
    fn sound_bytes(&self, newest: u64) -> u64 {
        match *self {
            Known::Closed { number, bytes, .. }
            | Known::Killed { number, bytes }
            | Known::PowerCut { number, bytes }
                if number == newest =>
            {
                bytes
            }
            _ => 0,
        }
    }
}

/// What `settle` has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settled {
    pub oldest: u64,
    /// The newest journal, and the end of its last batch.
    pub number: u64,
    pub bytes: u64,
    /// How much of torn batches was cut off.
    pub torn_bytes: u64,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> EngineError {
    move |error| EngineError::Store {
        action: "read its journal and write that again",
        reason: format!("{}: {error}", path.display()),
    }
}

/// The path of a journal.
pub(super) fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.jnl"))
}

/// The numbers of the journals, in order.
pub(super) fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_suffix(".jnl")?.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The journal with the highest number.
pub(super) fn newest(directory: &Path) -> io::Result<Option<PathBuf>> {
    Ok(numbers(directory)?.last().map(|number| path_of(directory, *number)))
}

/// The journal that `path_of` made this path of.
pub(super) fn number_of(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}

/// How many bytes a batch takes in a journal.
pub(super) fn batch_bytes(batch: &Batch) -> u64 {
    let items: usize =
        batch.writes().map(|(key, value)| ITEM_BYTES + key.len() + value.map_or(0, <[u8]>::len)).sum();
    (2 * EDGE_BYTES + items) as u64
}

/// Checks the journals against what is known of them, cuts from the newest what was torn, and makes the rest durable.
/// Where something is damaged, nothing is changed. The newest journal gets `ahead_bytes` of blocks after its end, if there
/// are any: others may take at once what cutting it frees.
pub(super) fn settle(directory: &Path, known: &Known, ahead_bytes: u64) -> Result<Settled, EngineError> {
    let numbers = numbers(directory).map_err(failed(directory))?;
    let damaged = |path: &Path, offset: Option<u64>, expected: String| EngineError::Damaged {
        path: path.display().to_string(),
        offset,
        expected,
    };
    let Some((newest, sealed)) = numbers.split_last() else {
        return Err(damaged(directory, None, "there is no journal (a file N.jnl)".into()));
    };
    if let Some(wrong) = known.wrong_numbers(&numbers) {
        return Err(damaged(directory, None, wrong));
    }
    for number in sealed {
        let path = path_of(directory, *number);
        let (whole, end) = extent(&path).map_err(failed(&path))?;
        if end > whole {
            let expected = format!("it was synced whole before {}.jnl was begun", number + 1);
            return Err(damaged(&path, Some(whole), expected));
        }
    }
    let path = path_of(directory, *newest);
    let (whole, end) = extent(&path).map_err(failed(&path))?;
    let sound = known.sound_bytes(*newest);
    if whole < sound {
        let expected = match known {
            Known::PowerCut { .. } => format!("its first {sound} bytes had been synced"),
            _ => format!("its first {sound} bytes had been written"),
        };
        return Err(damaged(&path, Some(whole), expected));
    }
    if end > whole {
        let expected = match known {
            Known::Closed { .. } => Some("all of it was synced when the server ended in order".to_string()),
            Known::PowerCut { .. } => None,
            Known::Nothing | Known::Killed { .. } => {
                let later = later_batch(&path, whole, end).map_err(failed(&path))?;
                later.map(|later| {
                    format!("sound changes follow at byte {later}, so this is no interrupted write")
                })
            }
        };
        if let Some(expected) = expected {
            return Err(damaged(&path, Some(whole), expected));
        }
    }
    let written_again = || {
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        if file.metadata()?.len() != whole {
            file.set_len(whole)?;
        }
        space::allocate(&file, whole, ahead_bytes);
        write_again(&file, whole)?;
        file.sync_all()
    };
    written_again().map_err(failed(&path))?;
    Ok(Settled { oldest: numbers[0], number: *newest, bytes: whole, torn_bytes: end - whole })
}

/// Whether a journal has a batch.
pub(super) fn has_batches(path: &Path) -> io::Result<bool> {
    Ok(whole_batches(path)? > 0)
}

/// The end of the last of the sound batches that a journal begins with.
pub(super) fn whole_batches(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    let total = file.metadata()?.len();
    let mut journal = Journal::new(BufReader::new(file), total);
    let mut whole = 0;
    while journal.read_batch()?.is_some() {
        whole = total - journal.left;
    }
    Ok(whole)
}

/// The end of the sound batches, and of what is written at all.
fn extent(path: &Path) -> io::Result<(u64, u64)> {
    let whole = whole_batches(path)?;
    Ok((whole, last_written(path, whole)?))
}

/// Where after `from` a sound batch begins.
fn later_batch(path: &Path, from: u64, end: u64) -> io::Result<Option<u64>> {
    let mut rest = vec![0; (end - from) as usize];
    File::open(path)?.read_exact_at(&mut rest, from)?;
    for at in 1..rest.len() {
        let part = &rest[at..];
        if part[0] == START && Journal::new(part, part.len() as u64).read_batch()?.is_some() {
            return Ok(Some(from + at as u64));
        }
    }
    Ok(None)
}

fn write_again(file: &File, bytes: u64) -> io::Result<()> {
    let mut window = vec![0; WINDOW_BYTES];
    for position in (0..bytes).step_by(WINDOW_BYTES) {
        let part = &mut window[..(bytes - position).min(WINDOW_BYTES as u64) as usize];
        file.read_exact_at(part, position)?;
        file.write_all_at(part, position)?;
    }
    Ok(())
}

/// The end of the last byte that is not zero, at least `from`.
fn last_written(path: &Path, from: u64) -> io::Result<u64> {
    let mut file = File::open(path)?;
    io::Seek::seek(&mut file, io::SeekFrom::Start(from))?;
    let (mut window, zeros) = (vec![0; WINDOW_BYTES], vec![0; WINDOW_BYTES]);
    let (mut position, mut written) = (from, from);
    loop {
        let bytes = file.read(&mut window)?;
        if bytes == 0 {
            return Ok(written);
        }
        if window[..bytes] != zeros[..bytes] {
            let last = window[..bytes].iter().rposition(|byte| *byte != 0);
            written = position + last.map_or(0, |last| last as u64 + 1);
        }
        position += bytes as u64;
    }
}

struct Journal<R> {
    reader: R,
    left: u64,
    seqno: Option<u64>,
}

/// `None`: the journal ends here, or is damaged here.
type Whole<T> = io::Result<Option<T>>;

impl<R: Read> Journal<R> {
    fn new(reader: R, left: u64) -> Journal<R> {
        Journal { reader, left, seqno: None }
    }

    fn read<const N: usize>(&mut self) -> Whole<[u8; N]> {
        let mut bytes = [0; N];
        if self.left < N as u64 {
            return Ok(None);
        }
        self.reader.read_exact(&mut bytes)?;
        self.left -= N as u64;
        Ok(Some(bytes))
    }

    fn read_batch(&mut self) -> Whole<()> {
        let Some([START, count @ .., s0, s1, s2, s3, s4, s5, s6, s7]) = self.read::<EDGE_BYTES>()? else {
            return Ok(None);
        };
        // The checksum covers the items only.
        let seqno = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        if self.seqno.is_some_and(|last| seqno <= last || seqno - last > SEQNO_GAP_MAX) {
            return Ok(None);
        }
        let mut checksum = Xxh3::new();
        for _ in 0..u32::from_le_bytes(count) {
            if self.read_item(&mut checksum)?.is_none() {
                return Ok(None);
            }
        }
        let Some(end) = self.read::<EDGE_BYTES>()? else { return Ok(None) };
        let sound = end[0] == END && end[1..9] == checksum.digest().to_le_bytes() && end[9..] == MAGIC;
        self.seqno = Some(seqno);
        Ok(sound.then_some(()))
    }

    fn read_item(&mut self, checksum: &mut Xxh3) -> Whole<()> {
        let Some([tag]) = self.read::<1>()? else { return Ok(None) };
        checksum.update(&[tag]);
        match tag {
            CLEAR => {
                let Some(keyspace) = self.read::<8>()? else { return Ok(None) };
                checksum.update(&keyspace);
                Ok(Some(()))
            }
            ITEM => {
                let Some(header) = self.read::<20>()? else { return Ok(None) };
                checksum.update(&header);
                let key = u64::from(u16::from_le_bytes([header[10], header[11]]));
                let stored = u32::from_le_bytes([header[16], header[17], header[18], header[19]]);
                self.read_payload(key + u64::from(stored), checksum)
            }
            _ => Ok(None),
        }
    }

    fn read_payload(&mut self, bytes: u64, checksum: &mut Xxh3) -> Whole<()> {
        if bytes > self.left {
            return Ok(None);
        }
        self.left -= bytes;
        let mut window = [0; 4096];
        let mut rest = bytes as usize;
        while rest > 0 {
            let part = rest.min(window.len());
            self.reader.read_exact(&mut window[..part])?;
            checksum.update(&window[..part]);
            rest -= part;
        }
        Ok(Some(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = [7; 16];

    fn record(closed: bool) -> Record {
        Record {
            boot: BOOT,
            closed,
            number: 5,
            written: 900,
            synced_number: 5,
            synced: 400,
            oldest: 3,
            ..Record::default()
        }
    }

    #[test]
    fn what_is_known_depends_on_how_the_store_was_left() {
        let known = |record: &Record, boot: &BootId| Known::new(Some(record), boot);
        let closed = known(&record(true), &[1; 16]);
        assert_eq!(closed, Known::Closed { oldest: 3, number: 5, bytes: 900 });
        let killed = known(&record(false), &BOOT);
        assert_eq!(killed, Known::Killed { number: 5, bytes: 900 });
        let cut = known(&record(false), &[1; 16]);
        assert_eq!(cut, Known::PowerCut { number: 5, bytes: 400 });
        assert_eq!(Known::new(None, &BOOT), Known::Nothing);
        let nameless = Record { boot: BootId::default(), ..record(false) };
        assert_eq!(
            known(&nameless, &BootId::default()),
            cut,
            "a kernel that does not tell may be another one"
        );
        assert_eq!([closed, killed, cut].map(|known| known.sound_bytes(5)), [900, 900, 400]);
        assert_eq!([closed, killed, cut].map(|known| known.sound_bytes(6)), [0; 3]);
    }

    #[test]
    fn journals_that_are_missing_are_noticed() {
        let is_wrong = |known: Known, numbers: &[u64]| known.wrong_numbers(numbers).is_some();
        let closed = Known::Closed { oldest: 3, number: 5, bytes: 0 };
        let killed = Known::Killed { number: 5, bytes: 0 };
        let cut = Known::PowerCut { number: 5, bytes: 0 };
        for known in [closed, killed, cut, Known::Nothing] {
            assert!(!is_wrong(known, &[3, 4, 5]), "{known:?}");
        }
        assert!(is_wrong(closed, &[4, 5]) && !is_wrong(killed, &[4, 5]), "fjall removes the oldest in time");
        for known in [closed, killed, Known::Nothing] {
            assert!(is_wrong(known, &[3, 5]), "{known:?}");
        }
        assert!(!is_wrong(cut, &[3, 5]), "a removal may have been lost");
        for known in [closed, killed, cut] {
            assert!(is_wrong(known, &[3, 4]), "{known:?}");
        }
    }

    /// A batch as fjall writes it.
    fn batch(seqno: u64, items: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![START];
        bytes.extend((items.len() as u32).to_le_bytes());
        bytes.extend(seqno.to_le_bytes());
        let mut checksum = Xxh3::new();
        for item in items {
            let mut whole = vec![ITEM];
            whole.extend([0; 10]);
            whole.extend((item.len() as u16).to_le_bytes());
            whole.extend([0; 8]);
            whole.extend(*item);
            checksum.update(&whole);
            bytes.extend(whole);
        }
        bytes.push(END);
        bytes.extend(checksum.digest().to_le_bytes());
        bytes.extend(MAGIC);
        bytes
    }

    #[test]
    fn damaged_journals_end_where_they_are_damaged() {
        let right = [batch(1, &[b"key"]), batch(2, &[b"a", b"bc"])].concat();
        let whole = |bytes: &[u8]| {
            let mut journal = Journal::new(bytes, bytes.len() as u64);
            let mut count = 0;
            while journal.read_batch().expect("no more is read than there is").is_some() {
                count += 1;
            }
            count
        };
        assert_eq!(whole(&right), 2);
        weft_test_fuzz::run("journal", &[right], |bytes| {
            let count = whole(bytes);
            assert!(count <= bytes.len() / (2 * EDGE_BYTES));
        });
    }
}
