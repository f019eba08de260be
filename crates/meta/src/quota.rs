//! Quotas: whose usage is counted, and what limits it.
//!
//! ```text
//!   every inode has an owner   Owner { uid, gid, tree }     tree: the directory with a quota that it is below, or 0
//!   every owner has three subjects    User(uid)  Group(gid)  Tree(tree)
//!
//!   q <uid 4><gid 4><tree 8>   usage of an owner             written with each commit that changes it
//!   l <kind 1><id 8>           limits of a subject, and since when it is over its soft limits
//!   squota                     whether usage is counted, and by which run of the server
//! ```
//!
//! What counts is the size of files, holes included, the names and values of extended attributes, and the number of inodes of any
//! kind: what the metadata server knows by itself. A subject's usage is the sum over the owners that have it, so one record is
//! written where three numbers change.

use crate::codec::{Reader, Writer};
use crate::{EngineError, keys};
use std::fmt;

/// Version 1 had sums of 64 bits, which wrapped around.
const USED_VERSION: u8 = 2;
const LIMITS_VERSION: u8 = 1;
/// In version 1, extended attributes did not count.
const STATE_VERSION: u8 = 2;
const STATE_VERSION_WITHOUT_XATTRS: u8 = 1;

/// The id by which all users, or all groups, without limits of their own are meant.
pub const EVERYONE: u32 = u32::MAX;

/// Whose usage is counted and limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// What a user owns. [`EVERYONE`]: each user without limits of its own.
    User(u32),
    /// What belongs to a group. [`EVERYONE`]: each group without limits of its own.
    Group(u32),
    /// What is below a directory, itself included, by its inode number.
    Tree(u64),
}

impl Subject {
    /// The subject with these numbers, as stored and sent.
    pub fn from_numbers(kind: u8, id: u64) -> Option<Subject> {
        match kind {
            0 => u32::try_from(id).ok().map(Subject::User),
            1 => u32::try_from(id).ok().map(Subject::Group),
            2 => Some(Subject::Tree(id)),
            _ => None,
        }
    }

    /// Kind and id, as stored and sent.
    pub fn numbers(self) -> (u8, u64) {
        match self {
            Subject::User(uid) => (0, uid.into()),
            Subject::Group(gid) => (1, gid.into()),
            Subject::Tree(ino) => (2, ino),
        }
    }

    /// Whose limits count where it has none of its own.
    pub(crate) fn fallback(self) -> Option<Subject> {
        match self {
            Subject::User(_) => Some(Subject::User(EVERYONE)),
            Subject::Group(_) => Some(Subject::Group(EVERYONE)),
            Subject::Tree(_) => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::User(uid) => write!(f, "user {uid}"),
            Subject::Group(gid) => write!(f, "group {gid}"),
            Subject::Tree(ino) => write!(f, "the directory tree of inode {ino}"),
        }
    }
}

/// Whom an inode counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub uid: u32,
    pub gid: u32,
    /// 0: none.
    pub tree: u64,
}

impl Owner {
    pub fn subjects(self) -> impl Iterator<Item = Subject> {
        let tree = (self.tree != 0).then_some(Subject::Tree(self.tree));
        [Subject::User(self.uid), Subject::Group(self.gid)].into_iter().chain(tree)
    }
}

/// How much there is, as shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Sum of the sizes of files, holes included, and of extended attributes; at most `u64::MAX`.
    pub bytes: u64,
    /// Inodes of any kind.
    pub files: u64,
}

/// How much there is, exactly. Three sparse files can exceed 2^64 bytes; 2^64 inodes of 2^63 bytes do not exceed 2^127.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sum {
    pub bytes: u128,
    pub files: u64,
}

impl Sum {
    pub fn plus(self, bytes: i128, files: i64) -> Sum {
        Sum { bytes: self.bytes.saturating_add_signed(bytes), files: self.files.saturating_add_signed(files) }
    }

    pub fn shown(self) -> Used {
        Used { bytes: shown(self.bytes), files: self.files }
    }
}

/// A sum of bytes in a message.
pub(crate) fn shown(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Limits of a subject; 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Never exceeded.
    pub hard_bytes: u64,
    /// May be exceeded for `grace_s`.
    pub soft_bytes: u64,
    /// Never exceeded.
    pub hard_files: u64,
    /// May be exceeded for `grace_s`.
    pub soft_files: u64,
    /// How long a soft limit may be exceeded, in seconds.
    pub grace_s: u32,
    /// Of a tree: whether its limits are its size for `df`.
    pub in_statfs: bool,
}

