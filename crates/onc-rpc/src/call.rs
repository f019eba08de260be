//! The head of a call (RFC 5531, 9).

use crate::auth::{AuthStat, BODY_BYTES_MAX, Credential};
use crate::reply::{RPC_VERSION, Refusal};
use crate::xdr::{Reader, Writer, XdrError};

/// Bytes of a call's head at most: six words, a credential and a verifier.
pub const HEAD_BYTES_MAX: usize = 24 + 2 * (8 + BODY_BYTES_MAX);

const CALL: u32 = 0;

/// What a call begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallHeader {
    /// The caller's number of it, for the reply; the same when it is sent again.
    pub xid: u32,
    /// Which program.
    pub program: u32,
    /// Of which version.
    pub version: u32,
    /// Which procedure of it.
    pub procedure: u32,
    /// Who calls.
    pub credential: Credential,
}

/// Why bytes are not the head of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// They end too early: there may be more to come.
    Short,
    /// It is no call: nobody can be answered.
    NotACall,
    /// The caller can be told why.
    Refused {
        /// Its number.
        xid: u32,
        /// The reply.
        refusal: Refusal,
    },
}

impl CallHeader {
    /// Takes the head from the front of a message; and its length.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn decode(bytes: &[u8]) -> Result<(CallHeader, usize), CallError> {
        let mut reader = Reader::new(bytes);
        let xid = reader.u32().map_err(|_| CallError::Short)?;
        let refused = |refusal| CallError::Refused { xid, refusal };
        let at = |error| match error {
            XdrError::Short => CallError::Short,
            XdrError::Wrong => refused(Refusal::Auth(AuthStat::BadCredential)),
        };
        if reader.u32().map_err(at)? != CALL {
            return Err(CallError::NotACall);
        }
        if reader.u32().map_err(at)? != RPC_VERSION {
            return Err(refused(Refusal::RpcVersion));
        }
        let program = reader.u32().map_err(at)?;
        let version = reader.u32().map_err(at)?;
        let procedure = reader.u32().map_err(at)?;
        let credential = Credential::read(&mut reader).map_err(at)?;
        // The verifier of these flavours says nothing.
        reader.u32().map_err(at)?;
        reader.opaque(BODY_BYTES_MAX).map_err(at)?;
        let credential = credential.map_err(|stat| refused(Refusal::Auth(stat)))?;
        Ok((CallHeader { xid, program, version, procedure, credential }, reader.position()))
    }

    /// On the wire; the arguments follow.
    pub fn write(&self) -> Writer {
        let writer = Writer::with_capacity(256).u32(self.xid).u32(CALL).u32(RPC_VERSION);
        let writer = writer.u32(self.program).u32(self.version).u32(self.procedure);
        Credential::None.write(self.credential.write(writer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::AuthSys;

    fn header() -> CallHeader {
        let sys = AuthSys { stamp: 1, machine: b"node7".to_vec(), uid: 1000, gid: 100, groups: vec![4, 27] };
        CallHeader {
            xid: 0x0102_0304,
            program: 100_003,
            version: 3,
            procedure: 7,
            credential: Credential::Sys(sys),
        }
    }

    const GOLDEN: &[u8] = b"\x01\x02\x03\x04\0\0\0\0\0\0\0\x02\0\x01\x86\xa3\0\0\0\x03\0\0\0\x07\
        \0\0\0\x01\0\0\0\x24\0\0\0\x01\0\0\0\x05node7\0\0\0\0\0\x03\xe8\0\0\0\x64\0\0\0\x02\0\0\0\x04\0\0\0\x1b\
        \0\0\0\0\0\0\0\0";

    #[test]
    fn what_is_too_much_for_a_credential_is_not_sent() {
        let sys = AuthSys { machine: vec![b'm'; 300], groups: (0..20).collect(), ..AuthSys::default() };
        let bytes = CallHeader { credential: Credential::Sys(sys), ..header() }.write().into_bytes();
        let Ok((CallHeader { credential: Credential::Sys(seen), .. }, _)) = CallHeader::decode(&bytes) else {
            panic!("it is a call")
        };
        assert_eq!((seen.machine, seen.groups), (vec![b'm'; 255], (0..16).collect()));
    }

    #[test]
    fn a_call_is_as_the_rfc_has_it() {
        assert_eq!(header().write().into_bytes(), GOLDEN);
        assert_eq!(CallHeader::decode(GOLDEN), Ok((header(), GOLDEN.len())));
        for end in 0..GOLDEN.len() {
            assert_eq!(CallHeader::decode(&GOLDEN[..end]), Err(CallError::Short), "{end} bytes");
        }
    }

    #[test]
    fn what_is_wrong_gets_its_own_answer() {
        let with = |at: usize, byte: u8| {
            let mut bytes = GOLDEN.to_vec();
            bytes[at] = byte;
            CallHeader::decode(&bytes)
        };
        let refused = |refusal| Err(CallError::Refused { xid: 0x0102_0304, refusal });
        assert_eq!(with(7, 1), Err(CallError::NotACall));
        assert_eq!(with(11, 3), refused(Refusal::RpcVersion));
        assert_eq!(with(27, 6), refused(Refusal::Auth(AuthStat::RejectedCredential)), "RPCSEC_GSS");
        assert_eq!(with(30, 9), refused(Refusal::Auth(AuthStat::BadCredential)), "a body of 2 KiB");
        assert_eq!(with(59, 17), refused(Refusal::Auth(AuthStat::BadCredential)), "17 groups");
    }

    #[test]
    fn any_bytes_are_a_call_or_not_and_read_back_the_same() {
        weft_test_fuzz::run("onc-call", &[GOLDEN.to_vec()], |bytes| {
            if let Ok((header, length)) = CallHeader::decode(bytes) {
                assert!(length <= bytes.len().min(HEAD_BYTES_MAX));
                let again = header.write().into_bytes();
                assert_eq!(CallHeader::decode(&again), Ok((header, again.len())));
            }
        });
    }
}
