//! Who is at the other end of a connection, and for whom it may act. It is decided once, by the handshake;
//! from then on every request is vetted by it when it is decoded ([`Session::decode`]), so that no handler
//! sees what a client merely claims.
//!
//! | proof | acts for | administers |
//! | --- | --- | --- |
//! | user key | its user, whatever a request says | no |
//! | host key | whoever a request says; root becomes the anonymous user unless the key says otherwise | if root is root |
//! | cluster key, as a client | whoever a request says | yes |
//! | Unix socket without a key: root, or the server's own user | whoever a request says | yes |
//! | Unix socket without a key: any other user | that user | no |
//! | server key | whoever a request says | yes |

use crate::answer::Refusal;
use weft_meta::SessionId;
use weft_transport::PeerInfo;
use weft_wire::keys::{KeyInfo, KeyKind};
use weft_wire::messages::{Caller, HelloRequest, acts_for};
use weft_wire::security::{Capability, CapabilityError, Holder};
use weft_wire::{Op, Request, Status, Vetting, body};

/// User and group that a squashed root becomes.
pub(crate) const ANONYMOUS: u32 = 65_534;

/// For whom a connection acts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Acts {
    /// Whoever it says.
    ForAll,
    /// Whoever it says but root.
    ForAllButRoot,
    /// This one.
    As(Caller),
}

/// See the module's header.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    acts: Acts,
    holder: Holder,
    /// The key that was shown, if one was.
    key: Option<KeyInfo>,
}

impl Identity {
    /// A server of the cluster.
    pub fn server() -> Identity {
        Identity { acts: Acts::ForAll, holder: Holder::SERVERS, key: None }
    }

    /// Whoever has proved this key.
    pub fn of_key(key: &KeyInfo) -> Identity {
        let acts = match &key.kind {
            KeyKind::User { uid, gids } => Acts::As(user(*uid, gids)),
            KeyKind::Host { squash_root: true } => Acts::ForAllButRoot,
            KeyKind::Host { squash_root: false } => Acts::ForAll,
        };
        Identity { acts, holder: Holder::of_key(&key.id), key: Some(key.clone()) }
    }

    /// The process at the other end of a Unix socket, as the kernel says; `None` over anything else.
    /// `own_uid` is the server's user.
    pub fn of_process(peer: &PeerInfo, own_uid: u32) -> Option<Identity> {
        let uid = peer.user_id?;
        let acts = match uid {
            0 => Acts::ForAll,
            uid if uid == own_uid => Acts::ForAll,
            uid => Acts::As(user(uid, &peer.group_ids)),
        };
        Some(Identity { acts, holder: Holder::of_user(uid), key: None })
    }

    /// Whom capabilities are given to, and whose session it is.
    pub fn holder(&self) -> Holder {
        self.holder
    }

    /// The key that was shown, if one was.
    pub fn key(&self) -> Option<&KeyInfo> {
        self.key.as_ref()
    }

    /// Whether it may check and repair the file system, measure servers, and list and revoke keys.
    pub fn administers(&self) -> bool {
        self.acts == Acts::ForAll
    }

    /// The users whose requests its connections may send, for status: see [`acts_for`].
    pub fn acts_for(&self) -> u8 {
        match self.acts {
            Acts::ForAll if self.holder == Holder::SERVERS => acts_for::SERVERS,
            Acts::ForAll => acts_for::ALL,
            Acts::ForAllButRoot => acts_for::ALL_BUT_ROOT,
            Acts::As(_) => acts_for::ONE_USER,
        }
    }

    /// The user that it always acts as, if there is only one.
    pub fn only_user(&self) -> Option<u32> {
        match &self.acts {
            Acts::As(caller) => Some(caller.uid),
            Acts::ForAll | Acts::ForAllButRoot => None,
        }
    }

    /// Refuses what only administrators may do.
    pub fn must_administer(&self, what: &str) -> Result<(), Refusal> {
        if self.administers() {
            return Ok(());
        }
        let text = format!(
            "only administrators may {what}: use the cluster key, a host key with --no-root-squash, or, on the server's own \
             host, be root"
        );
        Err(Refusal::new(Status::NotPermitted, text))
    }

