//! The threads of one server, from its start to its end.
//!
//! ```text
//!   start   storage ─► sockets ─► RDMA ─► cost model                  all that can fail, fails here
//!   run     thread 0: accepts for all (accept.rs), serves             thread n: serves what it is given
//!   stop    nothing is accepted, requests under way have 2 s, then everything is dropped
//! ```

use crate::accept::{Arrival, Doors, Host, accept_all};
use crate::addresses::{listen, resolve, unreachable_from_elsewhere};
use crate::announce::Announcer;
use crate::caretaker;
use crate::config::{ClusterConfig, ClusterId, ConfigError, DiskChoice, ServerConfig, ServerRole};
use crate::current::CurrentMap;
use crate::fsck;
use crate::garbage::{self, Poke};
use crate::io::IoPart;
use crate::io::work::MethodCounters;
use crate::key_ring::{self, KeyFile, KeyRing};
use crate::letters::Letter;
use crate::log;
use crate::map::{Event, FileMap, KeptMap, MapError, endpoints_of, first_map};
use crate::member;
use crate::meta::registry::{Registry, Restore};
use crate::meta::{self, MetaPart};
use crate::node::{Confirmed, Node, Part, Shared};
use crate::rdma::{self, Rdma};
use crate::revoked::Revoked;
use crate::saved_map;
use crate::slow::SlowRequestMs;
use crate::stop::StopFlag;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weft_meta::{
    Caller, Engine, EngineError, FjallEngine, FjallOptions, MemEngine, MetaError, Namespace,
    NamespaceOptions, OwnStorage,
};
use weft_reactor::{MailSender, Mailbox, Reactor, ReactorOptions, mailbox};
use weft_storage::calibrate::{Calibration, Origin};
use weft_storage::{
    BufferPool, DataFiles, Directory, Disk, DiskEngine, Identity, LocalDisk, MemDisk, RandomId, StateFile,
    StorageError, random_id,
};
use weft_transport::{ListenError, Listening};
use weft_verbs::{Fabric, RdmaCore, VerbsError};
use weft_wire::messages::ClusterMapReply;
use weft_wire::security::ClusterKeys;

/// Time that requests under way have when the server stops.
const DRAIN: Duration = Duration::from_secs(2);
/// How often idle buffers and windows are given back.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Entries of each thread's ring.
const RING_ENTRIES: u32 = 256;
/// Accepted connections on their way to another thread.
const HANDED_OVER_MAX: usize = 1024;
/// Letters from the remover of data files to the metadata thread.
const LETTERS_MAX: usize = 64;
/// Cluster files that were read again, on their way to the metadata thread.
const FILES_MAX: usize = 4;
/// Name of the store in a metadata server's directory.
pub(crate) const NAMES_DIRECTORY: &str = "names";

