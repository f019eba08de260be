//! The processes that may hold locks. They are stored, so that a server that was killed knows who may come back for some: when all
//! have, nobody else has to wait for the time of grace to end.
//!
//! ```text
//!   the first lock of a process ─► y <session> <shard> <member> ─► deleted with its session, or at an orderly end if it has none
//! ```

use crate::MetaError;
use crate::caller::Locker;
use crate::engine::Engine;
use crate::keys;
use crate::namespace::Namespace;
use crate::op::Op;

const LOCKER_VERSION: u8 = 1;

impl<E: Engine> Op<'_, E> {
    /// Notes that a process may hold locks.
    pub fn add_locker(&mut self, locker: Locker) {
        self.put(keys::locker(self.ns.shard(), &locker).to_vec(), vec![LOCKER_VERSION]);
    }

    /// It holds none any more.
    pub fn remove_locker(&mut self, locker: Locker) {
        self.delete(keys::locker(self.ns.shard(), &locker).to_vec());
    }

    /// Nobody holds locks of before the release that notes who does.
    pub fn forget_unnamed_lockers(&mut self) {
        self.delete(keys::SUPER_LOCKS);
    }
}

impl<E: Engine> Namespace<E> {
    /// All processes that may hold locks, as far as was noted.
    ///
    /// # Errors
    /// If the store cannot be read, or has a record without a session.
    pub fn lockers(&self, shard: u16) -> Result<Vec<Locker>, MetaError> {
        self.noted(keys::LOCKER, shard, keys::locker_of)
    }

    /// Whether a release that did not note who locks has left word that somebody may.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn has_unnamed_lockers(&self) -> Result<bool, MetaError> {
        Ok(self.engine().get(keys::SUPER_LOCKS)?.is_some())
    }
}
