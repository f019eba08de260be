//! Marking data files that must be there, and keeping the marks durable; see the module `held`.

use std::sync::atomic::Ordering;

use weft_layout::Extent;

use crate::data_file::{DataFile, failed};
use crate::data_files::DataFiles;
use crate::disk::Disk;
use crate::error::{Operation, StorageError};
use crate::held::{GroupSync, Mark};
use crate::sums_directory::SumsDirectory;

/// Data files marked while none is opened, made or removed.
const AT_ONCE: usize = 64;

fn cannot_note(source: std::io::Error) -> StorageError {
    StorageError::Whole { what: "note the data files of", source }
}

impl<D: Disk> DataFile<D> {
    /// Notes that there must be this data file from now on: it and its name are durable.
    pub(crate) fn hold(&self, mark: Mark) -> Result<(), StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok(()) };
        if mark == Mark::Synced && self.opened.is_held.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Not while it is removed: under the lock that a removal takes first.
        let state = self.sums().state();
        if !state.is_detached {
            directory.held().set(&[self.ino()], mark).map_err(failed(Operation::Sync, self.ino()))?;
            self.opened.is_held.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl<D: Disk> DataFiles<D> {
    /// Notes that these data files must be there, those of them that are: they and their names are durable.
    pub(crate) async fn hold_all(&self, inos: &[u64]) -> Result<(), StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok(()) };
        for batch in inos.chunks(AT_ONCE) {
            let marked = self.with_none_opened(|disk| {
                let mut there = Vec::new();
                for ino in batch {
                    there.extend(disk.size_of(*ino)?.map(|_| *ino));
                }
                directory.held().set(&there, Mark::Synced)
            });
            marked.map_err(cannot_note)?;
            weft_reactor::yield_now().await;
        }
        Ok(())
    }

    /// Makes the marks durable that were set since the last call. To be called every few seconds: what a power cut takes of them
    /// cannot be missed until the files are synced or scrubbed again.
    ///
    /// # Errors
    /// The first of the disk; all are tried.
    pub async fn sync_marks(&self) -> Result<(), StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok(()) };
        let _turn = self.shared.marks.turn(Extent::new(0, u64::MAX), true).await;
        let mut result = Ok(());
        for sync in directory.held().begin_syncs().map_err(cannot_note)? {
            let synced = match directory.held().sync_name(&sync) {
                Ok(()) => self.sync_group(directory, &sync).await,
                Err(source) => Err(cannot_note(source)),
            };
            result = result.and(synced);
        }
        result
    }

    /// Clears the marks of these inodes, which are in order, durably.
    pub(crate) async fn clear_marks(&self, inos: &[u64]) -> Result<(), StorageError> {
        let Some(directory) = self.disk().sums() else { return Ok(()) };
        let _turn = self.shared.marks.turn(Extent::new(0, u64::MAX), true).await;
        for sync in directory.held().clear(inos).map_err(cannot_note)? {
            self.sync_group(directory, &sync).await?;
        }
        Ok(())
    }

    async fn sync_group(&self, directory: &SumsDirectory, sync: &GroupSync) -> Result<(), StorageError> {
        let synced = self.disk().sync_sums(&sync.file).await;
        directory.held().end_sync(sync, synced).map_err(cannot_note)
    }
}