/// Why a server does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The cluster file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The storage directory of an I/O server.
    #[error("{server}: {source}")]
    Storage {
        /// Which server.
        server: String,
        /// What is wrong with it.
        source: StorageError,
    },
    /// The store of a metadata server.
    #[error("{server}: {source}")]
    Names {
        /// Which server.
        server: String,
        /// What is wrong with it.
        source: EngineError,
    },
    /// The store belongs to another cluster.
    #[error(
        "{server}: {directory} holds the names of another cluster ({found}); give this server a directory of its own",
        directory = directory.display()
    )]
    OtherCluster {
        /// Which server.
        server: String,
        /// Its directory.
        directory: PathBuf,
        /// The cluster found in it.
        found: crate::config::ClusterId,
    },
    /// There is nothing where a metadata server's store is expected.
    #[error(
        "{server}: {directory} holds no names: {found}. If its disk is not mounted, or its path is wrong, mend that. To make a \
         new, empty store there: weft serve --format",
        directory = directory.display()
    )]
    NoNames {
        /// Which server.
        server: String,
        /// Where the store is expected.
        directory: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A store is made only where none is.
    #[error(
        "{server}: {directory} holds names already, and a store is never overwritten; nothing was changed",
        directory = directory.display()
    )]
    HasNames {
        /// Which server.
        server: String,
        /// Where the store is.
        directory: PathBuf,
    },
    /// The cluster file does not go with the map.
    #[error("{server}: {source}")]
    Map {
        /// The metadata server.
        server: String,
        /// What is wrong.
        source: MapError,
    },
    /// The storage is not the one that the cluster knows, or not the newest.
    #[error("{server}: {reason}")]
    WrongStorage {
        /// Which server.
        server: String,
        /// What was found, what was expected, and what to do.
        reason: String,
    },
    /// A host of the cluster file.
    #[error("{server}: cannot find the address {address}: {source}; check it in the cluster file")]
    Address {
        /// Which server.
        server: String,
        /// As in the cluster file.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// A socket to listen on.
    #[error("{server}: {source}")]
    Listen {
        /// Which server.
        server: String,
        /// Where and why.
        source: ListenError,
    },
    /// RDMA is required.
    #[error("{server}: rdma is \"require\" in the cluster file, but it cannot be used: {reason}")]
    Rdma {
        /// Which server.
        server: String,
        /// What is missing.
        reason: String,
    },
    /// io_uring was asked for and is not there.
    #[error(
        "{server}: io_uring cannot be used here: {source}; set disk = \"plain\" or \"auto\" in the cluster file"
    )]
    Ring {
        /// Which server.
        server: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The store of a metadata server failed while it ran.
    #[error(
        "{server}: {reason}. It has ended so that nothing is acknowledged that may be lost; check the disk, then start it again"
    )]
    StoreFailed {
        /// Which server.
        server: String,
        /// What the store said.
        reason: String,
    },
    /// Something else of the operating system.
    #[error("{server}: cannot {what}: {source}")]
    System {
        /// Which server.
        server: String,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl ServerError {
    /// Whether a new start ends the same way until somebody changes the configuration or the storage.
    pub fn is_permanent(&self) -> bool {
        use ServerError::*;
        match self {
            Config(_) | OtherCluster { .. } | Ring { .. } => true,
            NoNames { .. } | HasNames { .. } | Map { .. } | WrongStorage { .. } => true,
            Storage { source, .. } => {
                matches!(source, StorageError::WrongDirectory { .. } | StorageError::NoStorage { .. })
            }
            _ => false,
        }
    }
}

/// A server whose storage is open and which listens, on sockets and with RDMA: clients that connect now wait for [`Server::run`].
pub struct Server<F: Fabric = RdmaCore> {
    shared: Arc<Shared>,
    keys: ClusterKeys,
    key_file: Option<PathBuf>,
    config: ClusterConfig,
    server: ServerConfig,
    doors: Doors<F>,
    storage: Storage,
    calibration: Calibration,
    restore: bool,
    files: (MailSender<FileMap>, Mailbox<FileMap>),
}

/// Has a running server read its cluster file again. Clones are for the same server.
#[derive(Clone)]
pub struct Reloader {
    name: String,
    path: PathBuf,
    cluster_id: ClusterId,
    files: MailSender<FileMap>,
}

impl Reloader {
    /// A metadata server takes over which servers there are and where, and the layout of files for which nothing else is asked. An
    /// I/O server hears of these from it. Anything else of the file is for the next start.
    ///
    /// # Errors
    /// The file cannot be read, or makes no sense; nothing has changed then.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let config = ClusterConfig::load(&self.path)?;
        if config.cluster.id != self.cluster_id {
            return Err(ConfigError::Value {
                path: self.path.clone(),
                key: "cluster.id".into(),
                reason: "it is another cluster's".into(),
                cure: "put the file of this cluster back".into(),
            });
        }
        if self.files.send(FileMap::of(&config)).is_err() {
            log::warning!(&self.name, "is busy or stopping, and did not read the cluster file again");
        }
        Ok(())
    }
}

/// What a server keeps its data in.
enum Storage {
    Data(DataFiles<LocalDisk>, DiskEngine, IoStorage),
    Names(Box<Namespace<FjallEngine>>, OwnStorage, Box<KeptMap>),
}

/// Which storage an I/O server has.
struct IoStorage {
    storage: RandomId,
    state: StateFile,
    /// This run of the server, random.
    run: RandomId,
}

