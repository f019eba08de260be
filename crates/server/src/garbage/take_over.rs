//! Going on from a copy of the metadata store that is older than the data files.

use super::setup::{BATCH, Setup};
use crate::log;
use crate::step::StepError;
use std::collections::BTreeSet;
use std::time::Duration;
use weft_layout::shard_of;
use weft_meta::{Engine, MetaError, Namespace, ServerRecord};
use weft_wire::messages::{ListObjectsRequest, RevokedRequest};

/// How long after a failure it is tried again to take over the data of I/O servers.
const TAKE_OVER_AGAIN: Duration = Duration::from_millis(200);

/// Prepares a metadata store that was put back from a copy: inode numbers go on behind those of all data
/// files, and what a file of the names has no data file for is lost, not empty.
pub(super) async fn take_over<E: Engine>(setup: &Setup<E>) {
    loop {
        let Err(error) = try_to_take_over(setup).await else {
            return setup.restore.done.set(true);
        };
        setup.failed("take over the data of all I/O servers, which must be up", &error);
        weft_reactor::sleep(TAKE_OVER_AGAIN).await;
    }
}

async fn try_to_take_over<E: Engine>(setup: &Setup<E>) -> Result<(), StepError> {
    ask_for_revoked(setup).await?;
    let greatest = greatest_data_file(setup).await?;
    go_on_behind(setup, greatest).await
}

/// Keys that were revoked after the copy was made are revoked here, too: I/O servers know them.
async fn ask_for_revoked<E: Engine>(setup: &Setup<E>) -> Result<(), StepError> {
    let mut ids = BTreeSet::new();
    for id in setup.peers.ids() {
        if let Some(peer) = setup.peers.get(id) {
            ids.extend(peer.call(&RevokedRequest {}).await?.ids);
        }
    }
    setup.shared.revoked.add(&ids);
    setup.restore.revoked.replace(ids);
    Ok(())
}

async fn greatest_data_file<E: Engine>(setup: &Setup<E>) -> Result<u64, StepError> {
    let shard = setup.ask(|namespace| Ok(namespace.shard()))?;
    let mut greatest = 0;
    for id in setup.peers.ids() {
        let mut cursor = 0;
        while let Some(peer) = setup.peers.get(id) {
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

async fn go_on_behind<E: Engine>(setup: &Setup<E>, greatest: u64) -> Result<(), StepError> {
    let random = u64::from_le_bytes(weft_host::random()?);
    let from = setup.ask(|namespace| forget_below(namespace, greatest + 1, random))?;
    setup.sync().await?;
    log::warning!(
        &setup.shared.name,
        "this store is an older copy: new files get inode numbers from {from} on, data files of smaller \
         numbers that no name leads to are kept (weft fsck lists them), and reading data that was removed since \
         is an error"
    );
    Ok(())
}

/// A store that was put back from a copy goes on with inode numbers from `ino` at least, and counts what is
/// missing of smaller ones as lost. How far it goes beyond `ino`, `random` decides. Returns the next number.
pub(crate) fn forget_below<E: Engine>(
    namespace: &mut Namespace<E>,
    ino: u64,
    random: u64,
) -> Result<u64, MetaError> {
    let known = namespace.servers()?;
    let ino = namespace.number_apart(ino, random);
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
