//! What is known of the sums of all data files, and the sidecars that have them on disk.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::format::{
    CHECKS_AT, GRANULES, HEADER_BYTES, Header, MARKS_AT, RECORD_BYTES, REGION_BLOCKS, REGION_BYTES,
    first_part, parse,
};
use super::state::{Sidecar, State};
use crate::sums_directory::SumsDirectory;

/// Loaded regions of all data files that are kept: 16 KiB of memory each, for 16 MiB of data.
const REGIONS_LOADED_MAX: u64 = 4096;
/// Data files that wait for the settler. Of more, what is not settled stays without sums until a scrub.
const QUEUED_MAX: usize = 1 << 16;

/// A block of a data file that does not fit its sum, or a sidecar that is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The file's inode number.
    pub ino: u64,
    /// Where in the data file.
    pub offset: u64,
    /// How much of it.
    pub bytes: u64,
    /// What it is.
    pub kind: DamageKind,
}

/// What is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// The bytes of the data file.
    Data,
    /// The data file is shorter than it was when it was summed.
    Short,
    /// The sums; the data may be sound.
    Sums,
    /// The sidecar is gone.
    NoSums,
    /// The data file is gone.
    Missing,
    /// The sums are those of another inode, and the data probably, too.
    Foreign,
}

/// What was counted of checksums since the server began.
#[derive(Debug, Default)]
pub struct SumsCounts {
    /// Blocks that were compared for reads, and those of them that were wrong.
    pub verified_blocks: AtomicU64,
    /// Blocks found wrong by reads and scrubs, each once until it is written again.
    pub wrong_blocks: AtomicU64,
    /// Granules of sidecars that were found damaged.
    pub damaged_sums: AtomicU64,
    /// Blocks that were summed.
    pub settled_blocks: AtomicU64,
    /// Times that sums were made void before a change, each a sync.
    pub voided: AtomicU64,
    /// Loaded regions.
    regions: Arc<AtomicU64>,
}

/// What the data files of a server share of their sums.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub counts: SumsCounts,
    /// Data files with something to settle. They keep what is known of them while no handle is open.
    queue: Mutex<HashMap<u64, Arc<FileSums>>>,
    /// Found and not told yet.
    damage: Mutex<Vec<Damage>>,
    /// Inodes whose data file was found to be missing or cut. Each is reported once.
    lost: Mutex<HashSet<u64>>,
}

const DAMAGE_KEPT_MAX: usize = 10_000;

impl Table {
    /// What is known of the sums of a data file that is opened now.
    pub fn of(&self, ino: u64) -> Arc<FileSums> {
        self.queue().get(&ino).cloned().unwrap_or_else(|| {
            let loaded = self.counts.regions.clone();
            Arc::new(FileSums {
                ino,
                state: Mutex::new(State::new()),
                sidecar: OnceLock::new(),
                loaded,
                loaded_here: AtomicU64::new(0),
            })
        })
    }

    fn queue(&self) -> MutexGuard<'_, HashMap<u64, Arc<FileSums>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the settler come by.
    pub fn enqueue(&self, sums: &Arc<FileSums>) {
        let mut queue = self.queue();
        if queue.len() < QUEUED_MAX {
            queue.insert(sums.ino, sums.clone());
        } else {
            sums.state().is_queued = false;
        }
    }

    /// All that wait.
    pub fn queued(&self) -> Vec<Arc<FileSums>> {
        self.queue().values().cloned().collect()
    }

    pub fn queued_count(&self) -> usize {
        self.queue().len()
    }

    /// Nothing is left to settle.
    pub fn dequeue_settled(&self, sums: &Arc<FileSums>) {
        let mut queue = self.queue();
        let mut state = sums.state();
        if state.is_detached || state.unsettled().next().is_none() {
            state.is_queued = false;
            if queue.get(&sums.ino).is_some_and(|queued| Arc::ptr_eq(queued, sums)) {
                queue.remove(&sums.ino);
            }
        }
    }

    /// The data file is removed.
    pub fn detach(&self, sums: &Arc<FileSums>) {
        sums.state().is_detached = true;
        self.dequeue_settled(sums);
    }

    /// The data file is removed while no handle of it is open.
    pub fn detach_queued(&self, ino: u64) {
        let queued = self.queue().get(&ino).cloned();
        if let Some(sums) = queued {
            self.detach(&sums);
        }
    }

    pub fn tell(&self, damage: Damage) {
        let mut told = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < DAMAGE_KEPT_MAX {
            told.push(damage);
        }
    }

    /// Data of a file is gone.
    pub fn tell_lost(&self, ino: u64, offset: u64, bytes: u64, kind: DamageKind) {
        let is_new = {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.len() < DAMAGE_KEPT_MAX && lost.insert(ino)
        };
        if is_new {
            self.tell(Damage { ino, offset, bytes, kind });
        }
    }

