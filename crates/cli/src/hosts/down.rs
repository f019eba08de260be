//! Stopping a cluster on several hosts.

use super::record::{Placed, RECORD_FILE, Record};
use super::remote::on_each;
use super::scripts::{Removal, stop_script, umount_script};
use serde::Serialize;
use weft_cli_common::launch::CLUSTER_FILE;
use weft_server::{CLIENT_KEY_FILE, CLUSTER_KEY_FILE};

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
    /// Prints what failed.
    pub fn tell_failures(&self) {
        self.failures.iter().for_each(|failure| eprintln!("weft: {failure}"));
    }

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

/// Removes what is here.
fn remove_here(record: &Record) {
    for name in [CLUSTER_FILE, CLUSTER_KEY_FILE, CLIENT_KEY_FILE, RECORD_FILE] {
        let _ = std::fs::remove_file(record.dir.join(name));
    }
    if let Some(key) = weft_client::installed_key_path(record.server()) {
        let _ = std::fs::remove_file(key);
    }
    // What else is in it stays, and the directory with it.
    let _ = std::fs::remove_dir(&record.dir);
}
