//! Room on the disk: blocks that the journal has ahead, and what happens on a full or small disk.

use super::*;

/// How often the free space is looked at, unless it is low: then before each batch that adds data.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often it is tried to go on as usual after the disk was full.
const RESUME_EVERY: Duration = Duration::from_secs(1);
/// How long a full disk is taken for the reason of a worker's end.
const FULL_REMEMBERED: Duration = Duration::from_secs(60);
/// What the journal gets beyond what it is to have ahead, so that not every commit allocates.
const ALLOCATE_BYTES: u64 = 1024 * 1024;
/// A journal shorter than this is not worth being emptied.
const EMPTIED_BYTES_MIN: u64 = 64 * 1024;
/// Tables that are compacted at once while everybody waits.
const COMPACTED_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// fjall stops a commit, for good if its workers have ended, at so many tables in memory that wait to be written out, and at
/// so many runs of small tables on disk.
const SEALED_MAX: usize = 4;
const RUNS_MAX: usize = 20;
/// After so much in commits it is looked whether there is a new journal: less than a memory table, since fjall syncs the
/// journal when it writes one out.
pub(super) const BYTES_PER_LOOK: usize = 64 * 1024;

impl FjallEngine {
    pub(super) fn look(&mut self) {
        self.free = Free::look(&self.directory);
        self.looked = Instant::now();
        let is_small = self.free.is_some_and(|free| free.is_small());
        self.tables_bytes = match &self.open {
            Some(open) if is_small => open.keyspace.disk_space(),
            _ => 0,
        };
        if !self.is_roomy() {
            self.was_full = Some(self.looked);
        }
    }

    /// Whether there was more than the reserve when it was looked last, and on a small disk enough to write all tables anew: only
    /// that gives back what removals have freed, where it cannot be done in parts.
    pub(super) fn is_roomy(&self) -> bool {
        self.free.is_none_or(|free| free.has_room() && free.can_compact(self.tables_bytes))
    }

    pub(super) fn is_low(&self) -> bool {
        self.free.is_some_and(|free| free.is_low())
    }

    pub(super) fn ahead_bytes(&self) -> u64 {
        self.free.map_or(0, |free| free.ahead_bytes())
    }

    /// Goes on to the journal that is the newest now, and counts what it has.
    pub(super) fn follow(&mut self) -> io::Result<()> {
        let numbers = journal::numbers(&self.directory)?;
        let (Some(oldest), Some(newest)) = (numbers.first(), numbers.last()) else { return Ok(()) };
        if self.log.position().0 != *newest {
            let whole = journal::whole_batches(&journal::path_of(&self.directory, *newest))?;
            self.log.rotated(*newest, whole, *oldest);
        }
        Ok(())
    }

    /// How many bytes the newest journal can take without a new block.
    pub(super) fn bytes_ahead(&self) -> u64 {
        let (number, at) = self.log.position();
        match &self.ahead {
            Some(ahead) if ahead.number == number => ahead.end.saturating_sub(at),
            _ => 0,
        }
    }

    /// Gives the newest journal blocks for so many bytes, and says whether it has them. True where that cannot be known.
    pub(super) fn allocate_ahead(&mut self, bytes: u64) -> bool {
        if !self.allocates || self.bytes_ahead() >= bytes {
            return true;
        }
        let (number, at) = self.log.position();
        if self.ahead.as_ref().is_none_or(|ahead| ahead.number != number) {
            let path = journal::path_of(&self.directory, number);
            // One that is gone was sealed meanwhile; the next look finds its successor.
            let Ok(file) = OpenOptions::new().write(true).open(path) else { return true };
            self.ahead = Some(Ahead { number, file, end: at });
        }
        let Some(ahead) = &mut self.ahead else { return true };
        // Only what is new: tmpfs looks at every page of a range, also at those that it has.
        let from = ahead.end.max(at);
        for end in [at + bytes + ALLOCATE_BYTES, at + bytes] {
            match space::allocate(&ahead.file, from, end - from) {
                Allocated::Yes => {
                    ahead.end = end;
                    return true;
                }
                Allocated::NoRoom => {}
                Allocated::Unknown => {
                    self.allocates = false;
                    return true;
                }
            }
        }
        false
    }

