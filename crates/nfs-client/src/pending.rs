//! Calls under way.
//!
//! ```text
//!   start ──► sent at once where no other call is under way, else with the next test, wait or flush
//!   test      sends, receives, for all calls of the client; whether this one is over
//!   wait      the same until it is over; wait_all: of many calls, of one or several servers
//! ```
//!
//! Starting many calls and then waiting sends them with few system calls.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_onc_rpc::xdr::Reader;

use crate::error::{Decoded, Error, ErrorKind, Failure, Result};
use crate::procedure::Procedure;
use crate::results;
use crate::rpc;
use crate::session::{self, Answer, Shared};
use crate::status::Status;
use crate::types::{Read, Stable, Written};

/// What becomes of results: from their bytes, and the data of a READ that came.
pub(crate) type Take<T> = Box<dyn FnOnce(&mut Reader<'_>, Option<usize>) -> Decoded<T>>;

/// What a call is, for errors.
pub(crate) struct What {
    pub procedure: Procedure,
    pub path: Arc<str>,
    pub name: Option<Box<[u8]>>,
}

impl What {
    fn text(&self) -> String {
        let procedure = self.procedure.name();
        match &self.name {
            Some(name) => {
                format!("{procedure} {}/{}", self.path.trim_end_matches('/'), String::from_utf8_lossy(name))
            }
            None => format!("{procedure} {}", self.path),
        }
    }
}

/// A call under way. Dropping it ends it: a change that was sent may take effect.
#[must_use = "dropping it ends it"]
pub struct PendingCall<T> {
    session: Shared,
    number: u64,
    what: What,
    take: Option<Take<T>>,
}

impl<T> PendingCall<T> {
    pub(crate) fn new(session: &Shared, number: u64, what: What, take: Take<T>) -> PendingCall<T> {
        PendingCall { session: session.clone(), number, what, take: Some(take) }
    }

    /// Whether it is over, as far as is known without looking at the connection.
    pub fn is_over(&self) -> bool {
        self.session.borrow().is_done(self.number)
    }

    /// Moves all calls of the client forward without waiting; whether this one is over.
    pub fn test(&mut self) -> bool {
        if !self.is_over() {
            self.session.borrow_mut().progress();
        }
        self.is_over()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What the server answered, or that it did not answer in time.
    pub fn wait(mut self) -> Result<T> {
        let answer = {
            let mut session = self.session.borrow_mut();
            session.wait(self.number);
            session.take(self.number)
        };
        let take = self.take.take().expect("a call is waited for once");
        let cancelled = || Err(Failure::new(ErrorKind::Invalid, "it was cancelled"));
        self.result(answer.unwrap_or_else(cancelled), take).map_err(|failure| self.error(failure))
    }

    fn result(
        &self,
        answer: std::result::Result<Answer, Failure>,
        take: Take<T>,
    ) -> std::result::Result<T, Failure> {
        let Answer { reply, data_bytes, sends } = answer?;
        let mut reader = Reader::new(rpc::decode_reply(&reply)?);
        // NULL alone has no status.
        let status = match self.what.procedure {
            Procedure::Null => Ok(()),
            _ => results::status(&mut reader)?,
        };
        if let Err(status) = status {
            return Err(self.refused(status, sends));
        }
        Ok(take(&mut reader, data_bytes)?)
    }

    fn refused(&self, status: Status, sends: u32) -> Failure {
        let mut failure = Failure::of_status(status);
        let is_effect = [Status::EXIST, Status::NOENT].contains(&status);
        if sends > 1 && is_effect && self.what.procedure.is_changed_by_repetition() {
            failure.detail.push_str(
                "; the call was repeated after the connection was lost, and this may be the effect of the first",
            );
        }
        failure
    }

    fn error(&self, failure: Failure) -> Error {
        failure.of(self.what.text(), self.session.borrow().server())
    }
}

impl<T> Drop for PendingCall<T> {
    fn drop(&mut self) {
        self.session.borrow_mut().cancel(self.number);
    }
}

/// A READ under way that owns its buffer.
#[must_use = "dropping it ends it"]
pub struct PendingRead {
    // The call comes first, for it must be over when the buffer is freed.
    call: PendingCall<Read>,
    buffer: Vec<u8>,
}

impl PendingRead {
    pub(crate) fn new(call: PendingCall<Read>, buffer: Vec<u8>) -> PendingRead {
        PendingRead { call, buffer }
    }

    /// See [`PendingCall::test`].
    pub fn test(&mut self) -> bool {
        self.call.test()
    }

    /// Waits for its end: what was read, and the buffer.
    ///
    /// # Errors
    /// Those of [`PendingCall::wait`].
    pub fn wait(self) -> Result<(Read, Vec<u8>)> {
        Ok((self.call.wait()?, self.buffer))
    }
}

/// A WRITE under way that owns its buffer.
#[must_use = "dropping it ends it"]
pub struct PendingWrite {
    // The call comes first, for it must be over when the buffer is freed.
    call: PendingCall<Written>,
    buffer: Vec<u8>,
}

impl PendingWrite {
    pub(crate) fn new(call: PendingCall<Written>, buffer: Vec<u8>) -> PendingWrite {
        PendingWrite { call, buffer }
    }

    /// See [`PendingCall::test`].
    pub fn test(&mut self) -> bool {
        self.call.test()
    }

    /// Waits for its end: what was written, and the buffer.
    ///
    /// # Errors
    /// Those of [`PendingCall::wait`].
    pub fn wait(self) -> Result<(Written, Vec<u8>)> {
        Ok((self.call.wait()?, self.buffer))
    }
}

/// Waits for all, moving all of them forward together; their results in the same order.
pub fn wait_all<T>(calls: Vec<PendingCall<T>>) -> Vec<Result<T>> {
    let mut sessions: Vec<Shared> = Vec::new();
    for call in &calls {
        if !sessions.iter().any(|known| Rc::ptr_eq(known, &call.session)) {
            sessions.push(call.session.clone());
        }
    }
    sessions.iter().for_each(|session| session.borrow_mut().send());
    while calls.iter().any(|call| !call.is_over()) {
        let mut longest = Duration::MAX;
        let mut entries = Vec::new();
        for session in &sessions {
            let (entry, longest_here) = session.borrow().before_poll();
            entries.extend(entry);
            longest = longest.min(longest_here);
        }
        session::poll(&mut entries, longest);
        sessions.iter().for_each(|session| session.borrow_mut().progress());
    }
    calls.into_iter().map(PendingCall::wait).collect()
}

impl Stable {
    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}
