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

impl Caller {
    /// Whether it is a member of the group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// The mode of a file after this caller, who is not root, has changed its contents. Set-user-id falls, and so does set-group-id
    /// where the group may execute, or the caller is not of the file's group: for members, the bit without execution means
    /// mandatory locking, and stays. (Linux, setattr_should_drop_suidgid.)
    pub fn mode_after_change(&self, mode: u32, gid: u32) -> u32 {
        let keeps_group_bit = mode & 0o010 == 0 && self.in_group(gid);
        mode & !if keeps_group_bit { 0o4000 } else { 0o6000 }
    }
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

    #[test]
    fn an_id_of_a_session_means_another_session_to_every_holder() {
        let (alice, bob) = (Holder::of_key(&[1; 16]), Holder::of_key(&[2; 16]));
        assert_eq!(alice.session(&[7; 16]), alice.session(&[7; 16]));
        assert_ne!(alice.session(&[7; 16]), bob.session(&[7; 16]));
        assert_ne!(alice.session(&[7; 16]), alice.session(&[8; 16]));
        assert_ne!(alice.session(&[7; 16]), [7; 16], "the id itself is told to nobody");
        assert_ne!(Holder::of_user(0), Holder::SERVERS);
    }

    #[test]
    fn set_id_bits_fall_but_the_one_for_mandatory_locking_by_members() {
        let caller = Caller { uid: 9, gid: 5, groups: vec![6, 7] };
        for member_of in [5, 7] {
            assert_eq!(caller.mode_after_change(0o6755, member_of), 0o755);
            assert_eq!(caller.mode_after_change(0o6745, member_of), 0o2745);
            assert_eq!(caller.mode_after_change(0o2666, member_of), 0o2666);
        }
        assert_eq!(caller.mode_after_change(0o2666, 8), 0o666);
        assert_eq!(caller.mode_after_change(0o1644, 8), 0o1644);
    }
}
