//! Keys, and the keys that are derived from them.

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
    /// The key of zeros, which everybody knows. It proves nothing.
    pub const ZERO: Key = Key([0; 32]);

    /// Parses the 64 hexadecimal digits of a key file. White space around them is ignored.
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

    /// The 64 hexadecimal digits for a key file.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key that computes the secrets of issued keys ([`crate::keys`]).
    pub fn issuing_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 issued keys", &self.0))
    }

    /// A key that all clients have besides their own. It only protects a server from creating the queues of
    /// RDMA connections for strangers.
    pub fn knock_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 knock", &self.0))
    }

    /// The key that servers prove to each other.
    pub fn server_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 server connection", &self.0))
    }

    /// The key that signs the file handles of NFS gateways.
    pub fn nfs_handle_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 nfs file handle", &self.0))
    }

    /// The key that signs capabilities.
    pub fn capability_key(&self) -> Key {
        Key(blake3::derive_key("weft 1 capability", &self.0))
    }
}

/// A name for a cluster key, which issued keys contain. It reveals nothing of the key.
pub type ClusterKeyName = [u8; 8];

impl Key {
    /// See [`ClusterKeyName`].
    pub fn name(&self) -> ClusterKeyName {
        let hash = blake3::derive_key("weft 1 name of a cluster key", &self.0);
        hash[..8].try_into().expect("8 of 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_derived_keys_differ_and_a_key_survives_text() {
        let key = Key([5; 32]);
        let derived = [
            key.issuing_key(),
            key.knock_key(),
            key.server_key(),
            key.nfs_handle_key(),
            key.capability_key(),
            key.clone(),
        ];
        for (at, one) in derived.iter().enumerate() {
            assert!(derived[at + 1..].iter().all(|other| other != one));
        }
        assert_eq!(Key::from_hex(&format!(" {}\n", key.to_hex())), Ok(key));
        assert_eq!(Key::from_hex("abc"), Err(KeyError));
    }
}
