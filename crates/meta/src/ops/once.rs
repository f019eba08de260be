//! Requests that are to run once: whether one has run, and what is kept of it (`replies.rs`).

use crate::caller::SessionId;
use crate::engine::Engine;
use crate::inode::Timestamp;
use crate::namespace::Namespace;
use crate::op::Op;
use crate::replies::{PendingReply, StoredReply};
use crate::{MetaError, keys};
use std::collections::hash_map::Entry as Slot;

/// Slots a session may have.
const SLOTS_MAX: u16 = 1024;
/// Old replies dropped in one batch.
const DROP_BATCH: usize = 256;

/// What became of a request that is to run once.
pub enum Once<'n, E: Engine> {
    /// It has run: send this reply again. What it stands for is covered by [`Namespace::committed`].
    Replay(Vec<u8>),
    /// It has not run.
    Fresh(Op<'n, E>),
}

impl<E: Engine> Namespace<E> {
    /// Begins an operation that must take effect at most once, as the `request` of a session's `slot`. Requests of a
    /// slot are numbered upwards from 1; a number lower than the last is refused, as it can only be a straggler.
    pub fn begin_once(
        &mut self,
        now: Timestamp,
        session: SessionId,
        slot: u32,
        request: u64,
    ) -> Result<Once<'_, E>, MetaError> {
        let slot = u16::try_from(slot).ok().filter(|slot| *slot < SLOTS_MAX);
        let slot = slot.ok_or(MetaError::Invalid("slot number"))?;
        match self.last_reply(session, slot)? {
            Some(last) if last.request == request => return Ok(Once::Replay(last.reply.clone())),
            Some(last) if last.request > request => {
                return Err(MetaError::Invalid("a later request of this slot has run"));
            }
            _ => {}
        }
        let shard = self.shard();
        let mut op = self.begin();
        op.once = Some(PendingReply { shard, session, slot, request, at_seconds: now.seconds });
        Ok(Once::Fresh(op))
    }

    fn last_reply(&mut self, session: SessionId, slot: u16) -> Result<Option<&StoredReply>, MetaError> {
        let shard = self.shard();
        let replies = &mut self.opens.sessions.entry(session).or_default().replies;
        let stored = match replies.entry(slot) {
            Slot::Occupied(known) => known.into_mut(),
            Slot::Vacant(unknown) => {
                let key = keys::reply(shard, session, slot);
                unknown.insert(match self.engine.get(&key)? {
                    Some(value) => StoredReply::decode(&key, &value)?,
                    None => StoredReply::default(),
                })
            }
        };
        Ok(Some(&*stored).filter(|stored| stored.request != 0))
    }

    /// Drops replies of a shard that are kept since before `before` and whose sessions are not known in this run of
    /// the server. Returns how many; call it now and then.
    pub fn drop_old_replies(&mut self, shard: u16, before: Timestamp) -> Result<usize, MetaError> {
        let mut dropped = 0;
        let mut after = vec![keys::REPLY];
        loop {
            let (page, _) = self.change(|op| op.drop_page_of_replies(shard, before, &after))?;
            let Some((last, dropped_here)) = page else { return Ok(dropped) };
            dropped += dropped_here;
            after = last;
        }
    }
}

impl<E: Engine> Op<'_, E> {
    /// The last key of the page after `after` and how many replies of it are dropped; `None` if the page is empty.
    fn drop_page_of_replies(
        &mut self,
        shard: u16,
        before: Timestamp,
        after: &[u8],
    ) -> Result<Option<(Vec<u8>, usize)>, MetaError> {
        let page = self.records_after(&[keys::REPLY], after, DROP_BATCH)?;
        let Some((last, _)) = page.last().cloned() else { return Ok(None) };
        let mut dropped = 0;
        for (key, value) in page {
            let Some((session, _)) = keys::session_of(&key).filter(|(_, of)| *of == shard) else { continue };
            let stored = StoredReply::decode(&key, &value)?;
            if stored.at_seconds < before.seconds && !self.ns.opens.sessions.contains_key(&session) {
                self.delete(key);
                dropped += 1;
            }
        }
        Ok(Some((last, dropped)))
    }
}
