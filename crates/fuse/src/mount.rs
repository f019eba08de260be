//! Mounting, serving, and ending it.
//!
//! ```text
//!   mount()                                  with `background`
//!     │                                        parent ── fork ──► child (own session, no terminal)
//!     │ connect, find the root directory         │ waits on a pipe   │
//!     │ attach (the mount is live)               │◄──── "live" ──────┤   or the text of the error
//!     │ read-ahead of the mount                  ▼                   ▼
//!     │                                        returns             serves
//!     ├─ threads serve requests ── umount ──► they end
//!     └─ poll(signals, end of threads): SIGINT, SIGTERM unmount, lazily if somebody uses it; SIGHUP opens the log anew
//! ```

use crate::attach::attach;
use crate::background;
use crate::fs::{Behaviour, WeftFs};
use crate::kernel::{Connection, Dispatcher};
use crate::locks::keep_locks;
use crate::metrics::Metrics;
use crate::notify::Notes;
use crate::options::{MountError, MountOptions};
use crate::probing;
use crate::signals::{Ending, Signals};
use crate::umount;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_client::Client;
use weft_log::Sink;
use weft_metrics::Endpoint;
use weft_wire::messages::FileKind;

/// Read-ahead of a mount: a few requests of the greatest size, so that several threads have work for one reader.
const READ_AHEAD_KIB: u32 = 4096;

/// Mounts a Weft file system and serves it until it is unmounted or the process gets SIGINT or SIGTERM.
///
/// With [`MountOptions::background`] it returns as soon as the mount is live; the calling process must have one thread
/// only, and its child serves the mount and exits when it ends.
pub fn mount(options: MountOptions) -> Result<(), MountError> {
    let dir = usable_mount_point(&options.dir)?;
    let log_file = options.log_file.as_deref().map(absolute).transpose()?;
    let options = MountOptions { dir, log_file, ..options };
    if !options.background {
        open_log(&options)?;
        return serve(&options, || {});
    }
    match background::fork()? {
        background::Side::Parent(child) => child.wait_until_live(),
        background::Side::Child(parent) => {
            if let Err(error) = open_log(&options) {
                parent.failed(&error.to_string());
            }
            let mut parent = Some(parent);
            let outcome = serve(&options, || {
                if let Some(parent) = parent.take() {
                    parent.live();
                }
            });
            match (outcome, parent) {
                (Err(error), Some(parent)) => parent.failed(&error.to_string()),
                (Err(_), None) => std::process::exit(1),
                (Ok(()), _) => std::process::exit(0),
            }
        }
    }
}

/// A mount in the background is in another directory than the command was.
fn absolute(path: &Path) -> Result<PathBuf, MountError> {
    std::path::absolute(path).map_err(|source| MountError::Log { path: path.to_path_buf(), source })
}

fn open_log(options: &MountOptions) -> Result<(), MountError> {
    let sink = match &options.log_file {
        Some(path) => {
            weft_log::redirect_to(path).map_err(|source| MountError::Log { path: path.clone(), source })?;
            Sink::standard_error()
        }
        None if options.background => Sink::system(),
        None => Sink::standard_error(),
    };
    weft_log::start("mount", options.levels.clone(), sink);
    Ok(())
}

fn usable_mount_point(dir: &Path) -> Result<PathBuf, MountError> {
    let unusable = |reason: String| MountError::MountPoint { dir: dir.to_path_buf(), reason };
    const DEAD: &str = "a mount whose process died is there; run `weft umount` on it first";
    let resolved = dir.canonicalize().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTCONN) => unusable(DEAD.into()),
        Some(libc::ENOENT) => unusable("it does not exist; make it with mkdir first".into()),
        _ => unusable(error.to_string()),
    })?;
    if weft_host::mounts().iter().any(|mount| mount.dir == resolved && mount.is_weft()) {
        // What is cached of it is still there for a while.
        let opened = std::fs::read_dir(&resolved).err().and_then(|error| error.raw_os_error());
        let is_dead = opened == Some(libc::ENOTCONN);
        let reason = if is_dead { DEAD } else { "a Weft file system is mounted there already" };
        return Err(unusable(reason.into()));
    }
    if !resolved.is_dir() {
        return Err(unusable("it is not a directory".into()));
    }
    Ok(resolved)
}

