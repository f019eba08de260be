//! Scrubbing a data file: all of it is read from the disk, past the page cache where that can be, and compared with its sums. What
//! has none gets one.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use weft_buffers::Mapping;

use super::format::{BLOCK_BYTES, REGION_BLOCKS, sum_of};
use super::state::{Adopted, Sidecar};
use super::table::{Damage, DamageKind};
use crate::data_file::{DataFile, failed};
use crate::data_files::DataFiles;
use crate::disk::{Disk, Seek};
use crate::error::{Operation, StorageError};
use crate::held::Mark;
use crate::sums_directory::SumsDirectory;

/// Read at once.
const CHUNK_BLOCKS: u64 = 256;

/// What scrubbing a data file has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes that were read.
    pub bytes: u64,
    /// Blocks that were compared.
    pub compared_blocks: u64,
    /// Blocks that had no sum and got one.
    pub adopted_blocks: u64,
    /// Those of them that had one before, which was lost: with the sidecar, by damage, or since a crash came between a change and
    /// the new sum.
    pub readopted_blocks: u64,
    /// Blocks of data that are wrong now, in order.
    pub wrong: Vec<u64>,
    /// From this block on they are wrong since the data file ends before.
    pub short_from: Option<u64>,
    /// Other damage.
    pub damage: Vec<Damage>,
}

impl Scrubbed {
    /// All that is wrong, neighbouring blocks together.
    pub fn findings(&self, ino: u64) -> Vec<Damage> {
        let mut findings = self.damage.clone();
        for run in self.wrong.chunk_by(|one, next| one + 1 == *next) {
            let kind = if self.short_from.is_some_and(|short| run[0] >= short) {
                DamageKind::Short
            } else {
                DamageKind::Data
            };
            let (offset, bytes) = (run[0] * BLOCK_BYTES, run.len() as u64 * BLOCK_BYTES);
            findings.push(Damage { ino, offset, bytes, kind });
        }
        findings
    }
}

