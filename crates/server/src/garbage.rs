//! Removing data files whose inodes are gone, by tasks of the metadata server.
//!
//! ```text
//!   here        unlink ─► garbage record ─► poke ─► make the unlink durable ─► RemoveObjects on the file's
//!               servers, all at once ─► record gone. A server is down or slow: a record for each of its files
//!               instead, which is not read until the server may be asked again.
//!   orphans     now and then: ListObjects of every server ─► old, and no such inode? ─► RemoveObjects
//!   vouch       after a storage was lost: VouchEmpty for the files that had no byte on it
//!   take_over   before all that, on a store that was put back from a copy
//! ```
//!
//! So a server that answers is asked once for each file, however long another one is down.
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
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weft_meta::{Engine, MetaError, Namespace, run_again};
use weft_reactor::{JoinHandle, timeout};
use weft_wire::messages::RemoveObjectsRequest;

/// How long a round waits for a server. One that takes longer goes on by itself, and the others' files are
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

/// A removal that a server has not answered in time.
struct Late {
    inos: Vec<u64>,
    removal: Removal,
}

/// How far one walk over all that is to be removed has come. Each record is looked at once: what was removed is
/// skipped slowly as long as the store has not forgotten it.
#[derive(Default)]
struct Walk {
    /// The last file that had a garbage record.
    after: u64,
    /// Servers that were behind when it began.
    behind: Vec<u16>,
    /// Of these, the last file that was asked for.
    after_on: BTreeMap<u16, u64>,
}

/// Files that are removed at once.
#[derive(Default)]
struct Round {
    /// Files with a garbage record.
    fresh: Vec<u64>,
    by_server: BTreeMap<u16, Share>,
}

/// Data files of one server.
#[derive(Default)]
struct Share {
    /// Of files with a garbage record.
    fresh: Vec<u64>,
    /// Those that the server was not there for before.
    postponed: Vec<u64>,
}

impl Share {
    fn all(&self) -> Vec<u64> {
        [self.fresh.as_slice(), &self.postponed].concat()
    }
}

struct Remover<E: Engine> {
    setup: Rc<Setup<E>>,
    /// Servers that are left alone for now, by id, and until when.
    resting_until: BTreeMap<u16, Instant>,
    /// Removals that servers have not answered yet, by server.
    late: BTreeMap<u16, Late>,
    removed_files: Arc<AtomicU64>,
}

