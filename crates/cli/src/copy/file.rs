//! One file that is being copied: cut into chunks, which several threads may copy at once.

use super::apart::{Apart, UNIT_BYTES};
use super::job::Options;
use super::side::{Kind, Meta, Source, Target, is_there, is_unreadable};
use super::spot::{Ends, Shown, Spot};
use crate::local_dir::How;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use weft_layout::Layout;
use weft_wire::messages::LayoutWish;

/// Bytes moved at once: a few stripes of a usual layout.
const BUFFER_BYTES: usize = 8 << 20;
/// Files are cut into chunks of this size.
const CHUNK_BYTES: u64 = 64 << 20;
/// Zeros of this length, aligned, are not written.
const HOLE_BYTES: usize = 64 << 10;

const _: () = assert!(UNIT_BYTES.is_multiple_of(CHUNK_BYTES));

fn lock(growing: &Mutex<Growing>) -> MutexGuard<'_, Growing> {
    growing.lock().expect("no thread panics while it has a file's name")
}

/// A buffer for one transfer.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; BUFFER_BYTES]
}

/// Where a file is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Goal {
    /// Under its name, emptied if it is there.
    InPlace,
    /// Under its name, where nothing is: it is small.
    New,
    /// Under a temporary name.
    Apart {
        /// Its names.
        apart: Apart,
        /// It is there and has so many units.
        units: Option<u64>,
        /// The layout of the file whose place it takes.
        layout: Option<Layout>,
    },
}

/// A file under a temporary name.
struct Growing {
    apart: Apart,
    /// Its present name.
    spot: Spot,
    units: u64,
    /// Chunks that are copied, from the first one that is not on.
    chunks: BTreeSet<u64>,
}

/// Both ends of a file that is being copied.
pub(super) struct OpenFile {
    ends: Ends,
    /// Until it gets its name.
    growing: Option<Mutex<Growing>>,
    meta: Meta,
    source: Source,
    target: Target,
    /// The greatest end of all writes.
    written_end: AtomicU64,
    /// The offset that the first failed chunk has reached: everything before it was written.
    whole_end: AtomicU64,
    chunks_left: AtomicUsize,
    failed: AtomicBool,
    /// It is new and keeps mode and times, and, if that is true, the owner: it may be there with one message.
    at_once: Option<bool>,
    /// It has them.
    has_meta: AtomicBool,
}

impl OpenFile {
    pub(super) fn open(ends: &Ends, meta: Meta, goal: Goal, options: &Options) -> Result<OpenFile> {
        let Ends { from, to } = ends;
        if from.side().is_same(to.side()) && to.meta(true).is_ok_and(|there| there.id == meta.id) {
            bail!("source and target are the same file");
        }
        let source = from.open(Some(meta.id))?;
        let mode = meta.mode & 0o777 & !options.umask;
        let at_once = (goal == Goal::New && options.preserve).then_some(options.owner);
        let (target, growing) = match goal {
            Goal::InPlace => {
                refuse_dangling(to)?;
                (to.create(mode, How::Empty, options.layout.as_ref(), &source)?, None)
            }
            Goal::New => match to.create(mode, How::New, options.layout.as_ref(), &source) {
                Err(error) if is_there(&error) => {
                    refuse_dangling(to)?;
                    (to.create(mode, How::Empty, options.layout.as_ref(), &source)?, None)
                }
                target => (target?, None),
            },
            Goal::Apart { apart, units, layout } => {
                let spot = to.dir().spot(apart.name(units.unwrap_or(0)));
                let layout = options.layout.clone().or_else(|| layout.as_ref().map(same_layout));
                let how = if units.is_some() { How::GoOn } else { How::Fresh };
                let target = spot.create(mode | 0o200, how, layout.as_ref(), &source)?;
                let units = units.unwrap_or(0);
                (target, Some(Mutex::new(Growing { apart, spot, units, chunks: BTreeSet::new() })))
            }
        };
        let file = OpenFile {
            ends: ends.clone(),
            growing,
            meta,
            source,
            target,
            written_end: AtomicU64::new(0),
            whole_end: AtomicU64::new(u64::MAX),
            chunks_left: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            at_once,
            has_meta: AtomicBool::new(false),
        };
        if file.begun_bytes() > 0 {
            // What is behind was perhaps written, where the source has holes now or not.
            file.target.set_len(file.begun_bytes())?;
        }
        Ok(file)
    }

    /// Bytes that were there before.
    fn begun_bytes(&self) -> u64 {
        let units = self.growing.as_ref().map_or(0, |growing| lock(growing).units);
        (units * UNIT_BYTES).min(self.meta.size / CHUNK_BYTES * CHUNK_BYTES)
    }

    /// A chunk is copied: where a unit is whole, the name says so.
    fn note_chunk(&self, offset: u64) -> Result<()> {
        let Some(growing) = &self.growing else { return Ok(()) };
        let mut growing = lock(growing);
        growing.chunks.insert(offset / CHUNK_BYTES);
        let per_unit = UNIT_BYTES / CHUNK_BYTES;
        loop {
            let begin = growing.units * per_unit;
            if !(begin..begin + per_unit).all(|chunk| growing.chunks.contains(&chunk)) {
                return Ok(());
            }
            growing.chunks.retain(|chunk| *chunk >= begin + per_unit);
            self.target.sync()?;
            let spot = growing.spot.rename(&growing.apart.name(growing.units + 1))?;
            (growing.spot, growing.units) = (spot, growing.units + 1);
        }
    }

