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
//! nothing in the store (an open for reading) are kept in memory only, as is what they change. What is kept may say less than the reply did:
//! of a removal, only that it was done.

use crate::caller::SessionId;
use crate::codec::Reader;
use crate::engine::Batch;
use crate::{EngineError, MetaError, keys};

const REPLY_VERSION: u8 = 1;
/// Bytes a kept reply may have.
const REPLY_BYTES_MAX: usize = 16 * 1024;

/// The last request of a slot; number 0 where there was none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredReply {
    pub request: u64,
    pub at_seconds: i64,
    pub reply: Vec<u8>,
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
    pub shard: u16,
    pub session: SessionId,
    pub slot: u16,
    pub request: u64,
    pub at_seconds: i64,
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
        batch.put_with(keys::reply(self.shard, self.session, self.slot), |out| {
            out.u8(REPLY_VERSION);
            out.u64(self.request);
            out.i64(self.at_seconds);
            out.bytes.extend_from_slice(reply);
        });
    }

    /// Keeps `reply` in memory, in place of the slot's last one.
    pub fn keep(&self, reply: &[u8], kept: &mut StoredReply) {
        kept.request = self.request;
        kept.at_seconds = self.at_seconds;
        kept.reply.clear();
        kept.reply.extend_from_slice(reply);
    }
}
