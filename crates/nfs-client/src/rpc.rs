//! Calls and replies of ONC RPC (RFC 5531, 9), as far as a client needs them. No I/O.

use crate::error::{ErrorKind, Failure};
use crate::types::ATTR_BYTES;
use crate::xdr::{Malformed, Reader, Result, Writer, padded};

/// Most groups that AUTH_SYS has room for.
pub const GROUPS_MAX: usize = 16;
/// Most bytes of a credential or verifier.
const AUTH_BYTES_MAX: usize = 400;
/// Longest name of a machine in AUTH_SYS.
const MACHINE_BYTES_MAX: usize = 255;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const AUTH_SYS: u32 = 1;

/// Which procedure of which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
}

/// Whom calls are for (AUTH_SYS).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Name of this machine.
    pub machine: String,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups, of which the first [`GROUPS_MAX`] are sent.
    pub groups: Vec<u32>,
}

impl Credential {
    fn body(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(0);
        let machine = self.machine.as_bytes();
        writer.opaque(&machine[..machine.len().min(MACHINE_BYTES_MAX)]);
        writer.u32(self.uid);
        writer.u32(self.gid);
        let groups = &self.groups[..self.groups.len().min(GROUPS_MAX)];
        writer.u32(groups.len() as u32);
        groups.iter().for_each(|group| writer.u32(*group));
        writer.bytes
    }

    /// Credential and empty verifier, as all calls have them.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(AUTH_SYS);
        writer.opaque(&self.body());
        writer.u32(0);
        writer.u32(0);
        writer.bytes
    }
}

/// Where the number of a call is in its message.
pub(crate) const XID_AT: usize = 4;

/// Begins a call: room for the record mark, and its header. Arguments follow.
pub(crate) fn begin_call(target: Target, credential: &[u8]) -> Writer {
    let mut writer = Writer { bytes: Vec::with_capacity(credential.len() + 160) };
    for word in [0, 0, CALL, RPC_VERSION, target.program, target.version, target.procedure] {
        writer.u32(word);
    }
    writer.bytes.extend(credential);
    writer
}

/// Ends a call of which `payload_bytes` follow its head: the record mark.
pub(crate) fn end_call(head: &mut [u8], payload_bytes: usize) {
    let bytes = (head.len() - XID_AT + padded(payload_bytes)) as u32;
    head[..XID_AT].copy_from_slice(&(bytes | 1 << 31).to_be_bytes());
}

