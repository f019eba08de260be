//! Quotas: who is held to limits, how far writers may extend files, and what operators set and see.
//!
//! ```text
//!   Open, Create ─► grant: a little more than the file has ─► capability with the bound
//!   Reserve      ─► grant: the end that is wanted, and some more of what is left ─► the same
//!   Write        ─► the I/O server compares the end of the write with the bound
//! ```
//!
//! A client of before quotas is not bound while it writes, as it could not ask for more. What it makes, and what it writes to small
//! files, is held to limits here.

use super::translate as t;
use super::{Call, MetaPart};
use crate::answer::{Answer, Refusal};
use crate::log;
use std::rc::Rc;
use std::time::Duration;
use weft_meta::{Engine, Limits, MetaError, Op, QuotaState, Subject};
use weft_wire::Status;
use weft_wire::limits::{QUOTA_ROWS_MAX, TREE_ENTRIES_MAX};
use weft_wire::messages::*;
use weft_wire::security::{Capability, WriteBound};

/// Inodes that are counted in one turn.
const COUNTED_IN_A_TURN: usize = 512;
/// How often is looked who is over a soft limit.
const TICK: Duration = Duration::from_secs(1);
/// The version of the protocol by which clients ask for more.
const BOUND_SINCE: u8 = 5;

/// Whether what is done for this user is held to limits.
pub(super) fn is_limited(caller: &weft_meta::Caller) -> bool {
    !caller.is_root()
}

/// The same by a capability.
pub(super) fn is_limited_by(held: &Capability) -> bool {
    held.write_bound() != WriteBound::Exempt
}

