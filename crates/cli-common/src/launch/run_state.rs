//! `run.json`: which servers `weft up` started, which should run, and who supervises them.
//!
//! It is changed only by the holder of the lock of the cluster's directory ([`super::locking`]). `weft down
//! --only` records in it that a server should not run, so that the supervisor leaves it stopped. `weft up
//! --only` reverts that.

use super::holder::holder_of;
use super::process::{Ending, ProcessHandle, ProcessId, end_clients_first};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_server::ClusterConfig;
use weft_server::config::Member;

const RUN_FILE: &str = "run.json";

/// A running cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunState {
    /// Its URL.
    pub url: String,
    /// The kernel's identity of this boot.
    boot_id: String,
    /// The `weft up` that restarts servers.
    #[serde(default)]
    pub supervisor: Option<ProcessId>,
    /// Its servers.
    pub servers: Vec<RunningServer>,
}

/// A server that `weft up` started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunningServer {
    /// Name in the cluster file.
    pub name: String,
    /// "meta", "io" or "nfs".
    pub role: String,
    /// Where it listens.
    pub address: String,
    /// Its process.
    #[serde(flatten)]
    pub process: ProcessId,
    /// Its log file.
    pub log: PathBuf,
    /// Whether it should run; false if it was stopped on request.
    #[serde(default = "yes")]
    pub wanted: bool,
    /// How often the supervisor has restarted it.
    #[serde(default)]
    pub restarts: u32,
    /// How it ended the last time, since it was last requested.
    #[serde(default)]
    pub last_end: Option<String>,
    /// Whether the supervisor has given up on it.
    #[serde(default)]
    pub given_up: bool,
}

fn yes() -> bool {
    true
}

/// A server's process.
#[derive(Debug)]
pub struct Found {
    /// The process.
    pub process: ProcessId,
    /// A handle to signal it and wait for it.
    pub handle: ProcessHandle,
    /// Whether `weft up` started it.
    pub is_recorded: bool,
}

impl RunState {
    /// The state of a cluster without servers.
    pub fn new(url: String) -> Result<RunState> {
        Ok(RunState { url, boot_id: boot_id()?, supervisor: None, servers: Vec::new() })
    }

    /// Loads the state of a cluster's directory. `None` if no cluster was started since the boot, or it was
    /// stopped in order.
    pub fn load(dir: &Path) -> Result<Option<RunState>> {
        let path = dir.join(RUN_FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let state: RunState = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged; remove it while no server runs", path.display()))?;
        Ok(boot_id().is_ok_and(|now| now == state.boot_id).then_some(state))
    }

    /// Saves the state in a cluster's directory.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let (path, fresh) = (dir.join(RUN_FILE), dir.join(".run.json"));
        std::fs::write(&fresh, serde_json::to_string_pretty(self)?)
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the state: no server of the directory runs.
    pub fn remove(dir: &Path) {
        // Without a state, or with an outdated one, the next start finds that nothing runs.
        let _ = std::fs::remove_file(dir.join(RUN_FILE));
    }

    /// The server of this name, if `weft up` started it.
    pub fn server(&self, name: &str) -> Option<&RunningServer> {
        self.servers.iter().find(|server| server.name == name)
    }

    /// The same, for changes.
    pub fn server_mut(&mut self, name: &str) -> Option<&mut RunningServer> {
        self.servers.iter_mut().find(|server| server.name == name)
    }

    /// Records that a server should run, and clears its history.
    pub fn want(&mut self, server: Member<'_>, log: PathBuf) -> &mut RunningServer {
        self.servers.retain(|other| other.name != server.name());
        self.servers.push(RunningServer {
            name: server.name().to_owned(),
            role: server.role_name().to_owned(),
            address: server.addresses()[0].clone(),
            process: ProcessId::NONE,
            log,
            wanted: true,
            restarts: 0,
            last_end: None,
            given_up: false,
        });
        self.servers.last_mut().expect("it was just added")
    }

    /// The supervisor, if it runs.
    pub fn live_supervisor(&self) -> Option<ProcessHandle> {
        self.supervisor.and_then(|supervisor| supervisor.handle())
    }

    /// Stops all servers. Kills those that still run after `timeout`, and returns how many.
    pub fn stop(&self, timeout: Duration) -> usize {
        let running = self.servers.iter().filter_map(|server| Some((server, server.process.handle()?)));
        let running: Vec<_> = running.collect();
        let handles: Vec<_> = running.iter().map(|(_, handle)| handle).collect();
        let endings = end_clients_first(&handles, |at| running[at].0.role == "nfs", timeout);
        endings.iter().filter(|ending| **ending != Ending::InOrder).count()
    }
}

/// Finds the process of a server: the one that `weft up` recorded, else the one that holds the lock in the
/// server's directory.
///
/// # Errors
/// The directory cannot be examined.
pub fn find(
    config: &ClusterConfig,
    state: Option<&RunState>,
    server: Member<'_>,
) -> io::Result<Option<Found>> {
    if let Some(noted) = state.and_then(|state| state.server(server.name()))
        && let Some(handle) = noted.process.handle()
    {
        return Ok(Some(Found { process: noted.process, handle, is_recorded: true }));
    }
    let holder = holder_of(&config.lock_file_of(server))?;
    Ok(holder.map(|(process, handle)| Found { process, handle, is_recorded: false }))
}

fn boot_id() -> Result<String> {
    weft_host::boot_id_text().context("cannot read the kernel's boot identity")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RunState::load(dir.path()).unwrap().is_none());
        let mut state = RunState::new("weft://h:1/".into()).unwrap();
        state.servers.push(RunningServer {
            name: "io0".into(),
            role: "io".into(),
            address: "h:1".into(),
            process: ProcessId { pid: 1, start_ticks: 2 },
            log: PathBuf::new(),
            wanted: false,
            restarts: 3,
            last_end: None,
            given_up: false,
        });
        state.save(dir.path()).unwrap();
        let loaded = RunState::load(dir.path()).unwrap().unwrap();
        assert_eq!(loaded.servers[0].process, ProcessId { pid: 1, start_ticks: 2 });
        assert!(!loaded.servers[0].wanted && loaded.servers[0].restarts == 3);
        state.boot_id = "another".into();
        state.save(dir.path()).unwrap();
        assert!(RunState::load(dir.path()).unwrap().is_none());
        RunState::remove(dir.path());
        assert!(RunState::load(dir.path()).unwrap().is_none());
    }
}
