//! Whether the servers of a cluster are ready.

use super::directory::url_of;
use super::ports;
use super::run_state::find;
use anyhow::Result;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use weft_client::{Client, ConnectOptions, Url};
use weft_server::config::Member;
use weft_server::{CLIENT_KEY_FILE, ClusterConfig, ServerConfig};

/// How long servers have to become ready.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How often that is checked.
pub(super) const READY_POLL: Duration = Duration::from_millis(10);

/// Checks whether servers are ready.
pub(super) struct Readiness<'a> {
    config: &'a ClusterConfig,
    url: Url,
    /// `None` if it can only be checked whether servers listen: without a client key, or if some servers are
    /// on other machines, which may not run.
    options: Option<ConnectOptions>,
}

impl Readiness<'_> {
    pub(super) fn new<'a>(config: &'a ClusterConfig, dir: &Path) -> Result<Readiness<'a>> {
        let key_file = dir.join(CLIENT_KEY_FILE);
        let can_ask =
            key_file.exists() && !config.servers.iter().map(Member::Server).any(ports::is_elsewhere);
        let key = can_ask.then(|| weft_client::read_key_file(&key_file)).transpose()?;
        let options = key.map(|key| ConnectOptions {
            key: Some(key),
            retry_timeout_ms: 0,
            ..ConnectOptions::default()
        });
        Ok(Readiness { config, url: Url::parse(&url_of(config))?, options })
    }

    /// Why one of these servers is not ready.
    pub(super) fn lacks(&self, names: &[String]) -> Option<String> {
        let (gateways, servers): (Vec<_>, Vec<_>) = names
            .iter()
            .cloned()
            .partition(|name| matches!(self.config.member(name), Ok(Member::Gateway(_))));
        let lacks_servers = if servers.is_empty() { None } else { self.servers_lack(&servers) };
        lacks_servers.or_else(|| self.does_not_listen(&gateways))
    }

    /// The same of servers, which can be asked.
    fn servers_lack(&self, names: &[String]) -> Option<String> {
        let Some(options) = &self.options else { return self.does_not_listen(names) };
        match Client::connect(&self.url, options.clone()) {
            Ok(client) => {
                let answers = client.server_status(false).into_iter();
                let mut meant = answers.filter(|(server, _)| names.contains(&server.name));
                meant.find_map(|(_, answer)| answer.err()).map(|error| error.to_string())
            }
            Err(error) if self.config.meta_servers().any(|meta| self.is_awaited(meta, names)) => {
                Some(error.to_string())
            }
            Err(_) => self.does_not_listen(names),
        }
    }

    /// Whether a server runs or is being started.
    fn is_awaited(&self, server: &ServerConfig, names: &[String]) -> bool {
        names.contains(&server.name) || !matches!(find(self.config, None, Member::Server(server)), Ok(None))
    }

    fn does_not_listen(&self, names: &[String]) -> Option<String> {
        let meant = |member: &Member<'_>| names.iter().any(|name| name == member.name());
        self.config.members().filter(meant).find_map(|member| {
            let address = &member.addresses()[0];
            let deaf = |error| format!("{} does not listen at {address}: {error}", member.name());
            TcpStream::connect(address).err().map(deaf)
        })
    }
}
