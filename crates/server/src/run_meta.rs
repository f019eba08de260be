//! The threads of a metadata server.
//!
//! ```text
//!   main thread    connections and the namespace
//!   weft-garbage   removes data files on I/O servers            (garbage.rs)
//!   weft-keys      sends the list of revoked keys to them       (announce.rs)
//!   weft-fsck      while there is a check                       (fsck.rs)
//! ```

use crate::announce::Announcer;
use crate::fsck;
use crate::garbage;
use crate::letters::Letter;
use crate::listen::{Doors, Host, PerThread};
use crate::log;
use crate::map::FileMap;
use crate::meta::MetaPart;
use crate::meta::registry::{Registry, Restore};
use crate::meta_service::MetaService;
use crate::node::Node;
use crate::poke::Poke;
use crate::run::{End, Run, accept_and_serve};
use crate::storage::Names;
use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;
use weft_meta::{FjallEngine, Namespace};
use weft_reactor::{MailSender, Mailbox, Reactor, mailbox};
use weft_verbs::Fabric;

/// Pieces of work of other threads that wait for the metadata thread.
const LETTERS_MAX: usize = 64;

/// Work for the metadata thread.
type Letters = (MailSender<Letter<FjallEngine>>, Mailbox<Letter<FjallEngine>>);

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
    let (letters, letterbox): Letters = mailbox(LETTERS_MAX);
    let (poke, announcer) = (Poke::default(), Announcer::new(run.shared.map.clone()));
    let restore = restore_of(run, &names.namespace, restore)?;
    let checks = fsck::Setup {
        map: run.shared.map.clone(),
        keys: run.shared.keys.clone(),
        stop: run.stop.clone(),
        namespace: letters.clone(),
        orphan_age_s: run.config.cluster.orphan_age_s,
    };
    let remover = start_remover(run, &names, letters, poke.clone(), restore.clone())?;
    let keys = announcer.start(run.shared.keys.clone(), run.stop.clone())?;
    let served = reactor.run(async {
        let meta = start_part(run, names, announcer, poke, restore)?;
        meta.allow_checks(checks);
        weft_reactor::spawn(do_letters(meta.clone(), letterbox));
        weft_reactor::spawn(follow_file(meta.clone(), files));
        meta.poke_garbage();
        run.follow_keys();
        let service = MetaService::new(Node::new(run.shared.clone()), meta.clone());
        let transports = PerThread::start(&run.shared, 0, run.server.spin_us);
        let host = Host { service, transports };
        accept_and_serve(host, &run.stop, doors, Vec::new()).await?;
        Ok(end(run, &meta).await)
    });
    drop(reactor);
    // They end by the same flag; a panic of theirs has been printed.
    let _ = remover.join();
    let _ = keys.join();
    served
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

fn start_remover(
    run: &Run,
    names: &Names,
    namespace: MailSender<Letter<FjallEngine>>,
    poke: Poke,
    restore: Restore,
) -> io::Result<JoinHandle<()>> {
    garbage::start(garbage::Setup {
        cluster: run.config.cluster.clone(),
        map: run.shared.map.clone(),
        keys: run.shared.keys.clone(),
        stop: run.stop.clone(),
        poke,
        namespace,
        syncer: names.namespace.syncer(),
        shared: run.shared.clone(),
        restore,
    })
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

async fn do_letters(meta: Rc<MetaPart<FjallEngine>>, mut letterbox: Mailbox<Letter<FjallEngine>>) {
    while let Some(letter) = letterbox.receive().await {
        letter(&mut meta.namespace.borrow_mut());
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
