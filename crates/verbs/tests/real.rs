//! The seam over rdma-core, on an adapter: what every implementation must do, and what only real ones can
//! show.
//!
//! These tests need an adapter, and its address in `WEFT_TEST_RDMA`; `make test` runs them in a guest with
//! one of software.

#[macro_use]
mod suite;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use suite::{End, Hosts, Mapping, TIMEOUT, exchange};
use weft_verbs::{
    Access, Device, DeviceEvent, Endpoint, Fabric, LinkLayer, Listener, RdmaCore, TrafficClass, VerbsError,
    Work, WorkStatus,
};

fn address_in(variable: &str) -> IpAddr {
    let text = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set"));
    text.parse().unwrap_or_else(|_| panic!("{variable} is not an address"))
}

fn core() -> RdmaCore {
    RdmaCore::load().expect("there is RDMA where WEFT_TEST_RDMA is set")
}

fn hosts() -> Hosts<RdmaCore> {
    hosts_at(address_in("WEFT_TEST_RDMA"))
}

/// The adapters of guests are of software: rdma_rxe, up to Linux 6.1 at least, looks only at the registration
/// behind a window.
fn hosts_at(ip: IpAddr) -> Hosts<RdmaCore> {
    let core = core();
    let is_software = |name: &String| name.starts_with("rxe");
    let exact_windows = !core.device_names().expect("adapters are listed").iter().any(is_software);
    Hosts { server: core, client: core, ip, exact_windows }
}