/// Makes the storage of the server `name`, in a directory that has none.
///
/// # Errors
/// See [`ServerError`].
pub fn format_storage(config: &ClusterConfig, name: &str) -> Result<(), ServerError> {
    let server = config.server(name)?;
    let directory = config.directory_of(server);
    let system = |what, source| ServerError::System { server: name.to_owned(), what, source };
    match server.role {
        ServerRole::Io => {
            let storage = random_id().map_err(|source| system("make random numbers", source))?;
            Directory::format(&directory, &identity(config, server), &storage)
                .map_err(|source| ServerError::Storage { server: name.to_owned(), source })
        }
        ServerRole::Meta => {
            std::fs::create_dir_all(&directory).map_err(|source| system("make its directory", source))?;
            format_names(config, server, &directory.join(NAMES_DIRECTORY))
        }
    }
}

/// Whether the server `name` has a storage in its directory, or the remains of one.
///
/// # Errors
/// [`ServerError::Config`] where there is no such server.
pub fn has_storage(config: &ClusterConfig, name: &str) -> Result<bool, ServerError> {
    let server = config.server(name)?;
    let directory = config.directory_of(server);
    Ok(match server.role {
        ServerRole::Io => Directory::is_formatted(&directory),
        ServerRole::Meta => FjallEngine::is_store(&directory.join(NAMES_DIRECTORY)),
    })
}

impl Server {
    /// Opens the storage of the server `name`, and listens.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start(
        config: &ClusterConfig,
        name: &str,
        keys: impl Into<ClusterKeys>,
    ) -> Result<Server, ServerError> {
        Server::start_over(config, name, keys, RdmaCore::load)
    }
}

impl<F: Fabric> Server<F> {
    /// As [`Server::start`], over the RDMA that `load` gives.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start_over(
        config: &ClusterConfig,
        name: &str,
        keys: impl Into<ClusterKeys>,
        load: impl FnOnce() -> Result<F, VerbsError>,
    ) -> Result<Server<F>, ServerError> {
        Server::start_in_boot(config, name, keys, load, FjallOptions::default().boot_id)
    }

    /// As [`Server::start_over`], on a machine whose present start has this identity: what another start has left of a metadata
    /// store may be torn. For tests of power cuts.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start_in_boot(
        config: &ClusterConfig,
        name: &str,
        keys: impl Into<ClusterKeys>,
        load: impl FnOnce() -> Result<F, VerbsError>,
        boot_id: [u8; 16],
    ) -> Result<Server<F>, ServerError> {
        let keys = keys.into();
        let ring = KeyRing::new(&keys);
        let server = config.server(name)?.clone();
        raise_limit(libc::RLIMIT_NOFILE);
        raise_limit(libc::RLIMIT_MEMLOCK);
        let (storage, disk) = match server.role {
            ServerRole::Meta => (open_names(config, &server, boot_id)?, "names"),
            ServerRole::Io => open_data(config, &server)?,
        };
        let sockets = listen(config, &server)?;
        let Rdma { listening, told } = Rdma::open(&server, &ring, load)?;
        let calibration = calibrate(config, &server, &storage);
        let revoked = match server.role {
            ServerRole::Meta => Revoked::default(),
            ServerRole::Io => Revoked::load(&config.directory_of(&server)).map_err(|source| {
                ServerError::System { server: name.to_owned(), what: "read its list of revoked keys", source }
            })?,
        };
        let map = CurrentMap::new(match &storage {
            Storage::Names(_, _, kept) => kept.map.clone(),
            _ => saved_map::load(name, &config.directory_of(&server), config.cluster.id.0)
                .unwrap_or_else(|| ClusterMapReply { version: 0, ..first_map(config) }),
        });
        let map = map.map_err(|source| ServerError::System {
            server: name.to_owned(),
            what: "make an eventfd",
            source,
        })?;
        let mut shared = Shared::new(config, &server, ring, disk, told, revoked, map);
        shared.confirmed = Confirmed::new(false);
        let shared = Arc::new(shared);
        Ok(Server {
            shared,
            keys,
            key_file: None,
            config: config.clone(),
            server,
            doors: Doors { sockets, rdma: listening },
            storage,
            calibration,
            restore: false,
            files: mailbox(FILES_MAX),
        })
    }

    /// From when on its requests count as slow; may be changed while it runs.
    pub fn slow_request_ms(&self) -> SlowRequestMs {
        self.shared.slow.threshold.clone()
    }

    /// A metadata server goes on with its store although that is older than the I/O servers know: it was put back from a copy. All
    /// I/O servers must be up. What was made since has no names any more, and nothing of it is removed.
    #[must_use]
    pub fn accept_older(self) -> Server<F> {
        Server { restore: true, ..self }
    }

    /// The cluster's keys are in this file: what changes in it is taken over while the server runs.
    #[must_use]
    pub fn follow_keys(self, path: PathBuf) -> Server<F> {
        Server { key_file: Some(path), ..self }
    }

    /// To have it read its cluster file again while it runs.
    pub fn reloader(&self) -> Reloader {
        Reloader {
            name: self.server.name.clone(),
            path: self.config.path.clone(),
            cluster_id: self.config.cluster.id,
            files: self.files.0.clone(),
        }
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    /// Of the operating system, while the threads are set up.
    pub fn run(self, stop: &StopFlag) -> Result<(), ServerError> {
        let Server { shared, keys, key_file, config, server, doors, storage, calibration, restore, files } =
            self;
        let name = server.name.clone();
        let bound: Vec<SocketAddr> = doors.sockets.iter().filter_map(Listening::address).collect();
        for address in &bound {
            log::info!(&name, "listens on {address}");
        }
        for address in &server.addresses {
            let found = resolve(&server, address).unwrap_or_default();
            if let Some(warning) = unreachable_from_elsewhere(address, &found) {
                log::warning!(&name, "{warning}");
            }
        }
        shared.rdma.log(&name);
        let run = Run { shared, keys, key_file, config, server, calibration, stop: stop.clone() };
        let ended = match storage {
            Storage::Data(files, engine, storage) => {
                let ring_entries = (engine == DiskEngine::Ring).then_some(RING_ENTRIES);
                run.io(files, storage, ring_entries, doors)
            }
            Storage::Names(namespace, own, map) => run.meta(*namespace, (own, *map), files.1, restore, doors),
        };
        log::info!(&name, "has stopped");
        let system = |source| ServerError::System { server: name.clone(), what: "run its threads", source };
        match ended.map_err(system)? {
            End::Asked => Ok(()),
            End::StoreFailed(reason) => Err(ServerError::StoreFailed { server: name, reason }),
            End::WrongStorage(reason) => Err(ServerError::WrongStorage { server: name, reason }),
        }
    }
}

