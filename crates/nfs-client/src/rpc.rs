//! What a client of NFS has to know of calls and replies beside [`weft_onc_rpc`]: where the data of a READ begin, and why a
//! call was refused. No I/O.

use weft_onc_rpc::auth::BODY_BYTES_MAX;
use weft_onc_rpc::reply::ReplyHeader;
use weft_onc_rpc::{AuthStat, RPC_VERSION, Refusal};

use crate::error::{ErrorKind, Failure, Malformed};
use crate::types::ATTR_BYTES;

const REPLY: u32 = 1;

/// Which procedure of which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
}

/// Gives a call its number, which is the first word of its head.
pub(crate) fn set_xid(head: &mut [u8], xid: u32) {
    head[..4].copy_from_slice(&xid.to_be_bytes());
}

/// What is known of a reply from its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    /// So many bytes from its beginning are needed to say.
    Needs(usize),
    /// It has none: it is no successful READ.
    None,
    /// The data of a READ follow, so many bytes.
    Follows(usize),
}

/// Whether data of a READ follow `head`, the first bytes of a reply. It never asks for bytes behind the first ones of the data.
pub(crate) fn payload_of_read(head: &[u8]) -> Payload {
    let word =
        |at: usize| head.get(at..at + 4).map(|word| u32::from_be_bytes(word.try_into().unwrap_or_default()));
    let (Some(REPLY), Some(accepted), Some(verifier_bytes)) = (word(4), word(8), word(16)) else {
        return if head.len() < 20 { Payload::Needs(20) } else { Payload::None };
    };
    if accepted != 0 || verifier_bytes as usize > BODY_BYTES_MAX {
        return Payload::None;
    }
    let stat_at = 20 + (verifier_bytes as usize).next_multiple_of(4);
    // accept_stat, status of NFS, whether there are attributes, count, eof, length of the data.
    for (at, usual) in [(stat_at, 0), (stat_at + 4, 0)] {
        match word(at) {
            None => return Payload::Needs(at + 4),
            Some(value) if value != usual => return Payload::None,
            Some(_) => {}
        }
    }
    let length_at = match word(stat_at + 8) {
        None => return Payload::Needs(stat_at + 12),
        Some(0) => stat_at + 20,
        Some(1) => stat_at + 20 + ATTR_BYTES,
        Some(_) => return Payload::None,
    };
    word(length_at).map_or(Payload::Needs(length_at + 4), |length| Payload::Follows(length as usize))
}

/// Results of an accepted reply, or why the server refused the call.
// Fuzzed by nfs-replies: the decoders of results read what it gives.
pub(crate) fn decode_reply(reply: &[u8]) -> Result<&[u8], Failure> {
    let (header, bytes) = ReplyHeader::decode(reply).map_err(Malformed::from)?;
    header.outcome.map_err(refused)?;
    Ok(&reply[bytes..])
}

fn refused(refusal: Refusal) -> Failure {
    let (errno, why) = match refusal {
        Refusal::NoProgram => {
            (libc::EPROTONOSUPPORT, "it does not offer this program (PROG_UNAVAIL)".to_string())
        }
        Refusal::Versions { low, high } => {
            let why = format!("it offers versions {low} to {high} of this program only (PROG_MISMATCH)");
            (libc::EPROTONOSUPPORT, why)
        }
        Refusal::NoProcedure => {
            (libc::EOPNOTSUPP, "it does not offer this procedure (PROC_UNAVAIL)".to_string())
        }
        Refusal::Arguments => {
            (libc::EPROTO, "it does not understand the arguments (GARBAGE_ARGS)".to_string())
        }
        Refusal::System => (
            libc::EREMOTEIO,
            "it failed before it could answer (SYSTEM_ERR); its log may say why".to_string(),
        ),
        Refusal::RpcVersion => {
            (libc::EPROTONOSUPPORT, format!("it does not speak version {RPC_VERSION} of RPC (RPC_MISMATCH)"))
        }
        Refusal::Auth(stat) => (libc::EACCES, auth_meaning(stat).to_string()),
    };
    Failure::new(ErrorKind::Refused(errno), why)
}

