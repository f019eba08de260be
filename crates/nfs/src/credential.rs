//! Who sent a call, as AUTH_SYS says it (RFC 5531, appendix A).

use weft_gateway::Requester;

/// Supplementary groups in AUTH_SYS.
const GROUPS_MAX: usize = 16;

/// A user with its groups, by the numbers of the client's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Credential {
    uid: u32,
    gid: u32,
    groups: [u32; GROUPS_MAX],
    count: usize,
}

impl Credential {
    /// Groups beyond the sixteenth are left out; AUTH_SYS has none.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Credential {
        let count = groups.len().min(GROUPS_MAX);
        let mut kept = [0; GROUPS_MAX];
        kept[..count].copy_from_slice(&groups[..count]);
        Credential { uid, gid, groups: kept, count }
    }
}

impl Requester for Credential {
    fn uid(&self) -> u32 {
        self.uid
    }

    fn gid(&self) -> u32 {
        self.gid
    }

    fn groups(&self) -> Vec<u32> {
        self.groups[..self.count].to_vec()
    }
}
