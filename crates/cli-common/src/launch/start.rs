//! Starting the servers of a cluster that do not run.

use super::cluster::{LocalCluster, Watched};
use super::directory::{CLUSTER_FILE, load_or_make_config, make_dir, make_new_storages, url_of};
use super::gateway::with_nfs;
use super::hand_over::hand_over;
use super::locking::lock;
use super::options::{Lifetime, StartOptions};
use super::ports::PortLock;
use super::readiness::READY_TIMEOUT;
use super::run_state::RunState;
use super::stop::stop;
use super::survey::{Survey, refuse_changes};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};
use weft_server::ClusterConfig;

/// Starts the servers of a directory that do not run, and returns when they answer. Creates the directory and
/// the cluster if missing. While it waits it calls `pause`, which sleeps that long and returns whether to go
/// on.
pub fn start(options: &StartOptions, pause: &mut dyn FnMut(Duration) -> bool) -> Result<LocalCluster> {
    let dir = make_dir(&options.dir)?;
    let _lock = lock(&dir, pause)?;
    let state = RunState::load(&dir)?;
    if state.as_ref().is_some_and(|state| state.live_supervisor().is_some()) {
        bail!("another `weft up` has just started the cluster in {}", dir.display());
    }
    add_gateway(&dir.join(CLUSTER_FILE), options)?;
    let found = match dir.join(CLUSTER_FILE) {
        file if file.exists() => Survey::take(ClusterConfig::load(&file)?, state.as_ref(), &options.only)?,
        _ if !options.only.is_empty() => {
            bail!("{} has no {CLUSTER_FILE}; --only is for a cluster that was started before", dir.display())
        }
        _ => None,
    };
    if let Some(survey) = found {
        return resume(&dir, survey, state, options, pause);
    }
    let _ports = PortLock::take(2 * READY_TIMEOUT, pause)?;
    load_or_make_config(&dir, options)?;
    add_gateway(&dir.join(CLUSTER_FILE), options)?;
    let config = ClusterConfig::load(&dir.join(CLUSTER_FILE))?;
    make_new_storages(&dir, &config, &[])?;
    let state = RunState::new(url_of(&config))?;
    let mut cluster = LocalCluster::new(&dir, config, state, options)?;
    let names = cluster.config.members().map(|member| member.name().to_owned()).collect();
    cluster.begin(names, pause)?;
    Ok(cluster)
}

/// Adds an NFS gateway to the cluster file, if that is asked for and there is a file.
pub(super) fn add_gateway(file: &Path, options: &StartOptions) -> Result<()> {
    let Some(address) = &options.nfs else { return Ok(()) };
    if !file.exists() {
        return Ok(());
    }
    let address = Some(address.as_str()).filter(|address| !address.is_empty());
    if let Some(edited) = with_nfs(&ClusterConfig::load(file)?, address)? {
        edited.save()?;
    }
    Ok(())
}

/// Starts missing servers of a cluster of which other servers may run.
fn resume(
    dir: &Path,
    survey: Survey,
    state: Option<RunState>,
    options: &StartOptions,
    pause: &mut dyn FnMut(Duration) -> bool,
) -> Result<LocalCluster> {
    let adopts = options.lifetime == Lifetime::Detached && options.only.is_empty();
    if survey.missing.is_empty() && !(adopts && survey.running.iter().any(|(_, found)| found.is_recorded)) {
        return Err(survey.already(dir, &options.only));
    }
    refuse_changes(&survey.config, options)?;
    make_new_storages(dir, &survey.config, &options.only)?;
    let state = match state {
        Some(state) => state,
        None => RunState::new(url_of(&survey.config))?,
    };
    let mut cluster = LocalCluster::new(dir, survey.config, state, options)?;
    cluster.state.servers.retain(|noted| survey.running.iter().any(|(name, _)| *name == noted.name));
    for (name, found) in survey.running {
        if !found.is_recorded || options.lifetime == Lifetime::WithParent {
            cluster.news.left.push(name);
            continue;
        }
        cluster.news.adopted.push(name.clone());
        cluster.watched.push(Watched { name, since: Instant::now(), handle: found.handle, child: None });
    }
    cluster.begin(survey.missing, pause)?;
    Ok(cluster)
}

/// Whether a supervisor runs for a directory.
pub fn is_supervised(dir: &Path) -> bool {
    RunState::load(dir).ok().flatten().is_some_and(|state| state.live_supervisor().is_some())
}

/// Makes the supervisor of a directory start a server.
pub fn start_one(dir: &Path, name: &str) -> Result<()> {
    let options = StartOptions {
        dir: dir.to_owned(),
        io_servers: None,
        port: None,
        bind: None,
        sync: None,
        nfs: None,
        metrics: None,
        only: vec![name.to_owned()],
        lifetime: Lifetime::Detached,
        supervised: true,
        program: None,
    };
    hand_over(&options)?.map(drop).with_context(|| {
        format!(
            "no `weft up` supervises {}; start it: weft up --dir {0} --only {name} --detach",
            dir.display()
        )
    })
}

/// Stops a server, and makes the supervisor start it again with the present cluster file.
pub fn restart_one(dir: &Path, name: &str) -> Result<()> {
    stop(dir, &[name.to_owned()])?;
    start_one(dir, name)
}
