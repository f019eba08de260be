//! What is known of a cluster on several hosts: `DIR/hosts.json`, on the host where `weft up` was called.

use super::remote::Remote;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file in the directory.
pub const RECORD_FILE: &str = "hosts.json";

/// The program where the user's search path has it.
pub const ON_PATH: &str = "weft";

/// A cluster on several hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The command that runs another one on a host, in words.
    pub ssh: Vec<String>,
    /// The directory here and, with the host's name after it, on each host.
    pub dir: PathBuf,
    /// The cluster's number, in hexadecimal digits.
    pub cluster_id: String,
    /// Its file system.
    pub url: String,
    /// Where each host has it mounted.
    pub mount: Option<PathBuf>,
    /// The hosts, the one of the metadata server first.
    pub hosts: Vec<Placed>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Its name, for ssh.
    pub name: String,
    /// Where its servers are reached.
    pub address: String,
    /// The program there: `weft`, or a path.
    pub program: String,
    /// Names of its servers.
    pub servers: Vec<String>,
    /// Until its servers were up once. From then on no storage is made there, and none removed unasked.
    pub is_new: bool,
}

impl Record {
    /// The record of a directory; `None` if its cluster is on this host alone, or there is none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn load(dir: &Path) -> Result<Option<Record>> {
        let path = dir.join(RECORD_FILE);
        let text = match std::fs::read(&path) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let record =
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
        Ok(Some(record))
    }

    /// Writes it: the old one or the new one is there at any time.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<()> {
        let (path, fresh) = (self.dir.join(RECORD_FILE), self.dir.join(".hosts.json.new"));
        let text = serde_json::to_vec_pretty(self)?;
        let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o644).open(&fresh);
        file.and_then(|mut file| file.write_all(&text))
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Whether it was never up.
    pub fn is_new(&self) -> bool {
        self.hosts.iter().all(|host| host.is_new)
    }

    /// The same when all its servers were up.
    pub fn complete(mut self) -> Record {
        self.hosts.iter_mut().for_each(|host| host.is_new = false);
        self
    }

    /// The metadata server, as files with keys are named.
    pub fn server(&self) -> &str {
        self.url.trim_start_matches("weft://").trim_end_matches('/')
    }

    /// The way to a host.
    pub fn remote<'a>(&'a self, host: &'a Placed) -> Remote<'a> {
        Remote { ssh: &self.ssh, host: &host.name }
    }

    /// The directory on a host.
    pub fn dir_on(&self, host: &Placed) -> PathBuf {
        self.dir.join(&host.name)
    }

    /// The hosts that have these servers, or all hosts if none is named.
    ///
    /// # Errors
    /// There is no such server.
    pub fn hosts_of(&self, servers: &[String]) -> Result<Vec<&Placed>> {
        let has = |host: &Placed, name: &String| host.servers.contains(name);
        if let Some(name) = servers.iter().find(|name| !self.hosts.iter().any(|host| has(host, name))) {
            bail!("the cluster in {} has no server {name}", self.dir.display());
        }
        let is_meant = |host: &&Placed| servers.is_empty() || servers.iter().any(|name| has(host, name));
        Ok(self.hosts.iter().filter(is_meant).collect())
    }
}
