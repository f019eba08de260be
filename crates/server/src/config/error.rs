//! Why a cluster file cannot be used.

use std::path::PathBuf;

/// Why a cluster file cannot be used; the text names the file, the key and the cure.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read or written.
    #[error("cannot {action} the cluster file {path}: {reason}", path = path.display())]
    File {
        /// "read" or "write".
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// It is not TOML, or has an unknown key or a value of the wrong kind.
    #[error("{path}: {reason}\nsee `weft help cluster-file` for the keys there are", path = path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Line, column and key, as the parser tells them.
        reason: String,
    },
    /// A value makes no sense.
    #[error("{path}: {key}: {reason}; {cure}", path = path.display())]
    Value {
        /// Which file.
        path: PathBuf,
        /// Where in it.
        key: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        cure: String,
    },
    /// There is no server of this name.
    #[error("{path} has no server named {name:?}; it has {known}", path = path.display())]
    NoSuchServer {
        /// Which file.
        path: PathBuf,
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
}
