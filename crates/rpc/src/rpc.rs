//! What all calls to a cluster share: how to connect, and this process's session.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_transport::Link;
use weft_wire::messages::ClusterMapReply;

use crate::arenas::Arenas;
use crate::call::Call;
use crate::deadline::Operation;
use crate::dial::Dial;
use crate::error::Error;
use crate::following::check_map;
use crate::fork;
use crate::greet::Identity;
use crate::options::Options;
use crate::rdma::RdmaSource;
use crate::session::Session;
use crate::table::Table;
use crate::wait::lock;

/// Tells a metadata server on a new connection what it must know of this process, before requests go over it.
pub trait Restore: Send + Sync {
    /// Called where the server with the index `server` was restarted, or has ended this session: `run` is the new run
    /// of the session. One exchange by [`crate::greet::ask`] may take `timeout`.
    ///
    /// # Errors
    /// The connection is not used then.
    fn restore(
        &self,
        session: &Session,
        server: usize,
        link: &mut dyn Link,
        run: u64,
        timeout: Duration,
    ) -> Result<(), Error>;
}

/// What an [`Rpc`] is made of.
pub struct Setup {
    /// How long calls wait.
    pub options: Options,
    /// What servers are shown.
    pub identity: Identity,
    /// The cluster's map, from a server or from another process.
    pub map: Arc<ClusterMapReply>,
    /// Makes connections.
    pub dial: Box<dyn Dial>,
    /// Where RDMA comes from that `dial` uses, if it does.
    pub rdma: Option<Arc<RdmaSource>>,
    /// Called where a metadata server does not know this session.
    pub restore: Box<dyn Restore>,
    /// The session's id and this process's number in it, where several processes are in one session.
    pub member: Option<([u8; 16], u16)>,
}

/// Calls to the servers of one cluster. Any number of threads use it at once; a forked child goes on with
/// connections of its own.
pub struct Rpc {
    /// How long calls wait.
    pub options: Options,
    /// The cluster's id.
    pub cluster_id: [u8; 16],
    /// Where RDMA comes from that connections use, if they may.
    pub rdma: Option<Arc<RdmaSource>>,
    /// Shared memory that connections know.
    pub arenas: Arenas,
    /// For each metadata server, by its index: how often it was reached over a first connection, or in another run.
    pub(crate) arrivals: Table<AtomicU64>,
    pub(crate) identity: Identity,
    pub(crate) dial: Box<dyn Dial>,
    pub(crate) restore: Box<dyn Restore>,
    /// Somebody looks for dead servers all the time.
    pub(crate) is_probed: AtomicBool,
    /// The map that it began with.
    first_map: Arc<ClusterMapReply>,
    process: AtomicPtr<Process>,
    /// Held while a forked child makes its own.
    forking: Mutex<()>,
}

/// What belongs to one process.
struct Process {
    session: Session,
    /// Requests whose replies nobody waits for.
    detached: Mutex<Vec<Call>>,
}

impl Process {
    fn into_raw(session: Session) -> *mut Process {
        Box::into_raw(Box::new(Process { session, detached: Mutex::default() }))
    }
}

impl Rpc {
    /// Nothing is asked before the first call.
    ///
    /// # Errors
    /// If the map is not sound.
    pub fn new(setup: Setup) -> Result<Rpc, Error> {
        let Setup { options, identity, map, dial, rdma, restore, member } = setup;
        fork::watch();
        weft_log::start_in_library();
        // It may come from another process.
        check_map(&map, &map.cluster_id)?;
        let (session, identity) = match member {
            Some((id, member)) => (Session::joined(&map, id, member), identity.of_member(member)),
            None => (Session::new(&map)?, identity),
        };
        Ok(Rpc {
            options,
            cluster_id: map.cluster_id,
            rdma,
            arenas: Arenas::default(),
            arrivals: Table::default(),
            identity,
            dial,
            restore,
            is_probed: AtomicBool::new(false),
            first_map: map,
            process: AtomicPtr::new(Process::into_raw(session)),
            forking: Mutex::default(),
        })
    }

    /// What was last used here, be it a parent's.
    fn last_process(&self) -> &Process {
        // SAFETY: the pointer is always from `Box::into_raw`; what it points to lives until `drop`, and one
        // that is replaced is never freed.
        unsafe { &*self.process.load(Ordering::Acquire) }
    }

    fn process(&self) -> &Process {
        let process = self.last_process();
        if process.session.generation == fork::generation() { process } else { self.process_after_fork() }
    }

    /// This process's session.
    pub fn session(&self) -> &Session {
        &self.process().session
    }

    pub(crate) fn detached(&self) -> &Mutex<Vec<Call>> {
        &self.process().detached
    }

    /// Whether this is a forked child that has not used its parent's connections yet.
    pub fn is_unused_fork(&self) -> bool {
        self.last_process().session.generation != fork::generation()
    }

    /// The parent's session is left as it is, for threads that are not here may have been using it; only its
    /// descriptors are closed.
    fn process_after_fork(&self) -> &Process {
        let _guard = lock(&self.forking);
        let parents = self.last_process();
        if parents.session.generation == fork::generation() {
            return parents;
        }
        let map = self.parents_map(&parents.session);
        // Without random bytes there is no session; a number that differs from the parent's is the next best.
        let mut ours =
            Session::new(&map).unwrap_or_else(|_| Session::without_random(&map, parents.session.id));
        ours.is_fork = true;
        parents.session.abandon();
        self.process.store(Process::into_raw(ours), Ordering::Release);
        self.last_process()
    }

    /// The newest map that was seen. A forked child may ask for it and leave its parent's session alone.
    pub fn map(&self) -> Arc<ClusterMapReply> {
        if self.is_unused_fork() {
            self.parents_map(&self.last_process().session)
        } else {
            self.session().map()
        }
    }

    fn parents_map(&self, parents: &Session) -> Arc<ClusterMapReply> {
        // Where another thread was about to change it, servers will say how old it is.
        parents.parents_map().unwrap_or_else(|| self.first_map.clone())
    }

    /// Index of the metadata server that owns a shard.
    pub fn owner(&self, shard: u16) -> usize {
        self.session().owner_index(shard)
    }

    /// Index of the metadata server that owns an inode.
    pub fn owner_of(&self, ino: u64) -> usize {
        self.session().owner_of(ino)
    }

    /// Begins an operation of the calling thread, which has as much time as the options say.
    pub fn operation(&self) -> Operation {
        Operation::begin(self.options.timeout())
    }

    /// How often the owner of a shard was reached over no connection that was there before, or in another run of it.
    pub fn arrivals(&self, shard: u16) -> u64 {
        self.arrivals.get_or_grow(self.owner(shard)).load(Ordering::SeqCst)
    }

    /// Forgets shared memory that is about to be freed.
    pub fn drop_arena(&self, id: u16) {
        self.arenas.remove(id);
        for (_, server) in self.session().servers() {
            server.lanes().iter().for_each(|lane| lane.drop_segment(id));
        }
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        if !self.is_unused_fork() {
            // SAFETY: made by `Box::into_raw`; nobody has a reference any more.
            drop(unsafe { Box::from_raw(*self.process.get_mut()) });
        }
    }
}
