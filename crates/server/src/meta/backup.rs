//! Backups of the names while they are in use: one state of the store, read in pages by an administrator's client.

use super::MetaPart;
use crate::answer::{Answer, Refusal};
use crate::clock::unix_s;
use std::cell::Cell;
use std::time::{Duration, Instant};
use weft_meta::{BackupHead, Engine, MetaError};
use weft_wire::Status;
use weft_wire::limits::BACKUP_PAGE_BYTES;
use weft_wire::messages::{BackupRecord, BackupReply, BackupRequest};

/// A state that nobody asks for during this time is kept no longer: it holds space on the disk.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// A backup that was asked for within this time keeps others away.
const IN_USE: Duration = Duration::from_secs(5);

/// The backup that is being taken.
#[derive(Debug, Clone, Copy)]
struct Taking {
    /// Its name.
    backup: u64,
    head: BackupHead,
    inodes: u64,
    asked: Instant,
    finished: bool,
}

/// None, or one.
#[derive(Default)]
pub(super) struct Backups {
    taking: Cell<Option<Taking>>,
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Begins a backup, or goes on with it: one page. The metadata thread has other work between any two of them.
    pub fn backup(&self, request: BackupRequest) -> Result<Answer, Refusal> {
        self.may_check(&request.caller)?;
        let taking = match self.backups.taking.get().filter(|taking| taking.backup == request.backup) {
            Some(taking) => taking,
            None => self.begin_backup(&request)?,
        };
        let page = self
            .namespace
            .borrow()
            .backup_page(&request.after, BACKUP_PAGE_BYTES)
            .map_err(MetaError::from)?
            .ok_or_else(gone)?;
        // What is finished is kept for a while: the reply may be lost, and asked for again.
        let (asked, finished) = (Instant::now(), page.finished);
        self.backups.taking.set(Some(Taking { asked, finished, ..taking }));
        Ok(Answer::of(&BackupReply {
            cluster: taking.head.cluster,
            storage: taking.head.storage,
            taken_s: taking.head.taken_s,
            inodes: taking.inodes,
            finished,
            records: page.pairs.into_iter().map(|(key, value)| BackupRecord { key, value }).collect(),
        }))
    }

    fn begin_backup(&self, request: &BackupRequest) -> Result<Taking, Refusal> {
        if !request.after.is_empty() {
            return Err(gone());
        }
        let taken = self.backups.taking.get();
        if taken.is_some_and(|taking| !taking.finished && taking.asked.elapsed() < IN_USE) {
            let text = "another backup of this file system is under way; wait for its end";
            return Err(Refusal::new(Status::Busy, text));
        }
        let mut namespace = self.namespace.borrow_mut();
        let inodes = namespace.statfs().inodes;
        let head = namespace.begin_backup(unix_s()).map_err(MetaError::from)?;
        Ok(Taking { backup: request.backup, head, inodes, asked: Instant::now(), finished: false })
    }

    /// Gives up the state of a backup that nobody asks for any more.
    pub(super) fn end_idle_backup(&self) {
        if self.backups.taking.get().is_some_and(|taking| taking.asked.elapsed() >= IDLE_MAX) {
            self.backups.taking.set(None);
            self.namespace.borrow_mut().end_backup();
        }
    }
}

fn gone() -> Refusal {
    let text = "the state that this backup is of is not kept any more (the server was started again, its disk was full, or the \
                backup paused for a minute); begin again";
    Refusal::new(Status::Stale, text)
}
