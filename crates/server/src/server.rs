//! One server, from its start to its end.
//!
//! ```text
//!   start   storage ─► sockets ─► RDMA ─► cost model                  all that can fail, fails here
//!   run     run_io.rs or run_meta.rs: threads that accept and serve
//!   stop    nothing is accepted, requests under way have 2 s, then everything is dropped
//! ```

use crate::config::{ClusterConfig, ServerConfig, ServerRole};
use crate::current::CurrentMap;
use crate::error::ServerError;
use crate::key_ring::KeyRing;
use crate::listen::Doors;
use crate::log;
use crate::map::{FileMap, first_map};
use crate::metrics;
use crate::process_limits;
use crate::reload::Reloader;
use crate::revoked::Revoked;
use crate::run::{End, Run};
use crate::run_io;
use crate::run_meta;
use crate::saved_map;
use crate::shared::{Confirmed, Shared};
use crate::slow::SlowRequestMs;
use crate::stop::StopFlag;
use crate::storage::{RING_ENTRIES, Storage, calibrate, open_data, open_names};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use weft_meta::FjallOptions;
use weft_reactor::{MailSender, Mailbox, mailbox};
use weft_storage::DiskEngine;
use weft_storage::calibrate::Calibration;
use weft_verbs::{Fabric, RdmaCore, VerbsError};
use weft_wire::messages::ClusterMapReply;
use weft_wire::security::ClusterKeys;

/// Cluster files that were read again, on their way to the metadata thread.
const FILES_MAX: usize = 4;

/// A server whose storage is open and which listens, on sockets and with RDMA: clients that connect now wait
/// for [`Server::run`].
pub struct Server {
    shared: Arc<Shared>,
    keys: ClusterKeys,
    key_file: Option<PathBuf>,
    config: ClusterConfig,
    server: ServerConfig,
    front: Box<dyn Front>,
    storage: Storage,
    calibration: Calibration,
    restore: bool,
    files: (MailSender<FileMap>, Mailbox<FileMap>),
}

/// A server's doors, of whichever RDMA they are. Behind it is all code that depends on the RDMA, so that this
/// crate has it for the real one: programs that start servers do not compile it again.
trait Front: Send {
    fn log(&self, server: &ServerConfig);

    /// Serves until the server is stopped.
    fn serve(self: Box<Self>, run: &Run, stored: Stored) -> io::Result<End>;
}

/// What a server serves.
struct Stored {
    storage: Storage,
    calibration: Calibration,
    restore: bool,
    files: Mailbox<FileMap>,
}

impl<F: Fabric> Front for Doors<F> {
    fn log(&self, server: &ServerConfig) {
        Doors::log(self, server);
    }