/// Since when a subject is over its soft limits, in seconds since 1970; 0: it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OverSince {
    /// Over the one of bytes.
    pub bytes_s: u64,
    /// Over the one of files.
    pub files_s: u64,
}

/// The record of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LimitRecord {
    /// Its own.
    pub limits: Option<Limits>,
    pub over: OverSince,
}

/// Whether usage is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// A count is to begin, or was interrupted.
    Counting,
    /// It was right when this run of the server had the store.
    Counted { run: u32 },
}

/// A limit would be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{subject} {}", self.words())]
pub struct QuotaExceeded {
    /// Whose limit.
    pub subject: Subject,
    /// Whether it is the one of bytes, or that of files.
    pub is_bytes: bool,
    /// What is used and promised to writers.
    pub used: u64,
    /// What may be used.
    pub limit: u64,
}

impl QuotaExceeded {
    fn words(&self) -> String {
        let unit = if self.is_bytes { "bytes" } else { "files" };
        format!("uses {} of {} {unit}", self.used, self.limit)
    }
}

/// The same in the operation's effects, which take place with its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaEffect {
    /// Writers of the file may extend it up to this end.
    Grant { ino: u64, end: u64 },
    /// The file was cut, and its writers ask anew before they extend it beyond this end.
    Cut { ino: u64, end: u64 },
    /// A subject has other limits.
    Limit { subject: Subject, record: LimitRecord },
    /// All usage is to be counted.
    Count,
}

pub(crate) fn used_key(owner: &Owner) -> [u8; 17] {
    let mut key = [keys::USED; 17];
    key[1..5].copy_from_slice(&owner.uid.to_be_bytes());
    key[5..9].copy_from_slice(&owner.gid.to_be_bytes());
    key[9..].copy_from_slice(&owner.tree.to_be_bytes());
    key
}

fn owner_of(key: &[u8]) -> Option<Owner> {
    let (_, ids) = key.split_first()?;
    let ids: [u8; 16] = ids.try_into().ok()?;
    let number = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| ids[at + byte]));
    let tree = u64::from(number(8)) << 32 | u64::from(number(12));
    Some(Owner { uid: number(0), gid: number(4), tree })
}

pub(crate) fn put_used(out: &mut Writer, used: &Sum) {
    out.u8(USED_VERSION);
    out.bytes.extend_from_slice(&used.bytes.to_le_bytes());
    out.u64(used.files);
}

// Fuzzed by records: fsck/tests.rs
pub(crate) fn decode_used(key: &[u8], value: &[u8]) -> Result<(Owner, Sum), EngineError> {
    let (version, mut from) = Reader::with_any_version(key, value)?;
    let owner = owner_of(key).ok_or_else(|| from.damaged("key"))?;
    let bytes = match version {
        1 => from.u64("bytes")?.into(),
        USED_VERSION => u128::from_le_bytes(from.array("bytes")?),
        _ => return Err(from.damaged("version")),
    };
    let used = Sum { bytes, files: from.u64("files")? };
    from.end()?;
    Ok((owner, used))
}

pub(crate) fn limit_key(subject: Subject) -> [u8; 10] {
    let (kind, id) = subject.numbers();
    let mut key = [keys::LIMIT; 10];
    key[1] = kind;
    key[2..].copy_from_slice(&id.to_be_bytes());
    key
}

fn subject_of(key: &[u8]) -> Option<Subject> {
    let [_, kind, id @ ..] = key else { return None };
    Subject::from_numbers(*kind, u64::from_be_bytes(id.try_into().ok()?))
}

pub(crate) fn encode_limit(record: &LimitRecord) -> Vec<u8> {
    let mut out = Writer::with_version(LIMITS_VERSION, 64);
    out.u8(u8::from(record.limits.is_some()));
    let limits = record.limits.unwrap_or_default();
    for number in [limits.hard_bytes, limits.soft_bytes, limits.hard_files, limits.soft_files] {
        out.u64(number);
    }
    out.u32(limits.grace_s);
    out.u8(u8::from(limits.in_statfs));
    out.u64(record.over.bytes_s);
    out.u64(record.over.files_s);
    out.bytes
}