    /// Whether a report of it is taken over that could harm files it may not write.
    pub fn is_trusted_with_sizes(&self) -> bool {
        !matches!(self.acts, Acts::As(_))
    }

    /// Vets what a request claims.
    pub fn vetting(&self) -> RequestVetting<'_> {
        RequestVetting { identity: self, stranger: false }
    }

    fn authorise(&self, caller: &mut Caller) {
        match &self.acts {
            Acts::ForAll => {}
            Acts::As(user) => caller.clone_from(user),
            Acts::ForAllButRoot => {
                caller.uid = if caller.uid == 0 { ANONYMOUS } else { caller.uid };
                caller.gid = if caller.gid == 0 { ANONYMOUS } else { caller.gid };
                caller.groups.retain(|group| *group != 0);
            }
        }
    }
}

/// Who is at the other end of a proven connection.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// What it said of itself; its session is the one that the identity makes of it.
    pub hello: HelloRequest,
    pub identity: Identity,
    /// For fair shares of buffers.
    pub client: u64,
}

impl Session {
    /// Of a connection that has proved this identity.
    pub fn new(mut hello: HelloRequest, identity: Identity) -> Session {
        hello.session = identity.holder().session(&hello.session);
        let client = u64::from_le_bytes(hello.session[..8].try_into().expect("8 of 16 bytes"));
        Session { hello, identity, client }
    }

    pub fn id(&self) -> SessionId {
        SessionId(self.hello.session)
    }

    // Fuzzed by bodies: weft-wire
    /// The body of `op`'s request, vetted: callers in it are those that this connection may act for, and
    /// capabilities its own. All requests come this way. A handler that takes another operation's has no way
    /// to be right.
    pub fn decode<T: Request>(&self, op: Op, body: &[u8]) -> Result<T, Refusal> {
        debug_assert_eq!(T::OP, op, "a handler takes the request of another operation");
        let mut request: T = body::decode_of_version(self.hello.version_max, body)?;
        if T::VETTED {
            let mut vetting = self.identity.vetting();
            request.vet(&mut vetting);
            vetting.end()?;
        }
        Ok(request)
    }
}

fn user(uid: u32, gids: &[u32]) -> Caller {
    let gid = gids.first().copied().unwrap_or(ANONYMOUS);
    Caller { uid, gid, groups: gids.get(1..).unwrap_or_default().to_vec() }
}

/// What [`weft_wire::Wire::vet`] shows a request's parts to.
pub(crate) struct RequestVetting<'a> {
    identity: &'a Identity,
    /// A capability of another's was seen.
    stranger: bool,
}

impl RequestVetting<'_> {
    /// An error where one of the capabilities was given to another.
    pub fn end(self) -> Result<(), CapabilityError> {
        if self.stranger { Err(CapabilityError::Holder) } else { Ok(()) }
    }
}

