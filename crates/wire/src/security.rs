//! Who may connect, and who may touch which file.
//!
//! One secret, the cluster key, which only servers have. All others are made from it, each in one direction:
//!
//! ```text
//!  cluster key ──derive──► issuing key ──hash over the public part──► secret of each issued key (keys.rs)
//!       │                                  clients: mutual challenge at connect (HelloRequest, ProveRequest)
//!       ├─────────derive──► server key       servers among themselves: the same challenge
//!       ├─────────derive──► capability key   the metadata server signs, I/O servers check; no client has it
//!       └─────────derive──► knock key        in every issued key; before an RDMA connection gets queues
//! ```
//!
//! A proof is a keyed hash over both nonces and the greeting, with a direction in it, so that it cannot be reflected or
//! replayed. A [`Capability`] says which file, with which layout and rights, until when and for whom; an I/O server checks it without
//! asking anyone.

use crate::codec::{DecodeError, Reader, Vetting, Wire, Writer};
use crate::messages::HelloRequest;
use weft_layout::Layout;

/// A 256-bit key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Why a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key is 64 hexadecimal digits")]
pub struct KeyError;

impl Key {
    /// Known to all: what is made with it proves nothing.
    pub const ZERO: Key = Key([0; 32]);

    /// From the 64 hexadecimal digits of a key file (white space around them is ignored).
    pub fn from_hex(text: &str) -> Result<Key, KeyError> {
        let text = text.trim();
        if text.len() != 64 || !text.is_ascii() {
            return Err(KeyError);
        }
        let mut key = [0u8; 32];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| KeyError)?;
        }
        Ok(Key(key))
    }

    /// For a key file.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key that makes the secrets of issued keys ([`crate::keys`]).
    pub fn issuing_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 issued keys", &self.0))
    }

    /// The key that all clients have besides their own. It only spares a server the queues of an RDMA connection to strangers.
    pub fn knock_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 knock", &self.0))
    }

    /// The key that servers prove to each other.
    pub fn server_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 server connection", &self.0))
    }

    /// The key that signs capabilities.
    pub fn capability_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 capability", &self.0))
    }
}

fn proof(key: &Key, direction: &[u8], hello: &HelloRequest, server_nonce: &[u8; 32]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new_keyed(&key.0);
    hash.update(direction).update(server_nonce).update(&hello.to_bytes());
    *hash.finalize().as_bytes()
}

/// What a server answers to `hello`.
pub fn server_proof(key: &Key, hello: &HelloRequest, server_nonce: &[u8; 32]) -> [u8; 32] {
    proof(key, b"server", hello, server_nonce)
}

/// What a client answers to the server's nonce.
pub fn client_proof(key: &Key, hello: &HelloRequest, server_nonce: &[u8; 32]) -> [u8; 32] {
    proof(key, b"client", hello, server_nonce)
}

/// Shows, when an RDMA connection is asked for, that the peer knows the key: a keyed hash over what is said with it, with the
/// direction in it. It is no proof against a replay and only spares a server from making queues for strangers: greeting and
/// proof follow as on every connection.
pub fn connect_mac(key: &Key, direction: &[u8], said: &[&[u8]]) -> [u8; 16] {
    let mut hash = blake3::Hasher::new_keyed(&key.0);
    hash.update(b"rdma ").update(direction);
    for part in said {
        hash.update(part);
    }
    hash.finalize().as_bytes()[..16].try_into().expect("16 of 32 bytes")
}

/// A name for a session that may be shown: who knows the id of a session can say that he is it, so that is never told.
pub fn session_name(session: &[u8; 16]) -> [u8; 16] {
    let hash = blake3::derive_key("weft 1 name of a session", session);
    hash[..16].try_into().expect("16 of 32 bytes")
}

/// Compares two of them in a time that does not depend on where they differ.
pub fn same_mac(a: &[u8; 16], b: &[u8; 16]) -> bool {
    let widen = |half: &[u8; 16]| {
        let mut whole = [0u8; 32];
        whole[..16].copy_from_slice(half);
        whole
    };
    same_proof(&widen(a), &widen(b))
}

/// Compares two proofs in a time that does not depend on where they differ.
pub fn same_proof(a: &[u8; 32], b: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

/// The right to touch one file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Which file.
    pub ino: u64,
    /// Bits of [`crate::messages::rights`].
    pub rights: u32,
    /// Until when, in seconds since 1970.
    pub expires_s: u64,
    /// Who it was given to; of no use to anybody else.
    pub holder: Holder,
    /// How the file is striped.
    pub layout: Layout,
    /// Over all of the above.
    pub signature: [u8; 16],
}

impl Wire for Capability {
    const BYTES_MIN: usize = 54;
    fn put(&self, out: &mut Writer) {
        self.put_signed(out);
        self.signature.put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Capability {
            ino: u64::get(input)?,
            rights: u32::get(input)?,
            expires_s: u64::get(input)?,
            holder: Holder(Wire::get(input)?),
            layout: Layout::get(input)?,
            signature: Wire::get(input)?,
        })
    }
    fn sample(seed: &mut u64) -> Self {
        Capability {
            ino: u64::sample(seed),
            rights: u32::sample(seed),
            expires_s: u64::sample(seed),
            holder: Holder(Wire::sample(seed)),
            layout: Layout::sample(seed),
            signature: Wire::sample(seed),
        }
    }
    const VETTED: bool = true;
    fn vet(&mut self, vetting: &mut dyn Vetting) {
        vetting.capability(self);
    }
}

/// Whom a capability is for: a key, or a user of the servers' own host who has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder(pub [u8; 8]);

impl Holder {
    /// Servers of the cluster.
    pub const SERVERS: Holder = Holder([0; 8]);

