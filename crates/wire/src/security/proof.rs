//! Proofs that a peer knows a key, and comparisons of them.

use super::key::Key;

fn proof(key: &Key, direction: &[u8], hello: &[u8], server_nonce: &[u8; 32]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new_keyed(&key.0);
    hash.update(direction).update(server_nonce).update(hello);
    *hash.finalize().as_bytes()
}

/// The server's proof, in reply to a `HelloRequest` with the body `hello`.
pub fn server_proof(key: &Key, hello: &[u8], server_nonce: &[u8; 32]) -> [u8; 32] {
    proof(key, b"server", hello, server_nonce)
}

/// The client's proof, in reply to the server's nonce. `hello` is the body of its `HelloRequest`.
pub fn client_proof(key: &Key, hello: &[u8], server_nonce: &[u8; 32]) -> [u8; 32] {
    proof(key, b"client", hello, server_nonce)
}

/// Shows, in a request for an RDMA connection, that the peer knows the key: a keyed hash over the connection
/// data, with a direction. It does not protect against replays, and only avoids creating queues for
/// strangers. Greeting and proof follow as on every connection.
pub fn connect_mac(key: &Key, direction: &[u8], said: &[&[u8]]) -> [u8; 16] {
    let mut hash = blake3::Hasher::new_keyed(&key.0);
    hash.update(b"rdma ").update(direction);
    for part in said {
        hash.update(part);
    }
    hash.finalize().as_bytes()[..16].try_into().expect("16 of 32 bytes")
}

/// A public name for a session. The id itself is secret, since whoever knows it could claim the session.
pub fn session_name(session: &[u8; 16]) -> [u8; 16] {
    let hash = blake3::derive_key("weft 1 name of a session", session);
    hash[..16].try_into().expect("16 of 32 bytes")
}

/// Compares two such hashes, in constant time.
pub fn same_mac(a: &[u8; 16], b: &[u8; 16]) -> bool {
    let widen = |half: &[u8; 16]| {
        let mut whole = [0u8; 32];
        whole[..16].copy_from_slice(half);
        whole
    };
    same_proof(&widen(a), &widen(b))
}

/// Compares two proofs, in constant time.
pub fn same_proof(a: &[u8; 32], b: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wire;
    use crate::messages::HelloRequest;

    #[test]
    fn proofs_differ_by_direction_key_and_nonce() {
        let hello = HelloRequest::sample(&mut 0).to_bytes();
        let (key, nonce) = (Key([1; 32]), [2; 32]);
        let base = server_proof(&key, &hello, &nonce);
        assert!(same_proof(&base, &server_proof(&key, &hello, &nonce)));
        assert!(!same_proof(&base, &client_proof(&key, &hello, &nonce)));
        assert!(!same_proof(&base, &server_proof(&key.server_key(), &hello, &nonce)));
        assert!(!same_proof(&base, &server_proof(&key, &hello, &[3; 32])));
        assert!(!same_proof(&base, &server_proof(&key, &HelloRequest::sample(&mut 9).to_bytes(), &nonce)));
    }
}