    /// Closes fjall, cuts from the journal what was not acknowledged, and opens it again.
    pub(super) fn reopen(&mut self, mode: Mode) -> Result<(), EngineError> {
        let reopened = self.close_and_settle().and_then(|_| {
            open_database(&self.directory, &self.options, mode.workers()).map(|open| {
                self.open = Some(open);
                self.mode = mode;
            })
        });
        if reopened.is_err() {
            self.poison();
        }
        self.allocate_ahead(self.ahead_bytes());
        reopened
    }

    pub(super) fn close_and_settle(&mut self) -> Result<(), EngineError> {
        let followed = self.follow();
        self.view = None;
        self.open = None;
        followed.map_err(|error| EngineError::store("find its newest journal", error))?;
        let (number, written) = self.log.position();
        let path = journal::path_of(&self.directory, number);
        // What is left of a commit that failed, fjall may have written when it was closed.
        let cut = || {
            let file = OpenOptions::new().write(true).open(&path)?;
            if file.metadata()?.len() != written { file.set_len(written) } else { Ok(()) }
        };
        cut().map_err(|error| EngineError::store("cut a failed commit from the journal", error))?;
        self.ahead = None;
        let known = Known::Killed { number, bytes: written };
        let settled = journal::settle(&self.directory, &known, self.ahead_bytes())?;
        self.log
            .set(|record| *record = record_of(&settled, &self.options))
            .map_err(|error| EngineError::store("note the state of its journal", error))
    }

    /// Writes out all that the journals have, and empties them. Says whether that was possible; if not, nothing has changed.
    pub(super) fn empty_journals(&mut self) -> Result<bool, EngineError> {
        let mode = self.mode;
        self.reopen(Mode::JournalOnly)?;
        let written_out = self.write_out();
        if written_out.is_ok() {
            self.view = None;
            self.open = None;
            self.ahead = None;
            if let Err(error) = self.drop_journals() {
                self.poison();
                return Err(EngineError::store("empty its journals", error));
            }
        }
        // What a failed attempt has left of a table is removed by opening.
        self.reopen(mode)?;
        match written_out {
            Ok(()) => Ok(true),
            Err(error) if is_full(&error) => Ok(false),
            Err(error) => {
                self.poison();
                Err(EngineError::store("write a table out", error))
            }
        }
    }

