//! `weft job`

use crate::hosts::{self, Hosts, Record, Removal};
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use weft_cli_common::output;
use weft_server::{CLIENT_KEY_FILE, SyncMode};

/// A file system for one job, on the hosts of the job.
///
/// It lives in the hosts' own disks or memory, belongs to the user of the job, and is gone when the job ends. This
/// needs no root: only ssh between the hosts of the job, without questions.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Start a file system on the job's hosts, and copy data in.
    Start(StartArgs),
    /// Copy data out, stop the file system on all hosts, and remove it.
    Stop(StopArgs),
    /// Print the job's hosts, one on each line.
    Hosts(HostsArgs),
}

/// Print the job's hosts, one on each line: a host file for mpirun, say.
#[derive(Debug, clap::Args)]
pub struct HostsArgs {
    /// The hosts, as of `weft up --hosts` [default: those of the job].
    #[arg(long, value_name = "HOSTS", value_parser = hosts::parse)]
    hosts: Option<Hosts>,
}

/// Start a file system on the job's hosts, and copy data in.
///
/// The hosts are those of --hosts, $SLURM_JOB_NODELIST, $SLURM_NODELIST or $PBS_NODEFILE. The first one gets the
/// metadata server, each an I/O server. What it prints sets WEFT_URL, and WEFT_MOUNT with --mount, in the shell that
/// evaluates it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
In a batch script of Slurm, with the local disks of the nodes in /local:
  eval \"$(weft job start --dir /local/weft-$SLURM_JOB_ID --stage-in ~/input /input)\"
  srun weft run -- ./simulation weft:/input weft:/output
  weft job stop --dir /local/weft-$SLURM_JOB_ID --stage-out /output ~/output")]
pub struct StartArgs {
    #[command(flatten)]
    place: Place,
    /// The hosts, as of `weft up --hosts`.
    #[arg(long, value_name = "HOSTS", value_parser = hosts::parse)]
    hosts: Option<Hosts>,
    /// Number of I/O servers, dealt out to the hosts in turn [default: one on each].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1023))]
    io: Option<u16>,
    /// Port of the metadata server; I/O servers get the following ones [default: 7400, or the next free range].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Mount the file system at this directory of each host.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// The command that runs another one on a host [default: ssh, without questions].
    #[arg(long, value_name = "COMMAND", env = "WEFT_SSH", hide_env_values = true)]
    ssh: Option<String>,
    /// Copy a local tree into the file system, by `weft sync` on this host; may be repeated.
    #[arg(long, num_args = 2, value_names = ["SOURCE", "PATH"])]
    stage_in: Vec<String>,
    /// Print the cluster as JSON.
    #[arg(long)]
    json: bool,
}

