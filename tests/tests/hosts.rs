//! Servers on several hosts: network namespaces joined by a bridge.
//!
//! ```text
//!    meta0 10.77.N.1    io0 10.77.N.2    io1 10.77.N.3    client 10.77.N.4        each a namespace with a veth
//!          └─────────────────┴───────┬────────┴─────────────────┘
//!                                 bridge                                         in a fifth namespace
//! ```
//!
//! Every server has a file system of its own under its storage directory, so that nobody else reaches its Unix socket: as on other
//! hosts, TCP is all there is.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use weft_test_needs::Need;
use weft_tests::{
    Load, Network, Served, ServedOptions, expect_success, sh_in, wait_until, weft_bin, weft_load,
};

const HOSTS: [&str; 4] = ["meta0", "io0", "io1", "client"];
/// A client that waits 4 s for an answer and tries again for 4 s has given up after this time.
const GIVE_UP_MAX: Duration = Duration::from_secs(25);

/// A cluster over a network. (Fields are dropped in this order: processes end before their namespaces.)
struct Spread {
    cluster: Served,
    network: Network,
}

impl Spread {
    /// `None` where this user may not make namespaces.
    fn start() -> Option<Spread> {
        if !Need::NetworkNamespaces.is_met() {
            return None;
        }
        let network = Network::new(&HOSTS);
        let hosts = HOSTS[..3].iter().map(|host| (host.to_string(), network.address(host))).collect();
        let mut cluster = Served::init(ServedOptions { io_servers: 2, hosts, ..ServedOptions::default() });
        let mut through = BTreeMap::new();
        for host in &HOSTS[..3] {
            let dir = cluster.directory(host).display();
            let script = format!(
                "cp -a {dir} {dir}.made && mount -t tmpfs tmpfs {dir} && cp -a {dir}.made/. {dir} && exec \"$@\""
            );
            let words = ["ip", "netns", "exec", &network.namespace(host), "sh", "-c", &script, "sh"];
            through.insert(host.to_string(), words.map(str::to_string).to_vec());
        }
        through.into_iter().for_each(|(name, words)| cluster.start_through(&name, words));
        let spread = Spread { cluster, network };
        wait_until("all servers answer", Duration::from_secs(30), || {
            spread
                .client(&["status", &spread.cluster.url()])
                .output()
                .is_ok_and(|output| output.status.success())
        });
        Some(spread)
    }

    /// A call of `weft` on the client's host.
    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = self.network.inside("client", weft_bin());
        command.args(arguments).env("WEFT_KEY_FILE", self.cluster.key_file());
        command
    }

    #[track_caller]
    fn weft(&self, arguments: &[&str]) -> String {
        expect_success(&arguments.join(" "), &self.client(arguments).output().expect("weft can be run"))
    }

    /// Writes blocks over both I/O servers until it is stopped.
    fn start_writer(&self, timeout_ms: u64) -> Load {
        let mut command = self.network.inside("client", &weft_load());
        command.env("WEFT_LOAD_TIMEOUT_MS", timeout_ms.to_string());
        Load::start_through(command, &self.cluster, "write", "tcp", &["/written", "0", "200000", "100"])
    }

    fn start_client(&self, arguments: &[&str]) -> Running {
        let mut command = self.client(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().expect("weft can be run")))
    }
}

/// A process that does not outlive the test.
struct Running(Option<Child>);

impl Running {
    fn output(mut self) -> Output {
        self.0.take().expect("once").wait_with_output().expect("a child can be waited for")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn files_travel_between_hosts() {
    let Some(spread) = Spread::start() else { return };
    let scratch = spread.cluster.scratch();
    sh_in(
        scratch,
        "mkdir -p tree/deep/er; for size in 0 1 65535 65536 3000000; do head -c $size /dev/urandom > tree/deep/$size; done
         head -c 40000000 /dev/urandom > tree/large; ln -s deep/1 tree/link",
    );
    let (tree, back) =
        (scratch.join("tree").display().to_string(), scratch.join("back").display().to_string());
    spread.weft(&["cp", "-r", "-q", &tree, &spread.cluster.at("/tree")]);
    spread.weft(&["cp", "-r", "-q", &spread.cluster.at("/tree"), &back]);
    sh_in(scratch, "diff -r --no-dereference tree back");
    let sums = sh_in(scratch, "sha256sum < tree/large");
    let cat = spread.client(&["cat", &spread.cluster.at("/tree/large")]).output().expect("weft can be run");
    std::fs::write(scratch.join("cat"), &cat.stdout).expect("room");
    assert_eq!(sh_in(scratch, "sha256sum < cat"), sums);

    let said = spread.weft(&["status", "--json", &spread.cluster.url()]);
    let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let servers = status["servers"].as_array().expect("a list of servers");
    assert_eq!(servers.len(), 3, "{said}");
    for server in servers {
        let transport = server["transport"].as_str().unwrap_or_else(|| panic!("no transport: {server}"));
        assert!(transport.contains("tcp"), "{server}");
    }
    let said = spread.weft(&["status", &spread.cluster.url()]);
    assert!(said.contains("tcp") && said.contains(&spread.network.address("io1")), "{said}");
}

#[test]
fn writes_and_reads_survive_a_cut_cable() {
    let Some(spread) = Spread::start() else { return };
    let mut writer = spread.start_writer(30_000);
    writer.wait_progress(20);
    for host in ["io1", "meta0", "io0", "client"] {
        spread.network.link(host, "down");
        std::thread::sleep(Duration::from_secs(2));
        spread.network.link(host, "up");
        writer.wait_progress(20);
    }
    let acknowledged = writer.finish();
    assert!(acknowledged.len() > 100);

    // A reader that waits in the middle of a file, while a cable is cut.
    let scratch = spread.cluster.scratch();
    sh_in(scratch, "head -c 60000000 /dev/urandom > large");
    spread.weft(&["cp", "-q", &scratch.join("large").display().to_string(), &spread.cluster.at("/large")]);
    let mut cat = spread.start_client(&["cat", &spread.cluster.at("/large")]);
    let mut out = cat.0.as_mut().and_then(|child| child.stdout.take()).expect("piped");
    let mut back = vec![0; 1_000_000];
    out.read_exact(&mut back).expect("the beginning comes");
    spread.network.link("io0", "down");
    let reader = std::thread::spawn(move || {
        out.read_to_end(&mut back).expect("a pipe can be read");
        back
    });
    std::thread::sleep(Duration::from_secs(2));
    spread.network.link("io0", "up");
    let back = reader.join().expect("it only reads");
    expect_success("weft cat", &cat.output());
    assert!(back == std::fs::read(scratch.join("large")).expect("a local file"));
}

#[test]
fn a_cable_that_stays_cut_gives_a_clear_error_in_bounded_time() {
    let Some(spread) = Spread::start() else { return };
    let mut writer = spread.start_writer(4_000);
    writer.wait_progress(20);
    spread.network.link("io1", "down");
    let start = Instant::now();
    wait_until("the client gives up", GIVE_UP_MAX, || writer.is_over());
    let took = start.elapsed();
    let (status, said) = writer.end_and_error();
    assert!(!status.success() && said.contains("io1"), "the error does not name the server: {said}");
    eprintln!("after {took:?}: {said}");
    // The rest of the cluster goes on, and all of it does once the cable is mended.
    spread.weft(&["mkdir", &spread.cluster.at("/meanwhile")]);
    spread.network.link("io1", "up");
    let mut writer = spread.start_writer(4_000);
    writer.wait_progress(20);
    writer.finish();
}
