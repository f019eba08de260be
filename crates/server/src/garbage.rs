//! Removing data files whose inodes are gone, by a task of the metadata server.
//!
//! ```text
//!   unlink ─► garbage record ─► poke ─► make the unlink durable ─► RemoveObjects on the file's servers ─► record gone
//!                                              a server is down: its files' records stay, tried again later
//!
//!   now and then: ListObjects of every server ─► old, and no such inode? ─► RemoveObjects
//! ```
//!
//! The second way finds what no record tells of: files whose creation was lost with a power cut while their data was
//! already there.

use crate::clock::unix_s;
use crate::config::ClusterSection;
use crate::current::{CurrentMap, Peers};
use crate::key_ring::KeyRing;
use crate::log;
use crate::meta::durable::Durability;
use crate::meta::registry::Restore;
use crate::poke::Poke;
use crate::shared::Shared;
use crate::step::{StepError, on_behalf_of};
use crate::stop::StopFlag;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use weft_layout::Layout;
use weft_meta::{Engine, MetaError, Namespace, ServerRecord, run_again, shard_of};
use weft_wire::messages::{ListObjectsRequest, RemoveObjectsRequest, RevokedRequest, VouchEmptyRequest};

/// Files removed in one step.
const BATCH: usize = 1024;
/// How long pokes are gathered before their work is done.
const GATHER: Duration = Duration::from_millis(20);
/// How long a server that is down is left alone.
const RETRY: Duration = Duration::from_secs(5);
/// The first scan begins this long after the start, or after the interval if that is shorter.
const FIRST_SCAN: Duration = Duration::from_secs(60);
/// How long after a failure it is tried again to take over the data of I/O servers.
const TAKE_OVER_AGAIN: Duration = Duration::from_millis(200);

/// What the remover needs.
pub(crate) struct Setup<E: Engine> {
    pub cluster: ClusterSection,
    pub map: CurrentMap,
    pub keys: KeyRing,
    pub stop: StopFlag,
    pub poke: Poke,
    pub namespace: Rc<RefCell<Namespace<E>>>,
    pub durability: Rc<Durability>,
    pub shared: Arc<Shared>,
    pub restore: Restore,
}

/// Removes data files, as long as the reactor runs.
pub(crate) async fn run<E: Engine + 'static>(setup: Setup<E>) {
    Remover::new(setup).run().await
}

struct Remover<E: Engine> {
    setup: Setup<E>,
    peers: Peers,
    /// Servers that did not answer lately, by id, and when to try them again.
    down_until: BTreeMap<u16, Instant>,
    /// When to go on telling new storages which files they have nothing of.
    vouch_again: Option<Instant>,
    removed_files: Arc<AtomicU64>,
    orphans_removed: Arc<AtomicU64>,
    scans_done: Arc<AtomicU64>,
}

