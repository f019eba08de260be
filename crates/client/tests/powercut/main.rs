//! Files of a whole cluster through power cuts, which take some of its servers or all.
//!
//! ```text
//!   cycle   a metadata server and I/O servers on one disk that knows what a cut would leave; a client changes and syncs files
//!                                            │ at random moments: what would a cut of these servers leave now?
//!           images ◄─────────────────────────┘
//!   each    the servers start on it: every file that was synced has its name, its size and its bytes; each byte of any file
//!           is what it was when it was synced, what was written there since, or zero where nothing was
//! ```
//!
//! `WEFT_CLUSTER_POWERCUT_IMAGES` says how many images there are to be, `WEFT_POWERCUT_SEED` with which seed it begins. A failure
//! names its seed.

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code)] // The tests of the stores begin with images, too.
#[path = "../../../meta/tests/powercut/disk.rs"]
mod disk;
#[path = "../../../storage/tests/powercut/history.rs"]
mod history;
#[path = "../../../meta/tests/powercut/recorder.rs"]
mod recorder;

use common::Cluster;
use disk::{Disk, Image, Random};
use history::{History, Shared};
use recorder::{Cut, Recorder};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use weft_client::{Client, File, OpenOptions, Transport};
use weft_layout::{Extent, Regions};
use weft_server::{ClusterConfig, SyncMode};
use weft_wire::security::Key;

const IMAGES_DEFAULT: usize = 160;
const IMAGES_PER_CYCLE: usize = 16;
const CHANGES_PER_CYCLE: u64 = 60;
const IO_SERVERS: u16 = 2;
const STRIP_BYTES: u32 = 4096;
const FILE_BYTES: u64 = 30_000;
const OPEN_FILES: usize = 4;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// In memory where there is such a place.
fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.into() } else { std::env::temp_dir() }
}

fn path_of(number: u64) -> String {
    format!("/f{number}")
}

/// A file that is open.
struct Opened {
    number: u64,
    file: File,
    /// Every write is durable when it returns.
    sync: bool,
}

/// Changes files, and notes in the history what they are before each change, and what is durable after it.
struct Work<'a> {
    client: &'a Client,
    history: &'a Shared,
    random: &'a mut Random,
    /// All that is acknowledged is durable.
    sync_mode: bool,
    files: Vec<Opened>,
    next: u64,
}

impl Work<'_> {
    fn step(&mut self) {
        if self.files.is_empty() || self.files.len() < OPEN_FILES && self.random.one_in(6) {
            return self.create();
        }
        let at = self.random.below(self.files.len() as u64) as usize;
        let Opened { number, ref file, sync } = self.files[at];
        let old = self.history.now(number).expect("it is open");
        let range = range(self.random);
        let is_durable = match self.random.below(20) {
            0..6 => {
                let data = noise(self.random, range.bytes);
                self.history.change(number, Some(written(&old, range.offset, &data)));
                file.write_at(&data, range.offset).unwrap();
                sync
            }
            6..9 => {
                let pieces = pieces(self.random);
                let data = noise(self.random, pieces.iter().map(|piece| piece.bytes).sum());
                let (mut new, mut from) = (old, 0);
                for piece in &pieces {
                    let to = from + piece.bytes as usize;
                    new = written(&new, piece.offset, &data[from..to]);
                    from = to;
                }
                self.history.change(number, Some(new));
                file.write_list(&[IoSlice::new(&data)], &Regions::list(pieces)).unwrap();
                sync
            }
            9 => {
                let bytes = self.random.below(FILE_BYTES);
                let mut new = old;
                new.resize(bytes as usize, 0);
                self.history.change(number, Some(new));
                file.truncate(bytes).unwrap();
                false
            }
            10 => {
                self.history.change(number, Some(zeroed(&old, range, true)));
                file.punch(range.offset, range.bytes).unwrap();
                false
            }
            11 => {
                let keep_size = self.random.one_in(2);
                self.history.change(number, Some(zeroed(&old, range, keep_size)));
                file.zero(range.offset, range.bytes, keep_size).unwrap();
                false
            }
            12 => {
                let from = &self.files[self.random.below(self.files.len() as u64) as usize];
                let source = self.history.now(from.number).expect("it is open");
                // Ranges that lie alike, which the servers copy themselves.
                let end = range.end().min(source.len() as u64);
                if from.number == number || range.offset >= end {
                    return;
                }
                let data = &source[range.offset as usize..end as usize];
                self.history.change(number, Some(written(&old, range.offset, data)));
                self.client
                    .copy_range(&from.file, range.offset, file, range.offset, end - range.offset)
                    .unwrap();
                false
            }
            13 => return self.close(at),
            14 => return self.remove(at),
            _ => {
                file.sync_data().unwrap();
                true
            }
        };
        if is_durable || self.sync_mode {
            self.history.is_durable(number, self.history.last_state(number));
        }
    }

    fn create(&mut self) {
        let (number, sync) = (self.next, self.random.one_in(4));
        self.next += 1;
        let layout = weft_wire::messages::LayoutWish {
            strip_bytes: 0,
            server_count: 0,
            first_server_plus_1: 1 + (number % 2) as u16,
        };
        let options =
            OpenOptions::new().read(true).write(true).create_new(true).create(true).sync(sync).layout(layout);
        self.history.change(number, Some(Vec::new()));
        let file = self.client.open(path_of(number).as_str(), &options).unwrap();
        if self.sync_mode {
            self.history.is_durable(number, self.history.last_state(number));
        }
        self.files.push(Opened { number, file, sync });
    }

    /// Closes a file, and mostly opens it again.
    fn close(&mut self, at: usize) {
        let Opened { number, file, .. } = self.files.swap_remove(at);
        file.close().unwrap();
        if !self.random.one_in(4) {
            let sync = self.random.one_in(3);
            let options = OpenOptions::new().read(true).write(true).sync(sync);
            let file = self.client.open(path_of(number).as_str(), &options).unwrap();
            self.files.push(Opened { number, file, sync });
        }
    }

    fn remove(&mut self, at: usize) {
        let Opened { number, file, .. } = self.files.swap_remove(at);
        let open = self.random.one_in(2).then_some(file);
        self.history.change(number, None);
        self.client.unlink(path_of(number).as_str()).unwrap();
        if self.sync_mode {
            self.history.is_durable(number, self.history.last_state(number));
        }
        drop(open);
    }
}

