//! `weft up`

use crate::hosts;
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_cli_common::launch::{self, BlockedSignals, Lifetime, News, RunState, Side, StartOptions};
use weft_cli_common::output;
use weft_server::{CLIENT_KEY_FILE, SyncMode};

/// Starts a metadata server and I/O servers on this machine and prints the URL of the file system.
///
/// Each server is a process of its own. This needs no root and no other software.
///
/// DIR holds everything: the cluster file, keys, data and logs. Another `up` of the same DIR uses its data
/// again. In the foreground, Ctrl-C or closing the terminal stops the cluster. With --detach it runs until
/// `weft down --dir DIR`.
///
/// A server that dies is restarted after 1, 2, 4 … 30 seconds. It is not restarted after 5 deaths within a
/// minute, or if its exit code says that a restart would fail the same way. With --detach a supervisor in the
/// background does this, and writes to DIR/log/supervisor.log. If the supervisor is killed the servers keep
/// running, and the next `weft up --detach` supervises them.
///
/// If some servers already run, the others are started. In the foreground, Ctrl-C then stops only those that
/// this command started.
///
/// With --hosts the cluster is on several hosts: the metadata server on the first one, an I/O server on each, or
/// --io of them in turn. They are reached by ssh as the user who calls, without root. Each keeps its part in
/// DIR/HOST; a directory of local disks is best. A host that does not have this version of weft gets a copy. Such a
/// cluster runs in the background. `weft up --dir DIR` starts it again, `weft down --dir DIR` stops it: `weft help
/// hosts`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory of the cluster; created if missing.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Number of I/O servers of a new cluster [default: 4].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    io: Option<u16>,
    /// Port of the metadata server. I/O servers get the following ports [default: 7400, or the next free
    /// range].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Address to listen on, where clients reach this machine [default: 127.0.0.1].
    #[arg(long, value_name = "HOST")]
    bind: Option<String>,
    /// Acknowledge writes and changes of names only when they are on the disk. The cluster remembers this.
    #[arg(long)]
    sync: bool,
    /// Acknowledge them when the operating system has them, as by default. The cluster remembers this.
    #[arg(long, conflicts_with = "sync")]
    nosync: bool,
    /// Serve NFS too, by a gateway at ADDRESS: `weft help nfs` [default: 127.0.0.1:2049, or the next free
    /// port]. The cluster remembers this. Without exports in the cluster file, the programs of this machine
    /// may mount everything.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "")]
    nfs: Option<String>,
    /// Serve metrics to Prometheus over HTTP, of the metadata server at this port of 127.0.0.1, of the I/O servers
    /// and the NFS gateway at the following ones; on several hosts, at these ports of each host's address. The cluster
    /// remembers this.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65000))]
    metrics: Option<u16>,
    /// Start the cluster on these hosts: names separated by commas, ranges as in node[01-16], @FILE for a file that
    /// names one on each line; NAME=ADDRESS where servers are to be reached at another address than that of ssh.
    #[arg(long, value_name = "HOSTS", value_parser = hosts::parse, conflicts_with_all = ["bind", "nfs", "only"])]
    hosts: Option<hosts::Hosts>,
    /// On several hosts: mount the file system at this directory of each.
    #[arg(long, value_name = "DIR", conflicts_with = "only")]
    mount: Option<PathBuf>,
    /// On several hosts: the command that runs another one on a host [default: ssh, without questions].
    #[arg(long, value_name = "COMMAND", env = "WEFT_SSH", hide_env_values = true)]
    ssh: Option<String>,
    /// Start only this server of a cluster; may be repeated.
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["io", "port", "bind", "sync", "nosync", "nfs", "metrics"])]
    only: Vec<String>,
    /// Return when the cluster is ready, and run it in the background.
    #[arg(long)]
    detach: bool,
    /// Print the cluster as JSON.
    #[arg(long)]
    json: bool,
}

/// A cluster that was started.
#[derive(Serialize, Deserialize)]
struct Started {
    state: RunState,
    news: News,
}