/// Connections and data files need more descriptors than the usual soft limit, and RDMA more locked memory.
fn raise_limit(resource: libc::__rlimit_resource_t) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and writable. A limit that cannot be raised is kept.
    unsafe {
        if libc::getrlimit(resource, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(resource, &limit);
        }
    }
}

/// Descriptors that this process may have.
pub(crate) fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and writable.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => 0,
    }
}

fn format_names(config: &ClusterConfig, server: &ServerConfig, directory: &Path) -> Result<(), ServerError> {
    let names = |source| ServerError::Names { server: server.name.clone(), source };
    let mut engine = FjallEngine::open(directory, &FjallOptions::default()).map_err(names)?;
    if Namespace::is_formatted(&engine).map_err(names)? {
        return Err(ServerError::HasNames { server: server.name.clone(), directory: directory.to_owned() });
    }
    // SAFETY: these calls only return numbers.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let owner = Caller { uid, gid, groups: Vec::new() };
    Namespace::format(&mut engine, config.cluster.id.0, &owner, crate::meta::now()).map_err(names)
}

fn open_names(
    config: &ClusterConfig,
    server: &ServerConfig,
    boot_id: [u8; 16],
) -> Result<Storage, ServerError> {
    let names = |source| ServerError::Names { server: server.name.clone(), source };
    let directory = config.directory_of(server).join(NAMES_DIRECTORY);
    let no_names =
        |found| ServerError::NoNames { server: server.name.clone(), directory: directory.clone(), found };
    if !FjallEngine::is_store(&directory) {
        let found = if directory.exists() { "there is no store in it" } else { "there is no such directory" };
        return Err(no_names(found));
    }
    let options = FjallOptions { boot_id, ..FjallOptions::default() };
    let engine = FjallEngine::open(&directory, &options).map_err(names)?;
    if engine.torn_bytes() > 0 {
        let torn = engine.torn_bytes();
        crate::log::warning!(
            "meta",
            "cut {torn} bytes from the end of the journal in {}: changes that were interrupted before they were synced",
            directory.display()
        );
    }
    if !Namespace::is_formatted(&engine).map_err(names)? {
        return Err(no_names("its store is empty, since making it was interrupted"));
    }
    let options = NamespaceOptions {
        ring_servers: config.io_servers().count() as u16,
        strip_bytes: config.cluster.strip_bytes,
        server_count: config.cluster.server_count,
        ..NamespaceOptions::default()
    };
    let mut namespace = Namespace::open(engine, options).map_err(names)?;
    if namespace.cluster_uuid() != config.cluster.id.0 {
        let found = crate::config::ClusterId(namespace.cluster_uuid());
        return Err(ServerError::OtherCluster { server: server.name.clone(), directory, found });
    }
    let own = namespace.own_storage(new_id(server)?).map_err(names)?;
    let kept = open_map(config, server, &mut namespace, &own)?;
    Ok(Storage::Names(Box::new(namespace), own, Box::new(kept)))
}

