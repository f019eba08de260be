//! A cluster in the process of a test: real servers on threads, real sockets, a temporary directory; and pretended adapters, over
//! which the transport's own code runs.
//!
//! ```text
//!   test program ─► Cluster ─► weft-server on threads ◄─ TCP, shared memory, verbs over weft-verbs-double ─► weft-client
//!                   compiled once, here: code of servers and clients depends on the RDMA that is below it
//! ```
//!
//! A crate of its own, not a module of each test program: each would compile the servers anew for the pretended adapters, which takes
//! half a minute.

pub mod cut;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use weft_client::{Client, ConnectOptions, Rdma, RdmaOptions, Transport, Url};
use weft_server::{ClusterConfig, Generate, RdmaMode, Server, StopFlag, SyncMode, create_keys};
use weft_test_needs::free_ports;
use weft_verbs_double::{Adapter, Pretend, PretendOptions};
use weft_wire::keys::IssuedKey;
use weft_wire::security::Key;

/// A metadata server and I/O servers; stopped when dropped.
pub struct Cluster {
    _dir: tempfile::TempDir,
    config: ClusterConfig,
    /// The cluster's key.
    pub key: Key,
    /// The host of the servers.
    pub fabric: Pretend,
    /// The host of the clients.
    pub client_fabric: Pretend,
    rdma: Rdma,
    running: Vec<Option<(StopFlag, JoinHandle<()>)>>,
    /// The machine's start that servers take theirs for, if not the real one.
    boot_id: Option<[u8; 16]>,
}

/// A fresh directory: below `$WEFT_TEST_DIR`, else in memory where there is /dev/shm.
fn in_memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let fallback = || if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let parent = std::env::var_os("WEFT_TEST_DIR").map_or_else(fallback, PathBuf::from);
    tempfile::tempdir_in(parent).expect("a temporary directory")
}

impl Cluster {
    /// With one rail between servers and clients.
    pub fn start(io_servers: u16, strip_bytes: u32) -> Cluster {
        Cluster::start_with(io_servers, strip_bytes, 1, PretendOptions::default())
    }

    /// With so many rails between servers and clients.
    pub fn start_with(io_servers: u16, strip_bytes: u32, rails: u8, options: PretendOptions) -> Cluster {
        let host = |name: &str, number: u8| {
            let adapter = |rail| Adapter::new(&format!("{name}{rail}"), IpAddr::from([127, 0, rail, number]));
            (0..rails).map(adapter).collect::<Vec<_>>()
        };
        let fabric = Pretend::new(PretendOptions { adapters: host("server", 1), ..options });
        let client_fabric = fabric.another_host(host("client", 2));
        let rdma = Rdma::over(client_fabric.clone(), &RdmaOptions::default());
        let dir = in_memory();
        let mut config = ClusterConfig::generate(&Generate {
            path: PathBuf::from(dir.path()).join("cluster.toml"),
            host: "127.0.0.1".into(),
            port: free_ports(io_servers + 1),
            io_servers,
            sync: SyncMode::Nosync,
            strip_bytes,
        })
        .unwrap();
        for server in &mut config.servers {
            let port = server.addresses[0].rsplit_once(':').unwrap().1;
            server.rdma_addresses = (0..rails).map(|rail| format!("127.0.{rail}.1:{port}")).collect();
        }
        let key = create_keys(dir.path()).unwrap();
        config.servers.iter().for_each(|server| weft_server::format_storage(&config, &server.name).unwrap());
        let running = config.servers.iter().map(|_| None).collect();
        let boot_id = None;
        let mut cluster = Cluster { _dir: dir, config, key, fabric, client_fabric, rdma, running, boot_id };
        (0..=usize::from(io_servers)).for_each(|server| cluster.start_server(server));
        cluster
    }

    /// Where each server keeps its data below `root`, in a directory of its name, and without adapters, on machines that were just
    /// started. Two of them can not run at
    /// once with the same `config`.
    pub fn start_at(root: &Path, config: &ClusterConfig, key: &Key) -> Cluster {
        let fabric = Pretend::new(PretendOptions::default());
        let client_fabric = fabric.another_host(Vec::new());
        let rdma = Rdma::over(client_fabric.clone(), &RdmaOptions::default());
        let dir = in_memory();
        let mut config = config.clone();
        for server in &mut config.servers {
            server.directory = root.join(&server.name);
            server.socket = Some(dir.path().join(&server.name));
            server.rdma = RdmaMode::Off;
        }
        let running = config.servers.iter().map(|_| None).collect();
        let key = key.clone();
        for server in &config.servers {
            // A storage whose making was cut off is made to the end; one that is whole stays as it is.
            if let Err(error) = weft_server::format_storage(&config, &server.name) {
                assert!(weft_server::has_storage(&config, &server.name).unwrap(), "{error}");
            }
        }
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let boot_id = Some(since_1970.as_nanos().to_be_bytes());
        let mut cluster = Cluster { _dir: dir, config, key, fabric, client_fabric, rdma, running, boot_id };
        (0..cluster.running.len()).for_each(|server| cluster.start_server(server));
        cluster
    }

