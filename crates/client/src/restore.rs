//! What a metadata server is told on a new connection where it has started anew, or has not seen this client
//! for a while: which files are open and what is locked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_rpc::rpc::Restore;
use weft_transport::Link;

use crate::error::Error;
use crate::greet::ask;
use crate::held::{Held, HeldFiles};
use crate::lock_book::LockBook;
use crate::session::Session;
use weft_wire::Status;

/// See the module.
pub(crate) struct Reopener {
    pub held: Arc<HeldFiles>,
    pub locks: Arc<LockBook>,
}

impl Restore for Reopener {
    fn restore(
        &self,
        session: &Session,
        server: usize,
        link: &mut dyn Link,
        run: u64,
        timeout: Duration,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + timeout;
        let is_lost =
            |held: &Held| session.owner_of(held.ino) == server && held.id().run != run && !held.is_covered();
        for held in self.held.all().into_iter().filter(|held| is_lost(held)) {
            match ask(link, session.next_request_id(), &held.reopening(), deadline) {
                Ok(reply) => held.reopened(reply),
                Err(error) if error.status() == Some(Status::Stale) => held.note_forgotten(),
                // The next operation on the file gets the error.
                Err(error) if error.status().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        self.locks.claim(session, server, link, Instant::now() + timeout)
    }
}
