//! A cluster on a disk that knows what a power cut would leave, and what a client finds after the worst one.
//!
//! ```text
//!   CutCluster ── image ──► an image ── tree_after ──► what the servers have that start on it
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_client::{Client, OpenOptions, Transport};
use weft_power_cut::{Disk, Image, Recorder, scratch};
use weft_server::{ClusterConfig, SyncMode, create_keys};
use weft_test_random::{Random, seed};
use weft_wire::messages::FileKind;
use weft_wire::security::Key;

use crate::Cluster;

/// Runs the cases of a table, some at a time; panics with all that `run` returns. Cases mostly wait: a metadata server whose clients
/// are gone lets changes wait until their leases have run out.
pub fn run_all<C: Sync>(cases: &[C], run: impl Fn(&C, &mut Random) -> Vec<String> + Sync) {
    const AT_ONCE: usize = 6;
    let next = AtomicUsize::new(0);
    let lost = Mutex::new(Vec::new());
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            let Some(case) = cases.get(number) else { return };
            let found = run(case, &mut Random(seed() + number as u64));
            lost.lock().unwrap().extend(found);
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let lost = lost.into_inner().unwrap();
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

/// The machines of a cluster with two I/O servers that lose power at once.
pub type Machines = &'static [&'static str];

const META: Machines = &["meta0"];
const IO: Machines = &["io0", "io1"];
const ALL: Machines = &["meta0", "io0", "io1"];

/// A description of a cluster with two I/O servers, one machine for each server, and its keys.
pub struct Described {
    config: ClusterConfig,
    keys: tempfile::TempDir,
    key: Key,
}

/// A cluster whose machines may lose power. Only one of a description can run at a time.
pub struct CutCluster {
    cluster: Cluster,
    recorder: Recorder,
}

/// A name, and what it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// A file, a directory, or one of the others.
    pub kind: FileKind,
    /// The permission bits and set-id bits of its mode.
    pub mode: u32,
    /// Its names; of a directory always 1.
    pub nlink: u32,
    /// The value of `user.x`.
    pub xattr: Option<Vec<u8>>,
    /// The bytes of a file, or where a link leads.
    pub bytes: Vec<u8>,
}

impl Described {
    /// With strips of so many bytes. In `sync` mode all that is acknowledged is durable.
    pub fn new(strip_bytes: u32, sync: bool) -> Described {
        let sync = if sync { SyncMode::Sync } else { SyncMode::Nosync };
        let keys = tempfile::tempdir().unwrap();
        let key = create_keys(keys.path()).unwrap();
        Described { config: Cluster::describe(2, strip_bytes, sync), keys, key }
    }

    /// The key of an administrator.
    pub fn key_file(&self) -> PathBuf {
        self.keys.path().join("client.key")
    }

    /// The cluster's key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// On an empty disk.
    pub fn start(&self) -> CutCluster {
        let mut disk = Disk::new();
        disk.machines = self.config.servers.iter().map(|server| server.name.clone()).collect();
        let recorder = Recorder::mount(disk, 0, Random(seed()), 0);
        let cluster = Cluster::start_at(&recorder.directory(), &self.config, &self.key);
        CutCluster { cluster, recorder }
    }

    /// Starts the servers on an image, and returns all that a client finds.
    fn tree_after(&self, image: &Image) -> BTreeMap<String, Entry> {
        let directory = tempfile::tempdir_in(scratch()).unwrap();
        image.write_to(directory.path());
        let cluster = Cluster::start_at(&directory.path().join("store"), &self.config, &self.key);
        tree(&cluster.client(Transport::Tcp))
    }

    /// Compares what a client finds now with what is left in an image of the same moment. Ends the cluster.
    pub fn lost(&self, cluster: CutCluster, (machines, image): &(Machines, Image)) -> Vec<String> {
        let wanted = tree(&cluster.cluster.client(Transport::Tcp));
        drop(cluster);
        let left = self.tree_after(image);
        let missing = wanted.iter().filter(|(path, entry)| left.get(*path) != Some(*entry));
        let missing =
            missing.map(|(path, entry)| format!("{path}: {} is left of {entry}", told(left.get(path))));
        let back = left.iter().filter(|(path, _)| !wanted.contains_key(*path));
        let back = back.map(|(path, entry)| format!("{path} is there again: {entry}"));
        missing.chain(back).map(|lost| format!("cut of {machines:?}: {lost}")).collect()
    }
}

fn told(entry: Option<&Entry>) -> String {
    entry.map_or_else(|| "nothing".to_string(), Entry::to_string)
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Entry { kind, mode, nlink, xattr, bytes } = self;
        let sum = bytes.iter().fold(0u32, |sum, byte| sum.rotate_left(3) ^ u32::from(*byte));
        write!(f, "{kind:?} {mode:o}, {nlink} names, attribute {xattr:?}, {} bytes ({sum:08x})", bytes.len())
    }
}

impl CutCluster {
    /// The running servers.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The worst image that a cut of the metadata server, of the I/O servers, or of all, can leave now. It has nothing that was not
    /// synced.
    pub fn image(&self, random: &mut Random) -> (Machines, Image) {
        let machines = [META, IO, ALL, ALL][random.below(4) as usize];
        (machines, self.recorder.disk.lock().unwrap().worst_cut(machines))
    }
}

/// All names of the root directory and of those in it.
pub fn tree(client: &Client) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    let mut waiting = vec!["/".to_string()];
    while let Some(directory) = waiting.pop() {
        for entry in client.read_dir(directory.as_str()).unwrap() {
            let name = String::from_utf8(entry.unwrap().name).unwrap();
            let path = format!("{directory}{name}");
            let entry = look(client, &path);
            if entry.kind == FileKind::Directory {
                waiting.push(format!("{path}/"));
            }
            found.insert(path, entry);
        }
    }
    found
}

fn look(client: &Client, path: &str) -> Entry {
    let attr = client.stat(path, false).unwrap();
    let bytes = match attr.kind {
        FileKind::File => {
            let file = client.open(path, &OpenOptions::new().read(true)).unwrap();
            let mut bytes = vec![0; attr.size as usize];
            let read = file.read_at(&mut bytes, 0).unwrap();
            assert_eq!(read, bytes.len(), "{path} is as long as its size says");
            bytes
        }
        FileKind::Symlink => client.readlink(path).unwrap(),
        _ => Vec::new(),
    };
    let nlink = if attr.kind == FileKind::Directory { 1 } else { attr.nlink };
    Entry {
        kind: attr.kind,
        mode: attr.mode,
        nlink,
        xattr: client.get_xattr(attr.ino, b"user.x").ok(),
        bytes,
    }
}
