//! What a server keeps its data in: made once (`weft serve --format`), opened at each start.
//!
//! ```text
//!   metadata server   DIR/names   store ─► namespace ─► the map of the store, brought up to date with the cluster file
//!   I/O server        DIR/…       data files, over io_uring or system calls, with their cost model
//! ```

use crate::clock::now;
use crate::config::{ClusterConfig, ClusterId, DiskChoice, NAMES_DIRECTORY, ServerConfig, ServerRole};
use crate::crowd::Shares;
use crate::error::ServerError;
use crate::log;
use crate::map::{Event, FileMap, KeptMap, MapError};
use crate::meta::map_record as kept_map;
use crate::process_limits::descriptors_max;
use std::path::Path;
use weft_meta::{
    Caller, Engine, EngineError, FjallEngine, FjallOptions, MetaError, Namespace, NamespaceOptions,
    OwnStorage,
};
use weft_reactor::{Reactor, ReactorOptions};
use weft_storage::calibrate::{Calibration, Origin};
use weft_storage::limits::WINDOWS_MAX;
use weft_storage::{DataFiles, Directory, DiskEngine, Identity, LocalDisk, RandomId, StateFile};

/// Entries of the io_uring of each thread.
pub(crate) const RING_ENTRIES: u32 = 256;

/// What a server keeps its data in.
pub(crate) enum Storage {
    Data(DataFiles<LocalDisk>, DiskEngine, IoStorage),
    Names(Box<Names>),
}

/// The store of a metadata server, open.
pub(crate) struct Names {
    pub namespace: Namespace<FjallEngine>,
    pub own: OwnStorage,
    pub map: KeptMap,
}

/// Which storage an I/O server has.
pub(crate) struct IoStorage {
    pub storage: RandomId,
    pub state: StateFile,
    /// This run of the server, random.
    pub run: RandomId,
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
            let storage = weft_host::random().map_err(|source| system("make random numbers", source))?;
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

/// Has the next start of the I/O server `name` go on although most of its data files are missing.
///
/// # Errors
/// See [`ServerError`].
pub fn accept_loss(config: &ClusterConfig, name: &str) -> Result<(), ServerError> {
    Directory::accept_loss(&config.directory_of(config.server(name)?))
        .map_err(|source| ServerError::Storage { server: name.to_owned(), source })
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
    Namespace::format(&mut engine, config.cluster.id.0, &owner, now()).map_err(names)
}

/// Opens the store of a metadata server.
pub(crate) fn open_names(
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
    let tables_open = Shares::of(descriptors_max()).data_files;
    let options = FjallOptions { boot_id, tables_open, ..FjallOptions::default() };
    let engine = FjallEngine::open(&directory, &options).map_err(names)?;
    if engine.torn_bytes() > 0 {
        let torn = engine.torn_bytes();
        log::warning!(
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
        small_file_bytes: config.cluster.small_file_bytes,
        ..NamespaceOptions::default()
    };
    let mut namespace = Namespace::open(engine, options).map_err(names)?;
    if namespace.cluster_uuid() != config.cluster.id.0 {
        let found = ClusterId(namespace.cluster_uuid());
        return Err(ServerError::OtherCluster { server: server.name.clone(), directory, found });
    }
    let own = namespace.own_storage(new_id(server)?).map_err(names)?;
    let kept = open_map(config, server, &mut namespace, &own)?;
    Ok(Storage::Names(Box::new(Names { namespace, own, map: kept })))
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
    let before = kept_map::load(namespace).map_err(names)?;
    let after = match &before {
        Some(kept) => kept.after(&Event::Started(file, own.storage)).map_err(wrong)?,
        None => {
            let known = namespace.servers().map_err(names)?;
            if let Some((id, record)) = known.iter().find(|(id, _)| usize::from(*id) >= file.io.len()) {
                return Err(wrong(MapError::lost(file.io.len(), &record.name, *id)));
            }
            let known: Vec<_> = known.iter().map(|(id, record)| (*id, record.seen.storage)).collect();
            KeptMap::first(&file, own.storage, &known)
        }
    };
    if before.as_ref() != Some(&after) {
        let stored = namespace.change(|op| {
            op.put_map_record(kept_map::record(&after));
            Ok(())
        });
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
    kept_map::lay_out_by(namespace, &after);
    Ok(after)
}

fn new_id(server: &ServerConfig) -> Result<RandomId, ServerError> {
    let what = "make random numbers";
    weft_host::random().map_err(|source| ServerError::System { server: server.name.clone(), what, source })
}

fn identity(config: &ClusterConfig, server: &ServerConfig) -> Identity {
    Identity { cluster_id: config.cluster.id.0, server_id: config.id_of(server) }
}

/// Opens the data directory of an I/O server; also says how its disk is accessed.
pub(crate) fn open_data(
    config: &ClusterConfig,
    server: &ServerConfig,
) -> Result<(Storage, &'static str), ServerError> {
    let storage = |source| ServerError::Storage { server: server.name.clone(), source };
    let directory = config.directory_of(server);
    let identity = identity(config, server);
    let engine = match server.disk {
        DiskChoice::Plain => DiskEngine::Plain,
        DiskChoice::Ring | DiskChoice::Auto => {
            match Reactor::new(ReactorOptions { ring_entries: Some(RING_ENTRIES), spin_us: server.spin_us }) {
                Ok(_) => DiskEngine::Ring,
                Err(source) if server.disk == DiskChoice::Ring => {
                    return Err(ServerError::Ring { server: server.name.clone(), source });
                }
                Err(_) => DiskEngine::Plain,
            }
        }
    };
    let disk = LocalDisk::open(&directory, &identity, engine).map_err(storage)?;
    if let Some(emptied) = disk.emptied() {
        log::warning!(
            &server.name,
            "of {} data files that were looked for {} are missing, as was accepted with --accept-loss: weft fsck lists the files",
            emptied.looked_for,
            emptied.missing
        );
    }
    let state = StateFile::open(&directory).map_err(storage)?;
    let state = IoStorage { storage: disk.storage(), state, run: new_id(server)? };
    let files = DataFiles::with_bounds(disk, Shares::of(descriptors_max()).data_files, WINDOWS_MAX);
    Ok((Storage::Data(files, engine, state), engine.name()))
}

/// The cost model of a server with data files. It is measured at the first start, with clients waiting at the
/// sockets: a part of a second once, so that no request is ever planned with figures from elsewhere.
pub(crate) fn calibrate(config: &ClusterConfig, server: &ServerConfig, storage: &Storage) -> Calibration {
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
