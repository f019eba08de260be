//! What a power cut may do to fjall's journal, undone before fjall reads it.
//!
//! Pages written since the last sync may be missing, in any choice: they read as zeros. All commits before the first
//! damaged batch are good; that one and all after it were never synced, and go. The form of a batch, in format 3:
//!
//! ```text
//!   01 items:u32 seqno:u64
//!   02 type:u8 compression:u8 keyspace:u64 key:u16 value:u32 stored:u32 <key> <stored value>     for each item
//!   03 xxh3 of the items:u64 "FJL" 03
//!   00 ...                                                         after the last batch: preallocated
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// How much is read at once in search of the end.
const WINDOW_BYTES: usize = 256 * 1024;
const MAGIC: [u8; 4] = *b"FJL\x03";

/// The journal with the highest number.
pub(super) fn newest(directory: &Path) -> io::Result<Option<PathBuf>> {
    let numbers = std::fs::read_dir(directory)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".jnl")?.parse::<u64>().ok());
    Ok(numbers.max().map(|number| directory.join(format!("{number}.jnl"))))
}

/// Cuts the newest journal after its last whole batch, unless only zeros follow there, and makes what is before durable.
/// Returns how many bytes of damaged batches went. Older journals were synced whole before their successor began.
pub(super) fn settle(directory: &Path) -> io::Result<u64> {
    let Some(path) = newest(directory)? else { return Ok(0) };
    let whole = whole_batches(&path)?;
    let written = last_written(&path, whole)?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    if written > whole {
        file.set_len(whole)?;
    }
    write_again(&file, whole)?;
    file.sync_all()?;
    Ok(written - whole)
}

/// Whether a journal has a batch.
pub(super) fn has_batches(path: &Path) -> io::Result<bool> {
    Ok(whole_batches(path)? > 0)
}

/// The end of the last of the whole batches that a journal begins with.
fn whole_batches(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    let total = file.metadata()?.len();
    let mut journal = Journal { left: total, reader: BufReader::new(file) };
    let mut whole = 0;
    while journal.read_batch()?.is_some() {
        whole = total - journal.left;
    }
    Ok(whole)
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

struct Journal {
    reader: BufReader<File>,
    left: u64,
}

/// `None`: the journal ends here, or is damaged here.
type Whole<T> = io::Result<Option<T>>;

impl Journal {
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
        let Some([START, count @ .., _, _, _, _, _, _, _, _]) = self.read::<13>()? else { return Ok(None) };
        let mut checksum = Xxh3::new();
        for _ in 0..u32::from_le_bytes(count) {
            if self.read_item(&mut checksum)?.is_none() {
                return Ok(None);
            }
        }
        let Some(end) = self.read::<13>()? else { return Ok(None) };
        let sound = end[0] == END && end[1..9] == checksum.digest().to_le_bytes() && end[9..] == MAGIC;
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