/// Copy data out, stop the file system on all hosts, and remove it.
///
/// If data cannot be copied out, nothing is stopped or removed, and the exit code is 1: try again, or give up the
/// data by `weft job stop` without --stage-out.
#[derive(Debug, clap::Args)]
pub struct StopArgs {
    #[command(flatten)]
    place: Place,
    /// Copy a tree of the file system to a local directory, by `weft sync` on this host; may be repeated.
    #[arg(long, num_args = 2, value_names = ["PATH", "TARGET"])]
    stage_out: Vec<String>,
    /// Stop, but keep the data: `weft up --dir DIR` starts the file system again.
    #[arg(long)]
    keep: bool,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

/// Where the job's file system is.
#[derive(Debug, clap::Args)]
struct Place {
    /// A directory of each host's own disk or memory, created if missing [default: /tmp/weft-job-JOB, where JOB is
    /// $SLURM_JOB_ID or $PBS_JOBID].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Place {
    fn dir(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        let job = ["SLURM_JOB_ID", "PBS_JOBID"].into_iter().find_map(variable);
        let job = job.context("which job? neither SLURM_JOB_ID nor PBS_JOBID is set; give --dir")?;
        if job.contains(['/', '\0']) {
            bail!("`{job}` is not the number of a job; give --dir");
        }
        Ok(PathBuf::from(format!("/tmp/weft-job-{job}")))
    }
}

/// Does what is asked for.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Start(args) => start(args),
        Command::Stop(args) => stop(args),
        Command::Hosts(args) => {
            let Hosts(hosts) = args.hosts.map_or_else(hosts_of_job, Ok)?;
            hosts.iter().try_for_each(|host| output::print_line(&host.name))
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The hosts that the job manager names.
fn hosts_of_job() -> Result<Hosts> {
    let list =
        ["SLURM_JOB_NODELIST", "SLURM_NODELIST"].into_iter().find_map(|name| Some((name, variable(name)?)));
    let list = list.or_else(|| Some(("PBS_NODEFILE", format!("@{}", variable("PBS_NODEFILE")?))));
    let (name, list) =
        list.context("which hosts? neither SLURM_JOB_NODELIST nor PBS_NODEFILE is set; give --hosts")?;
    hosts::parse(&list).map_err(|reason| anyhow::anyhow!("${name}: {reason}"))
}

fn start(args: StartArgs) -> Result<()> {
    let dir = args.place.dir()?;
    if Record::load(&dir)?.is_some() {
        bail!("there is a cluster in {0}; stop it with: weft job stop --dir {0}", dir.display());
    }
    let hosts = args.hosts.map_or_else(hosts_of_job, Ok)?;
    let record = hosts::up(&hosts::Wanted {
        dir,
        hosts: Some(hosts),
        io_servers: args.io,
        port: args.port,
        sync: SyncMode::Nosync,
        metrics: None,
        mount: args.mount,
        ssh: hosts::ssh_words(args.ssh.as_deref()),
        only: Vec::new(),
    })?;
    for pair in args.stage_in.chunks_exact(2) {
        let target = inside(&record, &pair[1]);
        if let Err(error) = copy(&record, &pair[0], &target) {
            hosts::down(&record, &[], Removal::Everything).tell_failures();
            return Err(error);
        }
    }
    if args.json {
        return output::print_json(&record);
    }
    output::print_line(format_args!("export WEFT_URL={}", record.url))?;
    match &record.mount {
        Some(mount) => output::print_line(format_args!("export WEFT_MOUNT={}", mount.display())),
        None => Ok(()),
    }
}

fn stop(args: StopArgs) -> Result<()> {
    let dir = args.place.dir()?;
    let Some(record) = Record::load(&dir)? else {
        bail!("{} has no file system of a job; give the --dir of weft job start", dir.display());
    };
    for pair in args.stage_out.chunks_exact(2) {
        copy(&record, &inside(&record, &pair[0]), &pair[1]).with_context(|| {
            format!(
                "the file system stays, with all data; to give it up: weft job stop --dir {}",
                dir.display()
            )
        })?;
    }
    let removal = if args.keep { Removal::Nothing } else { Removal::Everything };
    let down = hosts::down(&record, &[], removal);
    if args.json {
        output::print_json(&json!({ "down": down, "removed": !args.keep && down.failures.is_empty() }))?;
        return super::down::failures(&down);
    }
    super::down::report_hosts(&down, false)
}

/// The URL of a path in the file system.
fn inside(record: &Record, path: &str) -> String {
    format!("{}{}", record.url, path.trim_start_matches('/'))
}

/// `weft sync`, with its progress.
fn copy(record: &Record, from: &str, to: &str) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let key: &Path = &record.dir.join(CLIENT_KEY_FILE);
    // What it prints at its end is for people, as the rest of standard error.
    let status = Process::new(program).args(["sync", from, to, "--key"]).arg(key).status();
    match status.context("cannot run weft sync")? {
        status if status.success() => Ok(()),
        _ => bail!("{from} could not be copied to {to}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_of_the_jobs_file_system() {
        let record = Record {
            ssh: Vec::new(),
            dir: "/d".into(),
            cluster_id: String::new(),
            url: "weft://a:7400/".into(),
            mount: None,
            hosts: Vec::new(),
        };
        assert_eq!(inside(&record, "/in/x"), "weft://a:7400/in/x");
        assert_eq!(inside(&record, "in"), "weft://a:7400/in");
    }
}