/// Brings the map of the store up to date with the cluster file.
pub(crate) fn open_map<E: Engine>(
    config: &ClusterConfig,
    server: &ServerConfig,
    namespace: &mut Namespace<E>,
    own: &OwnStorage,
) -> Result<KeptMap, ServerError> {
    let names = |source| ServerError::Names { server: server.name.clone(), source };
    let wrong = |source| ServerError::Map { server: server.name.clone(), source };
    let file = FileMap::of(config);
    let before = meta::map::load(namespace).map_err(names)?;
    let after = match &before {
        Some(kept) => kept.after(&Event::Started(file, own.storage)).map_err(wrong)?,
        None => {
            let known = namespace.servers().map_err(names)?;
            if let Some((id, record)) = known.iter().find(|(id, _)| usize::from(*id) >= file.io.len()) {
                return Err(wrong(MapError::lost(&file, &record.name, *id)));
            }
            let known: Vec<_> = known.iter().map(|(id, record)| (*id, record.seen.storage)).collect();
            KeptMap::first(&file, own.storage, &known)
        }
    };
    if before.as_ref() != Some(&after) {
        let stored = {
            let mut op = namespace.begin();
            op.put_map_record(meta::map::record(&after));
            op.commit()
        };
        let failed = |error: MetaError| names(EngineError::Format(error.to_string()));
        stored.map_err(failed)?;
        namespace.syncer().sync().map_err(names)?;
    }
    for missing in after.map.io_servers().skip(config.io_servers().count()) {
        log::warning!(
            &server.name,
            "the cluster file lacks {}, which was added since: copy the newest file here",
            missing.name
        );
    }
    meta::map::lay_out_by(namespace, &after);
    Ok(after)
}

fn new_id(server: &ServerConfig) -> Result<RandomId, ServerError> {
    let what = "make random numbers";
    random_id().map_err(|source| ServerError::System { server: server.name.clone(), what, source })
}

fn identity(config: &ClusterConfig, server: &ServerConfig) -> Identity {
    Identity { cluster_id: config.cluster.id.0, server_id: config.id_of(server) }
}

fn open_data(config: &ClusterConfig, server: &ServerConfig) -> Result<(Storage, &'static str), ServerError> {
    let storage = |source| ServerError::Storage { server: server.name.clone(), source };
    let directory = config.directory_of(server);
    let identity = identity(config, server);
    let engine = match server.disk {
        DiskChoice::Plain => DiskEngine::Plain,
        DiskChoice::Ring | DiskChoice::Auto => {
            match Reactor::new(reactor_options(server, Some(RING_ENTRIES))) {
                Ok(_) => DiskEngine::Ring,
                Err(source) if server.disk == DiskChoice::Ring => {
                    return Err(ServerError::Ring { server: server.name.clone(), source });
                }
                Err(_) => DiskEngine::Plain,
            }
        }
    };
    let disk = LocalDisk::open(&directory, &identity, engine).map_err(storage)?;
    let state = StateFile::open(&directory).map_err(storage)?;
    let state = IoStorage { storage: disk.storage(), state, run: new_id(server)? };
    Ok((Storage::Data(DataFiles::new(disk), engine, state), engine.name()))
}

