//! `weft serve`

use crate::Code;
use anyhow::{Context, Result, anyhow, bail};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use weft_cli_common::launch::BlockedSignals;
use weft_cli_common::{PERMANENT, output};
use weft_log::{Filter, Sink};
use weft_server::{
    CLUSTER_KEY_FILE, ClusterConfig, Reloader, Server, ServerError, ServerRole, SlowRequestMs, StopFlag,
};
use weft_wire::security::ClusterKeys;

/// Runs one server of a cluster file in the foreground, until SIGTERM or SIGINT. Says what it does on standard error, one line per
/// event, as systemd likes it.
///
/// Its storage must have been made before, by `--format`, once: a directory that is empty, of another server, or an older copy is
/// refused. `weft help recovery` shows what to do then.
///
/// It looks at the file of the cluster's secret once a second and takes over what changes in it (`weft key rotate`).
///
/// SIGHUP has it open the file of --log-file anew, and take over the keys log and slow_request_ms of the cluster file; a metadata server
/// also takes over servers that were added, addresses, and the layout of files for which nothing else is asked. It never ends a server.
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
    /// What to log: a level (off, error, warn, info, debug, trace), and others for some targets, as in info,weft_server::io=debug; see
    /// `weft help logs` [default: the key log of the cluster file, else info].
    #[arg(long, value_name = "LEVELS", env = "WEFT_LOG")]
    log_level: Option<Filter>,
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
    weft_log::start(&args.name, args.log_level.clone().unwrap_or_default(), Sink::standard_error());
    let (config, key_file, keys) = match configuration(&args) {
        Ok(all) => all,
        Err(error) => return refuse(&error),
    };
    weft_log::set_filter(levels(args.log_level.as_ref(), &config));
    let stop = StopFlag::new()?;
    let asked = stop.clone();
    let reload = Reload {
        config: config.path.clone(),
        log_file: args.log_file,
        log_level: args.log_level,
        server: Arc::default(),
    };
    let reloaded = reload.server.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || wait_for_end(&signals, &reload, &asked))
        .context("cannot start the thread that waits for signals")?;
    let mut server = match Server::start(&config, &args.name, keys) {
        Err(error) if error.is_permanent() => return refuse(&whole(&error)),
        server => server.map_err(|error| whole(&error))?,
    };
    server = server.follow_keys(key_file);
    if args.accept_older {
        server = server.accept_older();
    }
    // It is set once.
    let _ = reloaded.set((server.slow_request_ms(), server.reloader()));
    tell_systemd();
    match server.run(&stop) {
        Err(error) if error.is_permanent() => refuse(&whole(&error)),
        ended => ended.map_err(|error| whole(&error)),
    }
}

fn configuration(args: &Args) -> Result<(ClusterConfig, PathBuf, ClusterKeys)> {
    let config = ClusterConfig::load(&args.config)?;
    let role = config.server(&args.name)?.role;
    if args.accept_older && role != ServerRole::Meta {
        bail!("--accept-older is for a metadata server, and {} is none", args.name);
    }
    let beside = || config.resolve(CLUSTER_KEY_FILE.as_ref());
    let key_file = args.cluster_key.clone().unwrap_or_else(beside);
    let keys = weft_server::load_cluster_keys(&key_file)?;
    Ok((config, key_file, keys))
}

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

/// Tells why the server cannot start before somebody has changed something.
fn refuse(error: &anyhow::Error) -> Result<()> {
    eprintln!("weft: {error:#}");
    Err(Code(PERMANENT).into())
}

/// What is logged: what the command line or the environment says, else the cluster file.
fn levels(asked: Option<&Filter>, config: &ClusterConfig) -> Filter {
    let of_file = || config.cluster.log.as_ref().and_then(|levels| levels.parse().ok());
    asked.cloned().or_else(of_file).unwrap_or_default()
}

/// What SIGHUP has a server take over.
struct Reload {
    config: PathBuf,
    log_file: Option<PathBuf>,
    /// As it was asked for; then the cluster file has no say.
    log_level: Option<Filter>,
    /// Of the server, once it has started.
    server: Arc<OnceLock<(SlowRequestMs, Reloader)>>,
}

impl Reload {
    fn run(&self) {
        if let Some(Err(error)) = self.log_file.as_deref().map(output::log_to) {
            tracing::warn!("{error:#}");
        }
        let config = match ClusterConfig::load(&self.config) {
            Ok(config) => config,
            Err(error) => return tracing::warn!("SIGHUP: all stays as it was: {error}"),
        };
        let levels = levels(self.log_level.as_ref(), &config);
        let slow_ms = config.cluster.slow_request_ms;
        weft_log::set_filter(levels.clone());
        if let Some((slow, reloader)) = self.server.get() {
            slow.set(slow_ms);
            if let Err(error) = reloader.reload() {
                tracing::warn!("SIGHUP: the map stays as it was: {error}");
            }
        }
        tracing::info!("SIGHUP: logs {levels}; requests are slow from {slow_ms} ms on (0: never)");
    }
}

/// Takes over what can be at each SIGHUP; any other signal ends the server.
fn wait_for_end(signals: &BlockedSignals, reload: &Reload, stop: &StopFlag) {
    while let Ok(signal) = signals.wait() {
        if signal != libc::SIGHUP {
            return stop.stop();
        }
        reload.run();
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
