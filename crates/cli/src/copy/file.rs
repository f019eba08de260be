//! One file that is being copied: cut into chunks, which several threads may copy at once.

use super::job::Options;
use super::side::{Meta, Side, Source, Target};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes moved at once: a few stripes of a usual layout.
const BUFFER_BYTES: usize = 8 << 20;
/// Files are cut into chunks of this size.
const CHUNK_BYTES: u64 = 64 << 20;
/// Zeros of this length, aligned, are not written.
const HOLE_BYTES: usize = 64 << 10;

/// A buffer for one transfer.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; BUFFER_BYTES]
}

/// Both ends of a file that is being copied.
pub(super) struct OpenFile {
    from_side: Side,
    from: PathBuf,
    to_side: Side,
    to: PathBuf,
    meta: Meta,
    source: Source,
    target: Target,
    /// The greatest end of all writes.
    written_end: AtomicU64,
    /// The offset that the first failed chunk has reached: everything before it was written.
    whole_end: AtomicU64,
    chunks_left: AtomicUsize,
    failed: AtomicBool,
}

impl OpenFile {
    pub(super) fn open(
        from_side: &Side,
        from: &Path,
        to_side: &Side,
        to: &Path,
        meta: Meta,
        options: &Options,
    ) -> Result<OpenFile> {
        if from_side.is_same(to_side) && to_side.meta(to, true).is_ok_and(|there| there.id == meta.id) {
            bail!("source and target are the same file");
        }
        let source = from_side.open(from)?;
        let mode = meta.mode & 0o777 & !options.umask;
        let target = to_side.create(to, mode, options.layout.as_ref(), &source)?;
        Ok(OpenFile {
            from_side: from_side.clone(),
            from: from.to_owned(),
            to_side: to_side.clone(),
            to: to.to_owned(),
            meta,
            source,
            target,
            written_end: AtomicU64::new(0),
            whole_end: AtomicU64::new(u64::MAX),
            chunks_left: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        })
    }

    /// Writes `data` at `offset` without its blocks of zeros. Returns the bytes written.
    fn write_sparsely(&self, data: &[u8], offset: u64) -> Result<u64> {
        let mut written = 0;
        for run in runs_with_data(data, offset) {
            let at = offset + run.start as u64;
            self.target.write_at(&data[run.clone()], at)?;
            self.written_end.fetch_max(at + run.len() as u64, Ordering::Relaxed);
            written += run.len() as u64;
        }
        Ok(written)
    }
}

/// A part of an open file.
pub(super) struct Chunk {
    file: Arc<OpenFile>,
    offset: u64,
    bytes: u64,
}

/// Cuts a file; an empty one is one empty chunk.
pub(super) fn chunks(file: OpenFile) -> Vec<Chunk> {
    let size = file.meta.size;
    let count = size.div_ceil(CHUNK_BYTES).max(1);
    file.chunks_left.store(count as usize, Ordering::Relaxed);
    let file = Arc::new(file);
    let chunk = |index: u64| {
        let offset = index * CHUNK_BYTES;
        Chunk { file: file.clone(), offset, bytes: CHUNK_BYTES.min(size - offset) }
    };
    (0..count).map(chunk).collect()
}

impl Chunk {
    pub(super) fn source_side(&self) -> &Side {
        &self.file.from_side
    }

    pub(super) fn source_path(&self) -> &Path {
        &self.file.from
    }

    /// Copies the chunk. Reports to `progress` the bytes passed and how many of them were written.
    pub(super) fn copy(&self, buffer: &mut [u8], progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let mut offset = self.offset;
        let copied = self.copy_from(&mut offset, buffer, progress);
        if copied.is_err() {
            self.file.whole_end.fetch_min(offset, Ordering::AcqRel);
        }
        copied
    }