/// The cost model of a server with data files. It is measured at the first start, with clients waiting at the sockets: a part of a
/// second once, so that no request is ever planned with figures from elsewhere.
fn calibrate(config: &ClusterConfig, server: &ServerConfig, storage: &Storage) -> Calibration {
    let with_ring = match storage {
        Storage::Names(..) => return Calibration::fixed(),
        Storage::Data(_, engine, _) => *engine == DiskEngine::Ring,
    };
    let (calibration, begun) = Calibration::begin(&config.directory_of(server), with_ring);
    if let Some(why) = begun.rejected {
        log::warning!(&server.name, "the stored cost model is not used: {why}");
    }
    match begun.origin {
        Origin::Stored => {}
        Origin::Default(_) => log::warning!(&server.name, "{}", begun.origin),
        _ => log::info!(&server.name, "{}", begun.origin),
    }
    if let Some(error) = begun.unsaved {
        log::warning!(
            &server.name,
            "cannot store the cost model, and will measure at the next start: {error}"
        );
    }
    calibration
}

fn reactor_options(server: &ServerConfig, ring_entries: Option<u32>) -> ReactorOptions {
    ReactorOptions { ring_entries, spin_us: server.spin_us }
}

/// Why a server has ended.
enum End {
    /// It was asked to.
    Asked,
    /// Its metadata store failed.
    StoreFailed(String),
    /// Its storage is not to be served from.
    WrongStorage(String),
}

/// A server that runs.
struct Run {
    shared: Arc<Shared>,
    keys: ClusterKeys,
    key_file: Option<PathBuf>,
    config: ClusterConfig,
    server: ServerConfig,
    calibration: Calibration,
    stop: StopFlag,
}

impl Run {
    /// Has the server's keys follow their file, on the current reactor.
    fn follow_keys(&self) {
        if let Some(path) = &self.key_file {
            let (file, ring) = (KeyFile::new(path.clone()), self.shared.keys.clone());
            weft_reactor::spawn(key_ring::follow(file, ring, self.keys.clone(), self.server.name.clone()));
        }
    }

    /// The metadata server: one thread, and the remover of data files. `files` are cluster files that were read again.
    fn meta<F: Fabric>(
        self,
        namespace: Namespace<FjallEngine>,
        (own, map): (OwnStorage, KeptMap),
        mut files: Mailbox<FileMap>,
        restore: bool,
        doors: Doors<F>,
    ) -> io::Result<End> {
        let reactor = Reactor::new(reactor_options(&self.server, None))?;
        let (letters, mut letterbox) = mailbox::<Letter<FjallEngine>>(LETTERS_MAX);
        let poke = Poke::default();
        let run = random_id()?;
        let was_loaded = namespace.was_loaded().map_err(io::Error::other)?;
        if was_loaded {
            let name = &self.shared.name;
            log::warning!(
                name,
                "goes on from a backup or an older copy as soon as all I/O servers are up; what came after it is given up"
            );
        }
        let restore = Restore { wanted: restore || was_loaded, ..Restore::default() };
        let checks = fsck::Setup {
            map: self.shared.map.clone(),
            keys: self.shared.keys.clone(),
            stop: self.stop.clone(),
            namespace: letters.clone(),
            orphan_age_s: self.config.cluster.orphan_age_s,
        };
        let remover = garbage::start(garbage::Setup {
            cluster: self.config.cluster.clone(),
            map: self.shared.map.clone(),
            keys: self.shared.keys.clone(),
            stop: self.stop.clone(),
            poke: poke.clone(),
            namespace: letters,
            syncer: namespace.syncer(),
            shared: self.shared.clone(),
            restore: restore.clone(),
        })?;
        let announcer = Announcer::new(self.shared.map.clone());
        let teller = announcer.start(self.shared.keys.clone(), self.stop.clone())?;
        let ring_servers = map.ring_servers();
        let served = reactor.run(async {
            let meta = MetaPart::start(
                namespace,
                self.server.sync,
                self.shared.keys.clone(),
                ring_servers,
                poke,
                self.stop.clone(),
            )?;
            meta.allow_checks(checks);
            meta.keep_map(&self.shared.name, map, self.shared.map.clone());
            let (name, confirmed) = (self.shared.name.clone(), self.shared.confirmed.clone());
            let is_restoring = restore.wanted;
            meta.keep_registry(Registry::new(name, own, run, confirmed, restore));
            self.shared.revoked.set(meta.revoked_keys())?;
            meta.announce_by(announcer, is_restoring);
            let part = meta.clone();
            weft_reactor::spawn(async move {
                while let Some(letter) = letterbox.receive().await {
                    letter(&mut part.namespace.borrow_mut());
                }
            });
            let part = meta.clone();
            weft_reactor::spawn(async move {
                while let Some(file) = files.receive().await {
                    part.read_file_again(file).await;
                }
            });
            meta.poke_garbage();
            self.follow_keys();
            let node = Node::<MemDisk, _>::new(self.shared.clone(), Part::Meta(meta.clone()));
            let host = Host { node, rdma: rdma::on_thread(&self.shared, 0, self.server.spin_us) };
            let served = accept_and_serve(host, &self.stop, doors, Vec::new()).await;
            served?;
            if meta.failure().is_none()
                && let Err(refusal) = meta.sync_all().await
            {
                log::warning!(&self.server.name, "cannot make the last changes durable: {}", refusal.text);
            }
            Ok(match (meta.storage_failure(), meta.failure()) {
                (Some(reason), _) => End::WrongStorage(reason),
                (None, Some(reason)) => End::StoreFailed(reason),
                (None, None) => End::Asked,
            })
        });
        drop(reactor);
        // The remover ends by the same flag; a panic of it has been printed.
        let _ = remover.join();
        let _ = teller.join();
        served
    }

