//! The sessions that may hold leases. They are stored, so that a server that was killed knows on whom to wait before it changes
//! anything: on what each of them holds a lease, it does not know any more.

use crate::caller::SessionId;
use crate::engine::Engine;
use crate::keys;
use crate::namespace::Namespace;
use crate::op::Op;
use crate::{EngineError, MetaError};

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
        let from = vec![keys::WATCHER];
        let mut sessions = Vec::new();
        for pair in self.engine().scan(&from, &keys::after_prefix(&from)) {
            let (key, _) = pair?;
            let damaged = || EngineError::Format(format!("no session in {}", keys::readable(&key)));
            let (session, of) = keys::session_of(&key).ok_or_else(damaged)?;
            sessions.extend((of == shard).then_some(session));
        }
        Ok(sessions)
    }
}
