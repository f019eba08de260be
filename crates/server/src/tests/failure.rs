//! A store that fails ends its server, and no client is told that something is done which is not.

use super::support::{ROOT, config};
use crate::config::SyncMode;
use crate::garbage::Poke;
use crate::meta::{Call, MetaPart, now};
use crate::stop::StopFlag;
use weft_meta::{Engine, MemEngine, Namespace, NamespaceOptions, SessionId};
use weft_reactor::{Reactor, ReactorOptions};
use weft_wire::messages::{At, MkdirRequest};
use weft_wire::{Header, Op, Status};

fn mkdir(request_id: u64) -> (Call, MkdirRequest) {
    let header = Header { slot: 1, ..Header::request(Op::Mkdir, request_id) };
    let at = At { dir: 1, path: format!("d{request_id}").into() };
    let call = Call { header, session: SessionId([3; 16]) };
    (call, MkdirRequest { caller: ROOT, at, mode: 0o755, layout: None })
}

fn fails(sync: SyncMode) {
    let config = config(1, sync);
    let mut engine = MemEngine::new();
    Namespace::format(&mut engine, config.cluster.id.0, &weft_meta::Caller::root(), now()).unwrap();
    let namespace = Namespace::open(engine, NamespaceOptions::default()).unwrap();
    let stop = StopFlag::new().unwrap();
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        let key = super::support::cluster_key();
        let meta = MetaPart::start(namespace, sync, &key, 1, Poke::default(), stop.clone()).unwrap();
        let (call, request) = mkdir(1);
        meta.mkdir(&call, request).await.unwrap();
        assert!(!stop.is_stopped() && meta.failure().is_none());
        meta.namespace.borrow().engine().set_failing();
        let (call, request) = mkdir(2);
        let refusal = meta.mkdir(&call, request).await.unwrap_err();
        assert_eq!(refusal.status, Status::ShuttingDown, "{}: clients ask the next run", refusal.text);
        assert!(stop.is_stopped() && meta.failure().unwrap().contains("restart"));
        assert!(meta.namespace.borrow().engine().committed() > 0);
    });
}

#[test]
fn a_failed_commit_ends_the_server() {
    fails(SyncMode::Nosync);
    fails(SyncMode::Sync);
}

#[test]
fn a_failed_background_sync_ends_the_server() {
    let config = config(1, SyncMode::Nosync);
    let mut engine = MemEngine::new();
    Namespace::format(&mut engine, config.cluster.id.0, &weft_meta::Caller::root(), now()).unwrap();
    let namespace = Namespace::open(engine, NamespaceOptions::default()).unwrap();
    let stop = StopFlag::new().unwrap();
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        let key = super::support::cluster_key();
        let meta =
            MetaPart::start(namespace, SyncMode::Nosync, &key, 1, Poke::default(), stop.clone()).unwrap();
        let (call, request) = mkdir(1);
        meta.mkdir(&call, request).await.unwrap();
        meta.namespace.borrow().engine().set_failing();
        weft_reactor::timeout(std::time::Duration::from_secs(60), stop.wait()).await.unwrap().unwrap();
        assert!(meta.failure().is_some());
    });
}