// Fuzzed by records: fsck/tests.rs
pub(crate) fn decode_limit(key: &[u8], value: &[u8]) -> Result<(Subject, LimitRecord), EngineError> {
    let mut from = Reader::with_version(key, value, LIMITS_VERSION)?;
    let subject = subject_of(key).ok_or_else(|| from.damaged("key"))?;
    let has_limits = from.u8("flag")? != 0;
    let limits = Limits {
        hard_bytes: from.u64("hard bytes")?,
        soft_bytes: from.u64("soft bytes")?,
        hard_files: from.u64("hard files")?,
        soft_files: from.u64("soft files")?,
        grace_s: from.u32("grace")?,
        in_statfs: from.u8("statfs")? != 0,
    };
    let over = OverSince { bytes_s: from.u64("since")?, files_s: from.u64("since")? };
    from.end()?;
    Ok((subject, LimitRecord { limits: has_limits.then_some(limits), over }))
}

pub(crate) fn encode_state(state: Stored) -> Vec<u8> {
    let mut out = Writer::with_version(STATE_VERSION, 5);
    out.u32(match state {
        Stored::Counting => 0,
        Stored::Counted { run } => run,
    });
    out.bytes
}

// Fuzzed by records: fsck/tests.rs
pub(crate) fn decode_state(value: &[u8]) -> Result<Stored, EngineError> {
    let (version, mut from) = Reader::with_any_version(keys::SUPER_QUOTA, value)?;
    let run = from.u32("run")?;
    let state = match version {
        STATE_VERSION_WITHOUT_XATTRS => Stored::Counting,
        STATE_VERSION if run == 0 => Stored::Counting,
        STATE_VERSION => Stored::Counted { run },
        _ => return Err(from.damaged("version")),
    };
    from.end()?;
    Ok(state)
}

/// Ends of files to which writers are bound have so many significant bits.
const BOUND_BITS: u32 = 17;

/// The greatest end that a writer can be bound to and that is not beyond `end`.
///
/// ```
/// assert_eq!(weft_meta::bound_below(5 << 40), 5 << 40);
/// assert_eq!(weft_meta::bound_below((1 << 40) + 1), 1 << 40);
/// ```
pub fn bound_below(end: u64) -> u64 {
    let shift = (u64::BITS - end.leading_zeros()).saturating_sub(BOUND_BITS);
    end >> shift << shift
}

/// The smallest end that a writer can be bound to and that reaches `end`.
pub(crate) fn bound_reaching(end: u64) -> u64 {
    let below = bound_below(end);
    if below == end {
        return end;
    }
    let shift = (u64::BITS - end.leading_zeros()).saturating_sub(BOUND_BITS);
    below.saturating_add(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let owner = Owner { uid: 1000, gid: 0xffff_fffe, tree: 1 << 40 };
        let used = Sum { bytes: 1 << 70, files: 7 };
        let mut out = Writer::default();
        put_used(&mut out, &used);
        assert_eq!(decode_used(&used_key(&owner), &out.bytes).unwrap(), (owner, used));
        let limits =
            Limits { hard_bytes: 5, soft_files: 9, grace_s: 60, in_statfs: true, ..Limits::default() };
        let record = LimitRecord { limits: Some(limits), over: OverSince { bytes_s: 3, files_s: 0 } };
        for subject in [Subject::User(0), Subject::Group(EVERYONE), Subject::Tree(1 << 60)] {
            for record in [record, LimitRecord { limits: None, ..record }] {
                let value = encode_limit(&record);
                assert_eq!(decode_limit(&limit_key(subject), &value).unwrap(), (subject, record));
            }
        }
        for state in [Stored::Counting, Stored::Counted { run: 9 }] {
            assert_eq!(decode_state(&encode_state(state)).unwrap(), state);
        }
        assert_eq!(decode_state(&[1, 9, 0, 0, 0]).unwrap(), Stored::Counting, "counted without attributes");
        assert!(decode_limit(&limit_key(Subject::Tree(5))[..9], &encode_limit(&record)).is_err());
    }

    #[test]
    fn bounds_are_near_and_on_the_right_side() {
        for end in [0, 1, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, 12_345_678_901, i64::MAX as u64] {
            let (below, reaching) = (bound_below(end), bound_reaching(end));
            assert!(below <= end && end <= reaching, "{end}");
            assert!(reaching - below <= end >> 16, "{end}");
            assert_eq!((bound_below(below), bound_below(reaching)), (below, reaching));
        }
    }
}