impl<E: Engine + 'static> Remover<E> {
    fn new(setup: Setup<E>) -> Remover<E> {
        Remover {
            peers: Peers::new(setup.map.clone(), setup.keys.clone()),
            down_until: BTreeMap::new(),
            vouch_again: None,
            removed_files: setup.shared.counters.gauge("garbage_removed_files"),
            orphans_removed: setup.shared.counters.gauge("orphans_removed_files"),
            scans_done: setup.shared.counters.gauge("orphan_scans"),
            setup,
        }
    }

    async fn run(mut self) {
        if self.setup.restore.wanted {
            self.take_over().await;
        }
        while !self.setup.shared.confirmed.is() {
            weft_reactor::sleep(GATHER).await;
        }
        let interval = Duration::from_secs(self.setup.cluster.scrub_interval_s);
        let mut next_scan = Instant::now() + interval.min(FIRST_SCAN);
        let mut waiting = true;
        loop {
            let retry = self.down_until.values().copied().chain(self.vouch_again).min().filter(|_| waiting);
            let poked = self.setup.poke.wait(retry.map_or(next_scan, |retry| retry.min(next_scan))).await;
            let now = Instant::now();
            if poked || retry.is_some_and(|retry| retry <= now) {
                weft_reactor::sleep(GATHER).await;
                let trace = self.setup.poke.take_trace();
                self.down_until.retain(|_, until| *until > now);
                waiting = on_behalf_of(trace, self.remove_and_vouch(now)).await;
            }
            if now >= next_scan {
                next_scan = now + interval;
                match self.scan().await {
                    Ok(()) => drop(self.scans_done.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => drop(self.failed("look for orphaned data files", &error)),
                }
            }
        }
    }

    /// Does what there is to do. Says whether some is left because servers are down.
    async fn remove_and_vouch(&mut self, now: Instant) -> bool {
        let removed = self.remove_garbage().await;
        let waiting = removed.unwrap_or_else(|error| self.failed("remove data files", &error));
        let vouched = self.vouch().await;
        self.vouch_again = vouched.is_err().then(|| now + RETRY);
        match vouched {
            Ok(()) => waiting,
            Err(error) => self.failed("tell a new storage which files it has nothing of", &error),
        }
    }

    /// Makes durable what was committed.
    async fn sync(&self) -> Result<(), StepError> {
        let committed = self.setup.namespace.borrow().committed();
        self.setup.durability.wait(committed).await.map_err(StepError::Store)
    }

    /// Tells of a failure, unless the server is stopping. There may be work left.
    fn failed(&self, what: &str, error: &StepError) -> bool {
        if !self.setup.stop.is_stopped() && log::once_a_minute(&format!("{what} {error}")) {
            log::warning!(&self.setup.shared.name, "cannot {what} now, will try again: {error}");
        }
        true
    }

    /// Does something with the names.
    fn ask<R>(&self, work: impl FnOnce(&mut Namespace<E>) -> Result<R, MetaError>) -> Result<R, StepError> {
        Ok(work(&mut self.setup.namespace.borrow_mut())?)
    }

    /// Removes the data files of all garbage records. Says whether some are left because servers are down.
    async fn remove_garbage(&mut self) -> Result<bool, StepError> {
        let mut after = 0;
        let mut left = false;
        loop {
            let page = self.ask(move |namespace| run_again(|| namespace.begin().garbage(after, BATCH)))?;
            let Some((last, _)) = page.last() else { return Ok(left) };
            after = *last;
            // A power cut must not bring back a name whose data is gone.
            self.sync().await?;
            let failed = self.remove_on_servers(&page).await?;
            let done: Vec<u64> =
                page.iter().map(|(ino, _)| *ino).filter(|ino| !failed.contains(ino)).collect();
            left |= !failed.is_empty();
            self.removed_files.fetch_add(done.len() as u64, Ordering::Relaxed);
            self.ask(move |namespace| {
                namespace.change(|op| {
                    op.garbage_done(&done);
                    Ok(())
                })
            })?;
        }
    }

    /// Removes files on each of their servers. Returns those that could not be removed everywhere.
    async fn remove_on_servers(&mut self, page: &[(u64, Layout)]) -> Result<HashSet<u64>, StepError> {
        let mut by_server: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        for (ino, layout) in page {
            for slot in 0..layout.server_count() {
                by_server.entry(layout.server_id(slot)).or_default().push(*ino);
            }
        }
        let mut failed = HashSet::new();
        for (id, inos) in by_server {
            let down = self.down_until.contains_key(&id);
            let Some(peer) = self.peers.get(id).filter(|_| !down) else {
                failed.extend(inos);
                continue;
            };
            match peer.call(&RemoveObjectsRequest { inos: inos.clone() }).await {
                Ok(_) => {}
                Err(error) => {
                    self.down_until.insert(id, Instant::now() + RETRY);
                    self.failed("remove data files", &error.into());
                    failed.extend(inos);
                }
            }
        }
        Ok(failed)
    }

    /// Looks through all data files for such whose inodes are gone.
    async fn scan(&mut self) -> Result<(), StepError> {
        let judged = self.ask(|namespace| numbers_to_judge(namespace))?;
        let old_s = unix_s().saturating_sub(self.setup.cluster.orphan_age_s) as i64;
        for id in self.peers.ids() {
            let mut cursor = 0;
            loop {
                let request = ListObjectsRequest { cursor, entries_max: BATCH as u32 };
                let Some(peer) = self.peers.get(id) else { break };
                let page = peer.call(&request).await?;
                let old = page
                    .objects
                    .iter()
                    .filter(|object| judged.contains(&object.ino) && object.mtime_s <= old_s);
                self.remove_orphans(id, old.map(|object| object.ino).collect()).await?;
                cursor = page.cursor;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Tells I/O servers with a new storage which older files never had a byte on the one before: of those nothing is lost.
    async fn vouch(&mut self) -> Result<(), StepError> {
        for (id, mut record) in self.ask(|namespace| Ok(namespace.servers()?))? {
            while record.vouched_below_ino < record.lost_below_ino {
                let after = record.vouched_below_ino;
                let (mut inos, last) = self
                    .ask(move |namespace| run_again(|| namespace.begin().files_empty_on(id, after, BATCH)))?;
                let below = record.lost_below_ino;
                inos.retain(|ino| *ino < below);
                let Some(peer) = self.peers.get(id) else { break };
                if !inos.is_empty() {
                    peer.call(&VouchEmptyRequest { inos }).await?;
                }
                let vouched = last.unwrap_or(below).min(below);
                let Some(newer) = self.ask(move |namespace| {
                    let Some(now) = namespace.server(id)? else { return Ok(None) };
                    if now.lost_below_ino != below {
                        return Ok(Some(now));
                    }
                    let now = ServerRecord { vouched_below_ino: vouched, ..now };
                    namespace.change(|op| {
                        op.put_server(id, &now);
                        Ok::<_, MetaError>(())
                    })?;
                    Ok(Some(now))
                })?
                else {
                    break;
                };
                record = newer;
                weft_reactor::yield_now().await;
            }
        }
        Ok(())
    }

    /// Prepares a metadata store that was put back from a copy: inode numbers go on behind those of all data files, and what a
    /// file of the names has no data file for is lost, not empty.
    async fn take_over(&mut self) {
        loop {
            let Err(error) = self.try_to_take_over().await else {
                return self.setup.restore.done.store(true, Ordering::Release);
            };
            self.failed("take over the data of all I/O servers, which must be up", &error);
            self.setup.poke.wait(Instant::now() + TAKE_OVER_AGAIN).await;
        }
    }

    async fn try_to_take_over(&mut self) -> Result<(), StepError> {
        self.ask_for_revoked().await?;
        let greatest = self.greatest_data_file().await?;
        self.forget_below(greatest + 1).await
    }

    /// Keys that were revoked after the copy was made are revoked here, too: I/O servers know them.
    async fn ask_for_revoked(&mut self) -> Result<(), StepError> {
        let mut ids = BTreeSet::new();
        for id in self.peers.ids() {
            if let Some(peer) = self.peers.get(id) {
                ids.extend(peer.call(&RevokedRequest {}).await?.ids);
            }
        }
        self.setup.shared.revoked.add(&ids);
        *self.setup.restore.revoked.lock().unwrap_or_else(PoisonError::into_inner) = ids;
        Ok(())
    }

    async fn greatest_data_file(&mut self) -> Result<u64, StepError> {
        let shard = self.ask(|namespace| Ok(namespace.shard()))?;
        let mut greatest = 0;
        for id in self.peers.ids() {
            let mut cursor = 0;
            while let Some(peer) = self.peers.get(id) {
                let page = peer.call(&ListObjectsRequest { cursor, entries_max: BATCH as u32 }).await?;
                let own = page.objects.iter().map(|object| object.ino).filter(|ino| shard_of(*ino) == shard);
                greatest = own.max().unwrap_or(0).max(greatest);
                cursor = page.cursor;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(greatest)
    }

    async fn forget_below(&mut self, ino: u64) -> Result<(), StepError> {
        let from = self.ask(move |namespace| forget_below(namespace, ino))?;
        self.sync().await?;
        log::warning!(
            &self.setup.shared.name,
            "this store is an older copy: new files get inode numbers from {from} on, data files of smaller numbers that no name \
             leads to are kept (weft fsck lists them), and reading data that was removed since is an error"
        );
        Ok(())
    }

    async fn remove_orphans(&mut self, id: u16, inos: Vec<u64>) -> Result<(), StepError> {
        let gone = self.ask(move |namespace| without_inode(namespace, inos))?;
        if gone.is_empty() {
            return Ok(());
        }
        let count = gone.len();
        let Some(peer) = self.peers.get(id) else { return Ok(()) };
        peer.call(&RemoveObjectsRequest { inos: gone }).await?;
        self.orphans_removed.fetch_add(count as u64, Ordering::Relaxed);
        log::info!(&self.setup.shared.name, "removed {count} orphaned data files from {}", peer.name());
        Ok(())
    }
}

/// The inode numbers that a scan may judge by the names: those that this store has given out itself, as far as it knows. To be
/// asked before data files are listed.
pub(crate) fn numbers_to_judge<E: Engine>(namespace: &Namespace<E>) -> Result<Range<u64>, MetaError> {
    Ok(namespace.vouched_from()?..namespace.next_ino())
}

/// Those of them that no inode has.
pub(crate) fn without_inode<E: Engine>(
    namespace: &mut Namespace<E>,
    inos: Vec<u64>,
) -> Result<Vec<u64>, MetaError> {
    let exist = run_again(|| namespace.begin().inodes_exist(&inos))?;
    Ok(inos.into_iter().zip(exist).filter(|(_, exists)| !exists).map(|(ino, _)| ino).collect())
}

/// A store that was put back from a copy goes on with inode numbers from `ino` at least, and counts what is missing of smaller
/// ones as lost. Returns the next number.
pub(crate) fn forget_below<E: Engine>(namespace: &mut Namespace<E>, ino: u64) -> Result<u64, MetaError> {
    let known = namespace.servers()?;
    let (from, _) = namespace.change(|op| {
        let from = op.forgets_below(ino);
        for (id, record) in &known {
            let record = ServerRecord { lost_below_ino: from, vouched_below_ino: 0, ..record.clone() };
            op.put_server(*id, &record);
        }
        Ok::<_, MetaError>(from)
    })?;
    Ok(from)
}
