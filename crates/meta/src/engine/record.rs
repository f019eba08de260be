//! What is known of the journal from outside of it, so that damage can be told from what a power cut has torn.
//!
//! ```text
//!   DIR/journal.state    slot 0 at 0, slot 1 at 4096; the sound one with the higher turn counts
//!   a slot               "WEFTJRN1" turn boot:16 closed number written synced_number synced oldest xxh3   (u64, little-endian)
//! ```
//!
//! *written* follows the commits, without a sync: with the first one [`NOTE_EVERY`] after it was noted last, since a note takes a
//! fifth of the time of a commit, and with every sync. What it says holds as long as this run of the kernel does, whatever happens to
//! the process. *synced* is noted after a sync of the journal has returned, and so holds whenever it is read; it reaches the disk
//! later, at most `DURABLE_EVERY` of a busy server or by the kernel's own write-back, and may therefore be less than what was
//! synced. An orderly end syncs both, and says so: *closed*.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// The file's name in the store's directory.
pub(super) const FILE: &str = "journal.state";
const MAGIC: [u8; 8] = *b"WEFTJRN1";
const SLOT_BYTES: usize = 88;
/// So far apart that no torn sector or page has parts of both.
const SLOTS_AT: [u64; 2] = [0, 4096];
/// How often the record is synced while the journal is.
const DURABLE_EVERY: Duration = Duration::from_secs(1);

/// How often at most commits are noted. Damage to the last ones of a killed process, behind which nothing sound follows, is taken for a
/// torn commit where they were not noted yet.
const NOTE_EVERY: Duration = Duration::from_millis(10);

/// A run of the kernel; zeros where it does not tell.
pub(super) type BootId = [u8; 16];

/// See the module's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Record {
    /// Of two slots, the one with the higher turn counts. Kept by [`Log`].
    pub turn: u64,
    pub boot: BootId,
    pub closed: bool,
    /// The newest journal, and the end of its last batch.
    pub number: u64,
    pub written: u64,
    /// The journal synced last, and how much of it.
    pub synced_number: u64,
    pub synced: u64,
    /// The oldest journal when this was noted.
    pub oldest: u64,
}

impl Record {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        slot[..8].copy_from_slice(&MAGIC);
        slot[8..16].copy_from_slice(&self.turn.to_le_bytes());
        slot[16..32].copy_from_slice(&self.boot);
        let numbers =
            [u64::from(self.closed), self.number, self.written, self.synced_number, self.synced, self.oldest];
        for (place, number) in slot[32..80].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = xxh3_64(&slot[..80]);
        slot[80..].copy_from_slice(&checksum.to_le_bytes());
        slot
    }

    fn decode(slot: &[u8]) -> Option<Record> {
        let slot: &[u8; SLOT_BYTES] = slot.get(..SLOT_BYTES)?.try_into().ok()?;
        let number = |at: usize| Some(u64::from_le_bytes(slot[at..at + 8].try_into().ok()?));
        if slot[..8] != MAGIC || number(80)? != xxh3_64(&slot[..80]) {
            return None;
        }
        Some(Record {
            turn: number(8)?,
            boot: slot[16..32].try_into().ok()?,
            closed: number(32)? != 0,
            number: number(40)?,
            written: number(48)?,
            synced_number: number(56)?,
            synced: number(64)?,
            oldest: number(72)?,
        })
    }

    /// The record in a directory; `None` where there is none, or none that is sound.
    pub fn read(directory: &Path) -> io::Result<Option<Record>> {
        let bytes = match std::fs::read(directory.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let slots = SLOTS_AT.iter().filter_map(|at| Record::decode(bytes.get(*at as usize..)?));
        Ok(slots.max_by_key(|record| record.turn))
    }
}

/// The record of a store in use.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    record: Record,
    durable_at: Instant,
    noted_at: Instant,
    /// How often the record was set: what was read before says nothing of a journal that was cut since.
    sets: u64,
}

impl State {
    fn new(record: Record) -> State {
        let now = Instant::now();
        State { record, durable_at: now, noted_at: now, sets: 0 }
    }
}

/// Where the newest journal ended when a sync began.
#[derive(Debug, Clone, Copy)]
pub(super) struct SyncBegin {
    pub number: u64,
    bytes: u64,
    sets: u64,
}

