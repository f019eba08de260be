//! A gateway that registers with a port mapper, and lock calls over TCP and in datagrams.

mod common;
mod serving;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::Cluster;
use weft_client::OpenOptions;
use weft_nfs::{
    ExportOptions, GRACE_DEFAULT, GatewayOptions, Handle, HandleKeys, LOCAL_MAPPER, LockOptions, Serving,
};
use weft_onc_rpc::nlm::{self, Lock, LockArgs, LockResult, Status, procedure};
use weft_onc_rpc::portmap::{self, GETPORT, SET, TCP, UDP, UNSET};
use weft_onc_rpc::record::Mark;
use weft_onc_rpc::reply::{self, ReplyHeader};
use weft_onc_rpc::xdr::{Reader, Writer};
use weft_onc_rpc::{CallHeader, Credential, Refusal, nsm};
use weft_test_needs::Need;

/// Program, version, protocol, port.
type Registered = BTreeSet<(u32, u32, u32, u32)>;

/// A port mapper.
fn mapper(registered: Arc<Mutex<Registered>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut mark = [0; 4];
            stream.read_exact(&mut mark).unwrap();
            let mut call = vec![0; Mark::of(mark).bytes as usize];
            stream.read_exact(&mut call).unwrap();
            let (header, at) = CallHeader::decode(&call).unwrap();
            assert_eq!((header.program, header.version), (portmap::PROGRAM, portmap::VERSION));
            let mut from = Reader::new(&call[at..]);
            let mut word = || from.u32().unwrap();
            let (program, version, protocol, port) = (word(), word(), word(), word());
            let mut registered = registered.lock().unwrap();
            let is_same = |one: &&(u32, u32, u32, u32)| (one.0, one.1, one.2) == (program, version, protocol);
            let known = registered.iter().find(is_same).copied();
            let result = match header.procedure {
                GETPORT => known.map_or(0, |known| known.3),
                SET if known.is_some() => 0,
                SET => u32::from(registered.insert((program, version, protocol, port))),
                UNSET => {
                    registered.retain(|one| (one.0, one.1) != (program, version));
                    1
                }
                other => panic!("procedure {other}"),
            };
            let reply = reply::success(header.xid).u32(result).into_bytes();
            let mark = Mark { is_last: true, bytes: reply.len() as u32 };
            stream.write_all(&[&mark.to_bytes()[..], &reply].concat()).unwrap();
        }
    });
    address
}

fn serve(cluster: &Cluster, rpcbind: Option<SocketAddr>) -> Serving {
    serve_at(cluster, rpcbind, "127.0.0.1:0")
}

