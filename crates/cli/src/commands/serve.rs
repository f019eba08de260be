//! `weft serve`

mod exports;
mod gateway;
mod gateway_metrics;

use crate::exit::Code;
use anyhow::{Context, Result, anyhow, bail};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_cli_common::launch::{BlockedSignals, OPENING, OPENING_EVERY};
use weft_cli_common::{PERMANENT, output};
use weft_log::{Filter, Sink};
use weft_server::config::Member;
use weft_server::{
    CLUSTER_KEY_FILE, ClusterConfig, Reloader, Server, ServerError, ServerRole, SlowRequestMs, StopFlag,
};
use weft_wire::security::ClusterKeys;

/// The time that systemd grants with each report of a server that is opening its storage.
const READY_EXTENDED: Duration = Duration::from_secs(30);

/// Runs one server or NFS gateway of a cluster file in the foreground, until SIGTERM or SIGINT.
///
/// It logs to standard error, one line per event, as systemd expects.
///
/// Create its storage first, once, with `--format`. A directory that is empty, of another server, or an older
/// copy is refused. `weft help recovery` says what to do then.
///
/// It reads the file of the cluster's secret once a second, and applies changes (`weft key rotate`).
///
/// SIGHUP reopens the file of --log-file, and applies the keys log and slow_request_ms of the cluster file. A
/// metadata server also applies added servers, changed addresses, and the default layout of files. SIGHUP
/// never ends a server. A gateway applies changed exports at SIGHUP and when the cluster file changes; a file
/// that is wrong leaves the exports as they are.
///
/// Exit codes: 0 stopped on request; 1 failed; 78 refused to start, and will refuse again until the cluster
/// file, the keys or the directory are corrected.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cluster file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The name of the server or gateway in the cluster file.
    #[arg(long, value_name = "SERVER")]
    name: String,
    /// File with the cluster's secret [default: cluster.key beside the cluster file].
    #[arg(long, value_name = "FILE")]
    cluster_key: Option<PathBuf>,
    /// Create the server's storage, in a directory that is empty or missing, and exit.
    #[arg(long)]
    format: bool,
    /// For a metadata server: start even though its directory is older than the I/O servers know. Files that
    /// were created since have no names any more; their data is not removed.
    #[arg(long, conflicts_with = "format")]
    accept_older: bool,
    /// For an I/O server: start even though most of its data files are missing. Reading what is lost fails with EIO.
    /// Later starts go on, too, until most data files are found again.
    #[arg(long, conflicts_with = "format")]
    accept_loss: bool,
    /// Serve metrics to Prometheus over HTTP at HOST:PORT, to anybody who can reach it [default: the server's key
    /// metrics in the cluster file, else not at all].
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Append logs to this file, instead of standard error.
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// What to log: a level (off, error, warn, info, debug, trace), and levels of single targets, as in
    /// info,weft_server::io=debug; see `weft help logs` [default: the key log of the cluster file, else
    /// info].
    #[arg(long, value_name = "LEVELS", env = "WEFT_LOG")]
    log_level: Option<Filter>,
}

