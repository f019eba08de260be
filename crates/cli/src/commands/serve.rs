//! `weft serve`

use crate::launch::BlockedSignals;
use crate::{Code, PERMANENT, output};
use anyhow::{Context, Result, anyhow, bail};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use weft_server::{CLUSTER_KEY_FILE, ClusterConfig, Reloader, Server, ServerError, ServerRole, StopFlag};
use weft_wire::security::Key;

/// Runs one server of a cluster file in the foreground, until SIGTERM or SIGINT. Says what it does on standard error, one line per
/// event, as systemd likes it.
///
/// Its storage must have been made before, by `--format`, once: a directory that is empty, of another server, or an older copy is
/// refused. `weft help recovery` shows what to do then.
///
/// SIGHUP has it open the file of --log-file anew, if there is one, and a metadata server read the cluster file again: servers that
/// were added, addresses, and the layout of files for which nothing else is asked. It never ends a server.
///
/// Exit codes: 0 it was asked to end, 1 it failed, 78 it refuses to start, and will again until the cluster file, the keys or the
/// directory are put right.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cluster file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Which of its servers to be.
    #[arg(long, value_name = "SERVER")]
    name: String,
    /// File with the cluster's secret [default: cluster.key beside the cluster file].
    #[arg(long, value_name = "FILE")]
    cluster_key: Option<PathBuf>,
    /// Make the server's storage, in a directory that is empty or missing, and end.
    #[arg(long)]
    format: bool,
    /// Of a metadata server: go on although its directory is older than the I/O servers know. What was made since has no names any
    /// more; nothing of it is removed.
    #[arg(long, conflicts_with = "format")]
    accept_older: bool,
    /// Write to the end of this file instead of standard output and standard error.
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

/// Serves.
pub fn run(args: Args) -> Result<()> {
    if args.format {
        return format(&args);
    }
    // Before anything else, so that a signal that comes early is not the end either.
    let signals = BlockedSignals::ends_and(&[])?;
    if let Some(log) = &args.log_file {
        output::log_to(log)?;
    }
    let (config, key) = match configuration(&args) {
        Ok(both) => both,
        Err(error) => return refuse(&error),
    };
    let stop = StopFlag::new()?;
    let (asked, log) = (stop.clone(), args.log_file);
    let reloader = Arc::new(OnceLock::<Reloader>::new());
    let reloads = reloader.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || wait_for_end(&signals, log.as_deref(), &reloads, &asked))
        .context("cannot start the thread that waits for signals")?;
    let mut server = match Server::start(&config, &args.name, &key) {
        Err(error) if error.is_permanent() => return refuse(&whole(&error)),
        server => server.map_err(|error| whole(&error))?,
    };
    if args.accept_older {
        server = server.accept_older();
    }
    // It is set once.
    let _ = reloader.set(server.reloader());
    tell_systemd();
    match server.run(&stop) {
        Err(error) if error.is_permanent() => refuse(&whole(&error)),
        ended => ended.map_err(|error| whole(&error)),
    }
}

fn configuration(args: &Args) -> Result<(ClusterConfig, Key)> {
    let config = ClusterConfig::load(&args.config)?;
    let role = config.server(&args.name)?.role;
    if args.accept_older && role != ServerRole::Meta {
        bail!("--accept-older is for a metadata server, and {} is none", args.name);
    }
    let beside = || config.resolve(CLUSTER_KEY_FILE.as_ref());
    let key = weft_server::load_key(&args.cluster_key.clone().unwrap_or_else(beside))?;
    Ok((config, key))
}

/// Tells why the server cannot start before somebody has changed something.
/// The text of such an error has its causes in it.
fn whole(error: &ServerError) -> anyhow::Error {
    anyhow!("{error}")
}

fn format(args: &Args) -> Result<()> {
    let config = ClusterConfig::load(&args.config)?;
    if let Err(error) = weft_server::format_storage(&config, &args.name) {
        return refuse(&whole(&error));
    }
    let directory = config.directory_of(config.server(&args.name)?);
    eprintln!("weft: made the storage of {} in {}", args.name, directory.display());
    Ok(())
}

fn refuse(error: &anyhow::Error) -> Result<()> {
    eprintln!("weft: {error:#}");
    Err(Code(PERMANENT).into())
}

/// At each SIGHUP opens the log anew and has the cluster file read again; any other signal ends the server.
fn wait_for_end(signals: &BlockedSignals, log: Option<&Path>, reloads: &OnceLock<Reloader>, stop: &StopFlag) {
    while let Ok(signal) = signals.wait() {
        if signal != libc::SIGHUP {
            return stop.stop();
        }
        if let Some(Err(error)) = log.map(output::log_to) {
            eprintln!("weft: {error:#}");
        }
        if let Some(Err(error)) = reloads.get().map(Reloader::reload) {
            eprintln!("weft: {error}");
        }
    }
}

/// Clients can connect: where systemd started this, it wants to know (sd_notify(3)).
fn tell_systemd() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = UnixDatagram::unbound().and_then(|from| from.send_to(b"READY=1", &socket));
    if let Err(error) = told {
        eprintln!("weft: cannot tell {} that the server is ready: {error}", socket.display());
    }
}
