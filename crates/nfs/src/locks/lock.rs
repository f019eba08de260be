//! TEST, LOCK, UNLOCK and CANCEL.

use std::rc::Rc;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::nfsstat3;
use weft_client::{LockOwner, LockStep, LockTarget};
use weft_onc_rpc::nlm::{Holder, Lock, LockArgs};
use weft_reactor::sleep;
use weft_wire::Status as Answer;
use weft_wire::messages::LockState;

use super::files::{Entry, LockFile, Wanted};
use super::store::Host;
use super::table::{LAST_BYTE, owner_of, range_of};
use super::{Locks, Status};
use crate::opens::Access;
use crate::target::{Sender, Target};

/// How long a reclaim waits while the metadata server learns who held what: longer than that takes.
const RECLAIM_PATIENCE: Duration = Duration::from_secs(25);
const RECLAIM_AGAIN: Duration = Duration::from_millis(100);

/// What a call is about.
struct Subject {
    target: Target,
    wanted: Wanted,
}

/// The status for a handle that leads nowhere, or access that is not allowed.
fn status_of(status: nfsstat3) -> Status {
    match status {
        nfsstat3::NFS3ERR_BADHANDLE | nfsstat3::NFS3ERR_STALE | nfsstat3::NFS3ERR_NOENT => {
            Status::StaleHandle
        }
        nfsstat3::NFS3ERR_ROFS => Status::ReadOnly,
        // The client asks again.
        nfsstat3::NFS3ERR_JUKEBOX => Status::DeniedGracePeriod,
        _ => Status::Failed,
    }
}

impl Locks {
    async fn subject(&self, sender: &Sender, exclusive: bool, lock: &Lock) -> Result<Subject, Status> {
        let target = self.files.target(sender, &lock.handle).await.map_err(status_of)?;
        Ok(Subject { target, wanted: self.wanted(sender, exclusive, lock)? })
    }

    /// Reads what a client asks for. Releasing a lock needs no right to the file, nor an export that leads there.
    fn wanted(&self, sender: &Sender, exclusive: bool, lock: &Lock) -> Result<Wanted, Status> {
        let ino = self.files.keys.open(&lock.handle).ok_or(Status::StaleHandle)?.ino;
        let range = range_of(lock.offset, lock.bytes).ok_or(Status::TooBig)?;
        let host = Host::of(sender, &lock.host);
        let pair = (ino, owner_of(&host, lock));
        Ok(Wanted { host, pair, range, exclusive, process: lock.process })
    }

    /// Who may read a file may lock it, and who may write it may lock it exclusively.
    async fn check(&self, subject: &Subject) -> Result<(), Status> {
        let (target, exclusive) = (&subject.target, subject.wanted.exclusive);
        if exclusive && target.admission.rule.read_only {
            return Err(Status::ReadOnly);
        }
        match self.files.opens.check(target, Access::Read).await {
            Err(_) if exclusive => self.files.opens.check(target, Access::Write).await.map_err(status_of),
            result => result.map_err(status_of),
        }
    }

    /// Who holds what a lock would need.
    pub(super) async fn test(&self, sender: &Sender, exclusive: bool, lock: &Lock) -> Result<Holder, Status> {
        let subject = self.subject(sender, exclusive, lock).await?;
        self.check(&subject).await?;
        if self.in_grace.get() {
            return Err(Status::DeniedGracePeriod);
        }
        let entry = self.entry(subject.target.ino);
        let held = self.holder(&entry, &subject).await;
        self.let_go(entry);
        held
    }

    async fn holder(&self, entry: &Rc<Entry>, subject: &Subject) -> Result<Holder, Status> {
        let _turn = entry.turn.lock().await;
        let (file, wanted) = (self.open(entry, &subject.target).await?, &subject.wanted);
        let asked = file.start_lock_test_as(wanted.owner(), wanted.target(), wanted.kind());
        match self.files.call(asked).await.map_err(|error| self.refused(&error))? {
            (LockState::Waiting, _) => Err(Status::DeniedGracePeriod),
            (_, None) => Err(Status::Granted),
            (_, Some(holder)) => Ok(Holder {
                exclusive: holder.exclusive,
                process: holder.pid,
                owner: Vec::new(),
                offset: holder.first,
                bytes: if holder.last >= LAST_BYTE { 0 } else { holder.last - holder.first + 1 },
            }),
        }
    }