fn serve_at(cluster: &Cluster, rpcbind: Option<SocketAddr>, address: &str) -> Serving {
    let locks = LockOptions {
        directory: cluster.directory().join("locks"),
        url: cluster.url(),
        connect: cluster.connect_options(),
        name: "gateway".into(),
        grace: GRACE_DEFAULT,
        mapper_port: portmap::PORT,
    };
    let options = serving::options(cluster.client(), &cluster.key, "/");
    serving::serve_at(GatewayOptions { locks: Some(locks), rpcbind, ..options }, address)
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn all_programs_are_registered_and_taken_back() {
    let cluster = Cluster::start(1, 4096);
    let registered = Arc::new(Mutex::new(Registered::new()));
    // A gateway that was killed has left a port where nobody listens; another server has a program.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let others = (nsm::PROGRAM, nsm::VERSION, TCP, other.local_addr().unwrap().port().into());
    registered.lock().unwrap().extend([(100_003, 3, TCP, closed.into()), others]);
    std::thread::spawn(move || other.incoming().for_each(drop));
    let serving = serve(&cluster, Some(mapper(registered.clone())));
    let port = u32::from(serving.addresses()[0].port());
    let expected = Registered::from([
        (100_003, 3, TCP, port),
        (100_005, 3, TCP, port),
        (100_021, 4, TCP, port),
        (100_021, 4, UDP, port),
        others,
    ]);
    wait_for("all are registered", || *registered.lock().unwrap() == expected);
    serving.stop();
    assert_eq!(*registered.lock().unwrap(), Registered::from([others]), "what is another's stays");
}

/// Ends with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// rpcbind itself, in a network of its own, tells clients of both families where the gateway is.
#[test]
fn rpcbind_knows_a_gateway_by_ipv4_and_ipv6() {
    const INSIDE: &str = "WEFT_NFS_OWN_NETWORK";
    if std::env::var_os(INSIDE).is_none() {
        if !Need::NetworkNamespaces.is_met() || !Need::Rpcinfo.is_met() {
            return;
        }
        let script = "ip link set lo up && mount -t tmpfs tmpfs /run && mkdir /run/rpcbind && exec \"$@\"";
        let mut inside = Command::new("unshare");
        inside.args(["-n", "-m", "sh", "-c", script, "sh"]).arg(std::env::current_exe().unwrap());
        inside.args(["rpcbind_knows_a_gateway_by_ipv4_and_ipv6", "--exact", "--nocapture"]).env(INSIDE, "1");
        assert!(inside.status().unwrap().success());
        return;
    }
    let _daemon = Daemon(Command::new("rpcbind").arg("-f").spawn().unwrap());
    wait_for("rpcbind is there", || TcpStream::connect("[::1]:111").is_ok());
    let known = || {
        let output = Command::new("rpcinfo").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let of = |number: &str| text.lines().filter(|line| line.trim_start().starts_with(number)).count();
        // Of locks and of restarts there are datagrams, too.
        [of("100003 "), of("100005 "), of("100021 "), of("100024 ")]
    };
    let cluster = Cluster::start(1, 4096);
    for (address, each) in [("[::]:0", 2), ("127.0.0.1:0", 1), ("[::1]:0", 1)] {
        let serving = serve_at(&cluster, Some(LOCAL_MAPPER), address);
        wait_for("all are registered", || known() == [each, each, 2 * each, 2 * each]);
        let seen = Command::new("rpcinfo").args(["-T", "tcp6", "::1", "100003"]).output().unwrap();
        assert_eq!(seen.status.success(), address.starts_with('['), "{seen:?}");
        serving.stop();
        assert_eq!(known(), [0; 4]);
    }
}

#[test]
fn a_gateway_serves_where_no_port_mapper_is() {
    let cluster = Cluster::start(1, 4096);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let serving = serve(&cluster, Some(closed));
    let stream = TcpStream::connect(serving.addresses()[0]).unwrap();
    wait_for("the client is there", || {
        let own = stream.local_addr().unwrap();
        serving.clients().iter().any(|peer| peer.address == own)
    });
    serving.stop();
}

#[test]
fn lock_calls_come_in_datagrams_too() {
    let cluster = Cluster::start(1, 4096);
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = cluster.client().open("/f", &options).unwrap();
    let export = ExportOptions { path: "/".into(), rules: Vec::new() }.id();
    let keys = HandleKeys::of_cluster(std::slice::from_ref(&cluster.key));
    let handle = keys.seal(Handle::new(export, file.ino())).data.to_vec();
    let serving = serve(&cluster, None);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(serving.addresses()[0]).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let call = |xid: u32, program: u32, version: u32, number: u32, args: &[u8]| {
        let head =
            CallHeader { xid, program, version, procedure: number, credential: Credential::None }.write();
        socket.send(&[&head.into_bytes(), args].concat()).unwrap();
        let mut reply = [0; 1024];
        let bytes = socket.recv(&mut reply).unwrap();
        let (head, at) = ReplyHeader::decode(&reply[..bytes]).unwrap();
        assert_eq!(head.xid, xid);
        head.outcome.map(|()| reply[at..bytes].to_vec())
    };
    let lock = Lock { host: b"h".to_vec(), handle, owner: b"o".to_vec(), process: 7, offset: 0, bytes: 0 };
    let args = LockArgs { cookie: vec![5], block: false, exclusive: false, lock, reclaim: false, state: 1 };
    let args = args.write(Writer::new()).into_bytes();
    socket.send(b"noise").unwrap();
    let results = call(1, nlm::PROGRAM, nlm::VERSION, procedure::LOCK, &args).unwrap();
    let granted = LockResult { cookie: vec![5], status: Status::Granted };
    assert_eq!(LockResult::read(&mut Reader::new(&results)), Ok(granted));
    assert_eq!(serving.counts().locks.locks, 1);
    let versions = Refusal::Versions { low: nlm::VERSION, high: nlm::VERSION };
    assert_eq!(call(2, nlm::PROGRAM, 1, 0, &[]), Err(versions));
    assert_eq!(call(3, 100_003, 3, 0, &[]), Err(Refusal::NoProgram));
    assert_eq!(call(4, nlm::PROGRAM, nlm::VERSION, procedure::LOCK, &args[..9]), Err(Refusal::Arguments));
    let change = nsm::Change { host: b"h".to_vec(), state: 3 }.write(Writer::new()).into_bytes();
    assert_eq!(call(5, nsm::PROGRAM, nsm::VERSION, nsm::procedure::NOTIFY, &change), Ok(Vec::new()));
    assert_eq!(serving.counts().locks.locks, 0);
    serving.stop();
}
