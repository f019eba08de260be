//! Clients that cache under leases, and how they hear of changes before these are acknowledged to their author.
//!
//! ```text
//!   mount B                      server                              mount A
//!   Lookup d/x ───────────────►  lease: B on d, and on x
//!   Watch(epoch 5, 0) ────────►  waits …
//!                                                        ◄────────── Unlink d/x      committed; B has leases
//!             ◄── changes 1-2 ─                                      (A waits)
//!   forgets d/x
//!   Watch(epoch 5, 2) ────────►  acknowledged ──────────────────────► reply to Unlink
//! ```
//!
//! `watchers.rs` has the rules and their bounds.

use super::penalties::Party;
use super::watchers::nothing;
use super::{Call, MetaPart};
use crate::answer::{Answer, Refusal};
use crate::spent::{Part, during};
use std::time::Duration;
use weft_meta::{Engine, MetaError, SessionId};
use weft_wire::messages::WatchRequest;

/// A watch is answered at the latest after this, so that both ends know that the other is there.
const HEARTBEAT: Duration = Duration::from_secs(2);

impl<E: Engine + 'static> MetaPart<E> {
    /// Sends a client what others have changed of what it has leases on; waits for it where there is nothing.
    pub async fn watch(&self, call: &Call, request: WatchRequest) -> Result<Answer, Refusal> {
        let session = call.session;
        if request.end {
            self.end_watch(session, true);
            return Ok(Answer::of(&nothing(&request)));
        }
        if self.watchers.has_ended(session) {
            return Ok(Answer::of(&nothing(&request)));
        }
        let party = Party { holder: call.holder, is_user: !call.trusted_with_sizes };
        self.watchers.check_silence(session, party, &request)?;
        if !self.watchers.watches(session) {
            self.namespace.borrow_mut().change(|op| {
                op.add_watcher(session);
                Ok::<_, MetaError>(())
            })?;
            self.watchers.add(session, party);
        }
        let reply = match self.watchers.turn(session, &request) {
            Ok(reply) => reply,
            Err(bell) => {
                // The client has forgotten what it cached under another run of this server.
                self.watchers.no_longer_awaited(session);
                if !request.at_once {
                    let _ = weft_reactor::timeout(HEARTBEAT, bell.wait()).await;
                    self.watchers.check_silence(session, party, &request)?;
                }
                self.watchers.reply(session, &request)
            }
        };
        Ok(Answer::of(&reply))
    }

    /// Leases that ran out since the start, and keys whose clients get none.
    pub fn penalty_counts(&self) -> (u64, usize) {
        self.watchers.penalty_counts()
    }

    /// The session watches no longer.
    pub(super) fn end_watch(&self, session: SessionId, caches_nothing: bool) {
        let watched = self.watchers.watches(session);
        self.watchers.remove(session, caches_nothing);
        self.watchers.note_end(session, caches_nothing);
        if caches_nothing {
            self.watchers.no_longer_awaited(session);
        }
        if !watched {
            return;
        }
        self.remove_watchers(&[session]);
    }

    fn remove_watchers(&self, sessions: &[SessionId]) {
        let removed = self.namespace.borrow_mut().change(|op| {
            sessions.iter().for_each(|session| op.remove_watcher(*session));
            Ok::<_, MetaError>(())
        });
        if let Err(error) = removed {
            crate::log::warning!("meta", "cannot forget clients that watched: {error}");
        }
    }

    /// Forgets the clients that watched a shard before a restart and never came back; their leases are over.
    pub(super) fn forget_old_watchers(&self, shard: u16) {
        let mut noted = self.namespace.borrow().watchers(shard).unwrap_or_default();
        noted.retain(|session| !self.watchers.watches(*session));
        self.remove_watchers(&noted);
    }

    /// Something was changed, nobody says what: waits until no client caches anything of before.
    pub(super) async fn reset_all_clients(&self) {
        during(Part::Clients, self.watchers.all_returned()).await;
        during(Part::Mounts, self.watchers.acknowledged(self.watchers.reset_all())).await;
    }
}