    pub fn take_damage(&self) -> Vec<Damage> {
        std::mem::take(&mut *self.damage.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The sums of one data file.
#[derive(Debug)]
pub(crate) struct FileSums {
    pub ino: u64,
    state: Mutex<State>,
    sidecar: OnceLock<Arc<File>>,
    /// Loaded regions of all files, and of this one.
    loaded: Arc<AtomicU64>,
    loaded_here: AtomicU64,
}

impl Drop for FileSums {
    fn drop(&mut self) {
        self.loaded.fetch_sub(self.loaded_here.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl FileSums {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sidecar, made if there is none.
    pub fn made(&self, directory: &SumsDirectory) -> io::Result<Arc<File>> {
        if let Some(file) = self.sidecar.get() {
            return Ok(file.clone());
        }
        let file = Arc::new(directory.create_file(self.ino)?);
        Ok(self.sidecar.get_or_init(|| file).clone())
    }

    /// The sidecar, of which something is known.
    pub fn there(&self) -> Option<&Arc<File>> {
        self.sidecar.get()
    }

    /// The sidecar was looked for.
    pub fn found(&self, sidecar: Option<File>) -> io::Result<()> {
        let records = match &sidecar {
            Some(file) => file.metadata()?.len().div_ceil(RECORD_BYTES as u64) as u32,
            None => 0,
        };
        let mut state = self.state();
        if state.sidecar == Sidecar::Unknown {
            if let Some(file) = sidecar {
                let _ = self.sidecar.set(Arc::new(file));
            }
            state.sidecar = if records == 0 { Sidecar::None } else { Sidecar::Has(records) };
        }
        Ok(())
    }

    /// Looks for the sidecar, and reads the record of a region if it has to be. The table of what is loaded is kept small.
    pub fn load(&self, directory: &SumsDirectory, table: &Table, region: u32) -> io::Result<()> {
        if self.state().sidecar == Sidecar::Unknown {
            self.found(directory.open_file(self.ino)?)?;
        }
        if !self.state().must_load(region) {
            return Ok(());
        }
        let file = self.sidecar.get().expect("it has records").clone();
        let mut bytes = vec![0; RECORD_BYTES];
        let count = read_full(&file, begin_of(region), &mut bytes)?;
        let record = parse(&bytes[..count], self.ino, region);
        let damaged = u64::from(record.damaged_granules);
        let is_foreign = record.foreign.is_some();
        let mut state = self.state();
        if !state.must_load(region) {
            return Ok(());
        }
        state.load(region, record);
        self.loaded_here.fetch_add(1, Ordering::Relaxed);
        if self.loaded.fetch_add(1, Ordering::Relaxed) >= REGIONS_LOADED_MAX {
            let forgotten = (state.forget_idle(region) as u64).min(self.loaded_here.load(Ordering::Relaxed));
            self.loaded_here.fetch_sub(forgotten, Ordering::Relaxed);
            self.loaded.fetch_sub(forgotten, Ordering::Relaxed);
        }
        drop(state);
        if is_foreign {
            table.tell_lost(self.ino, 0, 0, DamageKind::Foreign);
        }
        if damaged > 0 {
            table.counts.damaged_sums.fetch_add(damaged, Ordering::Relaxed);
            let (offset, bytes) = (u64::from(region) * REGION_BYTES, REGION_BYTES);
            table.tell(Damage { ino: self.ino, offset, bytes, kind: DamageKind::Sums });
        }
        Ok(())
    }

    /// Loads the records that a range of blocks needs.
    pub fn load_all(
        &self,
        directory: &SumsDirectory,
        table: &Table,
        blocks: std::ops::Range<u64>,
    ) -> io::Result<()> {
        loop {
            let missing = self.state().must_load_of(blocks.clone());
            match missing {
                Some(region) => self.load(directory, table, region)?,
                None => return Ok(()),
            }
        }
    }
}

/// Writes that granules are void.
pub(crate) fn write_void(file: &File, region: u32, header: &Header) -> io::Result<()> {
    let first = header.void.trailing_zeros() as usize;
    let end = GRANULES - header.void.leading_zeros() as usize;
    let marks = header.marks();
    file.write_all_at(&marks[first.min(end)..end], begin_of(region) + (MARKS_AT + first.min(end)) as u64)
}

/// Writes what puts sums in force.
pub(crate) fn write_force(file: &File, region: u32, header: &Header) -> io::Result<()> {
    file.write_all_at(&header.force(), begin_of(region) + CHECKS_AT as u64)
}

fn begin_of(region: u32) -> u64 {
    u64::from(region) * RECORD_BYTES as u64
}

/// Writes the sums of a record, and zeros over those that were there beyond; and the first part of its header.
pub(crate) fn write_sums(file: &File, ino: u64, region: u32, sums: &[u32]) -> io::Result<()> {
    file.write_all_at(&first_part(ino, region), begin_of(region))?;
    let begin = begin_of(region) + HEADER_BYTES as u64;
    let there = file.metadata()?.len().saturating_sub(begin).div_ceil(4).min(REGION_BLOCKS as u64) as usize;
    let mut bytes = vec![0; there.max(sums.len()) * 4];
    for (place, sum) in bytes.chunks_exact_mut(4).zip(sums) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    file.write_all_at(&bytes, begin)
}

fn read_full(file: &File, offset: u64, to: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < to.len() {
        match file.read_at(&mut to[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
