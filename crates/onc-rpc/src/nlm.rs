//! Locks of files for clients of NFS (the lock manager's protocol, version 4: Open Group, C702; RFC 1813, II).
//!
//! ```text
//!   TEST, GRANTED   cookie · exclusive · lock                      ─► cookie · status (· holder, of TEST)
//!   LOCK            cookie · block · exclusive · lock · reclaim · state   ─► cookie · status
//!   CANCEL          cookie · block · exclusive · lock              ─► cookie · status
//!   UNLOCK          cookie · lock                                  ─► cookie · status
//!   SHARE, UNSHARE  cookie · share · reclaim                       ─► cookie · status · sequence
//!   FREE_ALL        host · state
//! ```
//!
//! A procedure `…_MSG` has the arguments of the one without; its results come as arguments of `…_RES`.

use crate::xdr::{Reader, Writer, XdrError};

/// Its program number.
pub const PROGRAM: u32 = 100_021;
/// Its version for NFS version 3.
pub const VERSION: u32 = 4;

/// Numbers of procedures.
pub mod procedure {
    /// Does nothing.
    pub const NULL: u32 = 0;
    /// Who holds what a lock would need.
    pub const TEST: u32 = 1;
    /// Takes a lock.
    pub const LOCK: u32 = 2;
    /// Gives up waiting for one.
    pub const CANCEL: u32 = 3;
    /// Releases one.
    pub const UNLOCK: u32 = 4;
    /// Tells a client that it has a lock that it waited for.
    pub const GRANTED: u32 = 5;
    /// From a procedure to the one of the same name with `_MSG`.
    pub const TO_MSG: u32 = 5;
    /// From a procedure to the one of the same name with `_RES`.
    pub const TO_RES: u32 = 10;
    /// Opens a file with a mode of sharing.
    pub const SHARE: u32 = 20;
    /// Takes it back.
    pub const UNSHARE: u32 = 21;
    /// As [`LOCK`], without a monitor of the client's host.
    pub const NM_LOCK: u32 = 22;
    /// Releases all that a host has.
    pub const FREE_ALL: u32 = 23;
}

/// Bytes of a name of a host.
pub const NAME_BYTES_MAX: usize = 1024;
/// Bytes of a cookie or an owner.
pub const OBJECT_BYTES_MAX: usize = 1024;
/// Bytes of a file handle of NFS version 3.
pub const HANDLE_BYTES_MAX: usize = 64;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// As asked.
    Granted = 0,
    /// Another holds it.
    Denied = 1,
    /// The server has no room for more locks.
    DeniedNoLocks = 2,
    /// The client is told by GRANTED when it has the lock.
    Blocked = 3,
    /// The server has restarted: only locks that were held before can be taken.
    DeniedGracePeriod = 4,
    /// Waiting would never end.
    Deadlock = 5,
    /// The file system is read-only.
    ReadOnly = 6,
    /// The handle is of no file.
    StaleHandle = 7,
    /// The range is beyond what the server can lock.
    TooBig = 8,
    /// Another reason.
    Failed = 9,
}

impl Status {
    const ALL: [Status; 10] = [
        Status::Granted,
        Status::Denied,
        Status::DeniedNoLocks,
        Status::Blocked,
        Status::DeniedGracePeriod,
        Status::Deadlock,
        Status::ReadOnly,
        Status::StaleHandle,
        Status::TooBig,
        Status::Failed,
    ];

    fn read(from: &mut Reader<'_>) -> Result<Status, XdrError> {
        Status::ALL.get(from.u32()? as usize).copied().ok_or(XdrError::Wrong)
    }
}

/// A range of a file, and for whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lock {
    /// The client's host.
    pub host: Vec<u8>,
    /// The file.
    pub handle: Vec<u8>,
    /// An owner of locks on that host.
    pub owner: Vec<u8>,
    /// The owner's process.
    pub process: u32,
    /// The first byte.
    pub offset: u64,
    /// How many; 0: all that follow.
    pub bytes: u64,
}

impl Lock {
    fn read(from: &mut Reader<'_>) -> Result<Lock, XdrError> {
        Ok(Lock {
            host: from.opaque(NAME_BYTES_MAX)?.to_vec(),
            handle: from.opaque(HANDLE_BYTES_MAX)?.to_vec(),
            owner: from.opaque(OBJECT_BYTES_MAX)?.to_vec(),
            process: from.u32()?,
            offset: from.u64()?,
            bytes: from.u64()?,
        })
    }

