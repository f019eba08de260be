//! Which servers of a cluster run.

use super::directory::{check_count, url_of};
use super::options::StartOptions;
use super::ports;
use super::run_state::{Found, RunState, find};
use anyhow::{Context, Result, bail};
use std::path::Path;
use weft_server::config::Member;
use weft_server::{ClusterConfig, SyncMode};

/// Which servers of a cluster run.
pub(super) struct Survey {
    pub(super) config: ClusterConfig,
    pub(super) running: Vec<(String, Found)>,
    /// Requested servers that do not run.
    pub(super) missing: Vec<String>,
}

impl Survey {
    /// `None` if no server runs and all are requested.
    pub(super) fn take(
        config: ClusterConfig,
        state: Option<&RunState>,
        only: &[String],
    ) -> Result<Option<Survey>> {
        for name in only {
            config.member(name)?;
        }
        let (mut running, mut missing) = (Vec::new(), Vec::new());
        for member in config.members() {
            let name = member.name().to_owned();
            let found = find(&config, state, member);
            let found = found.with_context(|| format!("cannot find out whether server {name} runs"))?;
            match found {
                Some(found) => running.push((name, found)),
                None if only.is_empty() || only.contains(&name) => missing.push(name),
                None => {}
            }
        }
        if running.is_empty() && only.is_empty() {
            return Ok(None);
        }
        let is_missing = |member: &Member<'_>| missing.iter().any(|name| name == member.name());
        ports::check_here(config.members().filter(is_missing))?;
        Ok(Some(Survey { config, running, missing }))
    }

    pub(super) fn already(&self, dir: &Path, only: &[String]) -> anyhow::Error {
        let dir = dir.display();
        if only.is_empty() {
            let url = url_of(&self.config);
            return anyhow::anyhow!(
                "the cluster in {dir} is already running: {url}; stop it with: weft down --dir {dir}"
            );
        }
        let meant = self.running.iter().filter(|(name, _)| only.contains(name));
        let processes: Vec<_> =
            meant.map(|(name, found)| format!("{name} (process {})", found.process.pid)).collect();
        anyhow::anyhow!("already running: {}", processes.join(", "))
    }
}

/// Refuses changes of the configuration: running servers keep the one that they were started with.
pub(super) fn refuse_changes(config: &ClusterConfig, options: &StartOptions) -> Result<()> {
    check_count(config, options)?;
    let given = [
        (options.port.is_some(), "--port"),
        (options.bind.is_some(), "--bind"),
        (options.sync == Some(SyncMode::Sync), "--sync"),
        (options.sync == Some(SyncMode::Nosync), "--nosync"),
        (options.metrics.is_some(), "--metrics"),
    ];
    match given.iter().find(|(given, _)| *given) {
        Some((_, option)) => bail!(
            "{option} changes the whole cluster, but servers of it are running; stop it first: weft down --dir {}",
            options.dir.display()
        ),
        None => Ok(()),
    }
}
