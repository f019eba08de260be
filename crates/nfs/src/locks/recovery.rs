//! Restarts: of a client, which has lost its locks then, and of the gateway, whose clients reclaim theirs.
//!
//! ```text
//!   a client restarts   NOTIFY ─► its locks are given back
//!   the gateway does    NOTIFY to each client that had locks ─► it reclaims them, within the grace
//!                       nobody gets a new lock through this gateway in the meantime
//!                       what nobody has reclaimed is given back at the end
//! ```
//!
//! If the metadata server has given the session up, it goes the same way: its locks are lost, and what is not
//! locked by others meanwhile is reclaimed in another session. Until then the client may not change the files concerned.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use weft_onc_rpc::nsm;
use weft_onc_rpc::xdr::Writer;
use weft_reactor::{sleep, spawn};

use super::files::Entry;
use super::store::Host;
use super::{Locks, Session, Status, join};
use crate::outbound::{self, Procedure};
use crate::target::Sender;

/// How long a client is told of a restart that does not answer.
const NOTIFY_FOR: Duration = Duration::from_secs(15 * 60);
/// The pause after the first time. It grows to the second.
const NOTIFY_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// How often the session is looked after.
const LOOK: Duration = Duration::from_secs(1);
/// How long waits may take to end when the gateway stops.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// The first part of a host's name, in small letters.
fn short(name: &[u8]) -> Vec<u8> {
    let end = name.iter().position(|byte| *byte == b'.').unwrap_or(name.len());
    name[..end].to_ascii_lowercase()
}

/// Which of the clients of an address has restarted that calls itself so: one of this name, or the only one,
/// whatever it calls itself.
pub(super) fn restarted_of(mut hosts: Vec<Host>, name: &[u8]) -> Vec<Host> {
    let named: Vec<Host> = hosts.iter().filter(|host| short(&host.name) == short(name)).cloned().collect();
    if !named.is_empty() {
        return named;
    }
    if hosts.len() > 1 {
        hosts.clear();
    }
    hosts
}

impl Locks {
    /// Begins the grace and tells these clients, after a restart.
    pub(super) fn recover(self: &Rc<Self>, clients: Vec<Host>) {
        let locks = self.clone();
        if self.in_grace.get() {
            let (clients, seconds) = (clients.len(), self.options.grace.as_secs());
            tracing::info!("{clients} NFS clients may reclaim their locks for {seconds} seconds");
        }
        for host in clients {
            let locks = self.clone();
            spawn(async move { locks.notify(&host).await });
        }
        spawn(async move {
            if locks.in_grace.get() {
                sleep(locks.options.grace).await;
            }
            locks.end_grace().await;
        });
    }

    async fn end_grace(self: &Rc<Self>) {
        let left = self.left.borrow().clone();
        for pair in left {
            if self.is_stopped.get() {
                return;
            }
            self.give_back_unclaimed(pair).await;
        }
        self.left.borrow_mut().clear();
        if self.in_grace.replace(false) {
            tracing::info!("the time to reclaim locks is over");
        }
    }