    /// The message for a failed write: it has the target's final name, not the temporary one.
    fn cannot_write(&self) -> String {
        format!("cannot write {}", self.ends.to.shown())
    }

    /// Writes `data` if it is the whole of a new file that is small, with its times. Returns whether it was.
    fn write_whole(&self, data: &[u8], offset: u64) -> Result<bool> {
        let is_whole = offset == 0 && data.len() as u64 == self.meta.size;
        let Some(owner) = self.at_once.filter(|_| is_whole) else { return Ok(false) };
        let Some(has_meta) = self.target.write_whole(data, &self.meta, owner)? else { return Ok(false) };
        self.has_meta.store(has_meta, Ordering::Release);
        self.written_end.fetch_max(data.len() as u64, Ordering::Relaxed);
        Ok(true)
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

/// Cuts a file, from where it was begun; an empty one is one empty chunk.
pub(super) fn chunks(file: OpenFile) -> Vec<Chunk> {
    let size = file.meta.size;
    let begun = file.begun_bytes() / CHUNK_BYTES;
    let count = size.div_ceil(CHUNK_BYTES).max(begun + 1);
    file.chunks_left.store((count - begun) as usize, Ordering::Relaxed);
    let file = Arc::new(file);
    let chunk = |index: u64| {
        let offset = index * CHUNK_BYTES;
        Chunk { file: file.clone(), offset, bytes: CHUNK_BYTES.min(size - offset) }
    };
    (begun..count).map(chunk).collect()
}

impl Chunk {
    /// The file that it is a part of.
    pub(super) fn ends(&self) -> &Ends {
        &self.file.ends
    }

    /// Copies the chunk. Reports to `progress` the bytes passed and how many of them were written.
    pub(super) fn copy(&self, buffer: &mut [u8], progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let mut offset = self.offset;
        let copied = self.copy_from(&mut offset, buffer, progress);
        let copied = copied.and_then(|()| self.file.note_chunk(self.offset));
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
                let data = &buffer[..got];
                let cannot_write = || self.file.cannot_write();
                let written = match self.file.write_whole(data, *offset).with_context(cannot_write)? {
                    true => got as u64,
                    false => self.file.write_sparsely(data, *offset).with_context(cannot_write)?,
                };
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
        match (last, file.failed.load(Ordering::Acquire), &file.growing) {
            (false, ..) => None,
            (true, false, _) => Some(self.complete(options).with_context(|| file.cannot_write())),
            // What is apart stays for the next copy, as far as its name says.
            (true, true, Some(growing)) => {
                let is_worth_it = file.begun_bytes() > 0;
                let removed = if is_worth_it { Ok(()) } else { lock(growing).spot.remove() };
                removed.context("the incomplete copy could not be removed").err().map(Err)
            }
            (true, true, None) => {
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
        if options.preserve && !file.has_meta.load(Ordering::Acquire) {
            file.target.set_meta(&file.meta, true, options.owner)?;
        } else {
            file.target.flush()?;
        }
        // It was made so that it can be written.
        let is_read_only = file.meta.mode & 0o200 & !options.umask == 0;
        if !options.preserve && file.growing.is_some() && is_read_only {
            let mode = file.meta.mode & 0o777 & !options.umask;
            file.target.set_meta(&file.meta.with_mode(mode), false, false)?;
        }
        if let Some(growing) = &file.growing {
            let name = file.ends.to.file_name().context("this is no name of a file")?;
            lock(growing).spot.rename(name)?;
        }
        Ok(())
    }
}

/// Refuses to make a file where a symbolic link points that leads nowhere.
fn refuse_dangling(to: &Spot) -> Result<()> {
    if to.meta(false).is_ok_and(|there| there.kind == Kind::Symlink) && to.meta(true).is_err() {
        bail!("{} is a symbolic link that leads nowhere", to.shown());
    }
    Ok(())
}

/// The wish for the layout that a file has.
fn same_layout(layout: &Layout) -> LayoutWish {
    LayoutWish {
        strip_bytes: layout.strip_bytes(),
        server_count: layout.server_count(),
        first_server_plus_1: layout.first_server() + 1,
    }
}

/// Compares a file with one of the same size, which is returned by its identity if it has the same bytes. A target that cannot be read
/// has not. `progress` gets the number of bytes compared.
pub(super) fn are_same(
    ends: &Ends,
    meta: &Meta,
    progress: &mut dyn FnMut(u64),
) -> Result<Option<(u64, u64)>> {
    let bytes = meta.size;
    let from = ends.from.open(Some(meta.id))?;
    let to = match ends.to.open(None) {
        Err(error) if is_unreadable(&error) => return Ok(None),
        to => to?,
    };
    let (mut one, mut other) =
        (vec![0; BUFFER_BYTES.min(bytes as usize)], vec![0; BUFFER_BYTES.min(bytes as usize)]);
    let mut offset = 0;
    while offset < bytes {
        let got = from.read_at(&mut one, offset)?;
        let there = match to.read_at(&mut other, offset) {
            Err(error) if is_unreadable(&error) => return Ok(None),
            there => there?,
        };
        let both = got.min(there);
        if both == 0 || one[..both] != other[..both] {
            return Ok(None);
        }
        offset += both as u64;
        progress(both as u64);
    }
    Ok(Some(to.id()?))
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
