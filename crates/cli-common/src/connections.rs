//! Connections to file systems.

use anyhow::Result;
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weft_client::{At, Client, ConnectOptions, Transport, Url};
use weft_wire::messages::FileKind;

/// The options for keys.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct KeyArgs {
    /// The key file [default: see `weft help keys`].
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// Options of every command that connects.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ConnectArgs {
    /// The key.
    #[command(flatten)]
    pub key: KeyArgs,
    /// The transport: auto, tcp, shm or rdma [default: as in the URL, then WEFT_TRANSPORT, then auto].
    #[arg(long, value_name = "NAME")]
    pub transport: Option<Transport>,
}

impl From<KeyArgs> for ConnectArgs {
    fn from(key: KeyArgs) -> ConnectArgs {
        ConnectArgs { key, ..ConnectArgs::default() }
    }
}

/// The connections of a command, one per file system.
#[derive(Default)]
pub struct Connections {
    arguments: ConnectArgs,
    clients: RefCell<HashMap<String, Client>>,
}

impl Connections {
    /// Uses the options of a command line.
    pub fn new(arguments: &ConnectArgs) -> Connections {
        Connections { arguments: arguments.clone(), clients: RefCell::default() }
    }

    /// A connection to `url` (`weft://HOST:PORT/…`).
    pub fn client(&self, url: &str) -> Result<Client> {
        if let Some(client) = self.clients.borrow().get(url) {
            return Ok(client.clone());
        }
        let client = Client::connect(&Url::parse(url)?, self.options()?)?;
        self.clients.borrow_mut().insert(url.to_string(), client.clone());
        Ok(client)
    }

    /// How to connect. Without `--key` the client library finds the key.
    pub fn options(&self) -> Result<ConnectOptions> {
        let ConnectArgs { key, transport } = &self.arguments;
        let key = key.key.as_deref().map(weft_client::read_key_file).transpose()?;
        Ok(ConnectOptions { key, transport: *transport, ..ConnectOptions::default() })
    }
}

/// A Weft path for the client library.
pub fn at(path: &Path) -> At<'_> {
    At::from(path.as_os_str().as_bytes())
}

/// Whether a path is a directory, following symbolic links.
pub fn is_directory(client: &Client, path: &Path) -> bool {
    client.stat(at(path), true).is_ok_and(|attr| attr.kind == FileKind::Directory)
}

/// The transport to a server, as text.
pub fn transport_of(client: &Client, server: &str) -> String {
    let found = client.transports().into_iter().find(|transport| transport.server == server);
    match found {
        Some(found) => match (found.transport, found.fallback) {
            (Some(transport), Some(reason)) => format!("{transport} ({reason})"),
            (Some(transport), None) => transport,
            (None, _) => "not connected".to_string(),
        },
        None => "not connected".to_string(),
    }
}
