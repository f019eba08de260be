//! How long the calls of NFS take, by procedure.

use std::time::Instant;
use weft_metrics::Histogram;

/// The procedures, by their numbers (RFC 1813, 3.3), as they are called in metrics.
const NAMES: [&str; 22] = [
    "null",
    "getattr",
    "setattr",
    "lookup",
    "access",
    "readlink",
    "read",
    "write",
    "create",
    "mkdir",
    "symlink",
    "mknod",
    "remove",
    "rmdir",
    "rename",
    "link",
    "readdir",
    "readdirplus",
    "fsstat",
    "fsinfo",
    "pathconf",
    "commit",
];

/// A histogram for each procedure, for any thread to read.
#[derive(Default)]
pub struct ProcedureTimes([Histogram; NAMES.len()]);

impl ProcedureTimes {
    /// By the names of procedures.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        NAMES.into_iter().zip(&self.0)
    }

    /// A call ended that was begun then.
    pub(crate) fn note(&self, procedure: u32, begun: Instant) {
        if let Some(times) = self.0.get(procedure as usize) {
            times.note(begun.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfs3_types::nfs3::NFS_PROGRAM as Procedure;

    #[test]
    fn names_stand_at_the_numbers_of_their_procedures() {
        for (name, procedure) in [
            ("null", Procedure::NFSPROC3_NULL),
            ("write", Procedure::NFSPROC3_WRITE),
            ("mknod", Procedure::NFSPROC3_MKNOD),
            ("readdirplus", Procedure::NFSPROC3_READDIRPLUS),
            ("commit", Procedure::NFSPROC3_COMMIT),
        ] {
            assert_eq!(NAMES[procedure as usize], name);
        }
    }
}
