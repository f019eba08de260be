//! What `weft doctor` looks at: facts of this host, of a cluster file and of a file system, and what they mean.
//!
//! ```text
//!   gather (looks, asks) ─► facts (plain values) ─► judge (pure) ─► findings ─► lines, JSON, a report
//! ```

pub mod cluster;
pub mod host;
pub mod system;

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// It may hurt.
    Warning,
    /// Something does not work.
    Problem,
}

impl Level {
    /// The word at the beginning of its line.
    pub fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "WARNING",
            Level::Problem => "PROBLEM",
        }
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// A short name that stays the same: docs/doctor.md has all.
    pub name: &'static str,
    /// What is so.
    pub found: String,
    /// What to do; empty where there is nothing to do.
    pub cure: String,
}

/// Findings of one subject.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// It is as it should be.
    pub fn ok(&mut self, name: &'static str, found: impl Into<String>) {
        self.add(Level::Ok, name, found, "");
    }

    /// Adds a finding.
    pub fn add(
        &mut self,
        level: Level,
        name: &'static str,
        found: impl Into<String>,
        cure: impl Into<String>,
    ) {
        debug_assert!(NAMES.contains(&name), "{name} is not in docs/doctor.md");
        self.0.push(Finding { level, name, found: found.into(), cure: cure.into() });
    }
}

/// All names of findings.
pub const NAMES: &[&str] = &[
    "kernel",
    "fuse-device",
    "fusermount",
    "dead-mount",
    "open-files",
    "shared-memory",
    "io-uring",
    "fuse-ring",
    "ptrace",
    "rdma-libraries",
    "locked-memory",
    "clock-source",
    "cluster-file",
    "cluster-key",
    "names",
    "storage",
    "storage-owner",
    "storage-volatile",
    "disk-space",
    "disk-shared",
    "port",
    "connection",
    "key",
    "servers",
    "versions",
    "damaged-data",
    "lost-data",
    "stuck-requests",
    "slow-requests",
    "restarts",
    "durability",
    "transport",
    "clock-offset",
    "latency",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_line_in_the_documents() {
        let text = include_str!("../../../../docs/doctor.md");
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(documented, NAMES);
    }
}
