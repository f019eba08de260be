//! `weft up`

use crate::launch::{self, BlockedSignals, Lifetime, LocalCluster, StartOptions};
use crate::{Reported, output};
use anyhow::{Result, bail};
use std::path::PathBuf;
use weft_server::SyncMode;

/// Starts a metadata server and I/O servers on this machine, each a process of its own, and prints the URL of the file system.
/// Needs no root and no other software.
///
/// Everything lives in DIR: the cluster file, keys, data and logs. A second `up` of the same DIR finds its data again. In the
/// foreground, Ctrl-C stops the cluster; with --detach it goes on until `weft down --dir DIR`.
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
    /// Return when the cluster is ready; it goes on in the background.
    #[arg(long)]
    detach: bool,
    /// Print the cluster as JSON.
    #[arg(long)]
    json: bool,
}

/// Starts a cluster.
pub fn run(args: Args) -> Result<()> {
    let signals = BlockedSignals::ends_and(&[libc::SIGCHLD])?;
    let options = StartOptions {
        dir: args.dir.clone(),
        io_servers: args.io,
        port: args.port,
        bind: args.bind,
        sync: match (args.sync, args.nosync) {
            (true, _) => Some(SyncMode::Sync),
            (_, true) => Some(SyncMode::Nosync),
            _ => None,
        },
        lifetime: if args.detach { Lifetime::Detached } else { Lifetime::WithParent },
    };
    let mut cluster = launch::start(
        &options,
        &mut |time| !matches!(signals.wait_at_most(time), Some(signal) if signal != libc::SIGCHLD),
    )?;
    let key = launch::install_client_key(&cluster.client_key_path(), &cluster.state.url)?;
    if args.json {
        output::print_json(&serde_json::json!({
            "url": cluster.state.url,
            "dir": options.dir.canonicalize()?,
            "key": key,
            "servers": cluster.state.servers,
        }))?;
    } else {
        output::print_line(&cluster.state.url)?;
    }
    if args.detach {
        return Ok(());
    }
    if !args.json {
        let io = cluster.running() - 1;
        eprintln!(
            "weft: 1 metadata and {io} I/O servers are up; Ctrl-C stops them. Try: weft ls {}",
            cluster.state.url
        );
    }
    supervise(&mut cluster, &signals)
}

/// Stays until the cluster is to end or has ended. A server that ends by itself is told about; the others go on, so that what
/// they hold stays within reach.
fn supervise(cluster: &mut LocalCluster, signals: &BlockedSignals) -> Result<()> {
    let mut died = 0;
    loop {
        for ended in cluster.reap() {
            eprintln!("weft: server {ended}");
            died += 1;
        }
        if cluster.running() == 0 {
            cluster.stop();
            bail!("all servers have ended");
        }
        if signals.wait()? != libc::SIGCHLD {
            cluster.stop();
            return if died == 0 { Ok(()) } else { Err(Reported.into()) };
        }
    }
}
