//! The counter of an open file: one number for all processes that share the open, which the metadata server
//! keeps. It is what a shared file pointer needs:
//!
//! ```text
//!   process 1   fetch_add(100) ─► 0       writes bytes 0–99
//!   process 0   fetch_add(50)  ─► 100     writes bytes 100–149
//! ```

use weft_wire::messages::{CounterChange, FetchAddReply, FetchAddRequest, OpenId};
use weft_wire::{Op, Status};

use crate::Result;
use crate::batch;
use crate::calls::{PendingCall, Plan};
use crate::error::{Error, ErrorKind};
use crate::file::File;
use crate::open_file::OpenFile;

impl OpenFile {
    fn counter_request(&self, change: CounterChange, amount: i64) -> Result<FetchAddRequest> {
        self.inner.keep_alive(&self.held)?;
        let (capability, counter) = (self.held.capability(), self.held.counter());
        let open = OpenId { run: counter.run, number: counter.number };
        Ok(FetchAddRequest { capability, session: counter.session, open, change, amount })
    }

    fn fetch_counter(&self, change: CounterChange, amount: i64) -> Result<u64> {
        let _operation = self.inner.operation();
        let ask = || {
            let request = self.counter_request(change, amount)?;
            Ok(batch::ask(&self.inner, &request)?.before)
        };
        ask().map_err(|error: Error| error.on(&self.name))
    }
}

/// A counter is from 0 to `i64::MAX`. It is 0 when the file is opened, and ends with the open; another open of
/// the same file has its own. All handles that come from one open have the same counter: the one that was
/// opened, and those that were imported from what it exported or shared, by whatever way.
///
/// Each change is done once, also over lost connections and restarts of the metadata server.
impl File {
    /// Adds to the counter; returns what it was before.
    ///
    /// # Errors
    /// [`Status::Invalid`], and it stays as it is, where it would leave its range; [`Status::Stale`] once the
    /// file was closed where it was opened, or that process was given up as lost; [`Status::Unsupported`] from a metadata server of before this
    /// operation.
    pub fn fetch_add(&self, add: i64) -> Result<u64> {
        self.open.fetch_counter(CounterChange::Add, add)
    }

    /// Sets the counter; returns what it was before.
    ///
    /// # Errors
    /// As [`File::fetch_add`].
    pub fn fetch_set(&self, value: u64) -> Result<u64> {
        let amount = i64::try_from(value).map_err(|_| {
            let text = format!("a counter is at most 2^63 - 1, and cannot be set to {value}");
            Error::new(Op::FetchAdd.name(), ErrorKind::Status(Status::Invalid), text).on(&self.open.name)
        })?;
        self.open.fetch_counter(CounterChange::Set, amount)
    }

    /// Begins a [`File::fetch_add`].
    pub fn start_fetch_add(&self, add: i64) -> PendingCall<u64> {
        let (inner, caller) = (&self.open.inner, &self.open.caller);
        match self.open.counter_request(CounterChange::Add, add) {
            Ok(request) => {
                let take = |reply: FetchAddReply| Ok(reply.before);
                PendingCall::begin(inner, caller, Plan::new(request, &self.open.name, take))
            }
            Err(error) => PendingCall::failed(inner, caller, error.on(&self.open.name)),
        }
    }
}
