//! The one error of the library, and its one translation to errno.

use crate::words::in_words;
use std::sync::Arc;

use weft_wire::Status;

/// An operation that did not succeed: what was tried, on what, by which server, why, and what to do.
///
/// ```text
/// Write /a/b: server io2 (10.0.0.1:7402): no space left on the server: 3 of 4 GiB are taken by …
/// └ operation and object    └ who          └ kind                       └ the server's words
/// ```
#[derive(Debug, Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Debug, Clone)]
struct Inner {
    operation: String,
    server: Option<String>,
    kind: ErrorKind,
    detail: String,
    /// The errno of [`ErrorKind::Unreachable`] and [`ErrorKind::Configuration`].
    errno: i32,
}

/// What every call returns.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A server refused or failed.
    Status(Status),
    /// A server could not be reached, or was lost and did not come back in time. Its errno says which:
    /// `ETIMEDOUT` where the operation has waited as long as it may, `EHOSTDOWN` where the server was known
    /// to be dead, `EHOSTUNREACH` where nothing could be connected to.
    Unreachable,
    /// The server at the other end did not prove that it knows the key, or is no Weft server.
    Untrusted,
    /// What the caller gave makes no sense.
    Invalid,
    /// The file was not opened for this.
    NotOpenForThis,
    /// Address, key or transport cannot be used as given.
    Configuration,
    /// The system this program runs on refused; an errno.
    Local(i32),
    /// A server's answer makes no sense.
    Protocol,
}

impl Error {
    /// What was tried, what kind of failure it is, and why.
    pub fn new(operation: impl Into<String>, kind: ErrorKind, detail: impl Into<String>) -> Error {
        Error {
            inner: Arc::new(Inner {
                operation: operation.into(),
                server: None,
                kind,
                detail: detail.into(),
                errno: match kind {
                    ErrorKind::Configuration => libc::EINVAL,
                    _ => libc::EHOSTUNREACH,
                },
            }),
        }
    }

    /// A server was waited for as long as the operation may take.
    pub(crate) fn timed_out(operation: impl Into<String>, detail: impl Into<String>) -> Error {
        Error::unreachable(operation, detail, libc::ETIMEDOUT)
    }

    /// A server is known to be dead, and was not waited for.
    pub(crate) fn down(operation: impl Into<String>, detail: impl Into<String>) -> Error {
        Error::unreachable(operation, detail, libc::EHOSTDOWN)
    }

    fn unreachable(operation: impl Into<String>, detail: impl Into<String>, errno: i32) -> Error {
        let mut error = Error::new(operation, ErrorKind::Unreachable, detail);
        Arc::make_mut(&mut error.inner).errno = errno;
        error
    }

    /// Whether a server is known to be dead, and was not waited for.
    pub(crate) fn is_down(&self) -> bool {
        self.inner.kind == ErrorKind::Unreachable && self.inner.errno == libc::EHOSTDOWN
    }

    /// The same of another operation.
    pub(crate) fn of_operation(mut self, operation: &str) -> Error {
        Arc::make_mut(&mut self.inner).operation = operation.to_string();
        self
    }

    /// Address, key or transport cannot be used as given.
    pub fn configuration(detail: String) -> Error {
        Error::new("connect", ErrorKind::Configuration, detail)
    }

    /// This user has no key, or may not read it: `EACCES`.
    pub fn without_key(detail: String) -> Error {
        let mut error = Error::configuration(detail);
        Arc::make_mut(&mut error.inner).errno = libc::EACCES;
        error
    }

    /// Names the server.
    pub fn at_server(mut self, server: impl Into<String>) -> Error {
        Arc::make_mut(&mut self.inner).server = Some(server.into());
        self
    }

