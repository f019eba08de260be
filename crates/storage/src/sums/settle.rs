//! The settler: sums what was written, once it is left alone.
//!
//! ```text
//!   region    void on disk ─► read, sum ─► data synced ─► sums written, synced ─► header written: in force
//! ```
//!
//! Whatever is changed meanwhile stays without a sum. What a power cut interrupts was not in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::format::{BLOCK_BYTES, REGION_BLOCKS, REGION_BYTES, sum_of};
use super::region::Bits;
use super::state::{Sidecar, State};
use super::table::{FileSums, write_force, write_sums, write_void};
use crate::data_file::{DataFile, failed};
use crate::data_files::DataFiles;
use crate::disk::{Disk, Seek};
use crate::error::{Operation, StorageError};
use crate::held::Mark;
use crate::sums_directory::SumsDirectory;

/// Blocks read at once.
const READ_BLOCKS: usize = 64;
/// Regions of one file that are settled with one sync of its data.
const REGIONS_AT_ONCE: usize = 8;
/// How often sums are written again for changes that come in between.
const TRIES: usize = 3;

/// When a data file is to be settled.
#[derive(Debug, Clone, Copy)]
pub struct SettleWhen {
    /// After so long without a change.
    pub idle: Duration,
    /// At the latest so long after the first change.
    pub dirty: Duration,
    /// After so long without a change, where all of the file was synced: that is done with for now.
    pub synced: Duration,
    /// Files with more to read than this are left.
    pub bytes_max: u64,
}

impl SettleWhen {
    /// Settles all that waits, whenever it was changed.
    pub const NOW: SettleWhen = SettleWhen {
        idle: Duration::ZERO,
        dirty: Duration::ZERO,
        synced: Duration::ZERO,
        bytes_max: u64::MAX,
    };

    fn is_now(&self, state: &State) -> bool {
        let unchanged = state.changed_at.elapsed();
        let is_time = unchanged >= self.idle
            || state.is_synced && unchanged >= self.synced
            || state.dirty_since.elapsed() >= self.dirty;
        is_time && (self.bytes_max == u64::MAX || state.touched_blocks() * BLOCK_BYTES <= self.bytes_max)
    }
}

/// What the settler has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    /// Data files.
    pub files: u64,
    /// Bytes that were read and summed.
    pub bytes: u64,
}

impl<D: Disk> DataFiles<D> {
    /// Settles what waits and whose time has come. `pause` is awaited after every part, with the bytes that were read; when it
    /// says no, the file under way is the last.
    ///
    /// # Errors
    /// The first of the disk; all files are tried.
    pub async fn settle(
        &self,
        when: SettleWhen,
        mut pause: impl AsyncFnMut(u64) -> bool,
    ) -> Result<Settled, StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok(Settled::default()) };
        let mut settled = Settled::default();
        let mut result = directory
            .settle_removals()
            .map_err(|source| StorageError::Whole { what: "sync the checksums of", source });
        for sums in self.table().queued() {
            if !when.is_now(&sums.state()) {
                continue;
            }
            match self.settle_queued(directory, &sums, &mut pause).await {
                Ok(bytes) => {
                    settled.bytes += bytes;
                    settled.files += 1;
                }
                Err(error) => result = result.and(Err(error)),
            }
            if !pause(0).await {
                break;
            }
        }
        result.map(|()| settled)
    }

    /// Data files that wait for the settler.
    pub fn unsettled_files(&self) -> usize {
        self.table().queued_count()
    }

    async fn settle_queued(
        &self,
        directory: &SumsDirectory,
        sums: &Arc<FileSums>,
        pause: &mut impl AsyncFnMut(u64) -> bool,
    ) -> Result<u64, StorageError> {
        let settled = match self.open_if_there(sums.ino)? {
            Some(file) if Arc::ptr_eq(file.sums(), sums) => file.settle(directory, pause).await,
            // It was removed.
            _ => {
                sums.state().is_detached = true;
                Ok(0)
            }
        };
        self.table().dequeue_settled(sums);
        settled
    }
}

/// A region whose blocks are summed and not in force yet.
struct Summed {
    region: u32,
    blocks: Bits,
    sums: BTreeMap<usize, u32>,
}

impl<D: Disk> DataFile<D> {
    /// Settles what is touched. Returns the bytes that were read.
    pub(super) async fn settle(
        &self,
        directory: &SumsDirectory,
        pause: &mut impl AsyncFnMut(u64) -> bool,
    ) -> Result<u64, StorageError> {
        let sums = self.sums();
        // After a failed sync the page cache has what the disk has not.
        if self.losses() > 0 {
            sums.state().forget_unsettled();
            return Ok(0);
        }
        let regions: Vec<u32> = {
            let mut state = sums.state();
            state.dirty_since = Instant::now();
            state.unsettled().collect()
        };
        let mut bytes = 0;
        for regions in regions.chunks(REGIONS_AT_ONCE) {
            let mut summed = Vec::new();
            let mut result = Ok(());
            for region in regions {
                match self.sum_region(directory, *region, pause).await {
                    Ok(found) => summed.extend(found),
                    Err(error) => result = Err(error),
                }
            }
            bytes += summed.iter().map(|region| region.sums.len() as u64 * BLOCK_BYTES).sum::<u64>();
            if result.is_ok() && summed.iter().any(|region| !region.sums.is_empty()) {
                result = self.sync().await;
            }
            let has_sums = summed.iter().any(|region| !region.sums.is_empty());
            for region in summed {
                let is_settled = match &result {
                    Ok(()) => self.put_in_force(&region),
                    Err(_) => Ok(false),
                };
                if !matches!(is_settled, Ok(true)) {
                    sums.state().give_up_settling(region.region, &region.blocks, self.losses() == 0);
                }
                if let Err(error) = is_settled {
                    result = Err(error);
                }
            }
            result?;
            if has_sums && sums.state().has_any_in_force() {
                self.hold(Mark::Summed)?;
            }
        }
        Ok(bytes)
    }

