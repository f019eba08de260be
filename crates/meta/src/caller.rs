//! Who asks: the user that an operation runs for, and the session that its request came in.

/// Who names a connection across reconnects: chosen at random by the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SessionId(pub [u8; 16]);

/// A process that locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Locker {
    /// Its session.
    pub session: SessionId,
    /// Which of the processes that share the session it is; 0 where it has one of its own.
    pub member: u16,
}

/// On whose behalf an operation runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// User id; 0 is root.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
}

impl Caller {
    /// Root, with no supplementary groups.
    pub fn root() -> Caller {
        Caller::default()
    }

    /// Whether it is root, to whom no permissions apply.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether it is a member of the group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