fn range(random: &mut Random) -> Extent {
    let bytes = if random.one_in(3) { 12_000 } else { 800 };
    Extent::new(random.below(FILE_BYTES), 1 + random.below(bytes))
}

/// Pieces near each other, so that servers sieve them.
fn pieces(random: &mut Random) -> Vec<Extent> {
    let mut at = random.below(FILE_BYTES);
    let mut piece = || {
        let piece = Extent::new(at, 1 + random.below(300));
        at = piece.end() + random.below(200);
        piece
    };
    (0..30).map(|_| piece()).collect()
}

fn noise(random: &mut Random, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|_| 1 + (random.next() % 255) as u8).collect()
}

fn written(old: &[u8], offset: u64, data: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    let end = offset as usize + data.len();
    new.resize(new.len().max(end), 0);
    new[offset as usize..end].copy_from_slice(data);
    new
}

fn zeroed(old: &[u8], range: Extent, keep_size: bool) -> Vec<u8> {
    let mut new = old.to_vec();
    if !keep_size {
        new.resize(new.len().max(range.end() as usize), 0);
    }
    let bytes = new.len() as u64;
    new[range.offset.min(bytes) as usize..range.end().min(bytes) as usize].fill(0);
    new
}

/// The files of a cluster, by number.
fn files_of(client: &Client) -> BTreeMap<u64, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in client.read_dir("/").unwrap() {
        let name = String::from_utf8(entry.unwrap().name).unwrap();
        let number = name.strip_prefix('f').and_then(|number| number.parse().ok());
        let number = number.unwrap_or_else(|| panic!("nobody has made {name}"));
        let file = client.open(format!("/{name}").as_str(), &OpenOptions::new().read(true)).unwrap();
        let mut bytes = vec![0; file.stat().unwrap().size as usize];
        // The size that a close has reported may be there without the data, which nobody has synced.
        let read = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(read);
        files.insert(number, bytes);
    }
    files
}

