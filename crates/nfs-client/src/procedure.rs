//! The procedures of NFSv3 (RFC 1813, 3.3).

use crate::rpc::Target;

const NFS_PROGRAM: u32 = 100_003;
const NFS_VERSION: u32 = 3;

/// A procedure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Procedure {
    Null = 0,
    GetAttr = 1,
    SetAttr = 2,
    Lookup = 3,
    Access = 4,
    ReadLink = 5,
    Read = 6,
    Write = 7,
    Create = 8,
    MkDir = 9,
    SymLink = 10,
    MkNod = 11,
    Remove = 12,
    RmDir = 13,
    Rename = 14,
    Link = 15,
    ReadDir = 16,
    ReadDirPlus = 17,
    FsStat = 18,
    FsInfo = 19,
    PathConf = 20,
    Commit = 21,
}

impl Procedure {
    /// Its name in the RFC.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_uppercase()
    }

    pub(crate) fn target(self) -> Target {
        Target { program: NFS_PROGRAM, version: NFS_VERSION, procedure: self as u32 }
    }

    /// Whether a repetition may fail though the first call had its effect, on servers that do not remember their replies.
    pub(crate) fn is_changed_by_repetition(self) -> bool {
        use Procedure::{Create, Link, MkDir, MkNod, Remove, Rename, RmDir, SetAttr, SymLink};
        matches!(self, SetAttr | Create | MkDir | SymLink | MkNod | Remove | RmDir | Rename | Link)
    }
}
