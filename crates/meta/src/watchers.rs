//! The sessions that may hold leases. They are stored, so that a server that was killed knows on whom to wait before it changes
//! anything: on what each of them holds a lease, it does not know any more.

use crate::MetaError;
use crate::caller::SessionId;
use crate::engine::Engine;
use crate::keys;
use crate::namespace::Namespace;
use crate::op::Op;

const WATCHER_VERSION: u8 = 1;

impl<E: Engine> Op<'_, E> {
    /// Notes that a session watches.
    pub fn add_watcher(&mut self, session: SessionId) {
        self.put(keys::watcher(self.ns.shard(), session), vec![WATCHER_VERSION]);
    }

    /// It does no longer.
    pub fn remove_watcher(&mut self, session: SessionId) {
        self.delete(keys::watcher(self.ns.shard(), session));
    }
}

impl<E: Engine> Namespace<E> {
    /// All sessions that watch a shard, as far as was noted.
    pub fn watchers(&self, shard: u16) -> Result<Vec<SessionId>, MetaError> {
        self.noted(keys::WATCHER, shard, keys::session_of)
    }
}
