//! Removing data files whose inodes are gone, by tasks of the metadata server.
//!
//! ```text
//!   here        unlink ─► garbage record ─► poke ─► make the unlink durable ─► RemoveObjects on the file's
//!               servers, all at once ─► record gone. A server is down or slow: its files' records stay.
//!   orphans     now and then: ListObjects of every server ─► old, and no such inode? ─► RemoveObjects
//!   vouch       after a storage was lost: VouchEmpty for the files that had no byte on it
//!   take_over   before all that, on a store that was put back from a copy
//! ```
//!
//! The second finds what no record tells of: files whose creation was lost with a power cut while their data
//! was already there.

pub(crate) mod orphans;
mod setup;
pub(crate) mod take_over;
mod vouch;

pub(crate) use setup::Setup;

use crate::peer::{Peer, PeerError};
use crate::step::{StepError, on_behalf_of};
use setup::{BATCH, GATHER, RETRY};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weft_layout::Layout;
use weft_meta::{Engine, run_again};
use weft_reactor::{JoinHandle, timeout};
use weft_wire::messages::RemoveObjectsRequest;

/// How long a step waits for a server. One that takes longer goes on by itself, and the others' files are
/// removed without it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Removes data files, as long as the reactor runs.
pub(crate) async fn run<E: Engine + 'static>(setup: Setup<E>) {
    let setup = Rc::new(setup);
    weft_reactor::spawn(orphans::run(setup.clone()));
    weft_reactor::spawn(vouch::run(setup.clone()));
    let remover = Remover::new(setup.clone());
    if setup.restore.wanted {
        take_over::take_over(&setup).await;
    }
    remover.run().await
}

type Removal = JoinHandle<Result<(), PeerError>>;

struct Remover<E: Engine> {
    setup: Rc<Setup<E>>,
    /// Servers that are left alone for now, by id, and until when.
    resting_until: BTreeMap<u16, Instant>,
    /// What servers were asked for that are slow.
    slow: BTreeMap<u16, Removal>,
    removed_files: Arc<AtomicU64>,
}

impl<E: Engine + 'static> Remover<E> {
    fn new(setup: Rc<Setup<E>>) -> Remover<E> {
        let removed_files = setup.shared.counters.gauge("garbage_removed_files");
        Remover { setup, resting_until: BTreeMap::new(), slow: BTreeMap::new(), removed_files }
    }

    async fn run(mut self) {
        self.setup.confirmed().await;
        loop {
            weft_reactor::sleep(GATHER).await;
            let now = Instant::now();
            self.resting_until.retain(|_, until| *until > now);
            let is_done = self.remove_garbage().await.unwrap_or_else(|error| {
                self.setup.failed("remove data files", &error);
                false
            });
            self.setup.poke.wait_to_remove(if is_done { Duration::MAX } else { RETRY }).await;
        }
    }

    /// Removes the data files of all garbage records. Returns whether none is left.
    async fn remove_garbage(&mut self) -> Result<bool, StepError> {
        let (mut after, mut is_done) = (0, true);
        loop {
            let page = self.setup.ask(|namespace| run_again(|| namespace.begin().garbage(after, BATCH)))?;
            let Some((last, _)) = page.last() else { return Ok(is_done) };
            after = *last;
            // A power cut must not bring back a name whose data is gone.
            self.setup.sync().await?;
            let failed = self.remove_on_servers(&page).await;
            let done: Vec<u64> =
                page.iter().map(|(ino, _)| *ino).filter(|ino| !failed.contains(ino)).collect();
            is_done &= failed.is_empty();
            self.removed_files.fetch_add(done.len() as u64, Ordering::Relaxed);
            self.setup.ask(|namespace| {
                namespace.change(|op| {
                    op.garbage_done(&done);
                    Ok(())
                })
            })?;
        }
    }

    /// Removes files on each of their servers. Returns those that were not removed everywhere.
    async fn remove_on_servers(&mut self, page: &[(u64, Layout)]) -> HashSet<u64> {
        let mut by_server: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        for (ino, layout) in page {
            for slot in 0..layout.server_count() {
                by_server.entry(layout.chain(slot).single_server()).or_default().push(*ino);
            }
        }
        let trace = self.setup.poke.take_trace();
        let mut failed = HashSet::new();
        let mut asked = Vec::new();
        for (id, inos) in by_server {
            match self.ready_peer(id) {
                Some(peer) => asked.push((id, inos.clone(), remove_on(peer, inos, trace))),
                None => failed.extend(inos),
            }
        }
        let deadline = Instant::now() + PATIENCE;
        for (id, inos, mut removal) in asked {
            let left = deadline.saturating_duration_since(Instant::now());
            match timeout(left, &mut removal).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => self.setup.failed("remove data files", &error.into()),
                Err(_) => drop(self.slow.insert(id, removal)),
            }
            self.resting_until.insert(id, Instant::now() + RETRY);
            failed.extend(inos);
        }
        failed
    }

    /// A server that may be asked now.
    fn ready_peer(&mut self, id: u16) -> Option<Rc<Peer>> {
        if self.resting_until.contains_key(&id) || self.slow.get(&id).is_some_and(|one| !one.is_finished()) {
            return None;
        }
        self.slow.remove(&id);
        self.setup.peers.get(id)
    }
}

/// Has a server remove files, on behalf of the request with this trace id. It may be removing them already: doing
/// so again does no harm.
fn remove_on(peer: Rc<Peer>, inos: Vec<u64>, trace: u64) -> Removal {
    weft_reactor::spawn(on_behalf_of(trace, async move {
        peer.call(&RemoveObjectsRequest { inos }).await.map(drop)
    }))
}
