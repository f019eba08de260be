//! What an error of `weft-client` is called in NFS.

use nfs3_types::nfs3::nfsstat3;
use weft_client::{Error, ErrorKind};
use weft_wire::Status;

/// How a handle or a name was given to an operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// By handle alone: what is not there any more is stale.
    Handle,
    /// By a name in a directory.
    Name,
}

/// The status of an operation on what was named like this.
pub(crate) fn status_of(error: &Error, named: Named) -> nfsstat3 {
    match error.kind() {
        ErrorKind::Status(Status::NotFound) if named == Named::Handle => nfsstat3::NFS3ERR_STALE,
        ErrorKind::Status(status) => of_status(status),
        // The client asks again in some seconds, as long as its mount is told to.
        ErrorKind::Unreachable => nfsstat3::NFS3ERR_JUKEBOX,
        ErrorKind::Local(errno) => of_errno(errno),
        ErrorKind::Invalid => nfsstat3::NFS3ERR_INVAL,
        ErrorKind::Untrusted | ErrorKind::Configuration => nfsstat3::NFS3ERR_ACCES,
        ErrorKind::NotOpenForThis | ErrorKind::Protocol => nfsstat3::NFS3ERR_SERVERFAULT,
    }
}

fn of_status(status: Status) -> nfsstat3 {
    match status {
        Status::Ok => nfsstat3::NFS3_OK,
        Status::NotFound => nfsstat3::NFS3ERR_NOENT,
        Status::Exists => nfsstat3::NFS3ERR_EXIST,
        Status::NotDirectory => nfsstat3::NFS3ERR_NOTDIR,
        Status::IsDirectory => nfsstat3::NFS3ERR_ISDIR,
        Status::NotEmpty => nfsstat3::NFS3ERR_NOTEMPTY,
        Status::Access | Status::Unauthenticated => nfsstat3::NFS3ERR_ACCES,
        Status::NotPermitted => nfsstat3::NFS3ERR_PERM,
        Status::NameTooLong => nfsstat3::NFS3ERR_NAMETOOLONG,
        Status::Stale => nfsstat3::NFS3ERR_STALE,
        Status::Invalid | Status::Loop => nfsstat3::NFS3ERR_INVAL,
        Status::CrossDevice => nfsstat3::NFS3ERR_XDEV,
        Status::NoSpace => nfsstat3::NFS3ERR_NOSPC,
        Status::Limit | Status::Quota => nfsstat3::NFS3ERR_DQUOT,
        Status::Unsupported => nfsstat3::NFS3ERR_NOTSUPP,
        Status::TooManyLinks => nfsstat3::NFS3ERR_MLINK,
        Status::FileTooBig | Status::TooBig => nfsstat3::NFS3ERR_FBIG,
        Status::ReadOnly => nfsstat3::NFS3ERR_ROFS,
        Status::Busy | Status::ShuttingDown | Status::StaleMap | Status::Locked | Status::Capability => {
            nfsstat3::NFS3ERR_JUKEBOX
        }
        Status::Io
        | Status::WrongStorage
        | Status::Lost
        | Status::Damaged
        | Status::LockLost
        | Status::NoLocks
        | Status::Deadlock
        | Status::NoXattr => nfsstat3::NFS3ERR_IO,
        Status::Malformed | Status::Version | Status::WrongServer | Status::Internal => {
            nfsstat3::NFS3ERR_SERVERFAULT
        }
    }
}

fn of_errno(errno: i32) -> nfsstat3 {
    match errno {
        libc::EACCES => nfsstat3::NFS3ERR_ACCES,
        libc::ENOSPC => nfsstat3::NFS3ERR_NOSPC,
        libc::EINTR | libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE => nfsstat3::NFS3ERR_JUKEBOX,
        _ => nfsstat3::NFS3ERR_IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: Status, named: Named) -> nfsstat3 {
        status_of(&Error::new("Lookup", ErrorKind::Status(status), ""), named)
    }

    #[test]
    fn what_a_handle_leads_to_is_stale_and_a_name_is_not_there() {
        assert_eq!(status(Status::NotFound, Named::Handle), nfsstat3::NFS3ERR_STALE);
        assert_eq!(status(Status::NotFound, Named::Name), nfsstat3::NFS3ERR_NOENT);
    }

    #[test]
    fn no_failure_is_called_success() {
        for one in Status::ALL {
            let ok = status(*one, Named::Name) == nfsstat3::NFS3_OK;
            assert_eq!(ok, *one == Status::Ok, "{one}");
        }
    }

    #[test]
    fn a_server_that_is_gone_is_worth_asking_again() {
        let error = Error::new("Read", ErrorKind::Unreachable, "no answer");
        assert_eq!(status_of(&error, Named::Handle), nfsstat3::NFS3ERR_JUKEBOX);
    }
}
