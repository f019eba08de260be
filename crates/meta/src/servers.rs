//! What the metadata server keeps of storages: its own, and those of the I/O servers.
//!
//! ```text
//!   sstorage   which storage this store is                    made once
//!   sloaded    since when                                    an operator goes on with an older state; until all I/O servers have agreed
//!   smark      mark and run                                   counted up when a run is confirmed, and while there are changes
//!   h <mark>   run                                           of each run of this server, by its first mark; the newest RUNS_KEPT. Zeros: of nobody
//!   smap       the map of the cluster                         bytes of the server's, each change a higher version
//!   v <id>     name, storage, mark, run, lost_below, ...      of each I/O server as it was last seen
//! ```
//!
//! A store that is put back from a copy has a smaller mark than the I/O servers remember of it, or the same one by another run.
//! Where all directories were put back together, marks alone tell nothing: both histories count on from the copy. The runs do: a
//! mark that another server knows was written by a run of *this* history, or it is of another one.
//!
//! ```text
//!   marks      1    2    3    4    5    6
//!   before     A ─────── B ───────── C            an I/O server of before knows (6, C)
//!   put back   A ─────── B ── D ─────── E         here mark 6 is of run E: that server's history is another one
//! ```

use crate::codec::{Encode, Reader, Writer};
use crate::engine::{Batch, CommitSeq, Engine};
use crate::namespace::{Namespace, encode_number};
use crate::op::{Op, run_again};
use crate::{EngineError, MetaError, keys};
use weft_layout::{ChainId, Layout};

const STORAGE_VERSION: u8 = 1;
const MARK_VERSION: u8 = 1;
const SERVER_VERSION: u8 = 1;
const RUN_VERSION: u8 = 1;
/// Runs that are remembered. Of marks before the oldest of them nothing is known, and nobody is refused for them.
const RUNS_KEPT: usize = 4096;
/// In place of the run of marks that were skipped.
const NOBODY: [u8; 16] = [0; 16];

/// A storage, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnStorage {
    /// Which one: random.
    pub storage: [u8; 16],
    /// Greater than that of every older copy.
    pub mark: u64,
    /// The run of the server that wrote the mark: random.
    pub run: [u8; 16],
}

/// An I/O server as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRecord {
    /// Its name in the cluster file.
    pub name: String,
    /// Its storage.
    pub seen: OwnStorage,
    /// Data files of smaller inode numbers that it does not have are lost.
    pub lost_below_ino: u64,
    /// It is told up to here which files it never had a byte of.
    pub vouched_below_ino: u64,
    /// The next storage that it comes with is taken for its own.
    pub expected: bool,
}

impl Encode for ServerRecord {
    fn encode_to(&self, out: &mut Writer) {
        out.u8(SERVER_VERSION);
        out.bytes.extend_from_slice(&self.seen.storage);
        out.u64(self.seen.mark);
        out.bytes.extend_from_slice(&self.seen.run);
        out.u64(self.lost_below_ino);
        out.u64(self.vouched_below_ino);
        out.u8(self.expected.into());
        out.short_bytes(self.name.as_bytes());
    }
}

fn id_of(from: &mut Reader<'_>, field: &'static str) -> Result<[u8; 16], EngineError> {
    from.take(16, field)?.try_into().map_err(|_| from.damaged(field))
}

impl ServerRecord {
    // Fuzzed by records: fsck/tests.rs
    fn decode(key: &[u8], value: &[u8]) -> Result<ServerRecord, EngineError> {
        let mut from = Reader::with_version(key, value, SERVER_VERSION)?;
        let (storage, mark) = (id_of(&mut from, "storage")?, from.u64("mark")?);
        let seen = OwnStorage { storage, mark, run: id_of(&mut from, "run")? };
        let (lost_below_ino, vouched_below_ino) = (from.u64("lost below")?, from.u64("vouched below")?);
        let expected = from.u8("expected")? != 0;
        let name = String::from_utf8(from.short_bytes("name")?.to_vec()).map_err(|_| from.damaged("name"))?;
        from.end()?;
        Ok(ServerRecord { name, seen, lost_below_ino, vouched_below_ino, expected })
    }
}

fn read_mark<E: Engine>(engine: &E) -> Result<(u64, [u8; 16]), EngineError> {
    let Some(value) = engine.get(keys::SUPER_MARK)? else { return Ok((0, [0; 16])) };
    let mut from = Reader::with_version(keys::SUPER_MARK, &value, MARK_VERSION)?;
    let mark = (from.u64("mark")?, id_of(&mut from, "run")?);
    from.end()?;
    Ok(mark)
}