/// Starts a cluster, or servers of it.
pub fn run(args: Args) -> Result<()> {
    if args.hosts.is_some() || hosts::Record::load(&args.dir)?.is_some() {
        return on_hosts(args);
    }
    if args.mount.is_some() {
        bail!("--mount is for clusters on several hosts, with --hosts; use weft mount for this one");
    }
    let options = StartOptions {
        dir: args.dir.clone(),
        io_servers: args.io,
        port: args.port,
        bind: args.bind.clone(),
        sync: match (args.sync, args.nosync) {
            (true, _) => Some(SyncMode::Sync),
            (_, true) => Some(SyncMode::Nosync),
            _ => None,
        },
        nfs: args.nfs.clone(),
        metrics: args.metrics,
        only: args.only.clone(),
        lifetime: if args.detach { Lifetime::Detached } else { Lifetime::WithParent },
        supervised: true,
        program: None,
    };
    if let Some((state, news)) = launch::hand_over(&options)? {
        return report(&args, &Started { state, news });
    }
    if !args.detach {
        return stay(&args, &options);
    }
    match launch::fork()? {
        Side::Front(front) => report(&args, &front.wait(&args.dir)?),
        Side::Background(background) => in_background(options, background),
    }
}

/// Starts a cluster on several hosts.
fn on_hosts(args: Args) -> Result<()> {
    if args.bind.is_some() || args.nfs.is_some() {
        bail!(
            "--bind and --nfs are for clusters on one host; `weft help hosts` says how to do the same on several"
        );
    }
    let record = hosts::up(&hosts::Wanted {
        dir: args.dir,
        hosts: args.hosts,
        io_servers: args.io,
        port: args.port,
        sync: if args.sync { SyncMode::Sync } else { SyncMode::Nosync },
        metrics: args.metrics,
        mount: args.mount,
        ssh: hosts::ssh_words(args.ssh.as_deref()),
        only: args.only,
    })?;
    match args.json {
        true => output::print_json(&record),
        false => output::print_line(&record.url),
    }
}

/// Starts servers and supervises them here.
fn stay(args: &Args, options: &StartOptions) -> Result<()> {
    let signals = BlockedSignals::ends_and(&[libc::SIGUSR1])?;
    let cluster = launch::start(options, &mut |time| signals.wait_at_most(time).is_none())?;
    report(args, &Started { state: cluster.state.clone(), news: cluster.news.clone() })?;
    let News { started, left, .. } = &cluster.news;
    if !args.json && left.is_empty() && args.only.is_empty() {
        let (io, url) = (started.len() - 1, &cluster.state.url);
        eprintln!("weft: 1 metadata and {io} I/O servers are up; Ctrl-C stops them. Try: weft ls {url}");
    } else if !args.json {
        eprintln!("weft: Ctrl-C stops {}", started.join(", "));
    }
    launch::supervise(cluster, &signals)
}

/// Starts servers, and supervises them in the process that stays in the background.
fn in_background(options: StartOptions, background: launch::Background) -> Result<()> {
    let signals = BlockedSignals::ends_and(&[libc::SIGUSR1])?;
    let mut pause = |time: Duration| signals.wait_at_most(time).is_none() && !background.is_abandoned();
    let started = launch::start(&options, &mut pause).and_then(|cluster| {
        launch::log_to(&options.dir)?;
        Ok(cluster)
    });
    match started {
        Ok(cluster) => {
            let started = Started { state: cluster.state.clone(), news: cluster.news.clone() };
            background.send(Ok(started))?;
            launch::supervise(cluster, &signals)
        }
        Err(error) => {
            background.send::<Started>(Err(format!("{error:#}")))?;
            // The process in the foreground reports the error.
            std::process::exit(1)
        }
    }
}

/// Installs the client key and prints what runs.
fn report(args: &Args, started: &Started) -> Result<()> {
    let Started { state, news } = started;
    let dir: &Path = &args.dir.canonicalize()?;
    // A machine of a larger cluster may have servers but no client key.
    let key_file = Some(dir.join(CLIENT_KEY_FILE)).filter(|file| file.exists());
    let key = key_file.map(|file| launch::install_client_key(&file, &state.url)).transpose()?;
    if args.json {
        return output::print_json(&serde_json::json!({
            "url": state.url,
            "dir": dir,
            "key": key,
            "started": news.started,
            "adopted": news.adopted,
            "left": news.left,
            "supervisor": state.supervisor,
            "servers": state.servers,
        }));
    }
    if !args.only.is_empty() || !news.adopted.is_empty() || !news.left.is_empty() {
        let print_names = |what: &str, names: &[String]| {
            if !names.is_empty() {
                eprintln!("weft: {what} {}", names.join(", "));
            }
        };
        print_names("started", &news.started);
        print_names("already running, now supervised:", &news.adopted);
        print_names("already running, not supervised (started otherwise):", &news.left);
    }
    output::print_line(&state.url)
}
