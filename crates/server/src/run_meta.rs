//! The tasks of a metadata server, all on one thread.
//!
//! ```text
//!   accept     connections, and requests on the namespace
//!   garbage    removes data files on I/O servers
//!   announce   sends them the list of revoked keys
//!   fsck       while there is a check
//! ```

use crate::announce::Announcer;
use crate::current::Peers;
use crate::fsck;
use crate::garbage;
use crate::listen::{Doors, Host, PerThread};
use crate::log;
use crate::map::FileMap;
use crate::meta::MetaPart;
use crate::meta::registry::{Registry, Restore};
use crate::meta_service::MetaService;
use crate::node::Node;
use crate::poke::Poke;
use crate::run::{End, Run, accept_and_serve};
use crate::shared::Shared;
use crate::storage::Names;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use weft_meta::{FjallEngine, Namespace};
use weft_reactor::{Mailbox, Reactor};
use weft_verbs::Fabric;

/// How old the gauges of the names may be in the metrics.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Runs a metadata server. `files` are cluster files that were read again; with `restore` it goes on although
/// its store is older than the I/O servers know.
pub(crate) fn run<F: Fabric>(
    run: &Run,
    names: Names,
    files: Mailbox<FileMap>,
    restore: bool,
    doors: Doors<F>,
) -> io::Result<End> {
    let reactor = Reactor::new(run.reactor_options(None))?;
    let restore = restore_of(run, &names.namespace, restore)?;
    reactor.run(async {
        let peers = Rc::new(Peers::new(run.shared.map.clone(), run.shared.keys.clone()));
        let (poke, announcer) = (Poke::default(), Announcer::new(peers.clone()));
        let meta = start_part(run, names, announcer.clone(), poke.clone(), restore.clone())?;
        meta.allow_checks(checks_of(run, &meta, peers.clone()));
        meta.spread_over(peers.clone());
        weft_reactor::spawn(garbage::run(garbage_of(run, &meta, peers, poke, restore)));
        weft_reactor::spawn(announcer.run());
        weft_reactor::spawn(follow_file(meta.clone(), files));
        meta.poke_garbage();
        run.follow_keys();
        let service = MetaService::new(Node::new(run.shared.clone()), meta.clone());
        if run.shared.counters.keeps_times() {
            weft_reactor::spawn(tell_gauges(service.clone(), run.shared.clone()));
        }
        let transports = PerThread::start(&run.shared, 0, run.server.spin_us);
        let host = Host { service, transports };
        accept_and_serve(host, &run.stop, doors, Vec::new()).await?;
        Ok(end(run, &meta).await)
    })
}

fn restore_of(run: &Run, namespace: &Namespace<FjallEngine>, wanted: bool) -> io::Result<Restore> {
    let was_loaded = namespace.was_loaded().map_err(io::Error::other)?;
    if was_loaded {
        log::warning!(
            &run.shared.name,
            "goes on from a backup or an older copy as soon as all I/O servers are up; what came after it is given up"
        );
    }
    Ok(Restore { wanted: wanted || was_loaded, ..Restore::default() })
}

fn checks_of(run: &Run, meta: &MetaPart<FjallEngine>, peers: Rc<Peers>) -> fsck::Setup<FjallEngine> {
    fsck::Setup {
        map: run.shared.map.clone(),
        peers,
        stop: run.stop.clone(),
        namespace: meta.namespace.clone(),
        orphan_age_s: run.config.cluster.orphan_age_s,
    }
}

fn garbage_of(
    run: &Run,
    meta: &MetaPart<FjallEngine>,
    peers: Rc<Peers>,
    poke: Poke,
    restore: Restore,
) -> garbage::Setup<FjallEngine> {
    garbage::Setup {
        cluster: run.config.cluster.clone(),
        peers,
        stop: run.stop.clone(),
        poke,
        namespace: meta.namespace.clone(),
        durability: meta.durability.clone(),
        shared: run.shared.clone(),
        restore,
    }
}

/// The metadata server's part, on the current reactor.
fn start_part(
    run: &Run,
    names: Names,
    announcer: Announcer,
    poke: Poke,
    restore: Restore,
) -> io::Result<Rc<MetaPart<FjallEngine>>> {
    let (shared, ring_servers) = (&run.shared, names.map.ring_servers());
    let (keys, stop) = (shared.keys.clone(), run.stop.clone());
    let meta = MetaPart::start(names.namespace, shared.sync, keys, ring_servers, poke, stop)?;
    meta.keep_map(&shared.name, names.map, shared.map.clone());
    let is_restoring = restore.wanted;
    let (name, confirmed) = (shared.name.clone(), shared.confirmed.clone());
    meta.keep_registry(Registry::new(name, names.own, weft_host::random()?, confirmed, restore));
    shared.revoked.set(meta.revoked_keys())?;
    meta.announce_by(announcer, is_restoring);
    Ok(meta)
}

/// Says what only this thread knows, for the metrics.
async fn tell_gauges(service: Rc<MetaService<FjallEngine>>, shared: Arc<Shared>) {
    loop {
        shared.counters.tell(service.gauges());
        weft_reactor::sleep(TELL_EVERY).await;
    }
}

async fn follow_file(meta: Rc<MetaPart<FjallEngine>>, mut files: Mailbox<FileMap>) {
    while let Some(file) = files.receive().await {
        meta.read_file_again(file).await;
    }
}

/// Makes the last changes durable, and says why the server ends.
async fn end(run: &Run, meta: &MetaPart<FjallEngine>) -> End {
    if meta.failure().is_none()
        && let Err(refusal) = meta.sync_all().await
    {
        log::warning!(&run.shared.name, "cannot make the last changes durable: {}", refusal.text);
    }
    match (meta.storage_failure(), meta.failure()) {
        (Some(reason), _) => End::WrongStorage(reason),
        (None, Some(reason)) => End::StoreFailed(reason),
        (None, None) => End::Asked,
    }
}
