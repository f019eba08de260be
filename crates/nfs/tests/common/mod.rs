//! A cluster in this process: real servers on threads, real sockets, a temporary directory.

// Not every test needs all of it.
#![allow(dead_code)]

use std::path::PathBuf;
use std::thread::JoinHandle;

use weft_client::{Client, ConnectOptions, Transport, Url};
use weft_server::{
    ClusterConfig, Generate, RdmaMode, Server, StopFlag, SyncMode, create_keys, format_storage,
};
use weft_test_needs::free_ports;
use weft_wire::keys::IssuedKey;
use weft_wire::messages::Caller;
use weft_wire::security::Key;

pub struct Cluster {
    dir: tempfile::TempDir,
    config: ClusterConfig,
    pub key: Key,
    running: Vec<Option<(StopFlag, JoinHandle<()>)>>,
}

impl Cluster {
    pub fn start(io_servers: u16, strip_bytes: u32) -> Cluster {
        let memory = std::path::Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let mut config = ClusterConfig::generate(&Generate {
            path: PathBuf::from(dir.path()).join("cluster.toml"),
            host: "127.0.0.1".into(),
            port: free_ports(io_servers + 1),
            io_servers,
            sync: SyncMode::Nosync,
            strip_bytes,
        })
        .unwrap();
        config.servers.iter_mut().for_each(|server| server.rdma = RdmaMode::Off);
        let key = create_keys(dir.path()).unwrap();
        config.servers.iter().for_each(|server| format_storage(&config, &server.name).unwrap());
        let running = config.servers.iter().map(|_| None).collect();
        let mut cluster = Cluster { dir, config, key, running };
        (0..=usize::from(io_servers)).for_each(|server| cluster.start_server(server, [1; 16]));
        cluster
    }

    /// Starts a server, 0 for the metadata server; `boot_id`: another one is another start of its machine.
    pub fn start_server(&mut self, server: usize, boot_id: [u8; 16]) {
        let name = self.config.servers[server].name.clone();
        let load = weft_verbs::RdmaCore::load;
        let started = Server::start_in_boot(&self.config, &name, &self.key, load, boot_id).unwrap();
        let stop = StopFlag::new().unwrap();
        let flag = stop.clone();
        let thread = std::thread::spawn(move || started.run(&flag).unwrap());
        self.running[server] = Some((stop, thread));
    }

    pub fn stop_server(&mut self, server: usize) {
        if let Some((stop, thread)) = self.running[server].take() {
            stop.stop();
            thread.join().unwrap();
        }
    }

    pub fn directory(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub fn url(&self) -> Url {
        Url::parse(&format!("weft://{}/", self.config.servers[0].addresses[0])).unwrap()
    }

    pub fn connect_options(&self) -> ConnectOptions {
        ConnectOptions {
            key: Some(IssuedKey::of_cluster(&self.key)),
            transport: Some(Transport::Tcp),
            retry_timeout_ms: 10_000,
            caller: Some(Caller { uid: 0, gid: 0, groups: Vec::new() }),
            ..ConnectOptions::default()
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.url(), self.connect_options()).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.running.len()).for_each(|server| self.stop_server(server));
    }
}
