//! Stopping a cluster on several hosts.

use super::record::{Placed, Record};
use super::remote::{on_each, quoted};
use super::up::remove_here;
use serde::Serialize;
use std::path::Path;
use weft_cli_common::launch::CLUSTER_FILE;

/// What is removed afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Nothing: the cluster can be started again.
    Nothing,
    /// All data, keys and files of the cluster, on all hosts.
    Everything,
}

/// How it went.
#[derive(Debug, Default, Serialize)]
pub struct Down {
    /// Servers that were stopped.
    pub stopped: u64,
    /// Hosts where all is as asked for.
    pub hosts: Vec<String>,
    /// What failed, with the name of the host.
    pub failures: Vec<String>,
}

/// Unmounts and stops on all hosts, or stops the servers in `only`. Where a mount is in use nothing is stopped, unless all is to be
/// removed.
pub fn down(record: &Record, only: &[String], removal: Removal) -> Down {
    let mut down = Down::default();
    let hosts = match record.hosts_of(only) {
        Ok(hosts) => hosts,
        Err(error) => {
            down.failures.push(error.to_string());
            return down;
        }
    };
    if let Some(mount) = record.mount.as_ref().filter(|_| only.is_empty()) {
        let by_force = removal == Removal::Everything;
        let results =
            on_each(&hosts, |host| record.remote(host).script(&umount_script(host, mount, by_force)));
        down.take(&hosts, results.into_iter().map(|result| result.map(drop)));
        if !down.failures.is_empty() && removal == Removal::Nothing {
            return down;
        }
    }
    let results =
        on_each(&hosts, |host| record.remote(host).script(&stop_script(record, host, only, removal)));
    let mut stopped = 0;
    let results = results.into_iter().map(|result| result.map(|text| stopped += count(&text)));
    let results: Vec<_> = results.collect();
    down.take(&hosts, results.into_iter());
    down.stopped = stopped;
    let is_bad = |host: &&&Placed| {
        down.failures.iter().any(|failure| failure.starts_with(&format!("{}: ", host.name)))
    };
    down.hosts = hosts.iter().filter(|host| !is_bad(host)).map(|host| host.name.clone()).collect();
    if removal == Removal::Everything && down.failures.is_empty() {
        remove_here(record);
    }
    down
}

impl Down {
    fn take(&mut self, hosts: &[&Placed], results: impl Iterator<Item = anyhow::Result<()>>) {
        for (host, result) in hosts.iter().zip(results) {
            if let Err(error) = result {
                self.failures.push(format!("{}: {error:#}", host.name));
            }
        }
    }
}

/// The number of servers in the output of `weft down --json`.
fn count(text: &str) -> u64 {
    let value = serde_json::from_str::<serde_json::Value>(text);
    value.ok().and_then(|value| value["stopped"].as_u64()).unwrap_or(0)
}

fn umount_script(host: &Placed, mount: &Path, by_force: bool) -> String {
    let or_else = if by_force { " || \"$weft\" umount --force \"$mount\"" } else { "" };
    format!(
        "mount={mount}\nweft={weft}\n! grep -q \" $mount fuse.weft \" /proc/self/mounts || \"$weft\" umount \"$mount\"{or_else}\n",
        mount = quoted(&mount.display().to_string()),
        weft = quoted(&host.program),
    )
}

/// Stops, and removes only a directory that is of this cluster.
fn stop_script(record: &Record, host: &Placed, only: &[String], removal: Removal) -> String {
    let only: String = only.iter().map(|name| format!(" --only {}", quoted(name))).collect();
    let mut script = format!(
        "set -u\ndir={dir}\nweft={weft}\nif [ -e \"$dir/{CLUSTER_FILE}\" ]; then \"$weft\" down --dir \"$dir\"{only} --json || exit 1; fi\n",
        dir = quoted(&record.dir_on(host).display().to_string()),
        weft = quoted(&host.program),
    );
    if removal == Removal::Everything {
        let server = record.url.trim_start_matches("weft://").trim_end_matches('/');
        script += &format!(
            "if grep -q '^id = \"{id}\"' \"$dir/{CLUSTER_FILE}\" 2>/dev/null; then rm -rf \"$dir\"; fi\n\
             rm -f \"$dir/bin/weft\"\nrmdir \"$dir/bin\" \"$dir\" {above} 2>/dev/null\n\
             rm -f \"${{XDG_CONFIG_HOME:-$HOME/.config}}/weft/keys\"/{key}\n",
            id = record.cluster_id,
            above = quoted(&record.dir.display().to_string()),
            key = quoted(server),
        );
    }
    script
}
