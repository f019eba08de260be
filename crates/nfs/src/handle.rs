//! File handles: which inode, through which export, and a proof that a gateway of this cluster made it.
//!
//! ```text
//!   offset   0         1..4        4..12       12..20    20..36
//!            version   mark        export id   inode     MAC of all before it
//! ```
//!
//! The mark is 0 unless other exports lie in the export; then it says which, and whether the inode is a directory
//! (`procedures/boundaries.rs`).
//!
//! Every gateway of a cluster makes the same handle of the same file, after every restart: the key is derived
//! from the cluster's key, an export's id from its path, and inode numbers are never used again. Since nobody
//! else can make one, whoever has a handle was led to it from the root of its export.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use nfs3_types::nfs3::nfs_fh3;
use nfs3_types::xdr_codec::Opaque;
use weft_wire::security::{Key, same_mac};

/// Bytes of a handle. RFC 1813 allows 64.
pub const HANDLE_BYTES: usize = 36;
const VERSION: u8 = 1;
const MAC_BYTES: usize = 16;
const SIGNED_BYTES: usize = HANDLE_BYTES - MAC_BYTES;

/// What a handle says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The export's id.
    pub export: u64,
    /// The inode.
    pub ino: u64,
    /// Which exports lay in the export when the handle was made.
    pub mark: Mark,
}

impl Handle {
    /// Of an inode in an export in which no others lie.
    pub fn new(export: u64, ino: u64) -> Handle {
        Handle { export, ino, mark: Mark::default() }
    }
}

/// The exports in an export, and whether an inode is a directory, in 24 bits. 0 if there are no such exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mark(u32);

impl Mark {
    const DIRECTORY: u32 = 1 << 23;

    /// Of an export in which these lie.
    pub(crate) fn of_inner(ids: &[u64]) -> Mark {
        if ids.is_empty() {
            return Mark::default();
        }
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        let text: Vec<u8> = sorted.iter().flat_map(|id| id.to_be_bytes()).collect();
        let hash = blake3::derive_key("weft 1 nfs exports in an export", &text);
        let bits = u32::from_be_bytes([0, hash[0], hash[1], hash[2]]) & !Mark::DIRECTORY;
        Mark(bits.max(1))
    }

    /// This one, of an inode.
    pub(crate) fn on(self, is_directory: bool) -> Mark {
        if is_directory && self.0 != 0 { Mark(self.0 | Mark::DIRECTORY) } else { self }
    }

    /// The mark of the exports alone.
    pub(crate) fn exports(self) -> Mark {
        Mark(self.0 & !Mark::DIRECTORY)
    }

    /// Whether it is known to be that of a directory.
    pub(crate) fn is_directory(self) -> bool {
        self.0 & Mark::DIRECTORY != 0
    }
}

/// The keys of handles: the first one makes them, all of them are accepted. Clones share them.
#[derive(Debug, Clone)]
pub struct HandleKeys(Arc<RwLock<Vec<Key>>>);

impl HandleKeys {
    /// The keys that belong to these keys of the cluster: the one that is in use first.
    ///
    /// # Panics
    /// Without any.
    pub fn of_cluster(keys: &[Key]) -> HandleKeys {
        HandleKeys(Arc::new(RwLock::new(handle_keys(keys))))
    }

    /// From now on, in all clones, those that belong to these keys of the cluster.
    ///
    /// # Panics
    /// Without any.
    pub fn replace(&self, keys: &[Key]) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = handle_keys(keys);
    }

    fn now(&self) -> RwLockReadGuard<'_, Vec<Key>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a handle.
    pub fn seal(&self, handle: Handle) -> nfs_fh3 {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&handle.mark.0.to_be_bytes());
        bytes[0] = VERSION;
        bytes[4..12].copy_from_slice(&handle.export.to_be_bytes());
        bytes[12..20].copy_from_slice(&handle.ino.to_be_bytes());
        let mac = mac_of(&self.now()[0], &bytes[..SIGNED_BYTES]);
        bytes[SIGNED_BYTES..].copy_from_slice(&mac);
        nfs_fh3 { data: Opaque::owned(bytes.to_vec()) }
    }

    /// What the bytes of a handle say; `None` if no gateway of this cluster made them.
    pub fn open(&self, bytes: &[u8]) -> Option<Handle> {
        let bytes: &[u8; HANDLE_BYTES] = bytes.try_into().ok()?;
        let mac: [u8; MAC_BYTES] = bytes[SIGNED_BYTES..].try_into().ok()?;
        let is_ours = |key: &Key| same_mac(&mac_of(key, &bytes[..SIGNED_BYTES]), &mac);
        if !self.now().iter().any(is_ours) || bytes[0] != VERSION {
            return None;
        }
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let mark = Mark(u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]));
        Some(Handle { export: number(4), ino: number(12), mark })
    }
}

