//! Metadata calls that go on while the program does something else.
//!
//! ```text
//!   Client::start_stat ─► metadata server ─► its reply ─► may somebody be writing? ─► sizes ─► over
//!                         └ sent at once                                              └ sizing.rs
//! ```
//!
//! There is no thread behind them: they move when the program tests them or waits. One thread may have
//! hundreds under way. Where the exactly-once slots or a connection's credits do not suffice for all, the
//! rest go as others are answered.
//!
//! Many are waited for together, or from an event loop, as `progress.rs` says.

use std::sync::Arc;
use std::time::Instant;

use weft_transport::are_requests_held;
use weft_wire::Owned;
use weft_wire::messages::{Attr, Caller, CloseRequest};

use crate::Result;
use crate::batch::{self, Batch, Finished};
use crate::call::Call;
use crate::closing;
use crate::deadline::{self, Operation};
use crate::error::{Error, ErrorKind};
use crate::fork;
use crate::inner::Inner;
use crate::progress::Progress;
use crate::rpc::Rpc;
use crate::size;
use crate::sizing::Sizing;

/// The tag of the request whose reply matters, and of closes that go ahead of it.
const ASKED: usize = 0;
const CLOSES: usize = 1;

/// A metadata call under way.
///
/// Dropping it ends it: what was not sent is not sent, and a change that was sent may take effect. An open
/// that was sent is waited for, so that the file is closed again. In a forked child it ends with an error;
/// the parent goes on with it.
#[must_use = "dropping it ends it"]
pub struct PendingCall<T> {
    step: Step<T>,
    batch: Batch,
    inner: Arc<Inner>,
    caller: Arc<Caller>,
    /// The process that began it.
    generation: u64,
    /// When it is given up.
    end: Option<Instant>,
    /// What it is on, for errors.
    on: String,
    /// What it leads to has to be closed.
    is_open: bool,
    attrs: Attrs<T>,
}

/// What a reply's bytes become.
type Take<T> = Box<dyn FnOnce(Finished) -> Result<T> + Send>;
/// The attributes in a result, whose sizes are brought up to date.
type Attrs<T> = fn(&mut T) -> Vec<&mut Attr>;

enum Step<T> {
    Asking(Take<T>),
    Sizing {
        value: T,
        sizing: Box<Sizing>,
        taken: Result<()>,
    },
    Over(Result<T>),
    /// While it is looked at, and when the result was taken.
    Taken,
}

/// What a call consists of.
pub(crate) struct Plan<T, R: Owned> {
    pub request: R,
    /// Sent ahead on the same connection.
    pub closes: Option<CloseRequest>,
    pub on: String,
    pub take: Box<dyn FnOnce(R::Reply) -> Result<T> + Send>,
    pub attrs: Attrs<T>,
    pub is_open: bool,
}

impl<T, R: Owned> Plan<T, R> {
    /// One request whose result is without sizes; errors name what it is `on`.
    pub(crate) fn new(
        request: R,
        on: &dyn std::fmt::Display,
        take: impl FnOnce(R::Reply) -> Result<T> + Send + 'static,
    ) -> Plan<T, R> {
        let (on, take) = (on.to_string(), Box::new(take));
        Plan { request, closes: None, on, take, attrs: |_| Vec::new(), is_open: false }
    }
}

