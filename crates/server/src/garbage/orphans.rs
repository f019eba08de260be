//! Looking for data files whose inodes are gone and of which no record tells.

use super::setup::{BATCH, Setup};
use crate::clock::unix_s;
use crate::log;
use crate::step::{StepError, on_behalf_of};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weft_meta::{Engine, MetaError, Namespace, run_again};
use weft_wire::messages::{ListObjectsRequest, RemoveObjectsRequest};

/// The first scan begins this long after the start, or after the interval if that is shorter.
const FIRST_SCAN: Duration = Duration::from_secs(60);

/// Scans all servers now and then.
pub(super) async fn run<E: Engine + 'static>(setup: Rc<Setup<E>>) {
    let scans_done = setup.shared.counters.gauge("orphan_scans");
    let removed_files = setup.shared.counters.gauge("orphans_removed_files");
    setup.confirmed().await;
    let interval = Duration::from_secs(setup.cluster.scrub_interval_s);
    weft_reactor::sleep(interval.min(FIRST_SCAN)).await;
    loop {
        let begun = Instant::now();
        if scan(&setup, &removed_files).await {
            scans_done.fetch_add(1, Ordering::Relaxed);
        }
        weft_reactor::sleep(interval.saturating_sub(begun.elapsed())).await;
    }
}

/// Looks through the data files of all servers at once, so that none waits for another one. Returns whether
/// all could be looked through.
async fn scan<E: Engine + 'static>(setup: &Rc<Setup<E>>, removed_files: &Arc<AtomicU64>) -> bool {
    let judged = match setup.ask(|namespace| numbers_to_judge(namespace)) {
        Ok(judged) => judged,
        Err(error) => {
            setup.failed("look for orphaned data files", &error);
            return false;
        }
    };
    let scans: Vec<_> = (setup.peers.ids().into_iter())
        .map(|id| {
            let (setup, judged, removed) = (setup.clone(), judged.clone(), removed_files.clone());
            weft_reactor::spawn(on_behalf_of(
                0,
                async move { scan_server(&setup, id, judged, &removed).await },
            ))
        })
        .collect();
    let mut is_complete = true;
    for scan in scans {
        if let Err(error) = scan.await {
            setup.failed("look for orphaned data files", &error);
            is_complete = false;
        }
    }
    is_complete
}

async fn scan_server<E: Engine>(
    setup: &Setup<E>,
    id: u16,
    judged: Range<u64>,
    removed_files: &AtomicU64,
) -> Result<(), StepError> {
    let old_s = unix_s().saturating_sub(setup.cluster.orphan_age_s) as i64;
    let mut cursor = 0;
    while let Some(peer) = setup.peers.get(id) {
        let page = peer.call(&ListObjectsRequest { cursor, entries_max: BATCH as u32 }).await?;
        let old =
            page.objects.iter().filter(|object| judged.contains(&object.ino) && object.mtime_s <= old_s);
        let removed = remove_orphans(setup, id, old.map(|object| object.ino).collect()).await?;
        removed_files.fetch_add(removed, Ordering::Relaxed);
        cursor = page.cursor;
        if cursor == 0 {
            // A crash in the middle of a removal leaves traces of data files that are gone, and their files are, too.
            let missing = page.missing.0.into_iter().filter(|ino| judged.contains(ino));
            remove_orphans(setup, id, missing.collect()).await?;
            break;
        }
    }
    Ok(())
}

/// Returns how many were removed.
async fn remove_orphans<E: Engine>(setup: &Setup<E>, id: u16, inos: Vec<u64>) -> Result<u64, StepError> {
    let gone = setup.ask(|namespace| without_inode(namespace, inos))?;
    let Some(peer) = setup.peers.get(id).filter(|_| !gone.is_empty()) else { return Ok(0) };
    let count = gone.len();
    peer.call(&RemoveObjectsRequest { inos: gone }).await?;
    log::info!(&setup.shared.name, "removed {count} orphaned data files from {}", peer.name());
    Ok(count as u64)
}

/// The inode numbers that a scan may judge by the names: those that this store has given out itself, as far
/// as it knows. To be asked before data files are listed.
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
