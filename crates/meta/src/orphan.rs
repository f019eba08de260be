//! Why an inode has no name, as its orphan record says; `ops/garbage.rs` has what becomes of it.

use crate::codec::{Reader, Writer};
use crate::{EngineError, keys};

/// Why an inode has no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Orphan {
    /// It has lost its last one, or was made never to have one: it gets none any more.
    Nameless = 1,
    /// It was made without one, and a link may give it its first. (A server of before takes it for one as above.)
    Linkable = 2,
}

impl Orphan {
    pub fn encode(self) -> Vec<u8> {
        Writer::with_version(self as u8, 1).bytes
    }

    // Fuzzed by records: fsck/tests.rs
    pub fn decode(ino: u64, value: &[u8]) -> Result<Orphan, EngineError> {
        let key = keys::orphan(ino);
        let is_linkable = value.first() == Some(&(Orphan::Linkable as u8));
        let orphan = if is_linkable { Orphan::Linkable } else { Orphan::Nameless };
        Reader::with_version(&key, value, orphan as u8)?.end()?;
        Ok(orphan)
    }
}
