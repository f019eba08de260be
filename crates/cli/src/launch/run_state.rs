//! `run.json`: which processes are a cluster's servers.
//!
//! A process number alone is not an identity: it is given again after its process has ended. The number, the start time and
//! the boot are one.

use super::ProcessHandle;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft_server::ServerConfig;

const RUN_FILE: &str = "run.json";

/// A running cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunState {
    /// Its URL.
    pub url: String,
    /// The kernel's identity of this boot.
    boot_id: String,
    /// Its servers.
    pub servers: Vec<RunningServer>,
}

/// A running server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunningServer {
    /// Name in the cluster file.
    pub name: String,
    /// "meta" or "io".
    pub role: String,
    /// Where it listens.
    pub address: String,
    /// Its process.
    pub pid: u32,
    /// When that process started, in clock ticks since the boot.
    start_ticks: u64,
    /// What it says.
    pub log: PathBuf,
}

impl RunState {
    /// Of a cluster without servers as yet.
    pub fn new(url: String) -> Result<RunState> {
        Ok(RunState { url, boot_id: boot_id()?, servers: Vec::new() })
    }

    /// Notes a server that was just started.
    pub fn add(&mut self, server: &ServerConfig, pid: u32, log: PathBuf) -> Result<()> {
        let start_ticks =
            start_ticks(pid).with_context(|| format!("server {} ended at once", server.name))?;
        let (name, role) = (server.name.clone(), server.role.name().to_string());
        self.servers.push(RunningServer {
            name,
            role,
            address: server.addresses[0].clone(),
            pid,
            start_ticks,
            log,
        });
        Ok(())
    }

    /// Of a cluster's directory; `None` where no cluster was started or it was stopped in order.
    pub fn load(dir: &Path) -> Result<Option<RunState>> {
        let path = dir.join(RUN_FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let state = serde_json::from_str(&text);
        state
            .map(Some)
            .with_context(|| format!("{} is damaged; remove it when no server runs", path.display()))
    }

    /// Into a cluster's directory.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let (path, fresh) = (dir.join(RUN_FILE), dir.join(".run.json"));
        std::fs::write(&fresh, serde_json::to_string_pretty(self)?)
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The cluster of this directory runs no more.
    pub fn remove(dir: &Path) {
        // Without it, or with an outdated one, the next start finds that nothing runs.
        let _ = std::fs::remove_file(dir.join(RUN_FILE));
    }

    /// Whether any of its servers lives.
    pub fn is_running(&self) -> bool {
        !self.handles().is_empty()
    }

    /// Asks all servers to end, and ends what still lives after `timeout`. Returns how many had to be ended by force.
    pub fn stop(&self, timeout: Duration) -> usize {
        let handles = self.handles();
        handles.iter().for_each(|handle| handle.signal(libc::SIGTERM));
        let deadline = Instant::now() + timeout;
        let stubborn: Vec<_> = handles
            .iter()
            .filter(|handle| !handle.wait(deadline.saturating_duration_since(Instant::now())))
            .collect();
        for handle in &stubborn {
            handle.signal(libc::SIGKILL);
            handle.wait(timeout);
        }
        stubborn.len()
    }

    /// The servers' processes that live. A handle is taken first and the identity checked behind it, so that a signal never
    /// reaches a stranger that got the number meanwhile.
    fn handles(&self) -> Vec<ProcessHandle> {
        if boot_id().is_ok_and(|now| now != self.boot_id) {
            return Vec::new();
        }
        let handle = |server: &RunningServer| {
            let handle = ProcessHandle::open(server.pid)?;
            (start_ticks(server.pid) == Some(server.start_ticks)).then_some(handle)
        };
        self.servers.iter().filter_map(handle).filter(|handle| !handle.wait(Duration::ZERO)).collect()
    }
}

fn boot_id() -> Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    Ok(id.context("cannot read the kernel's boot identity")?.trim().to_string())
}

/// Field 22 of /proc/PID/stat (proc(5)).
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    start_ticks_of(&stat)
}

/// The program's name, field 2, is in parentheses and may hold anything; fields are counted behind its end.
fn start_ticks_of(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn state_of(pid: u32, start_ticks: u64) -> RunState {
        let mut state = RunState::new("weft://h:1/".into()).unwrap();
        let (name, role, address) = ("io0".into(), "io".into(), "h:1".into());
        state.servers.push(RunningServer { name, role, address, pid, start_ticks, log: PathBuf::new() });
        state
    }

    #[test]
    fn the_start_time_is_found_behind_any_program_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4 1 0 0 0 5 6 0 0 20 0 1 0 4242 1000 99";
        assert_eq!(start_ticks_of(stat), Some(4242));
        assert_eq!(start_ticks_of("nothing"), None);
    }

    #[test]
    fn a_stranger_with_the_same_number_is_left_alone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let ticks = start_ticks(child.id()).unwrap();
        let stranger = state_of(child.id(), ticks + 1);
        assert!(!stranger.is_running());
        assert_eq!(stranger.stop(Duration::from_millis(10)), 0);
        assert!(child.try_wait().unwrap().is_none());
        let own = state_of(child.id(), ticks);
        assert!(own.is_running());
        assert_eq!(own.stop(Duration::from_secs(5)), 0);
        assert!(!own.is_running());
        child.wait().unwrap();
    }

    #[test]
    fn the_state_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RunState::load(dir.path()).unwrap().is_none());
        state_of(1, 2).save(dir.path()).unwrap();
        assert_eq!(RunState::load(dir.path()).unwrap().unwrap().servers[0].start_ticks, 2);
        RunState::remove(dir.path());
        assert!(RunState::load(dir.path()).unwrap().is_none());
    }
}