    fn write(&self, to: Writer) -> Writer {
        let to = to.opaque(&self.host).opaque(&self.handle).opaque(&self.owner);
        to.u32(self.process).u64(self.offset).u64(self.bytes)
    }
}

fn read_cookie(from: &mut Reader<'_>) -> Result<Vec<u8>, XdrError> {
    Ok(from.opaque(OBJECT_BYTES_MAX)?.to_vec())
}

/// The arguments of TEST and GRANTED.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TestArgs {
    /// Comes back with the results.
    pub cookie: Vec<u8>,
    /// A lock for writing.
    pub exclusive: bool,
    /// What.
    pub lock: Lock,
}

impl TestArgs {
    /// Takes them.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<TestArgs, XdrError> {
        Ok(TestArgs { cookie: read_cookie(from)?, exclusive: from.bool()?, lock: Lock::read(from)? })
    }

    /// Puts them.
    pub fn write(&self, to: Writer) -> Writer {
        self.lock.write(to.opaque(&self.cookie).bool(self.exclusive))
    }
}

/// The arguments of LOCK and NM_LOCK.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockArgs {
    /// Comes back with the results.
    pub cookie: Vec<u8>,
    /// The client waits where another holds it.
    pub block: bool,
    /// A lock for writing.
    pub exclusive: bool,
    /// What.
    pub lock: Lock,
    /// It was held before the server restarted.
    pub reclaim: bool,
    /// How often the client's host has restarted, as its monitor counts.
    pub state: u32,
}

impl LockArgs {
    /// Takes them.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<LockArgs, XdrError> {
        Ok(LockArgs {
            cookie: read_cookie(from)?,
            block: from.bool()?,
            exclusive: from.bool()?,
            lock: Lock::read(from)?,
            reclaim: from.bool()?,
            state: from.u32()?,
        })
    }

    /// Puts them.
    pub fn write(&self, to: Writer) -> Writer {
        let to = self.lock.write(to.opaque(&self.cookie).bool(self.block).bool(self.exclusive));
        to.bool(self.reclaim).u32(self.state)
    }
}

/// The arguments of CANCEL: those of the LOCK that waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CancelArgs {
    /// Comes back with the results.
    pub cookie: Vec<u8>,
    /// As the LOCK had it.
    pub block: bool,
    /// As the LOCK had it.
    pub exclusive: bool,
    /// What.
    pub lock: Lock,
}

impl CancelArgs {
    /// Takes them.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<CancelArgs, XdrError> {
        let (cookie, block, exclusive) = (read_cookie(from)?, from.bool()?, from.bool()?);
        Ok(CancelArgs { cookie, block, exclusive, lock: Lock::read(from)? })
    }

    /// Puts them.
    pub fn write(&self, to: Writer) -> Writer {
        self.lock.write(to.opaque(&self.cookie).bool(self.block).bool(self.exclusive))
    }
}

/// The arguments of UNLOCK.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnlockArgs {
    /// Comes back with the results.
    pub cookie: Vec<u8>,
    /// What.
    pub lock: Lock,
}

impl UnlockArgs {
    /// Takes them.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<UnlockArgs, XdrError> {
        Ok(UnlockArgs { cookie: read_cookie(from)?, lock: Lock::read(from)? })
    }

    /// Puts them.
    pub fn write(&self, to: Writer) -> Writer {
        self.lock.write(to.opaque(&self.cookie))
    }
}

/// The results of all but TEST, SHARE and UNSHARE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockResult {
    /// Of the call.
    pub cookie: Vec<u8>,
    /// How it ended.
    pub status: Status,
}

impl LockResult {
    /// Takes them.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<LockResult, XdrError> {
        Ok(LockResult { cookie: read_cookie(from)?, status: Status::read(from)? })
    }

    /// Puts them.
    pub fn write(&self, to: Writer) -> Writer {
        to.opaque(&self.cookie).u32(self.status as u32)
    }
}

/// Who holds a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holder {
    /// For writing.
    pub exclusive: bool,
    /// The owner's process.
    pub process: u32,
    /// The owner.
    pub owner: Vec<u8>,
    /// The first byte.
    pub offset: u64,
    /// How many; 0: all that follow.
    pub bytes: u64,
}

/// The results of TEST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestResult {
    /// Of the call.
    pub cookie: Vec<u8>,
    /// Who holds the lock, or any other status than [`Status::Denied`].
    pub outcome: Result<Holder, Status>,
}