/// Gives a call its number.
pub(crate) fn set_xid(head: &mut [u8], xid: u32) {
    head[XID_AT..XID_AT + 4].copy_from_slice(&xid.to_be_bytes());
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
    if accepted != 0 || verifier_bytes as usize > AUTH_BYTES_MAX {
        return Payload::None;
    }
    let stat_at = 20 + padded(verifier_bytes as usize);
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

/// The number of the call that a reply is for; an error where it is no reply.
pub(crate) fn xid_of(head: &[u8]) -> Result<u32> {
    Reader::new(head).u32()
}

/// Results of an accepted reply, or why the server refused the call.
// Fuzzed by nfs-replies: the decoders of results read what it gives.
pub(crate) fn decode_reply(reply: &[u8]) -> std::result::Result<&[u8], Failure> {
    let malformed = |Malformed(what)| Failure::protocol(what);
    let mut reader = Reader::new(reply);
    let (_xid, kind) = (reader.u32().map_err(malformed)?, reader.u32().map_err(malformed)?);
    if kind != REPLY {
        return Err(Failure::protocol("it is no reply"));
    }
    match reader.u32().map_err(malformed)? {
        0 => {}
        1 => return Err(denied(&mut reader).unwrap_or_else(malformed)),
        _ => return Err(Failure::protocol("it is neither accepted nor denied")),
    }
    reader.u32().and_then(|_flavor| reader.opaque(AUTH_BYTES_MAX)).map_err(malformed)?;
    let (errno, why) = match reader.u32().map_err(malformed)? {
        0 => return Ok(reader.rest()),
        1 => (libc::EPROTONOSUPPORT, "it does not offer this program (PROG_UNAVAIL)".to_string()),
        2 => {
            let (low, high) = (reader.u32().map_err(malformed)?, reader.u32().map_err(malformed)?);
            let why = format!("it offers versions {low} to {high} of this program only (PROG_MISMATCH)");
            (libc::EPROTONOSUPPORT, why)
        }
        3 => (libc::EOPNOTSUPP, "it does not offer this procedure (PROC_UNAVAIL)".to_string()),
        4 => (libc::EPROTO, "it does not understand the arguments (GARBAGE_ARGS)".to_string()),
        5 => (
            libc::EREMOTEIO,
            "it failed before it could answer (SYSTEM_ERR); its log may say why".to_string(),
        ),
        _ => return Err(Failure::protocol("it has an unknown accept_stat")),
    };
    Err(Failure::new(ErrorKind::Refused(errno), why))
}

fn denied(reader: &mut Reader<'_>) -> Result<Failure> {
    if reader.u32()? == 0 {
        let (low, high) = (reader.u32()?, reader.u32()?);
        let why = format!("it speaks versions {low} to {high} of RPC only (RPC_MISMATCH)");
        return Ok(Failure::new(ErrorKind::Refused(libc::EPROTONOSUPPORT), why));
    }
    let why = match reader.u32()? {
        1 => "the credential is malformed (AUTH_BADCRED)",
        2 => "the session of the credential is over (AUTH_REJECTEDCRED)",
        3 => "the verifier is malformed (AUTH_BADVERF)",
        4 => "the verifier has expired (AUTH_REJECTEDVERF)",
        5 => {
            "it wants a stronger credential than AUTH_SYS, or a port below 1024 (AUTH_TOOWEAK); as root such a port is used"
        }
        13 => "it wants Kerberos (RPCSEC_GSS_CREDPROBLEM), which this client does not offer",
        _ => "it refused the credential (AUTH_ERROR)",
    };
    Ok(Failure::new(ErrorKind::Refused(libc::EACCES), why))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An accepted reply with these results.
    pub(crate) fn accepted(xid: u32, results: &[u8]) -> Vec<u8> {
        let mut writer = Writer::default();
        for word in [xid, REPLY, 0, 0, 0, 0] {
            writer.u32(word);
        }
        writer.bytes.extend(results);
        writer.bytes
    }

    #[test]
    fn a_call_looks_as_in_the_rfc() {
        let credential = Credential { machine: "ab".into(), uid: 1, gid: 2, groups: vec![3; 20] };
        let target = Target { program: 100_003, version: 3, procedure: 6 };
        let mut call = begin_call(target, &credential.encoded()).bytes;
        end_call(&mut call, 5);
        set_xid(&mut call, 0x0102_0304);
        let words: Vec<u32> =
            call.chunks(4).map(|word| u32::from_be_bytes(word.try_into().expect("four bytes"))).collect();
        assert_eq!(words[0], 0x8000_0000 | (call.len() as u32 - 4 + 8));
        assert_eq!(words[1..9], [0x0102_0304, 0, 2, 100_003, 3, 6, 1, 4 * (6 + 16)]);
        assert_eq!(words[9..15], [0, 2, u32::from_be_bytes(*b"ab\0\0"), 1, 2, 16]);
        assert_eq!((words.len(), words[15..31].to_vec()), (33, vec![3; 16]));
        assert_eq!(words[31..], [0, 0]);
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
        for wrong in [&[1, 0][..], &[1, 1, 2], &[1, 1, 0, 0, 401], &[1, 1, 0, 0, 0, 9], &[1]] {
            assert!(why(wrong).contains("makes no sense"), "{wrong:?}");
        }
        assert_eq!(decode_reply(&accepted(7, &[1, 2])), Ok(&[1, 2][..]));
    }

    /// Results of a READ with `data` announced.
    pub(crate) fn read_results(data_bytes: u32, with_attr: bool) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(0);
        writer.u32(with_attr.into());
        if with_attr {
            let regular = [1, 0o644, 1, 0, 0].iter().flat_map(|word: &u32| word.to_be_bytes());
            writer.bytes.extend(regular);
            writer.bytes.extend([0; ATTR_BYTES - 20]);
        }
        writer.u32(data_bytes);
        writer.u32(1);
        writer.u32(data_bytes);
        writer.bytes
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
