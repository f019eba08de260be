//! Locks of NFS clients, of processes on a mount and of programs that use the library, on the same files.
//!
//! The NFS clients have an address of their own of this host, where their lock manager and their port mapper
//! are: that takes root.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use weft_client::{File, LockKind, LockTarget, LockWait, OpenOptions, Transport};
use weft_nfs_client::{ConnectOptions, NfsClient, NfsUrl};
use weft_onc_rpc::nlm::{self, Lock, LockArgs, LockResult, Status, TestArgs, UnlockArgs, procedure};
use weft_onc_rpc::record::Mark;
use weft_onc_rpc::reply::ReplyHeader;
use weft_onc_rpc::xdr::{Reader, Writer};
use weft_onc_rpc::{CallHeader, Credential, nsm, portmap, reply};
use weft_test_needs::{Need, skip};
use weft_tests::{Locker, Served, free_ports, freeze, signal, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
const NFS_OK: u32 = 0;
const NFS3ERR_IO: u32 = 5;
const NFS3ERR_JUKEBOX: u32 = 10_008;

/// A host that mounts by NFS: its address, and what its daemons were called for.
struct Host {
    address: [u8; 4],
    xid: u32,
    gateway: SocketAddr,
    handle: Vec<u8>,
    calls: Receiver<(u32, u32, Vec<u8>)>,
}

/// Reads a record of one fragment.
fn record(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark)?;
    let mut bytes = vec![0; Mark::of(mark).bytes as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn send(stream: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    let mark = Mark { is_last: true, bytes: message.len() as u32 };
    stream.write_all(&[&mark.to_bytes()[..], message].concat())
}

/// Answers a call to the port mapper, the lock manager or the status monitor, which have one port.
fn answer(stream: &mut TcpStream, tell: impl Fn(u32, u32, Vec<u8>)) -> std::io::Result<()> {
    let call = record(stream)?;
    let (header, at) = CallHeader::decode(&call).expect("a call");
    let reply = reply::success(header.xid);
    let reply = match (header.program, header.procedure) {
        (portmap::PROGRAM, _) => reply.u32(portmap::PORT.into()),
        (nlm::PROGRAM, procedure::GRANTED) => {
            let args = TestArgs::read(&mut Reader::new(&call[at..])).expect("arguments");
            LockResult { cookie: args.cookie, status: Status::Granted }.write(reply)
        }
        _ => reply,
    };
    tell(header.program, header.procedure, call[at..].to_vec());
    send(stream, &reply.into_bytes())
}

/// The status that a call of NFS is answered.
fn status_of(mut stream: TcpStream) -> u32 {
    let reply = record(&mut stream).unwrap();
    let (head, at) = ReplyHeader::decode(&reply).unwrap();
    assert_eq!(head.outcome, Ok(()));
    Reader::new(&reply[at..]).u32().unwrap()
}

/// A connection from an address of this host.
fn connect_from(address: [u8; 4], to: SocketAddr) -> TcpStream {
    let sockaddr = |address: [u8; 4], port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address) },
        sin_zero: [0; 8],
    };
    let bytes = size_of::<libc::sockaddr_in>() as u32;
    // SAFETY: a call without memory; the descriptor is new.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) };
    let own = sockaddr(address, 0);
    // SAFETY: the kernel reads the address, which lives for the call.
    assert_eq!(unsafe { libc::bind(socket.as_raw_fd(), (&raw const own).cast(), bytes) }, 0);
    let other = sockaddr([127, 0, 0, 1], to.port());
    // SAFETY: as above.
    assert_eq!(unsafe { libc::connect(socket.as_raw_fd(), (&raw const other).cast(), bytes) }, 0);
    TcpStream::from(socket)
}

