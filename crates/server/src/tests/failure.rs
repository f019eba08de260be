//! No client is told that something is done which is not: a store of names that fails ends its server, and a data file that could
//! not be synced is told to all who wrote to it.

use super::support::{Client, Cluster, ROOT, STUCK_MS, Way, cluster_key, config};
use crate::clock::now;
use crate::config::SyncMode;
use crate::meta::{Call, MetaPart};
use crate::poke::Poke;
use crate::stop::StopFlag;
use std::time::Instant;
use weft_layout::{Layout, Regions};
use weft_meta::{Engine, MemEngine, Namespace, NamespaceOptions, SessionId};
use weft_reactor::{Reactor, ReactorOptions};
use weft_storage::FaultPlan;
use weft_transport::Link;
use weft_wire::messages::*;
use weft_wire::security::Capability;
use weft_wire::{Added, Header, Op, Status};

fn mkdir(request_id: u64) -> (Call, MkdirRequest) {
    let header = Header { slot: 1, ..Header::request(Op::Mkdir, request_id) };
    let at = At { dir: 1, path: format!("d{request_id}").into() };
    let call = Call {
        header,
        session: SessionId([3; 16]),
        member: 0,
        holder: weft_wire::security::Holder::SERVERS,
        trusted_with_sizes: true,
    };
    (call, MkdirRequest { caller: ROOT, at, mode: 0o755, layout: None, with_dir: Added(false) })
}

fn fails(sync: SyncMode) {
    let config = config(1, sync);
    let mut engine = MemEngine::new();
    Namespace::format(&mut engine, config.cluster.id.0, &weft_meta::Caller::root(), now()).unwrap();
    let namespace = Namespace::open(engine, NamespaceOptions::default()).unwrap();
    let stop = StopFlag::new().unwrap();
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        let key = super::support::key_ring();
        let meta = MetaPart::start(namespace, sync, key, 1, Poke::default(), stop.clone()).unwrap();
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
        let key = super::support::key_ring();
        let meta =
            MetaPart::start(namespace, SyncMode::Nosync, key, 1, Poke::default(), stop.clone()).unwrap();
        let (call, request) = mkdir(1);
        meta.mkdir(&call, request).await.unwrap();
        meta.namespace.borrow().engine().set_failing();
        weft_reactor::timeout(std::time::Duration::from_secs(10), stop.wait()).await.unwrap().unwrap();
        assert!(meta.failure().is_some());
    });
}

const ALL: u32 = rights::READ | rights::WRITE;

fn capability(ino: u64) -> Capability {
    let layout = Layout::new(4096, 0, 1, 1).unwrap();
    let holder = weft_wire::security::Holder::of_key(&super::support::client_key().info.id);
    Capability::sign(&cluster_key().capability_key(), holder, ino, ALL, u64::MAX, layout)
}

/// Every kind of change of a data file: the loss epoch in its answer, or how it was refused.
type Change<L> = fn(&mut Client<L>) -> Result<u64, Status>;

fn changes<L: Link>() -> Vec<(&'static str, Change<L>)> {
    fn of<T>(answer: Result<T, super::support::Refused>, loss_epoch: fn(&T) -> u64) -> Result<u64, Status> {
        answer.map(|reply| loss_epoch(&reply)).map_err(|refused| refused.status)
    }
    vec![
        ("write", |io| {
            of(io.write(&capability(7), 0, &Regions::contiguous(0, 9), &[1; 9]), |r| r.loss_epoch)
        }),
        ("truncate", |io| {
            let request = TruncateRequest { capability: capability(7), slot: 0, file_bytes: 9000 };
            of(io.call(&request), |r| r.loss_epoch)
        }),
        ("punch", |io| {
            let request = RangeRequest { capability: capability(7), slot: 0, offset: 100, bytes: 5000 };
            of(io.call(&request), |r| r.loss_epoch)
        }),
        ("allocate", |io| {
            let request = AllocateRequest {
                capability: capability(7),
                slot: 0,
                offset: 0,
                bytes: 5000,
                keep_size: false,
            };
            of(io.call(&request), |r| r.loss_epoch)
        }),
        ("zero", |io| {
            let request =
                ZeroRequest { capability: capability(7), slot: 0, offset: 0, bytes: 50, keep_size: false };
            of(io.call(&request), |r| r.loss_epoch)
        }),
        ("copy", |io| {
            let request = CopyRangeRequest {
                from: capability(8),
                from_slot: 0,
                from_offset: 0,
                to: capability(7),
                to_slot: 0,
                to_offset: 0,
                bytes: 5000,
            };
            of(io.call(&request), |r| r.loss_epoch)
        }),
    ]
}

