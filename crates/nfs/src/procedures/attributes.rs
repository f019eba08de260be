//! GETATTR, SETATTR and ACCESS (RFC 1813, 3.3.1, 3.3.2 and 3.3.4).

use nfs3_types::nfs3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    ACCESS3res, ACCESS3resfail, ACCESS3resok, GETATTR3res, GETATTR3resok, Nfs3Option, Nfs3Result,
    SETATTR3res, SETATTR3resfail, SETATTR3resok, nfsstat3, nfstime3, sattr3,
};
use nfs3_types::xdr_codec::Void;
use weft_client::{At, SetAttr, SetTime};
use weft_wire::Status;
use weft_wire::messages::{Attr, FileKind};

use super::limits::FILE_BYTES_MAX;
use super::{Files, by_handle, writable};
use crate::attributes::{before_of, changes_of, post_op, size_of, time_of, wcc};
use crate::known::Scope;
use crate::opens::Access;
use crate::target::{Sender, Target};

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;

/// Changes beside a size, without the time that a new size sets by itself. Kernels ask for it with every
/// truncation, and alone it would need the owner.
fn without_own_time(changes: SetAttr, wanted: &sattr3) -> SetAttr {
    match (size_of(wanted), &changes) {
        (Some(_), SetAttr { atime: None, mtime: Some(SetTime::Now), .. }) => {
            SetAttr { mtime: None, ..changes }
        }
        _ => changes,
    }
}

/// Whether the time of modification is to be now and nothing else changes. Linux leaves the size out of a truncation of a file that
/// it knows to be empty, so that this is all that remains of open(2) with O_TRUNC.
fn is_modification_alone(changes: &SetAttr) -> bool {
    *changes == SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }
}

/// What ACCESS says of somebody who is granted these bits of access(2).
fn access_of(target: &Target, attr: &Attr, granted: u32) -> u32 {
    let [read, write, execute] = [READ, WRITE, EXECUTE].map(|bit| granted & bit != 0);
    let write = write && !target.admission.rule.read_only;
    let bits = match attr.kind {
        FileKind::Directory => [
            (ACCESS3_READ, read),
            (ACCESS3_LOOKUP, execute),
            (ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE, write && execute),
        ],
        _ => [(ACCESS3_READ, read), (ACCESS3_EXECUTE, execute), (ACCESS3_MODIFY | ACCESS3_EXTEND, write)],
    };
    bits.iter().filter(|(_, is)| *is).fold(0, |all, (bit, _)| all | bit)
}

impl Files {
    /// GETATTR.
    pub(crate) async fn getattr(&self, sender: &Sender, object: &[u8]) -> GETATTR3res {
        let attributes = async {
            let target = self.target(sender, object).await?;
            let attr = self.opens.attr(target.root(), target.ino).await.map_err(by_handle)?;
            Ok(self.tell(&target, attr).await)
        };
        match attributes.await {
            Ok(obj_attributes) => Nfs3Result::Ok(GETATTR3resok { obj_attributes }),
            Err(status) => Nfs3Result::Err((status, Void)),
        }
    }

    /// SETATTR. `guard`: the time of status change that the client knows.
    ///
    /// Attributes from before the change would have to be of the same transaction as it (RFC 1813, 2.6): a
    /// client takes all that is new after them for its own change. What was read for the guard is not, so it
    /// is told only where nothing was changed.
    pub(crate) async fn setattr(
        &self,
        sender: &Sender,
        object: &[u8],
        wanted: &sattr3,
        guard: Option<nfstime3>,
    ) -> SETATTR3res {
        let target = self.target(sender, object).await;
        let mut unchanged = None;
        let done = match &target {
            Ok(target) => self.set(target, wanted, guard, &mut unchanged).await,
            Err(status) => Err(*status),
        };
        let target = target.ok();
        match done {
            Ok(attr) => {
                let after = match (attr, &target) {
                    (Some(attr), Some(target)) => Some(self.tell(target, attr).await),
                    _ => self.after_on(&target).await,
                };
                Nfs3Result::Ok(SETATTR3resok { obj_wcc: wcc(None, after) })
            }
            Err(status) => {
                let after = match (&unchanged, &target) {
                    (Some(attr), Some(target)) => Some(self.tell(target, attr.clone()).await),
                    _ => self.after_on(&target).await,
                };
                Nfs3Result::Err((
                    status,
                    SETATTR3resfail { obj_wcc: wcc(unchanged.as_ref().map(before_of), after) },
                ))
            }
        }
    }