    /// An I/O server: threads over the same data files, and one that keeps in touch with the metadata server.
    fn io<F: Fabric, D: Disk>(
        self,
        files: DataFiles<D>,
        storage: IoStorage,
        ring: Option<u32>,
        doors: Doors<F>,
    ) -> io::Result<End> {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let threads = self.server.threads.map_or(processors.min(4), usize::from);
        let pool_bytes = self.server.buffers_bytes as usize / threads;
        let options = reactor_options(&self.server, ring);
        let thread = |number, files| IoThread {
            number,
            options,
            shared: self.shared.clone(),
            sync: self.server.sync,
            files,
            pool_bytes,
            calibration: self.calibration.clone(),
            stop: self.stop.clone(),
        };
        let lose = files.clone();
        let member_setup = member::Setup {
            storage: storage.storage,
            state: storage.state,
            run: storage.run,
            directory: self.shared.directory.clone(),
            endpoints: endpoints_of(&self.config, &self.server),
            meta: first_map(&self.config).servers.swap_remove(0),
            cluster_file: self.config.path.clone(),
            keys: self.shared.keys.clone(),
            stop: self.stop.clone(),
            shared: self.shared.clone(),
            lose_below: Box::new(move |ino| lose.lose_below(ino)),
        };
        let care = caretaker::Setup {
            files: files.clone(),
            shared: self.shared.clone(),
            stop: self.stop.clone(),
            settle_s: self.config.cluster.data_settle_s,
            scrub_interval_s: self.config.cluster.data_scrub_interval_s,
            scrub_bytes_per_s: self.config.cluster.data_scrub_bytes_per_s,
        };
        std::thread::scope(|scope| {
            let caretaker = std::thread::Builder::new().name("weft-sums".into());
            caretaker.spawn_scoped(scope, || caretaker::run(care))?;
            let member = std::thread::Builder::new().name("weft-member".into());
            let member = member.spawn_scoped(scope, || member::run(member_setup))?;
            let mut others = Vec::new();
            for number in 1..threads {
                let (sender, arrivals) = mailbox(HANDED_OVER_MAX);
                let thread = thread(number, files.clone());
                std::thread::Builder::new()
                    .name(format!("weft-io-{number}"))
                    .spawn_scoped(scope, move || thread.run_other(arrivals))?;
                others.push(sender);
            }
            let first = thread(0, files);
            let served = Reactor::new(options)?.run(async {
                self.follow_keys();
                accept_and_serve(first.host()?, &self.stop, doors, others).await
            });
            self.stop.stop();
            let refused = member.join().unwrap_or_default();
            served.map(|()| refused.map_or(End::Asked, End::WrongStorage))
        })
    }
}