/// Has a client work on new servers, and returns the images.
fn cycle(config: &ClusterConfig, key: &Key, random: &mut Random) -> (Vec<Cut>, History) {
    let sync_mode = config.servers[0].sync == SyncMode::Sync;
    let mut disk = Disk::new();
    disk.machines = config.servers.iter().map(|server| server.name.clone()).collect();
    let recorder = Recorder::mount(disk, 0, Random(random.next()), IMAGES_PER_CYCLE);
    let history = Shared::after(&Image::default(), recorder.durable.clone());
    let cluster = Cluster::start_at(&recorder.directory(), config, key);
    let client = cluster.client(Transport::Tcp);
    recorder.take_cuts();
    // What the start has done does not make images of the work rarer.
    recorder.disk.lock().unwrap().events = 0;
    history.begin();
    let mut work = Work { client: &client, history: &history, random, sync_mode, files: Vec::new(), next: 0 };
    for _ in 0..CHANGES_PER_CYCLE {
        work.step();
    }
    drop(work.files);
    let expected = files_of(&client);
    for (number, bytes) in &expected {
        assert!(history.now(*number).as_ref() == Some(bytes), "file {number} is wrong without any cut");
    }
    // What the servers' ends make durable is another matter.
    let cuts = recorder.take_cuts();
    drop(client);
    drop(cluster);
    (cuts, history.into_history())
}

#[test]
fn no_power_cut_of_any_servers_takes_what_was_acknowledged_as_durable() {
    let wanted =
        from_environment("WEFT_CLUSTER_POWERCUT_IMAGES").map_or(IMAGES_DEFAULT, |images| images as usize);
    let first_seed = from_environment("WEFT_POWERCUT_SEED").unwrap_or(1);
    let begun = std::time::Instant::now();
    let (mut seen, mut seed) = (0, first_seed);
    let keys = tempfile::tempdir().unwrap();
    let key = weft_server::create_keys(keys.path()).unwrap();
    while seen < wanted {
        let mut random = Random(seed);
        let sync = if seed % 2 == 0 { SyncMode::Sync } else { SyncMode::Nosync };
        let config = Cluster::describe(IO_SERVERS, STRIP_BYTES, sync);
        let (cuts, history) = cycle(&config, &key, &mut random);
        for (number, cut) in cuts.iter().enumerate() {
            let label = format!("seed {seed}, {sync:?}, image {number} at event {}", cut.event);
            let directory = tempfile::tempdir_in(scratch()).unwrap();
            cut.image.write_to(directory.path());
            let cluster = Cluster::start_at(&directory.path().join("store"), &config, &key);
            let found = files_of(&cluster.client(Transport::Tcp));
            history.check_files(&found, cut.durable as usize, &label);
        }
        seen += cuts.len();
        seed += 1;
    }
    println!(
        "{seen} images, seeds {first_seed} to {}, in {:.1} s: nothing was lost",
        seed - 1,
        begun.elapsed().as_secs_f64()
    );
}

/// The disk fails one sync and takes the pages for clean, as Linux does.
#[test]
fn a_failed_sync_is_told_to_all_clients_that_wrote() {
    let recorder = Recorder::mount(Disk::new(), 0, Random(1), 0);
    let keys = tempfile::tempdir().unwrap();
    let key = weft_server::create_keys(keys.path()).unwrap();
    let config = Cluster::describe(1, STRIP_BYTES, SyncMode::Nosync);
    let cluster = Cluster::start_at(&recorder.directory(), &config, &key);
    let (one, other) = (cluster.client(Transport::Tcp), cluster.client(Transport::Shm));
    let options = OpenOptions::new().read(true).write(true).create(true);
    let (mine, theirs) = (one.open("/f", &options).unwrap(), other.open("/f", &options).unwrap());
    let also_theirs = other.open("/f", &options).unwrap();
    mine.write_at(&[1; 100], 0).unwrap();
    theirs.write_at(&[2; 100], 100).unwrap();
    assert!(theirs.check_losses().is_ok());
    // Only data files have names of 16 digits.
    let name: &'static str = Box::leak(format!("{:016x}", mine.ino()).into_boxed_str());
    recorder.disk.lock().unwrap().fail_sync_of = Some(name);
    assert_eq!(mine.sync_data().unwrap_err().errno(), libc::EIO);
    for _ in 0..2 {
        for open in [&mine, &theirs, &also_theirs] {
            let error = open.sync_data().unwrap_err();
            assert!(error.errno() == libc::EIO && error.to_string().contains("io0"), "{error}");
        }
    }
    assert!(theirs.check_losses().is_err());
    // Opened again, and written again.
    let again = other.open("/f", &options).unwrap();
    again.write_at(&[3; 200], 0).unwrap();
    again.sync_data().unwrap();
    let new = cluster.client(Transport::Tcp).open("/f", &options).unwrap();
    new.write_at(&[4; 100], 0).unwrap();
    new.sync_data().unwrap();
    assert!(mine.sync_data().is_err(), "what it wrote at first was lost");
}
