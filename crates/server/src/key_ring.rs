//! The cluster's keys as a running server has them: read at its start, and again whenever their file changes.
//!
//! ```text
//!   cluster.key ──looked at every second──► KeyRing ──► proofs of servers        the key in use; any of them is accepted
//!                                              ├──────► secrets of issued keys   the key that issued it
//!                                              ├──────► capabilities             signed with the key in use, checked with any
//!                                              └──────► VerbsKeys                knocks: any
//! ```

use crate::keys::load_cluster_keys;
use crate::log;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use weft_layout::Layout;
use weft_transport::VerbsKeys;
use weft_wire::keys::KeyInfo;
use weft_wire::limits::CLOCK_SKEW_S_MAX;
use weft_wire::security::{Capability, CapabilityError, ClusterKeyName, ClusterKeys, Holder, Key};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// See the module's header. Clones are the same.
#[derive(Clone)]
pub(crate) struct KeyRing {
    derived: Arc<RwLock<Vec<Derived>>>,
    verbs: VerbsKeys,
}

/// What is made from one cluster key.
struct Derived {
    name: ClusterKeyName,
    issuing: Key,
    server: Key,
    capability: Key,
    knock: Key,
}

impl Derived {
    fn of(key: &Key) -> Derived {
        Derived {
            name: key.name(),
            issuing: key.issuing_key(),
            server: key.server_key(),
            capability: key.capability_key(),
            knock: key.knock_key(),
        }
    }
}

impl KeyRing {
    pub fn new(keys: &ClusterKeys) -> KeyRing {
        let ring = KeyRing { derived: Arc::default(), verbs: VerbsKeys::of_cluster(keys) };
        ring.set(keys);
        ring
    }

    /// From now on these are the keys.
    pub fn set(&self, keys: &ClusterKeys) {
        *self.derived.write().unwrap_or_else(PoisonError::into_inner) = keys.all().map(Derived::of).collect();
        self.verbs.set(keys);
    }