/// Connects, mounts, calls `live`, and serves until the end.
fn serve(options: &MountOptions, live: impl FnOnce()) -> Result<(), MountError> {
    let (client, root_ino) = connect(options)?;
    let behaviour = Behaviour {
        cache: options.cache,
        stream_bytes_min: options.stream_bytes_min,
        attr_timeout: options.attr_timeout,
        entry_timeout: options.entry_timeout,
        identities: options.identities.clone(),
    };
    let fs = Arc::new(WeftFs::new(&client, root_ino, behaviour));
    let metrics = options.metrics.as_ref().map(|_| Arc::new(Metrics::new()));
    let (attached, connection) = attach(options)?;
    let connection = Connection::greet(connection, options)
        .map_err(|source| MountError::Kernel { dir: options.dir.clone(), source })?;
    attached.read_ahead(READ_AHEAD_KIB);
    let begin = || {
        // Signals are blocked before any thread is started that could take them.
        let serving = Signals::block().and_then(|signals| {
            fs.watch(Notes::new(connection.notes()))?;
            let dispatcher =
                Dispatcher::new(fs.clone(), options.dir.clone(), options.slow_ms, metrics.clone());
            signals.watch(move || connection.serve(dispatcher))
        });
        let serving = serving.map_err(|source| session_error(options, source))?;
        // Not before signals are blocked, for a thread does as the one that starts it.
        keep_locks(&fs);
        probing::start(&fs);
        let endpoint = match options.metrics.as_ref().zip(metrics) {
            None => None,
            Some((address, metrics)) => Some(listen(options, address, metrics, &client)?),
        };
        Ok((serving, endpoint))
    };
    // Threads serve it already, so that it would be there until the process ends, and dead from then on.
    let (serving, _endpoint) = begin().inspect_err(|_| attached.detach())?;
    live();
    loop {
        match serving.wait() {
            Ending::Served(outcome) => {
                fs.close_all();
                return outcome.map_err(|source| session_error(options, source));
            }
            Ending::HangUp => {
                if let Some(Err(error)) = options.log_file.as_deref().map(weft_log::redirect_to) {
                    tracing::warn!("cannot open the log anew: {error}");
                }
            }
            Ending::Signal(signal) => {
                if let Err(error) = umount::umount(&options.dir) {
                    tracing::warn!("{signal}: {error}; taken away from its users");
                    attached.detach();
                    fs.close_all();
                    return Ok(());
                }
            }
        }
    }
}

/// Serves the mount's metrics.
fn listen(
    options: &MountOptions,
    address: &str,
    metrics: Arc<Metrics>,
    client: &Client,
) -> Result<Endpoint, MountError> {
    let (client, dir) = (client.clone(), options.dir.display().to_string());
    let endpoint = Endpoint::start(address, move || metrics.page(&client, &dir));
    endpoint.map_err(|source| MountError::Metrics { address: address.to_owned(), source })
}

fn connect(options: &MountOptions) -> Result<(Client, u64), MountError> {
    let failed = |source| MountError::Cluster { url: options.url.to_string(), source };
    let client = Client::connect(&options.url, options.connect.clone()).map_err(failed)?;
    let root = client.stat(options.url.path(), true).map_err(failed)?;
    if root.kind != FileKind::Directory {
        let reason = format!("{} is not a directory; only directories can be mounted", options.url);
        return Err(MountError::MountPoint { dir: options.dir.clone(), reason });
    }
    Ok((client, root.ino))
}

fn session_error(options: &MountOptions, source: std::io::Error) -> MountError {
    MountError::Session { dir: options.dir.clone(), source }
}
