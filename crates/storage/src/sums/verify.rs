//! Comparing blocks with their sums before their bytes leave.
//!
//! A block is compared when it is read for the first time in a run of the server, and again whenever it is not in the page cache: then
//! it comes from the disk once more. Between the look at the page cache and the copy out of it a page may go and come again; that
//! window of microseconds is not covered.

use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

use weft_layout::Extent;

use super::change::blocks_of;
use super::format::{BLOCK_BYTES, REGION_BLOCKS, sum_of};
use super::state::Sidecar;
use super::table::{Damage, DamageKind};
use crate::data_file::{DataFile, failed};
use crate::disk::Disk;
use crate::error::{Operation, StorageError};
use crate::sums_directory::SumsDirectory;

/// Blocks that are read at once to be compared.
const RUN_BLOCKS: usize = 64;
/// Up to this length a range is looked up in the page cache as one.
const SPAN_BYTES_MAX: u64 = 4 << 20;

impl<D: Disk> DataFile<D> {
    /// Compares the blocks that pieces of the file are in with their sums, where they have sums and that was not done since they
    /// came from the disk. To be called before the bytes of the pieces are read in a way that does not do so itself.
    ///
    /// # Errors
    /// [`StorageError::Damaged`], or that of the disk.
    pub async fn verify(&self, pieces: &[Extent]) -> Result<(), StorageError> {
        self.verify_pieces(pieces, true).await
    }

    /// The same on the calling thread.
    pub(crate) fn verify_now(&self, pieces: &[Extent]) -> Result<(), StorageError> {
        super::change::at_once(self.verify_pieces(pieces, false))
    }

