//! `weft down`: stops servers, whoever started them.

use super::cluster::STOP_TIMEOUT;
use super::directory::CLUSTER_FILE;
use super::locking::lock;
use super::process::{Ending, ProcessHandle, end_clients_first};
use super::run_state::{Found, RunState, find};
use anyhow::{Result, bail};
use std::path::Path;
use std::time::Duration;
use weft_server::ClusterConfig;
use weft_server::config::Member;

/// The result of `weft down`.
#[derive(Debug, Default)]
pub struct Down {
    /// Servers that ran: name, process, and how it ended.
    pub servers: Vec<(String, u32, Ending)>,
    /// Servers whose state could not be found out, and why.
    pub unknown: Vec<(String, String)>,
    /// A supervisor that could not be stopped, and why.
    pub supervisor: Option<(u32, String)>,
}

impl Down {
    /// Why processes still run, or may still run, as messages.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for (name, pid, ending) in &self.servers {
            if let Ending::Failed(reason) = ending {
                failures.push(format!("{name} (process {pid}) was not stopped: {reason}"));
            }
        }
        for (name, reason) in &self.unknown {
            failures.push(format!("cannot find out whether {name} runs: {reason}"));
        }
        if let Some((pid, reason)) = &self.supervisor {
            failures.push(format!("the supervisor (process {pid}) was not stopped: {reason}"));
        }
        failures
    }
}

/// Stops the servers of a directory that run, or those named in `only`, which the supervisor then leaves
/// stopped.
pub fn stop(dir: &Path, only: &[String]) -> Result<Down> {
    let file = dir.join(CLUSTER_FILE);
    if !file.exists() {
        bail!("{} has no {CLUSTER_FILE}; give the directory that you gave to weft up", dir.display());
    }
    let config = ClusterConfig::load(&file)?;
    for name in only {
        config.member(name)?;
    }
    let held = lock(dir, &mut |time| {
        std::thread::sleep(time);
        true
    });
    // Held to the end, so that nothing is started meanwhile. A supervisor that waits for the lock still ends.
    let held = match held {
        // A cluster of another user. Each server reports its own error.
        Err(error) if is_forbidden(&error) => None,
        held => Some(held?),
    };
    let mut state = RunState::load(dir).unwrap_or_else(|error| {
        // Servers are also found by their locks, and the supervisor does not restart servers that ended in
        // order.
        eprintln!("weft: {error:#}");
        None
    });
    let mut down = Down::default();
    let mut running: Vec<(String, Found)> = Vec::new();
    for member in config.members() {
        let name = member.name().to_owned();
        if !only.is_empty() && !only.contains(&name) {
            continue;
        }
        match find(&config, state.as_ref(), member) {
            Ok(found) => running.extend(found.map(|found| (name, found))),
            Err(error) => down.unknown.push((name, error.to_string())),
        }
    }
    if let Some(state) = &mut state
        && held.is_some()
    {
        let meant = |name: &String| only.is_empty() || only.contains(name);
        state
            .servers
            .iter_mut()
            .filter(|server| meant(&server.name))
            .for_each(|server| server.wanted = false);
        state.save(dir)?;
    }
    let supervisor = state.as_ref().filter(|_| only.is_empty()).and_then(RunState::live_supervisor);
    if let Some(supervisor) = &supervisor
        && let Err(error) = supervisor.signal(libc::SIGTERM)
    {
        down.supervisor = Some((supervisor.pid(), format!("it runs as {}: {error}", supervisor.user())));
    }
    let handles: Vec<&ProcessHandle> = running.iter().map(|(_, found)| &found.handle).collect();
    let is_client = |at: usize| matches!(config.member(&running[at].0), Ok(Member::Gateway(_)));
    let endings = end_clients_first(&handles, is_client, STOP_TIMEOUT);
    down.servers = running
        .into_iter()
        .zip(endings)
        .map(|((name, found), ending)| (name, found.process.pid, ending))
        .collect();
    if let Some(supervisor) = supervisor.filter(|_| down.supervisor.is_none()) {
        end_supervisor(&supervisor, &mut down);
    }
    if only.is_empty() && down.failures().is_empty() {
        RunState::remove(dir);
    }
    Ok(down)
}

/// Waits until the supervisor ends. It was signalled already; in the foreground it also waits for its
/// servers.
fn end_supervisor(supervisor: &ProcessHandle, down: &mut Down) {
    if supervisor.wait(2 * STOP_TIMEOUT) {
        return;
    }
    let killed = supervisor.signal(libc::SIGKILL);
    if killed.is_err() || !supervisor.wait(Duration::from_secs(1)) {
        down.supervisor = Some((supervisor.pid(), "it does not end".into()));
    }
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}
