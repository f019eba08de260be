//! Clients that lock through a gateway, with a real cluster and their own port mappers, lock managers and status
//! monitors.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use weft_client::{File, LockKind, LockTarget, LockWait, OpenOptions};
use weft_onc_rpc::CallHeader;
use weft_onc_rpc::nlm::{Holder, Lock};
use weft_onc_rpc::record::Mark;
use weft_reactor::{Reactor, ReactorOptions, sleep};

use super::*;
use crate::credential::Credential;
use crate::export::{ExportOptions, Rule};
use crate::gateway::{Call, Gateway, GatewayOptions, Outcome};
use crate::handle::{Handle, HandleKeys};
use crate::serving;
use crate::testing::Cluster;

const GRACE: Duration = Duration::from_secs(2);

/// A host that mounts.
struct Host {
    address: IpAddr,
    name: &'static str,
    uid: u32,
    handle: Vec<u8>,
}

fn next_xid() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Host {
    fn new(last: u8, name: &'static str, handle: &[u8]) -> Host {
        Host { address: [127, 0, 0, last].into(), name, uid: 0, handle: handle.to_vec() }
    }

    async fn call(&self, gateway: &Gateway, xid: u32, program: u32, number: u32, args: &[u8]) -> Outcome {
        let credential = Some(Credential::new(self.uid, self.uid, &[]));
        let sender = Sender { peer: SocketAddr::new(self.address, 700), credential };
        let version = if program == nlm::PROGRAM { nlm::VERSION } else { nsm::VERSION };
        let (payload, buffers) = (None, weft_onc_server::Buffers::default());
        let call = Call { xid, program, version, procedure: number, args, payload, buffers };
        gateway.call(&sender, call).await
    }

    async fn nlm(&self, gateway: &Gateway, number: u32, args: Writer) -> Vec<u8> {
        match self.call(gateway, next_xid(), nlm::PROGRAM, number, &args.into_bytes()).await {
            Outcome::Done { head, .. } => head,
            other => panic!("{other:?}"),
        }
    }

    fn what(&self, process: u32, offset: u64, bytes: u64) -> Lock {
        let owner = format!("{process}@{}", self.name).into_bytes();
        let (host, handle) = (self.name.into(), self.handle.clone());
        Lock { host, handle, owner, process, offset, bytes }
    }

    fn args(&self, process: u32, offset: u64, bytes: u64) -> LockArgs {
        let lock = self.what(process, offset, bytes);
        LockArgs { cookie: vec![1, 2], block: false, exclusive: true, lock, reclaim: false, state: 1 }
    }

    async fn lock_with(&self, gateway: &Gateway, args: &LockArgs) -> Status {
        status(&self.nlm(gateway, procedure::LOCK, args.write(Writer::new())).await)
    }

    async fn lock(&self, gateway: &Gateway, process: u32, offset: u64, bytes: u64) -> Status {
        self.lock_with(gateway, &self.args(process, offset, bytes)).await
    }

    async fn unlock(&self, gateway: &Gateway, process: u32, offset: u64, bytes: u64) -> Status {
        let args = UnlockArgs { cookie: vec![1, 2], lock: self.what(process, offset, bytes) };
        status(&self.nlm(gateway, procedure::UNLOCK, args.write(Writer::new())).await)
    }

    async fn cancel(&self, gateway: &Gateway, args: &LockArgs) -> Status {
        let LockArgs { cookie, block, exclusive, lock, .. } = args.clone();
        let args = CancelArgs { cookie, block, exclusive, lock };
        status(&self.nlm(gateway, procedure::CANCEL, args.write(Writer::new())).await)
    }

    async fn test(&self, gateway: &Gateway, process: u32, offset: u64, bytes: u64) -> Result<Holder, Status> {
        let lock = self.what(process, offset, bytes);
        let args = TestArgs { cookie: vec![1, 2], exclusive: false, lock };
        let results = self.nlm(gateway, procedure::TEST, args.write(Writer::new())).await;
        TestResult::read(&mut Reader::new(&results)).unwrap().outcome
    }

    async fn notify(&self, gateway: &Gateway, name: &str) {
        let change = nsm::Change { host: name.into(), state: 3 }.write(Writer::new()).into_bytes();
        let outcome = self.call(gateway, next_xid(), nsm::PROGRAM, nsm::procedure::NOTIFY, &change).await;
        assert_eq!(outcome, Outcome::Done { head: Vec::new(), data: Vec::new().into() });
    }
}

