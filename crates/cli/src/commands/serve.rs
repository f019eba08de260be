//! `weft serve`

use crate::launch::BlockedSignals;
use anyhow::{Context, Result};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use weft_server::{CLUSTER_KEY_FILE, ClusterConfig, Server, StopFlag};

/// Runs one server of a cluster file in the foreground, until SIGTERM or SIGINT. Says what it does on standard error, one line per
/// event, as systemd likes it.
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
}

/// Serves.
pub fn run(args: Args) -> Result<()> {
    let config = ClusterConfig::load(&args.config)?;
    let key_file = args.cluster_key.unwrap_or_else(|| config.resolve(CLUSTER_KEY_FILE.as_ref()));
    let key = weft_server::load_key(&key_file)?;
    let stop = StopFlag::new()?;
    let signals = BlockedSignals::ends_and(&[])?;
    let asked = stop.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if signals.wait().is_ok() {
                asked.stop();
            }
        })
        .context("cannot start the thread that waits for signals")?;
    let server = Server::start(&config, &args.name, &key)?;
    tell_systemd();
    Ok(server.run(&stop)?)
}

/// Clients can connect: where systemd started this, it wants to know (sd_notify(3)).
fn tell_systemd() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = UnixDatagram::unbound().and_then(|from| from.send_to(b"READY=1", &socket));
    if let Err(error) = told {
        eprintln!("weft: cannot tell {} that the server is ready: {error}", socket.display());
    }
}
