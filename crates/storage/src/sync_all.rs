//! Making all data files of a server durable: those that were changed since their last sync one by one, or the
//! file system as a whole where that is not known or they are many; see the module `unsynced`.

use weft_layout::Extent;

use crate::data_files::DataFiles;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::limits::LIST_MAX;
use crate::unsynced::ToSync;

/// Data files that are synced at a time, where all are.
const SYNCS_AT_ONCE: usize = 16;

impl<D: Disk> DataFiles<D> {
    /// Makes durable what was written to any data file until now, with sizes and names. All are tried. Goes on to its end, and
    /// counts failures, also when nobody waits for it any more.
    ///
    /// # Errors
    /// The first one of the disk.
    pub async fn sync_all(&self) -> Result<(), StorageError> {
        let files = self.clone();
        weft_reactor::spawn(async move { files.sync_all_in_turn().await }).await
    }

    async fn sync_all_in_turn(&self) -> Result<(), StorageError> {
        let _turn = self.shared.syncs.turn(Extent::new(0, u64::MAX), true).await;
        match self.shared.unsynced.to_sync() {
            ToSync::Whole => self.sync_whole().await,
            ToSync::Files(inos) => self.sync_each(inos).await,
        }
    }

    async fn sync_whole(&self) -> Result<(), StorageError> {
        let changed = self.shared.unsynced.begin_whole();
        let synced = match self.sync_file_system().await {
            Ok(true) => self.hold_all(&changed).await,
            // It cannot be done as a whole.
            Ok(false) => self.sync_listed().await,
            Err(source) => Err(StorageError::Whole { what: "sync", source }),
        };
        if synced.is_err() {
            self.shared.unsynced.whole_failed();
        }
        synced
    }

    /// [`Disk::sync_whole`], on a thread of its own.
    async fn sync_file_system(&self) -> std::io::Result<bool> {
        let (sender, mut done) = weft_reactor::mailbox(1);
        let shared = self.shared.clone();
        std::thread::Builder::new().name("weft-syncfs".into()).spawn(move || {
            let synced = shared.disk.sync_whole();
            if synced.is_err() {
                shared.losses.note_whole();
            }
            // It is waited for as long as the reactor runs.
            let _ = sender.send(synced);
        })?;
        done.receive().await.unwrap_or_else(|| Err(std::io::Error::other("the thread that syncs has ended")))
    }

    async fn sync_listed(&self) -> Result<(), StorageError> {
        let (mut cursor, mut result) = (None, Ok(()));
        loop {
            let (page, next) = self.list(cursor, LIST_MAX)?;
            result = result.and(self.sync_each(page.iter().map(|object| object.ino).collect()).await);
            cursor = next;
            if cursor.is_none() {
                return result;
            }
        }
    }

    async fn sync_each(&self, inos: Vec<u64>) -> Result<(), StorageError> {
        let mut result = Ok(());
        for inos in inos.chunks(SYNCS_AT_ONCE) {
            let one = |ino: &u64| {
                let (files, ino) = (self.clone(), *ino);
                weft_reactor::spawn(async move { files.sync_if_there(ino).await })
            };
            let under_way: Vec<_> = inos.iter().map(one).collect();
            for synced in under_way {
                result = result.and(synced.await);
            }
        }
        result
    }

    async fn sync_if_there(&self, ino: u64) -> Result<(), StorageError> {
        match self.open_if_there(ino)? {
            Some(file) => file.sync().await,
            None => {
                self.shared.unsynced.forget(ino);
                Ok(())
            }
        }
    }
}
