//! The contents of a cluster's directory: the cluster file, keys and storages.

use super::options::StartOptions;
use super::ports;
use anyhow::{Context, Result, bail};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use weft_client::{Url, installed_key_path};
use weft_server::config::Member;
use weft_server::{CLIENT_KEY_FILE, CLUSTER_KEY_FILE, ClusterConfig, Generate};
use weft_wire::keys::IssuedKey;

/// Name of the cluster file in a cluster's directory.
pub const CLUSTER_FILE: &str = "weft.toml";
/// Exists until the storages of a new cluster are complete.
pub const NEW_FILE: &str = ".new";
/// Default port of the metadata server.
pub const PORT_DEFAULT: u16 = 7400;
/// sun_path of a Unix socket has 108 bytes, including a final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The URL of a cluster's file system.
pub fn url_of(config: &ClusterConfig) -> String {
    format!("weft://{}/", config.meta_servers().next().expect("a checked file has one").addresses[0])
}

/// The log file of a server.
pub(super) fn log_of(dir: &Path, name: &str) -> PathBuf {
    dir.join("log").join(format!("{name}.log"))
}

pub(super) fn make_dir(dir: &Path) -> Result<PathBuf> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .with_context(|| format!("cannot create the cluster's directory {}", dir.display()))?;
    dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))
}

pub(super) fn load_or_make_config(dir: &Path, options: &StartOptions) -> Result<ClusterConfig> {
    let path = dir.join(CLUSTER_FILE);
    let mut config = if path.exists() {
        renew_client_key(dir)?;
        let config = ClusterConfig::load(&path)?;
        if options.bind.is_none() {
            ports::check_here(config.members())?;
        }
        config
    } else {
        let config = ClusterConfig::generate(&Generate {
            path,
            host: options.bind.clone().unwrap_or_else(|| "127.0.0.1".into()),
            port: options.port.unwrap_or(PORT_DEFAULT),
            io_servers: options.io_servers.unwrap_or(4),
            sync: options.sync.unwrap_or_default(),
            strip_bytes: weft_server::config::STRIP_BYTES_DEFAULT,
        })?;
        let new = dir.join(NEW_FILE);
        std::fs::write(&new, "").with_context(|| format!("cannot write {}", new.display()))?;
        weft_server::create_keys(dir)?;
        config
    };
    check_count(&config, options)?;
    if let Some(sync) = options.sync {
        config.servers.iter_mut().for_each(|server| server.sync = sync);
    }
    if let Some(port) = options.metrics {
        let servers = config.servers.iter_mut().map(|server| &mut server.metrics);
        let gateways = config.gateways.iter_mut().map(|gateway| &mut gateway.metrics);
        for (metrics, port) in servers.chain(gateways).zip(port..) {
            *metrics = Some(format!("127.0.0.1:{port}"));
        }
    }
    ports::assign(&mut config, options.bind.as_deref(), options.port)?;
    shorten_sockets(&mut config)?;
    config.save()?;
    Ok(config)
}

pub(super) fn check_count(config: &ClusterConfig, options: &StartOptions) -> Result<()> {
    let there = config.io_servers().count();
    match options.io_servers {
        Some(wanted) if usize::from(wanted) != there => bail!(
            "the cluster in {} has {there} I/O servers and its files are striped over them; \
             leave out --io, or choose a new directory for {wanted}",
            options.dir.display()
        ),
        _ => Ok(()),
    }
}

/// Creates the storages of a new cluster that are to be on this machine, or those of the servers in `only`, and
/// continues an interrupted start. A cluster that was complete once never gets a new storage unasked: a missing
/// one may be on a disk that is not mounted.
pub(super) fn make_new_storages(dir: &Path, config: &ClusterConfig, only: &[String]) -> Result<()> {
    let new = dir.join(NEW_FILE);
    if !new.exists() {
        return Ok(());
    }
    let here = config.members().filter_map(|member| match member {
        Member::Server(server) if !ports::is_elsewhere(member) => Some(server),
        _ => None,
    });
    let mut is_complete = true;
    for server in here {
        if weft_server::has_storage(config, &server.name)? {
            continue;
        }
        match only.is_empty() || only.contains(&server.name) {
            true => weft_server::format_storage(config, &server.name)?,
            false => is_complete = false,
        }
    }
    if is_complete {
        std::fs::remove_file(&new).with_context(|| format!("cannot remove {}", new.display()))?;
    }
    Ok(())
}

/// Replaces a `client.key` of an earlier release, which names nobody, or of a cluster key that was replaced,
/// which is or will be void.
fn renew_client_key(dir: &Path) -> Result<()> {
    let path = dir.join(CLIENT_KEY_FILE);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(()) };
    let keys = weft_server::load_cluster_keys(&dir.join(CLUSTER_KEY_FILE))?;
    if IssuedKey::from_text(&text).is_ok_and(|key| key.info.issuer == keys.in_use().name()) {
        return Ok(());
    }
    std::fs::remove_file(&path).with_context(|| format!("cannot replace {}", path.display()))?;
    weft_server::create_client_key(dir, keys.in_use())?;
    Ok(())
}

/// Moves the sockets of a cluster deep in a tree to /tmp: the path of a Unix socket must be short.
fn shorten_sockets(config: &mut ClusterConfig) -> Result<()> {
    let too_long = |config: &ClusterConfig, server: &_| {
        config.socket_of(server).as_os_str().len() > SOCKET_PATH_BYTES_MAX
    };
    if !config.servers.iter().any(|server| too_long(config, server)) {
        return Ok(());
    }
    let id = config.cluster.id.to_string();
    // SAFETY: getuid has no preconditions.
    let runtime = PathBuf::from(format!("/tmp/weft-{}-{}", unsafe { libc::getuid() }, &id[..12]));
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&runtime)
        .with_context(|| format!("cannot create {} for the servers' sockets", runtime.display()))?;
    for server in &mut config.servers {
        server.socket = Some(runtime.join(format!("{}.sock", server.name)));
    }
    Ok(())
}

/// Installs this host's key of a cluster where `weft` and the client library look for it, readable by the
/// user only.
pub fn install_client_key(key_file: &Path, url: &str) -> Result<PathBuf> {
    let server = Url::parse(url)?.server();
    let installed = installed_key_path(&server).with_context(|| {
        format!("HOME is not set, so the key cannot be installed; it is in {} only", key_file.display())
    })?;
    let text = std::fs::read(key_file).with_context(|| format!("cannot read {}", key_file.display()))?;
    let dir = installed.parent().expect("a key file is in a directory");
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot create {}", dir.display()))?;
    let fresh = dir.join(format!(".new-{}", std::process::id()));
    let written = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&fresh);
    written
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| std::fs::rename(&fresh, &installed))
        .with_context(|| format!("cannot write {}", installed.display()))?;
    Ok(installed)
}

/// Free space on the file system of a directory, in bytes.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    weft_host::space_of(dir).map(|space| space.available_bytes)
}