impl Log {
    /// Notes `record` in a directory, durably.
    pub fn begin(directory: &Path, record: Record) -> io::Result<Log> {
        let before = Record::read(directory)?.map_or(0, |record| record.turn);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(directory.join(FILE))?;
        let record = Record { turn: before, ..record };
        let log = Log { file, state: Mutex::new(State::new(record)) };
        log.set(|_| {})?;
        Ok(log)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_slot(&self, record: &mut Record) -> io::Result<()> {
        record.turn += 1;
        let at = SLOTS_AT[(record.turn % 2) as usize];
        self.file.write_all_at(&record.encode(), at)
    }

    /// Changes the record, in both slots, durably.
    pub fn set(&self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let mut state = self.lock();
        let turn = state.record.turn;
        change(&mut state.record);
        state.record.turn = turn;
        state.sets += 1;
        self.write_slot(&mut state.record)?;
        self.write_slot(&mut state.record)?;
        self.file.sync_data()
    }

    /// The newest journal known, and the end of its last batch.
    pub fn position(&self) -> (u64, u64) {
        let state = self.lock();
        (state.record.number, state.record.written)
    }

    /// Counts a batch of so many bytes, and notes it if that is due. A failure to note it is none of the batch: the record says less
    /// than is there.
    pub fn advance(&self, bytes: u64) {
        let mut state = self.lock();
        state.record.written += bytes;
        let now = Instant::now();
        if now.duration_since(state.noted_at) >= NOTE_EVERY {
            state.noted_at = now;
            let _ = self.write_slot(&mut state.record);
        }
    }

    /// Notes a new newest journal.
    pub fn rotated(&self, number: u64, written: u64, oldest: u64) {
        let mut state = self.lock();
        state.record = Record { number, written, oldest, ..state.record };
        let _ = self.write_slot(&mut state.record);
    }

    /// To be asked for before a sync, and told to [`synced`](Log::synced) after it.
    pub fn sync_begin(&self) -> SyncBegin {
        let state = self.lock();
        SyncBegin { number: state.record.number, bytes: state.record.written, sets: state.sets }
    }

    /// Notes that the journal was synced as it was at `begin`.
    pub fn synced(&self, begin: SyncBegin) {
        let SyncBegin { number, bytes, sets } = begin;
        let due = {
            let mut state = self.lock();
            if state.sets != sets || (number, bytes) <= (state.record.synced_number, state.record.synced) {
                return;
            }
            (state.record.synced_number, state.record.synced) = (number, bytes);
            let _ = self.write_slot(&mut state.record);
            let due = state.durable_at.elapsed() >= DURABLE_EVERY;
            if due {
                state.durable_at = Instant::now();
            }
            due
        };
        if due {
            // Where it fails, the record on the disk says less than is there.
            let _ = self.file.sync_data();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_sound_slot_counts() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(directory.path()).unwrap(), None);
        let log =
            Log::begin(directory.path(), Record { number: 3, written: 10, ..Record::default() }).unwrap();
        log.state.lock().unwrap().noted_at = Instant::now() + Duration::from_secs(3600);
        log.advance(2);
        assert_eq!(Record::read(directory.path()).unwrap().unwrap().written, 10, "not noted yet");
        log.state.lock().unwrap().noted_at = Instant::now() - NOTE_EVERY;
        log.advance(0);
        assert_eq!(Record::read(directory.path()).unwrap().unwrap().written, 12);
        let begin = log.sync_begin();
        log.advance(3);
        log.synced(begin);
        let read = Record::read(directory.path()).unwrap().unwrap();
        assert_eq!((read.number, read.written, read.synced_number, read.synced), (3, 15, 3, 12));
        let path = directory.path().join(FILE);
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            std::fs::write(&path, &flipped).unwrap();
            let read = Record::read(directory.path()).unwrap().expect("one slot is sound");
            assert!(read.number == 3 && (10..=15).contains(&read.written) && read.synced <= 12, "byte {at}");
        }
    }

    #[test]
    fn a_sync_of_before_the_journal_was_cut_is_not_noted() {
        let directory = tempfile::tempdir().unwrap();
        let log =
            Log::begin(directory.path(), Record { number: 3, written: 10, ..Record::default() }).unwrap();
        let begin = log.sync_begin();
        log.set(|record| record.written = 0).unwrap();
        log.synced(begin);
        assert_eq!(Record::read(directory.path()).unwrap().unwrap().synced, 0);
    }

    #[test]
    fn damaged_records_of_the_journal_are_none() {
        let record = Record { number: 3, written: 10, closed: true, ..Record::default() };
        weft_test_fuzz::run("journal-record", &[record.encode().to_vec()], |bytes| {
            let _ = Record::decode(bytes);
            // Without a right checksum nothing else would be reached.
            let Some(mut slot) = bytes.first_chunk::<SLOT_BYTES>().copied() else { return };
            slot[..8].copy_from_slice(&MAGIC);
            let checksum = xxh3_64(&slot[..80]);
            slot[80..].copy_from_slice(&checksum.to_le_bytes());
            let found = Record::decode(&slot).expect("its checksum is right");
            assert_eq!(Record::decode(&found.encode()), Some(found));
        });
    }
}