    fn serve(self: Box<Self>, run: &Run, stored: Stored) -> io::Result<End> {
        match stored.storage {
            Storage::Data(files, engine, storage) => {
                let ring_entries = (engine == DiskEngine::Ring).then_some(RING_ENTRIES);
                run_io::run(run, files, storage, stored.calibration, ring_entries, *self)
            }
            Storage::Names(names) => run_meta::run(run, *names, stored.files, stored.restore, *self),
        }
    }
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
        Server::start_real(config, name, keys.into())
    }

    /// Not generic, so that this crate has the whole server for the real RDMA.
    fn start_real(config: &ClusterConfig, name: &str, keys: ClusterKeys) -> Result<Server, ServerError> {
        Server::open(config, name, keys, RdmaCore::load, FjallOptions::default().boot_id)
    }

    /// As [`Server::start`], over the RDMA that `load` gives.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start_over<F: Fabric>(
        config: &ClusterConfig,
        name: &str,
        keys: impl Into<ClusterKeys>,
        load: impl FnOnce() -> Result<F, VerbsError>,
    ) -> Result<Server, ServerError> {
        Server::start_in_boot(config, name, keys, load, FjallOptions::default().boot_id)
    }

    /// As [`Server::start_over`], on a machine whose present start has this identity: what another start has
    /// left of a metadata store may be torn, and what was written to an I/O server and not synced may be lost.
    /// For tests of power cuts.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start_in_boot<F: Fabric>(
        config: &ClusterConfig,
        name: &str,
        keys: impl Into<ClusterKeys>,
        load: impl FnOnce() -> Result<F, VerbsError>,
        boot_id: [u8; 16],
    ) -> Result<Server, ServerError> {
        Server::open(config, name, keys.into(), load, boot_id)
    }

    fn open<F: Fabric>(
        config: &ClusterConfig,
        name: &str,
        keys: ClusterKeys,
        load: impl FnOnce() -> Result<F, VerbsError>,
        boot_id: [u8; 16],
    ) -> Result<Server, ServerError> {
        let ring = KeyRing::new(&keys);
        let server = config.server(name)?.clone();
        process_limits::raise();
        let (storage, disk) = match server.role {
            ServerRole::Meta => (open_names(config, &server, boot_id)?, "names"),
            ServerRole::Io => open_data(config, &server)?,
        };
        let (doors, report) = Doors::open(config, &server, &ring, load)?;
        let calibration = calibrate(config, &server, &storage);
        let revoked = match server.role {
            ServerRole::Meta => Revoked::default(),
            ServerRole::Io => Revoked::load(&config.directory_of(&server)).map_err(|source| {
                ServerError::System { server: name.to_owned(), what: "read its list of revoked keys", source }
            })?,
        };
        let map = CurrentMap::new(match &storage {
            Storage::Names(names) => names.map.map.clone(),
            _ => saved_map::load(name, &config.directory_of(&server), config.cluster.id.0)
                .unwrap_or_else(|| ClusterMapReply { version: 0, ..first_map(config) }),
        });
        let map = map.map_err(|source| ServerError::System {
            server: name.to_owned(),
            what: "make an eventfd",
            source,
        })?;
        let mut shared = Shared::new(config, &server, ring, disk, report, revoked, map);
        shared.confirmed = Confirmed::new(false);
        shared.data_boot_id = boot_id;
        let shared = Arc::new(shared);
        Ok(Server {
            shared,
            keys,
            key_file: None,
            config: config.clone(),
            server,
            front: Box::new(doors),
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

    /// A metadata server goes on with its store although that is older than the I/O servers know: it was put
    /// back from a copy. All I/O servers must be up. What was made since has no names any more, and nothing
    /// of it is removed.
    #[must_use]
    pub fn accept_older(self) -> Server {
        Server { restore: true, ..self }
    }

    /// The cluster's keys are in this file: what changes in it is taken over while the server runs.
    #[must_use]
    pub fn follow_keys(self, path: PathBuf) -> Server {
        Server { key_file: Some(path), ..self }
    }

    /// It serves metrics over HTTP at `address` (`HOST:PORT`), whatever the cluster file says.
    #[must_use]
    pub fn serve_metrics_at(mut self, address: String) -> Server {
        self.server.metrics = Some(address);
        self
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
        let Server { shared, keys, key_file, config, server, front, storage, calibration, restore, files } =
            self;
        let name = server.name.clone();
        let _metrics = match &server.metrics {
            None => None,
            Some(address) => {
                let started = metrics::serve(&shared, address).map_err(|source| ServerError::System {
                    server: name.clone(),
                    what: "listen at the address of its key `metrics`",
                    source,
                })?;
                log::info!(&name, "serves metrics at http://{}/metrics", started.address());
                Some(started)
            }
        };
        front.log(&server);
        shared.rdma.log(&name);
        let run = Run { shared, keys, key_file, config, server, stop: stop.clone() };
        let ended = front.serve(&run, Stored { storage, calibration, restore, files: files.1 });
        log::info!(&name, "has stopped");
        let system = |source| ServerError::System { server: name.clone(), what: "run its threads", source };
        match ended.map_err(system)? {
            End::Asked => Ok(()),
            End::StoreFailed(reason) => Err(ServerError::StoreFailed { server: name, reason }),
            End::WrongStorage(reason) => Err(ServerError::WrongStorage { server: name, reason }),
        }
    }
}
