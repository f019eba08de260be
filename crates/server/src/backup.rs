//! Making the directory of a metadata server from a backup, while the server is down.
//!
//! ```text
//!   FILE ─► read to its end, every checksum ─► DIR/names.loading, synced ─► (--replace: DIR/names to DIR/names.old-1) ─► DIR/names
//! ```
//!
//! Until the last step the directory is as it was, so that whatever comes between is harmless: the next loading begins anew.

use crate::config::{ClusterConfig, ClusterId, ConfigError, NAMES_DIRECTORY, ServerRole};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use weft_meta::{BackupError, BackupHead, BackupSize, FjallEngine, prepare_store, verify_backup};

/// Why a backup was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The cluster file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Only metadata servers have names.
    #[error("{name} is an I/O server; a backup of the names is for a metadata server")]
    NoMetadataServer {
        /// What was asked for.
        name: String,
    },
    /// The backup.
    #[error("{path}: {source}; nothing was changed", path = path.display())]
    Backup {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: BackupError,
    },
    /// It is of other names.
    #[error("{path} is a backup of another cluster ({found}); nothing was changed", path = path.display())]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: ClusterId,
    },
    /// There are names already.
    #[error(
        "{directory} holds names already; nothing was changed. To move them aside and go on from the backup: --replace",
        directory = directory.display()
    )]
    HasNames {
        /// The server's directory.
        directory: PathBuf,
    },
    /// The server runs.
    #[error("{name} is running; stop it first. Nothing was changed")]
    Running {
        /// Which.
        name: String,
    },
    /// The operating system.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What was loaded.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Which store the backup is of, and when it was taken.
    pub head: BackupHead,
    /// How much it has.
    pub size: BackupSize,
    /// Where the names of before are now.
    pub moved_to: Option<PathBuf>,
    /// The server's directory.
    pub directory: PathBuf,
}

/// Makes the names of the metadata server `name` from the backup in `file`. The server goes on from there at its next start, whatever
/// came after the backup. `replace`: what is there is moved aside, and kept.
///
/// # Errors
/// [`LoadError`]; then the names are as they were.
pub fn load_names(
    config: &ClusterConfig,
    name: &str,
    file: &Path,
    replace: bool,
) -> Result<Loaded, LoadError> {
    let server = config.server(name)?;
    if server.role != ServerRole::Meta {
        return Err(LoadError::NoMetadataServer { name: name.to_owned() });
    }
    let failed = |source| LoadError::Backup { path: file.to_path_buf(), source };
    let open = || File::open(file).map_err(|error| failed(error.into()));
    let (head, size) = verify_backup(io::BufReader::new(open()?)).map_err(failed)?;
    if head.cluster != config.cluster.id.0 {
        return Err(LoadError::OtherCluster { path: file.to_path_buf(), found: ClusterId(head.cluster) });
    }
    let directory = config.directory_of(server);
    let names = directory.join(NAMES_DIRECTORY);
    if names.exists() {
        if is_in_use(&names) {
            return Err(LoadError::Running { name: name.to_owned() });
        }
        if !replace {
            return Err(LoadError::HasNames { directory });
        }
    }
    let system = |what, path: &Path| {
        let path = path.to_path_buf();
        move |source| LoadError::System { what, path, source }
    };
    std::fs::create_dir_all(&directory).map_err(system("make", &directory))?;
    let loading = prepare_store(&open()?, &names).map_err(failed)?;
    let sync = || File::open(&directory).and_then(|directory| directory.sync_all());
    sync().map_err(system("sync", &directory))?;
    let moved_to = names.exists().then(|| free_name(&directory));
    if let Some(aside) = &moved_to {
        std::fs::rename(&names, aside).map_err(system("move aside", &names))?;
    }
    std::fs::rename(&loading, &names).map_err(system("put in its place", &loading))?;
    sync().map_err(system("sync", &directory))?;
    Ok(Loaded { head, size, moved_to, directory })
}

/// Whether a server has the store open.
fn is_in_use(names: &Path) -> bool {
    let lock = File::open(FjallEngine::lock_file(names));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(std::fs::TryLockError::WouldBlock)))
}

/// Where the names of before go.
fn free_name(directory: &Path) -> PathBuf {
    let name = |number: u32| directory.join(format!("{NAMES_DIRECTORY}.old-{number}"));
    (1..).map(name).find(|path| !path.exists()).expect("there are many numbers")
}