/// Runs the server.
pub fn run(args: Args) -> Result<()> {
    if args.format {
        return format(&args);
    }
    // Before anything else, so that an early signal does not end the process either.
    let signals = BlockedSignals::ends_and(&[])?;
    if let Some(log) = &args.log_file {
        output::log_to(log)?;
    }
    weft_log::start(&args.name, args.log_level.clone().unwrap_or_default(), Sink::standard_error());
    let config = match ClusterConfig::load(&args.config) {
        Ok(config) => config,
        Err(error) => return refuse(&error.into()),
    };
    if let Ok(Member::Gateway(_)) = config.member(&args.name) {
        return serve_gateway(args, config, &signals);
    }
    let (key_file, keys) = match key_of(&args, &config) {
        Ok(keys) => keys,
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
    if args.accept_loss
        && let Err(error) = weft_server::accept_loss(&config, &args.name)
    {
        return refuse(&whole(&error));
    }
    let opening = Opening::report(&args.name)?;
    let started = Server::start(&config, &args.name, keys);
    drop(opening);
    let mut server = match started {
        Err(error) if error.is_permanent() => return refuse(&whole(&error)),
        server => server.map_err(|error| whole(&error))?,
    };
    server = server.follow_keys(key_file);
    if args.accept_older {
        server = server.accept_older();
    }
    if let Some(address) = args.metrics {
        server = server.serve_metrics_at(address);
    }
    // It is set once.
    let _ = reloaded.set((server.slow_request_ms(), server.reloader()));
    notify_systemd();
    match server.run(&stop) {
        Err(error) if error.is_permanent() => refuse(&whole(&error)),
        ended => ended.map_err(|error| whole(&error)),
    }
}

fn serve_gateway(args: Args, config: ClusterConfig, signals: &BlockedSignals) -> Result<()> {
    for (given, option, role) in [
        (args.accept_older, "--accept-older", "a metadata server"),
        (args.accept_loss, "--accept-loss", "an I/O server"),
    ] {
        if given {
            return refuse(&anyhow!("{option} is for {role}, but {} is an NFS gateway", args.name));
        }
    }
    let Args { name, cluster_key, log_file, log_level, metrics, .. } = args;
    gateway::run(gateway::Start { config, name, cluster_key, log_file, log_level, metrics }, signals)
}

fn key_of(args: &Args, config: &ClusterConfig) -> Result<(PathBuf, ClusterKeys)> {
    let Member::Server(server) = config.member(&args.name)? else { bail!("{} is no server", args.name) };
    let role = server.role;
    if args.accept_older && role != ServerRole::Meta {
        bail!("--accept-older is for a metadata server, but {} is an I/O server", args.name);
    }
    if args.accept_loss && role != ServerRole::Io {
        bail!("--accept-loss is for an I/O server, but {} is a metadata server", args.name);
    }
    let beside = || config.resolve(CLUSTER_KEY_FILE.as_ref());
    let key_file = args.cluster_key.clone().unwrap_or_else(beside);
    let keys = weft_server::load_cluster_keys(&key_file)?;
    Ok((key_file, keys))
}

/// The text of a `ServerError` includes its causes.
fn whole(error: &ServerError) -> anyhow::Error {
    anyhow!("{error}")
}

fn format(args: &Args) -> Result<()> {
    let config = ClusterConfig::load(&args.config)?;
    if let Ok(Member::Gateway(_)) = config.member(&args.name) {
        bail!("{} is an NFS gateway: it has no storage, and is started without --format", args.name);
    }
    if let Err(error) = weft_server::format_storage(&config, &args.name) {
        return refuse(&whole(&error));
    }
    let directory = config.directory_of(config.server(&args.name)?);
    eprintln!("weft: created the storage of {} in {}", args.name, directory.display());
    Ok(())
}

/// Reports why the server cannot start until somebody changes something.
fn refuse(error: &anyhow::Error) -> Result<()> {
    eprintln!("weft: {error:#}");
    Err(Code(PERMANENT).into())
}

/// The log filter: from the command line or the environment, else from the cluster file.
fn levels(asked: Option<&Filter>, config: &ClusterConfig) -> Filter {
    let of_file = || config.cluster.log.as_ref().and_then(|levels| levels.parse().ok());
    asked.cloned().or_else(of_file).unwrap_or_default()
}

/// What SIGHUP reloads.
struct Reload {
    config: PathBuf,
    log_file: Option<PathBuf>,
    /// The filter of the command line. If there is one, the cluster file does not apply.
    log_level: Option<Filter>,
    /// Set once the server has started.
    server: Arc<OnceLock<(SlowRequestMs, Reloader)>>,
}

impl Reload {
    fn run(&self) {
        if let Some(Err(error)) = self.log_file.as_deref().map(output::log_to) {
            tracing::warn!("{error:#}");
        }
        let config = match ClusterConfig::load(&self.config) {
            Ok(config) => config,
            Err(error) => return tracing::warn!("SIGHUP: nothing is changed: {error}"),
        };
        let levels = levels(self.log_level.as_ref(), &config);
        let slow_ms = config.cluster.slow_request_ms;
        weft_log::set_filter(levels.clone());
        if let Some((slow, reloader)) = self.server.get() {
            slow.set(slow_ms);
            if let Err(error) = reloader.reload() {
                tracing::warn!("SIGHUP: the map is not changed: {error}");
            }
        }
        tracing::info!("SIGHUP: now logging {levels}; requests are slow from {slow_ms} ms on (0: never)");
    }
}

/// Reloads the cluster file at each SIGHUP. Any other signal ends the server.
fn wait_for_end(signals: &BlockedSignals, reload: &Reload, stop: &StopFlag) {
    while let Ok(signal) = signals.wait() {
        if signal != libc::SIGHUP {
            return stop.stop();
        }
        reload.run();
    }
}

/// Reports, in the log and to systemd, that the server is opening its storage. Ends when dropped.
struct Opening {
    /// Dropped first: the thread ends.
    ended: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Opening {
    fn report(name: &str) -> Result<Opening> {
        let (ended, ends) = channel::<()>();
        let (name, since) = (name.to_owned(), Instant::now());
        let report = move || {
            while ends.recv_timeout(OPENING_EVERY) == Err(RecvTimeoutError::Timeout) {
                let text = format!("{OPENING}, {} s so far", since.elapsed().as_secs());
                eprintln!("{} {name}: {text}", weft_log::timestamp_now());
                // systemd must not end the server meanwhile.
                let more = READY_EXTENDED.as_micros();
                // If systemd misses this report, it gets the next one.
                let _ = tell_systemd(&format!("EXTEND_TIMEOUT_USEC={more}\nSTATUS={text}"));
            }
        };
        let thread = std::thread::Builder::new().name("opening".into()).spawn(report);
        let thread = thread.context("cannot start the thread that reports the start")?;
        Ok(Opening { ended: Some(ended), thread: Some(thread) })
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.ended = None;
        if let Some(thread) = self.thread.take() {
            // It only writes reports.
            let _ = thread.join();
        }
    }
}

/// Sends a message to systemd (sd_notify(3)), if it started this server.
fn tell_systemd(text: &str) -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(socket) => UnixDatagram::unbound()?.send_to(text.as_bytes(), &socket).map(drop),
        None => Ok(()),
    }
}

/// Notifies systemd that clients can connect.
fn notify_systemd() {
    if let Err(error) = tell_systemd("READY=1\nSTATUS=serves") {
        eprintln!("weft: cannot notify systemd that the server is ready: {error}");
    }
}