    /// Takes a lock, or begins to wait for it.
    pub(super) async fn lock(
        self: &Rc<Self>,
        sender: &Sender,
        args: LockArgs,
        monitored: bool,
        by_message: bool,
    ) -> Status {
        let result = async {
            let subject = self.subject(sender, args.exclusive, &args.lock).await?;
            self.check(&subject).await?;
            self.may_begin(&subject.wanted, args.reclaim).inspect_err(|_| {
                if args.reclaim {
                    self.note_lost(&subject.wanted);
                }
            })?;
            if monitored {
                self.monitor(&subject.wanted.host).await?;
            }
            let entry = self.entry(subject.target.ino);
            let status = self.take(&entry, subject, args, by_message).await;
            self.let_go(entry);
            status
        };
        result.await.unwrap_or_else(|status| status)
    }

    /// Whether a lock may be asked for now.
    fn may_begin(&self, wanted: &Wanted, reclaim: bool) -> Result<(), Status> {
        match (self.in_grace.get(), reclaim) {
            (true, false) => return Err(Status::DeniedGracePeriod),
            // It would not be known whether another had it meanwhile.
            (false, true) if !self.table.borrow().covers(wanted.pair, wanted.range, wanted.exclusive) => {
                return Err(Status::DeniedGracePeriod);
            }
            _ => {}
        }
        let mut table = self.table.borrow_mut();
        if table.admit(&wanted.host, Instant::now()) {
            return Ok(());
        }
        drop(table);
        if weft_log_once(&wanted.host) {
            tracing::warn!(client = %wanted.host.address, "a client has as many locks as it may have");
        }
        Err(Status::DeniedNoLocks)
    }

    async fn take(
        self: &Rc<Self>,
        entry: &Rc<Entry>,
        Subject { target, wanted }: Subject,
        args: LockArgs,
        by_message: bool,
    ) -> Result<Status, Status> {
        let begun = Instant::now();
        loop {
            let turn = entry.turn.lock().await;
            // It came again, while it waits or because the word that it has it did not come to the client.
            if let Some(status) = self.wait_known(&wanted) {
                return Ok(status);
            }
            let file = self.open(entry, &target).await?;
            if self.store.borrow_mut().note(wanted.pair).is_err() {
                return Err(Status::DeniedNoLocks);
            }
            let step = if args.block && !args.reclaim { LockStep::Queue } else { LockStep::Try };
            let status = match self.step(&file, &wanted, step).await {
                Ok(LockState::Granted) => {
                    self.supersede_waits(&wanted);
                    let exclusive = Some(wanted.exclusive);
                    self.table.borrow_mut().set(&wanted.host, wanted.pair, wanted.range, exclusive);
                    self.lost.borrow_mut().end(wanted.pair, wanted.range);
                    Status::Granted
                }
                Ok(_) if step == LockStep::Queue => {
                    self.begin_wait(wanted, args.lock, by_message, entry, file);
                    return Ok(Status::Blocked);
                }
                Ok(_) => Status::DeniedGracePeriod,
                Err(status) => status,
            };
            drop(turn);
            let again = args.reclaim && status == Status::DeniedGracePeriod;
            if !again || begun.elapsed() >= RECLAIM_PATIENCE {
                self.forget_if_none(&wanted);
                if args.reclaim && status != Status::Granted {
                    self.note_lost(&wanted);
                }
                return Ok(status);
            }
            sleep(RECLAIM_AGAIN).await;
        }
    }

    /// A client cannot have back what it had before a restart.
    fn note_lost(&self, wanted: &Wanted) {
        if !self.lost.borrow_mut().add(&wanted.host, wanted.pair, wanted.range) && weft_log_once(&wanted.host)
        {
            let client = wanted.host.address;
            tracing::warn!(%client, "a client has lost more locks than are noted: it may write without them");
        }
    }

    /// Asks the metadata server once.
    pub(super) async fn step(
        &self,
        file: &LockFile,
        wanted: &Wanted,
        step: LockStep,
    ) -> Result<LockState, Status> {
        let asked = file.start_lock_as(wanted.owner(), wanted.target(), wanted.kind(), step);
        self.files.call(asked).await.map_err(|error| self.refused(&error))
    }

    /// What a client is told of an error.
    pub(super) fn refused(&self, error: &weft_client::Error) -> Status {
        match error.status() {
            Some(Answer::Locked) => Status::Denied,
            Some(Answer::Deadlock) => Status::Deadlock,
            Some(Answer::NoLocks) => Status::DeniedNoLocks,
            Some(Answer::Stale | Answer::NotFound) => Status::StaleHandle,
            // The client asks again: of lost locks, when it has reclaimed the others.
            Some(Answer::LockLost | Answer::ShuttingDown | Answer::Busy) | None => Status::DeniedGracePeriod,
            Some(_) => {
                tracing::warn!(%error, "a lock of an NFS client has failed");
                Status::Failed
            }
        }
    }

