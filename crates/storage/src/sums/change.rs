//! Changes of a data file: before the first byte changes, no sum of its blocks is in force any more.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use weft_layout::Extent;

use super::format::{BLOCK_BYTES, RECORD_BYTES, REGION_BYTES};
use super::state::Voids;
use super::table::{FileSums, write_void};
use super::under_way::Change;
use crate::data_file::{DataFile, failed};
use crate::disk::Disk;
use crate::error::{Operation, StorageError};

/// Records that are on their way to become void.
struct Voiding<'a> {
    sums: &'a FileSums,
    voids: Voids,
    durably: bool,
}

impl Drop for Voiding<'_> {
    fn drop(&mut self) {
        self.sums.state().are_void(&self.voids, self.durably);
    }
}

/// A change whose blocks are marked, and the records that are to become void for it.
struct Marked<'a> {
    change: Change<'a>,
    voids: Voids,
    written: io::Result<()>,
}

/// The blocks that an extent touches.
pub(crate) fn blocks_of(extent: &Extent) -> Range<u64> {
    extent.offset / BLOCK_BYTES..extent.end().div_ceil(BLOCK_BYTES)
}

/// The result of a future that never waits.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("it was told not to wait"),
    }
}

impl<D: Disk> DataFile<D> {
    /// Begins a change of pieces of the file. Blocks that are changed in part are compared with their sums first, so that a
    /// damaged one is not taken for data afterwards.
    ///
    /// # Errors
    /// [`StorageError::Damaged`], or that of the disk.
    pub async fn begin_change(&self, pieces: &[Extent]) -> Result<Change<'_>, StorageError> {
        self.begin(pieces, true).await
    }

    /// The same on the calling thread.
    pub(crate) fn begin_change_now(&self, pieces: &[Extent]) -> Result<Change<'_>, StorageError> {
        at_once(self.begin(pieces, false))
    }

    /// Begins to cut the file, or to make it longer: what is behind `at` changes.
    pub(crate) fn begin_cut_now(&self, at: u64) -> Result<Change<'_>, StorageError> {
        let region = at.div_ceil(REGION_BYTES);
        let change = self.begin_change_now(&[Extent::new(at, region * REGION_BYTES - at)])?;
        let sums = self.sums();
        if let (Some(directory), Ok(region)) = (self.disk().sums(), u32::try_from(region)) {
            // No block of a region before changes where the cut is between two, so the sidecar may not have been looked for yet.
            sums.load(directory, self.table(), region).map_err(failed(Operation::Truncate, self.ino()))?;
        }
        let must_cut = u32::try_from(region).is_ok_and(|region| sums.state().cut(region));
        if must_cut {
            let sidecar = sums.there().expect("it has records");
            let cut = sidecar.set_len(region * RECORD_BYTES as u64).and_then(|()| sidecar.sync_all());
            cut.map_err(failed(Operation::Truncate, self.ino()))?;
        }
        Ok(change)
    }

    fn change(&self, of: Option<(Arc<FileSums>, u64)>) -> Change<'_> {
        Change { ino: self.ino(), of, unsynced: self.unsynced() }
    }

    async fn begin(&self, pieces: &[Extent], may_wait: bool) -> Result<Change<'_>, StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok(self.change(None)) };
        let (sums, table) = (self.sums(), self.table());
        let failed = failed(Operation::Write, self.ino());
        let whole: Vec<&Extent> = pieces.iter().filter(|piece| piece.bytes > 0).collect();
        if !sums.state().has_none() {
            let load = || {
                for piece in &whole {
                    sums.load_all(directory, table, blocks_of(piece))?;
                }
                let Some(last) = whole.iter().map(|piece| piece.end() / BLOCK_BYTES).max() else {
                    return Ok(());
                };
                let ahead = sums.state().ahead_of(last);
                ahead.into_iter().try_for_each(|region| sums.load(directory, table, region))
            };
            load().map_err(&failed)?;
            self.must_be_own(&whole)?;
            self.compare_edges(&whole, may_wait).await?;
        }
        let Marked { change, voids, written } = self.mark(&whole);
        if voids.is_empty() {
            return Ok(change);
        }
        table.counts.voided.fetch_add(1, Ordering::Relaxed);
        let mut voiding = Voiding { sums, voids, durably: false };
        written.map_err(&failed)?;
        let sidecar = sums.there().expect("its sums are in force");
        let synced = if may_wait { self.disk().sync_sums(sidecar).await } else { sidecar.sync_data() };
        synced.map_err(&failed)?;
        voiding.durably = true;
        drop(voiding);
        Ok(change)
    }

    /// Marks blocks as changed, and writes that their sums are void.
    fn mark(&self, pieces: &[&Extent]) -> Marked<'_> {
        let sums = self.sums();
        let mut state = sums.state();
        if state.is_detached {
            return Marked { change: self.change(None), voids: Vec::new(), written: Ok(()) };
        }
        let (number, voids) = state.begin_change(pieces.iter().map(|piece| blocks_of(piece)));
        let is_new = !std::mem::replace(&mut state.is_queued, true);
        if is_new {
            state.dirty_since = state.changed_at;
        }
        // Under the lock, so that no settling puts them in force meanwhile.
        let written = voids.iter().try_for_each(|(region, header)| {
            write_void(sums.there().expect("its sums are in force"), *region, header)
        });
        drop(state);
        if is_new {
            self.table().enqueue(sums);
        }
        Marked { change: self.change(Some((sums.clone(), number))), voids, written }
    }

    /// Compares the blocks that are changed in part.
    async fn compare_edges(&self, pieces: &[&Extent], may_wait: bool) -> Result<(), StorageError> {
        let mut edges = Vec::new();
        {
            let state = self.sums().state();
            let mut add = |block: u64| {
                if state.has_sums(block..block + 1) {
                    edges.push(Extent::new(block * BLOCK_BYTES, BLOCK_BYTES));
                }
            };
            for piece in pieces {
                let (first, last) = (piece.offset / BLOCK_BYTES, piece.end() / BLOCK_BYTES);
                if piece.offset % BLOCK_BYTES != 0 {
                    add(first);
                }
                if piece.end() % BLOCK_BYTES != 0 && (last != first || piece.offset % BLOCK_BYTES == 0) {
                    add(last);
                }
            }
        }
        if edges.is_empty() {
            return Ok(());
        }
        // What is overwritten up to the end of the file is overwritten as a whole.
        let size = self.size_found()?;
        let is_whole = |edge: &Extent| {
            pieces.iter().any(|piece| piece.offset <= edge.offset && piece.end() >= size.min(edge.end()))
        };
        edges.retain(|edge| !is_whole(edge));
        self.verify_pieces(&edges, may_wait).await
    }
}
