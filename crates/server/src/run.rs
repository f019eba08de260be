//! What the threads of both kinds of server have in common: they accept, serve, and stop.

use crate::config::{ClusterConfig, ServerConfig};
use crate::key_ring::{self, KeyFile};
use crate::listen::{Arrival, Doors, Host, accept_all};
use crate::service::Service;
use crate::shared::Shared;
use crate::stop::StopFlag;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_reactor::{MailSender, ReactorOptions};
use weft_verbs::Fabric;
use weft_wire::security::ClusterKeys;

/// Time that requests under way have when the server stops.
const DRAIN: Duration = Duration::from_secs(2);

/// Why a server has ended.
pub(crate) enum End {
    /// It was asked to.
    Asked,
    /// Its metadata store failed.
    StoreFailed(String),
    /// Its storage is not to be served from.
    WrongStorage(String),
}

/// A server that runs.
pub(crate) struct Run {
    pub shared: Arc<Shared>,
    pub keys: ClusterKeys,
    /// Where the keys are read again whenever they change.
    pub key_file: Option<PathBuf>,
    pub config: ClusterConfig,
    pub server: ServerConfig,
    pub stop: StopFlag,
}

impl Run {
    /// For the reactors of its threads.
    pub fn reactor_options(&self, ring_entries: Option<u32>) -> ReactorOptions {
        ReactorOptions { ring_entries, spin_us: self.server.spin_us }
    }

    /// Has the server's keys follow their file, on the current reactor.
    pub fn follow_keys(&self) {
        if let Some(path) = &self.key_file {
            let (file, ring) = (KeyFile::new(path.clone()), self.shared.keys.clone());
            weft_reactor::spawn(key_ring::follow(file, ring, self.keys.clone(), self.server.name.clone()));
        }
    }
}

/// Accepts connections and serves them here and on the other threads, until `stop` is set and all is drained.
pub(crate) async fn accept_and_serve<F: Fabric, S: Service>(
    host: Host<F, S>,
    stop: &StopFlag,
    doors: Doors<F>,
    others: Vec<MailSender<Arrival<F>>>,
) -> io::Result<()> {
    let service = host.service.clone();
    let accepting = accept_all(doors, host, others);
    stop.wait().await?;
    accepting.into_iter().for_each(weft_reactor::JoinHandle::cancel);
    drain(&*service).await;
    Ok(())
}

/// Ends the connections; requests under way have some time.
pub(crate) async fn drain(service: &impl Service) {
    let node = service.node();
    node.stopping.set();
    service.stop();
    let deadline = Instant::now() + DRAIN;
    while node.under_way.get() > 0 && Instant::now() < deadline {
        weft_reactor::sleep(Duration::from_millis(2)).await;
    }
}
