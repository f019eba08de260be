//! What all clones of a client share.

use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime};

use weft_transport::{Link, Segment, ShmOptions, TcpOptions, connect_shm, connect_tcp};
use weft_wire::Status;
use weft_wire::messages::{ClusterMapReply, ClusterMapRequest, OpenId, ProveReply, ServerInfo};

use crate::batch;
use crate::closing;
use crate::deadline::{self, Operation};
use crate::dial::{Dial, NetworkDial, Wish};
use crate::error::{Error, ErrorKind};
use crate::follow::check_map;
use crate::fork;
use crate::greet::{Identity, ask, random};
use crate::health::{Obituary, PROBE_EVERY, Verdict};
use crate::held::{Held, HeldFiles};
use crate::lane::LaneUse;
use crate::locks::LockBook;
use crate::rdma::{self, Rdma, RdmaSource};
use crate::session::{Role, Server, Session};
use crate::traffic::Traffic;
use crate::wait::lock;
use crate::window::pack::PackPool;
use crate::{ConnectOptions, Url};

/// A capability is renewed when it has less than this to live.
const CAPABILITY_MARGIN: Duration = Duration::from_secs(3600);
/// An attempt to connect has this much time, however short an operation is to be.
const ATTEMPT_MIN: Duration = Duration::from_millis(250);
/// A server that fails for less is not dead.
const FAILING_MIN: Duration = Duration::from_secs(1);

pub(crate) struct Inner {
    pub url: Url,
    pub options: ConnectOptions,
    pub cluster_id: [u8; 16],
    /// The map that it began with.
    first_map: Arc<ClusterMapReply>,
    pub held: HeldFiles,
    pub locks: LockBook,
    /// How often the metadata server was reached anew.
    pub arrivals: AtomicU64,
    identity: Identity,
    dial: Box<dyn Dial>,
    /// Where RDMA comes from that connections use, if they may.
    pub rdma: Option<Arc<RdmaSource>>,
    session: AtomicPtr<Session>,
    /// Held while a forked child makes its session.
    forking: Mutex<()>,
    arenas: RwLock<Vec<Segment>>,
    arena_count: AtomicUsize,
    pub pack_pool: Arc<PackPool>,
    is_probed: AtomicBool,
}

impl Inner {
    /// Asks the server of the URL for the cluster's map. Other RDMA than this host's is given in tests.
    pub(crate) fn connect(url: &Url, options: ConnectOptions, rdma: Option<Rdma>) -> Result<Inner, Error> {
        let identity = Identity::new(options.find_key(url)?, options.program.as_deref());
        let timeout = Duration::from_millis(options.connect_timeout_ms);
        let first = reach(url, &identity, timeout).map_err(|error| error.on(url))?;
        let Reached { mut link, proven } = first;
        let map = ask(&mut *link, 3, &ClusterMapRequest {}, Instant::now() + timeout)?;
        check_map(&map, &proven.cluster_id).map_err(|error| error.at_server(link.peer()))?;
        drop(link);
        Inner::over_network(url, options, identity, Arc::new(map), rdma)
    }

    /// With a map that is known, as a process has it from another. Nothing is asked before the first request.
    pub(crate) fn with_map(
        url: &Url,
        options: ConnectOptions,
        map: Arc<ClusterMapReply>,
    ) -> Result<Inner, Error> {
        let identity = Identity::new(options.find_key(url)?, options.program.as_deref());
        Inner::over_network(url, options, identity, map, None)
    }

    /// As [`Inner::with_map`], in a session that other processes are in.
    pub(crate) fn joined(
        url: &Url,
        options: ConnectOptions,
        map: Arc<ClusterMapReply>,
        (id, member): ([u8; 16], u16),
    ) -> Result<Inner, Error> {
        let mut inner = Inner::with_map(url, options, map)?;
        let joined = Session::joined(&inner.first_map, id, member);
        // SAFETY: from `Box::into_raw`, and nobody else has a reference to it yet.
        *unsafe { &mut **inner.session.get_mut() } = joined;
        inner.locks.share();
        Ok(inner)
    }

    fn over_network(
        url: &Url,
        options: ConnectOptions,
        identity: Identity,
        map: Arc<ClusterMapReply>,
        rdma: Option<Rdma>,
    ) -> Result<Inner, Error> {
        let transport = options.find_transport(url)?;
        let options = ConnectOptions {
            background: options.background || url.background(),
            hard: options.hard || url.hard(),
            retry_timeout_ms: url.timeout_ms().unwrap_or(options.retry_timeout_ms),
            ..options
        };
        let rdma = Arc::new(RdmaSource::new(options.find_rdma(url)?, rdma));
        let timeout = Duration::from_millis(options.connect_timeout_ms);
        let dial = NetworkDial::new(
            transport,
            timeout,
            identity.key.as_ref().map(|key| key.knock.clone()),
            rdma.clone(),
        );
        Inner::over(url.clone(), options, identity, map, (Box::new(dial), Some(rdma)))
    }