impl TestResult {
    /// Takes them.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<TestResult, XdrError> {
        let cookie = read_cookie(from)?;
        let outcome = match Status::read(from)? {
            Status::Denied => Ok(Holder {
                exclusive: from.bool()?,
                process: from.u32()?,
                owner: from.opaque(OBJECT_BYTES_MAX)?.to_vec(),
                offset: from.u64()?,
                bytes: from.u64()?,
            }),
            status => Err(status),
        };
        Ok(TestResult { cookie, outcome })
    }

    /// Puts them.
    pub fn write(&self, to: Writer) -> Writer {
        let to = to.opaque(&self.cookie);
        match &self.outcome {
            Ok(holder) => {
                let to = to.u32(Status::Denied as u32).bool(holder.exclusive).u32(holder.process);
                to.opaque(&holder.owner).u64(holder.offset).u64(holder.bytes)
            }
            Err(status) => to.u32(*status as u32),
        }
    }
}

/// The arguments of SHARE and UNSHARE.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShareArgs {
    /// Comes back with the results.
    pub cookie: Vec<u8>,
    /// The client's host.
    pub host: Vec<u8>,
    /// The file.
    pub handle: Vec<u8>,
    /// An owner on that host.
    pub owner: Vec<u8>,
    /// What others may not do: 0 nothing, 1 read, 2 write, 3 both.
    pub denies: u32,
    /// What the owner does.
    pub access: u32,
    /// It was held before the server restarted.
    pub reclaim: bool,
}

impl ShareArgs {
    /// Takes them.
    ///
    /// # Errors
    /// [`XdrError`].
    pub fn read(from: &mut Reader<'_>) -> Result<ShareArgs, XdrError> {
        let mode = |word: u32| if word <= 3 { Ok(word) } else { Err(XdrError::Wrong) };
        Ok(ShareArgs {
            cookie: read_cookie(from)?,
            host: from.opaque(NAME_BYTES_MAX)?.to_vec(),
            handle: from.opaque(HANDLE_BYTES_MAX)?.to_vec(),
            owner: from.opaque(OBJECT_BYTES_MAX)?.to_vec(),
            denies: mode(from.u32()?)?,
            access: mode(from.u32()?)?,
            reclaim: from.bool()?,
        })
    }

    /// Puts them.
    pub fn write(&self, to: Writer) -> Writer {
        let to = to.opaque(&self.cookie).opaque(&self.host).opaque(&self.handle).opaque(&self.owner);
        to.u32(self.denies).u32(self.access).bool(self.reclaim)
    }
}

/// Puts the results of SHARE and UNSHARE.
pub fn write_share_result(result: &LockResult, sequence: u32, to: Writer) -> Writer {
    result.write(to).u32(sequence)
}

