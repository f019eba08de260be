//! What users are told that an operation does.

use weft_wire::Op;

/// An operation and what it was on, as [`Error`](crate::Error) keeps it ("Lookup /a"), in words ("look up /a").
pub(crate) fn in_words(operation: &str) -> String {
    let (name, object) = operation.split_once(' ').unwrap_or((operation, ""));
    match Op::ALL.iter().find(|op| op.name() == name) {
        Some(op) if object.is_empty() => words(*op).trim_end_matches(" of").to_owned(),
        Some(op) => format!("{} {object}", words(*op)),
        None => operation.to_owned(),
    }
}

/// What it does, so that the name of a file can follow.
fn words(op: Op) -> &'static str {
    match op {
        Op::Hello | Op::Prove => "connect",
        Op::Ping => "reach",
        Op::ClusterMap | Op::NotedLayouts | Op::VouchEmpty => "get the map of the cluster",
        Op::Status => "get the status of",
        Op::Register => "register the storage",
        Op::ReplaceServer => "replace the storage of",
        Op::ListServers => "list the servers",
        Op::AddServer => "add a server",
        Op::MoveServer => "move a server",
        Op::MemoryProbe | Op::SegmentAdd | Op::SegmentDrop => "share memory",
        Op::Read | Op::ReadSmall => "read",
        Op::Write | Op::WriteSmall | Op::Spread | Op::PlaceObject => "write",
        Op::Sync | Op::SyncSmall | Op::SyncAll | Op::SyncMeta => "sync",
        Op::Size | Op::Settle => "get the size of",
        Op::Truncate | Op::TruncateBegin | Op::TruncateCommit => "set the size of",
        Op::Punch => "punch a hole into",
        Op::Allocate => "allocate space for",
        Op::Zero => "zero a range of",
        Op::Seek => "look for data in",
        Op::CopyRange => "copy a range of",
        Op::Explain => "explain accesses of",
        Op::Calibrate => "measure the disk of",
        Op::Scrub => "scrub",
        Op::Space => "get the space of",
        Op::RemoveObjects | Op::ListObjects | Op::StatObjects => "look after the data files of",
        Op::SetRevoked | Op::Revoked => "tell of revoked keys",
        Op::Lookup => "look up",
        Op::GetAttr => "get the attributes of",
        Op::SetAttr => "change the attributes of",
        Op::Create => "create",
        Op::CreateUnnamed => "create a file without a name in",
        Op::Open | Op::Reopen => "open",
        Op::Close => "close",
        Op::Report => "report what was written to",
        Op::Mkdir => "make the directory",
        Op::Mknod => "make",
        Op::Symlink => "make the link",
        Op::Readlink => "read the link",
        Op::Link => "link",
        Op::Unlink => "remove",
        Op::Rmdir => "remove the directory",
        Op::Rename => "rename",
        Op::ReadDir => "list",
        Op::Access => "check the permissions of",
        Op::GetXattr => "get an extended attribute of",
        Op::SetXattr => "set an extended attribute of",
        Op::ListXattrs => "list the extended attributes of",
        Op::RemoveXattr => "remove an extended attribute of",
        Op::SetLayout => "set the striping of",
        Op::FileCount => "count the files",
        Op::Watch => "watch",
        Op::Lock => "lock",
        Op::Unlock => "unlock",
        Op::GetLock => "look for locks on",
        Op::ClaimLocks => "claim the locks on",
        Op::Append => "append to",
        Op::FetchAdd => "change the counter of",
        Op::Reserve => "extend",
        Op::SetQuota => "set a quota",
        Op::ListQuotas => "list quotas",
        Op::MarkTree => "mark the directory tree",
        Op::CountUsage => "count usage",
        Op::FindPaths => "find paths",
        Op::Check => "check the file system",
        Op::Treat => "repair",
        Op::NoteKey => "note a key",
        Op::ListKeys => "list the keys",
        Op::RevokeKey => "revoke a key",
        Op::Backup => "back up the names",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_operation_is_told_by_its_internal_name() {
        for op in Op::ALL {
            let told = in_words(&format!("{} /x", op.name()));
            assert!(
                told.ends_with(" /x") && told.starts_with(|letter: char| letter.is_lowercase()),
                "{told}"
            );
        }
        assert_eq!(in_words("Lookup /a b"), "look up /a b");
        assert_eq!(in_words("Status"), "get the status");
        assert_eq!(in_words("connect"), "connect");
        assert_eq!(in_words("Lookups /a"), "Lookups /a");
    }
}