impl Host {
    /// With its daemons; `None` where its address cannot have a port mapper.
    fn start(last: u8, gateway: SocketAddr, handle: &[u8]) -> Option<Host> {
        let address = [127, 0, 0, last];
        let listener = match TcpListener::bind(SocketAddr::from((address, portmap::PORT))) {
            Ok(listener) => listener,
            Err(error) => {
                skip(&format!("needs port {} of 127.0.0.{last}: {error}", portmap::PORT));
                return None;
            }
        };
        let (sender, calls) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let tell = |program, number, args| drop(sender.send((program, number, args)));
                let _ = answer(&mut stream.unwrap(), tell);
            }
        });
        Some(Host { address, xid: u32::from(last) << 16, gateway, handle: handle.to_vec(), calls })
    }

    /// The bytes of a call, with a number of its own.
    fn message(&mut self, (program, version, number): (u32, u32, u32), args: Writer) -> Vec<u8> {
        self.xid += 1;
        let header = CallHeader {
            xid: self.xid,
            program,
            version,
            procedure: number,
            credential: Credential::Sys(weft_onc_rpc::AuthSys {
                stamp: 0,
                machine: b"host".to_vec(),
                uid: 0,
                gid: 0,
                groups: Vec::new(),
            }),
        };
        [header.write().into_bytes(), args.into_bytes()].concat()
    }

    fn call(&mut self, number: u32, args: Writer) -> Status {
        let call = self.message((nlm::PROGRAM, nlm::VERSION, number), args);
        let begun = Instant::now();
        // As a client with a hard mount: again, until there is an answer.
        loop {
            assert!(begun.elapsed() < PATIENCE, "no answer to a call of the lock manager");
            let mut stream = connect_from(self.address, self.gateway);
            if send(&mut stream, &call).is_err() {
                continue;
            }
            let Ok(reply) = record(&mut stream) else { continue };
            let (head, at) = ReplyHeader::decode(&reply).unwrap();
            assert_eq!(head, ReplyHeader { xid: self.xid, outcome: Ok(()) });
            return LockResult::read(&mut Reader::new(&reply[at..])).unwrap().status;
        }
    }

    /// Sends a call of NFS.
    fn begin_nfs(&mut self, number: u32, args: Writer) -> TcpStream {
        let call = self.message((100_003, 3, number), args);
        let mut stream = connect_from(self.address, self.gateway);
        send(&mut stream, &call).unwrap();
        stream
    }

    fn begin_write(&mut self, offset: u64, text: &str) -> TcpStream {
        const FILE_SYNC: u32 = 2;
        let args = Writer::new().opaque(&self.handle).u64(offset).u32(text.len() as u32).u32(FILE_SYNC);
        self.begin_nfs(7, args.opaque(text.as_bytes()))
    }

    fn write(&mut self, offset: u64, text: &str) -> u32 {
        status_of(self.begin_write(offset, text))
    }

    fn set_size(&mut self, bytes: u64) -> u32 {
        let args = Writer::new().opaque(&self.handle).u32(0).u32(0).u32(0).u32(1).u64(bytes);
        status_of(self.begin_nfs(2, args.u32(0).u32(0).u32(0)))
    }

    fn what(&self, process: u32, offset: u64, bytes: u64) -> Lock {
        let (host, owner) = (b"host".to_vec(), process.to_string().into_bytes());
        Lock { host, handle: self.handle.clone(), owner, process, offset, bytes }
    }

    fn lock(&mut self, process: u32, offset: u64, bytes: u64, block: bool, reclaim: bool) -> Status {
        let lock = self.what(process, offset, bytes);
        let args = LockArgs { cookie: vec![1], block, exclusive: true, lock, reclaim, state: 1 };
        self.call(procedure::LOCK, args.write(Writer::new()))
    }

    fn try_lock(&mut self, process: u32, offset: u64, bytes: u64) -> Status {
        self.lock(process, offset, bytes, false, false)
    }

    fn unlock(&mut self, process: u32, offset: u64, bytes: u64) -> Status {
        let args = UnlockArgs { cookie: vec![1], lock: self.what(process, offset, bytes) };
        self.call(procedure::UNLOCK, args.write(Writer::new()))
    }

    /// Waits until a daemon is called.
    fn expect(&self, program: u32, number: u32) {
        loop {
            let called = self.calls.recv_timeout(PATIENCE).expect("a call");
            if (called.0, called.1) == (program, number) {
                return;
            }
        }
    }
}