fn one_file<W: Way>(sync: SyncMode, failing_sync: u64) -> Cluster<W> {
    let plan = FaultPlan { failing_sync: Some(failing_sync), ..FaultPlan::default() };
    Cluster::start_with(1, sync, plan)
}

fn data_file_epoch<L: Link>(io: &mut Client<L>) -> Result<u64, Status> {
    let synced = io.call(&SyncRequest { capability: capability(7) });
    synced.map(|reply| reply.loss_epoch).map_err(|refused| refused.status)
}

fn a_failed_sync_is_told_to_every_writer<W: Way>() {
    for (name, change) in changes() {
        let cluster = one_file::<W>(SyncMode::Nosync, 1);
        let (mut one, mut other) = (cluster.io().remove(0), cluster.io().remove(0));
        one.write(&capability(7), 0, &Regions::contiguous(0, 100), &[1; 100]).unwrap();
        let told = change(&mut other).unwrap();
        assert_eq!(data_file_epoch(&mut one), Err(Status::Io), "{name}");
        // The kernel takes the pages for clean now.
        let synced = data_file_epoch(&mut other).unwrap();
        assert_ne!(synced, told, "{name}: what the other one changed is lost as well");
        let told = change(&mut other).unwrap();
        assert_eq!(data_file_epoch(&mut other), Ok(told), "{name}: what was changed since is durable");
        assert_eq!(told, synced, "{name}");
    }
}

fn in_sync_mode_no_change_is_acknowledged_whose_sync_failed<W: Way>() {
    for (name, change) in changes() {
        // The first sync is that of what is there before.
        let cluster = one_file::<W>(SyncMode::Sync, 2);
        let mut io = cluster.io().remove(0);
        let before = io.write(&capability(7), 0, &Regions::contiguous(0, 100), &[1; 100]).unwrap();
        assert_eq!(before.loss_epoch, LOSS_EPOCH_DURABLE);
        assert_eq!(change(&mut io), Err(Status::Io), "{name}");
        assert_eq!(change(&mut io), Ok(LOSS_EPOCH_DURABLE), "{name}");
    }
}

fn a_write_that_must_be_durable_fails_with_its_sync<W: Way>() {
    let cluster = one_file::<W>(SyncMode::Nosync, 1);
    let mut io = cluster.io().remove(0);
    let written = io.write_with(&capability(7), 0, io_flags::SYNC, &Regions::contiguous(0, 9), &[1; 9]);
    assert_eq!(written.unwrap_err().status, Status::Io);
    let written = io.write_with(&capability(7), 0, io_flags::SYNC, &Regions::contiguous(0, 9), &[1; 9]);
    assert_eq!(written.unwrap().loss_epoch, LOSS_EPOCH_DURABLE);
}

fn a_request_that_does_not_end_is_told_while_it_is_under_way<W: Way>() {
    let plan = FaultPlan { delay_per_mille: 1000, delay_ms_max: 4 * STUCK_MS, ..FaultPlan::default() };
    let cluster = Cluster::<W>::start_with(1, SyncMode::Nosync, plan);
    let mut io = cluster.io().remove(0);
    let told = |io: &mut Client<W::Link>| io.gauge("requests_got_stuck").unwrap();
    for _ in 0..20 {
        let (begun, before) = (Instant::now(), told(&mut io));
        io.write(&capability(7), 0, &Regions::contiguous(0, 9), &[1; 9]).unwrap();
        let (took_ms, told) = (begun.elapsed().as_millis() as u64, told(&mut io) - before);
        assert!(told <= 1, "once is enough");
        assert_eq!(io.gauge("stuck_requests"), Some(0), "it has ended");
        match told {
            0 => assert!(took_ms < 2 * STUCK_MS, "it took {took_ms} ms, and nothing was said of it"),
            _ => assert!(took_ms >= STUCK_MS, "after {took_ms} ms"),
        }
        if told == 1 {
            return;
        }
    }
    panic!("no request took long");
}

over_all_ways! {
    a_request_that_does_not_end_is_told_while_it_is_under_way a_failed_sync_is_told_to_every_writer in_sync_mode_no_change_is_acknowledged_whose_sync_failed a_write_that_must_be_durable_fails_with_its_sync
}
