//! A client's session: it lives while it has connections, and for a while after, so that a client that
//! reconnects finds its files open.
//!
//! ```text
//!   the last connection: broken or reset ──► 10 s of grace ──► the session is over
//!                        closed in order ──► the same; at once if the client said so in its greeting (locks of a process)
//! ```

use super::MetaPart;
use std::rc::Rc;
use std::time::Duration;
use weft_meta::{Engine, Locker, SessionId};

/// How long a client may stay away before what it held is given back.
pub(crate) const SESSION_GRACE: Duration = Duration::from_secs(10);

impl<E: Engine + 'static> MetaPart<E> {
    /// Notes a connection of this client. Returns the run of its session.
    pub fn session_connected(&self, session: SessionId, boot_id: [u8; 16]) -> u64 {
        let in_grace = self.namespace.borrow().in_grace();
        self.sessions.connected(session, boot_id, in_grace)
    }

    /// Notes the end of one, of this process of the session. When it was the last, the session is over if it `ends` with its
    /// connection, or once none has come within the grace.
    pub fn session_disconnected(self: &Rc<Self>, locker: Locker, ends: bool) {
        let session = locker.session;
        let Some(made) = self.sessions.disconnected(session) else {
            if ends {
                self.locker_gone(locker);
            }
            return;
        };
        if ends {
            return self.end_session(session, made);
        }
        let part = self.clone();
        weft_reactor::spawn(async move {
            weft_reactor::sleep(SESSION_GRACE).await;
            part.end_session(session, made);
        });
    }

    fn end_session(&self, session: SessionId, made: u64) {
        if !self.sessions.forget(session, made) {
            return;
        }
        self.end_watch(session, false);
        let ended = self.namespace.borrow_mut().change(|op| op.session_gone(session));
        if let Err(error) = ended {
            crate::log::warning!("meta", "cannot end the session of a client that is gone: {error}");
        }
        self.locks_of_gone(session);
        self.poke_garbage();
    }
}
