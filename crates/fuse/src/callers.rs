//! On whose behalf a request is done.
//!
//! The kernel tells user, group and process of a request, but not the supplementary groups; these are read from
//! `/proc/PID/status` and kept for a moment, because one process asks many times.
//!
//! ```text
//!   request { pid 71, uid 1000, gid 1000 }
//!      │ table has (71, 1000, 1000), read 0.3 s ago ──► its client handle
//!      └ else: /proc/71/status "Groups: 4 27 1000"  ──► client handle for Caller { 1000, 1000, [4, 27, 1000] }
//!                                                       as the identities of the mount have it
//! ```

use crate::identity::Identities;
use crate::sharded::Sharded;
use std::time::{Duration, Instant};
use weft_client::Client;
use weft_wire::limits::GROUPS_MAX;
use weft_wire::messages::Caller;

/// How long the groups read for a process are believed.
const GROUPS_VALID: Duration = Duration::from_secs(1);
/// Processes remembered in one shard of the table before it is emptied.
const PROCESSES_PER_SHARD_MAX: usize = 256;

/// Who sent a request, as the kernel tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Requester {
    /// File-system user.
    pub uid: u32,
    /// File-system group.
    pub gid: u32,
    /// Thread that asked; 0 for the kernel itself.
    pub pid: u32,
}

struct Known {
    client: Client,
    read_at: Instant,
}

/// Client handles by requester.
pub(crate) struct Callers {
    root: Client,
    identities: Identities,
    known: Sharded<Requester, Known>,
}

impl Callers {
    pub(crate) fn new(client: &Client, identities: Identities) -> Callers {
        Callers {
            identities,
            root: client.with_caller(Caller { uid: 0, gid: 0, groups: Vec::new() }),
            known: Sharded::default(),
        }
    }

    /// The client handle that acts for `requester`.
    pub(crate) fn client(&self, requester: Requester) -> Client {
        if requester.gid == 0 && self.identities.is_plain_root(requester) {
            return self.root.clone();
        }
        let mut shard = self.known.lock(&requester);
        if let Some(known) = shard.get(&requester)
            && known.read_at.elapsed() < GROUPS_VALID
        {
            return known.client.clone();
        }
        let caller = self.identities.caller(requester, || supplementary_groups(requester.pid));
        let client = self.root.with_caller(caller);
        if shard.len() >= PROCESSES_PER_SHARD_MAX {
            shard.clear();
        }
        shard.insert(requester, Known { client: client.clone(), read_at: Instant::now() });
        client
    }

    /// Who everybody is in the file system.
    pub(crate) fn identities(&self) -> &Identities {
        &self.identities
    }

    /// The client handle that acts for root, for what the kernel does on its own account.
    pub(crate) fn root(&self) -> &Client {
        &self.root
    }
}

/// Supplementary groups of a process; none where it is gone already.
fn supplementary_groups(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map(|status| parse_groups(&status))
        .unwrap_or_default()
}

// Not fuzzed: the text is the kernel's.
fn parse_groups(status: &str) -> Vec<u32> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .map(|list| {
            list.split_ascii_whitespace().filter_map(|gid| gid.parse().ok()).take(GROUPS_MAX).collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_a_status_file() {
        assert_eq!(
            parse_groups("Name:\tbash\nGid:\t1 1 1 1\nGroups:\t4 27 1000 \nNStgid:\t1\n"),
            [4, 27, 1000]
        );
        assert_eq!(parse_groups("Groups:\t \n"), [] as [u32; 0]);
        assert_eq!(parse_groups(""), [] as [u32; 0]);
    }

    #[test]
    fn groups_of_this_process_are_those_the_system_tells() {
        // SAFETY: a count of 0 only asks how many there are.
        let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
        assert_eq!(supplementary_groups(std::process::id()).len(), count as usize);
    }
}
