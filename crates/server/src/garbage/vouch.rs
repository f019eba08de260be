//! Vouching for files that never had a byte on a storage that was lost.

use super::setup::{BATCH, GATHER, RETRY, Setup};
use crate::step::{StepError, on_behalf_of};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_layout::ChainId;
use weft_meta::{Engine, MetaError, ServerRecord, run_again};
use weft_reactor::JoinHandle;
use weft_wire::messages::VouchEmptyRequest;

/// Tells I/O servers with a new storage which older files never had a byte on the one before: of those
/// nothing is lost. Each server has a task, so that none waits for another one.
pub(super) async fn run<E: Engine + 'static>(setup: Rc<Setup<E>>) {
    setup.confirmed().await;
    let mut under_way: BTreeMap<u16, JoinHandle<()>> = BTreeMap::new();
    loop {
        under_way.retain(|_, task| !task.is_finished());
        let mut left = false;
        for (id, record) in behind(&setup) {
            left = true;
            let server = setup.clone();
            under_way.entry(id).or_insert_with(|| weft_reactor::spawn(vouch(server, id, record)));
        }
        let limit = if left { RETRY } else { Duration::MAX };
        setup.poke.wait_to_vouch(limit).await;
        weft_reactor::sleep(GATHER).await;
    }
}

/// Servers that have not heard of all their files.
fn behind<E: Engine>(setup: &Setup<E>) -> Vec<(u16, ServerRecord)> {
    let servers = setup.ask(|namespace| Ok(namespace.servers()?)).unwrap_or_else(|error| {
        setup.failed("look for new storages", &error);
        Vec::new()
    });
    servers.into_iter().filter(|(_, record)| record.vouched_below_ino < record.lost_below_ino).collect()
}

async fn vouch<E: Engine>(setup: Rc<Setup<E>>, id: u16, mut record: ServerRecord) {
    let all = async {
        while record.vouched_below_ino < record.lost_below_ino {
            let Some(newer) = vouch_for_some(&setup, id, &record).await? else { break };
            record = newer;
            weft_reactor::yield_now().await;
        }
        Ok(())
    };
    if let Err(error) = on_behalf_of(0, all).await {
        setup.failed("tell a new storage which files it has nothing of", &error);
    }
}

/// Returns what is noted of the server now; `None` where it is gone.
async fn vouch_for_some<E: Engine>(
    setup: &Setup<E>,
    id: u16,
    record: &ServerRecord,
) -> Result<Option<ServerRecord>, StepError> {
    let (after, below) = (record.vouched_below_ino, record.lost_below_ino);
    let chain = ChainId::of_single(id);
    let (mut inos, last) =
        setup.ask(|namespace| run_again(|| namespace.begin().files_empty_on(chain, after, BATCH)))?;
    inos.retain(|ino| *ino < below);
    let Some(peer) = setup.peers.get(id) else { return Ok(None) };
    if !inos.is_empty() {
        peer.call(&VouchEmptyRequest { inos }).await?;
    }
    let vouched_below_ino = last.unwrap_or(below).min(below);
    setup.ask(|namespace| {
        let Some(now) = namespace.server(id)? else { return Ok(None) };
        if now.lost_below_ino != below {
            return Ok(Some(now));
        }
        let now = ServerRecord { vouched_below_ino, ..now };
        namespace.change(|op| {
            op.put_server(id, &now);
            Ok::<_, MetaError>(())
        })?;
        Ok(Some(now))
    })
}