/// Takes the host of the arguments of FREE_ALL. Its state follows, which some write with four bytes and some
/// with eight.
///
/// # Errors
/// [`XdrError`].
pub fn read_free_all(from: &mut Reader<'_>) -> Result<Vec<u8>, XdrError> {
    Ok(from.opaque(NAME_BYTES_MAX)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock() -> Lock {
        Lock {
            host: b"node7".to_vec(),
            handle: b"HANDLE".to_vec(),
            owner: b"9@node7".to_vec(),
            process: 9,
            offset: 1 << 32,
            bytes: 100,
        }
    }

    const LOCK: &[u8] = b"\0\0\0\x05node7\0\0\0\0\0\0\x06HANDLE\0\0\0\0\0\x079@node7\0\
        \0\0\0\x09\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x64";
    const COOKIE: &[u8] = b"\0\0\0\x04\x01\x02\x03\x04";
    const YES: &[u8] = b"\0\0\0\x01";
    const NO: &[u8] = b"\0\0\0\0";

    fn cookie() -> Vec<u8> {
        vec![1, 2, 3, 4]
    }

    /// A body is these bytes, and is read from them and from no fewer.
    fn check<T: PartialEq + std::fmt::Debug>(
        body: &T,
        write: impl Fn(&T, Writer) -> Writer,
        read: impl Fn(&mut Reader<'_>) -> Result<T, XdrError>,
        bytes: &[&[u8]],
    ) {
        let bytes = bytes.concat();
        assert_eq!(write(body, Writer::new()).into_bytes(), bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!(read(&mut reader).as_ref(), Ok(body));
        assert_eq!(reader.position(), bytes.len());
        for end in 0..bytes.len() {
            assert_eq!(read(&mut Reader::new(&bytes[..end])), Err(XdrError::Short), "{end} bytes");
        }
    }

    #[test]
    fn arguments_are_as_the_protocol_has_them() {
        let (cookie, lock) = (cookie(), lock());
        let test = TestArgs { cookie: cookie.clone(), exclusive: true, lock: lock.clone() };
        check(&test, TestArgs::write, TestArgs::read, &[COOKIE, YES, LOCK]);
        let args = LockArgs {
            cookie: cookie.clone(),
            block: true,
            exclusive: false,
            lock: lock.clone(),
            reclaim: true,
            state: 3,
        };
        check(&args, LockArgs::write, LockArgs::read, &[COOKIE, YES, NO, LOCK, YES, b"\0\0\0\x03"]);
        let args = CancelArgs { cookie: cookie.clone(), block: false, exclusive: true, lock: lock.clone() };
        check(&args, CancelArgs::write, CancelArgs::read, &[COOKIE, NO, YES, LOCK]);
        let args = UnlockArgs { cookie, lock };
        check(&args, UnlockArgs::write, UnlockArgs::read, &[COOKIE, LOCK]);
    }

    #[test]
    fn results_are_as_the_protocol_has_them() {
        for (number, status) in Status::ALL.into_iter().enumerate() {
            let result = LockResult { cookie: cookie(), status };
            check(&result, LockResult::write, LockResult::read, &[COOKIE, &[0, 0, 0, number as u8]]);
        }
        let holder = Holder { exclusive: true, process: 9, owner: b"9@node7".to_vec(), offset: 5, bytes: 0 };
        let held = TestResult { cookie: cookie(), outcome: Ok(holder) };
        let rest = b"\0\0\0\x09\0\0\0\x079@node7\0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0";
        check(&held, TestResult::write, TestResult::read, &[COOKIE, YES, YES, rest]);
        let free = TestResult { cookie: cookie(), outcome: Err(Status::Granted) };
        check(&free, TestResult::write, TestResult::read, &[COOKIE, NO]);
        let result = LockResult { cookie: cookie(), status: Status::Granted };
        let bytes = write_share_result(&result, 0, Writer::new()).into_bytes();
        assert_eq!(bytes, [COOKIE, NO, NO].concat());
    }

    #[test]
    fn shares_and_hosts_are_as_the_protocol_has_them() {
        let args = ShareArgs {
            cookie: cookie(),
            host: b"node7".to_vec(),
            handle: b"HANDLE".to_vec(),
            owner: b"9@node7".to_vec(),
            denies: 2,
            access: 3,
            reclaim: false,
        };
        let share = &LOCK[..LOCK.len() - 20];
        check(&args, ShareArgs::write, ShareArgs::read, &[COOKIE, share, b"\0\0\0\x02\0\0\0\x03", NO]);
        assert_eq!(read_free_all(&mut Reader::new(b"\0\0\0\x01h\0\0\0\0\0\0\x07")), Ok(b"h".to_vec()));
    }

    #[test]
    fn lengths_are_checked() {
        let long = Lock { handle: vec![0; HANDLE_BYTES_MAX + 1], ..lock() };
        let args = UnlockArgs { cookie: cookie(), lock: long };
        let bytes = args.write(Writer::new()).into_bytes();
        assert_eq!(UnlockArgs::read(&mut Reader::new(&bytes)), Err(XdrError::Wrong));
        assert_eq!(LockResult::read(&mut Reader::new(b"\0\0\0\0\0\0\0\x0a")), Err(XdrError::Wrong));
    }

    #[test]
    fn any_bytes_are_bodies_or_not() {
        let seeds = [
            [COOKIE, YES, LOCK].concat(),
            [COOKIE, YES, NO, LOCK, YES, NO].concat(),
            [COOKIE, YES, YES, LOCK].concat(),
        ];
        weft_test_fuzz::run("onc-nlm", &seeds, |bytes| {
            macro_rules! again {
                ($($body:ty),*) => {$(
                    if let Ok(body) = <$body>::read(&mut Reader::new(bytes)) {
                        let again = body.write(Writer::new()).into_bytes();
                        assert_eq!(<$body>::read(&mut Reader::new(&again)), Ok(body));
                    }
                )*};
            }
            again!(TestArgs, LockArgs, CancelArgs, UnlockArgs, LockResult, TestResult, ShareArgs);
            let _ = read_free_all(&mut Reader::new(bytes));
        });
    }
}