struct Place {
    cluster: Served,
    gateway: SocketAddr,
    handle: Vec<u8>,
    file: File,
}

/// A cluster with a gateway and a file, which is open for a native client.
fn start() -> Place {
    let mut cluster = Served::start(1);
    let address = format!("127.0.0.1:{}", free_ports(1));
    let directory = cluster.scratch().join("nfs0");
    let mut text = fs::read_to_string(cluster.config_path()).unwrap();
    text +=
        &format!("\n[[gateway]]\nname = \"nfs0\"\naddresses = [{address:?}]\ndirectory = {directory:?}\n");
    text +=
        "[[export]]\npath = \"/\"\nclients = [\"127.0.0.0/8\"]\nsquash = \"none\"\ninsecure_ports = true\n";
    fs::write(cluster.config_path(), text).unwrap();
    cluster.place("nfs0", &address, &directory);
    cluster.spawn("nfs0");
    cluster.wait_ready("nfs0");
    let options = OpenOptions::new().read(true).write(true).create(true).mode(0o666);
    let file = cluster.client(Transport::Tcp).open("/f", &options).unwrap();
    let url = format!("nfs://{address}/?mountport={}", address.rsplit(':').next().unwrap());
    let nfs = NfsClient::connect(&NfsUrl::parse(&url).unwrap(), &ConnectOptions::default()).unwrap();
    let handle = nfs.lookup(nfs.root(), b"f").unwrap().handle.bytes().to_vec();
    Place { cluster, gateway: address.parse().unwrap(), handle, file }
}

impl Place {
    fn take(&self, bytes: std::ops::Range<u64>) -> bool {
        self.file.lock(LockTarget::range(bytes), LockKind::Exclusive, LockWait::Never).is_ok()
    }
}

#[test]
fn nfs_clients_mounts_and_programs_keep_each_other_out() {
    if !Need::Root.is_met() {
        return;
    }
    let place = start();
    let mount = place.cluster.mount();
    let Some(mut host) = Host::start(21, place.gateway, &place.handle) else { return };
    let mut locker = Locker::start();
    locker.must(&format!("open 0 {}", mount.join("f").display()));
    assert_eq!(host.try_lock(7, 0, 10), Status::Granted);
    locker.must_fail("fcntl 0 w 9 1 try", libc::EAGAIN);
    locker.must("fcntl 0 w 10 10 try");
    assert!(!place.take(0..1));
    assert_eq!(host.try_lock(7, 15, 0), Status::Denied);
    // A process on the mount waits for the NFS client.
    locker.send("fcntl 0 w 0 10 wait");
    wait_until("the process waits", PATIENCE, || locker.is_busy());
    assert_eq!(host.unlock(7, 0, 0), Status::Granted);
    assert_eq!(locker.answer(), "ok");
    // The NFS client waits for the process, and is called when it has the lock.
    assert_eq!(host.lock(7, 0, 20, true, false), Status::Blocked);
    locker.must("fcntl 0 u 0 10 try");
    locker.must("close 0");
    host.expect(nlm::PROGRAM, procedure::GRANTED);
    locker.must(&format!("open 0 {}", mount.join("f").display()));
    locker.must_fail("fcntl 0 r 19 1 try", libc::EAGAIN);
    assert_eq!(host.unlock(7, 0, 20), Status::Granted);
    locker.must("fcntl 0 w 0 0 try");
}

