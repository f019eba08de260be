//! `weft down`

use crate::hosts;
use anyhow::Result;
use serde_json::{Value, json};
use std::path::PathBuf;
use weft_cli_common::launch::{self, Down, Ending};
use weft_cli_common::{Reported, output};

/// Stops the servers of DIR's cluster that run on this machine.
///
/// It stops them whoever started them: `weft up`, `weft serve` or systemd. Their data stays, and `weft up
/// --dir DIR` uses it again.
///
/// Servers get SIGTERM, and after 5 seconds SIGKILL. Only processes that are those servers are signalled,
/// even if a process number has been reused. If nothing runs, nothing is done. systemd or another supervisor
/// may restart a server.
///
/// A cluster that `weft up --hosts` started is unmounted and stopped on all its hosts. If its mount is in use on one
/// of them, nothing is stopped.
///
/// The exit code is 1, and the reason is printed, if a server is still running.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory of the cluster.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Stop only this server; may be repeated. It stays stopped until `weft up` starts it.
    #[arg(long, value_name = "SERVER")]
    only: Vec<String>,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

/// Stops a cluster, or servers of it.
pub fn run(args: Args) -> Result<()> {
    if let Some(record) = hosts::Record::load(&args.dir)? {
        return report_hosts(&hosts::down(&record, &args.only, hosts::Removal::Nothing), args.json);
    }
    let down = launch::stop(&args.dir, &args.only)?;
    match args.json {
        true => output::print_json(&as_json(&down))?,
        false => print(&args, &down)?,
    }
    let failures = down.failures();
    failures.iter().for_each(|failure| eprintln!("weft: {failure}"));
    if failures.is_empty() { Ok(()) } else { Err(Reported.into()) }
}

/// Prints how it went on several hosts.
///
/// # Errors
/// It failed on some.
pub fn report_hosts(down: &hosts::Down, as_json: bool) -> Result<()> {
    match as_json {
        true => output::print_json(down)?,
        false => output::print_line(format_args!(
            "stopped {} servers on {} hosts",
            down.stopped,
            down.hosts.len()
        ))?,
    }
    failures(down)
}

/// Prints what failed.
///
/// # Errors
/// Something did.
pub fn failures(down: &hosts::Down) -> Result<()> {
    down.tell_failures();
    if down.failures.is_empty() { Ok(()) } else { Err(Reported.into()) }
}

fn count(down: &Down, ending: &Ending) -> usize {
    down.servers.iter().filter(|(_, _, how)| how == ending).count()
}

fn print(args: &Args, down: &Down) -> Result<()> {
    let dir = args.dir.display();
    let forced = count(down, &Ending::ByForce);
    let stopped = count(down, &Ending::InOrder) + forced;
    if stopped > 0 && !args.only.is_empty() {
        for (name, pid, ending) in &down.servers {
            match ending {
                Ending::InOrder => output::print_line(format_args!("stopped {name} (process {pid})"))?,
                Ending::ByForce => {
                    output::print_line(format_args!(
                        "stopped {name} (process {pid}) by force; see {dir}/log"
                    ))?;
                }
                Ending::Failed(_) => {}
            }
        }
        return Ok(());
    }
    match (stopped, forced) {
        (0, _) if !down.failures().is_empty() => Ok(()),
        (0, _) if args.only.is_empty() => output::print_line(format_args!("no cluster of {dir} is running")),
        (0, _) => output::print_line(format_args!("not running: {}", args.only.join(", "))),
        (_, 0) => output::print_line(format_args!("stopped {stopped} servers")),
        _ => output::print_line(format_args!(
            "stopped {stopped} servers, {forced} of them by force; see {dir}/log"
        )),
    }
}

fn as_json(down: &Down) -> Value {
    let servers = down.servers.iter().map(|(name, pid, ending)| {
        let (how, reason) = match ending {
            Ending::InOrder => ("in order", None),
            Ending::ByForce => ("by force", None),
            Ending::Failed(reason) => ("not stopped", Some(reason)),
        };
        json!({ "name": name, "pid": pid, "how": how, "reason": reason })
    });
    let unknown = down.unknown.iter().map(|(name, reason)| json!({ "name": name, "reason": reason }));
    let forced = count(down, &Ending::ByForce);
    json!({
        "stopped": count(down, &Ending::InOrder) + forced,
        "forced": forced,
        "servers": servers.collect::<Vec<_>>(),
        "unknown": unknown.collect::<Vec<_>>(),
    })
}