    fn with<R>(&self, look: impl FnOnce(&[Derived]) -> R) -> R {
        look(&self.derived.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether issued keys of this one are served.
    pub fn has(&self, issuer: &ClusterKeyName) -> bool {
        self.with(|keys| keys.iter().any(|key| key.name == *issuer))
    }

    /// The secret of an issued key. Where no key here has issued it, one that its holder cannot have.
    pub fn secret_of(&self, info: &KeyInfo) -> Key {
        self.with(|keys| {
            let issuer = keys.iter().find(|key| key.name == info.issuer).unwrap_or(&keys[0]);
            info.secret(&issuer.issuing)
        })
    }

    /// What this server proves to other servers with, and then what else it accepts from them.
    pub fn server_keys(&self) -> Vec<Key> {
        self.with(|keys| keys.iter().map(|key| key.server.clone()).collect())
    }

    /// What is shown before there is an RDMA connection to another server.
    pub fn knock_key(&self) -> Key {
        self.derived.read().unwrap_or_else(PoisonError::into_inner)[0].knock.clone()
    }

    /// Signs a capability with the key in use.
    pub fn sign(&self, holder: Holder, ino: u64, rights: u32, expires_s: u64, layout: Layout) -> Capability {
        self.with(|keys| Capability::sign(&keys[0].capability, holder, ino, rights, expires_s, layout))
    }

    /// Checks a capability that any of the keys may have signed. It is accepted up to [`CLOCK_SKEW_S_MAX`] after its end.
    ///
    /// # Errors
    /// As [`Capability::check`].
    pub fn check(&self, capability: &Capability, now_s: u64, rights: u32) -> Result<(), CapabilityError> {
        let now_s = now_s.saturating_sub(CLOCK_SKEW_S_MAX);
        self.with(|keys| {
            let mut checked = Err(CapabilityError::Forged);
            for key in keys {
                checked = capability.check(&key.capability, now_s, rights);
                if checked != Err(CapabilityError::Forged) {
                    break;
                }
            }
            checked
        })
    }

    /// For listening with RDMA; follows changes.
    pub fn verbs_keys(&self) -> VerbsKeys {
        self.verbs.clone()
    }
}

/// The file of the cluster's keys, to be looked at again.
pub(crate) struct KeyFile {
    path: PathBuf,
    seen: Option<Version>,
}

/// What changes with a file's contents.
type Version = (SystemTime, u64, u64);

fn version_of(path: &Path) -> Option<Version> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

impl KeyFile {
    /// It was not read yet, or what was read may be old.
    pub fn new(path: PathBuf) -> KeyFile {
        KeyFile { path, seen: None }
    }

    /// What is in it, if it has changed since the last look.
    fn look(&mut self) -> Option<Result<ClusterKeys, String>> {
        let version = version_of(&self.path);
        if version.is_none() || version == self.seen {
            return None;
        }
        self.seen = version;
        Some(load_cluster_keys(&self.path).map_err(|error| error.to_string()))
    }
}

/// Has `ring` follow the file, as long as the reactor runs. A file that cannot be used changes nothing.
pub(crate) async fn follow(mut file: KeyFile, ring: KeyRing, mut keys: ClusterKeys, server: String) {
    loop {
        weft_reactor::sleep(LOOK).await;
        match file.look() {
            None => {}
            Some(Ok(new)) if new == keys => {}
            Some(Ok(new)) => {
                ring.set(&new);
                log::info!(&server, "{}", told_of_change(&keys, &new));
                keys = new;
            }
            Some(Err(error)) => {
                log::warning!(&server, "goes on with the cluster's keys that it has: {error}");
            }
        }
    }
}

fn told_of_change(old: &ClusterKeys, new: &ClusterKeys) -> String {
    let others = match new.other() {
        Some(_) => "and accepts another one besides it",
        None => "and accepts no other",
    };
    let verb = if old.in_use() == new.in_use() {
        "goes on with the cluster key in use"
    } else {
        "uses another cluster key"
    };
    format!("{verb}, {others}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::keys::{IssuedKey, KeyKind};
    use weft_wire::messages::rights;

    fn keys(text: &str) -> ClusterKeys {
        let mut all = text.bytes().map(|byte| Key([byte; 32]));
        let in_use = ClusterKeys::new(all.next().unwrap(), 0);
        all.fold(in_use, |keys, key| keys.with(key).unwrap())
    }

    fn capability(ring: &KeyRing) -> Capability {
        ring.sign(Holder::SERVERS, 5, rights::READ, 100, Layout::new(65536, 0, 1, 1).unwrap())
    }

    #[test]
    fn capabilities_of_any_key_are_good_and_of_a_dropped_one_are_forged() {
        let (old, both) = (KeyRing::new(&keys("a")), KeyRing::new(&keys("ab")));
        let (switched, last) = (KeyRing::new(&keys("ba")), KeyRing::new(&keys("b")));
        for (signer, checkers) in [
            (&old, vec![&old, &both, &switched]),
            (&both, vec![&old, &both, &switched]),
            (&switched, vec![&both, &switched, &last]),
        ] {
            for ring in checkers {
                assert_eq!(ring.check(&capability(signer), 1, rights::READ), Ok(()));
                let (good, ended) = (CLOCK_SKEW_S_MAX + 1, CLOCK_SKEW_S_MAX + 100);
                assert_eq!(ring.check(&capability(signer), good, rights::READ), Ok(()));
                assert_eq!(
                    ring.check(&capability(signer), ended, rights::READ),
                    Err(CapabilityError::Expired)
                );
                assert_eq!(ring.check(&capability(signer), 1, rights::WRITE), Err(CapabilityError::Rights));
            }
        }
        assert_eq!(last.check(&capability(&old), 1, rights::READ), Err(CapabilityError::Forged));
        assert_eq!(old.check(&capability(&switched), 1, rights::READ), Err(CapabilityError::Forged));
    }

    #[test]
    fn issued_keys_are_good_as_long_as_their_issuer_is_there() {
        let issued = |key: u8| {
            let info = KeyInfo {
                id: [1; 16],
                issuer: [0; 8],
                kind: KeyKind::Host { squash_root: true },
                expires_s: 0,
                name: String::new(),
            };
            IssuedKey::issue(&Key([key; 32]), info).unwrap()
        };
        let (of_a, of_b) = (issued(b'a'), issued(b'b'));
        let ring = KeyRing::new(&keys("ab"));
        for key in [&of_a, &of_b] {
            assert!(ring.has(&key.info.issuer));
            assert_eq!(ring.secret_of(&key.info), key.secret);
        }
        ring.set(&keys("b"));
        assert!(!ring.has(&of_a.info.issuer) && ring.has(&of_b.info.issuer));
        assert_ne!(ring.secret_of(&of_a.info), of_a.secret);
        assert_eq!(ring.server_keys(), [Key([b'b'; 32]).server_key()]);
    }

    #[test]
    fn a_file_is_read_when_it_has_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.key");
        crate::keys::write_cluster_keys(&path, &keys("a")).unwrap();
        let mut file = KeyFile::new(path.clone());
        assert_eq!(file.look(), Some(Ok(keys("a"))));
        assert_eq!(file.look(), None);
        crate::keys::write_cluster_keys(&path, &keys("ab")).unwrap();
        assert_eq!(file.look(), Some(Ok(keys("ab"))));
        std::fs::write(&path, "half a ke").unwrap();
        assert!(file.look().unwrap().unwrap_err().contains("cluster key"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.look(), None, "a file that is gone for a moment is none of our business");
    }
}
