//! Exactly once: the reply of a session's last request per slot is kept in the batch of its effect.
//!
//! A client numbers its slots (one request in flight in each) and the requests of a slot. When it does not know
//! whether a request arrived (the connection broke, the server was killed), it repeats it with the same number and
//! gets the reply of the first time:
//!
//! ```text
//!   create f   slot 3, request 41   -> batch { inode, entries, r<session>3 -> 41 + reply }   server killed here
//!   create f   slot 3, request 41   -> Replay(reply), instead of "exists"
//!   unlink f   slot 3, request 42   -> Fresh(op)
//! ```
//!
//! Failures have no effect and are not kept: a repetition simply runs again. Replies of operations that change
//! nothing in the store (an open for reading) are kept in memory only, as is what they change.

use crate::codec::Reader;
use crate::engine::{Batch, Engine};
use crate::inode::{SessionId, Timestamp};
use crate::namespace::{Namespace, Op};
use crate::opens::Session;
use crate::{EngineError, MetaError, keys};
use std::collections::hash_map::Entry as Slot;

const REPLY_VERSION: u8 = 1;
/// Slots a session may have.
const SLOTS_MAX: u32 = 1024;
/// Bytes a kept reply may have.
const REPLY_BYTES_MAX: usize = 16 * 1024;
/// Old replies dropped in one batch.
const DROP_BATCH: usize = 256;

/// What became of a request that is to run once.
pub enum Once<'n, E: Engine> {
    /// It has run: send this reply again. What it stands for is covered by [`Namespace::committed`].
    Replay(Vec<u8>),
    /// It has not run.
    Fresh(Op<'n, E>),
}

/// The last request of a slot; number 0 where there was none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredReply {
    request: u64,
    at_seconds: i64,
    reply: Vec<u8>,
}

impl StoredReply {
    // Fuzzed by records: fsck/tests.rs
    pub fn decode(key: &[u8], value: &[u8]) -> Result<StoredReply, EngineError> {
        let mut from = Reader::with_version(key, value, REPLY_VERSION)?;
        let request = from.u64("request")?;
        Ok(StoredReply { request, at_seconds: from.i64("time")?, reply: from.remainder().to_vec() })
    }
}

/// The request an operation answers, if it is to run once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingReply {
    pub session: SessionId,
    pub slot: u32,
    request: u64,
    at_seconds: i64,
}

impl PendingReply {
    /// Whether `reply` can be kept.
    pub fn check(&self, reply: &[u8]) -> Result<(), MetaError> {
        match reply.len() > REPLY_BYTES_MAX {
            true => Err(MetaError::Invalid("the reply is too long to be kept")),
            false => Ok(()),
        }
    }

    /// Keeps `reply` in the store.
    pub fn store(&self, reply: &[u8], batch: &mut Batch) {
        batch.put_with(keys::reply(self.session, self.slot), |out| {
            out.u8(REPLY_VERSION);
            out.u64(self.request);
            out.i64(self.at_seconds);
            out.bytes.extend_from_slice(reply);
        });
    }

    /// Keeps `reply` in memory, in place of the slot's last one.
    pub fn keep(&self, reply: &[u8], session: &mut Session) {
        let kept = session.replies.entry(self.slot).or_default();
        kept.request = self.request;
        kept.at_seconds = self.at_seconds;
        kept.reply.clear();
        kept.reply.extend_from_slice(reply);
    }
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
        if slot >= SLOTS_MAX {
            return Err(MetaError::Invalid("slot number"));
        }
        match self.last_reply(session, slot)? {
            Some(last) if last.request == request => return Ok(Once::Replay(last.reply.clone())),
            Some(last) if last.request > request => {
                return Err(MetaError::Invalid("a later request of this slot has run"));
            }
            _ => {}
        }
        let mut op = self.begin();
        op.once = Some(PendingReply { session, slot, request, at_seconds: now.seconds });
        Ok(Once::Fresh(op))
    }

    fn last_reply(&mut self, session: SessionId, slot: u32) -> Result<Option<&StoredReply>, MetaError> {
        let replies = &mut self.opens.sessions.entry(session).or_default().replies;
        let stored = match replies.entry(slot) {
            Slot::Occupied(known) => known.into_mut(),
            Slot::Vacant(unknown) => {
                let key = keys::reply(session, slot);
                unknown.insert(match self.engine.get(&key)? {
                    Some(value) => StoredReply::decode(&key, &value)?,
                    None => StoredReply::default(),
                })
            }
        };
        Ok(Some(&*stored).filter(|stored| stored.request != 0))
    }

    /// Drops replies kept since before `before` whose sessions are not known in this run of the server. Returns how
    /// many; call it now and then.
    pub fn drop_old_replies(&mut self, before: Timestamp) -> Result<usize, MetaError> {
        let mut dropped = 0;
        let mut after = vec![keys::REPLY];
        loop {
            let mut op = self.begin();
            let page = op.records_after(&[keys::REPLY], &after, DROP_BATCH)?;
            let Some((last, _)) = page.last() else { return Ok(dropped) };
            after = last.clone();
            for (key, value) in page {
                let stored = StoredReply::decode(&key, &value)?;
                let known = key
                    .get(1..17)
                    .and_then(|id| id.try_into().ok())
                    .is_some_and(|id| op.ns.opens.sessions.contains_key(&SessionId(id)));
                if stored.at_seconds < before.seconds && !known {
                    op.delete(key);
                    dropped += 1;
                }
            }
            op.commit()?;
        }
    }
}