impl<E: Engine + 'static> MetaPart<E> {
    /// The rights of a capability for an open of the inode with `access`, as bits: with the bound of its writes.
    pub(super) fn rights_for(
        &self,
        op: &mut Op<'_, E>,
        call: &Call,
        limited: bool,
        (ino, access): (u64, u32),
        end: Option<u64>,
    ) -> Result<u32, MetaError> {
        if access & rights::WRITE == 0 {
            return Ok(access);
        }
        let bound = match limited {
            false => WriteBound::Exempt,
            true if call.header.version < BOUND_SINCE => WriteBound::None,
            true => op.grant(ino, end)?.map_or(WriteBound::None, WriteBound::End),
        };
        Ok(access | bound.bits())
    }

    /// The rights of a capability that takes the place of `held`.
    pub(super) fn rights_again(
        &self,
        op: &mut Op<'_, E>,
        call: &Call,
        held: &Capability,
    ) -> Result<u32, MetaError> {
        let what = (held.ino, held.access());
        let WriteBound::End(end) = held.write_bound() else {
            return self.rights_for(op, call, is_limited_by(held), what, None);
        };
        match self.rights_for(op, call, true, what, Some(end)) {
            // What was promised before a restart may have been given to others since.
            Err(MetaError::Quota(_)) => self.rights_for(op, call, true, what, None),
            rights => rights,
        }
    }

    /// Promises space to a writer.
    pub async fn reserve(&self, call: &Call, request: ReserveRequest) -> Result<Answer, Refusal> {
        let held = request.capability;
        self.check(&held, rights::WRITE)?;
        crate::spent::note_ino(held.ino);
        if !self.namespace.borrow().is_written_by(held.ino, call.session) {
            let text = "only who has the file open for writing can extend it; open it again";
            return Err(Refusal::new(Status::Stale, text));
        }
        let end = (request.end_bytes <= i64::MAX as u64).then_some(request.end_bytes);
        let end = end.ok_or_else(|| Refusal::new(Status::FileTooBig, "a file ends before 2^63"))?;
        self.change(call, |op, _, _| {
            let what = (held.ino, held.access());
            let rights = self.rights_for(op, call, is_limited_by(&held), what, Some(end))?;
            Ok(ReserveReply { capability: self.sign(call, held.ino, rights, held.layout) })
        })
        .await
    }

    /// Sets limits.
    pub async fn set_quota(&self, call: &Call, request: SetQuotaRequest) -> Result<Answer, Refusal> {
        let subject = subject(request.kind, request.id)?;
        let limits = request.limits.map(|limits| Limits {
            hard_bytes: limits.hard_bytes,
            soft_bytes: limits.soft_bytes,
            hard_files: limits.hard_files,
            soft_files: limits.soft_files,
            grace_s: limits.grace_s,
            in_statfs: limits.in_statfs,
        });
        self.change(call, |op, _, _| {
            op.set_limits(subject, limits)?;
            Ok(Empty {})
        })
        .await
        .inspect(|_| self.usage_changed.notify())
    }

    /// Counts all usage anew.
    pub async fn count_usage(&self, call: &Call) -> Result<Answer, Refusal> {
        self.change(call, |op, _, _| {
            op.count_usage_anew();
            Ok(Empty {})
        })
        .await
        .inspect(|_| self.usage_changed.notify())
    }

    /// Marks a page of a directory as part of a tree, or as part of none.
    pub async fn mark_tree(&self, call: &Call, request: MarkTreeRequest) -> Result<Answer, Refusal> {
        let MarkTreeRequest { tree, dir, on, after } = request;
        if tree == 0 {
            return Err(Refusal::new(Status::Invalid, "no directory has the number 0"));
        }
        let marks = if on { (0, tree) } else { (tree, 0) };
        self.change(call, |op, _, _| {
            let page = op.mark_tree(dir, marks, after, TREE_ENTRIES_MAX as usize)?;
            Ok(MarkTreeReply { directories: page.directories, entries: page.entries, next: page.next })
        })
        .await
    }

    /// A page of usage and limits; of himself for who does not administer.
    ///
    /// The paths of trees are looked up one in a turn, as each may take many reads.
    pub async fn list_quotas(
        &self,
        administers: bool,
        request: ListQuotasRequest,
    ) -> Result<Answer, Refusal> {
        let caller = t::caller(request.caller);
        let from = subject(request.kind, request.id)?;
        let rows_max = request.rows_max.clamp(1, QUOTA_ROWS_MAX) as usize;
        let is_shown = |subject: &Subject| match subject {
            _ if administers || caller.is_root() => true,
            Subject::User(uid) => *uid == caller.uid,
            Subject::Group(gid) => caller.in_group(*gid),
            Subject::Tree(_) => true,
        };
        let (state, mut rows) = {
            let namespace = self.namespace.borrow();
            let rows = namespace.quotas(from, request.inclusive, rows_max + 1, is_shown);
            (namespace.quota_state(), rows)
        };
        let is_last = rows.len() <= rows_max;
        rows.truncate(rows_max);
        let mut shown = Vec::with_capacity(rows.len());
        for row in rows {
            let (kind, id) = row.subject.numbers();
            let path = match row.subject {
                Subject::Tree(ino) => {
                    weft_reactor::yield_now().await;
                    self.namespace.borrow_mut().begin().path_of(ino)?
                }
                _ => None,
            };
            shown.push(QuotaRow {
                kind,
                id,
                path,
                used_bytes: row.used.bytes,
                used_files: row.used.files,
                reserved_bytes: row.reserved_bytes,
                limits: row.limits.as_ref().map(limits_to_wire),
                is_own: row.is_own,
                bytes_over_s: row.over.bytes_s,
                files_over_s: row.over.files_s,
            });
        }
        let (counted, to_count) = match state {
            QuotaState::Counting { counted, inodes } => (counted, inodes.max(1)),
            QuotaState::Off | QuotaState::On => (0, 0),
        };
        let is_on = state != QuotaState::Off;
        Ok(Answer::of(&ListQuotasReply { is_on, counted, to_count, rows: shown, is_last }))
    }

    /// Counts usage where that is to be done, and looks at the clock for soft limits, as long as the server runs.
    pub(super) fn look_after_quotas(self: &Rc<Self>) {
        let (weak, changed) = (Rc::downgrade(self), self.usage_changed.clone());
        weft_reactor::spawn(async move {
            loop {
                let Some(part) = weak.upgrade() else { return };
                let looked = part.look_at_quotas().await;
                let is_off = part.namespace.borrow().quota_state() == QuotaState::Off;
                drop(part);
                if let Err(error) = looked {
                    log::warning!("meta", "cannot count usage for quotas: {error}");
                }
                match is_off {
                    true => changed.notified().await,
                    false => drop(weft_reactor::timeout(TICK, changed.notified()).await),
                }
            }
        });
    }

    async fn look_at_quotas(&self) -> Result<(), MetaError> {
        while self.failure().is_none() && self.namespace.borrow_mut().count_usage(COUNTED_IN_A_TURN)? {
            weft_reactor::yield_now().await;
        }
        self.namespace.borrow_mut().tick_quotas(self.steady.now_s())
    }
}

fn subject(kind: u8, id: u64) -> Result<Subject, Refusal> {
    let subject = Subject::from_numbers(kind, id);
    subject.ok_or_else(|| Refusal::new(Status::Invalid, "no user, group or directory tree has this number"))
}

fn limits_to_wire(limits: &Limits) -> QuotaLimits {
    QuotaLimits {
        hard_bytes: limits.hard_bytes,
        soft_bytes: limits.soft_bytes,
        hard_files: limits.hard_files,
        soft_files: limits.soft_files,
        grace_s: limits.grace_s,
        in_statfs: limits.in_statfs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_the_names_go_into_capabilities_as_they_are() {
        for end in [0, 5, 4 << 20, (1 << 17) + 1, 123_456_789_012, i64::MAX as u64] {
            let bound = WriteBound::End(weft_meta::bound_below(end));
            let capability = Capability { rights: bound.bits(), ..weft_wire::Wire::sample(&mut 0) };
            assert_eq!(capability.write_bound(), bound);
        }
    }
}
