//! Getting a connection to a server: an idle one, a new one, or one that others use too; and what is noted of a server
//! that answers or fails, by which the next one who needs it goes.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_transport::{Link, gathered_requests};

use crate::deadline::{self, Operation};
use crate::dial::Wish;
use crate::error::{Error, ErrorKind};
use crate::greet::Expected;
use crate::health::{Obituary, PROBE_EVERY, Verdict};
use crate::lane::LaneUse;
use crate::rpc::Rpc;
use crate::server::{Role, Server};
use crate::session::Session;
use crate::traffic::Traffic;
use crate::wait::lock;

/// An attempt to connect has this much time, however short an operation is to be.
const ATTEMPT_MIN: Duration = Duration::from_millis(250);
/// A server that fails for less is not dead.
const FAILING_MIN: Duration = Duration::from_secs(1);

impl Rpc {
    /// An idle lane to a server, a new one, or one that others use too; over a certain rail where one is
    /// wished for.
    pub fn take_lane(&self, index: usize, bulky: bool, rail: Option<usize>) -> Result<LaneUse, Error> {
        let session = self.session();
        let server = session.server(index);
        let wish = Wish { traffic: self.traffic(server.role, bulky), rail };
        match server.health.verdict(Instant::now()) {
            Verdict::Well => {}
            Verdict::Dead(obituary) => return Err(server.down(&obituary)),
            Verdict::Probe(_) if self.is_probed.load(Ordering::Relaxed) => {
                if let Some(error) = self.dead(index) {
                    return Err(error);
                }
            }
            Verdict::Probe(wait) => return self.probe(session, index, &wish, wait),
        }
        // A new connection to a server that does not answer takes longer than one that others use.
        let share = server.health.is_failing();
        if let Some(used) = server.pick(&wish, share)
            && (share || !server.is_better_due())
        {
            return Ok(used);
        }
        let attempt = Operation::part(self.attempt_timeout());
        let opened = self.open_lane(session, index, &wish);
        drop(attempt);
        let shared = || server.pick(&wish, true).or_else(|| rail.is_none().then(|| server.pick_any())?);
        opened.or_else(|error| shared().ok_or(error))
    }

    /// A lane to a server for little data, idle or not, where that takes no time.
    pub(crate) fn share_lane(&self, index: usize) -> Option<LaneUse> {
        let server = self.session().server(index);
        let wish = Wish { traffic: self.traffic(server.role, false), rail: None };
        if server.health.is_failing() {
            return None;
        }
        match gathered_requests() {
            // What leaves together does so on one connection.
            Some(users_max) => server.pick_busiest(&wish, users_max),
            None => server.pick(&wish, true),
        }
    }

    fn traffic(&self, role: Role, bulky: bool) -> Traffic {
        let separate = || self.rdma.as_ref().is_some_and(|rdma| rdma.options().tos.separates_small());
        match role {
            Role::Meta => Traffic::Metadata,
            Role::Io if self.options.background => Traffic::Background,
            Role::Io if !bulky && separate() => Traffic::Small,
            Role::Io => Traffic::Bulk,
        }
    }

    /// How long one attempt to connect may take, over whatever addresses and transports: not all of the
    /// operation's time, for others may be asked in the same operation.
    fn attempt_timeout(&self) -> Duration {
        let most = self.options.connect_timeout();
        most.min((self.options.patience() / 4).max(ATTEMPT_MIN))
    }

    fn open_lane(&self, session: &Session, index: usize, wish: &Wish) -> Result<LaneUse, Error> {
        let server = session.server(index);
        // A network that is cut keeps a thread in connect(2).
        if deadline::is_looked_after() && deadline::is_interrupted() {
            let text = "the wait was interrupted";
            let error = Error::new("connect", ErrorKind::Local(libc::EINTR), text);
            return Err(error.at_server(server.describe(None)));
        }
        let timeout = self.options.connect_timeout();
        let info = server.info();
        let mut greet = |link: &mut dyn Link| {
            let greeted = self.identity.greet(link, session.id, deadline::left(timeout))?;
            Expected { cluster_id: &self.cluster_id, name: &info.name }.check(&greeted.proven)?;
            server.set_version(greeted.version);
            Ok(greeted.proven)
        };
        let mut dialled = self.dial.dial(&info, wish, &mut greet)?;
        if server.role == Role::Meta {
            let run = dialled.proven.epoch;
            let mut arrival = lock(&server.arriving);
            let first = arrival.run == 0 && !session.is_fork;
            let is_new_run = arrival.run != run;
            if is_new_run || server.lanes().is_empty() {
                self.arrivals.get_or_grow(index).fetch_add(1, Ordering::SeqCst);
            }
            if is_new_run && !first {
                self.restore.restore(session, index, &mut *dialled.link, run, timeout)?;
            }
            arrival.run = run;
        }
        server.health.note_answer();
        Ok(server.add(dialled, wish.traffic))
    }

    /// Looks whether a dead server is back, here or elsewhere.
    fn probe(&self, session: &Session, index: usize, wish: &Wish, wait: Duration) -> Result<LaneUse, Error> {
        let server = session.server(index);
        let begun = Instant::now();
        let version = session.map_version();
        let attempt = Operation::part(wait);
        let mut opened = self.open_lane(session, index, wish);
        if opened.is_err() && self.follow_moved(index, version) {
            opened = self.open_lane(session, index, wish);
        }
        drop(attempt);
        opened.map_err(|error| {
            server.health.note_probe(&error.to_string(), begun.elapsed() >= wait);
            match server.health.obituary() {
                Some(obituary) if error.kind() == ErrorKind::Unreachable => server.down(&obituary),
                _ => error,
            }
        })
    }

    /// As `Rpc::probe` where nobody needs it at the moment.
    pub fn probe_server(&self, index: usize, wait: Duration) -> Result<(), Error> {
        let session = self.session();
        let server = session.server(index);
        let wish = Wish { traffic: self.traffic(server.role, true), rail: None };
        self.probe(session, index, &wish, wait).map(drop)
    }

    /// Somebody probes all the time: those who need a server need not.
    pub fn leave_probing_to_others(&self) {
        self.is_probed.store(true, Ordering::Relaxed);
    }

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