#[test]
fn locks_outlive_a_gateway_that_is_killed() {
    if !Need::Root.is_met() {
        return;
    }
    let mut place = start();
    let Some(mut host) = Host::start(22, place.gateway, &place.handle) else { return };
    let Some(mut gone) = Host::start(23, place.gateway, &place.handle) else { return };
    assert_eq!(host.try_lock(7, 0, 10), Status::Granted);
    assert_eq!(gone.try_lock(7, 20, 10), Status::Granted);
    place.cluster.kill("nfs0");
    assert!(!place.take(0..1), "nobody gets it meanwhile");
    place.cluster.spawn("nfs0");
    place.cluster.wait_ready("nfs0");
    host.expect(nsm::PROGRAM, nsm::procedure::NOTIFY);
    assert_eq!(host.try_lock(8, 50, 1), Status::DeniedGracePeriod);
    assert_eq!(host.lock(7, 0, 10, false, true), Status::Granted);
    // Longer than a session lives that nobody has gone on with.
    std::thread::sleep(Duration::from_secs(12));
    assert!(!place.take(0..1) && !place.take(20..21));
    wait_until("what nobody has reclaimed is free", PATIENCE, || place.take(20..30));
    assert!(!place.take(0..1), "what was reclaimed is not");
    assert_eq!(host.unlock(7, 0, 10), Status::Granted);
    assert!(place.take(0..10));
}

#[test]
fn locks_outlive_a_metadata_server_that_is_killed() {
    if !Need::Root.is_met() {
        return;
    }
    let mut place = start();
    let Some(mut host) = Host::start(24, place.gateway, &place.handle) else { return };
    assert_eq!(host.try_lock(7, 0, 10), Status::Granted);
    place.cluster.kill("meta0");
    place.cluster.spawn("meta0");
    place.cluster.wait_ready("meta0");
    assert_eq!(host.try_lock(8, 50, 1), Status::DeniedGracePeriod, "others may come back for theirs");
    // It is answered when the server knows who had what.
    assert!(!place.take(0..10) && place.take(10..20));
    assert_eq!(host.try_lock(8, 50, 1), Status::Granted);
    assert_eq!(host.unlock(7, 0, 10), Status::Granted);
    assert!(place.take(0..10));
}

/// The gateway is stopped while its clients' locks are given to others, with a WRITE in hand.
#[test]
fn a_client_that_has_lost_a_lock_cannot_write_until_it_locks_again() {
    if !Need::Root.is_met() {
        return;
    }
    let mut place = start();
    let Some(mut host) = Host::start(25, place.gateway, &place.handle) else { return };
    let Some(mut without) = Host::start(26, place.gateway, &place.handle) else { return };
    assert_eq!(host.try_lock(7, 0, 10), Status::Granted);
    assert_eq!(host.write(0, "first"), NFS_OK);
    let gateway = place.cluster.pid("nfs0");
    freeze(gateway);
    place.cluster.crash("meta0");
    place.file.lock(LockTarget::range(0..10), LockKind::Exclusive, LockWait::Forever).unwrap();
    place.file.write_at(b"OTHER", 0).unwrap();
    let stale = host.begin_write(0, "stale");
    signal(gateway, libc::SIGCONT);
    assert_eq!(status_of(stale), NFS3ERR_JUKEBOX, "it may still reclaim the lock");
    host.expect(nsm::PROGRAM, nsm::procedure::NOTIFY);
    assert_eq!(host.lock(7, 0, 10, false, true), Status::Denied);
    wait_until("the time to reclaim is over", PATIENCE, || host.write(0, "stale") != NFS3ERR_JUKEBOX);
    assert_eq!((host.write(0, "stale"), host.set_size(2)), (NFS3ERR_IO, NFS3ERR_IO));
    assert_eq!(without.write(100, "else"), NFS_OK, "another client has lost nothing");
    let content = |expected: &[u8]| {
        let mut text = vec![0; expected.len()];
        place.file.read_at(&mut text, 0).unwrap();
        assert_eq!(text, expected);
    };
    content(b"OTHER");
    assert_eq!(host.try_lock(7, 0, 10), Status::Denied);
    assert_eq!(host.write(0, "stale"), NFS3ERR_IO);
    place.file.unlock(LockTarget::range(..)).unwrap();
    assert_eq!(host.try_lock(7, 0, 5), Status::Granted);
    assert_eq!(host.write(0, "stale"), NFS3ERR_IO, "half of what it had");
    assert_eq!(host.try_lock(7, 5, 5), Status::Granted);
    assert_eq!((host.write(0, "fresh"), host.set_size(3)), (NFS_OK, NFS_OK));
    content(b"fre");
}
