//! Names and attributes of Weft, over a transactional ordered key-value seam. Synchronous: no sockets, no clock
//! (time is a parameter), no threads.
//!
//! ```text
//!   request -> ns.begin() or ns.begin_once(session, slot, request)  an [`Op`]: reads through caches, stages writes
//!              op.create(...), op.rename(...), ...                  one call: the rules of one operation
//!              op.commit() or op.commit_with_reply(bytes)           one atomic batch; caches and opens follow
//!              dropped without commit                               nothing happened
//!              ns.change(|op| ...)                                  begins, runs and commits; again after a conflict
//! ```
//!
//! The order of reading: [`Engine`] (the seam and its two implementations), `keys` (what is stored),
//! [`Namespace`] and [`Op`] (how an operation runs), `walk` (paths), then the operations by subject. File sizes
//! have a protocol of their own, told in `ops::size`. `fsck` says what a
//! sound store is, checks one in use, and repairs it.

mod acl;
mod backup;
mod cache;
mod caller;
mod codec;
mod count;
mod counters;
mod engine;
mod error;
mod flags;
mod fsck;
mod inode;
mod issued;
mod keys;
mod lately;
mod ledger;
mod lockers;
mod namespace;
mod op;
mod open_counter;
mod opens;
mod ops;
mod orphan;
mod permission;
mod quota;
mod replies;
mod servers;
mod shard;
mod tails;
mod touched;
mod usage;
mod walk;
mod watchers;

pub use acl::UMASK_SHIFT;
pub use backup::{
    BackupError, BackupHead, BackupPage, BackupReader, BackupSize, BackupWriter, prepare_store, verify_backup,
};
pub use caller::{Caller, Locker, SessionId};
pub use engine::{Batch, CommitSeq, Engine, FjallEngine, FjallOptions, MemEngine, Pair, Room, Scan, Syncer};
pub use error::{EngineError, MetaError};
pub use flags::{APPEND_ONLY, IMMUTABLE, InodeFlags, NO_ATIME, NO_DUMP};
pub use fsck::{Damage, FileState, Finding, Owner, Progress, SizeFound, Treatment};
pub use inode::{Attr, Kind, LayoutRequest, MODE_MASK, ROOT_INO, Timestamp};
pub use issued::IssuedKeyRecord;
pub use namespace::{Namespace, NamespaceOptions, Statfs};
pub use op::{MayConflict, Op, run_again};
pub use open_counter::{COUNTER_MAX, CounterChange, CounterId};
pub use opens::ToRemove;
pub use ops::append::AppendPlace;
pub use ops::attr::{SetAttr, SetTime};
pub use ops::create::{Created, NewFile, OpenFlags, Opened};
pub use ops::layout::LayoutInfo;
pub use ops::once::Once;
pub use ops::paths::PathsPart;
pub use ops::quota::{QuotaRow, QuotaState, TreePage, TreeSpace};
pub use ops::readdir::{DirEntry, Page};
pub use ops::rename::RenameMode;
pub use ops::size::{Truncation, WriteReport};
pub use ops::small::{SMALL_FILE_BYTES_MAX, SmallBytes, Spread};
pub use ops::xattr::XattrMode;
pub use permission::{EXECUTE, READ, WRITE};
pub use quota::{EVERYONE, Limits, OverSince, QuotaExceeded, Subject, Used, bound_below};
pub use servers::{OwnStorage, ServerRecord};
pub use touched::{Touched, TouchedInode};
pub use walk::{At, NAME_BYTES_MAX, PATH_BYTES_MAX, SYMLINKS_MAX, TARGET_BYTES_MAX};