    /// With a map that is known, and connections made by a dial with its RDMA.
    pub(crate) fn over(
        url: Url,
        options: ConnectOptions,
        identity: Identity,
        map: Arc<ClusterMapReply>,
        (dial, rdma): (Box<dyn Dial>, Option<Arc<RdmaSource>>),
    ) -> Result<Inner, Error> {
        fork::watch();
        weft_log::start_in_library();
        // It may come from another process.
        check_map(&map, &map.cluster_id)?;
        let session = Box::into_raw(Box::new(Session::new(&map)?));
        Ok(Inner {
            url,
            options,
            cluster_id: map.cluster_id,
            first_map: map,
            held: HeldFiles::default(),
            locks: LockBook::default(),
            arrivals: AtomicU64::new(0),
            identity,
            dial,
            rdma,
            session: AtomicPtr::new(session),
            forking: Mutex::default(),
            arenas: RwLock::default(),
            arena_count: AtomicUsize::new(0),
            pack_pool: Arc::default(),
            is_probed: AtomicBool::new(false),
        })
    }

    /// This process's session.
    pub(crate) fn session(&self) -> &Session {
        // SAFETY: the pointer is always to a session from `Box::into_raw`, which lives until `drop`; one that is replaced
        // is never freed.
        let session = unsafe { &*self.session.load(Ordering::Acquire) };
        if session.generation == fork::generation() { session } else { self.session_after_fork() }
    }

    /// Whether this is a forked child that has not used its parent's client yet.
    pub(crate) fn is_unused_fork(&self) -> bool {
        // SAFETY: as in `session`.
        unsafe { (*self.session.load(Ordering::Acquire)).generation != fork::generation() }
    }

    /// The parent's session is left as it is, for threads that are not here may have been using it; only its descriptors
    /// are closed.
    fn session_after_fork(&self) -> &Session {
        let _guard = lock(&self.forking);
        // SAFETY: as above.
        let parents = unsafe { &*self.session.load(Ordering::Acquire) };
        if parents.generation == fork::generation() {
            return parents;
        }
        let map = self.parents_map(parents);
        // Without random bytes there is no session; a number that differs from the parent's is the next best.
        let mut ours = Session::new(&map).unwrap_or_else(|_| Session::without_random(&map, parents.id));
        ours.is_fork = true;
        parents.abandon();
        let ours = Box::into_raw(Box::new(ours));
        self.session.store(ours, Ordering::Release);
        // SAFETY: as above.
        unsafe { &*ours }
    }

    /// The newest map that was seen. It may be asked for in a forked child that leaves its parent's session alone.
    pub(crate) fn map(&self) -> Arc<ClusterMapReply> {
        // SAFETY: as in `session`.
        let session = unsafe { &*self.session.load(Ordering::Acquire) };
        if session.generation == fork::generation() { session.map() } else { self.parents_map(session) }
    }

    fn parents_map(&self, parents: &Session) -> Arc<ClusterMapReply> {
        // Where another thread was about to change it, servers will say how old it is.
        parents.parents_map().unwrap_or_else(|| self.first_map.clone())
    }

    /// The metadata server.
    pub(crate) fn meta(&self) -> usize {
        0
    }

    /// The I/O server of this chain, which a layout names.
    pub(crate) fn io(&self, chain: u16) -> Result<usize, Error> {
        let session = self.session();
        if let Some(index) = session.chain_index(chain) {
            return Ok(index);
        }
        self.follow_chain(chain);
        session.chain_index(chain).ok_or_else(|| {
            let text = format!(
                "the file is on I/O server {chain}, which the cluster's map (version {}) does not have; weft server ls says which \
                 there are",
                session.map_version()
            );
            Error::new("connect", ErrorKind::Status(Status::Lost), text)
        })
    }