impl Vetting for RequestVetting<'_> {
    fn caller(&mut self, caller: &mut Caller) {
        self.identity.authorise(caller);
    }

    fn capability(&mut self, capability: &Capability) {
        self.stranger |= capability.holder != self.identity.holder;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_layout::Layout;
    use weft_wire::Wire;
    use weft_wire::messages::*;
    use weft_wire::security::Key;

    fn key(kind: KeyKind) -> KeyInfo {
        KeyInfo { id: [1; 16], issuer: [0; 8], kind, expires_s: 0, name: String::new() }
    }

    fn alice() -> Identity {
        Identity::of_key(&key(KeyKind::User { uid: 1000, gids: vec![100, 27] }))
    }

    fn peer(user_id: Option<u32>) -> PeerInfo {
        let (transport, address) = ("shm".into(), String::new());
        PeerInfo { transport, address, process_id: None, user_id, group_ids: vec![50, 51] }
    }

    fn vetted<T: Wire>(identity: &Identity, mut request: T) -> Result<T, CapabilityError> {
        let mut vetting = identity.vetting();
        request.vet(&mut vetting);
        vetting.end().map(|()| request)
    }

    fn as_whom(identity: &Identity, uid: u32, gid: u32, groups: &[u32]) -> (u32, u32, Vec<u32>) {
        let caller = Caller { uid, gid, groups: groups.to_vec() };
        let at = At { dir: 1, path: Vec::new() };
        let caller = vetted(identity, LookupRequest { caller, at, follow: true }).unwrap().caller;
        (caller.uid, caller.gid, caller.groups)
    }

    #[test]
    fn a_squashed_root_is_nobody_and_others_are_themselves() {
        let squashed = Identity::of_key(&key(KeyKind::Host { squash_root: true }));
        assert_eq!(as_whom(&squashed, 0, 0, &[0, 4]), (ANONYMOUS, ANONYMOUS, vec![4]));
        assert_eq!(as_whom(&squashed, 7, 0, &[0]), (7, ANONYMOUS, vec![]));
        assert_eq!(as_whom(&squashed, 7, 8, &[9]), (7, 8, vec![9]));
        assert!(!squashed.administers());
        let root = Identity::of_key(&key(KeyKind::Host { squash_root: false }));
        assert_eq!(as_whom(&root, 0, 0, &[0]), (0, 0, vec![0]));
        assert!(root.administers() && Identity::server().administers());
    }

    #[test]
    fn a_process_without_a_key_is_who_the_kernel_says() {
        assert!(Identity::of_process(&peer(None), 5).is_none());
        let other = Identity::of_process(&peer(Some(7)), 5).unwrap();
        assert_eq!(as_whom(&other, 0, 0, &[0]), (7, 50, vec![51]));
        assert!(!other.administers());
        for privileged in [0, 5] {
            let identity = Identity::of_process(&peer(Some(privileged)), 5).unwrap();
            assert_eq!(as_whom(&identity, 3, 3, &[3]), (3, 3, vec![3]));
            assert!(identity.administers());
        }
    }

    #[test]
    fn capabilities_wherever_they_are_must_be_ones_own() {
        let layout = Layout::new(65536, 0, 1, 1).unwrap();
        let of = |holder| Capability::sign(&Key([0; 32]), holder, 5, rights::WRITE, 9, layout);
        let (own, others) = (of(alice().holder()), of(Holder::of_key(&[2; 16])));
        let copy = |from: &Capability, to: &Capability| CopyRangeRequest {
            from: from.clone(),
            to: to.clone(),
            ..CopyRangeRequest::sample(&mut 0)
        };
        assert!(vetted(&alice(), copy(&own, &own)).is_ok());
        for (from, to) in [(&own, &others), (&others, &own)] {
            assert_eq!(vetted(&alice(), copy(from, to)), Err(CapabilityError::Holder));
        }
        let truncate = |held| TruncateBeginRequest { held, ..TruncateBeginRequest::sample(&mut 0) };
        assert_eq!(vetted(&alice(), truncate(Some(own))).unwrap().caller.uid, 1000);
        assert!(vetted(&alice(), truncate(Some(others))).is_err());
        assert_eq!(vetted(&alice(), truncate(None)).unwrap().caller.uid, 1000);
        // Also in what came to a message later.
        let held = Capability::sign(&Key([0; 32]), alice().holder(), 5, rights::WRITE, 9, layout);
        let write = WriteSmallRequest { capability: held, ..WriteSmallRequest::sample(&mut 0) };
        let times = vetted(&alice(), write).unwrap().times.0.expect("a sample has them");
        assert_eq!((times.caller.uid, times.caller.gid), (1000, 100));
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn the_holder_of_a_user_key_is_that_user(uid: u32, gid: u32, groups in proptest::collection::vec(any::<u32>(), 0..5)) {
            prop_assert_eq!(as_whom(&alice(), uid, gid, &groups), (1000, 100, vec![27]));
        }

        #[test]
        fn a_squashed_host_never_gets_to_be_root(uid: u32, gid: u32, groups in proptest::collection::vec(0u32..3, 0..5)) {
            let squashed = Identity::of_key(&key(KeyKind::Host { squash_root: true }));
            for (uid, gid) in [(uid, gid), (0, gid), (uid, 0)] {
                let (uid, gid, groups) = as_whom(&squashed, uid, gid, &groups);
                prop_assert!(uid != 0 && gid != 0 && !groups.contains(&0));
            }
        }
    }
}
