//! Counters of open files: a number that all who share an open add to, and each is told what it was before.
//!
//! ```text
//!   rank 0  opens f, passes the open on        counter (f, session of rank 0, number of its open): 0, not stored
//!   rank 2  adds 10  ─► 0                      10, in the batch of the reply
//!   rank 1  adds 5   ─► 10                     15
//!   rank 0  closes                             removed
//! ```
//!
//! The counter is in the store, so a server that was killed gives no number twice, and a repeated request gets the number
//! it had. It belongs to one open, and ends with it: with its close, or with the last open of the file that its session has,
//! whatever their numbers are; with the session; with the inode; at the latest when nobody has come back for the open after
//! a restart. Until then, in the time of grace, it is there also for who comes back before the session of the open; and it does
//! not end with a session that is given up then and may come back again.

use crate::MetaError;
use crate::caller::SessionId;
use crate::counters::encode_counter;
use crate::engine::Engine;
use crate::keys;
use crate::namespace::Namespace;
use crate::op::Op;
use crate::open_counter::{CounterChange, CounterId};
use crate::opens::Effect;
use std::ops::RangeInclusive;
use weft_layout::shard_of;

/// Counters that one session may have of one file.
const COUNTERS_MAX: usize = 1024;

impl<E: Engine> Op<'_, E> {
    /// Changes the counter of an open, and returns what it was before. `Stale` if the session of the open does not have the
    /// file open, or if there is no counter and it is not to begin (`begins`): then it may have been lost with the session.
    pub fn fetch_counter(
        &mut self,
        id: CounterId,
        change: CounterChange,
        begins: bool,
    ) -> Result<u64, MetaError> {
        self.attempt(|op| {
            op.need(id.ino)?;
            if !op.ns.grace && !op.ns.opens.is_opened_by(id.ino, id.session) {
                return Err(MetaError::Stale);
            }
            let counters = &op.ns.opens.counters;
            let known = counters.get(&id).copied();
            if known.is_none() && !begins {
                return Err(MetaError::Stale);
            }
            let others = counters.range(CounterId::all_by(id.ino, id.session));
            if known.is_none() && others.count() >= COUNTERS_MAX {
                return Err(MetaError::TooManyCounters);
            }
            let before = known.unwrap_or(0);
            let after = change.after(before).ok_or(MetaError::Counter { before, change })?;
            if after != before {
                op.set_counter(id, Some(after));
            }
            Ok(before)
        })
    }

    /// Ends the counter of an open, if it has one.
    pub fn drop_counter(&mut self, id: CounterId) {
        if self.ns.opens.counters.contains_key(&id) {
            self.set_counter(id, None);
        }
    }

    /// Ends the counters of a session's opens of a file.
    pub(crate) fn drop_counters_by(&mut self, ino: u64, session: SessionId) {
        self.drop_counters(CounterId::all_by(ino, session));
    }

    /// Ends the counters of all opens of a file.
    pub(crate) fn drop_counters_of(&mut self, ino: u64) {
        self.drop_counters(CounterId::all_of(ino));
    }

    fn drop_counters(&mut self, range: RangeInclusive<CounterId>) {
        let ended: Vec<CounterId> = self.ns.opens.counters.range(range).map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| self.set_counter(id, None));
    }

    fn set_counter(&mut self, id: CounterId, value: Option<u64>) {
        match value {
            Some(value) => self.put(keys::counter(&id), encode_counter(value)),
            None => self.delete(keys::counter(&id)),
        }
        self.effect(Effect::SetCounter { id, value });
    }
}

impl<E: Engine> Namespace<E> {
    /// Ends the counters of a shard's opens that nobody came back for after a restart.
    pub(crate) fn drop_old_counters(&mut self, shard: u16) -> Result<(), MetaError> {
        let opens = &self.opens;
        let is_old = |id: &CounterId| shard_of(id.ino) == shard && !opens.is_opened_by(id.ino, id.session);
        let old: Vec<CounterId> = opens.counters.keys().copied().filter(is_old).collect();
        let drop_counters = |op: &mut Op<'_, E>| {
            old.iter().for_each(|id| op.drop_counter(*id));
            Ok(())
        };
        self.change(drop_counters).map(drop)
    }
}