conformance!([#[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]] hosts());

/// What can be said without any adapter: either there is RDMA, or the reason why not.
#[test]
fn without_rdma_the_reason_is_told() {
    match RdmaCore::load() {
        Ok(core) => assert!(!core.device_names().expect("adapters are listed").is_empty()),
        Err(VerbsError::Unavailable(reason)) => assert!(reason.len() > 20, "{reason}"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
#[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
fn the_adapter_is_described() {
    let core = core();
    let names = core.device_names().expect("adapters are listed");
    let (client, server) = hosts().pair();
    assert!(names.iter().any(|name| name == client.device.name()), "{names:?}");
    assert!(Arc::ptr_eq(&client.device, &server.device), "an adapter is opened once in a process");
    let limits = client.device.limits();
    println!("{}: {limits:?}", client.device.name());
    assert_ne!(limits.link_layer, LinkLayer::Pretended);
    assert!(limits.send_pieces_max >= 2 && limits.read_pieces_max >= 1 && limits.send_depth_max >= 64);
    assert!(limits.reads_out_max >= 1 && limits.reads_in_max >= 1 && limits.shared_receives_max >= 64);
    assert!(limits.registration_bytes_max >= 1 << 30 && limits.completions_max >= 256);
}

#[test]
#[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
fn what_leads_nowhere_is_named() {
    let core = core();
    let nowhere: SocketAddr = "127.0.0.1:7000".parse().expect("an address");
    match core.resolve(nowhere, TrafficClass::default(), TIMEOUT) {
        Err(VerbsError::Resolve { address, step, .. }) => {
            assert_eq!(address, nowhere);
            assert!(step.starts_with("resolving") && step.contains("rdma link"), "{step}");
        }
        other => panic!("a way was found: {:?}", other.map(|endpoint| endpoint.peer())),
    }
    let elsewhere: SocketAddr = "192.0.2.1:7000".parse().expect("an address");
    let error = core.listen(elsewhere, 1).map(|listener| listener.address()).expect_err("it is not ours");
    assert!(matches!(error, VerbsError::Listen { address, .. } if address == elsewhere), "{error}");
    let listener = hosts().listen();
    let error = core.listen(listener.address(), 1).map(|listener| listener.address()).expect_err("in use");
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
#[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
fn a_class_of_traffic_is_taken() {
    let hosts = hosts();
    let door = hosts.listen_with(hosts.listen());
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let mut end = End::<RdmaCore>::new(door.next());
            end.endpoint.accept(b"").expect("the request is taken");
            end
        });
        let endpoint =
            hosts.client.resolve(door.address, TrafficClass(0x68), TIMEOUT).expect("there is a way");
        let mut client = End::<RdmaCore>::new(endpoint);
        client.endpoint.connect(b"", TIMEOUT).expect("the server takes it");
        exchange(&mut client, &mut accepting.join().expect("the server's side works"), 1);
    });
}

#[test]
#[ignore = "needs an RDMA adapter, its IPv6 address in WEFT_TEST_RDMA_6"]
fn ipv6_works_alike() {
    let hosts = hosts_at(address_in("WEFT_TEST_RDMA_6"));
    let (mut client, mut server) = hosts.pair();
    exchange(&mut client, &mut server, 1);
    assert!(client.endpoint.peer().is_ipv6());
}

/// The end that another process plays; see [`plays_the_peer`].
struct Peer(Child);

impl Peer {
    fn start(part: &str, address: SocketAddr) -> Peer {
        let program = std::env::current_exe().expect("a test knows its own program");
        let mut command = Command::new(program);
        command.args(["--ignored", "--exact", "--nocapture", "plays_the_peer"]);
        command.env("WEFT_TEST_PART", part).env("WEFT_TEST_PEER", address.to_string());
        Peer(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("the test's program can be run"),
        )
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test of its own: connects to `WEFT_TEST_PEER`, and plays the part `WEFT_TEST_PART`.
#[test]
#[ignore = "is a process that other tests start"]
fn plays_the_peer() {
    let Ok(part) = std::env::var("WEFT_TEST_PART") else { return };
    let address = std::env::var("WEFT_TEST_PEER").expect("an address").parse().expect("an address");
    let mut end = connect_patiently(address);
    let memory = end.memory(4096);
    match part.as_str() {
        "killed" => std::thread::sleep(TIMEOUT * 2),
        "ping" => {
            for round in 0..pings() {
                memory.fill(round as u8);
                let answer = end.memory(4096);
                end.receive(1, answer.all());
                end.post(&[suite::silent(2, Work::Send, &[memory.all()])]);
                assert_eq!(end.next_done().status, WorkStatus::Ok);
                assert_eq!(answer.bytes(), memory.bytes(), "round {round}");
            }
        }
        "vanish" => {
            let unheard = end.memory(4096);
            end.receive(1, unheard.all());
            end.run_well(Work::Send, &[memory.all()]);
            let mut lose_all = Command::new("tc");
            lose_all.args(["qdisc", "replace", "dev", "eth0", "root", "netem", "loss", "100%"]);
            assert!(lose_all.status().expect("tc can be run").success());
            std::thread::sleep(TIMEOUT / 2);
        }
        other => panic!("there is no part {other}"),
    }
}

/// The other side may not listen yet.
fn connect_patiently(address: SocketAddr) -> End<RdmaCore> {
    let start = Instant::now();
    loop {
        let way = core().resolve(address, TrafficClass::default(), TIMEOUT);
        let connected = way.and_then(|endpoint| {
            let mut end = End::<RdmaCore>::new(endpoint);
            end.endpoint.connect(b"", TIMEOUT).map(|()| end)
        });
        match connected {
            Ok(end) => return end,
            Err(error) => assert!(start.elapsed() < TIMEOUT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn pings() -> usize {
    std::env::var("WEFT_TEST_PINGS").map_or(50, |text| text.parse().expect("a number"))
}

/// Answers what a peer that pings sends.
fn answer_pings(mut end: End<RdmaCore>, pings: usize) {
    let (memory, answer) = (end.memory(4096), end.memory(4096));
    end.receive(0, memory.all());
    end.endpoint.accept(b"").expect("the request is taken");
    for round in 0..pings {
        let done = end.next_done();
        assert_eq!((done.status, done.bytes), (WorkStatus::Ok, 4096), "round {round}");
        // The receive is posted again before the answer goes out: the next ping finds it.
        answer.put(&memory.bytes());
        end.receive(0, memory.all());
        end.post(&[suite::silent(1, Work::Send, &[answer.all()])]);
    }
    wait_ended_or_gone(&mut end);
}

/// As [`End::wait_ended`], where the word of the other side that it has gone may be lost: it is said once.
/// Now and then a write of nothing asks whether anybody is there.
fn wait_ended_or_gone(end: &mut End<RdmaCore>) {
    const ASK_EVERY: Duration = Duration::from_secs(5);
    let (start, mut asked) = (Instant::now(), Instant::now());
    while !matches!(end.endpoint.state(), weft_verbs::EndpointState::Ended(_)) {
        assert!(start.elapsed() < TIMEOUT, "the connection does not end");
        suite::is_readable(end.endpoint.event_fd(), Duration::from_secs(1));
        if asked.elapsed() > ASK_EVERY {
            if end.run(Work::Write { remote_address: 0, remote_key: 0 }, &[]).status != WorkStatus::Ok {
                return;
            }
            asked = Instant::now();
        }
    }
}

#[test]
#[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
fn processes_talk() {
    let hosts = hosts();
    let door = hosts.listen_with(hosts.listen());
    let _peer = Peer::start("ping", door.address);
    answer_pings(End::new(door.next()), pings());
}

/// One half of a test of two hosts; the other is [`plays_the_peer`] with part "ping".
#[test]
#[ignore = "needs two hosts with RDMA adapters: its own address in WEFT_TEST_RDMA_SERVES"]
fn hosts_talk() {
    let ip = address_in("WEFT_TEST_RDMA_SERVES");
    let listener = core().listen(SocketAddr::new(ip, 7171), 4).expect("the adapter has the address");
    let hosts = hosts_at(ip);
    answer_pings(End::new(hosts.listen_with(listener).next()), pings());
}

/// One half of a test of two hosts; the other is [`plays_the_peer`] with part "vanish".
#[test]
#[ignore = "needs two hosts with RDMA adapters: its own address in WEFT_TEST_RDMA_SERVES"]
fn a_host_that_vanishes_is_noticed() {
    let ip = address_in("WEFT_TEST_RDMA_SERVES");
    let listener = core().listen(SocketAddr::new(ip, 7172), 4).expect("the adapter has the address");
    let mut end = End::<RdmaCore>::new(hosts_at(ip).listen_with(listener).next());
    let (received, sent) = (end.memory(4096), end.memory(64));
    end.receive(1, received.all());
    end.endpoint.accept(b"").expect("the request is taken");
    assert_eq!(end.next_done().status, WorkStatus::Ok);
    std::thread::sleep(Duration::from_secs(2));
    let start = Instant::now();
    assert_eq!(end.run(Work::Send, &[sent.all()]).status, WorkStatus::RetriesExceeded);
    assert!(start.elapsed() < Duration::from_secs(10), "noticed only after {:?}", start.elapsed());
}

#[test]
#[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
fn a_killed_process_ends_its_connections() {
    let hosts = hosts();
    let door = hosts.listen_with(hosts.listen());
    let mut peer = Peer::start("killed", door.address);
    let mut end = End::<RdmaCore>::new(door.next());
    end.endpoint.accept(b"").expect("the request is taken");
    end.wait_connected();
    let memory = end.memory(64);
    end.receive(1, memory.all());
    peer.0.kill().expect("the peer is killed");
    end.wait_ended();
    assert_eq!(end.next_done().status, WorkStatus::Flushed);
}

/// Forks. The child runs `body`, and nothing else of the test.
fn fork(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child only runs what is here and ends without cleaning up.
    match unsafe { libc::fork() } {
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: nothing is passed but a number.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        child => {
            assert!(child > 0, "there can be a child");
            child
        }
    }
}

fn wait_for(child: libc::pid_t) {
    let mut status = -1;
    // SAFETY: there is room for the status of a child of our own.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child ends well");
}

#[test]
#[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
fn forked_children_end_nothing_of_their_parents() {
    let hosts = hosts();
    let door = hosts.listen_with(hosts.listen());
    let (client, mut server) = hosts.pair_with(&door);
    let kept = client.memory(4096);
    let (device, address) = (client.device.clone(), door.address);
    let mut everything = Some((client, kept));
    let child = fork(|| {
        drop(everything.take());
        drop(device.window().ok());
        let refused = core_of_child(address);
        let Err(VerbsError::Unavailable(reason)) = refused else {
            panic!("a child can use its parent's adapter")
        };
        assert!(reason.contains("fork"), "{reason}");
    });
    wait_for(child);
    let (mut client_again, kept) = everything.take().expect("only the child has dropped it");
    kept.fill(1);
    let received = server.memory(4096);
    server.receive(1, received.all());
    client_again.run_well(Work::Send, &[kept.all()]);
    assert_eq!(server.next_done().status, WorkStatus::Ok);
    assert_eq!(received.bytes(), kept.bytes());
    exchange(&mut server, &mut client_again, 2);
    let (mut client, mut server) = hosts.pair_with(&door);
    exchange(&mut client, &mut server, 3);
}

fn core_of_child(address: SocketAddr) -> Result<(), VerbsError> {
    RdmaCore::load()?.resolve(address, TrafficClass::default(), TIMEOUT).map(|_| ())
}

/// Pages that are registered stay the parent's, whoever writes first after a fork.
#[test]
#[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
fn registered_memory_stays_the_parents_across_fork() {
    let (mut client, mut server) = hosts().pair();
    let (sent, received) = (client.memory(8192), server.memory(8192));
    sent.fill(1);
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    let child = fork(|| {
        // Waits until the parent has written and received.
        let _ = std::io::Read::read(&mut reader, &mut [0]);
    });
    sent.fill(2);
    server.receive(1, received.all());
    client.run_well(Work::Send, &[sent.all()]);
    assert_eq!(server.next_done().status, WorkStatus::Ok);
    assert_eq!(received.bytes(), sent.bytes());
    writer.write_all(&[0]).expect("the child reads");
    wait_for(child);
}

/// A registration that a window is still bound to goes when the window goes, at the latest.
#[test]
#[ignore = "needs an RDMA adapter, its address in WEFT_TEST_RDMA"]
fn a_registration_may_go_before_its_windows() {
    use weft_verbs::{Registration, Window};
    let (mut client, mut server) = hosts().pair();
    if !server.device.limits().windows {
        return;
    }
    server.wait_connected();
    let mapping = Mapping::new(4096);
    let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
    // SAFETY: nobody is told of it.
    let region =
        unsafe { server.device.register(mapping.address(), 4096, access) }.expect("it is registered");
    let mut window = server.device.window().expect("the adapter has windows");
    let bind = Work::Bind {
        window_key: window.next_key(),
        local_key: region.local_key(),
        address: mapping.address() as u64,
        bytes: 4096,
        access: Access::REMOTE_READ,
    };
    server.run_well(bind, &[]);
    drop(region);
    drop(window);
    exchange(&mut client, &mut server, 1);
}

/// What befalls an adapter is told, and connections over it end; afterwards new ones can be made. Needs a
/// guest of its own: takes the adapter rxe0 away, and makes it again on the interface `WEFT_TEST_INTERFACE`.
#[test]
#[ignore = "takes an adapter away: needs a guest of its own, WEFT_TEST_RDMA and WEFT_TEST_INTERFACE"]
fn an_adapter_may_go_and_come_back() {
    let interface = std::env::var("WEFT_TEST_INTERFACE").expect("WEFT_TEST_INTERFACE is set");
    let program = std::env::current_exe().expect("a test knows its own program");
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "--nocapture", "loses_its_adapter"]).stdout(Stdio::piped());
    let mut loser = Peer(command.spawn().expect("the test's program can be run"));
    let mut said = BufReader::new(loser.0.stdout.take().expect("its output is a pipe")).lines();
    let ready = said.by_ref().map_while(Result::ok).any(|line| line.ends_with(READY));
    assert!(ready, "the process that is to lose its adapter is not ready");
    // Returns when nobody uses the adapter any more.
    rdma_link(&["del", "rxe0"]);
    assert!(loser.0.wait().expect("it ends").success());
    rdma_link(&["add", "rxe0", "type", "rxe", "netdev", &interface]);
    let (mut client, mut server) = hosts().pair();
    exchange(&mut client, &mut server, 2);
}

/// What a process says that is ready to lose its adapter.
const READY: &str = "ready to lose the adapter";

/// Not a test of its own: a process of [`an_adapter_may_go_and_come_back`].
#[test]
#[ignore = "is a process that another test starts"]
fn loses_its_adapter() {
    let Ok(interface) = std::env::var("WEFT_TEST_INTERFACE") else { return };
    let (mut client, mut server) = hosts().pair();
    exchange(&mut client, &mut server, 1);
    server.wait_connected();
    ip_link(&interface, "down");
    assert!(suite::is_readable(client.device.event_fd(), TIMEOUT), "the adapter has something to tell");
    let events = client.device.events();
    assert!(events.contains(&DeviceEvent::PortDown(1)), "{events:?}");
    ip_link(&interface, "up");
    println!("{READY}");
    // One of them may hear first that the other one has lost its adapter.
    let causes = [client.wait_ended(), server.wait_ended()];
    assert!(causes.iter().any(|cause| cause.contains("rxe0") && cause.contains("removed")), "{causes:?}");
}

fn ip_link(interface: &str, state: &str) {
    let status = Command::new("ip").args(["link", "set", interface, state]).status().expect("ip can be run");
    assert!(status.success());
}

fn rdma_link(arguments: &[&str]) {
    let status = Command::new("rdma").arg("link").args(arguments).status().expect("rdma can be run");
    assert!(status.success());
}

/// A flood of messages that nobody has receives for only slows down its own connection.
#[test]
#[ignore = "provokes what other tests forbid: needs WEFT_TEST_RDMA_FLOOD"]
fn a_flood_harms_only_its_own_connection() {
    let hosts = hosts_at(address_in("WEFT_TEST_RDMA_FLOOD"));
    let door = hosts.listen_with(hosts.listen());
    let (mut flooder, flooded) = hosts.pair_with(&door);
    let memory = flooder.memory(64);
    let piece = [memory.all()];
    let chain: Vec<_> = (0..60).map(|id| suite::silent(id, Work::Send, &piece)).collect();
    flooder.post(&chain);
    let (mut client, mut server) = hosts.pair_with(&door);
    for seed in 0..20 {
        exchange(&mut client, &mut server, seed);
    }
    assert_eq!(flooder.next_done_within(Duration::from_secs(2)), None, "the flooder waits");
    drop(flooded);
    flooder.wait_ended();
}
