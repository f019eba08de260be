//! When a request is tried again, and when it is given up.

use std::time::{Duration, Instant};

use super::{Call, State};
use crate::error::Error;
use crate::rpc::Rpc;

const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

impl Call {
    /// To be tried again after a pause, or over if it has been tried for long enough.
    pub(super) fn later(&mut self, rpc: &Rpc, cause: &str) {
        self.failed(rpc, Instant::now(), cause);
    }

    /// As [`Call::later`], of a server that has been silent since `since`.
    pub(crate) fn failed(&mut self, rpc: &Rpc, since: Instant, cause: &str) {
        let now = Instant::now();
        let is_over = self.is_over_at(now) || self.begun.elapsed() >= self.connect_patience;
        rpc.note_failure(self.server, since, cause, is_over && self.hasty.is_none());
        if let Some(error) = rpc.dead(self.server).filter(|_| !is_over) {
            self.state = State::Done(Err(error.of_operation(self.op.name())));
            return;
        }
        if is_over {
            self.state = State::Done(Err(self.timed_out(rpc, cause)));
            return;
        }
        let left = self.end.map_or(PAUSE_MAX, |end| end.saturating_duration_since(now));
        let pause = self.pause.min(left);
        self.state = State::Ready { not_before: (!pause.is_zero()).then(|| now + pause) };
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
    }

    pub(crate) fn timed_out(&self, rpc: &Rpc, cause: &str) -> Error {
        let waited_ms = self.begun.elapsed().as_millis();
        let text = format!("it did not come back within {waited_ms} ms; last: {cause}");
        let server = rpc.session().server(self.server).describe(None);
        Error::timed_out(self.op.name(), text).at_server(server)
    }

    /// The server goes by a newer map, and has not executed it: to be repeated as it is by that map.
    pub(super) fn refused_for_map(&mut self, rpc: &Rpc, version: u32) {
        let now = Instant::now();
        self.refusals += 1;
        if self.refusals > 1 && self.is_over_at(now) {
            let cause = format!(
                "it goes by version {version} of the cluster's map, and nobody serves one newer than version {}",
                self.map_version
            );
            self.state = State::Done(Err(self.timed_out(rpc, &cause)));
            return;
        }
        self.wanted_map = Some(version.max(self.map_version.saturating_add(1)));
        let not_before = (self.refusals > 1).then(|| {
            self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
            now + self.pause
        });
        self.state = State::Ready { not_before };
    }
}