    /// An idle lane to a server, a new one, or one that others use too; over a certain rail where one is wished for.
    pub(crate) fn take_lane(&self, index: usize, bulky: bool, rail: Option<usize>) -> Result<LaneUse, Error> {
        let session = self.session();
        let server = session.server(index);
        let wish = Wish { traffic: self.traffic(server.role, bulky), rail };
        match server.health.verdict(Instant::now()) {
            Verdict::Well => {}
            Verdict::Dead(obituary) => return Err(self.down(server, &obituary)),
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
        let opened = self.open_lane(session, server, &wish);
        drop(attempt);
        let shared = || server.pick(&wish, true).or_else(|| rail.is_none().then(|| server.pick_any())?);
        opened.or_else(|error| shared().ok_or(error))
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

    /// How long one attempt to connect may take, over whatever addresses and transports: not all of the operation's time, for others may
    /// be asked in the same operation.
    fn attempt_timeout(&self) -> Duration {
        let most = Duration::from_millis(self.options.connect_timeout_ms);
        most.min((self.options.patience() / 4).max(ATTEMPT_MIN))
    }

    fn open_lane(&self, session: &Session, server: &Server, wish: &Wish) -> Result<LaneUse, Error> {
        // A network that is cut keeps a thread in connect(2).
        if deadline::is_looked_after() && deadline::is_interrupted() {
            let text = "the wait was interrupted";
            let error = Error::new("connect", ErrorKind::Local(libc::EINTR), text);
            return Err(error.at_server(server.describe(None)));
        }
        let timeout = Duration::from_millis(self.options.connect_timeout_ms);
        let info = server.info();
        let mut greet = |link: &mut dyn Link| {
            let proven = self.identity.greet(link, session.id, deadline::left(timeout))?;
            self.check_server(&info, &proven)?;
            Ok(proven)
        };
        let mut dialled = self.dial.dial(&info, wish, &mut greet)?;
        if server.role == Role::Meta {
            let run = dialled.proven.epoch;
            let mut arrival = lock(&server.arriving);
            let first = arrival.run == 0 && !session.is_fork;
            let is_new_run = arrival.run != run;
            if is_new_run || server.lanes().is_empty() {
                self.arrivals.fetch_add(1, Ordering::SeqCst);
            }
            if is_new_run && !first {
                self.reopen_all(session, run, &mut *dialled.link, Instant::now() + timeout)?;
                self.locks.claim(session, &mut *dialled.link, Instant::now() + timeout)?;
            }
            arrival.run = run;
        }
        server.health.note_answer();
        let rdma = self.rdma.as_ref().map(|rdma| rdma.options());
        Ok(server.add(dialled, wish.traffic, rdma))
    }

    /// Looks whether a dead server is back, here or elsewhere.
    fn probe(&self, session: &Session, index: usize, wish: &Wish, wait: Duration) -> Result<LaneUse, Error> {
        let server = session.server(index);
        let begun = Instant::now();
        let version = session.map_version();
        let attempt = Operation::part(wait);
        let mut opened = self.open_lane(session, server, wish);
        if opened.is_err() && self.follow_moved(index, version) {
            opened = self.open_lane(session, server, wish);
        }
        drop(attempt);
        opened.map_err(|error| {
            server.health.note_probe(&error.to_string(), begun.elapsed() >= wait);
            match server.health.obituary() {
                Some(obituary) if error.kind() == ErrorKind::Unreachable => self.down(server, &obituary),
                _ => error,
            }
        })
    }

    /// As [`Inner::probe`] where nobody needs it at the moment.
    pub(crate) fn probe_server(&self, index: usize, wait: Duration) -> Result<(), Error> {
        let session = self.session();
        let server = session.server(index);
        let wish = Wish { traffic: self.traffic(server.role, true), rail: None };
        self.probe(session, index, &wish, wait).map(drop)
    }

    /// Somebody probes all the time: those who need a server need not.
    pub(crate) fn leave_probing_to_others(&self) {
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
        server.health.obituary().map(|obituary| self.down(server, &obituary))
    }

    fn down(&self, server: &Server, obituary: &Obituary) -> Error {
        let text = format!(
            "it has not answered for {} s, and is looked for every {} s; last: {}",
            obituary.since.elapsed().as_secs(),
            PROBE_EVERY.as_secs(),
            obituary.cause
        );
        Error::down("connect", text).at_server(server.describe(None))
    }

    /// Begins an operation of the calling thread, which has as much time as the options say.
    pub(crate) fn operation(&self) -> Operation {
        Operation::begin(self.options.timeout())
    }

    fn check_server(&self, info: &ServerInfo, proven: &ProveReply) -> Result<(), Error> {
        let (kind, text) = if proven.cluster_id != self.cluster_id {
            (ErrorKind::Untrusted, "a server of another cluster answered at its address".to_string())
        } else if proven.server_name != info.name {
            // The addresses have changed; a newer map has them.
            let text = format!("server `{}` answered where `{}` was expected", proven.server_name, info.name);
            (ErrorKind::Unreachable, text)
        } else {
            return Ok(());
        };
        Err(Error::new("connect", kind, text).at_server(&info.name))
    }

    /// Tells a metadata server that has started anew, or has not seen this client for a while, which files are open.
    fn reopen_all(
        &self,
        session: &Session,
        run: u64,
        link: &mut dyn Link,
        deadline: Instant,
    ) -> Result<(), Error> {
        for held in self.held.all().into_iter().filter(|held| held.id().run != run) {
            match ask(link, session.next_request_id(), &held.reopening(), deadline) {
                Ok(reply) => held.reopened(reply),
                // The file is gone; whoever uses it will be told.
                Err(error) if error.status().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes sure that the capability of an open file does not expire under an operation.
    pub(crate) fn keep_alive(&self, held: &Held) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let capability = held.capability();
        if capability.expires_s > (now + CAPABILITY_MARGIN).as_secs() {
            return Ok(());
        }
        self.reopen(held)
    }

    /// Makes sure that an open just made counts in the present run of the session. Where its reply is one that a server kept, which was
    /// restarted since, it was not known here when the others were reopened.
    pub(crate) fn count(&self, held: &Held) -> Result<(), Error> {
        let run = lock(&self.session().server(self.meta()).arriving).run;
        if held.id().run == run { Ok(()) } else { self.reopen(held) }
    }

    fn reopen(&self, held: &Held) -> Result<(), Error> {
        held.reopened(batch::ask(self, self.meta(), &held.reopening())?);
        Ok(())
    }

    /// How the open is told from others that was answered with `run`.
    pub(crate) fn open_id(&self, run: u64) -> OpenId {
        OpenId { run, number: self.session().next_request_id() }
    }

    /// Shared memory that overlaps these addresses.
    pub(crate) fn segments_in(&self, (first, end): (u64, u64)) -> Vec<Segment> {
        if self.arena_count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let arenas = self.arenas.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let overlaps = |segment: &&Segment| {
            let base = segment.base().as_ptr() as u64;
            base < end && first < base + segment.bytes() as u64
        };
        arenas.iter().filter(overlaps).cloned().collect()
    }

    /// Makes shared memory known to all connections, and to adapters.
    pub(crate) fn add_arena(&self, segment: &Segment) {
        // Where an adapter refuses, it is used as if it were any memory, and status has the reason.
        rdma::register_arena(segment.base().as_ptr() as usize, segment.bytes());
        let mut arenas = self.arenas.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        arenas.push(segment.clone());
        self.arena_count.store(arenas.len(), Ordering::Release);
    }

    pub(crate) fn drop_arena(&self, id: u16) {
        {
            let mut arenas = self.arenas.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            for segment in arenas.extract_if(.., |segment| segment.id() == id) {
                rdma::unregister(segment.base().as_ptr() as usize);
            }
            self.arena_count.store(arenas.len(), Ordering::Release);
        }
        for (_, server) in self.session().servers() {
            server.lanes().iter().for_each(|lane| lane.drop_segment(id));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let arenas = self.arenas.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for segment in arenas.drain(..) {
            rdma::unregister(segment.base().as_ptr() as usize);
        }
        if self.is_unused_fork() {
            return;
        }
        // Files that were closed last: the metadata server should hear of it before the connection ends.
        closing::send_all(self);
        batch::finish_detached(self);
        // SAFETY: made by `Box::into_raw`; nobody has a reference any more.
        drop(unsafe { Box::from_raw(*self.session.get_mut()) });
    }
}

/// A first connection.
struct Reached {
    link: Box<dyn Link>,
    proven: ProveReply,
}

/// Connects to the server that a URL names, over its Unix socket if the URL has one, else TCP.
fn reach(url: &Url, identity: &Identity, timeout: Duration) -> Result<Reached, Error> {
    let session = random()?;
    let unreachable = |cause: String| Error::new("connect", ErrorKind::Unreachable, cause);
    let mut causes = Vec::new();
    if let Some(socket) = url.socket() {
        match connect_shm(socket.as_ref(), ShmOptions::default(), timeout) {
            Ok(mut link) => {
                let proven = identity.greet(&mut link, session, timeout)?;
                return Ok(Reached { link: Box::new(link), proven });
            }
            Err(error) => causes.push(error.to_string()),
        }
    }
    if identity.key.is_none() {
        return Err(unreachable(causes.join("; ")));
    }
    let addresses = (url.host(), url.port())
        .to_socket_addrs()
        .map_err(|error| unreachable(format!("cannot look up {}: {error}", url.host())))?;
    for address in addresses {
        match connect_tcp(address, &TcpOptions::default(), timeout) {
            Ok(mut link) => {
                let proven = identity.greet(&mut link, session, timeout)?;
                return Ok(Reached { link: Box::new(link), proven });
            }
            Err(error) => causes.push(error.to_string()),
        }
    }
    Err(unreachable(causes.join("; ")))
}
