//! What a request claims about its sender: on whose behalf it comes, and what it is allowed to do.
//!
//! ```text
//!  request ──decode──► vet ──► Vetting::caller      replaced by whom the connection may act for
//!                        └───► Vetting::capability  refused unless the connection is its holder's
//! ```
//!
//! How a capability is signed and checked is in [`crate::security`].

use weft_layout::Layout;

/// Checks what a request claims about its sender. A server vets every request when it decodes it. So no
/// handler sees a caller or a capability that the connection is not entitled to.
pub trait Vetting {
    /// Replaces `caller` by a caller that the sender may act for.
    fn caller(&mut self, caller: &mut Caller);
    /// Checks that `capability` was given to the sender.
    fn capability(&mut self, capability: &Capability);
}

/// The user that a request is made for. The server replaces what the client claims by what the client's key
/// allows ([`Vetting`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Signed permission to access one file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The file.
    pub ino: u64,
    /// Bits of [`crate::messages::rights`], whether quotas hold, and the end to which writes are bound: see
    /// [`Capability::write_bound`].
    pub rights: u32,
    /// Expiry, in seconds since 1970.
    pub expires_s: u64,
    /// The holder; it is of no use to anybody else.
    pub holder: Holder,
    /// How the file is striped.
    pub layout: Layout,
    /// The signature of all of the above.
    pub signature: [u8; 16],
}

/// Bits of [`Capability::rights`] beside the rights themselves. Servers of before quotas ignore them.
///
/// ```text
///   31 … 14              13 … 8             7         6        1 0
///   mantissa, 18 bits    exponent, 6 bits   bounded   exempt   rights
/// ```
const BOUNDED: u32 = 1 << 7;
const EXEMPT: u32 = 1 << 6;
const EXPONENT_SHIFT: u32 = 8;
const MANTISSA_SHIFT: u32 = 14;
const MANTISSA_BITS: u32 = u32::BITS - MANTISSA_SHIFT;

/// What of [`Capability::rights`] binds a writer to a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBound {
    /// The file counts for nobody who has a limit.
    None,
    /// Whoever opened it is not held to limits.
    Exempt,
    /// Bytes are written below this end only. More are allowed by [`Reserve`](crate::Op::Reserve).
    End(u64),
}

impl WriteBound {
    /// The bits for `rights`. An end is rounded down to 18 significant bits.
    pub fn bits(self) -> u32 {
        match self {
            WriteBound::None => 0,
            WriteBound::Exempt => EXEMPT,
            WriteBound::End(end) => {
                let exponent = (u64::BITS - end.leading_zeros()).saturating_sub(MANTISSA_BITS);
                BOUNDED | exponent << EXPONENT_SHIFT | ((end >> exponent) as u32) << MANTISSA_SHIFT
            }
        }
    }
}

impl Capability {
    /// The rights themselves, bits of [`crate::messages::rights`].
    pub fn access(&self) -> u32 {
        self.rights & (crate::messages::rights::READ | crate::messages::rights::WRITE)
    }

    /// How far its holder may extend the file.
    pub fn write_bound(&self) -> WriteBound {
        if self.rights & BOUNDED != 0 {
            let exponent = self.rights >> EXPONENT_SHIFT & 63;
            WriteBound::End(
                u64::from(self.rights >> MANTISSA_SHIFT).checked_shl(exponent).unwrap_or(u64::MAX),
            )
        } else if self.rights & EXEMPT != 0 {
            WriteBound::Exempt
        } else {
            WriteBound::None
        }
    }

    /// Whether bytes below `end` may be written.
    pub fn allows_end(&self, end: u64) -> bool {
        match self.write_bound() {
            WriteBound::End(bound) => end <= bound,
            WriteBound::None | WriteBound::Exempt => true,
        }
    }
}

/// The holder of a capability: a key, or a user of the servers' own host without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(pub [u8; 8]);

impl Holder {
    /// Servers of the cluster.
    pub const SERVERS: Holder = Holder([0; 8]);

    /// The holders of the issued key with this id.
    pub fn of_key(id: &[u8; 16]) -> Holder {
        Holder::derived("weft 1 holder: key", id)
    }

    /// Processes of this user, over a Unix socket and without a key.
    pub fn of_user(uid: u32) -> Holder {
        Holder::derived("weft 1 holder: user", &uid.to_le_bytes())
    }

    fn derived(context: &str, who: &[u8]) -> Holder {
        Holder(blake3::derive_key(context, who)[..8].try_into().expect("8 of 32 bytes"))
    }

    /// The session that `id` means for this holder. The same id of another holder is another session, so
    /// knowing an id does not give access to the session.
    pub fn session(&self, id: &[u8; 16]) -> [u8; 16] {
        let named = blake3::derive_key("weft 1 session", &[&self.0[..], id].concat());
        named[..16].try_into().expect("16 of 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::rights;

    #[test]
    fn a_bound_lies_beside_the_rights_and_is_never_beyond_what_was_given() {
        let with = |bound: WriteBound| {
            let rights = rights::WRITE | bound.bits();
            Capability { rights, ..crate::Wire::sample(&mut 0) }
        };
        for end in [0, 1, 4096, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 12_345_678_901, i64::MAX as u64] {
            let capability = with(WriteBound::End(end));
            let WriteBound::End(bound) = capability.write_bound() else { panic!("{end}") };
            assert!(bound <= end && end - bound <= end >> 17, "{end}: {bound}");
            assert_eq!(with(WriteBound::End(bound)).write_bound(), WriteBound::End(bound));
            assert!(capability.allows_end(bound) && !capability.allows_end(bound + 1));
            assert_eq!(capability.access(), rights::WRITE);
        }
        for bound in [WriteBound::None, WriteBound::Exempt] {
            assert_eq!(with(bound).write_bound(), bound);
            assert!(with(bound).allows_end(u64::MAX));
        }
        // Whatever bits there are, nothing overflows.
        assert_eq!(
            Capability { rights: u32::MAX, ..with(WriteBound::None) }.write_bound(),
            WriteBound::End(u64::from(u32::MAX >> MANTISSA_SHIFT) << 63)
        );
    }

    #[test]
    fn an_id_of_a_session_means_another_session_to_every_holder() {
        let (alice, bob) = (Holder::of_key(&[1; 16]), Holder::of_key(&[2; 16]));
        assert_eq!(alice.session(&[7; 16]), alice.session(&[7; 16]));
        assert_ne!(alice.session(&[7; 16]), bob.session(&[7; 16]));
        assert_ne!(alice.session(&[7; 16]), alice.session(&[8; 16]));
        assert_ne!(alice.session(&[7; 16]), [7; 16], "the id itself is told to nobody");
        assert_ne!(Holder::of_user(0), Holder::SERVERS);
    }
}
