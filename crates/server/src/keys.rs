//! Key files of servers: `cluster.key`, the secret of the cluster, and `client.key`, the first key that is
//! issued with it.

use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use weft_wire::keys::{IssuedKey, KeyInfo, KeyKind};
use weft_wire::security::{ClusterKeys, Key};

/// Name of the file with the cluster's secret.
pub const CLUSTER_KEY_FILE: &str = "cluster.key";
/// Name of the file with the first issued key: a host's, whose root is root.
pub const CLIENT_KEY_FILE: &str = "client.key";

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read or written.
    #[error("cannot {action} the key file {path}: {reason}", path = path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// Others could read the secret.
    #[error("the key file {path} can be read by others; run: chmod 600 {path}", path = path.display())]
    Readable {
        /// Which file.
        path: PathBuf,
    },
    /// It holds something else.
    #[error("{path} does not hold a key: {reason}", path = path.display())]
    Contents {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Makes a random cluster key and writes `cluster.key` and `client.key` into `directory`, readable by the
/// owner only. Returns the cluster key.
///
/// # Errors
/// [`KeyFileError::File`], also where one of them exists: a cluster's key is never overwritten.
pub fn create_keys(directory: &Path) -> Result<Key, KeyFileError> {
    let key = random_cluster_key()?;
    write_key(&directory.join(CLUSTER_KEY_FILE), &ClusterKeys::new(key.clone(), 0).to_text())?;
    create_client_key(directory, &key)?;
    Ok(key)
}

/// A new key for a cluster.
///
/// # Errors
/// There are no random numbers.
pub fn random_cluster_key() -> Result<Key, KeyFileError> {
    Ok(Key(random_for(Path::new(CLUSTER_KEY_FILE))?))
}

/// Replaces the file of a cluster's keys as a whole, durably.
///
/// # Errors
/// [`KeyFileError::File`]: the file is as it was.
pub fn write_cluster_keys(path: &Path, keys: &ClusterKeys) -> Result<(), KeyFileError> {
    let file_error = |reason| KeyFileError::File { action: "replace", path: path.to_owned(), reason };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file_error(error)),
        _ => {}
    }
    write_key(&temporary, &keys.to_text())?;
    std::fs::rename(&temporary, path).map_err(file_error)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(file_error)
}

/// Issues the key of this host, with a root that is root, and writes it to `client.key` in `directory`.
///
/// # Errors
/// [`KeyFileError::File`], also where it exists.
pub fn create_client_key(directory: &Path, cluster_key: &Key) -> Result<(), KeyFileError> {
    let path = directory.join(CLIENT_KEY_FILE);
    let key = issue_key(cluster_key, KeyKind::Host { squash_root: false }, 0, &weft_host::name())?;
    write_key(&path, &key.to_text())
}

/// Issues a key with a random id.
///
/// # Errors
/// The name or the groups are not as they must be, or there are no random numbers.
pub fn issue_key(
    cluster_key: &Key,
    kind: KeyKind,
    expires_s: u64,
    name: &str,
) -> Result<IssuedKey, KeyFileError> {
    let id = random_for(Path::new(name))?;
    let info = KeyInfo { id, issuer: cluster_key.name(), kind, expires_s, name: name.to_owned() };
    IssuedKey::issue(cluster_key, info).map_err(|reason| KeyFileError::Contents {
        path: PathBuf::from("a new key"),
        reason: reason.to_string(),
    })
}

fn random_for<const BYTES: usize>(path: &Path) -> Result<[u8; BYTES], KeyFileError> {
    weft_host::random().map_err(|reason| KeyFileError::File {
        action: "make random bytes for",
        path: path.to_owned(),
        reason,
    })
}

fn write_key(path: &Path, text: &str) -> Result<(), KeyFileError> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    })
    .map_err(|reason| KeyFileError::File { action: "write", path: path.to_owned(), reason })
}

/// Reads the file of a cluster's keys, which only its owner can read.
///
/// # Errors
/// See [`KeyFileError`].
pub fn load_cluster_keys(path: &Path) -> Result<ClusterKeys, KeyFileError> {
    let file_error = |reason| KeyFileError::File { action: "read", path: path.to_owned(), reason };
    let mode = std::fs::metadata(path).map_err(file_error)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Readable { path: path.to_owned() });
    }
    let text = std::fs::read_to_string(path).map_err(file_error)?;
    ClusterKeys::from_text(&text)
        .map_err(|reason| KeyFileError::Contents { path: path.to_owned(), reason: reason.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_private_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let key = create_keys(directory.path()).unwrap();
        let cluster = directory.path().join(CLUSTER_KEY_FILE);
        assert_eq!(load_cluster_keys(&cluster).unwrap().in_use(), &key);
        let text = std::fs::read_to_string(directory.path().join(CLIENT_KEY_FILE)).unwrap();
        let issued = IssuedKey::from_text(&text).unwrap();
        assert_eq!(issued.info.kind, KeyKind::Host { squash_root: false });
        assert_eq!(issued.secret, issued.info.secret(&key.issuing_key()));
        assert!(matches!(create_keys(directory.path()), Err(KeyFileError::File { .. })));
        std::fs::set_permissions(&cluster, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(load_cluster_keys(&cluster).unwrap_err().to_string().contains("chmod 600"));
    }
}