    async fn set(
        &self,
        target: &Target,
        wanted: &sattr3,
        guard: Option<nfstime3>,
        unchanged: &mut Option<Attr>,
    ) -> Result<Option<Attr>, nfsstat3> {
        if target.admission.rule.read_only {
            return Err(nfsstat3::NFS3ERR_ROFS);
        }
        let changes = without_own_time(changes_of(wanted).ok_or(nfsstat3::NFS3ERR_INVAL)?, wanted);
        let changes = target.there(changes);
        if let Some(guard) = guard {
            let attr = self.opens.attr(target.root(), target.ino).await.map_err(by_handle)?;
            if time_of(&attr.ctime) != guard {
                *unchanged = Some(attr);
                return Err(nfsstat3::NFS3ERR_NOT_SYNC);
            }
        }
        if let Some(bytes) = size_of(wanted) {
            self.truncate(target, bytes).await?;
        }
        if changes == SetAttr::default() {
            return Ok(None);
        }
        // A time that is set is not to be overwritten by a report of what was written before.
        self.opens.report(target.ino).await.map_err(by_handle)?;
        let change = self.known.change().inode(target.ino, Scope::Rights);
        let set = target.client.start_setattr(At::ino(target.ino), false, &changes);
        let attr = self.call(set).await;
        self.opens.forget_rights(target.ino);
        match attr {
            Err(error) if error.status() == Some(Status::NotPermitted) && is_modification_alone(&changes) => {
                self.touch(target).await.map(|()| None)
            }
            Err(error) => Err(by_handle(error)),
            // It has lost its last name, and is there for a moment.
            Ok(attr) if attr.nlink == 0 => Err(nfsstat3::NFS3ERR_STALE),
            Ok(attr) => {
                change.made(|learn| learn.attr(&attr));
                Ok(Some(attr))
            }
        }
    }

    /// Sets the time of modification to now, for who may write the file.
    async fn touch(&self, target: &Target) -> Result<(), nfsstat3> {
        let opened = self.opens.get(target, Access::Write).await?;
        let file = opened.file.clone();
        opened.entry.note_change();
        let touched = self.workers.run(move || file.touch()).await;
        opened.entry.note_change();
        touched.map_err(by_handle)
    }

    /// Sets the size of a file.
    pub(crate) async fn truncate(&self, target: &Target, bytes: u64) -> Result<(), nfsstat3> {
        if bytes > FILE_BYTES_MAX {
            return Err(nfsstat3::NFS3ERR_FBIG);
        }
        let guard = self.for_change(target).await?;
        let opened = self.opens.get(target, Access::Write).await?;
        let file = opened.file.clone();
        opened.entry.note_change();
        let cut = self.workers.run(move || file.truncate_while(guard, bytes)).await;
        opened.entry.note_change();
        self.opens.look_for_losses(&opened);
        cut.map_err(by_handle)
    }

    /// ACCESS.
    pub(crate) async fn access(&self, sender: &Sender, object: &[u8], wanted: u32) -> ACCESS3res {
        let target = match self.target(sender, object).await {
            Ok(target) => target,
            Err(status) => {
                return Nfs3Result::Err((status, ACCESS3resfail { obj_attributes: Nfs3Option::None }));
            }
        };
        match self.allowed(&target, wanted).await {
            Ok((attr, access)) => {
                let obj_attributes = post_op(Some(self.tell(&target, attr).await));
                Nfs3Result::Ok(ACCESS3resok { obj_attributes, access })
            }
            Err(status) => Nfs3Result::Err((status, ACCESS3resfail { obj_attributes: Nfs3Option::None })),
        }
    }

    async fn allowed(&self, target: &Target, wanted: u32) -> Result<(Attr, u32), nfsstat3> {
        const ALL: u32 = READ | WRITE | EXECUTE;
        if let Some(granted) = self.known.rights(target.ino, &target.who(), ALL) {
            let attr = self.opens.attr(target.root(), target.ino).await.map_err(by_handle)?;
            let access = access_of(target, &attr, granted);
            return Ok((attr, access & wanted));
        }
        let asked = self.known.ask();
        let ask = |mask| self.call(target.client.start_access(At::ino(target.ino), false, mask));
        // All questions are sent before the first one is waited for.
        let (read, write, execute) = (ask(READ), ask(WRITE), ask(EXECUTE));
        let attr = self.opens.attr(target.root(), target.ino).await.map_err(by_handle)?;
        let mut granted = 0;
        for (bit, answer) in [(READ, read.await), (WRITE, write.await), (EXECUTE, execute.await)] {
            match answer {
                Ok(()) => granted |= bit,
                Err(error) => match error.status() {
                    Some(Status::Access | Status::NotPermitted | Status::ReadOnly) => {}
                    _ => return Err(by_handle(error)),
                },
            }
        }
        self.known.learn_rights(&asked, target.ino, &target.who(), (ALL, granted));
        let access = access_of(target, &attr, granted);
        Ok((attr, access & wanted))
    }

    /// What a handle leads to, where the client may change it.
    pub(super) async fn target_to_change(&self, sender: &Sender, handle: &[u8]) -> Result<Target, nfsstat3> {
        writable(self.target(sender, handle).await?)
    }
}