fn auth_meaning(stat: AuthStat) -> &'static str {
    match stat {
        AuthStat::BadCredential => "the credential is malformed (AUTH_BADCRED)",
        AuthStat::RejectedCredential => "the session of the credential is over (AUTH_REJECTEDCRED)",
        AuthStat::BadVerifier => "the verifier is malformed (AUTH_BADVERF)",
        AuthStat::RejectedVerifier => "the verifier has expired (AUTH_REJECTEDVERF)",
        AuthStat::TooWeak => {
            "it wants a stronger credential than AUTH_SYS, or a port below 1024 (AUTH_TOOWEAK); as root such a port is used"
        }
        AuthStat::Failed => "it refused the credential (AUTH_FAILED)",
        AuthStat::Kerberos => "it wants Kerberos (RPCSEC_GSS_CREDPROBLEM), which this client does not offer",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use weft_onc_rpc::xdr::Writer;

    /// An accepted reply with these results.
    pub(crate) fn accepted(xid: u32, results: &[u8]) -> Vec<u8> {
        [&weft_onc_rpc::reply::success(xid).into_bytes()[..], results].concat()
    }

    #[test]
    fn refused_calls_say_why() {
        let why = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            decode_reply(&bytes).expect_err("refused").detail
        };
        assert!(why(&[1, 1, 0, 0, 0, 1]).contains("PROG_UNAVAIL"));
        assert!(why(&[1, 1, 0, 0, 0, 2, 2, 3]).contains("versions 2 to 3"));
        assert!(why(&[1, 1, 0, 0, 0, 3]).contains("PROC_UNAVAIL"));
        assert!(why(&[1, 1, 0, 0, 0, 4]).contains("GARBAGE_ARGS"));
        assert!(why(&[1, 1, 0, 0, 0, 5]).contains("SYSTEM_ERR"));
        assert!(why(&[1, 1, 1, 0, 2, 2]).contains("RPC_MISMATCH"));
        assert!(why(&[1, 1, 1, 1, 5]).contains("AUTH_TOOWEAK"));
        assert!(why(&[1, 1, 1, 1, 13]).contains("Kerberos"));
        for wrong in [&[1, 0][..], &[1, 1, 2], &[1, 1, 0, 0, 401], &[1]] {
            assert!(why(wrong).contains("makes no sense"), "{wrong:?}");
        }
        assert_eq!(decode_reply(&accepted(7, &[1, 2])), Ok(&[1, 2][..]));
    }

    /// Results of a READ with `data` announced.
    pub(crate) fn read_results(data_bytes: u32, with_attr: bool) -> Vec<u8> {
        let writer = Writer::new().u32(0).option(with_attr.then_some(()), |writer, ()| {
            let regular = [1, 0o644, 1, 0, 0].into_iter().fold(writer, Writer::u32);
            regular.fixed(&[0; ATTR_BYTES - 20])
        });
        writer.u32(data_bytes).u32(1).u32(data_bytes).into_bytes()
    }

    #[test]
    fn the_data_of_a_read_are_found_with_no_byte_too_many() {
        for with_attr in [false, true] {
            let head = accepted(7, &read_results(5, with_attr));
            for length in 0..head.len() {
                let Payload::Needs(more) = payload_of_read(&head[..length]) else {
                    panic!("{length} bytes do not suffice")
                };
                assert!(more > length && more <= head.len(), "{length}: {more}");
            }
            assert_eq!(payload_of_read(&head), Payload::Follows(5));
        }
        let failed = accepted(7, &[0, 0, 0, 70, 0, 0, 0, 0]);
        assert_eq!(payload_of_read(&failed), Payload::None);
        assert_eq!(payload_of_read(&[0xff; 40]), Payload::None);
    }
}
