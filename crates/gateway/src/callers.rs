//! On whose behalf a request is done.
//!
//! A gateway's protocol says the user and group of a request, and somehow the supplementary groups. Client handles are
//! kept for a moment, because one requester asks many times.
//!
//! ```text
//!   request { pid 71, uid 1000, gid 1000 }
//!      │ table has (71, 1000, 1000), made 0.3 s ago ──► its client handle
//!      └ else: /proc/71/status "Groups: 4 27 1000"  ──► client handle for Caller { 1000, 1000, [4, 27, 1000] }
//!                                                       as the identities of the gateway have it
//! ```

use crate::identity::Identities;
use crate::sharded::Sharded;
use std::hash::Hash;
use std::time::{Duration, Instant};
use weft_client::Client;
use weft_wire::limits::GROUPS_MAX;
use weft_wire::messages::Caller;

/// How long the groups of a requester count after they were looked up.
const GROUPS_VALID: Duration = Duration::from_secs(1);
/// Requesters remembered in one shard of the table before it is emptied.
const REQUESTERS_PER_SHARD_MAX: usize = 256;

/// Who sent a request, by the numbers of this machine.
pub trait Requester: Copy + Eq + Hash {
    /// The user.
    fn uid(&self) -> u32;

    /// The primary group.
    fn gid(&self) -> u32;

    /// The supplementary groups, at most [`GROUPS_MAX`].
    fn groups(&self) -> Vec<u32>;
}

/// A process of this machine, as its kernel identifies it. Its supplementary groups are those in `/proc/PID/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// File-system user.
    pub uid: u32,
    /// File-system group.
    pub gid: u32,
    /// Thread that asked; 0 for the kernel itself.
    pub pid: u32,
}

impl Requester for Process {
    fn uid(&self) -> u32 {
        self.uid
    }

    fn gid(&self) -> u32 {
        self.gid
    }

    fn groups(&self) -> Vec<u32> {
        supplementary_groups(self.pid)
    }
}

struct Known {
    client: Client,
    read_at: Instant,
}

/// Client handles by requester.
pub struct Callers<R> {
    root: Client,
    identities: Identities,
    known: Sharded<R, Known>,
}

impl<R: Requester> Callers<R> {
    /// For requesters whom `identities` maps to users of the file system; `client` may act for anybody.
    pub fn new(client: &Client, identities: Identities) -> Callers<R> {
        Callers {
            identities,
            root: client.with_caller(Caller { uid: 0, gid: 0, groups: Vec::new() }),
            known: Sharded::default(),
        }
    }

    /// The client handle that acts for `requester`.
    pub fn client(&self, requester: R) -> Client {
        let (uid, gid) = (requester.uid(), requester.gid());
        if gid == 0 && self.identities.is_plain_root(uid, gid) {
            return self.root.clone();
        }
        let mut shard = self.known.lock(&requester);
        if let Some(known) = shard.get(&requester)
            && known.read_at.elapsed() < GROUPS_VALID
        {
            return known.client.clone();
        }
        let caller = self.identities.caller(uid, gid, || requester.groups());
        let client = self.root.with_caller(caller);
        if shard.len() >= REQUESTERS_PER_SHARD_MAX {
            shard.clear();
        }
        shard.insert(requester, Known { client: client.clone(), read_at: Instant::now() });
        client
    }

    /// Who everybody is in the file system.
    pub fn identities(&self) -> &Identities {
        &self.identities
    }

    /// The client handle that acts for root, for what the gateway does on its own account.
    pub fn root(&self) -> &Client {
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
