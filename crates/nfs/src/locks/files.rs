//! Files that are locked: open in the session, as long as somebody has locks of them or asks for some.

use std::cell::RefCell;
use std::rc::Rc;

use weft_client::{At, File, LockKind, LockOwner, LockTarget, OpenOptions};
use weft_reactor::LocalLock;
use weft_wire::Status as Answer;
use weft_wire::messages::Caller;

use super::store::{Held, Host};
use super::{Locks, Status};
use crate::target::{Sender, Target};
use crate::workers::Workers;

/// One that is open. It is closed by a worker thread when nobody has it any more.
pub(super) struct LockFile {
    file: Option<File>,
    workers: Workers,
}

impl std::ops::Deref for LockFile {
    type Target = File;

    fn deref(&self) -> &File {
        self.file.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.workers.leave(move || {
                if let Err(error) = file.close() {
                    tracing::warn!(%error, "a file that was locked cannot be closed");
                }
            });
        }
    }
}

impl LockFile {
    /// Drops it without a close, so that its locks stay for the next start.
    pub(super) fn leave(mut self) {
        if let Some(file) = self.file.take() {
            file.leave_open();
        }
    }
}

/// A file, and whose turn it is.
pub(super) struct Entry {
    pub(super) ino: u64,
    /// Held for each call but those that wait.
    pub(super) turn: LocalLock<()>,
    pub(super) file: RefCell<Option<Rc<LockFile>>>,
}

/// A lock, for whom.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) host: Host,
    pub(super) pair: Held,
    pub(super) range: (u64, u64),
    pub(super) exclusive: bool,
    pub(super) process: u32,
}

impl Wanted {
    pub(super) fn owner(&self) -> LockOwner {
        LockOwner::Other { id: self.pair.1, pid: self.process }
    }

    pub(super) fn target(&self) -> LockTarget {
        LockTarget::Range { first: self.range.0, last: self.range.1 }
    }

    pub(super) fn kind(&self) -> LockKind {
        if self.exclusive { LockKind::Exclusive } else { LockKind::Shared }
    }
}

impl Host {
    pub(super) fn of(sender: &Sender, name: &[u8]) -> Host {
        Host { address: sender.peer.ip().to_canonical(), name: name.to_vec() }
    }
}

impl Locks {
    pub(super) fn entry(&self, ino: u64) -> Rc<Entry> {
        let new = || Entry { ino, turn: LocalLock::new(()), file: RefCell::default() };
        self.entries.borrow_mut().entry(ino).or_insert_with(|| Rc::new(new())).clone()
    }

    /// Ends a use of a file: nobody keeps it open who has no locks of it.
    pub(super) fn let_go(&self, entry: Rc<Entry>) {
        let is_last = Rc::strong_count(&entry) == 2 && !self.table.borrow().has_file(entry.ino);
        if is_last {
            self.entries.borrow_mut().remove(&entry.ino);
        }
    }

    /// The file, opened if it is not. Its turn is held.
    pub(super) async fn open(&self, entry: &Entry, target: &Target) -> Result<Rc<LockFile>, Status> {
        if let Some(file) = entry.file.borrow().clone() {
            return Ok(file);
        }
        let client = self.session.borrow().client.clone();
        let options = OpenOptions::new().read(true).follow(false);
        let of_user = client.with_caller(target.client.caller().clone());
        let at = || At::ino(entry.ino);
        let opened = match self.files.call(of_user.start_open(at(), &options)).await {
            // The rights were checked: an owner may lock what it may not read.
            Err(error) if error.status() == Some(Answer::Access) => {
                let root = client.with_caller(Caller { uid: 0, gid: 0, groups: Vec::new() });
                self.files.call(root.start_open(at(), &options)).await
            }
            result => result,
        };
        let file = opened.map_err(|error| match error.status() {
            Some(Answer::Stale | Answer::NotFound) => Status::StaleHandle,
            Some(_) => Status::Failed,
            // The cluster cannot be reached: the client asks again.
            None => Status::DeniedGracePeriod,
        })?;
        let file = Rc::new(LockFile { file: Some(file), workers: self.files.workers.clone() });
        *entry.file.borrow_mut() = Some(file.clone());
        Ok(file)
    }
}
