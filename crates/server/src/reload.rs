//! Having a running server read its cluster file again.

use crate::config::{ClusterConfig, ClusterId, ConfigError};
use crate::log;
use crate::map::FileMap;
use std::path::PathBuf;
use weft_reactor::MailSender;

/// Has a running server read its cluster file again. Clones are for the same server.
#[derive(Clone)]
pub struct Reloader {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) cluster_id: ClusterId,
    pub(crate) files: MailSender<FileMap>,
}

impl Reloader {
    /// A metadata server takes over which servers there are and where, and the layout of files for which
    /// nothing else is asked. An I/O server hears of these from it. Anything else of the file is for the next
    /// start.
    ///
    /// # Errors
    /// The file cannot be read, or makes no sense; nothing has changed then.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let config = ClusterConfig::load(&self.path)?;
        if config.cluster.id != self.cluster_id {
            return Err(ConfigError::Value {
                path: self.path.clone(),
                key: "cluster.id".into(),
                reason: "it is another cluster's".into(),
                cure: "put the file of this cluster back".into(),
            });
        }
        if self.files.send(FileMap::of(&config)).is_err() {
            log::warning!(&self.name, "is busy or stopping, and did not read the cluster file again");
        }
        Ok(())
    }
}