fn handle_keys(keys: &[Key]) -> Vec<Key> {
    assert!(!keys.is_empty(), "a cluster has a key");
    keys.iter().map(Key::nfs_handle_key).collect()
}

fn mac_of(key: &Key, signed: &[u8]) -> [u8; MAC_BYTES] {
    blake3::keyed_hash(&key.0, signed).as_bytes()[..MAC_BYTES].try_into().expect("16 of 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: Handle = Handle { export: 0x1122_3344_5566_7788, ino: 42, mark: Mark(0) };

    fn keys(seeds: &[u8]) -> HandleKeys {
        HandleKeys::of_cluster(&seeds.iter().map(|seed| Key([*seed; 32])).collect::<Vec<_>>())
    }

    #[test]
    fn a_handle_is_the_same_on_every_gateway_and_comes_back() {
        let sealed = keys(&[1]).seal(HANDLE);
        assert_eq!(sealed, keys(&[1]).seal(HANDLE));
        assert_eq!(keys(&[1]).open(&sealed.data), Some(HANDLE));
        assert_eq!(keys(&[2, 1]).open(&sealed.data), Some(HANDLE), "the cluster's key was changed");
        assert_eq!(keys(&[2]).open(&sealed.data), None);
    }

    #[test]
    fn other_keys_count_in_all_clones() {
        let (one, old) = (keys(&[1]), keys(&[1]).seal(HANDLE));
        let clone = one.clone();
        one.replace(&[Key([2; 32]), Key([1; 32])]);
        assert_eq!(clone.seal(HANDLE), keys(&[2]).seal(HANDLE));
        assert_eq!(clone.open(&old.data), Some(HANDLE));
        one.replace(&[Key([2; 32])]);
        assert_eq!(clone.open(&old.data), None);
    }

    #[test]
    fn whoever_changes_a_bit_has_no_handle() {
        let keys = keys(&[1]);
        let sealed = keys.seal(HANDLE);
        for bit in 0..HANDLE_BYTES * 8 {
            let mut forged = sealed.data.to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(keys.open(&forged), None, "bit {bit}");
        }
        assert_eq!(keys.open(&sealed.data[..35]), None);
        assert_eq!(keys.open(&[]), None);
    }

    #[test]
    fn golden_bytes() {
        let sealed = keys(&[1]).seal(HANDLE);
        assert_eq!(sealed.data[..20], *b"\x01\0\0\0\x11\x22\x33\x44\x55\x66\x77\x88\0\0\0\0\0\0\0\x2a");
    }

    #[test]
    fn a_mark_says_which_exports_lie_inside_and_what_is_a_directory() {
        assert_eq!(
            Mark::of_inner(&[]).on(true),
            Mark::default(),
            "handles of other exports stay as they are"
        );
        let (one, two) = (Mark::of_inner(&[1]), Mark::of_inner(&[1, 2]));
        assert!(one != two && one != Mark::default());
        assert_eq!(two, Mark::of_inner(&[2, 1]), "in any order");
        assert!(one.on(true).is_directory() && !one.on(false).is_directory());
        assert_eq!(one.on(true).exports(), one);
        let handle = Handle { mark: one.on(true), ..HANDLE };
        assert_eq!(keys(&[1]).open(&keys(&[1]).seal(handle).data), Some(handle));
    }

    #[test]
    fn any_bytes_are_looked_at_without_a_panic() {
        let keys = keys(&[1]);
        let right = keys.seal(HANDLE).data.to_vec();
        weft_test_fuzz::run("nfs-handle", &[right], |bytes| {
            let _ = keys.open(bytes);
        });
    }
}