    /// Whoever has the issued key of this id.
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

    /// The session that a client of this holder means by `id`. The same id of another holder is another session, so that
    /// knowing an id gives nobody the session.
    pub fn session(&self, id: &[u8; 16]) -> [u8; 16] {
        let named = blake3::derive_key("weft 1 session", &[&self.0[..], id].concat());
        named[..16].try_into().expect("16 of 32 bytes")
    }
}

/// Why a capability does not allow something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CapabilityError {
    /// The signature is not the metadata server's.
    #[error("its signature is wrong")]
    Forged,
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// It is for something else.
    #[error("it does not give the right that this needs")]
    Rights,
    /// It was given to another.
    #[error("it was given to the holder of another key")]
    Holder,
}

impl Capability {
    /// Signs a new one with the cluster's capability key.
    pub fn sign(
        key: &Key,
        holder: Holder,
        ino: u64,
        rights: u32,
        expires_s: u64,
        layout: Layout,
    ) -> Capability {
        let mut capability = Capability { ino, rights, expires_s, holder, layout, signature: [0; 16] };
        capability.signature = capability.signature_by(key);
        capability
    }

    fn put_signed(&self, out: &mut Writer) {
        self.ino.put(out);
        self.rights.put(out);
        self.expires_s.put(out);
        self.holder.0.put(out);
        self.layout.put(out);
    }

    fn signature_by(&self, key: &Key) -> [u8; 16] {
        let mut out = Writer::new();
        self.put_signed(&mut out);
        let hash = blake3::keyed_hash(&key.0, out.as_bytes());
        hash.as_bytes()[..16].try_into().expect("16 of 32 bytes")
    }

    /// Whether it is genuine, alive at `now_s` and gives all of `rights`.
    pub fn check(&self, key: &Key, now_s: u64, rights: u32) -> Result<(), CapabilityError> {
        if !same_mac(&self.signature, &self.signature_by(key)) {
            return Err(CapabilityError::Forged);
        }
        if now_s >= self.expires_s {
            return Err(CapabilityError::Expired);
        }
        if self.rights & rights != rights {
            return Err(CapabilityError::Rights);
        }
        Ok(())
    }
}

impl Wire for Layout {
    const BYTES_MIN: usize = 10;
    fn put(&self, out: &mut Writer) {
        self.strip_bytes().put(out);
        self.first_server().put(out);
        self.server_count().put(out);
        self.ring_servers().put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (strip_bytes, first_server) = (u32::get(input)?, u16::get(input)?);
        let (server_count, ring_servers) = (u16::get(input)?, u16::get(input)?);
        Layout::new(strip_bytes, first_server, server_count, ring_servers)
            .map_err(|_| DecodeError::Value("a layout that cannot be"))
    }
    fn sample(_seed: &mut u64) -> Self {
        Layout::new(65536, 2, 3, 6).expect("the paper's example (PVFS table 1)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::rights;

    fn layout() -> Layout {
        Layout::sample(&mut 0)
    }

    #[test]
    fn a_capability_covers_what_it_says_and_nothing_else() {
        let key = Key([7; 32]).capability_key();
        let good = Capability::sign(&key, Holder([5; 8]), 42, rights::READ, 1000, layout());
        assert_eq!(good.check(&key, 999, rights::READ), Ok(()));
        assert_eq!(good.check(&key, 1000, rights::READ), Err(CapabilityError::Expired));
        assert_eq!(good.check(&key, 999, rights::WRITE), Err(CapabilityError::Rights));
        assert_eq!(good.check(&Key([8; 32]), 999, rights::READ), Err(CapabilityError::Forged));
        for changed in [
            Capability { ino: 43, ..good.clone() },
            Capability { rights: 3, ..good.clone() },
            Capability { expires_s: 2000, ..good.clone() },
            Capability { holder: Holder([6; 8]), ..good.clone() },
            Capability { layout: Layout::new(65536, 1, 3, 6).unwrap(), ..good.clone() },
        ] {
            assert_eq!(changed.check(&key, 999, rights::READ), Err(CapabilityError::Forged));
        }
    }

    #[test]
    fn a_capability_fits_a_file_handle() {
        // NFSv3 handles have 64 bytes, of which a gateway needs 8 for itself.
        assert_eq!(Capability::sample(&mut 0).to_bytes().len(), Capability::BYTES_MIN);
        const { assert!(Capability::BYTES_MIN <= 56) };
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

    #[test]
    fn proofs_differ_by_direction_key_and_nonce() {
        let hello = HelloRequest::sample(&mut 0);
        let (key, nonce) = (Key([1; 32]), [2; 32]);
        let base = server_proof(&key, &hello, &nonce);
        assert!(same_proof(&base, &server_proof(&key, &hello, &nonce)));
        assert!(!same_proof(&base, &client_proof(&key, &hello, &nonce)));
        assert!(!same_proof(&base, &server_proof(&key.server_key(), &hello, &nonce)));
        assert!(!same_proof(&base, &server_proof(&key, &hello, &[3; 32])));
        assert!(!same_proof(&base, &server_proof(&key, &HelloRequest::sample(&mut 9), &nonce)));
    }

    #[test]
    fn the_derived_keys_differ_and_a_key_survives_text() {
        let key = Key([5; 32]);
        let derived =
            [key.issuing_key(), key.knock_key(), key.server_key(), key.capability_key(), key.clone()];
        for (at, one) in derived.iter().enumerate() {
            assert!(derived[at + 1..].iter().all(|other| other != one));
        }
        assert_eq!(Key::from_hex(&format!(" {}\n", key.to_hex())), Ok(key));
        assert_eq!(Key::from_hex("abc"), Err(KeyError));
    }
}
