//! Starting a cluster on several hosts.

use super::down::down;
use super::names::Hosts;
use super::place::{Wanted, choose_port, cluster_file, dealt, grown, place};
use super::probe::{self, Facts};
use super::record::{ON_PATH, Placed, Record};
use super::remote::{Remote, on_each, quoted};
use super::scripts::{Files, Removal, install_script, mount_script};
use crate::commands::version;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use weft_cli_common::launch::{CLUSTER_FILE, install_client_key, url_of};
use weft_cli_common::size;
use weft_server::{AdminError, CLIENT_KEY_FILE, CLUSTER_KEY_FILE, ClusterConfig, SyncMode};

/// Starts a cluster on several hosts, new or as it was, and returns when all its servers answer. If more hosts are named than it has,
/// it grows by them.
///
/// # Errors
/// What failed, on which hosts. Of a new cluster, what was begun is undone.
pub fn up(wanted: &Wanted) -> Result<Record> {
    if wanted.mount.as_ref().is_some_and(|mount| !mount.is_absolute() || has_blank(mount)) {
        bail!("--mount needs a directory from the root on, without blanks");
    }
    let (record, facts) = match Record::load(&wanted.dir)? {
        Some(record) => again(record, wanted)?,
        None => begin(wanted)?,
    };
    let done = copy_program(&record, &facts, &wanted.only).and_then(|()| start(&record, wanted));
    if done.is_err() && record.is_new() {
        eprintln!("weft: that failed; removing what was begun");
        down(&record, &[], Removal::Everything).tell_failures();
    }
    done.map(|()| record.complete())
}

/// A cluster that was started before.
fn again(mut record: Record, wanted: &Wanted) -> Result<(Record, Vec<Facts>)> {
    let dir = wanted.dir.display();
    for (is_given, option) in [
        (wanted.io_servers.is_some(), "--io"),
        (wanted.port.is_some(), "--port"),
        (wanted.metrics.is_some(), "--metrics"),
        (wanted.sync == SyncMode::Sync, "--sync"),
    ] {
        if is_given {
            bail!(
                "{option} is for a new cluster, and there is one in {dir}; change {dir}/{CLUSTER_FILE}, then weft down and weft up"
            );
        }
    }
    if wanted.mount.is_some() {
        record.mount.clone_from(&wanted.mount);
    }
    let meant: Vec<_> = record.hosts_of(&wanted.only)?;
    let mut facts = ask(&record.ssh, &meant, |host| (host.name.as_str(), record.dir_on(host)))?;
    for (host, facts) in meant.iter().zip(&facts) {
        let on_host = record.dir_on(host);
        match &facts.cluster_id {
            Some(id) if *id != record.cluster_id => {
                bail!("{}: {} is of another cluster", host.name, on_host.display())
            }
            None if !host.is_new => bail!(
                "{}: {} is gone; if its disk is not mounted, mount it; if it is lost, see `weft help recovery`",
                host.name,
                on_host.display()
            ),
            _ => {}
        }
    }
    if let Some(hosts) = &wanted.hosts {
        facts.extend(grow(&mut record, wanted, hosts)?);
    }
    record.save()?;
    Ok((record, facts))
}