impl<E: Engine + 'static> Remover<E> {
    fn new(setup: Rc<Setup<E>>) -> Remover<E> {
        let removed_files = setup.shared.counters.gauge("garbage_removed_files");
        Remover { setup, resting_until: BTreeMap::new(), late: BTreeMap::new(), removed_files }
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

    /// Removes what can be removed now. Returns whether nothing is left.
    async fn remove_garbage(&mut self) -> Result<bool, StepError> {
        let behind = self.take_late_answers().await?;
        let mut walk = Walk { behind, ..Walk::default() };
        loop {
            let round = self.next_round(&mut walk)?;
            if round.by_server.is_empty() {
                return self.setup.ask(|namespace| Ok(namespace.servers_behind()?.is_empty()));
            }
            // A power cut must not bring back a name whose data is gone.
            self.setup.sync().await?;
            let failed = self.remove_on_servers(&round).await;
            self.note(&round, &failed, &walk.behind)?;
            weft_reactor::yield_now().await;
        }
    }

    fn next_round(&self, walk: &mut Walk) -> Result<Round, StepError> {
        let page = self.setup.ask(|namespace| run_again(|| namespace.begin().garbage(walk.after, BATCH)))?;
        let mut round = Round::default();
        for (ino, layout) in page {
            walk.after = ino;
            round.fresh.push(ino);
            for slot in 0..layout.server_count() {
                round.by_server.entry(layout.chain(slot).single_server()).or_default().fresh.push(ino);
            }
        }
        for id in walk.behind.iter().filter(|id| self.ready_peer(**id).is_some()) {
            let after = walk.after_on.entry(*id).or_default();
            let page = self
                .setup
                .ask(|namespace| run_again(|| namespace.begin().postponed_removals(*id, *after, BATCH)))?;
            let Some(last) = page.last() else { continue };
            *after = *last;
            round.by_server.entry(*id).or_default().postponed = page;
        }
        Ok(round)
    }

    /// Has each server remove its share. Returns the servers that have not done so.
    async fn remove_on_servers(&mut self, round: &Round) -> BTreeSet<u16> {
        let trace = self.setup.poke.take_trace();
        let mut failed = BTreeSet::new();
        let mut asked = Vec::new();
        for (id, share) in &round.by_server {
            match self.ready_peer(*id) {
                Some(peer) => asked.push((*id, share, remove_on(peer, share.all(), trace))),
                None => drop(failed.insert(*id)),
            }
        }
        let deadline = Instant::now() + PATIENCE;
        for (id, share, mut removal) in asked {
            let left = deadline.saturating_duration_since(Instant::now());
            match timeout(left, &mut removal).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => self.rest(id, error),
                Err(_) => drop(self.late.insert(id, self.wait_for(share.all(), removal))),
            }
            failed.insert(id);
        }
        failed
    }

    /// Notes what was removed, and what is still to be removed on the servers that have `failed`.
    fn note(&self, round: &Round, failed: &BTreeSet<u16>, behind: &[u16]) -> Result<(), StepError> {
        let shares_left = || round.by_server.iter().filter(|(id, _)| failed.contains(id));
        let left: HashSet<u64> = shares_left().flat_map(|(_, share)| share.fresh.iter().copied()).collect();
        let note = |namespace: &mut Namespace<E>| {
            namespace.change(|op| {
                op.garbage_done(&round.fresh);
                shares_left().for_each(|(id, share)| op.postpone_removal(*id, &share.fresh));
                let mut gone = round.fresh.len() - left.len();
                for (id, share) in round.by_server.iter().filter(|(id, _)| !failed.contains(id)) {
                    gone += op.postponed_done(*id, &share.postponed, behind)?;
                }
                Ok::<_, MetaError>(gone)
            })
        };
        let (gone, _) = self.setup.ask(note)?;
        self.removed_files.fetch_add(gone as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Notes what servers have removed that took their time. Returns the servers that are behind.
    async fn take_late_answers(&mut self) -> Result<Vec<u16>, StepError> {
        let behind = self.setup.ask(|namespace| namespace.servers_behind())?;
        let answered: Vec<u16> =
            self.late.iter().filter(|(_, late)| late.removal.is_finished()).map(|(id, _)| *id).collect();
        for id in answered {
            let Some(late) = self.late.remove(&id) else { continue };
            match late.removal.await {
                Ok(()) => {
                    let share = Share { postponed: late.inos, ..Share::default() };
                    let round = Round { by_server: BTreeMap::from([(id, share)]), ..Round::default() };
                    self.note(&round, &BTreeSet::new(), &behind)?;
                }
                Err(error) => self.rest(id, error),
            }
        }
        Ok(behind)
    }

    /// A removal that is waited for beside the others' rounds.
    fn wait_for(&self, inos: Vec<u64>, removal: Removal) -> Late {
        let poke = self.setup.poke.clone();
        let removal = weft_reactor::spawn(async move {
            let answer = removal.await;
            poke.poke_to_remove();
            answer
        });
        Late { inos, removal }
    }

    fn rest(&mut self, id: u16, error: PeerError) {
        self.setup.failed("remove data files", &error.into());
        self.resting_until.insert(id, Instant::now() + RETRY);
    }

    /// A server that may be asked now.
    fn ready_peer(&self, id: u16) -> Option<Rc<Peer>> {
        let may_be_asked = !self.resting_until.contains_key(&id) && !self.late.contains_key(&id);
        self.setup.peers.get(id).filter(|_| may_be_asked)
    }
}

/// Has a server remove files, on behalf of the request with this trace id. It may be removing them already: doing
/// so again does no harm.
fn remove_on(peer: Rc<Peer>, inos: Vec<u64>, trace: u64) -> Removal {
    weft_reactor::spawn(on_behalf_of(trace, async move {
        peer.call(&RemoveObjectsRequest { inos }).await.map(drop)
    }))
}