    /// Copies from the chunk's beginning, and advances `offset` past what is written.
    fn copy_from(
        &self,
        offset: &mut u64,
        buffer: &mut [u8],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let end = self.offset + self.bytes;
        if self.bytes > 0
            && let Some(copied) = self.file.target.copy_from(&self.file.source, self.offset, self.bytes)?
        {
            if copied < self.bytes {
                bail!("the source became shorter while it was copied");
            }
            self.file.written_end.fetch_max(end, Ordering::Relaxed);
            progress(copied, copied);
            return Ok(());
        }
        while *offset < end {
            let Some(data) = self.file.source.next_data(*offset, end)? else { break };
            progress(data.start - *offset, 0);
            *offset = data.start;
            while *offset < data.end {
                let wanted = (data.end - *offset).min(buffer.len() as u64) as usize;
                let got = self.file.source.read_at(&mut buffer[..wanted], *offset)?;
                if got == 0 {
                    bail!("the source became shorter while it was copied");
                }
                let written = self.file.write_sparsely(&buffer[..got], *offset)?;
                progress(got as u64, written);
                *offset += got as u64;
            }
        }
        progress(end - *offset, 0);
        Ok(())
    }

    /// Call it once, after `copy`. The last chunk of a file sets its size and, with `preserve`, mode and
    /// times, and returns the file's result. If a chunk has failed, the file is truncated to where it is
    /// complete, and the failure is the result.
    pub(super) fn finish(&self, failed: bool, options: &Options) -> Option<Result<()>> {
        let file = &self.file;
        file.failed.fetch_or(failed, Ordering::AcqRel);
        let last = file.chunks_left.fetch_sub(1, Ordering::AcqRel) == 1;
        match (last, file.failed.load(Ordering::Acquire)) {
            (false, _) => None,
            (true, false) => Some(self.complete(options)),
            (true, true) => {
                let cut = file.target.set_len(file.whole_end.load(Ordering::Acquire).min(file.meta.size));
                cut.context("the copy is incomplete, and could not be truncated").err().map(Err)
            }
        }
    }

    fn complete(&self, options: &Options) -> Result<()> {
        let file = &self.file;
        if file.written_end.load(Ordering::Relaxed) < file.meta.size {
            file.target.set_len(file.meta.size)?;
        }
        file.target.flush()?;
        if options.preserve {
            file.to_side.set_meta(&file.to, &file.meta, true)?;
        }
        Ok(())
    }
}

/// The parts of `data`, which begins at `offset` of its file, between aligned blocks of zeros.
fn runs_with_data(data: &[u8], offset: u64) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let to_boundary = HOLE_BYTES - (offset as usize + at) % HOLE_BYTES;
        let end = data.len().min(at + to_boundary);
        if !is_zero(&data[at..end]) {
            match runs.last_mut() {
                Some(run) if run.end == at => run.end = end,
                _ => runs.push(at..end),
            }
        }
        at = end;
    }
    runs
}

fn is_zero(data: &[u8]) -> bool {
    // SAFETY: any bytes are a valid u128.
    let (front, middle, back) = unsafe { data.align_to::<u128>() };
    front.iter().chain(back).all(|byte| *byte == 0) && middle.iter().all(|word| *word == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_zeros_are_left_out() {
        let block = HOLE_BYTES;
        let mut data = vec![0; 5 * block];
        data[block] = 1;
        data[2 * block + 5] = 1;
        data[5 * block - 1] = 1;
        assert_eq!(runs_with_data(&data, 0), [block..3 * block, 4 * block..5 * block]);
        assert_eq!(runs_with_data(&data[..block], 0), []);
        // Blocks are aligned in the file, not in the buffer: the first one ends 10 bytes into the buffer.
        let offset = (block - 10) as u64;
        assert_eq!(runs_with_data(&data[block..2 * block], offset), vec![0..10; 1]);
    }

    #[test]
    fn zeros_are_recognised_at_any_alignment() {
        let mut data = vec![0u8; 1000];
        for start in 0..20 {
            assert!(is_zero(&data[start..]));
        }
        for at in [1, 500, 999] {
            data[at] = 9;
            assert!(!is_zero(&data[1..]));
            data[at] = 0;
        }
    }
}