    pub(super) async fn verify_pieces(&self, pieces: &[Extent], may_wait: bool) -> Result<(), StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok(()) };
        let sums = self.sums();
        if sums.state().has_none() {
            return Ok(());
        }
        let pieces: Vec<&Extent> = pieces.iter().filter(|piece| piece.bytes > 0).collect();
        let mut has_sums = false;
        let mut last = 0..0;
        for piece in &pieces {
            let blocks = blocks_of(piece);
            if blocks != last {
                let loaded = sums.load_all(directory, self.table(), blocks.clone());
                loaded.map_err(failed(Operation::Read, self.ino()))?;
                let state = sums.state();
                if let Some(other) = state.foreign {
                    return Err(StorageError::Foreign { ino: self.ino(), other });
                }
                has_sums = has_sums || state.has_sums(blocks.clone());
                last = blocks;
            }
        }
        if !has_sums {
            return Ok(());
        }
        let begin = pieces.iter().map(|piece| piece.offset).min().unwrap_or(0);
        let end = pieces.iter().map(|piece| piece.end()).max().unwrap_or(0);
        let is_resident = if end - begin <= SPAN_BYTES_MAX {
            self.resident(Extent::new(begin, end - begin))
        } else {
            pieces.iter().all(|piece| self.resident(**piece))
        };
        let mut blocks = Vec::new();
        {
            let state = sums.state();
            for piece in &pieces {
                state.to_verify(blocks_of(piece), !is_resident, &mut blocks);
            }
        }
        if blocks.is_empty() {
            return Ok(());
        }
        blocks.sort_unstable();
        blocks.dedup();
        self.compare(&blocks, may_wait).await
    }

    /// A change of these pieces would mix what belongs to two inodes.
    pub(super) fn must_be_own(&self, pieces: &[&Extent]) -> Result<(), StorageError> {
        match self.sums().state().foreign {
            Some(other) if !pieces.is_empty() => Err(StorageError::Foreign { ino: self.ino(), other }),
            _ => Ok(()),
        }
    }

    /// Compares the end of the data file, which is so long, with where its sums end.
    pub(crate) fn compare_end(&self, bytes: u64) -> Result<(), StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok(()) };
        let sums = self.sums();
        let loaded = sums.load(directory, self.table(), 0);
        loaded.map_err(failed(Operation::Read, self.ino()))?;
        if let Some(other) = sums.state().foreign {
            return Err(StorageError::Foreign { ino: self.ino(), other });
        }
        let beyond = self.sums_beyond(directory, bytes)?;
        let Some((last, _)) = beyond.last() else { return Ok(()) };
        let had_bytes = (last + 1) * BLOCK_BYTES;
        self.table().tell_lost(self.ino(), bytes, had_bytes - bytes, DamageKind::Short);
        Err(StorageError::Cut { ino: self.ino(), bytes, had_bytes })
    }

    /// The sums in force of blocks behind the end, rising: of bytes that are gone.
    pub(super) fn sums_beyond(
        &self,
        directory: &SumsDirectory,
        bytes: u64,
    ) -> Result<Vec<(u64, u32)>, StorageError> {
        let Sidecar::Has(records) = self.sums().state().sidecar else { return Ok(Vec::new()) };
        let (begin, end) = (bytes.div_ceil(BLOCK_BYTES), u64::from(records) * REGION_BLOCKS as u64);
        let mut beyond = Vec::new();
        for region in (begin / REGION_BLOCKS as u64) as u32..records {
            let first = u64::from(region) * REGION_BLOCKS as u64;
            let loaded = self.sums().load_all(directory, self.table(), first..first + 1);
            loaded.map_err(failed(Operation::Read, self.ino()))?;
            let blocks = first.max(begin)..(first + REGION_BLOCKS as u64).min(end);
            self.sums().state().to_verify(blocks, true, &mut beyond);
        }
        // It may have been made longer meanwhile.
        Ok(if beyond.is_empty() || self.size_found()? != bytes { Vec::new() } else { beyond })
    }

    /// Compares blocks, rising, with these sums.
    async fn compare(&self, blocks: &[(u64, u32)], may_wait: bool) -> Result<(), StorageError> {
        let runs: Vec<&[(u64, u32)]> =
            blocks.chunk_by(|one, next| one.0 + 1 == next.0).flat_map(|run| run.chunks(RUN_BLOCKS)).collect();
        let extent = |run: &[(u64, u32)]| Extent::new(run[0].0 * BLOCK_BYTES, run.len() as u64 * BLOCK_BYTES);
        if may_wait {
            self.fetch(&runs.iter().map(|run| extent(run)).collect::<Vec<_>>()).await;
        }
        let mut buffer = vec![0; runs.iter().map(|run| run.len()).max().unwrap_or(0) * BLOCK_BYTES as usize];
        let mut wrong = Vec::new();
        for run in runs {
            let whole = extent(run);
            let there = self.read_now(whole.offset, &mut buffer[..whole.bytes as usize])?;
            for (at, (block, sum)) in run.iter().enumerate() {
                let begin = (at * BLOCK_BYTES as usize).min(there);
                let end = ((at + 1) * BLOCK_BYTES as usize).min(there);
                let is_right = sum_of(&buffer[begin..end]) == *sum;
                if self.note_compared(*block, *sum, is_right)? {
                    wrong.push(*block);
                }
            }
        }
        self.table().counts.verified_blocks.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        let Some(first) = wrong.first() else { return Ok(()) };
        let run =
            wrong.iter().zip(*first..).take_while(|(block, expected)| **block == *expected).count() as u64;
        Err(StorageError::Damaged { ino: self.ino(), offset: first * BLOCK_BYTES, bytes: run * BLOCK_BYTES })
    }

    /// Notes how a block compared. Says whether it is wrong, which is told once; a wrong one is looked at twice, since it may have
    /// been changed while it was read.
    fn note_compared(&self, block: u64, sum: u32, is_right: bool) -> Result<bool, StorageError> {
        let mut is_right = is_right;
        if !is_right {
            let mut again = [0; BLOCK_BYTES as usize];
            let there = self.read_now(block * BLOCK_BYTES, &mut again)?;
            is_right = sum_of(&again[..there]) == sum;
        }
        Ok(self.note_block(block, sum, is_right, DamageKind::Data))
    }

    /// The same, when it is certain.
    pub(super) fn note_block(&self, block: u64, sum: u32, is_right: bool, kind: DamageKind) -> bool {
        let mut state = self.sums().state();
        if !state.compared(block, sum, is_right) {
            return false;
        }
        if state.wrong.insert(block) {
            drop(state);
            self.table().counts.wrong_blocks.fetch_add(1, Ordering::Relaxed);
            self.table().tell(Damage {
                ino: self.ino(),
                offset: block * BLOCK_BYTES,
                bytes: BLOCK_BYTES,
                kind,
            });
        }
        true
    }

    /// Reads until `to` is full or the file ends, on the calling thread, and compares nothing.
    pub(super) fn read_now(&self, offset: u64, to: &mut [u8]) -> Result<usize, StorageError> {
        let mut done = 0;
        while done < to.len() {
            let rest = &mut [IoSliceMut::new(&mut to[done..])];
            match self.disk().read_blocking(self.file(), offset + done as u64, rest) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(Operation::Read, self.ino())(error)),
            }
        }
        Ok(done)
    }
}
