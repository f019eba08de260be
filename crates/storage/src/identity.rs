//! Whose storage a directory is: the file `weft-storage`.
//!
//! It is four lines, written once, by rename:
//!
//! ```text
//!   weft-storage 2
//!   cluster 00112233445566778899aabbccddeeff
//!   server 2
//!   storage 5f3a9c41d2e8b7060a1b2c3d4e5f6071
//! ```
//!
//! The first gives the format version (version 1 had no last line; it gets one when it is opened). The last is random,
//! made with the storage. A server refuses a directory that says anything else than it expects, so that a wrong path
//! in a configuration cannot mix the data of two servers.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::StorageError;
use crate::state::{RandomId, StateFile, from_hex, hex};

/// The version of the format of a storage directory.
pub const FORMAT_VERSION: u32 = 2;

pub(crate) const IDENTITY_FILE: &str = "weft-storage";
pub(crate) const IDENTITY_NEW: &str = "weft-storage.new";

/// Whose storage a directory is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The server's index in the cluster's ring of I/O servers.
    pub server_id: u16,
}

impl Identity {
    /// The lines that say whose it is, in a format version.
    fn lines(&self, version: u32) -> [String; 3] {
        let server = format!("server {}", self.server_id);
        [format!("weft-storage {version}"), format!("cluster {}", hex(&self.cluster_id)), server]
    }

    pub(crate) fn text(&self, storage: &RandomId) -> String {
        self.lines(FORMAT_VERSION).join("\n") + &format!("\nstorage {}\n", hex(storage))
    }
}

/// The error for a directory without a storage.
pub(crate) fn no_storage(path: &Path) -> StorageError {
    let found = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => "there is no such directory".to_string(),
        Err(error) => format!("it cannot be listed: {error}"),
        Ok(entries) => match entries.count() {
            0 => "it is empty".to_string(),
            entries => format!("it has {entries} entries, but no {IDENTITY_FILE} among them"),
        },
    };
    StorageError::NoStorage { path: path.to_path_buf(), found }
}

/// Compares the identity file with what is expected; returns which storage it is.
pub(crate) fn check_identity(directory: &Path, identity: &Identity) -> Result<RandomId, StorageError> {
    let path = directory.join(IDENTITY_FILE);
    let wrong = |reason| Err(StorageError::WrongDirectory { path: directory.to_path_buf(), reason });
    let failed = |what| {
        let path = path.clone();
        move |source| StorageError::Directory { what, path, source }
    };
    let found = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return wrong(format!(
                "it holds data but no {IDENTITY_FILE} file that says whose: check the configured path"
            ));
        }
        Err(error) => return Err(failed("read")(error)),
    };
    let line = |n: usize| found.lines().nth(n).unwrap_or("nothing");
    let version = if line(0) == "weft-storage 1" { 1 } else { FORMAT_VERSION };
    for (n, wants) in identity.lines(version).iter().enumerate() {
        let (subject, has) = (["format", "cluster", "server"][n], line(n));
        if has != wants {
            return wrong(format!(
                "its {subject} line says `{has}` where `{wants}` is expected: check the configured path and server"
            ));
        }
    }
    if version == 1 {
        let storage = weft_host::random().map_err(failed("make a name for"))?;
        StateFile::make(directory).map_err(failed("write the state beside"))?;
        write_identity(directory, &identity.text(&storage))
            .and_then(|()| fs::rename(directory.join(IDENTITY_NEW), &path))
            .map_err(failed("write"))?;
        return Ok(storage);
    }
    match line(3).strip_prefix("storage ").and_then(from_hex) {
        Some(storage) if found == identity.text(&storage) => Ok(storage),
        _ => wrong(format!("its {IDENTITY_FILE} file has lines that this version does not know")),
    }
}

/// Writes the identity under its first name.
pub(crate) fn write_identity(directory: &Path, text: &str) -> io::Result<()> {
    let temporary = directory.join(IDENTITY_NEW);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
