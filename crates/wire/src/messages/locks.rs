//! Locks, offsets for appends, and counters: what the metadata server decides between clients.

use super::inode::ROOT_INO;
use super::open::OpenId;
use crate::claims::Capability;
use crate::codec::{DecodeError, Reader, Wire, Writer};

macro_rules! byte_enum {
    ($(#[$meta:meta])* $name:ident, $what:literal { $($(#[$vmeta:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant = $number,)* }

        impl Wire for $name {
            const BYTES_MIN: usize = 1;
            fn put(&self, out: &mut Writer) {
                (*self as u8).put(out);
            }
            fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match u8::get(input)? {
                    $($number => Ok($name::$variant),)*
                    _ => Err(DecodeError::Value($what)),
                }
            }
            fn sample(seed: &mut u64) -> Self {
                *seed += 1;
                const ALL: &[$name] = &[$($name::$variant),*];
                ALL[*seed as usize % ALL.len()]
            }
        }
    };
}

byte_enum! {
    /// The state of a lock request.
    LockState, "unknown state of a lock" {
        /// The lock is held.
        Granted = 0,
        /// Not decided yet. The place in the queue is kept; ask again.
        Waiting = 1,
        /// The wait was cancelled by the client itself.
        Cancelled = 2,
    }
}

byte_enum! {
    /// What to unlock.
    UnlockWhat, "unknown thing to unlock" {
        /// The given lock: its range, or the lock on the whole file.
        Lock = 0,
        /// Everything that the owner holds and waits for on this file.
        Owner = 1,
        /// The wait for the given lock.
        Wait = 2,
    }
}

byte_enum! {
    /// How a counter changes.
    CounterChange, "unknown change of a counter" {
        /// The amount is added to it.
        Add = 0,
        /// The amount is what it is from now on.
        Set = 1,
    }
}

crate::message! {
    /// A lock on a file. Locks on ranges and locks on whole files (flock) are independent of each other.
    pub struct FileLock {
        /// The file. The session must have it open.
        pub ino: u64,
        /// The owner, among those of this session. An owner's locks do not conflict with each other.
        pub owner: u64,
        /// A lock on the whole file, as by flock(2); `first` and `last` are ignored then.
        pub whole: bool,
        /// Exclusive, or shared.
        pub exclusive: bool,
        /// First byte.
        pub first: u64,
        /// Last byte; `i64::MAX` is the end of any file.
        pub last: u64,
        /// The process, for display, and for `F_GETLK` of processes of the same host.
        pub pid: u32,
    }

    /// See [`crate::Op::Lock`].
    pub struct LockRequest {
        /// The lock.
        pub lock: FileLock,
        /// Whether to wait in the queue if another has it, instead of being refused.
        pub wait: bool,
        /// How long the server may hold back the reply, at most [`crate::limits::LOCK_HOLD_MS_MAX`].
        pub hold_ms: u32,
    }

    /// Reply to [`LockRequest`].
    pub struct LockReply {
        /// Its state.
        pub state: LockState,
    }

    /// See [`crate::Op::Unlock`].
    pub struct UnlockRequest {
        /// The file, the owner, and (for a lock or a wait) the range.
        pub lock: FileLock,
        /// What to unlock.
        pub what: UnlockWhat,
    }

    /// See [`crate::Op::GetLock`].
    pub struct GetLockRequest {
        /// The lock to test.
        pub lock: FileLock,
        /// As in [`LockRequest`].
        pub hold_ms: u32,
    }

    /// A conflicting lock.
    pub struct LockHolder {
        /// Exclusive, or shared.
        pub exclusive: bool,
        /// First byte.
        pub first: u64,
        /// Last byte.
        pub last: u64,
        /// Its process if it is on the same host, else 0.
        pub pid: u32,
    }

    /// Reply to [`GetLockRequest`].
    pub struct GetLockReply {
        /// [`LockState::Waiting`]: not known yet, ask again. Else [`LockState::Granted`].
        pub state: LockState,
        /// A conflicting lock; none if it would be granted.
        pub holder: Option<LockHolder>,
    }

    /// See [`crate::Op::ClaimLocks`].
    pub struct ClaimLocksRequest {
        /// The locks: at least one, at most [`crate::limits::LOCKS_PER_CLAIM_MAX`].
        pub locks: Vec<FileLock>,
    }

    /// Reply to [`ClaimLocksRequest`].
    pub struct ClaimLocksReply {
        /// Indices in the list of the locks that are lost.
        pub lost: Vec<u32>,
    }

    /// See [`crate::Op::Append`].
    pub struct AppendRequest {
        /// The file. The session must have it open for writing.
        pub ino: u64,
        /// Bytes to append.
        pub bytes: u64,
        /// The size according to the I/O servers.
        pub file_bytes: u64,
        /// The epoch that the client knew before it asked them.
        pub epoch: u64,
    }

    /// Reply to [`AppendRequest`].
    pub struct AppendReply {
        /// Where to write the bytes. None: the file was truncated meanwhile, so the size must be queried
        /// again.
        pub offset: Option<u64>,
        /// The current epoch.
        pub epoch: u64,
    }

    /// See [`crate::Op::FetchAdd`].
    pub struct FetchAddRequest {
        /// The file, proved by the capability of any open of it.
        pub capability: Capability,
        /// The session of the open whose counter it is, as servers know it
        /// ([`Holder::session`](crate::security::Holder::session)).
        pub session: [u8; 16],
        /// That open, as of when it was made.
        pub open: OpenId,
        /// What is done with the amount.
        pub change: CounterChange,
        /// The amount.
        pub amount: i64,
    }

    /// Reply to [`FetchAddRequest`].
    pub struct FetchAddReply {
        /// What the counter was before: from 0 to `i64::MAX`.
        pub before: u64,
    }
}

impl ClaimLocksRequest {
    /// The inode of the first lock. All are of inodes with the same owner.
    pub(crate) fn first_ino(&self) -> u64 {
        self.locks.first().map_or(ROOT_INO, |lock| lock.ino)
    }
}
