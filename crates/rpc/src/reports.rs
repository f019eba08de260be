//! What calls report of servers, and the error of who needs a dead one.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::health::{Obituary, PROBE_EVERY};
use crate::rpc::Rpc;
use crate::server::Server;

/// A server that fails for less is not dead.
const FAILING_MIN: Duration = Duration::from_secs(1);

impl Rpc {
    /// A server has not answered since `since`. `used_up`: somebody has waited for it for a whole deadline.
    pub(crate) fn note_failure(&self, index: usize, since: Instant, cause: &str, used_up: bool) {
        let server = self.session().server(index);
        // Requests of an operation begin a little later than it does.
        let part = |timeout: Duration| if used_up { timeout * 3 / 4 } else { timeout };
        let limit = self.options.timeout().map(|timeout| part(timeout).max(FAILING_MIN));
        if server.health.note_failure(since, limit, cause) {
            // Others wait on its connections.
            server.lanes().iter().for_each(|lane| lane.give_up("the server is dead"));
        }
    }

    pub(crate) fn note_answer(&self, index: usize) {
        self.session().server(index).health.note_answer();
    }

    pub(crate) fn is_failing(&self, index: usize) -> bool {
        self.session().server(index).health.is_failing()
    }

    /// The error of who needs a server that is dead.
    pub(crate) fn dead(&self, index: usize) -> Option<Error> {
        let server = self.session().server(index);
        server.health.obituary().map(|obituary| server.down(&obituary))
    }
}

impl Server {
    pub(crate) fn down(&self, obituary: &Obituary) -> Error {
        let text = format!(
            "it has not answered for {} s, and is looked for every {} s; last: {}",
            obituary.since.elapsed().as_secs(),
            PROBE_EVERY.as_secs(),
            obituary.cause
        );
        Error::down("connect", text).at_server(self.describe(None))
    }
}