    /// An owner that has nothing of a file is no longer noted for it.
    pub(super) fn forget_if_none(&self, wanted: &Wanted) {
        let waits = self.waits.borrow();
        if !self.table.borrow().has(wanted.pair) && !waits.values().any(|wait| wait.is_of(wanted.pair)) {
            // What is noted too much is given back at the next start.
            let _ = self.store.borrow_mut().forget(wanted.pair);
        }
    }

    /// Gives back what an owner has of a range.
    pub(super) async fn unlock(self: &Rc<Self>, sender: &Sender, lock: &Lock) -> Status {
        let wanted = match self.wanted(sender, false, lock) {
            Ok(wanted) => wanted,
            Err(status) => return status,
        };
        self.cancel_waits(|wait| wait.is_for(&wanted));
        self.lost.borrow_mut().end(wanted.pair, wanted.range);
        let entry = self.entry(wanted.pair.0);
        let turn = entry.turn.lock().await;
        let given_back = self.give_back(&entry, &wanted).await;
        drop(turn);
        self.let_go(entry);
        match given_back {
            Ok(()) => Status::Granted,
            Err(status) => status,
        }
    }

    /// Gives back a range; the turn of the file is held.
    pub(super) async fn give_back(&self, entry: &Entry, wanted: &Wanted) -> Result<(), Status> {
        let file = entry.file.borrow().clone();
        let called = match file {
            Some(file) => self.files.call(file.start_unlock_as(wanted.owner(), wanted.target())).await,
            // What an earlier start has locked, and nobody has reclaimed, goes all at once.
            None if self.left.borrow().contains(&wanted.pair) => {
                let client = self.session.borrow().client.clone();
                self.files.call(client.start_unlock_owner(wanted.pair.0, wanted.pair.1)).await
            }
            None => Ok(()),
        };
        called.map_err(|error| self.refused(&error))?;
        self.table.borrow_mut().set(&wanted.host, wanted.pair, wanted.range, None);
        if !self.in_grace.get() {
            self.forget_if_none(wanted);
        }
        Ok(())
    }

    /// Ends a wait. A client that does not wait is told so.
    pub(super) async fn cancel(self: &Rc<Self>, sender: &Sender, exclusive: bool, lock: &Lock) -> Status {
        match self.wanted(sender, exclusive, lock) {
            Ok(wanted) => {
                let is_meant = |wait: &Wanted| wait.exclusive == exclusive && wait.is_for(&wanted);
                if self.cancel_waits(is_meant) > 0 { Status::Granted } else { Status::Denied }
            }
            Err(status) => status,
        }
    }

    /// Gives back all that an owner has of a file.
    pub(super) async fn give_back_all(&self, pair: (u64, u64)) {
        let entry = self.entry(pair.0);
        let turn = entry.turn.lock().await;
        let (file, owner) = (entry.file.borrow().clone(), LockOwner::Other { id: pair.1, pid: 0 });
        let called = match file {
            Some(file) => self.files.call(file.start_unlock_all_as(owner)).await,
            None => {
                let client = self.session.borrow().client.clone();
                self.files.call(client.start_unlock_owner(pair.0, pair.1)).await
            }
        };
        if let Err(error) = called {
            tracing::warn!(%error, "the locks of a client that is gone cannot be given back");
        }
        self.table.borrow_mut().remove(pair);
        let _ = self.store.borrow_mut().forget(pair);
        drop(turn);
        self.let_go(entry);
    }

    /// Gives back what an owner had before a restart and has not reclaimed.
    pub(super) async fn give_back_unclaimed(&self, pair: (u64, u64)) {
        if !self.table.borrow().has(pair) {
            return self.give_back_all(pair).await;
        }
        let entry = self.entry(pair.0);
        let turn = entry.turn.lock().await;
        let gaps = self.table.borrow().gaps(pair);
        let file = entry.file.borrow().clone();
        for (first, last) in gaps {
            let Some(file) = &file else { break };
            let owner = LockOwner::Other { id: pair.1, pid: 0 };
            let unlock = file.start_unlock_as(owner, LockTarget::Range { first, last });
            if let Err(error) = self.files.call(unlock).await {
                tracing::warn!(%error, "a lock that was not reclaimed cannot be given back");
            }
        }
        drop(turn);
        self.let_go(entry);
    }
}

impl Wanted {
    /// Whether it is the same owner's, of the same bytes.
    pub(super) fn is_for(&self, other: &Wanted) -> bool {
        (self.pair, self.range) == (other.pair, other.range)
    }
}

fn weft_log_once(host: &Host) -> bool {
    weft_log::once_a_minute(&format!("locks of {}", host.address))
}
