//! The head of a reply (RFC 5531, 9).

use crate::auth::{AuthStat, BODY_BYTES_MAX};
use crate::xdr::{Reader, Writer, XdrError};

/// The version of the protocol (RFC 5531, 9).
pub const RPC_VERSION: u32 = 2;

const REPLY: u32 = 1;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const SUCCESS: u32 = 0;

/// Bytes of the head of a reply that has results.
pub const SUCCESS_BYTES: usize = 24;

/// Why a call has no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The program is not served here.
    NoProgram,
    /// Only these versions of it are.
    Versions {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// The program has no such procedure.
    NoProcedure,
    /// The arguments are none of the procedure's.
    Arguments,
    /// The server has failed.
    System,
    /// The call is of another version of RPC than 2.
    RpcVersion,
    /// The caller may not call, as it says who it is.
    Auth(AuthStat),
}

/// The head of a reply with results, which follow.
pub fn success(xid: u32) -> Writer {
    // The verifier is AUTH_NONE.
    Writer::with_capacity(256).u32(xid).u32(REPLY).u32(ACCEPTED).u32(0).u32(0).u32(SUCCESS)
}

/// A whole reply without results.
pub fn refused(xid: u32, refusal: Refusal) -> Vec<u8> {
    let begin = Writer::with_capacity(32).u32(xid).u32(REPLY);
    let accepted = |stat| begin.clone().u32(ACCEPTED).u32(0).u32(0).u32(stat);
    match refusal {
        Refusal::NoProgram => accepted(1),
        Refusal::Versions { low, high } => accepted(2).u32(low).u32(high),
        Refusal::NoProcedure => accepted(3),
        Refusal::Arguments => accepted(4),
        Refusal::System => accepted(5),
        Refusal::RpcVersion => begin.u32(DENIED).u32(0).u32(RPC_VERSION).u32(RPC_VERSION),
        Refusal::Auth(stat) => begin.u32(DENIED).u32(1).u32(stat as u32),
    }
    .into_bytes()
}

/// The head of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The number of the call.
    pub xid: u32,
    /// Whether results follow, or why none do. What a server may say that is not in [`Refusal`] counts as
    /// [`Refusal::System`].
    pub outcome: Result<(), Refusal>,
}

impl ReplyHeader {
    /// Takes the head from the front of a message; and its length.
    ///
    /// # Errors
    /// [`XdrError::Short`], where there may be more to come; [`XdrError::Wrong`] where it is no reply.
    pub fn decode(bytes: &[u8]) -> Result<(ReplyHeader, usize), XdrError> {
        let mut reader = Reader::new(bytes);
        let xid = reader.u32()?;
        if reader.u32()? != REPLY {
            return Err(XdrError::Wrong);
        }
        let outcome = match reader.u32()? {
            ACCEPTED => {
                reader.u32()?;
                reader.opaque(BODY_BYTES_MAX)?;
                match reader.u32()? {
                    SUCCESS => Ok(()),
                    1 => Err(Refusal::NoProgram),
                    2 => Err(Refusal::Versions { low: reader.u32()?, high: reader.u32()? }),
                    3 => Err(Refusal::NoProcedure),
                    4 => Err(Refusal::Arguments),
                    _ => Err(Refusal::System),
                }
            }
            DENIED => match reader.u32()? {
                0 => {
                    reader.u64()?;
                    Err(Refusal::RpcVersion)
                }
                1 => Err(Refusal::Auth(AuthStat::of(reader.u32()?))),
                _ => return Err(XdrError::Wrong),
            },
            _ => return Err(XdrError::Wrong),
        };
        Ok((ReplyHeader { xid, outcome }, reader.position()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_the_rfc_has_them() {
        let success = success(7).into_bytes();
        assert_eq!(success, b"\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(success.len(), SUCCESS_BYTES);
        let versions = Refusal::Versions { low: 3, high: 4 };
        let accepted = b"\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\x04";
        assert_eq!(refused(7, versions), accepted);
        let denied = b"\0\0\0\x07\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x02";
        assert_eq!(refused(7, Refusal::RpcVersion), denied);
        let auth = b"\0\0\0\x07\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x05";
        assert_eq!(refused(7, Refusal::Auth(AuthStat::TooWeak)), auth);
    }

    #[test]
    fn every_reply_is_read_back() {
        for refusal in [
            Refusal::NoProgram,
            Refusal::Versions { low: 1, high: 9 },
            Refusal::NoProcedure,
            Refusal::Arguments,
            Refusal::System,
            Refusal::RpcVersion,
            Refusal::Auth(AuthStat::BadCredential),
            Refusal::Auth(AuthStat::RejectedCredential),
            Refusal::Auth(AuthStat::BadVerifier),
            Refusal::Auth(AuthStat::RejectedVerifier),
            Refusal::Auth(AuthStat::TooWeak),
            Refusal::Auth(AuthStat::Failed),
            Refusal::Auth(AuthStat::Kerberos),
        ] {
            let bytes = refused(9, refusal);
            let header = ReplyHeader { xid: 9, outcome: Err(refusal) };
            assert_eq!(ReplyHeader::decode(&bytes), Ok((header, bytes.len())));
            for end in 0..bytes.len() {
                assert_eq!(ReplyHeader::decode(&bytes[..end]), Err(XdrError::Short));
            }
        }
    }

    #[test]
    fn any_bytes_are_a_reply_or_not() {
        let seeds = [success(1).into_bytes(), refused(2, Refusal::Versions { low: 1, high: 2 })];
        weft_test_fuzz::run("onc-reply", &seeds, |bytes| {
            if let Ok((header, length)) = ReplyHeader::decode(bytes) {
                assert!(length <= bytes.len());
                assert_eq!(header.xid.to_be_bytes(), bytes[..4]);
            }
        });
    }
}