fn put_mark(batch: &mut Batch, mark: u64, run: &[u8; 16]) {
    let mut out = Writer::with_version(MARK_VERSION, 25);
    out.u64(mark);
    out.bytes.extend_from_slice(run);
    batch.put(keys::SUPER_MARK, out.bytes);
}

impl<E: Engine> Namespace<E> {
    /// Which storage this store is, as the last run left it. A store without an identity, of before there were any, gets `fresh`.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn own_storage(&mut self, fresh: [u8; 16]) -> Result<OwnStorage, EngineError> {
        let storage = match self.engine.get(keys::SUPER_STORAGE)? {
            Some(value) => {
                let mut from = Reader::with_version(keys::SUPER_STORAGE, &value, STORAGE_VERSION)?;
                id_of(&mut from, "storage")?
            }
            None => {
                let mut out = Writer::with_version(STORAGE_VERSION, 17);
                out.bytes.extend_from_slice(&fresh);
                let mut batch = Batch::default();
                batch.put(keys::SUPER_STORAGE, out.bytes);
                run_again(|| self.engine.commit(&batch))?;
                self.engine.syncer().sync()?;
                fresh
            }
        };
        let (mark, run) = read_mark(&self.engine)?;
        Ok(OwnStorage { storage, mark, run })
    }

    /// Counts the mark up. It may be told to others when the commit is durable.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn raise_mark(&mut self, run: &[u8; 16]) -> Result<(u64, CommitSeq), EngineError> {
        self.raise_mark_beyond(0, run)
    }

    /// Counts the mark up, and beyond `known`.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn raise_mark_beyond(&mut self, known: u64, run: &[u8; 16]) -> Result<(u64, CommitSeq), EngineError> {
        run_again(|| {
            let (last, last_run) = read_mark(&self.engine)?;
            let mark = last.max(known) + 1;
            let mut batch = Batch::default();
            if mark != last + 1 {
                // The marks that are skipped are nobody's: who knows one of them has it from another history.
                self.note_run(last + 1, &NOBODY, &mut batch)?;
            }
            if last_run != *run || mark != last + 1 {
                self.note_run(mark, run, &mut batch)?;
            }
            put_mark(&mut batch, mark, run);
            Ok((mark, self.engine.commit(&batch)?))
        })
    }

    /// Notes the first mark of a run, and forgets the oldest runs.
    fn note_run(&self, mark: u64, run: &[u8; 16], batch: &mut Batch) -> Result<(), EngineError> {
        let from = [keys::RUN];
        let known: Vec<Vec<u8>> = self
            .engine
            .scan(&from, &keys::after_prefix(&from))
            .map(|pair| pair.map(|(key, _)| key))
            .collect::<Result<_, _>>()?;
        let surplus = (known.len() + 1).saturating_sub(RUNS_KEPT);
        known.iter().take(surplus).for_each(|key| batch.delete(key));
        let mut out = Writer::with_version(RUN_VERSION, 17);
        out.bytes.extend_from_slice(run);
        batch.put(keys::run(mark), out.bytes);
        Ok(())
    }

    /// Whether this store's history has had this mark, written by this run, as far as that is remembered. One that it has not
    /// reached yet, or that is older than what is remembered, may be of it.
    ///
    /// # Errors
    /// Those of the engine, and a damaged record.
    pub fn may_have_had(&self, mark: u64, run: &[u8; 16]) -> Result<bool, EngineError> {
        if mark > read_mark(&self.engine)?.0 {
            return Ok(true);
        }
        let mut last = None;
        for pair in self.engine.scan(&[keys::RUN], &keys::after_prefix(&keys::run(mark))) {
            last = Some(pair?);
        }
        let Some((key, value)) = last else { return Ok(true) };
        let mut from = Reader::with_version(&key, &value, RUN_VERSION)?;
        Ok(id_of(&mut from, "run")? == *run)
    }

    /// Whether this store was made from a backup, or accepted although it is older than an I/O server knows, and the I/O servers have
    /// not all agreed yet.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn was_loaded(&self) -> Result<bool, EngineError> {
        Ok(self.engine.get(keys::SUPER_LOADED)?.is_some())
    }

    /// How an I/O server was last seen, if it ever was.
    ///
    /// # Errors
    /// Those of the engine, and a damaged record.
    pub fn server(&self, id: u16) -> Result<Option<ServerRecord>, EngineError> {
        let key = keys::server(id);
        self.engine.get(&key)?.map(|value| ServerRecord::decode(&key, &value)).transpose()
    }

    /// The I/O servers that are known, by id.
    ///
    /// # Errors
    /// Those of the engine, and damaged records.
    pub fn servers(&self) -> Result<Vec<(u16, ServerRecord)>, EngineError> {
        let from = [keys::SERVER];
        let mut servers = Vec::new();
        for pair in self.engine.scan(&from, &keys::after_prefix(&from)) {
            let (key, value) = pair?;
            let id = key.get(1..3).and_then(|id| id.try_into().ok()).map(u16::from_be_bytes);
            let id =
                id.ok_or_else(|| EngineError::Format(format!("no server in {}", keys::readable(&key))))?;
            servers.push((id, ServerRecord::decode(&key, &value)?));
        }
        Ok(servers)
    }

    /// The map of the cluster as it was put last. What is in it is the server's business.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn map_record(&self) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.engine.get(keys::SUPER_MAP)?.map(|value| value.to_vec()))
    }

    /// From this inode number on the names are all that there ever were; of smaller ones some may have been forgotten.
    ///
    /// # Errors
    /// Those of the engine, and a damaged record.
    pub fn vouched_from(&self) -> Result<u64, EngineError> {
        let Some(value) = self.engine.get(keys::SUPER_VOUCHED_FROM)? else {
            return Ok(weft_layout::first_ino_of(self.shard()));
        };
        let mut from = Reader::with_version(keys::SUPER_VOUCHED_FROM, &value, 1)?;
        from.u64("number")
    }
}

