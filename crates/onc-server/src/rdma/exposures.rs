//! Which replies a client may read, and since when (RFC 5666: read chunks of a reply, and RDMA_DONE). Pure.
//!
//! ```text
//!   reply 7, 1 MiB ─ begin ─► { 7: memory } ─ done(7) ─► memory, to be given back
//!                                  │            done(7) again, done(8): the client makes it up
//!                                  └ oldest: since when the client owes an answer
//! ```

use std::collections::BTreeMap;
use std::time::Instant;

/// Replies that a client may read, by the number of their calls.
pub(super) struct Exposures<T> {
    replies: BTreeMap<u32, (Instant, T)>,
}

/// A reply of this number is exposed already.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InUse;

impl<T> Default for Exposures<T> {
    fn default() -> Self {
        Exposures { replies: BTreeMap::new() }
    }
}

impl<T> Exposures<T> {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.replies.len()
    }

    /// Whether a reply of this number is among them.
    pub(super) fn has(&self, xid: u32) -> bool {
        self.replies.contains_key(&xid)
    }

    /// From `now` on the client may read a reply, which is in `memory`.
    pub(super) fn begin(&mut self, xid: u32, now: Instant, memory: T) -> Result<(), InUse> {
        if self.has(xid) {
            return Err(InUse);
        }
        self.replies.insert(xid, (now, memory));
        Ok(())
    }

    /// The client has read a reply: its memory. `None` if there is none of this number.
    pub(super) fn done(&mut self, xid: u32) -> Option<T> {
        self.replies.remove(&xid).map(|(_, memory)| memory)
    }

    /// Since when the oldest of them is exposed.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.replies.values().map(|(since, _)| *since).min()
    }

    /// Takes out all.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        std::mem::take(&mut self.replies).into_values().map(|(_, memory)| memory).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weft_onc_rpc::rdma::{Body, RdmaHeader};

    #[test]
    fn a_reply_is_exposed_once_and_ends_once() {
        let (begun, mut exposures) = (Instant::now(), Exposures::default());
        let later = begun + Duration::from_secs(1);
        assert_eq!((exposures.done(7), exposures.oldest()), (None, None), "before the reply");
        exposures.begin(7, later, "seven").unwrap();
        exposures.begin(8, begun, "eight").unwrap();
        assert_eq!(exposures.begin(7, later, "another"), Err(InUse));
        assert_eq!((exposures.count(), exposures.oldest()), (2, Some(begun)));
        assert_eq!((exposures.done(8), exposures.done(8)), (Some("eight"), None), "once");
        assert_eq!((exposures.oldest(), exposures.take_all()), (Some(later), vec!["seven"]));
        assert_eq!(exposures.count(), 0);
    }

    /// What a client sends ends what it names, and nothing else.
    #[test]
    fn any_messages_end_only_what_they_name() {
        let done = |xid| RdmaHeader { xid, credits: 1, body: Body::Done }.write().into_bytes();
        weft_test_fuzz::run("onc-rdma-done", &[done(1), done(2), done(9)], |bytes| {
            let mut exposures = Exposures::default();
            (0..4).for_each(|xid| exposures.begin(xid, Instant::now(), xid).unwrap());
            let named = match RdmaHeader::decode(bytes) {
                Ok((RdmaHeader { xid, body: Body::Done, .. }, _)) => Some((xid, exposures.done(xid))),
                _ => None,
            };
            let ended = named.and_then(|(xid, memory)| memory.inspect(|memory| assert_eq!(*memory, xid)));
            assert_eq!(exposures.count() + ended.iter().count(), 4);
            assert!(ended.is_none_or(|xid| !exposures.has(xid) && exposures.done(xid).is_none()));
        });
    }
}
