//! Locks, and places for appends: what the metadata server decides between clients.

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
    /// What became of a request for a lock.
    LockState, "unknown state of a lock" {
        /// The lock is held.
        Granted = 0,
        /// Not decided yet; the place in the queue is kept. Ask again.
        Waiting = 1,
        /// The wait was cancelled by the client itself.
        Cancelled = 2,
    }
}

byte_enum! {
    /// What is given back.
    UnlockWhat, "unknown thing to unlock" {
        /// The lock named: its range, or the lock on the whole file.
        Lock = 0,
        /// All that the owner holds and waits for on this file.
        Owner = 1,
        /// The wait for the lock named.
        Wait = 2,
    }
}

crate::message! {
    /// A lock on a file. Locks on ranges and locks on whole files (flock) do not know of each other.
    pub struct FileLock {
        /// Which file; the session must have it open.
        pub ino: u64,
        /// Whose, among the owners of this session. An owner's locks do not conflict with each other.
        pub owner: u64,
        /// A lock on the whole file, as flock(2) makes them; `first` and `last` say nothing then.
        pub whole: bool,
        /// Exclusive, or shared.
        pub exclusive: bool,
        /// First byte.
        pub first: u64,
        /// Last byte; `i64::MAX` is the end of any file.
        pub last: u64,
        /// The process, for people and for `F_GETLK` of processes of the same host.
        pub pid: u32,
    }

    /// See [`crate::Op::Lock`].
    pub struct LockRequest {
        /// What is wanted.
        pub lock: FileLock,
        /// Wait in the queue where another has it, instead of being refused.
        pub wait: bool,
        /// How long the server may keep the reply back, at most [`crate::limits::LOCK_HOLD_MS_MAX`].
        pub hold_ms: u32,
    }

    /// Answer to [`LockRequest`].
    pub struct LockReply {
        /// What became of it.
        pub state: LockState,
    }

    /// See [`crate::Op::Unlock`].
    pub struct UnlockRequest {
        /// File, owner, and (for a lock or a wait) which.
        pub lock: FileLock,
        /// How much.
        pub what: UnlockWhat,
    }

    /// See [`crate::Op::GetLock`].
    pub struct GetLockRequest {
        /// What would be wanted.
        pub lock: FileLock,
        /// As in [`LockRequest`].
        pub hold_ms: u32,
    }

    /// A lock that is in the way.
    pub struct LockHolder {
        /// Exclusive, or shared.
        pub exclusive: bool,
        /// First byte.
        pub first: u64,
        /// Last byte.
        pub last: u64,
        /// Its process, where that is one of the same host; else 0.
        pub pid: u32,
    }

    /// Answer to [`GetLockRequest`].
    pub struct GetLockReply {
        /// [`LockState::Waiting`]: not known yet, ask again. Else [`LockState::Granted`].
        pub state: LockState,
        /// A lock in the way; none: it would be granted.
        pub holder: Option<LockHolder>,
    }

    /// See [`crate::Op::ClaimLocks`].
    pub struct ClaimLocksRequest {
        /// At least one, at most [`crate::limits::LOCKS_PER_CLAIM_MAX`].
        pub locks: Vec<FileLock>,
    }

    /// Answer to [`ClaimLocksRequest`].
    pub struct ClaimLocksReply {
        /// Places in the list of those that are lost.
        pub lost: Vec<u32>,
    }

    /// See [`crate::Op::Append`].
    pub struct AppendRequest {
        /// Which file; the session must have it open for writing.
        pub ino: u64,
        /// Bytes to be appended.
        pub bytes: u64,
        /// The size that the I/O servers told.
        pub file_bytes: u64,
        /// The epoch that was known before they were asked.
        pub epoch: u64,
    }

    /// Answer to [`AppendRequest`].
    pub struct AppendReply {
        /// Where the bytes belong. None: the size has to be asked for again, for the file was cut meanwhile.
        pub offset: Option<u64>,
        /// The epoch now.
        pub epoch: u64,
    }
}
