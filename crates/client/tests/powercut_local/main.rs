//! A cluster on real ext4 and XFS through power cuts.
//!
//! ```text
//!   this process    device that records ◄── loop ◄── ext4 or XFS         a client changes and syncs files, over TCP
//!   another one                                        └── the servers ◄──┘
//!                   images of the device at random moments of its writes and flushes
//!   each            mounted (its journal is replayed) ─► the servers start ─► the files are what they may be
//! ```
//!
//! Here local file systems do to mapped pages, sizes, new blocks and directories what they do. `WEFT_LOCAL_POWERCUT_IMAGES` says
//! how many images of each there are to be.

#[path = "../powercut/work.rs"]
mod work;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use weft_client::{Client, ConnectOptions, Transport, Url};
use weft_power_cut::{Cut, History, Image, LocalFs, MountedImage, Shared, can_mount, from_environment};
use weft_server::{CLUSTER_KEY_FILE, ClusterConfig, SyncMode, load_cluster_keys};
use weft_test_cluster::Cluster;
use weft_test_random::{Random, seed, seeds};
use weft_wire::keys::IssuedKey;
use weft_wire::security::Key;
use work::{files_of, work};

const IMAGES_DEFAULT: usize = 24;
const IMAGES_PER_CYCLE: usize = 12;
const IO_SERVERS: u16 = 2;
const STRIP_BYTES: u32 = 4096;
/// Where the other process finds the cluster file and the key, and where it keeps the data.
const CONFIG_DIRECTORY: &str = "WEFT_POWERCUT_CONFIG";
const DATA_DIRECTORY: &str = "WEFT_POWERCUT_DATA";
/// What it says when the servers listen.
const READY: &str = "the servers listen";

/// The servers' process: runs them until its input ends.
#[test]
fn servers_in_a_process_of_their_own() {
    let (Some(config), Some(data)) = (std::env::var_os(CONFIG_DIRECTORY), std::env::var_os(DATA_DIRECTORY))
    else {
        return;
    };
    let config = Path::new(&config);
    let key = load_cluster_keys(&config.join(CLUSTER_KEY_FILE)).unwrap();
    let config = ClusterConfig::load(&config.join("cluster.toml")).unwrap();
    let _cluster = Cluster::start_at(Path::new(&data), &config, key.in_use());
    println!("{READY}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// The process with the servers. Dropping it has it end in order.
struct Servers {
    child: Child,
    input: Option<ChildStdin>,
    /// What it says at its end fits into the pipe, which has to stay.
    _output: BufReader<ChildStdout>,
}

impl Servers {
    fn start(config: &Path, data: &Path) -> Servers {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["servers_in_a_process_of_their_own", "--exact", "--nocapture"])
            .env(CONFIG_DIRECTORY, config)
            .env(DATA_DIRECTORY, data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(READY) {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "the servers have ended");
        }
        Servers { child, input, _output: output }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.input.take());
        let ended = self.child.wait().unwrap();
        assert!(ended.success() || std::thread::panicking(), "the servers: {ended}");
    }
}

fn client(config: &ClusterConfig, key: &Key) -> Client {
    let url = Url::parse(&format!("weft://{}/", config.servers[0].addresses[0])).unwrap();
    let options = ConnectOptions {
        key: Some(IssuedKey::of_cluster(key)),
        transport: Some(Transport::Tcp),
        retry_timeout_ms: 30_000,
        ..ConnectOptions::default()
    };
    Client::connect(&url, options).unwrap()
}

/// Has a client work on new servers, and returns the images.
fn cycle(kind: &str, config: &ClusterConfig, key: &Key, random: &mut Random) -> (Vec<Cut>, History) {
    let local = LocalFs::new(kind, Random(random.next()), IMAGES_PER_CYCLE);
    let history = Shared::after(&Image::default(), local.recorder.durable.clone());
    let servers = Servers::start(config.path.parent().unwrap(), local.directory());
    let client = client(config, key);
    local.recorder.take_cuts();
    // What the start has done does not make images of the work rarer.
    local.recorder.disk.lock().unwrap().events = 0;
    work(&client, &history, random, config.servers[0].sync == SyncMode::Sync);
    let cuts = local.recorder.take_cuts();
    drop(client);
    drop(servers);
    drop(local);
    (cuts, history.into_history())
}

fn no_power_cut_takes_what_was_durable_on(kind: &str) {
    if !can_mount(kind) {
        return;
    }
    // A program that is being started holds the locks of this process for a moment, and so of its servers.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted =
        from_environment("WEFT_LOCAL_POWERCUT_IMAGES").map_or(IMAGES_DEFAULT, |images| images as usize);
    let begun = std::time::Instant::now();
    let mut seen = 0;
    let directory = tempfile::tempdir().unwrap();
    let key = weft_server::create_keys(directory.path()).unwrap();
    for seed in seeds() {
        if seen >= wanted {
            break;
        }
        let mut random = Random(seed);
        let sync = if seed % 2 == 0 { SyncMode::Sync } else { SyncMode::Nosync };
        let mut config = Cluster::describe(IO_SERVERS, STRIP_BYTES, sync);
        config.path = directory.path().join("cluster.toml");
        let _ = std::fs::remove_file(&config.path);
        config.save().unwrap();
        let (cuts, history) = cycle(kind, &config, &key, &mut random);
        for (number, cut) in cuts.iter().enumerate() {
            let label = format!("{kind}, seed {seed}, {sync:?}, image {number} at event {}", cut.event);
            let image =
                MountedImage::mount(kind, &cut.image).unwrap_or_else(|error| panic!("{label}: {error}"));
            let cluster = Cluster::start_at(image.directory(), &config, &key);
            let found = files_of(&cluster.client(Transport::Tcp));
            history.check_files(&found, cut.durable as usize, &label);
        }
        seen += cuts.len();
    }
    println!(
        "{seen} images of {kind}, seeds {} and those that follow, in {:.1} s: nothing was lost",
        seed(),
        begun.elapsed().as_secs_f64()
    );
}

#[test]
fn no_power_cut_takes_what_was_durable_on_ext4() {
    no_power_cut_takes_what_was_durable_on("ext4");
}

#[test]
fn no_power_cut_takes_what_was_durable_on_xfs() {
    no_power_cut_takes_what_was_durable_on("xfs");
}