    /// Without workers, so that nothing else writes, and an error is told here.
    pub(super) fn write_out(&self) -> Result<(), fjall::Error> {
        let Ok(Open { database, keyspace }) = self.opened() else { return Err(fjall::Error::Poisoned) };
        let tree = &keyspace.tree;
        tree.rotate_memtable();
        {
            let lock = tree.get_flush_lock();
            tree.flush(&lock, database.visible_seqno())?;
        }
        if keyspace.disk_space() > COMPACTED_BYTES_MAX {
            return Ok(());
        }
        match keyspace.major_compact() {
            Err(error) if !is_full(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// What they have is in tables, which are synced.
    pub(super) fn drop_journals(&self) -> io::Result<()> {
        let numbers = journal::numbers(&self.directory)?;
        let Some((newest, sealed)) = numbers.split_last() else { return Ok(()) };
        let newest = *newest;
        self.log.set(|record| {
            *record = Record {
                number: newest,
                written: 0,
                synced_number: newest,
                synced: 0,
                oldest: newest,
                ..*record
            };
        })?;
        for number in sealed {
            std::fs::remove_file(journal::path_of(&self.directory, *number))?;
        }
        let file = OpenOptions::new().write(true).open(journal::path_of(&self.directory, newest))?;
        file.set_len(0)?;
        file.sync_all()?;
        creation::sync_directory(&self.directory)
    }

    /// Whether another try to make room is due; if so, it begins now.
    pub(super) fn may_try(&mut self) -> bool {
        let due = self.tried.is_none_or(|tried| tried.elapsed() >= RESUME_EVERY);
        if due {
            self.tried = Some(Instant::now());
        }
        due
    }

    /// Tries to have room for data again: by what others have freed, and on a small disk by emptying the journals.
    pub(super) fn make_room(&mut self) -> Result<(), EngineError> {
        if (self.is_roomy() && self.mode == Mode::Working) || !self.may_try() {
            return Ok(());
        }
        let is_small = self.free.is_some_and(|free| free.is_small());
        // What was removed since the last try gives its space back only by this, however little of the journal it takes.
        let free_bytes = self.free.map_or(0, |free| free.free_bytes);
        let is_hopeful = self
            .tried_at
            .is_none_or(|(position, free_then)| position != self.log.position() || free_bytes > free_then);
        if !self.is_roomy() && is_small && is_hopeful {
            self.empty_journals()?;
            self.look();
            self.tried_at = Some((self.log.position(), self.free.map_or(0, |free| free.free_bytes)));
        }
        if self.is_roomy() && self.mode == Mode::JournalOnly {
            self.reopen(Mode::Working)?;
        }
        Ok(())
    }

    /// Empties the journals where fjall would do so too late, or not at all.
    pub(super) fn keep_journal_short(&mut self) -> Result<(), EngineError> {
        let Some(free) = self.free else { return Ok(()) };
        let is_long = self.log.position().1 > free.journal_bytes_max();
        if is_long && (free.is_small() || self.mode == Mode::JournalOnly) && self.may_try() {
            self.empty_journals()?;
        }
        Ok(())
    }

    /// Blocks for a batch, from where they can be had.
    pub(super) fn need_ahead(&mut self, bytes: u64) -> Result<(), EngineError> {
        if self.is_roomy() {
            self.allocate_ahead(self.ahead_bytes().max(bytes));
        }
        if self.allocate_ahead(bytes) {
            return Ok(());
        }
        if self.log.position().1 >= EMPTIED_BYTES_MIN && self.may_try() {
            self.empty_journals()?;
        }
        if self.allocate_ahead(bytes) { Ok(()) } else { Err(EngineError::Full) }
    }

    /// Waits where fjall would, but ends when its workers have: it would wait for them for ever.
    pub(super) fn wait_for_workers(&self) -> Result<(), fjall::Error> {
        let Ok(Open { database, keyspace }) = self.opened() else { return Err(fjall::Error::Poisoned) };
        let is_behind = || {
            keyspace.tree.sealed_memtable_count() + 2 >= SEALED_MAX
                || keyspace.tree.l0_run_count() >= RUNS_MAX
        };
        while self.mode == Mode::Working && is_behind() {
            // Says whether the workers have failed, and else does nothing.
            database.persist(PersistMode::Buffer)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_stuck =
            keyspace.tree.sealed_memtable_count() >= SEALED_MAX || keyspace.tree.l0_run_count() >= RUNS_MAX;
        match self.mode == Mode::JournalOnly && is_stuck {
            true => Err(fjall::Error::Io(io::ErrorKind::StorageFull.into())),
            false => Ok(()),
        }
    }

    pub(super) fn write(&self, batch: &Batch) -> Result<(), fjall::Error> {
        if self.is_low() || self.mode == Mode::JournalOnly {
            self.wait_for_workers()?;
        }
        let Ok(Open { database, keyspace }) = self.opened() else { return Err(fjall::Error::Poisoned) };
        let mut writes = OwnedWriteBatch::with_capacity(database.clone(), batch.len())
            .durability(Some(PersistMode::Buffer));
        for (key, value) in batch.writes() {
            match value {
                Some(value) => writes.insert(keyspace, key, value),
                None => writes.remove(keyspace, key),
            }
        }
        writes.commit()
    }

    /// Opens fjall anew after it found the disk full, and writes a batch again. With workers where there is room by now: a
    /// worker tells late, by the next commit, that it found the disk full, and others may have emptied it meanwhile.
    pub(super) fn write_anew(
        &mut self,
        batch: &Batch,
        bytes: u64,
        mode: Mode,
    ) -> Result<Result<(), fjall::Error>, EngineError> {
        self.reopen(mode)?;
        if mode == Mode::JournalOnly {
            self.tried = Some(Instant::now());
        }
        self.need_ahead(bytes)?;
        Ok(self.write(batch))
    }

    /// Whether a commit failed since the disk is full. A worker that found it so only leaves fjall poisoned, and there may be room
    /// again by now.
    pub(super) fn found_full(&mut self, error: &fjall::Error) -> bool {
        self.look();
        let was_full = self.was_full.is_some_and(|at| at.elapsed() < FULL_REMEMBERED);
        is_full(error) || matches!(error, fjall::Error::Poisoned) && was_full
    }
}

pub(super) fn is_full(error: &fjall::Error) -> bool {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) => space::is_full(error),
        _ => false,
    }
}