impl<T> PendingCall<T> {
    /// Sends the request, if that takes no time.
    pub(crate) fn begin<R: Owned + 'static>(
        inner: &Arc<Inner>,
        caller: &Arc<Caller>,
        plan: Plan<T, R>,
    ) -> PendingCall<T>
    where
        T: 'static,
    {
        let Plan { request, closes, on, take, attrs, is_open } = plan;
        let mut batch = Batch::sharing();
        if let Some(closes) = closes {
            closing::push(inner, &mut batch, closes, CLOSES);
        }
        batch.push(Call::to_owner(inner, &request, ASKED));
        let of = inner.clone();
        let take: Take<T> = Box::new(move |finished| take(finished.decode::<R>(&of)?));
        let end = deadline::end(inner.options.timeout());
        let (inner, caller, generation) = (inner.clone(), caller.clone(), fork::generation());
        let mut call = PendingCall {
            step: Step::Asking(take),
            batch,
            inner,
            caller,
            generation,
            end,
            on,
            is_open,
            attrs,
        };
        if are_requests_held() {
            call.advance();
        } else {
            call.test();
        }
        call
    }

    /// One that did not begin.
    pub(crate) fn failed(inner: &Arc<Inner>, caller: &Arc<Caller>, error: Error) -> PendingCall<T> {
        PendingCall {
            step: Step::Over(Err(error)),
            batch: Batch::default(),
            inner: inner.clone(),
            caller: caller.clone(),
            generation: fork::generation(),
            end: None,
            on: String::new(),
            is_open: false,
            attrs: |_| Vec::new(),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Those of the method of [`crate::Client`] with this name.
    pub fn wait(mut self) -> Result<T> {
        self.begin_wait(Instant::now());
        while !self.test() {
            batch::rest(&mut [(&self.inner.rpc, &mut self.batch)]);
        }
        match std::mem::replace(&mut self.step, Step::Taken) {
            Step::Over(result) => result,
            _ => unreachable!("it is over"),
        }
    }

    fn take(&mut self, finished: Finished) {
        self.step = match std::mem::replace(&mut self.step, Step::Taken) {
            // Of a close that failed nobody is notified.
            step if finished.tag == CLOSES && matches!(step, Step::Asking(_)) => step,
            Step::Asking(take) => match take(finished) {
                Ok(value) => self.with_sizes(value),
                Err(error) => self.failed_with(error),
            },
            Step::Sizing { value, mut sizing, taken } => {
                let taken = taken.and(sizing.take(&self.inner, finished));
                Step::Sizing { value, sizing, taken }
            }
            step => step,
        };
    }

    /// A result whose sizes may have to be asked for.
    fn with_sizes(&mut self, mut value: T) -> Step<T> {
        let live = (self.attrs)(&mut value).into_iter().filter(|attr| size::is_live(attr));
        let inos: Vec<u64> = live.map(|attr| attr.ino).collect();
        if inos.is_empty() {
            return Step::Over(Ok(value));
        }
        let _part = self.rest_of_time();
        let sizing = Sizing::begin(&self.inner, &self.caller, &inos, None, &mut self.batch);
        Step::Sizing { value, sizing: Box::new(sizing), taken: Ok(()) }
    }

    /// All requests of a step have their replies.
    fn next_step(&mut self) {
        let _part = self.rest_of_time();
        self.step = match std::mem::replace(&mut self.step, Step::Taken) {
            Step::Sizing { taken: Err(error), .. } => self.failed_with(error),
            Step::Sizing { mut value, mut sizing, .. } => {
                if sizing.next(&self.inner, &mut self.batch) {
                    let live = (self.attrs)(&mut value).into_iter().filter(|attr| size::is_live(attr));
                    live.zip(sizing.found()).for_each(|(attr, found)| size::put(&self.inner, attr, found));
                    Step::Over(Ok(value))
                } else {
                    Step::Sizing { value, sizing, taken: Ok(()) }
                }
            }
            step => step,
        };
    }

    /// Whether this is a forked child: its parent goes on with the call.
    pub(crate) fn is_parents(&self) -> bool {
        self.generation != fork::generation()
    }

    fn failed_with(&self, error: Error) -> Step<T> {
        Step::Over(Err(error.on(&self.on)))
    }

    /// Requests that are made until it is dropped have what is left of the call's time.
    fn rest_of_time(&self) -> Option<Operation> {
        let left = self.end?.saturating_duration_since(Instant::now());
        Some(Operation::part(left))
    }
}

impl<T> PendingCall<T> {
    fn drive(&mut self, next: fn(&mut Batch, &Rpc) -> Option<Finished>) -> bool {
        if self.is_parents() && !self.batch.is_empty() {
            drop(std::mem::take(&mut self.batch));
            let text = "it was begun by the process that forked this one";
            self.step = self.failed_with(Error::new("call", ErrorKind::Local(libc::ECANCELED), text));
        }
        loop {
            if matches!(self.step, Step::Over(_) | Step::Taken) && self.batch.is_empty() {
                return true;
            }
            match next(&mut self.batch, &self.inner) {
                Some(finished) => self.take(finished),
                None if self.batch.is_empty() => self.next_step(),
                None => return false,
            }
        }
    }
}

impl<T> Progress for PendingCall<T> {
    fn test(&mut self) -> bool {
        batch::reap_ready(&self.inner);
        self.drive(Batch::poll)
    }

    fn advance(&mut self) -> bool {
        self.drive(Batch::advance)
    }

    fn requests(&mut self) -> Option<(&Rpc, &mut Batch)> {
        (!self.batch.is_empty()).then_some((&self.inner.rpc, &mut self.batch))
    }

    fn begin_wait(&mut self, now: Instant) {
        self.end = match self.batch.begin_wait(&self.inner, now) {
            Some(paused) => self.end.map(|end| end + paused),
            None => self.end.zip(deadline::end(self.inner.options.timeout())).map(|(old, new)| old.max(new)),
        };
    }

    fn pause_wait(&mut self, now: Instant) {
        self.batch.pause_wait(now);
    }
}

impl<T> Drop for PendingCall<T> {
    fn drop(&mut self) {
        if self.batch.is_empty() || self.is_parents() {
            return;
        }
        if self.is_open && self.batch.is_sent() {
            while !self.test() {
                batch::rest(&mut [(&self.inner.rpc, &mut self.batch)]);
            }
            return;
        }
        std::mem::take(&mut self.batch).cancel(&self.inner);
    }
}