impl<D: Disk> DataFiles<D> {
    /// Scrubs a data file. `had_sums`: it had sums at the last scrub, so that a missing sidecar is damage. `pause` is awaited after
    /// every part, with the bytes that were read; when it says no, the rest is left.
    ///
    /// # Errors
    /// That of the disk.
    pub async fn scrub(
        &self,
        ino: u64,
        had_sums: bool,
        pause: &mut impl AsyncFnMut(u64) -> bool,
    ) -> Result<Scrubbed, StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok(Scrubbed::default()) };
        let Some(file) = self.open_if_there(ino)? else { return Ok(Scrubbed::default()) };
        let mut scrubbed = Scrubbed::default();
        let size = file.size_found()?;
        file.load_sums(directory, 0..1)?;
        if file.sums().state().foreign.is_some() {
            scrubbed.damage.push(Damage { ino, offset: 0, bytes: size, kind: DamageKind::Foreign });
            return Ok(scrubbed);
        }
        // An empty sidecar is one whose file was cut to nothing. It is no damage: an interrupted removal leaves that, too.
        let lost_sidecar =
            file.sums().there().is_none() && directory.held().mark(ino).ok().flatten() == Some(Mark::Summed);
        if had_sums
            && size > 0
            && file.sums().state().sidecar == Sidecar::None
            && file.seek(0, Seek::Data)?.is_some()
        {
            scrubbed.damage.push(Damage { ino, offset: 0, bytes: size, kind: DamageKind::NoSums });
        }
        let reader = Reader::new(&file);
        let memory = chunk_memory()?;
        let mut block = 0;
        while block * BLOCK_BYTES < size {
            let blocks = block..(block + CHUNK_BLOCKS).min(size.div_ceil(BLOCK_BYTES));
            file.load_sums(directory, blocks.clone())?;
            if !pause(0).await {
                break;
            }
            block = file.scrub_chunk(&reader, blocks, &memory, &mut scrubbed, pause).await?;
        }
        file.look_for_short(directory, size, &mut scrubbed)?;
        if std::mem::take(&mut file.sums().state().has_damaged_sums) {
            scrubbed.damage.push(Damage { ino, offset: 0, bytes: size, kind: DamageKind::Sums });
        }
        if scrubbed.adopted_blocks > 0 {
            {
                let mut state = file.sums().state();
                if !std::mem::replace(&mut state.is_queued, true) {
                    drop(state);
                    self.table().enqueue(file.sums());
                }
            }
            file.settle(directory, pause).await?;
            self.table().dequeue_settled(file.sums());
        }
        if lost_sidecar || scrubbed.damage.iter().any(|damage| damage.kind == DamageKind::NoSums) {
            scrubbed.readopted_blocks = scrubbed.adopted_blocks;
        }
        if file.sums().state().has_any_in_force() {
            // The file is older than marks are, or a power cut took its mark.
            file.hold(Mark::Summed)?;
        }
        Ok(scrubbed)
    }

    /// Data files that there must be and are not, a page of those that have a sidecar; the cursor for the next page. A power cut in
    /// the middle of a removal leaves such, too: the names tell whether the file is gone.
    ///
    /// # Errors
    /// That of the disk.
    pub fn missing_with_sums(
        &self,
        cursor: Option<u64>,
        max: usize,
    ) -> Result<(Vec<u64>, Option<u64>), StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok((Vec::new(), None)) };
        let page = directory.list(cursor, max).map_err(cannot_list)?;
        let next = page.last().copied().filter(|_| page.len() == max);
        Ok((self.those_missing(directory, page)?, next))
    }

    /// The same of those that are marked; the cursor counts groups.
    ///
    /// # Errors
    /// That of the disk.
    pub fn missing_with_marks(
        &self,
        cursor: Option<u64>,
        max: usize,
    ) -> Result<(Vec<u64>, Option<u64>), StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok((Vec::new(), None)) };
        let (page, next) = directory.held().list(cursor, max).map_err(cannot_list)?;
        Ok((self.those_missing(directory, page)?, next))
    }

    fn those_missing(&self, directory: &SumsDirectory, inos: Vec<u64>) -> Result<Vec<u64>, StorageError> {
        let is_missing = |ino: &u64| {
            self.with_none_opened(|disk| Ok(disk.size_of(*ino)?.is_none() && directory.expects(*ino)?))
        };
        let mut missing = Vec::new();
        for ino in inos {
            if is_missing(&ino).map_err(cannot_list)? {
                missing.push(ino);
            }
        }
        Ok(missing)
    }
}

fn cannot_list(source: io::Error) -> StorageError {
    StorageError::Whole { what: "list the checksums of", source }
}

/// The way to the bytes on the disk.
struct Reader {
    /// Past the page cache.
    direct: Option<File>,
}

impl Reader {
    fn new<D: Disk>(file: &DataFile<D>) -> Reader {
        let open = |fd: RawFd| {
            let path = format!("/proc/self/fd/{fd}");
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok()
        };
        Reader { direct: file.raw_fd().and_then(open) }
    }

    /// Reads until `to` is full or the file ends.
    fn read<D: Disk>(&self, file: &DataFile<D>, offset: u64, to: &mut [u8]) -> Result<usize, StorageError> {
        if let Some(direct) = &self.direct
            && let Ok(count) = read_direct(direct, offset, to)
        {
            return Ok(count);
        }
        file.read_now(offset, to)
    }
}

fn read_direct(file: &File, offset: u64, to: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < to.len() {
        match file.read_at(&mut to[done..], offset + done as u64)? {
            0 => break,
            count => done += count,
        }
        // The file ends within a block: nothing comes behind it.
        if !(done as u64).is_multiple_of(BLOCK_BYTES) {
            break;
        }
    }
    Ok(done)
}

impl<D: Disk> DataFile<D> {
    fn load_sums(&self, directory: &SumsDirectory, blocks: Range<u64>) -> Result<(), StorageError> {
        let loaded = self.sums().load_all(directory, self.table(), blocks);
        loaded.map_err(failed(Operation::Read, self.ino()))
    }

    /// Sums of blocks beyond the end are of bytes that are gone.
    fn look_for_short(
        &self,
        directory: &SumsDirectory,
        size: u64,
        scrubbed: &mut Scrubbed,
    ) -> Result<(), StorageError> {
        for (block, sum) in self.sums_beyond(directory, size)? {
            if self.note_block(block, sum, false, DamageKind::Short) {
                scrubbed.wrong.push(block);
                scrubbed.short_from = Some(size.div_ceil(BLOCK_BYTES));
            }
        }
        Ok(())
    }