    /// Sums the touched blocks of a region, after its record is void where they are.
    async fn sum_region(
        &self,
        directory: &SumsDirectory,
        region: u32,
        pause: &mut impl AsyncFnMut(u64) -> bool,
    ) -> Result<Option<Summed>, StorageError> {
        let sums = self.sums();
        let failed = failed(Operation::Write, self.ino());
        let (blocks, voids) = {
            let mut state = sums.state();
            if state.is_detached {
                return Ok(None);
            }
            let Some(begun) = state.begin_settling(region) else { return Ok(None) };
            begun
        };
        let made_void = if voids.is_empty() {
            Ok(())
        } else {
            let sidecar = sums.there().expect("its sums are in force");
            let written = {
                let _state = sums.state();
                voids.iter().try_for_each(|(region, header)| write_void(sidecar, *region, header))
            };
            let synced = written.and_then(|()| sidecar.sync_data());
            sums.state().are_void(&voids, synced.is_ok());
            synced.map_err(&failed)
        };
        let found = match made_void {
            Ok(()) => self.sum_blocks(region, &blocks, pause).await,
            Err(error) => Err(error),
        };
        let has_made = || {
            let mut state = sums.state();
            if state.is_detached {
                return Ok(false);
            }
            // Under the lock, since a sidecar that is made after the data file was removed would be there for ever.
            sums.made(directory).map_err(&failed)?;
            state.sidecar = match state.sidecar {
                Sidecar::Has(records) => Sidecar::Has(records.max(region + 1)),
                _ => Sidecar::Has(region + 1),
            };
            Ok(true)
        };
        let found = found.and_then(|found| {
            let is_nothing = found.is_empty() && sums.state().is_bare(region);
            Ok(if is_nothing || !has_made()? { None } else { Some(found) })
        });
        match found {
            Ok(Some(sums)) => Ok(Some(Summed { region, blocks, sums })),
            Ok(None) => {
                sums.state().give_up_settling(region, &blocks, false);
                Ok(None)
            }
            Err(error) => {
                sums.state().give_up_settling(region, &blocks, true);
                Err(error)
            }
        }
    }

    /// The sums of blocks as they are now; those in holes and beyond the end have none.
    async fn sum_blocks(
        &self,
        region: u32,
        blocks: &Bits,
        pause: &mut impl AsyncFnMut(u64) -> bool,
    ) -> Result<BTreeMap<usize, u32>, StorageError> {
        let first = u64::from(region) * REGION_BYTES;
        let mut sums = BTreeMap::new();
        let mut buffer = vec![0; READ_BLOCKS * BLOCK_BYTES as usize];
        let wanted: Vec<usize> = blocks.iter().collect();
        let runs = wanted.chunk_by(|one, next| one + 1 == *next).flat_map(|run| run.chunks(READ_BLOCKS));
        for run in runs {
            let offset = first + run[0] as u64 * BLOCK_BYTES;
            let end = offset + run.len() as u64 * BLOCK_BYTES;
            let Some(data) = self.seek(offset, Seek::Data)?.filter(|data| *data < end) else { continue };
            let skipped = ((data - offset) / BLOCK_BYTES) as usize;
            let there = self.read_now(offset, &mut buffer[..run.len() * BLOCK_BYTES as usize])?;
            let parts = buffer[..there].chunks(BLOCK_BYTES as usize);
            for (block, part) in run.iter().zip(parts).skip(skipped) {
                sums.insert(*block, sum_of(part));
            }
            pause(there as u64).await;
        }
        Ok(sums)
    }

    /// False: changes came in between, again and again.
    fn put_in_force(&self, summed: &Summed) -> Result<bool, StorageError> {
        let sums = self.sums();
        let failed = failed(Operation::Write, self.ino());
        let sidecar = sums.there().expect("it was made before");
        for _ in 0..TRIES {
            let written = {
                let state = sums.state();
                let Some(written) = state.sums_to_write(summed.region, &summed.sums) else {
                    return Ok(false);
                };
                write_sums(sidecar, sums.ino, summed.region, &written).map_err(&failed)?;
                written
            };
            sidecar.sync_data().map_err(&failed)?;
            let mut state = sums.state();
            if let Some(header) = state.put_in_force(summed.region, &written) {
                // If it does not reach the disk, nothing is in force there.
                write_force(sidecar, summed.region, &header).map_err(&failed)?;
                let settled = summed.sums.len() as u64;
                self.table().counts.settled_blocks.fetch_add(settled, Ordering::Relaxed);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

const _: () = assert!(REGION_BLOCKS.is_multiple_of(READ_BLOCKS));