    /// A cluster that [`Cluster::start_at`] can start.
    pub fn describe(io_servers: u16, strip_bytes: u32, sync: SyncMode) -> ClusterConfig {
        ClusterConfig::generate(&Generate {
            path: PathBuf::from("/nowhere/cluster.toml"),
            host: "127.0.0.1".into(),
            port: free_ports(io_servers + 1),
            io_servers,
            sync,
            strip_bytes,
        })
        .unwrap()
    }

    /// Server 0 is the metadata server.
    pub fn start_server(&mut self, server: usize) {
        let name = self.config.servers[server].name.clone();
        let fabric = self.fabric.clone();
        let started = match self.boot_id {
            Some(boot_id) => {
                Server::start_in_boot(&self.config, &name, &self.key, || Ok(fabric), boot_id).unwrap()
            }
            None => Server::start_over(&self.config, &name, &self.key, || Ok(fabric)).unwrap(),
        };
        let stop = StopFlag::new().unwrap();
        let flag = stop.clone();
        let thread = std::thread::spawn(move || started.run(&flag).unwrap());
        self.running[server] = Some((stop, thread));
    }

    /// Stops a server, if it runs.
    pub fn stop_server(&mut self, server: usize) {
        if let Some((stop, thread)) = self.running[server].take() {
            stop.stop();
            thread.join().unwrap();
        }
    }

    /// One more I/O server, while the others run.
    pub fn add_server(&mut self) {
        let mut file = self.config.clone();
        let mut server = file.servers.last().expect("there are I/O servers").clone();
        server.name = format!("io{}", file.servers.len() - 1);
        server.directory.set_file_name(&server.name);
        Cluster::readdress(&mut server);
        file.servers.push(server.clone());
        weft_server::add_server(&self.config, &(&self.key).into(), &file, &server.name).unwrap();
        weft_server::format_storage(&file, &server.name).unwrap();
        self.config = file;
        self.running.push(None);
        self.start_server(self.running.len() - 1);
    }

    /// Starts a server anew at another address, of which the metadata server is told before.
    pub fn move_server(&mut self, server: usize) {
        let mut file = self.config.clone();
        Cluster::readdress(&mut file.servers[server]);
        weft_server::move_server(&self.config, &(&self.key).into(), &file, &file.servers[server].name)
            .unwrap();
        self.config = file;
        if server == 0 {
            // I/O servers hear of it within a second, and nobody else can tell clients.
            std::thread::sleep(std::time::Duration::from_millis(1500));
        }
        self.stop_server(server);
        self.start_server(server);
    }

    /// Gives a server another port of its host, and a socket elsewhere.
    fn readdress(server: &mut weft_server::ServerConfig) {
        let port = free_ports(1);
        let with_port = |address: &mut String| {
            let host = address.rsplit_once(':').expect("it has a port").0;
            *address = format!("{host}:{port}");
        };
        server.addresses.iter_mut().chain(&mut server.rdma_addresses).for_each(with_port);
        server.socket = Some(server.directory.join(format!("{port}.sock")));
    }

    /// Where a server keeps its storage.
    pub fn directory(&self, server: usize) -> PathBuf {
        self.config.directory_of(&self.config.servers[server])
    }

    /// `weft://host:port/`
    pub fn url(&self) -> Url {
        Url::parse(&format!("weft://{}/", self.config.servers[0].addresses[0])).unwrap()
    }

    /// What [`client`](Cluster::client) connects with.
    pub fn options(&self, transport: Transport) -> ConnectOptions {
        ConnectOptions {
            key: Some(IssuedKey::of_cluster(&self.key)),
            transport: Some(transport),
            retry_timeout_ms: 10_000,
            ..ConnectOptions::default()
        }
    }

    /// With the pretended adapters, if it uses any.
    pub fn client(&self, transport: Transport) -> Client {
        self.client_with(self.options(transport))
    }

    /// As [`client`](Cluster::client), with options of the test's own.
    pub fn client_with(&self, options: ConnectOptions) -> Client {
        Client::connect_with(&self.url(), options, self.rdma.clone()).unwrap()
    }

    /// With RDMA of its own.
    pub fn client_over(&self, rdma: &RdmaOptions, options: ConnectOptions) -> Client {
        Client::connect_with(&self.url(), options, Rdma::over(self.client_fabric.clone(), rdma)).unwrap()
    }

    /// Takes the servers' Unix sockets away, as if they were on another host.
    pub fn move_away(&self) {
        for server in &self.config.servers {
            std::fs::remove_file(self.config.socket_of(server)).unwrap();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.running.len()).for_each(|server| self.stop_server(server));
        if !std::thread::panicking() {
            assert_eq!(self.fabric.complaints(), Vec::<String>::new());
        }
    }
}

/// A number that the metadata server tells of itself.
#[track_caller]
pub fn gauge(client: &Client, name: &str) -> u64 {
    let status = client.server_status(false).swap_remove(0).1.expect("the metadata server answers");
    status.gauges.iter().find(|gauge| gauge.name == name).unwrap_or_else(|| panic!("no {name}")).value
}

/// Waits until `holds`; says what did not come about otherwise.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "{what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}
