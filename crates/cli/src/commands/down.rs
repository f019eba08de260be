//! `weft down`

use crate::launch::{CLUSTER_FILE, RunState, STOP_TIMEOUT};
use crate::output;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// Stops the servers that `weft up` started for DIR. Their data stays; `weft up --dir DIR` finds it again.
///
/// Servers are asked to end, and ended by force after 5 seconds. Only processes that are those servers are touched: a process
/// number that has gone to another program meanwhile is recognised. Where nothing runs, nothing is done.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory of the cluster.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

/// Stops a cluster.
pub fn run(args: Args) -> Result<()> {
    let dir = args.dir.display();
    if !args.dir.join(CLUSTER_FILE).exists() {
        bail!("{dir} has no {CLUSTER_FILE}; give the directory that was given to weft up");
    }
    let state = RunState::load(&args.dir)?.filter(RunState::is_running);
    let forced = state.as_ref().map(|state| state.stop(STOP_TIMEOUT));
    RunState::remove(&args.dir);
    let stopped = state.as_ref().map_or(0, |state| state.servers.len());
    if args.json {
        return output::print_json(&serde_json::json!({ "stopped": stopped, "forced": forced.unwrap_or(0) }));
    }
    match forced {
        None => output::print_line(format_args!("no cluster of {dir} is running")),
        Some(0) => output::print_line(format_args!("stopped {stopped} servers")),
        Some(forced) => output::print_line(format_args!(
            "stopped {stopped} servers, {forced} of them by force; see {dir}/log"
        )),
    }
}
