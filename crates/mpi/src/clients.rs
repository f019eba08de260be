//! Connections of this process to clusters: one client for each, kept for the next file.

use std::collections::HashMap;
use std::sync::Mutex;

use weft_client::{Client, ConnectOptions, Url};

use crate::error::Result;

static CLIENTS: Mutex<Option<HashMap<String, Client>>> = Mutex::new(None);

/// The client of a cluster. `world` is this process's rank and the number of processes, for the servers' list
/// of clients.
pub fn client(cluster: &Url, world: (usize, usize)) -> Result<Client> {
    let key = cluster.to_string();
    let lock = || CLIENTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(client) = lock().get_or_insert_default().get(&key) {
        return Ok(client.clone());
    }
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
    let program = format!("{} (MPI {}/{})", program.unwrap_or_default(), world.0, world.1);
    let options = ConnectOptions { program: Some(program), ..ConnectOptions::default() };
    let client = Client::connect(cluster, options)?;
    Ok(lock().get_or_insert_default().entry(key).or_insert(client).clone())
}