    /// Tells a client of the restart, until it has heard of it.
    async fn notify(&self, host: &Host) {
        let begun = Instant::now();
        let mut pause = NOTIFY_AGAIN[0];
        while let Err(error) = self.notify_once(host).await {
            if self.is_stopped.get() {
                return;
            }
            if begun.elapsed() >= NOTIFY_FOR {
                let client = host.address;
                tracing::warn!(%client, %error, "a client cannot be told that it has to reclaim its locks");
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(NOTIFY_AGAIN[1]);
        }
        while self.in_grace.get() && !self.is_stopped.get() {
            sleep(LOOK).await;
        }
        if !self.is_stopped.get() && !self.table.borrow().knows(host) {
            self.no_longer_monitored(host);
        }
    }

    async fn notify_once(&self, host: &Host) -> std::io::Result<()> {
        let channel = self.channel(host.address);
        let _turn = channel.callbacks.acquire(1).await;
        let mapper = SocketAddr::new(host.address, self.options.mapper_port);
        let port = outbound::port_of(mapper, nsm::PROGRAM, nsm::VERSION).await?;
        let change = nsm::Change { host: self.options.name.clone().into_bytes(), state: self.state.get() };
        let number = nsm::procedure::NOTIFY;
        let procedure = Procedure { program: nsm::PROGRAM, version: nsm::VERSION, number };
        let args = change.write(Writer::new()).into_bytes();
        outbound::call(SocketAddr::new(host.address, port), procedure, &args).await.map(drop)
    }

    /// Notes durably that a client is told of a restart.
    pub(super) async fn monitor(&self, host: &Host) -> Result<(), Status> {
        if self.monitored.borrow().contains(host) {
            return Ok(());
        }
        let _turn = self.monitoring.lock().await;
        if self.monitored.borrow().contains(host) {
            return Ok(());
        }
        let file = self.store.borrow().client(host);
        if let Err(error) = self.files.workers.run(move || file.write()).await {
            tracing::error!(%error, "a client that locks cannot be noted: it gets no lock");
            return Err(Status::DeniedNoLocks);
        }
        self.monitored.borrow_mut().insert(host.clone());
        Ok(())
    }

    fn no_longer_monitored(&self, host: &Host) {
        if self.monitored.borrow_mut().remove(host)
            && let Err(error) = self.store.borrow().client(host).remove()
        {
            tracing::warn!(%error, "the note of a client cannot be removed");
        }
    }

    /// A client says that it has restarted.
    pub(super) async fn restarted(self: &Rc<Self>, sender: &Sender, name: &[u8]) {
        let address: IpAddr = sender.peer.ip().to_canonical();
        let mut hosts = self.table.borrow().hosts_at(address);
        let with_losses = self.lost.borrow().hosts_at(address);
        hosts.extend(with_losses.into_iter().filter(|host| !hosts.contains(host)).collect::<Vec<_>>());
        let hosts = restarted_of(hosts, name);
        if hosts.is_empty() {
            let name = String::from_utf8_lossy(name).into_owned();
            tracing::debug!(client = %address, ?name, "a client that has restarted had no locks");
        }
        for host in hosts {
            self.free(&host).await;
        }
    }

    /// Gives back all that a client has.
    pub(super) async fn free(self: &Rc<Self>, host: &Host) {
        self.cancel_waits(|wanted| wanted.host == *host);
        self.lost.borrow_mut().forget(|lost, _| lost == host);
        let pairs = self.table.borrow().of_host(host);
        if !pairs.is_empty() {
            let (client, count) = (host.address, pairs.len());
            tracing::info!(%client, "a client has restarted: the locks of its {count} owners are given back");
        }
        for pair in pairs {
            self.give_back_all(pair).await;
        }
    }

    /// Looks after the session, time and again, and forgets clients without locks.
    pub(super) async fn look_after(self: Rc<Self>) {
        loop {
            sleep(LOOK).await;
            if self.is_stopped.get() {
                return;
            }
            if !self.table.borrow().is_empty() || !self.waits.borrow().is_empty() {
                let client = self.session.borrow().client.clone();
                // A server that is away is told of by whoever asks for a lock.
                let _ = self.files.workers.run(move || client.keep_locks()).await;
            }
            let is_lost =
                |entry: &Rc<Entry>| entry.file.borrow().as_ref().is_some_and(|file| file.has_lost_locks());
            if self.entries.borrow().values().any(is_lost) {
                self.lose().await;
            }
            let idle = self.table.borrow_mut().take_idle(Instant::now());
            idle.iter().for_each(|host| self.no_longer_monitored(host));
            self.leave_old_session();
        }
    }

    /// Goes on in a new session where an earlier start was in this one, once nothing of it is needed: what
    /// that start had open is closed with the session.
    fn leave_old_session(&self) {
        let is_needed = !self.entries.borrow().is_empty() || self.in_grace.get();
        if is_needed || !self.left.borrow().is_empty() || !self.session.borrow().is_resumed {
            return;
        }
        if let Err(error) = self.begin_session() {
            tracing::warn!(%error, "the locks of a former start stay in its session");
            self.session.borrow_mut().is_resumed = false;
        }
    }

    fn begin_session(&self) -> std::io::Result<()> {
        let (id, state) = (weft_host::random()?, self.state.get().wrapping_add(2));
        let client = join(&self.files, &self.options, id, state)?;
        self.store.borrow().begin_anew(state, &id)?;
        self.state.set(state);
        let old = self.session.replace(Session { client, is_resumed: false });
        // Its last connection ends with it, which may take a while.
        self.files.workers.leave(move || drop(old));
        Ok(())
    }

    /// The metadata server has given the session up: all begins again, as after a restart.
    pub(super) async fn lose(self: &Rc<Self>) {
        tracing::error!(
            "the locks of NFS clients are lost: the metadata server was away, or without word of this \
             gateway, for too long. The clients are told to reclaim them"
        );
        self.cancel_waits(|_| true);
        self.in_grace.set(true);
        if let Err(error) = self.begin_session() {
            tracing::error!(%error, "there is no new session for locks");
        }
        let mut lost = self.lost.borrow_mut();
        for (host, pair, range) in self.table.borrow().all() {
            lost.add(host, pair, range);
        }
        drop(lost);
        self.table.borrow_mut().clear();
        self.entries.borrow_mut().clear();
        let clients = self.monitored.borrow().iter().cloned().collect();
        self.recover(clients);
    }

    /// Ends; what is locked stays so for the next start, for as long as the session does.
    pub(crate) async fn stop(&self) {
        self.is_stopped.set(true);
        self.cancel_waits(|_| true);
        let begun = Instant::now();
        while !self.waits.borrow().is_empty() && begun.elapsed() < STOP_PATIENCE {
            sleep(Duration::from_millis(5)).await;
        }
        for (_, entry) in self.entries.borrow_mut().drain() {
            if let Some(file) = entry.file.borrow_mut().take().and_then(Rc::into_inner) {
                file.leave();
            }
        }
        self.store.borrow_mut().release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_where_an_address_has_several_clients() {
        let host = |name: &str| Host { address: [10, 0, 0, 1].into(), name: name.into() };
        let (one, other) = (host("node1"), host("Node2.site"));
        let both = || vec![one.clone(), other.clone()];
        assert_eq!(restarted_of(both(), b"node1.site.example"), vec![one.clone()]);
        assert_eq!(restarted_of(both(), b"NODE2"), vec![other.clone()]);
        assert_eq!(restarted_of(both(), b"10.0.0.1"), []);
        assert_eq!(restarted_of(vec![one.clone()], b"10.0.0.1"), [one]);
        assert_eq!(restarted_of(Vec::new(), b"node1"), []);
    }
}
