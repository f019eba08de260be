//! The one error of the library, and its one translation to errno.

use std::fmt;

use weft_onc_rpc::xdr::XdrError;

use crate::status::Status;

/// What every call returns.
pub type Result<T> = std::result::Result<T, Error>;

/// A call that did not succeed: what was tried on what, by which server, why, and what to do.
///
/// ```text
/// READ /export/a/b: server nas (10.0.0.1:2049): NFS3ERR_STALE: the file was removed, or is exported no more
/// └ procedure, path  └ who                      └ why
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The procedure or step, and the path.
    pub operation: String,
    /// The server, with its address where that is known.
    pub server: String,
    /// What kind of failure it is.
    pub kind: ErrorKind,
    /// Why, in words.
    pub detail: String,
}

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The server answered with this.
    Status(Status),
    /// The server refused the call itself, before NFS (RFC 5531, 9): an errno.
    Refused(i32),
    /// The server could not be reached, or did not answer in time.
    Unreachable,
    /// What the caller gave makes no sense.
    Invalid,
    /// The system this program runs on refused: an errno.
    Local(i32),
    /// The server's answer makes no sense.
    Protocol,
}

/// What of an answer is not as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub &'static str);

/// What decoding an answer gives.
pub(crate) type Decoded<T> = std::result::Result<T, Malformed>;

impl From<XdrError> for Malformed {
    fn from(error: XdrError) -> Malformed {
        Malformed(match error {
            XdrError::Short => "it ends too early",
            XdrError::Wrong => "it has a value that cannot be",
        })
    }
}

impl From<Malformed> for Failure {
    fn from(Malformed(what): Malformed) -> Failure {
        Failure::protocol(what)
    }
}

/// Why a call failed, before it is known what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub kind: ErrorKind,
    pub detail: String,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, detail: impl Into<String>) -> Failure {
        Failure { kind, detail: detail.into() }
    }

    pub(crate) fn of_status(status: Status) -> Failure {
        let detail = format!("{}: {}", status.name(), status.meaning());
        Failure { kind: ErrorKind::Status(status), detail }
    }

    pub(crate) fn protocol(what: &str) -> Failure {
        Failure::new(ErrorKind::Protocol, format!("its answer makes no sense: {what}"))
    }

    /// Names operation and server.
    pub(crate) fn of(self, operation: impl Into<String>, server: impl Into<String>) -> Error {
        Error { operation: operation.into(), server: server.into(), kind: self.kind, detail: self.detail }
    }
}

impl Error {
    /// What the server answered, if it did.
    pub fn status(&self) -> Option<Status> {
        match self.kind {
            ErrorKind::Status(status) => Some(status),
            _ => None,
        }
    }

    /// The errno that says it best.
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::Status(status) => status.errno(),
            ErrorKind::Refused(errno) | ErrorKind::Local(errno) => errno,
            ErrorKind::Unreachable => libc::ETIMEDOUT,
            ErrorKind::Invalid => libc::EINVAL,
            ErrorKind::Protocol => libc::EPROTO,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.operation)?;
        if !self.server.is_empty() {
            write!(f, "server {}: ", self.server)?;
        }
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Error {}
