//! Who may connect, and who may touch which file.
//!
//! Two secrets, the second made from the first, so that a client cannot make what only a server may:
//!
//! ```text
//!  cluster key ──derive──► client key        clients: mutual challenge at connect
//!       │                                    (HelloRequest, ProveRequest)
//!       ├─────────derive──► server key       servers among themselves: the same challenge
//!       └─────────derive──► capability key   the metadata server signs, I/O servers check; no client has it
//! ```
//!
//! A proof is a keyed hash over both nonces and the greeting, with a direction in it, so that it cannot be reflected or
//! replayed. A [`Capability`] says which file, with which layout and rights, until when; an I/O server checks it without asking
//! anyone.

use crate::codec::{DecodeError, Reader, Wire, Writer};
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

    /// The key that clients of the cluster with this cluster key hold.
    pub fn client_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 client connection", &self.0))
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

crate::message! {
    /// The right to touch one file's bytes.
    pub struct Capability {
        /// Which file.
        pub ino: u64,
        /// Bits of [`crate::messages::rights`].
        pub rights: u32,
        /// Until when, in seconds since 1970.
        pub expires_s: u64,
        /// How the file is striped.
        pub layout: Layout,
        /// Over all of the above.
        pub signature: [u8; 16],
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
}

impl Capability {
    /// Signs a new one with the cluster's capability key.
    pub fn sign(key: &Key, ino: u64, rights: u32, expires_s: u64, layout: Layout) -> Capability {
        let mut capability = Capability { ino, rights, expires_s, layout, signature: [0; 16] };
        capability.signature = capability.signature_by(key);
        capability
    }

    fn signature_by(&self, key: &Key) -> [u8; 16] {
        let mut out = Writer::new();
        self.put(&mut out);
        let signed = &out.as_bytes()[..out.as_bytes().len() - 16];
        let hash = blake3::keyed_hash(&key.0, signed);
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
        let good = Capability::sign(&key, 42, rights::READ, 1000, layout());
        assert_eq!(good.check(&key, 999, rights::READ), Ok(()));
        assert_eq!(good.check(&key, 1000, rights::READ), Err(CapabilityError::Expired));
        assert_eq!(good.check(&key, 999, rights::WRITE), Err(CapabilityError::Rights));
        assert_eq!(good.check(&Key([8; 32]), 999, rights::READ), Err(CapabilityError::Forged));
        for changed in [
            Capability { ino: 43, ..good.clone() },
            Capability { rights: 3, ..good.clone() },
            Capability { expires_s: 2000, ..good.clone() },
            Capability { layout: Layout::new(65536, 1, 3, 6).unwrap(), ..good.clone() },
        ] {
            assert_eq!(changed.check(&key, 999, rights::READ), Err(CapabilityError::Forged));
        }
    }

    #[test]
    fn proofs_differ_by_direction_key_and_nonce() {
        let hello = HelloRequest::sample(&mut 0);
        let (key, nonce) = (Key([1; 32]), [2; 32]);
        let base = server_proof(&key, &hello, &nonce);
        assert!(same_proof(&base, &server_proof(&key, &hello, &nonce)));
        assert!(!same_proof(&base, &client_proof(&key, &hello, &nonce)));
        assert!(!same_proof(&base, &server_proof(&key.client_key(), &hello, &nonce)));
        assert!(!same_proof(&base, &server_proof(&key, &hello, &[3; 32])));
        assert!(!same_proof(&base, &server_proof(&key, &HelloRequest::sample(&mut 9), &nonce)));
    }

    #[test]
    fn the_three_keys_differ_and_survive_text() {
        let key = Key([5; 32]);
        assert_ne!(key.client_key(), key.server_key());
        assert_ne!(key.client_key(), key.capability_key());
        assert_eq!(Key::from_hex(&format!(" {}\n", key.to_hex())), Ok(key));
        assert_eq!(Key::from_hex("abc"), Err(KeyError));
    }
}