    /// Names what the operation was on, where only the operation is known so far.
    pub fn on(mut self, object: &dyn std::fmt::Display) -> Error {
        let inner = Arc::make_mut(&mut self.inner);
        inner.operation = format!("{} {object}", inner.operation);
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The status that a server answered with, if one did.
    pub fn status(&self) -> Option<Status> {
        match self.inner.kind {
            ErrorKind::Status(status) => Some(status),
            _ => None,
        }
    }

    /// The operation and what it was on.
    pub fn operation(&self) -> &str {
        &self.inner.operation
    }

    /// The server, with its address, if one was involved.
    pub fn server(&self) -> Option<&str> {
        self.inner.server.as_deref()
    }

    /// Why, in words, without the operation, for callers that name it themselves. The server is named only if the failure is one
    /// of the server, not of the file.
    pub fn reason(&self) -> impl std::fmt::Display {
        let is_of_file = self.status().is_some_and(is_of_file);
        Reason { inner: &self.inner, server: self.server().filter(|_| !is_of_file) }
    }

    /// Why, in words.
    pub fn detail(&self) -> &str {
        &self.inner.detail
    }

    /// The errno that says it best; the only place of the library where errno appears.
    pub fn errno(&self) -> i32 {
        match self.inner.kind {
            ErrorKind::Status(status) => status_errno(status),
            ErrorKind::Unreachable | ErrorKind::Configuration => self.inner.errno,
            ErrorKind::Untrusted => libc::EACCES,
            ErrorKind::Invalid => libc::EINVAL,
            ErrorKind::NotOpenForThis => libc::EBADF,
            ErrorKind::Local(errno) => errno,
            ErrorKind::Protocol => libc::EPROTO,
        }
    }
}

fn status_errno(status: Status) -> i32 {
    match status {
        Status::Ok => 0,
        Status::NotFound => libc::ENOENT,
        Status::Exists => libc::EEXIST,
        Status::NotDirectory => libc::ENOTDIR,
        Status::IsDirectory => libc::EISDIR,
        Status::NotEmpty => libc::ENOTEMPTY,
        Status::Access => libc::EACCES,
        Status::NotPermitted => libc::EPERM,
        Status::NameTooLong => libc::ENAMETOOLONG,
        Status::Loop => libc::ELOOP,
        Status::Stale => libc::ESTALE,
        Status::Invalid => libc::EINVAL,
        Status::CrossDevice => libc::EXDEV,
        Status::NoXattr => libc::ENODATA,
        Status::TooBig => libc::E2BIG,
        Status::Busy => libc::EBUSY,
        Status::NoSpace => libc::ENOSPC,
        Status::Io => libc::EIO,
        Status::Unsupported => libc::EOPNOTSUPP,
        Status::Malformed => libc::EBADMSG,
        Status::Unauthenticated => libc::EACCES,
        // Permissions are checked at open; a capability that is refused later has expired, by the clock of
        // some server.
        Status::Capability => libc::EKEYEXPIRED,
        Status::Version => libc::EPROTONOSUPPORT,
        Status::WrongServer => libc::EREMOTE,
        Status::TooManyLinks => libc::EMLINK,
        Status::FileTooBig => libc::EFBIG,
        Status::ReadOnly => libc::EROFS,
        Status::ShuttingDown => libc::ECONNABORTED,
        Status::Internal => libc::EREMOTEIO,
        Status::Limit => libc::ENFILE,
        Status::Quota => libc::EDQUOT,
        Status::Locked => libc::EAGAIN,
        Status::Deadlock => libc::EDEADLK,
        Status::LockLost => libc::EIO,
        Status::NoLocks => libc::ENOLCK,
        Status::WrongStorage | Status::Lost | Status::Damaged => libc::EIO,
        Status::StaleMap => libc::EREMCHG,
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = Reason { inner: &self.inner, server: self.server() };
        write!(f, "{}: {reason}", in_words(&self.inner.operation))
    }
}

/// Whether every server would say so: it is about names and permissions.
fn is_of_file(status: Status) -> bool {
    use Status::*;
    matches!(
        status,
        NotFound
            | Exists
            | NotDirectory
            | IsDirectory
            | NotEmpty
            | Access
            | NotPermitted
            | NameTooLong
            | Loop
            | CrossDevice
            | Busy
            | Invalid
            | TooManyLinks
            | FileTooBig
    )
}

/// An error without its operation.
struct Reason<'a> {
    inner: &'a Inner,
    server: Option<&'a str>,
}

impl std::fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.inner;
        if let Some(server) = self.server {
            write!(f, "server {server}: ")?;
        }
        match inner.kind {
            ErrorKind::Status(status) if inner.detail.is_empty() => write!(f, "{status}"),
            // Nothing is said twice.
            ErrorKind::Status(status) if inner.detail.starts_with(status.text()) => {
                f.write_str(&inner.detail)
            }
            ErrorKind::Status(status) => write!(f, "{status}: {}", inner.detail),
            _ => f.write_str(&inner.detail),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        let kind = std::io::Error::from_raw_os_error(error.errno()).kind();
        std::io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_an_errno_and_every_error_says_where() {
        for status in Status::ALL {
            assert_eq!(status_errno(*status) == 0, *status == Status::Ok, "{status}");
        }
        let error = Error::new("Write", ErrorKind::Status(Status::NoSpace), "4 KiB are free")
            .on(&"/a/b")
            .at_server("io2 (10.0.0.1:7402)");
        assert_eq!(
            error.to_string(),
            "write /a/b: server io2 (10.0.0.1:7402): no space left on the server: 4 KiB are free"
        );
        assert_eq!(
            error.reason().to_string(),
            "server io2 (10.0.0.1:7402): no space left on the server: 4 KiB are free"
        );
        let missing = Error::new("Lookup", ErrorKind::Status(Status::NotFound), Status::NotFound.text());
        let missing = missing.on(&"/a").at_server("meta0 (10.0.0.1:7400)");
        assert_eq!(missing.reason().to_string(), "no such file or directory");
        let told = "look up /a: server meta0 (10.0.0.1:7400): no such file or directory";
        assert_eq!(missing.to_string(), told);
        assert_eq!(error.errno(), libc::ENOSPC);
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::StorageFull);
    }
}