fn status(results: &[u8]) -> Status {
    let result = LockResult::read(&mut Reader::new(results)).unwrap();
    assert_eq!(result.cookie, [1, 2]);
    result.status
}

/// What a daemon says to a call.
type Answers = Arc<Mutex<Box<dyn FnMut(&CallHeader, &[u8]) -> Option<Vec<u8>> + Send>>>;

/// Port mapper, lock manager and status monitor of a host, on one port. What is called is passed on, and
/// answered as is said; without an answer the caller waits.
struct Daemons {
    calls: mpsc::Receiver<(CallHeader, Vec<u8>)>,
}

impl Daemons {
    fn start(
        address: SocketAddr,
        answer: impl FnMut(&CallHeader, &[u8]) -> Option<Vec<u8>> + Send + 'static,
    ) -> Daemons {
        let listener = TcpListener::bind(address).unwrap();
        let (sender, calls) = mpsc::channel();
        let answers: Answers = Arc::new(Mutex::new(Box::new(answer)));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (sender, answers) = (sender.clone(), answers.clone());
                let port = address.port();
                std::thread::spawn(move || Daemons::serve(stream.unwrap(), port, &sender, &answers));
            }
        });
        Daemons { calls }
    }

    fn serve(
        mut stream: TcpStream,
        port: u16,
        sender: &mpsc::Sender<(CallHeader, Vec<u8>)>,
        answers: &Answers,
    ) -> Option<()> {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).ok()?;
        let mut call = vec![0; Mark::of(mark).bytes as usize];
        stream.read_exact(&mut call).ok()?;
        let (header, bytes) = CallHeader::decode(&call).ok()?;
        let results = match header.program {
            weft_onc_rpc::portmap::PROGRAM => Some(Writer::new().u32(port.into()).into_bytes()),
            _ => {
                let results = (answers.lock().unwrap())(&header, &call[bytes..]);
                let _ = sender.send((header.clone(), call[bytes..].to_vec()));
                results
            }
        };
        let Some(results) = results else {
            // It hangs until the caller goes.
            let _ = stream.read(&mut [0; 16]);
            return None;
        };
        let mut reply = weft_onc_rpc::reply::success(header.xid).into_bytes();
        reply.extend(results);
        let mark = Mark { is_last: true, bytes: reply.len() as u32 };
        stream.write_all(&[&mark.to_bytes()[..], &reply].concat()).ok()
    }

    /// The next call, of a procedure that is expected.
    async fn next(&self, program: u32, number: u32) -> Vec<u8> {
        let begun = Instant::now();
        loop {
            if let Ok((header, args)) = self.calls.try_recv() {
                assert_eq!((header.program, header.procedure), (program, number));
                return args;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "no call of procedure {number}");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// A GRANTED's results.
fn says(status: Status) -> impl FnMut(&CallHeader, &[u8]) -> Option<Vec<u8>> + Send {
    move |_, args| {
        let cookie = TestArgs::read(&mut Reader::new(args)).map(|args| args.cookie).unwrap_or_default();
        Some(packed(cookie, status))
    }
}

/// A port that is free on all addresses of this host.
fn free_port() -> u16 {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

fn options(cluster: &Cluster, directory: &Path, mapper_port: u16) -> GatewayOptions {
    let mut options = serving::options(cluster.client(), &cluster.key, "/");
    let rules = &mut options.exports[0].rules;
    rules.insert(0, Rule { read_only: true, clients: "127.0.0.9".parse().unwrap(), ..rules[0].clone() });
    let locks = LockOptions {
        directory: directory.to_path_buf(),
        url: cluster.url(),
        connect: cluster.connect_options(),
        name: "gateway".into(),
        grace: GRACE,
        mapper_port,
    };
    GatewayOptions { locks: Some(locks), ..options }
}

/// What a test has.
struct Place<'a> {
    cluster: &'a Cluster,
    mapper_port: u16,
    /// Of /f, which is open natively as `file`.
    handle: Vec<u8>,
    file: File,
}

impl Place<'_> {
    fn daemons_at(&self, last: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, last], self.mapper_port))
    }

    fn gateway(&self) -> Rc<Gateway> {
        let directory = self.cluster.directory().join("locks");
        Gateway::new(&options(self.cluster, &directory, self.mapper_port)).unwrap()
    }

    /// Whether a native client can lock these bytes now; it keeps them then.
    fn take(&self, bytes: std::ops::Range<u64>) -> bool {
        self.file.lock(LockTarget::range(bytes), LockKind::Exclusive, LockWait::Never).is_ok()
    }

    fn give(&self, bytes: std::ops::Range<u64>) {
        self.file.unlock(LockTarget::range(bytes)).unwrap();
    }

    async fn take_within(&self, bytes: std::ops::Range<u64>, patience: Duration) -> bool {
        let begun = Instant::now();
        while !self.take(bytes.clone()) {
            if begun.elapsed() > patience {
                return false;
            }
            sleep(Duration::from_millis(10)).await;
        }
        true
    }
}

