//! Files that were closed, of which the metadata server is still to be told: many of them in one message.
//!
//! ```text
//!   File::close        ─────────────────────────────────────────────► Close: inode 7
//!   File::close_later  ─► inode 8 ┐
//!   File::close_later  ─► inode 9 ┤ Client::send_closes ────────────► Close: inodes 8 and 9
//!                                 ├ the sixteenth of them
//!                                 ├ inode 8 or 9 is opened or cut ──► Close, and behind it on the same connection the Open
//!                                 └ the last handle of the client goes
//! ```
//!
//! What waits counts as open at the server, and as closed here: after a restart of the server nobody comes
//! back for it, and the server, in which it does not count then, does not end another open of the file
//! instead. Nothing that is waited for may wait here: no report of what was written, no lock. If the process
//! is killed, its session ends, and the server closes what it had open.
//!
//! A file that was open for writing counts there as one that somebody may be writing. That costs who opens it
//! or asks for it the way to the I/O servers, or its cached pages; so it is closed before it is opened here
//! again.

use std::sync::{Arc, Mutex};

use weft_wire::Owned;
use weft_wire::limits::CLOSES_PER_MESSAGE_MAX;
use weft_wire::messages::{CloseRequest, ClosedFile, rights};

use crate::batch::{self, Batch};
use crate::call::{Call, Guard};
use crate::error::Error;
use crate::rpc::Rpc;
use crate::wait::lock;

/// How many wait at most.
const WAITING_MAX: usize = 16;
const _: () = assert!(WAITING_MAX <= CLOSES_PER_MESSAGE_MAX, "they go in one message");

/// Those of one session that wait.
#[derive(Default)]
pub(crate) struct Closing(Mutex<Vec<ClosedFile>>);

impl Closing {
    /// Adds one. Returns how many wait then, and all of them where it is time to send them.
    fn add(&self, file: ClosedFile) -> Result<usize, CloseRequest> {
        let mut waiting = lock(&self.0);
        waiting.push(file);
        if waiting.len() < WAITING_MAX { Ok(waiting.len()) } else { Err(all_of(&mut waiting)) }
    }

    /// Takes all of them.
    fn take(&self) -> Option<CloseRequest> {
        let mut waiting = lock(&self.0);
        (!waiting.is_empty()).then(|| all_of(&mut waiting))
    }

    /// Takes all of them if `ino` is one that was open for writing.
    pub(crate) fn take_if_written(&self, ino: u64) -> Option<CloseRequest> {
        let mut waiting = lock(&self.0);
        let was_written = |file: &ClosedFile| file.ino == ino && file.access & rights::WRITE != 0;
        waiting.iter().any(was_written).then(|| all_of(&mut waiting))
    }
}

fn all_of(waiting: &mut Vec<ClosedFile>) -> CloseRequest {
    CloseRequest { files: std::mem::take(waiting) }
}

impl Closing {
    /// Leaves a file to be closed with others. Returns how many wait now.
    pub(crate) fn leave(&self, rpc: &Rpc, file: ClosedFile) -> usize {
        match self.add(file) {
            Ok(waiting) => waiting,
            Err(request) => {
                send(rpc, request);
                0
            }
        }
    }

    /// Sends those that wait. The reply is not waited for.
    pub(crate) fn send_all(&self, rpc: &Rpc) {
        if let Some(request) = self.take() {
            send(rpc, request);
        }
    }

    /// Asks the metadata server for something that concerns the inode `ino`, behind the end of its opens for
    /// writing that wait: one round trip.
    pub(crate) fn ask_behind<R: Owned>(
        &self,
        rpc: &Rpc,
        ino: u64,
        request: &R,
        guard: Option<Arc<dyn Guard>>,
    ) -> Result<R::Reply, Error> {
        const CLOSES: usize = 0;
        const ASKED: usize = 1;
        // One connection, on which requests are done in the order in which they are sent.
        let mut batch = Batch::default();
        if let Some(closes) = self.take_if_written(ino) {
            push(rpc, &mut batch, closes, CLOSES);
        }
        batch.push(Call::to_owner(rpc, request, ASKED).guarded(guard));
        let mut reply = None;
        while let Some(finished) = batch.wait(rpc) {
            // Of a close that failed nobody is notified.
            if finished.tag == ASKED {
                reply = Some(finished.decode::<R>(rpc));
            }
        }
        reply.expect("every request ends")
    }
}

/// Adds closes to a batch: one message to each metadata server that owns some of the inodes.
pub(crate) fn push(rpc: &Rpc, batch: &mut Batch, closes: CloseRequest, tag: usize) {
    let mut files = closes.files;
    while let Some(first) = files.first() {
        let owner = rpc.owner_of(first.ino);
        let others = files.extract_if(.., |file| rpc.owner_of(file.ino) != owner).collect();
        batch.push(Call::of(rpc, owner, &CloseRequest { files }, tag));
        files = others;
    }
}

/// Sends closes without waiting for the replies.
pub(crate) fn send(rpc: &Rpc, closes: CloseRequest) {
    batch::reap(rpc);
    let mut batch = Batch::default();
    push(rpc, &mut batch, closes, 0);
    batch.detach(rpc);
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::messages::OpenId;

    fn file(ino: u64, access: u32) -> ClosedFile {
        ClosedFile { ino, access, report: None, id: OpenId { run: 1, number: ino } }
    }

    fn inos(request: CloseRequest) -> Vec<u64> {
        request.files.iter().map(|file| file.ino).collect()
    }

    #[test]
    fn sixteen_are_a_message() {
        let closing = Closing::default();
        for ino in 1..WAITING_MAX {
            assert_eq!(closing.add(file(ino as u64, rights::READ)).unwrap(), ino);
        }
        let all = closing.add(file(16, rights::READ)).unwrap_err();
        assert_eq!(inos(all), (1..=16).collect::<Vec<_>>());
        assert!(closing.take().is_none());
    }

    #[test]
    fn one_that_was_written_and_is_opened_again_takes_the_others_with_it() {
        let closing = Closing::default();
        closing.add(file(7, rights::READ)).unwrap();
        closing.add(file(8, rights::READ | rights::WRITE)).unwrap();
        assert!(closing.take_if_written(7).is_none() && closing.take_if_written(9).is_none());
        assert_eq!(inos(closing.take_if_written(8).unwrap()), [7, 8]);
        assert!(closing.take_if_written(8).is_none());
    }
}
