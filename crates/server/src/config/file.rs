//! Reading, writing and editing a cluster file.

use super::check::check;
use super::cluster::*;
use super::error::ConfigError;
use super::gateway::{ExportConfig, GatewayConfig};
use serde::Serialize;
use std::path::Path;
use toml_edit::{DocumentMut, TomlError};

impl ClusterConfig {
    /// Reads and checks a cluster file.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(path: &Path) -> Result<ClusterConfig, ConfigError> {
        let file_error = |reason| ConfigError::File { action: "read", path: path.to_owned(), reason };
        let path = std::path::absolute(path).map_err(file_error)?;
        let text = std::fs::read_to_string(&path).map_err(file_error)?;
        ClusterConfig::parse(&text, &path)
    }

    // Fuzzed by cluster-file: mod.rs
    /// Checks `text` as the contents of the file `path`.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(text: &str, path: &Path) -> Result<ClusterConfig, ConfigError> {
        let mut config: ClusterConfig = toml::from_str(text)
            .map_err(|error| ConfigError::Syntax { path: path.to_owned(), reason: error.to_string() })?;
        config.path = path.to_owned();
        check(&config)?;
        Ok(config)
    }

    /// The contents of the file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("strings, numbers and lists of tables can be written as TOML")
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`ConfigError::File`].
    pub fn save(&self) -> Result<(), ConfigError> {
        std::fs::write(&self.path, self.to_toml()).map_err(|reason| ConfigError::File {
            action: "write",
            path: self.path.clone(),
            reason,
        })
    }

    /// The file with one more server at its end; all else of its text stays as it is.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn with_server(&self, server: &ServerConfig) -> Result<EditedFile, ConfigError> {
        #[derive(Serialize)]
        struct Tail<'a> {
            server: [&'a ServerConfig; 1],
        }
        self.with_tail(&Tail { server: [server] })
    }

    fn with_tail(&self, tail: &impl Serialize) -> Result<EditedFile, ConfigError> {
        let table = toml::to_string(tail).expect("strings, numbers and lists can be written as TOML");
        let text = self.text()?;
        let gap = if text.ends_with('\n') { "\n" } else { "\n\n" };
        self.edited(text + gap + &table)
    }

    /// The file with a gateway and exports at its end; all else of its text stays as it is.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn with_gateway(
        &self,
        gateway: &GatewayConfig,
        exports: &[ExportConfig],
    ) -> Result<EditedFile, ConfigError> {
        #[derive(Serialize)]
        struct Tail<'a> {
            gateway: [&'a GatewayConfig; 1],
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            export: &'a [ExportConfig],
        }
        self.with_tail(&Tail { gateway: [gateway], export: exports })
    }

    /// The file with other addresses of a server; all else of its text stays as it is.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn with_addresses(
        &self,
        name: &str,
        addresses: &[String],
        rdma_addresses: &[String],
    ) -> Result<EditedFile, ConfigError> {
        let wanted = &self.server(name)?.name;
        let at = self.servers.iter().position(|server| server.name == *wanted);
        let syntax = |reason: String| ConfigError::Syntax { path: self.path.clone(), reason };
        let mut document: DocumentMut =
            self.text()?.parse().map_err(|error: TomlError| syntax(error.to_string()))?;
        let table = document.get_mut("server").zip(at).and_then(|(servers, at)| servers.get_mut(at));
        let table = table.ok_or_else(|| syntax(format!("it has no [[server]] of {name}")))?;
        let list = |given: &[String]| {
            toml_edit::value(given.iter().map(String::as_str).collect::<toml_edit::Array>())
        };
        table["addresses"] = list(addresses);
        if !rdma_addresses.is_empty() {
            table["rdma_addresses"] = list(rdma_addresses);
        }
        self.edited(document.to_string())
    }

    fn text(&self) -> Result<String, ConfigError> {
        std::fs::read_to_string(&self.path).map_err(|reason| ConfigError::File {
            action: "read",
            path: self.path.clone(),
            reason,
        })
    }

    fn edited(&self, text: String) -> Result<EditedFile, ConfigError> {
        Ok(EditedFile { config: ClusterConfig::parse(&text, &self.path)?, text })
    }
}

/// A cluster file that was changed and is not written yet.
#[derive(Debug)]
pub struct EditedFile {
    /// What it says.
    pub config: ClusterConfig,
    text: String,
}

impl EditedFile {
    /// Puts it in the place of the one before, whole or not at all.
    ///
    /// # Errors
    /// [`ConfigError::File`].
    pub fn save(&self) -> Result<(), ConfigError> {
        let path = &self.config.path;
        let fresh = path.with_extension("toml.new");
        let written = std::fs::write(&fresh, &self.text)
            .and_then(|()| std::fs::set_permissions(&fresh, std::fs::metadata(path)?.permissions()))
            .and_then(|()| std::fs::rename(&fresh, path));
        written.map_err(|reason| ConfigError::File { action: "write", path: path.clone(), reason })
    }
}