/// One data-path thread of an I/O server.
struct IoThread<D: Disk> {
    number: usize,
    options: ReactorOptions,
    shared: Arc<Shared>,
    sync: crate::config::SyncMode,
    files: DataFiles<D>,
    pool_bytes: usize,
    calibration: Calibration,
    stop: StopFlag,
}

impl<D: Disk> IoThread<D> {
    /// On the current reactor.
    fn host<F: Fabric>(self) -> io::Result<Host<F, D, MemEngine>> {
        let pool = BufferPool::new(self.pool_bytes)?;
        let rdma = rdma::on_thread(&self.shared, self.number, self.options.spin_us);
        if let Some(thread) = &rdma {
            rdma::keep_zones(&pool, thread, &self.shared.name);
        }
        let methods = MethodCounters::among(&self.shared.counters);
        let keys = self.shared.keys.clone();
        let part = IoPart::new(self.files, pool, self.shared.id, keys, self.sync, self.calibration, methods);
        let node = Node::new(self.shared, Part::Io(part));
        weft_reactor::spawn(keep_house(Rc::downgrade(&node)));
        Ok(Host { node, rdma })
    }

    fn run_other<F: Fabric>(self, mut arrivals: Mailbox<Arrival<F>>) {
        let (stop, name) = (self.stop.clone(), self.shared.name.clone());
        let served = Reactor::new(self.options).and_then(|reactor| {
            reactor.run(async {
                let host = self.host()?;
                let node = host.node.clone();
                weft_reactor::spawn(async move {
                    while let Some(arrival) = arrivals.receive().await {
                        host.serve(arrival);
                    }
                });
                stop.wait().await?;
                drain(&node).await;
                Ok(())
            })
        });
        if let Err(error) = served {
            log::warning!(&name, "a data-path thread has ended: {error}");
            stop.stop();
        }
    }
}

/// Gives back what idles, and brings the gauges up to date.
async fn keep_house<D: Disk, E: Engine + 'static>(node: std::rc::Weak<Node<D, E>>) {
    let mut told = [0u64; 2];
    loop {
        weft_reactor::sleep(HOUSEKEEPING).await;
        let Some(node) = node.upgrade() else { return };
        let Part::Io(part) = &node.part else { return };
        part.pool.shrink_idle();
        part.files.shrink_idle();
        let (pool, files) = (part.pool.stats(), part.files.stats());
        let gauge = |name| node.shared.counters.gauge(name);
        gauge("data_files_open").store(files.open_files as u64, Ordering::Relaxed);
        gauge("windows_mapped").store(files.windows as u64, Ordering::Relaxed);
        // Each thread has a pool of its own and adds what changed in it.
        let now = [pool.used_bytes as u64, pool.waiting as u64];
        for (at, name) in ["buffers_used_bytes", "buffers_waiting_requests"].into_iter().enumerate() {
            gauge(name).fetch_add(now[at].wrapping_sub(told[at]), Ordering::Relaxed);
        }
        told = now;
    }
}

/// Accepts connections and serves them here and on the other threads, until `stop` is set and all is drained.
async fn accept_and_serve<F: Fabric, D: Disk, E: Engine + 'static>(
    host: Host<F, D, E>,
    stop: &StopFlag,
    doors: Doors<F>,
    others: Vec<MailSender<Arrival<F>>>,
) -> io::Result<()> {
    let node = host.node.clone();
    let accepting = accept_all(doors, host, others);
    stop.wait().await?;
    accepting.into_iter().for_each(weft_reactor::JoinHandle::cancel);
    drain(&node).await;
    Ok(())
}

/// Ends the connections; requests under way have some time.
async fn drain<D: Disk, E: Engine + 'static>(node: &Node<D, E>) {
    node.stopping.set();
    if let Part::Meta(meta) = &node.part {
        meta.stop_locks();
    }
    let deadline = Instant::now() + DRAIN;
    while node.under_way.get() > 0 && Instant::now() < deadline {
        weft_reactor::sleep(Duration::from_millis(2)).await;
    }
}