    /// Returns the block to go on with.
    async fn scrub_chunk(
        &self,
        reader: &Reader,
        blocks: Range<u64>,
        memory: &Mapping,
        scrubbed: &mut Scrubbed,
        pause: &mut impl AsyncFnMut(u64) -> bool,
    ) -> Result<u64, StorageError> {
        let (offset, end) = (blocks.start * BLOCK_BYTES, blocks.end * BLOCK_BYTES);
        let (mut summed, has_later) = (Vec::new(), !self.sums().state().has_none());
        self.sums().state().to_verify(blocks.clone(), true, &mut summed);
        let data = self.seek(offset, Seek::Data)?;
        if summed.is_empty() && data.is_none_or(|data| data >= end) {
            // In a file with sums every block is looked at, since a hole may be where data was.
            return Ok(match data {
                Some(data) if !has_later => data / BLOCK_BYTES,
                None if !has_later => u64::MAX / BLOCK_BYTES,
                _ => blocks.end,
            });
        }
        let mut there = 0;
        if !summed.is_empty() {
            // SAFETY: the mapping is this function's alone, and as long.
            let buffer = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), (end - offset) as usize) };
            there = reader.read(self, offset, buffer)?;
            self.compare_chunk(reader, blocks.start, &summed, &buffer[..there], scrubbed)?;
            pause(there as u64).await;
        }
        // What has no sum is read when it gets one.
        let known: BTreeSet<u64> = summed.iter().map(|(block, _)| *block).collect();
        let mut data = data.filter(|data| *data < end);
        while let Some(begin) = data {
            let hole = self.seek(begin, Seek::Hole)?.unwrap_or(end).min(end);
            for block in begin / BLOCK_BYTES..hole.div_ceil(BLOCK_BYTES) {
                if !known.contains(&block) {
                    let mut state = self.sums().state();
                    let (region, at) =
                        (block / REGION_BLOCKS as u64, (block % REGION_BLOCKS as u64) as usize);
                    let adopted = state.adopt(region as u32, at);
                    scrubbed.adopted_blocks += u64::from(adopted != Adopted::No);
                    scrubbed.readopted_blocks += u64::from(adopted == Adopted::Again);
                }
            }
            data = self.seek(hole, Seek::Data)?.filter(|data| *data < end);
        }
        scrubbed.bytes += there as u64;
        scrubbed.compared_blocks += summed.len() as u64;
        Ok(blocks.end)
    }

    /// Compares blocks of a chunk with their sums.
    fn compare_chunk(
        &self,
        reader: &Reader,
        first: u64,
        summed: &[(u64, u32)],
        found: &[u8],
        scrubbed: &mut Scrubbed,
    ) -> Result<(), StorageError> {
        let mut again = None;
        for (block, sum) in summed {
            let begin = (((block - first) * BLOCK_BYTES) as usize).min(found.len());
            let mut is_right = sum_of(&found[begin..(begin + BLOCK_BYTES as usize).min(found.len())]) == *sum;
            if !is_right {
                // It may have been changed while it was read, which the state knows, or the file was made longer.
                let memory = match again.take() {
                    Some(memory) => memory,
                    None => chunk_memory()?,
                };
                // SAFETY: as for the chunk.
                let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), BLOCK_BYTES as usize) };
                let count = reader.read(self, block * BLOCK_BYTES, bytes)?;
                is_right = sum_of(&bytes[..count]) == *sum;
                again = Some(memory);
            }
            if is_right {
                self.sums().state().wrong.remove(block);
            } else if self.note_block(*block, *sum, false, DamageKind::Data) {
                scrubbed.wrong.push(*block);
            }
        }
        Ok(())
    }
}

/// Memory for a chunk, at the beginning of a page as reads past the page cache need it.
fn chunk_memory() -> Result<Mapping, StorageError> {
    Mapping::anonymous((CHUNK_BLOCKS * BLOCK_BYTES) as usize)
        .map_err(|source| StorageError::Whole { what: "map memory for", source })
}
