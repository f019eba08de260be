//! Who calls (RFC 5531, 8.2 and 14; AUTH_SYS is in appendix A).

use crate::xdr::{Reader, Writer, XdrError};

/// Bytes of the body of a credential or verifier (RFC 5531, 8.2).
pub const BODY_BYTES_MAX: usize = 400;
/// Groups that AUTH_SYS can tell.
pub const GROUPS_MAX: usize = 16;
/// Bytes of a machine's name in it.
pub const MACHINE_BYTES_MAX: usize = 255;

const NONE: u32 = 0;
const SYS: u32 = 1;

/// Why a credential does not do (RFC 5531, 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AuthStat {
    /// It is malformed.
    BadCredential = 1,
    /// The caller must begin anew; here: its flavour is not known.
    RejectedCredential = 2,
    /// The verifier is malformed.
    BadVerifier = 3,
    /// The verifier has expired, or was used before.
    RejectedVerifier = 4,
    /// The flavour is too weak for the call.
    TooWeak = 5,
    /// Any other reason.
    Failed = 7,
    /// Kerberos is wanted (RPCSEC_GSS_CREDPROBLEM, RFC 2203).
    Kerberos = 13,
}

impl AuthStat {
    /// From the wire; what is not known is [`AuthStat::Failed`].
    pub fn of(number: u32) -> AuthStat {
        use AuthStat::*;
        let known = [BadCredential, RejectedCredential, BadVerifier, RejectedVerifier, TooWeak, Kerberos];
        known.into_iter().find(|stat| *stat as u32 == number).unwrap_or(Failed)
    }
}

/// What a call says of who makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// Nothing.
    None,
    /// Numbers of a user and groups, which the client's host vouches for.
    Sys(AuthSys),
}

/// The body of AUTH_SYS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthSys {
    /// An arbitrary number of the client.
    pub stamp: u32,
    /// The client's host; of its name at most [`MACHINE_BYTES_MAX`] are sent.
    pub machine: Vec<u8>,
    /// Its user.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// Further groups, of which the first [`GROUPS_MAX`] are sent.
    pub groups: Vec<u32>,
}

impl Credential {
    /// Takes a credential with its flavour.
    ///
    /// # Errors
    /// [`XdrError`] where it is no `opaque_auth`; in the inner result, what the caller is answered.
    pub fn read(reader: &mut Reader<'_>) -> Result<Result<Credential, AuthStat>, XdrError> {
        let flavour = reader.u32()?;
        let body = reader.opaque(BODY_BYTES_MAX)?;
        Ok(match flavour {
            NONE => Ok(Credential::None),
            SYS => AuthSys::read(body).map(Credential::Sys).map_err(|_| AuthStat::BadCredential),
            _ => Err(AuthStat::RejectedCredential),
        })
    }

    /// With its flavour.
    pub fn write(&self, writer: Writer) -> Writer {
        match self {
            Credential::None => writer.u32(NONE).u32(0),
            Credential::Sys(sys) => writer.u32(SYS).opaque(&sys.to_bytes()),
        }
    }
}

impl AuthSys {
    fn read(body: &[u8]) -> Result<AuthSys, XdrError> {
        let mut reader = Reader::new(body);
        let stamp = reader.u32()?;
        let machine = reader.opaque(MACHINE_BYTES_MAX)?.to_vec();
        let (uid, gid, count) = (reader.u32()?, reader.u32()?, reader.u32()? as usize);
        if count > GROUPS_MAX {
            return Err(XdrError::Wrong);
        }
        let groups = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
        Ok(AuthSys { stamp, machine, uid, gid, groups })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let machine = &self.machine[..self.machine.len().min(MACHINE_BYTES_MAX)];
        let groups = &self.groups[..self.groups.len().min(GROUPS_MAX)];
        let writer = Writer::new().u32(self.stamp).opaque(machine).u32(self.uid).u32(self.gid);
        let writer = writer.u32(groups.len() as u32);
        groups.iter().fold(writer, |writer, group| writer.u32(*group)).into_bytes()
    }
}
