//! `weft up`

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_cli_common::launch::{self, BlockedSignals, Lifetime, News, RunState, Side, StartOptions};
use weft_cli_common::output;
use weft_server::{CLIENT_KEY_FILE, SyncMode};

/// Starts a metadata server and I/O servers on this machine, each a process of its own, and prints the URL of the file system.
/// Needs no root and no other software.
///
/// Everything lives in DIR: the cluster file, keys, data and logs. A second `up` of the same DIR finds its data again. In the
/// foreground, Ctrl-C or the end of the terminal stops the cluster; with --detach it goes on until `weft down --dir DIR`.
///
/// A server that dies is started again, after 1, 2, 4 … 30 seconds; after 5 deaths within a minute, and when it says that a new
/// start would end the same way, no more. With --detach a process in the background does that and writes to
/// DIR/log/supervisor.log. Where it was killed, the servers go on, and the next `weft up --detach` looks after them.
///
/// Where some servers run, those that are missing are started. In the foreground, Ctrl-C stops only these then.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory of the cluster; made where it is missing.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Number of I/O servers of a new cluster [default: 4].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    io: Option<u16>,
    /// Port of the metadata server; I/O servers have the next ones [default: 7400, or the next free range].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Address to listen at, by which clients reach this machine [default: 127.0.0.1].
    #[arg(long, value_name = "HOST")]
    bind: Option<String>,
    /// Acknowledge writes and changes of names only when they are on the disk; remembered.
    #[arg(long)]
    sync: bool,
    /// Acknowledge when the operating system has them (the default of a new cluster); remembered.
    #[arg(long, conflicts_with = "sync")]
    nosync: bool,
    /// Start only this server of a cluster; may be repeated.
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["io", "port", "bind", "sync", "nosync"])]
    only: Vec<String>,
    /// Return when the cluster is ready; it goes on in the background.
    #[arg(long)]
    detach: bool,
    /// Print the cluster as JSON.
    #[arg(long)]
    json: bool,
}

/// A cluster that was started.
#[derive(Serialize, Deserialize)]
struct Answer {
    state: RunState,
    news: News,
}

/// Starts a cluster, or servers of it.
pub fn run(args: Args) -> Result<()> {
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
        only: args.only.clone(),
        lifetime: if args.detach { Lifetime::Detached } else { Lifetime::WithParent },
        supervised: true,
        program: None,
    };
    if let Some((state, news)) = launch::hand_over(&options)? {
        return report(&args, &Answer { state, news });
    }
    if !args.detach {
        return stay(&args, &options);
    }
    match launch::fork()? {
        Side::Front(front) => report(&args, &front.wait(&args.dir)?),
        Side::Background(background) => in_background(options, background),
    }
}

/// Starts servers and supervises them here.
fn stay(args: &Args, options: &StartOptions) -> Result<()> {
    let signals = BlockedSignals::ends_and(&[libc::SIGUSR1])?;
    let cluster = launch::start(options, &mut |time| signals.wait_at_most(time).is_none())?;
    report(args, &Answer { state: cluster.state.clone(), news: cluster.news.clone() })?;
    let News { started, left, .. } = &cluster.news;
    if !args.json && left.is_empty() && args.only.is_empty() {
        let (io, url) = (started.len() - 1, &cluster.state.url);
        eprintln!("weft: 1 metadata and {io} I/O servers are up; Ctrl-C stops them. Try: weft ls {url}");
    } else if !args.json {
        eprintln!("weft: Ctrl-C stops {}", started.join(", "));
    }
    launch::supervise(cluster, &signals)
}

/// Starts servers and supervises them in the process that stays behind.
fn in_background(options: StartOptions, background: launch::Background) -> Result<()> {
    let signals = BlockedSignals::ends_and(&[libc::SIGUSR1])?;
    let mut pause = |time: Duration| signals.wait_at_most(time).is_none() && !background.is_abandoned();
    let started = launch::start(&options, &mut pause).and_then(|cluster| {
        launch::log_to(&options.dir)?;
        Ok(cluster)
    });
    match started {
        Ok(cluster) => {
            let answer = Answer { state: cluster.state.clone(), news: cluster.news.clone() };
            background.tell(Ok(answer))?;
            launch::supervise(cluster, &signals)
        }
        Err(error) => {
            background.tell::<Answer>(Err(format!("{error:#}")))?;
            // The front tells it.
            std::process::exit(1)
        }
    }
}

/// Installs the clients' key and prints what runs.
fn report(args: &Args, answer: &Answer) -> Result<()> {
    let Answer { state, news } = answer;
    let dir: &Path = &args.dir.canonicalize()?;
    // A machine of a larger cluster may have servers and no client.
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
        let tell = |what: &str, names: &[String]| {
            if !names.is_empty() {
                eprintln!("weft: {what} {}", names.join(", "));
            }
        };
        tell("started", &news.started);
        tell("supervises from now on, running before:", &news.adopted);
        tell("left to whoever started them, running before:", &news.left);
    }
    output::print_line(&state.url)
}
