//! Asks a cluster's running supervisor to start servers.

use super::cluster::News;
use super::directory::{CLUSTER_FILE, log_of, url_of};
use super::locking::lock;
use super::options::{Lifetime, StartOptions};
use super::readiness::{Patience, READY_POLL, READY_TIMEOUT, Readiness};
use super::run_state::RunState;
use super::start::add_gateway;
use super::survey::{Survey, refuse_changes};
use anyhow::{Result, bail};
use std::path::Path;
use weft_server::ClusterConfig;

/// Makes the supervisor start missing servers, and waits until they answer. `None` if no supervisor runs.
pub fn hand_over(options: &StartOptions) -> Result<Option<(RunState, News)>> {
    let Ok(dir) = options.dir.canonicalize() else { return Ok(None) };
    let file = dir.join(CLUSTER_FILE);
    if !file.exists() {
        return Ok(None);
    }
    let mut pause = |time| {
        std::thread::sleep(time);
        true
    };
    let held = lock(&dir, &mut pause)?;
    let Some(mut state) = RunState::load(&dir)? else { return Ok(None) };
    let Some(supervisor) = state.live_supervisor() else { return Ok(None) };
    add_gateway(&file, options)?;
    let config = ClusterConfig::load(&file)?;
    let missing = match Survey::take(config.clone(), Some(&state), &options.only)? {
        Some(survey) if survey.missing.is_empty() => return Err(survey.already(&dir, &options.only)),
        Some(survey) => survey.missing,
        None => config.members().map(|member| member.name().to_owned()).collect(),
    };
    refuse_changes(&config, options)?;
    if options.lifetime == Lifetime::WithParent {
        bail!(
            "process {} supervises the cluster in {}; add --detach to make it start {}",
            supervisor.pid(),
            dir.display(),
            missing.join(", ")
        );
    }
    for name in &missing {
        state.want(config.member(name)?, log_of(&dir, name));
    }
    state.url = url_of(&config);
    state.save(&dir)?;
    drop(held);
    supervisor.signal(libc::SIGUSR1)?;
    let waited = wait_until_ready(&dir, &config, &missing, &|| supervisor.wait(std::time::Duration::ZERO));
    let held = lock(&dir, &mut pause)?;
    let mut state = RunState::load(&dir)?.unwrap_or(state);
    if let Err(error) = waited {
        for name in &missing {
            if let Some(server) = state.server_mut(name) {
                server.wanted = false;
            }
        }
        state.save(&dir)?;
        return Err(error);
    }
    drop(held);
    Ok(Some((state, News { started: missing, ..News::default() })))
}

fn wait_until_ready(
    dir: &Path,
    config: &ClusterConfig,
    names: &[String],
    supervisor_ended: &dyn Fn() -> bool,
) -> Result<()> {
    let readiness = Readiness::new(config, dir)?;
    let mut patience = Patience::new();
    loop {
        let state = RunState::load(dir)?;
        for name in names {
            let server = state.as_ref().and_then(|state| state.server(name)).filter(|server| server.wanted);
            match server.map(|server| &server.last_end) {
                Some(None) => {}
                Some(Some(end)) => bail!("server {name} {end}"),
                None => bail!("another command has stopped server {name}"),
            }
        }
        let Some(reason) = readiness.lacks(names) else { return Ok(()) };
        if supervisor_ended() {
            bail!("the supervisor has ended; see {}/log/supervisor.log, and try again", dir.display());
        }
        if !patience.lasts(dir, names, &reason) {
            let waited = READY_TIMEOUT.as_secs();
            bail!("{} not ready after {waited} s: {reason}; see {}/log", names.join(", "), dir.display());
        }
        std::thread::sleep(READY_POLL);
    }
}