fn with_place(test: impl AsyncFnOnce(&Place<'_>)) {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client();
    let file =
        client.open("/f", &OpenOptions::new().read(true).write(true).create(true).mode(0o600)).unwrap();
    let export = ExportOptions { path: "/".into(), rules: Vec::new() }.id();
    let keys = HandleKeys::of_cluster(std::slice::from_ref(&cluster.key));
    let handle = keys.seal(Handle::new(export, file.ino())).data.to_vec();
    let place = Place { cluster: &cluster, mapper_port: free_port(), handle, file };
    Reactor::new(ReactorOptions::default()).unwrap().run(test(&place));
}

#[test]
fn nfs_clients_and_native_clients_keep_each_other_out() {
    with_place(async |place| {
        let gateway = place.gateway();
        let (one, other) = (Host::new(1, "one", &place.handle), Host::new(2, "other", &place.handle));
        assert_eq!(one.lock(&gateway, 7, 0, 10).await, Status::Granted);
        assert_eq!(one.lock(&gateway, 7, 0, 10).await, Status::Granted, "an owner keeps nobody out");
        assert!(!place.take(5..6) && place.take(10..20));
        assert_eq!(one.lock(&gateway, 8, 9, 1).await, Status::Denied, "another process");
        assert_eq!(other.lock(&gateway, 7, 9, 1).await, Status::Denied, "another host");
        assert_eq!(one.lock(&gateway, 7, 15, 0).await, Status::Denied, "a native client");
        assert_eq!(one.lock(&gateway, 7, 20, 0).await, Status::Granted);
        let holder = other.test(&gateway, 3, 0, 5).await.unwrap();
        assert_eq!((holder.exclusive, holder.process, holder.offset, holder.bytes), (true, 7, 0, 10));
        assert_eq!(other.test(&gateway, 3, 30, 5).await.unwrap().bytes, 0, "to the end");
        assert!(other.test(&gateway, 3, 12, 1).await.is_ok());
        assert_eq!(one.test(&gateway, 7, 0, 5).await, Err(Status::Granted));
        assert_eq!(one.unlock(&gateway, 7, 3, 2).await, Status::Granted);
        assert!(place.take(3..5) && !place.take(2..3) && !place.take(5..6));
        assert_eq!(gateway.counts().locks.locks, 3);
        for _ in 0..2 {
            assert_eq!(one.unlock(&gateway, 7, 0, 0).await, Status::Granted);
        }
        assert!(place.take(0..1000));
        assert_eq!(one.lock(&gateway, 7, 1 << 63, 1).await, Status::TooBig);
        assert_eq!(gateway.counts().locks.locks, 0);
        gateway.close().await;
    });
}

#[test]
fn a_lock_can_be_given_back_when_the_export_is_gone() {
    with_place(async |place| {
        let gateway = place.gateway();
        let host = Host::new(1, "one", &place.handle);
        assert_eq!(host.lock(&gateway, 7, 0, 10).await, Status::Granted);
        gateway.set_exports(&[]);
        assert_eq!(host.lock(&gateway, 7, 20, 10).await, Status::StaleHandle);
        assert_eq!(host.unlock(&gateway, 7, 0, 10).await, Status::Granted);
        assert!(place.take(0..10));
        gateway.close().await;
    });
}

#[test]
fn shared_locks_are_shared() {
    with_place(async |place| {
        let gateway = place.gateway();
        let (one, other) = (Host::new(1, "one", &place.handle), Host::new(2, "other", &place.handle));
        let shared = |host: &Host| LockArgs { exclusive: false, ..host.args(1, 0, 0) };
        assert_eq!(one.lock_with(&gateway, &shared(&one)).await, Status::Granted);
        assert_eq!(other.lock_with(&gateway, &shared(&other)).await, Status::Granted);
        assert_eq!(other.lock(&gateway, 1, 0, 0).await, Status::Denied);
        assert!(!place.take(0..1));
        gateway.close().await;
    });
}

#[test]
fn a_lock_that_is_waited_for_is_granted_by_a_call() {
    with_place(async |place| {
        let gateway = place.gateway();
        let host = Host::new(2, "node", &place.handle);
        let daemons = Daemons::start(place.daemons_at(2), says(Status::Granted));
        assert!(place.take(0..10));
        let args = LockArgs { block: true, ..host.args(7, 5, 10) };
        assert_eq!(host.lock_with(&gateway, &args).await, Status::Blocked);
        assert_eq!(host.lock_with(&gateway, &args).await, Status::Blocked, "it asks again");
        assert_eq!(gateway.counts().locks.waits, 1);
        place.give(0..10);
        let granted = daemons.next(nlm::PROGRAM, procedure::GRANTED).await;
        let granted = TestArgs::read(&mut Reader::new(&granted)).unwrap();
        assert_eq!((granted.exclusive, &granted.lock), (true, &args.lock));
        assert!(!place.take(14..15) && place.take(0..5));
        assert_eq!(host.unlock(&gateway, 7, 5, 10).await, Status::Granted);
        assert!(place.take(0..20));
        gateway.close().await;
    });
}

#[test]
fn calls_without_results_are_answered_by_calls() {
    with_place(async |place| {
        let gateway = place.gateway();
        let host = Host::new(2, "node", &place.handle);
        let daemons = Daemons::start(place.daemons_at(2), |_, _| Some(Vec::new()));
        assert!(place.take(0..10));
        let args = LockArgs { block: true, ..host.args(7, 5, 10) };
        let message = |number| number + procedure::TO_MSG;
        assert_eq!(host.nlm(&gateway, message(procedure::LOCK), args.write(Writer::new())).await, []);
        let lock_res = daemons.next(nlm::PROGRAM, procedure::LOCK + procedure::TO_RES).await;
        assert_eq!(status(&lock_res), Status::Blocked);
        place.give(0..10);
        let granted = daemons.next(nlm::PROGRAM, GRANTED_MSG).await;
        let cookie = TestArgs::read(&mut Reader::new(&granted)).unwrap().cookie;
        let result = LockResult { cookie: cookie.clone(), status: Status::Denied };
        let foreign = Host::new(3, "node", &place.handle);
        assert_eq!(foreign.nlm(&gateway, GRANTED_RES, result.write(Writer::new())).await, []);
        let result = LockResult { cookie, status: Status::Granted };
        assert_eq!(host.nlm(&gateway, GRANTED_RES, result.write(Writer::new())).await, []);
        sleep(Duration::from_millis(100)).await;
        assert!(!place.take(5..6) && gateway.counts().locks.waits == 0);
        let unlock = UnlockArgs { cookie: vec![1, 2], lock: args.lock };
        assert_eq!(host.nlm(&gateway, message(procedure::UNLOCK), unlock.write(Writer::new())).await, []);
        let unlock_res = daemons.next(nlm::PROGRAM, procedure::UNLOCK + procedure::TO_RES).await;
        assert_eq!(status(&unlock_res), Status::Granted);
        assert!(place.take(5..6));
        gateway.close().await;
    });
}

#[test]
fn a_lock_that_its_client_does_not_take_goes_to_others() {
    with_place(async |place| {
        let gateway = place.gateway();
        let refusing = Host::new(2, "refusing", &place.handle);
        let _daemons = Daemons::start(place.daemons_at(2), says(Status::Denied));
        let absent = Host::new(3, "absent", &place.handle);
        for host in [&refusing, &absent] {
            assert!(place.take_within(0..10, Duration::from_secs(20)).await);
            let args = LockArgs { block: true, ..host.args(7, 5, 10) };
            assert_eq!(host.lock_with(&gateway, &args).await, Status::Blocked);
            place.give(0..10);
            let begun = Instant::now();
            while gateway.counts().locks.waits > 0 {
                assert!(begun.elapsed() < Duration::from_secs(20));
                sleep(Duration::from_millis(5)).await;
            }
        }
        assert!(place.take(0..10));
        gateway.close().await;
    });
}

#[test]
fn who_has_a_lock_by_asking_again_keeps_it() {
    with_place(async |place| {
        let gateway = place.gateway();
        let host = Host::new(2, "absent", &place.handle);
        assert!(place.take(0..10));
        let args = LockArgs { block: true, ..host.args(7, 5, 10) };
        assert_eq!(host.lock_with(&gateway, &args).await, Status::Blocked);
        place.give(0..10);
        let begun = Instant::now();
        while host.lock_with(&gateway, &args).await == Status::Blocked {
            assert!(begun.elapsed() < Duration::from_secs(5));
            sleep(Duration::from_millis(5)).await;
        }
        while gateway.counts().locks.waits > 0 {
            sleep(Duration::from_millis(5)).await;
        }
        assert!(!place.take(5..6), "the call that nobody took does not end it");
        gateway.close().await;
    });
}

#[test]
fn a_client_that_hangs_keeps_nobody_waiting_but_itself() {
    with_place(async |place| {
        let gateway = place.gateway();
        let hanging = Host::new(2, "hanging", &place.handle);
        let _hangs = Daemons::start(place.daemons_at(2), |_, _| None);
        let host = Host::new(3, "node", &place.handle);
        let daemons = Daemons::start(place.daemons_at(3), says(Status::Granted));
        assert!(place.take(0..1000));
        for process in 0..20 {
            let args = LockArgs { block: true, ..hanging.args(process, u64::from(process), 1) };
            assert_eq!(hanging.lock_with(&gateway, &args).await, Status::Blocked);
        }
        let args = LockArgs { block: true, ..host.args(7, 500, 10) };
        assert_eq!(host.lock_with(&gateway, &args).await, Status::Blocked);
        place.give(0..1000);
        let begun = Instant::now();
        daemons.next(nlm::PROGRAM, procedure::GRANTED).await;
        assert!(begun.elapsed() < Duration::from_secs(4));
        assert_eq!(host.unlock(&gateway, 7, 500, 10).await, Status::Granted);
        gateway.close().await;
    });
}

#[test]
fn a_wait_that_is_cancelled_ends_without_the_lock() {
    with_place(async |place| {
        let gateway = place.gateway();
        let host = Host::new(2, "node", &place.handle);
        assert!(place.take(0..10));
        let args = LockArgs { block: true, ..host.args(7, 0, 10) };
        assert_eq!(host.cancel(&gateway, &args).await, Status::Denied);
        assert_eq!(host.lock_with(&gateway, &args).await, Status::Blocked);
        assert_eq!(host.cancel(&gateway, &args).await, Status::Granted);
        let begun = Instant::now();
        while gateway.counts().locks.waits > 0 {
            assert!(begun.elapsed() < Duration::from_secs(4));
            sleep(Duration::from_millis(2)).await;
        }
        place.give(0..10);
        assert!(place.take(0..10));
        gateway.close().await;
    });
}

#[test]
fn waits_that_would_never_end_are_refused() {
    with_place(async |place| {
        let gateway = place.gateway();
        let (one, other) = (Host::new(1, "one", &place.handle), Host::new(2, "other", &place.handle));
        assert_eq!(one.lock(&gateway, 1, 0, 1).await, Status::Granted);
        assert_eq!(other.lock(&gateway, 1, 1, 1).await, Status::Granted);
        let wait = |host: &Host, at| LockArgs { block: true, ..host.args(1, at, 1) };
        assert_eq!(one.lock_with(&gateway, &wait(&one, 1)).await, Status::Blocked);
        assert_eq!(other.lock_with(&gateway, &wait(&other, 0)).await, Status::Deadlock);
        gateway.close().await;
    });
}

#[test]
fn a_client_that_has_restarted_has_no_locks_and_nobody_elses_go() {
    with_place(async |place| {
        let gateway = place.gateway();
        let (one, other) = (Host::new(1, "node", &place.handle), Host::new(2, "node", &place.handle));
        assert_eq!(one.lock(&gateway, 7, 0, 1).await, Status::Granted);
        assert_eq!(other.lock(&gateway, 7, 1, 1).await, Status::Granted);
        other.notify(&gateway, "node.site").await;
        assert!(!place.take(0..1) && place.take(1..2), "those of the same name at another address stay");
        let all = Writer::new().opaque(b"node").u32(0);
        other.nlm(&gateway, procedure::FREE_ALL, all.clone()).await;
        assert!(!place.take(0..1));
        one.nlm(&gateway, procedure::FREE_ALL, all).await;
        assert!(place.take(0..1));
        gateway.close().await;
    });
}

#[test]
fn locks_outlive_a_gateway_for_who_reclaims_them() {
    with_place(async |place| {
        let gateway = place.gateway();
        let (one, other) = (Host::new(2, "one", &place.handle), Host::new(3, "other", &place.handle));
        let daemons = Daemons::start(place.daemons_at(2), |_, _| Some(Vec::new()));
        assert_eq!(one.lock(&gateway, 7, 0, 10).await, Status::Granted);
        assert_eq!(one.lock(&gateway, 7, 20, 10).await, Status::Granted);
        assert_eq!(other.lock(&gateway, 7, 40, 10).await, Status::Granted);
        gateway.close().await;
        drop(gateway);
        assert!(!place.take(0..1), "nobody gets it meanwhile");
        let gateway = place.gateway();
        let notify = daemons.next(nsm::PROGRAM, nsm::procedure::NOTIFY).await;
        let change = nsm::Change::read(&mut Reader::new(&notify)).unwrap();
        assert_eq!(change, nsm::Change { host: b"gateway".to_vec(), state: 3 });
        assert_eq!(one.lock(&gateway, 7, 60, 10).await, Status::DeniedGracePeriod);
        assert_eq!(one.test(&gateway, 7, 60, 10).await, Err(Status::DeniedGracePeriod));
        let reclaim = LockArgs { reclaim: true, ..one.args(7, 0, 10) };
        assert_eq!(one.lock_with(&gateway, &reclaim).await, Status::Granted);
        assert!(!place.take(0..1) && !place.take(20..21) && !place.take(40..41));
        assert!(place.take_within(20..30, GRACE * 3).await, "what of an owner was not reclaimed goes");
        assert!(place.take_within(40..50, GRACE).await, "and of who is not there");
        assert!(!place.take(0..1), "what was reclaimed stays");
        let late = LockArgs { reclaim: true, ..other.args(7, 60, 10) };
        assert_eq!(other.lock_with(&gateway, &late).await, Status::DeniedGracePeriod);
        assert_eq!(one.lock_with(&gateway, &reclaim).await, Status::Granted, "it came twice");
        assert_eq!(one.lock(&gateway, 7, 60, 10).await, Status::Granted);
        assert_eq!(one.unlock(&gateway, 7, 0, 0).await, Status::Granted);
        assert!(place.take(0..100));
        gateway.close().await;
    });
}

#[test]
fn a_lost_session_is_begun_anew_and_clients_are_told() {
    with_place(async |place| {
        let gateway = place.gateway();
        let host = Host::new(2, "one", &place.handle);
        let daemons = Daemons::start(place.daemons_at(2), |_, _| Some(Vec::new()));
        assert_eq!(host.lock(&gateway, 7, 0, 10).await, Status::Granted);
        gateway.locks_for_tests().lose().await;
        let notify = daemons.next(nsm::PROGRAM, nsm::procedure::NOTIFY).await;
        assert_eq!(nsm::Change::read(&mut Reader::new(&notify)).unwrap().state, 3);
        assert!(gateway.counts().locks.in_grace);
        // In the other session, where nobody has these.
        let reclaim = LockArgs { reclaim: true, ..host.args(7, 10, 10) };
        assert_eq!(host.lock_with(&gateway, &reclaim).await, Status::Granted);
        assert!(!place.take(10..11));
        gateway.close().await;
    });
}

#[test]
fn a_call_that_comes_late_once_more_locks_nothing() {
    with_place(async |place| {
        let gateway = place.gateway();
        let host = Host::new(1, "node", &place.handle);
        let (xid, args) = (next_xid(), host.args(7, 0, 10).write(Writer::new()).into_bytes());
        let lock = || host.call(&gateway, xid, nlm::PROGRAM, procedure::LOCK, &args);
        let first = lock().await;
        assert_eq!(host.unlock(&gateway, 7, 0, 10).await, Status::Granted);
        assert_eq!(lock().await, first);
        assert!(place.take(0..10));
        gateway.close().await;
    });
}

#[test]
fn who_may_not_use_a_file_may_not_lock_it() {
    with_place(async |place| {
        let gateway = place.gateway();
        let user = Host { uid: 1000, ..Host::new(1, "node", &place.handle) };
        assert_eq!(user.lock(&gateway, 7, 0, 10).await, Status::Failed);
        assert_eq!(user.test(&gateway, 7, 0, 10).await, Err(Status::Failed));
        let forged = Host::new(1, "node", &[7; 36]);
        assert_eq!(forged.lock(&gateway, 7, 0, 10).await, Status::StaleHandle);
        let reader = Host::new(9, "node", &place.handle);
        assert_eq!(reader.lock(&gateway, 7, 0, 10).await, Status::ReadOnly);
        let shared = LockArgs { exclusive: false, ..reader.args(7, 0, 10) };
        assert_eq!(reader.lock_with(&gateway, &shared).await, Status::Granted);
        gateway.close().await;
    });
}

#[test]
fn what_is_no_call_is_told_so() {
    with_place(async |place| {
        let gateway = place.gateway();
        let host = Host::new(1, "node", &place.handle);
        let call =
            async |program, number, args: &[u8]| host.call(&gateway, next_xid(), program, number, args).await;
        let mut args = host.args(7, 0, 10);
        args.lock.host = vec![b'x'; nlm::NAME_BYTES_MAX + 1];
        let args = args.write(Writer::new()).into_bytes();
        for number in [procedure::LOCK, procedure::LOCK + procedure::TO_MSG, procedure::NM_LOCK] {
            assert_eq!(call(nlm::PROGRAM, number, &args).await, Outcome::BadArguments);
            assert_eq!(call(nlm::PROGRAM, number, &args[..20]).await, Outcome::BadArguments);
        }
        assert_eq!(call(nlm::PROGRAM, 24, b"").await, Outcome::NoProcedure);
        assert_eq!(call(nsm::PROGRAM, 7, b"").await, Outcome::NoProcedure);
        assert_eq!(call(nsm::PROGRAM, nsm::procedure::NOTIFY, b"").await, Outcome::BadArguments);
        let null = Outcome::Done { head: Vec::new(), data: Vec::new().into() };
        assert_eq!(call(nlm::PROGRAM, 0, b"").await, null);
        let share = ShareArgs { cookie: vec![1, 2], ..ShareArgs::default() };
        let refused = host.nlm(&gateway, procedure::SHARE, share.write(Writer::new())).await;
        assert_eq!(status(&refused), Status::DeniedNoLocks);
        gateway.close().await;
    });
}
