//! What a handler ends with: an answer, or a refusal with a status and words for people.

use crate::log;
use weft_layout::{Extent, Layout};
use weft_meta::{EngineError, MetaError};
use weft_storage::StorageError;
use weft_wire::limits::CLOCK_SKEW_S_MAX;
use weft_wire::messages::ErrorDetail;
use weft_wire::security::{Capability, CapabilityError};
use weft_wire::{DecodeError, Status, Wire, body};

/// A successful reply.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The encoded reply message.
    pub body: Vec<u8>,
    /// File bytes that ride in the reply.
    pub payload: Vec<u8>,
    /// File bytes that the operation moved, of a share from its beginning on: for the reply's header and the counters.
    pub moved_bytes: u64,
}

impl Answer {
    /// An answer without file bytes.
    pub fn of(reply: &impl Wire) -> Answer {
        Answer { body: body::encode(reply), ..Answer::default() }
    }
}

/// Why a request is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// For programs.
    pub status: Status,
    /// For people.
    pub text: String,
    /// Where in the data file its data is damaged, if that is why.
    pub damage: Option<Extent>,
}

impl Refusal {
    /// A refusal with a text of its own.
    pub fn new(status: Status, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into(), damage: None }
    }

    /// The same, with the place of damaged data in the file instead of in the data file of `slot`.
    pub fn placed(self, ino: u64, layout: &Layout, slot: u16) -> Refusal {
        let Some(damage) = self.damage else { return self };
        let begin = layout.logical_size(slot, damage.offset + 1) - 1;
        let end = layout.logical_size(slot, damage.end());
        let text = format!(
            "bytes {begin} to {} of inode {ino} are damaged on this server's disk: they do not fit their checksum. Restore the \
             file, or overwrite the damaged blocks as a whole; weft scrub lists all damage",
            end - 1
        );
        Refusal { text, ..self }
    }

    /// The body of the reply.
    pub fn body(&self) -> Vec<u8> {
        body::encode(&ErrorDetail { text: self.text.clone() })
    }
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Refusal {
        Refusal::new(Status::Malformed, error.to_string())
    }
}

impl Refusal {
    /// Why `server` does not take a capability at `now_s`, by its own clock.
    pub fn of_capability(
        server: &str,
        capability: &Capability,
        now_s: u64,
        error: CapabilityError,
    ) -> Refusal {
        if error != CapabilityError::Expired {
            return error.into();
        }
        let text = format!(
            "capability refused: it expired at {}, and by the clock of {server} it is {}, more than {} hours later; open the file again, and if that does not help correct the clocks of the servers (weft status shows them)",
            log::time(capability.expires_s),
            log::time(now_s),
            CLOCK_SKEW_S_MAX / 3600
        );
        if log::once_a_minute("expired capability") {
            log::warning!(server, "{text}");
        }
        Refusal::new(Status::Capability, text)
    }
}

impl From<CapabilityError> for Refusal {
    fn from(error: CapabilityError) -> Refusal {
        Refusal::new(Status::Capability, format!("capability refused: {error}; open the file again"))
    }
}

impl From<StorageError> for Refusal {
    fn from(error: StorageError) -> Refusal {
        let status = match error.errno() {
            _ if error.is_full() => Status::NoSpace,
            _ if error.is_loss() => Status::Lost,
            _ if matches!(error, StorageError::Damaged { .. }) => Status::Damaged,
            libc::EFBIG => Status::FileTooBig,
            libc::EROFS => Status::ReadOnly,
            libc::EOPNOTSUPP => Status::Unsupported,
            libc::EMFILE | libc::ENFILE => Status::Limit,
            _ => Status::Io,
        };
        let damage = match &error {
            StorageError::Damaged { offset, bytes, .. } => Some(Extent::new(*offset, *bytes)),
            _ => None,
        };
        Refusal { damage, ..Refusal::new(status, error.to_string()) }
    }
}

impl From<MetaError> for Refusal {
    fn from(error: MetaError) -> Refusal {
        let status = match &error {
            MetaError::NotFound => Status::NotFound,
            MetaError::Exists => Status::Exists,
            MetaError::NotDirectory => Status::NotDirectory,
            MetaError::IsDirectory => Status::IsDirectory,
            MetaError::NotEmpty => Status::NotEmpty,
            MetaError::Access => Status::Access,
            MetaError::NotPermitted => Status::NotPermitted,
            MetaError::NameTooLong => Status::NameTooLong,
            MetaError::Loop => Status::Loop,
            MetaError::Stale => Status::Stale,
            MetaError::Invalid(_) | MetaError::Counter { .. } => Status::Invalid,
            MetaError::TooManyCounters => Status::Limit,
            MetaError::Busy(_) | MetaError::Small { .. } => Status::Busy,
            MetaError::TooManyLinks => Status::TooManyLinks,
            MetaError::NoXattr => Status::NoXattr,
            MetaError::XattrTooBig => Status::TooBig,
            MetaError::NotSupported(_) => Status::Unsupported,
            MetaError::NoSpace | MetaError::NoNumbers { .. } => Status::NoSpace,
            MetaError::OtherTree => Status::CrossDevice,
            MetaError::Quota(_) => Status::Quota,
            MetaError::Engine(EngineError::Conflict) => Status::Busy,
            MetaError::Engine(_) => Status::Io,
        };
        Refusal::new(status, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_storage::Operation;

    #[test]
    fn an_expired_capability_speaks_of_both_clocks() {
        let layout = weft_layout::Layout::new(4096, 0, 1, 1).unwrap();
        let key = weft_wire::security::Key([1; 32]);
        let capability = Capability::sign(&key, weft_wire::security::Holder::SERVERS, 5, 0, 86_400, layout);
        let refusal = |now_s| {
            let error = capability.check(&key, now_s, 0).unwrap_err();
            Refusal::of_capability("io0", &capability, now_s, error)
        };
        let text = refusal(90_000).text;
        assert!(text.contains("1970-01-02T00:00:00Z") && text.contains("1970-01-02T01:00:00Z"), "{text}");
        assert!(text.contains("io0") && text.contains("clocks"), "{text}");
    }

    #[test]
    fn a_full_disk_is_told_apart_from_a_broken_one() {
        let error = |errno| StorageError::File {
            operation: Operation::Write,
            ino: 5,
            source: std::io::Error::from_raw_os_error(errno),
        };
        assert_eq!(Refusal::from(error(libc::ENOSPC)).status, Status::NoSpace);
        assert_eq!(Refusal::from(error(libc::EIO)).status, Status::Io);
        assert!(Refusal::from(error(libc::EIO)).text.contains("write data file"));
    }
}