impl<E: Engine> Op<'_, E> {
    /// Notes how an I/O server was last seen.
    pub fn put_server(&mut self, id: u16, record: &ServerRecord) {
        let mut out = Writer::default();
        record.encode_to(&mut out);
        self.put(keys::server(id), out.bytes);
    }

    /// An operator goes on with this store although it is older. That holds until all I/O servers have agreed, also for later runs
    /// of the server.
    pub fn loading_begins(&mut self) {
        self.put(keys::SUPER_LOADED.to_vec(), encode_number(1));
    }

    /// The I/O servers have agreed: from now on this store is as any other.
    pub fn loading_is_done(&mut self) {
        self.delete(keys::SUPER_LOADED.to_vec());
    }

    /// Stores the map of the cluster, in place of the one before.
    pub fn put_map_record(&mut self, record: Vec<u8>) {
        self.put(keys::SUPER_MAP, record);
    }

    /// Goes on with inode numbers from `ino` at least, and notes that smaller ones may be those of files that this store has
    /// forgotten: it was put back from a copy. Returns the next number.
    pub fn forgets_below(&mut self, ino: u64) -> u64 {
        if let Some(before) = ino.checked_sub(1) {
            self.ns.go_on_behind(before);
        }
        let from = self.ns.next_ino;
        self.put(keys::SUPER_VOUCHED_FROM, encode_number(from));
        from
    }

    /// Of `max` inodes with numbers above `after`: those of files that are striped over `chain`, but have no byte there. Files
    /// that a client may be writing are left out. The second is where to go on, `None` after the last.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn files_empty_on(
        &mut self,
        chain: ChainId,
        after: u64,
        max: usize,
    ) -> Result<(Vec<u64>, Option<u64>), MetaError> {
        let pairs = self.records_after(&[keys::INODE], &keys::inode(after), max)?;
        let full = pairs.len() == max;
        let mut files = Vec::new();
        let mut last = None;
        for (key, _) in pairs {
            let Some(ino) = keys::number_of(&key) else { continue };
            last = Some(ino);
            let Some(inode) = self.inode(ino)? else { continue };
            let is_empty = |layout: &Layout| {
                layout.slot_of_chain(chain).is_some_and(|slot| layout.local_size(slot, inode.size) == 0)
            };
            if !inode.dirty_size && inode.layout.as_ref().is_some_and(is_empty) {
                files.push(ino);
            }
        }
        Ok((files, last.filter(|_| full)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, MemEngine, NamespaceOptions, Timestamp};
    use std::collections::BTreeSet;

    fn namespace() -> Namespace<MemEngine> {
        let mut engine = MemEngine::default();
        let now = Timestamp { seconds: 0, nanos: 0 };
        Namespace::format(&mut engine, [1; 16], &Caller::root(), now).unwrap();
        Namespace::open(engine, NamespaceOptions::default()).unwrap()
    }

    #[test]
    fn every_raise_has_a_greater_mark_on_the_same_storage() {
        let mut namespace = namespace();
        let first = namespace.own_storage([5; 16]).unwrap();
        assert_eq!(first, OwnStorage { storage: [5; 16], ..OwnStorage::default() });
        assert_eq!(namespace.own_storage([7; 16]).unwrap(), first, "looking changes nothing");
        assert_eq!(namespace.raise_mark(&[6; 16]).unwrap().0, 1);
        assert_eq!(namespace.raise_mark_beyond(9, &[8; 16]).unwrap().0, 10);
        let now = namespace.own_storage([7; 16]).unwrap();
        assert_eq!(now, OwnStorage { storage: [5; 16], mark: 10, run: [8; 16] });
    }

    #[test]
    fn a_mark_is_of_this_history_by_the_run_that_wrote_it() {
        let mut namespace = namespace();
        for (known, run) in [(0, [1; 16]), (0, [1; 16]), (0, [2; 16]), (9, [2; 16])] {
            namespace.raise_mark_beyond(known, &run).unwrap();
        }
        // 1 and 2 of run 1; 3 of run 2; then a jump to 10. What was skipped is of another history.
        for (mark, run, may) in [
            (0, [7; 16], true),
            (1, [1; 16], true),
            (2, [1; 16], true),
            (2, [2; 16], false),
            (3, [2; 16], true),
            (3, [1; 16], false),
            (4, [2; 16], false),
            (9, [1; 16], false),
            (10, [2; 16], true),
            (10, [1; 16], false),
            (11, [7; 16], true),
        ] {
            assert_eq!(namespace.may_have_had(mark, &run).unwrap(), may, "mark {mark} of run {}", run[0]);
        }
    }

    #[test]
    fn the_oldest_runs_are_forgotten_and_nobody_is_refused_for_them() {
        let mut namespace = namespace();
        let run = |number: usize| (number as u128).to_be_bytes();
        for number in 1..=RUNS_KEPT + 3 {
            namespace.raise_mark(&run(number)).unwrap();
        }
        assert!(namespace.may_have_had(3, &run(9)).unwrap(), "nothing is known of it");
        assert!(!namespace.may_have_had(4, &run(9)).unwrap());
        assert!(namespace.may_have_had(4, &run(4)).unwrap());
        let kept = namespace.engine.scan(&[keys::RUN], &[keys::RUN + 1]).count();
        assert_eq!(kept, RUNS_KEPT);
    }

    #[test]
    fn servers_are_found_again() {
        let mut namespace = namespace();
        assert!(namespace.servers().unwrap().is_empty());
        let record = |name: &str, mark| ServerRecord {
            name: name.into(),
            seen: OwnStorage { storage: [1; 16], mark, run: [2; 16] },
            lost_below_ino: 7,
            vouched_below_ino: 3,
            expected: mark > 4,
        };
        for (id, record) in [(300, record("io300", 9)), (0, record("io0", 1)), (0, record("io0", 2))] {
            let mut op = namespace.begin();
            op.put_server(id, &record);
            op.commit().unwrap();
        }
        assert_eq!(namespace.server(0).unwrap(), Some(record("io0", 2)));
        assert_eq!(namespace.server(1).unwrap(), None);
        assert_eq!(namespace.servers().unwrap(), [(0, record("io0", 2)), (300, record("io300", 9))]);
    }

    #[test]
    fn two_stores_from_one_copy_give_out_different_numbers() {
        let namespace = namespace();
        let numbers = [1, 2, u64::MAX / 3, u64::MAX].map(|random| namespace.number_apart(1_000_000, random));
        assert!(
            numbers.iter().all(|ino| *ino > 1_000_000 && weft_layout::shard_of(*ino) == 0),
            "{numbers:?}"
        );
        assert!(numbers.iter().collect::<BTreeSet<_>>().len() == 4, "{numbers:?}");
        assert!(
            numbers.iter().all(|ino| *ino < 1 << 45),
            "a store can be put back hundreds of times: {numbers:?}"
        );
    }

    #[test]
    fn numbers_go_on_behind_what_may_have_been_forgotten() {
        let mut namespace = namespace();
        assert_eq!(namespace.vouched_from().unwrap(), 0);
        let mut op = namespace.begin();
        op.forgets_below(1_000_000);
        op.commit().unwrap();
        assert_eq!((namespace.next_ino(), namespace.vouched_from().unwrap()), (1_000_000, 1_000_000));
        let mut op = namespace.begin();
        op.forgets_below(5);
        op.commit().unwrap();
        assert_eq!((namespace.next_ino(), namespace.vouched_from().unwrap()), (1_000_000, 1_000_000));
    }
}