/// Adds an I/O server on each host that the cluster does not have yet. Returns what these say of themselves.
fn grow(record: &mut Record, wanted: &Wanted, Hosts(hosts): &Hosts) -> Result<Vec<Facts>> {
    let known: Vec<_> = record.hosts.iter().map(|host| host.name.as_str()).collect();
    let named: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
    if !named.starts_with(&known) {
        bail!(
            "the cluster in {} is on {}; name these first, and then the hosts by which it is to grow, or choose another --dir",
            record.dir.display(),
            known.join(",")
        );
    }
    let new = &hosts[known.len()..];
    if new.is_empty() {
        return Ok(Vec::new());
    }
    let facts = ask(&record.ssh, new, |host| (host.name.as_str(), record.dir.join(&host.name)))?;
    let mut config = ClusterConfig::load(&record.dir.join(CLUSTER_FILE))?;
    let keys = weft_server::load_cluster_keys(&record.dir.join(CLUSTER_KEY_FILE))?;
    let count = config.io_servers().count();
    let placed = place(wanted, new, &facts, &record.dir, |at| vec![format!("io{}", count + at)])?;
    for (host, facts) in placed.into_iter().zip(&facts) {
        let server = grown(&config, &host, facts)?;
        let edited = config.with_server(&server)?;
        // A metadata server that does not run reads the file when it starts.
        match weft_server::add_server(&config, &keys, &edited.config, &server.name) {
            Ok(_) | Err(AdminError { is_refusal: false, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        edited.save()?;
        config = ClusterConfig::load(&config.path)?;
        record.hosts.push(host);
        record.save()?;
    }
    eprintln!("weft: the cluster grows by {}", counted(new.len(), "host"));
    Ok(facts)
}

/// A new cluster: asks the hosts, and writes cluster file, keys and record here.
fn begin(wanted: &Wanted) -> Result<(Record, Vec<Facts>)> {
    let Some(Hosts(hosts)) = &wanted.hosts else { bail!("which hosts? name them with --hosts") };
    std::fs::create_dir_all(&wanted.dir)
        .with_context(|| format!("cannot create the cluster's directory {}", wanted.dir.display()))?;
    // Links are followed by each host for itself.
    let dir =
        std::path::absolute(&wanted.dir).with_context(|| format!("cannot find {}", wanted.dir.display()))?;
    if dir.join(CLUSTER_FILE).exists() {
        bail!("{} has a cluster that is not of `weft up --hosts`; choose another --dir", dir.display());
    }
    if dir.to_str().is_none_or(|text| text.contains(['\n', '\r'])) {
        bail!("{}: the directory's name must be one line of UTF-8", dir.display());
    }
    let facts = ask(&wanted.ssh, hosts, |host| (host.name.as_str(), dir.join(&host.name)))?;
    eprintln!("weft: {} hosts answer", hosts.len());
    let io_servers = wanted.io_servers.map_or(hosts.len(), usize::from);
    let placed = place(wanted, hosts, &facts, &dir, |at| dealt(at, hosts.len(), io_servers))?;
    let port = choose_port(wanted, &facts)?;
    let config = cluster_file(wanted, &placed, port, &dir)?;
    weft_server::create_keys(&dir)?;
    config.save()?;
    let record = Record {
        ssh: wanted.ssh.clone(),
        url: url_of(&config),
        cluster_id: config.cluster.id.to_string(),
        mount: wanted.mount.clone(),
        hosts: placed,
        dir,
    };
    record.save()?;
    Ok((record, facts))
}

fn has_blank(path: &Path) -> bool {
    path.to_str().is_none_or(|text| text.contains(char::is_whitespace))
}

/// What all hosts say of themselves.
fn ask<T: Sync>(
    ssh: &[String],
    hosts: &[T],
    of: impl Fn(&T) -> (&str, PathBuf) + Sync,
) -> Result<Vec<Facts>> {
    let answers = on_each(hosts, |host| {
        let (host, dir) = of(host);
        Remote { ssh, host }.script(&probe::script(&dir)).map(|text| probe::read(&text))
    });
    let names = hosts.iter().map(|host| of(host).0);
    all_or_why("cannot run commands on", names, answers)
}

/// All results, or an error with all that failed.
fn all_or_why<'a, R>(
    what: &str,
    names: impl Iterator<Item = &'a str>,
    results: Vec<Result<R>>,
) -> Result<Vec<R>> {
    let (mut good, mut bad) = (Vec::with_capacity(results.len()), Vec::new());
    for (name, result) in names.zip(results) {
        match result {
            Ok(result) => good.push(result),
            Err(error) => bad.push(format!("{name}: {error:#}")),
        }
    }
    match bad.len() {
        0 => Ok(good),
        1 => bail!("{what} {}", bad[0]),
        count => bail!("{what} {count} hosts:\n  {}", bad.join("\n  ")),
    }
}

/// Copies this program to the hosts of the servers in `only` that do not have it.
fn copy_program(record: &Record, facts: &[Facts], only: &[String]) -> Result<()> {
    let version = version::line();
    let is_missing = |(host, facts): &(&Placed, &Facts)| {
        let is_it = |(path, found): &(String, String)| *path == host.program && *found == version;
        host.program != ON_PATH && !facts.programs.iter().any(is_it)
    };
    let meant = record.hosts_of(only)?.into_iter();
    let to: Vec<_> = meant.zip(facts).filter(is_missing).map(|(host, _)| host).collect();
    if to.is_empty() {
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let bytes = std::fs::metadata(&program).map_or(0, |meta| meta.len());
    eprintln!(
        "weft: copying the program to {} ({} each)",
        counted(to.len(), "host"),
        size::format_bytes(bytes)
    );
    let results = on_each(&to, |host| {
        let dir = quoted(&record.dir_on(host).display().to_string());
        let command = format!(
            "d={dir}; mkdir -p \"$d/bin\" && cat > \"$d/bin/.weft\" && chmod 755 \"$d/bin/.weft\" && \
             mv \"$d/bin/.weft\" \"$d/bin/weft\""
        );
        record.remote(host).feed(&format!("sh -c {}", quoted(&command)), &program)
    });
    all_or_why("cannot copy the program to", names_of(&to), results).map(drop)
}

/// Starts the servers that do not run, and mounts.
fn start(record: &Record, wanted: &Wanted) -> Result<()> {
    let files = Files::load(&record.dir)?;
    let meant = record.hosts_of(&wanted.only)?;
    let is_started = |name: &&String| wanted.only.is_empty() || wanted.only.contains(name);
    let (meta, others): (Vec<&Placed>, Vec<&Placed>) =
        meant.iter().copied().partition(|host| host.servers.iter().any(|name| name.starts_with("meta")));
    let mut started = 0;
    // I/O servers wait for the metadata server's consent.
    for hosts in [meta, others] {
        let results = on_each(&hosts, |host| {
            let running = if host.is_new { Vec::new() } else { running(record, host)? };
            let names = host.servers.iter().filter(is_started).filter(|name| !running.contains(name));
            let names: Vec<_> = names.cloned().collect();
            record.remote(host).script(&install_script(record, host, &files, &names)).map(|_| names.len())
        });
        started +=
            all_or_why("cannot start servers on", names_of(&hosts), results)?.into_iter().sum::<usize>();
    }
    install_client_key(&record.dir.join(CLIENT_KEY_FILE), &record.url)?;
    if record.hosts.iter().any(|host| host.is_new) {
        record.clone().complete().save()?;
    }
    let hosts = counted(record.hosts.len(), "host");
    eprintln!("weft: started {}; the cluster is on {hosts}", counted(started, "server"));
    if let Some(mount) = record.mount.as_ref().filter(|_| wanted.only.is_empty()) {
        let results = on_each(&meant, |host| record.remote(host).script(&mount_script(record, host, mount)));
        all_or_why("cannot mount on", names_of(&meant), results)?;
        eprintln!("weft: mounted at {} on {hosts}", mount.display());
    }
    Ok(())
}

fn names_of<'a>(hosts: &'a [&Placed]) -> impl Iterator<Item = &'a str> {
    hosts.iter().map(|host| host.name.as_str())
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Names of the servers that run on a host.
fn running(record: &Record, host: &Placed) -> Result<Vec<String>> {
    let status = status(record, host)?;
    let runs = |server: &&Value| server["running"].as_bool() == Some(true);
    let running = status["servers"].as_array().into_iter().flatten().filter(runs);
    Ok(running.filter_map(|server| server["name"].as_str()).map(str::to_string).collect())
}

/// What `weft status --dir DIR/HOST --json` prints on a host.
fn status(record: &Record, host: &Placed) -> Result<Value> {
    let (program, dir) = (quoted(&host.program), quoted(&record.dir_on(host).display().to_string()));
    // It ends with 1 where a server does not run.
    let text = record.remote(host).script(&format!("{program} status --dir {dir} --json || [ $? = 1 ]\n"))?;
    serde_json::from_str(&text).with_context(|| format!("it answers with: {}", text.trim()))
}

/// The same of each host, or why it does not say it.
pub fn statuses(record: &Record) -> Vec<(&Placed, Result<Value>)> {
    let all: Vec<_> = record.hosts.iter().collect();
    let results = on_each(&all, |host| status(record, host));
    all.into_iter().zip(results).collect()
}
