//! Every operation that promises durability, on every kind of file, and the worst power cut right after it.
//!
//! ```text
//!   a new file: small, striped, or one that has become striped
//!        │   one operation of the table below, acknowledged as durable
//!        ▼
//!   worst cut of the metadata server alone, of the I/O servers, of all: nothing is left that was not synced
//!        │   the servers start on it
//!        ▼
//!   the file has what the reply promised
//! ```
//!
//! A cluster serves one operation on one file only: the sync of another file would make durable what this one has forgotten.

use crate::{IO_SERVERS, STRIP_BYTES};
use weft_client::{Client, File, OpenOptions, SetAttr, Transport};
use weft_power_cut::{Disk, Image, Recorder, noise, scratch};
use weft_server::{ClusterConfig, SyncMode};
use weft_test_cluster::Cluster;
use weft_test_random::{Random, seed};
use weft_wire::security::Key;

/// How the file is stored before the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// With its bytes at the metadata server.
    Small,
    /// It was small, and was written beyond the bound.
    Spread,
    /// Striped since its creation.
    Striped,
}

/// The names that lead to the file, its permission bits, an extended attribute, and its bytes.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    names: Vec<String>,
    mode: u32,
    xattr: Option<Vec<u8>>,
    bytes: Vec<u8>,
}

/// The client and the file `/f` of one case. The content of the file was `before`. Some cases open it with `O_SYNC`.
struct Case<'a> {
    client: &'a Client,
    file: &'a File,
    before: &'a [u8],
    random: Random,
}

/// An operation, durable when it returns.
struct Durable {
    name: &'static str,
    /// The file is open with `O_SYNC`.
    sync: bool,
    run: fn(&mut Case<'_>),
}

impl Case<'_> {
    fn write(&mut self, bytes: u64, offset: u64) {
        let data = noise(&mut self.random, bytes);
        assert_eq!(self.file.write_at(&data, offset).unwrap(), data.len());
    }

    fn end(&self) -> u64 {
        self.before.len() as u64
    }
}

const fn open(name: &'static str, run: fn(&mut Case<'_>)) -> Durable {
    Durable { name, sync: false, run }
}

const fn open_sync(name: &'static str, run: fn(&mut Case<'_>)) -> Durable {
    Durable { name, sync: true, run }
}

const SMALL_BYTES: u64 = 700;
const LARGE_BYTES: u64 = 3 * STRIP_BYTES as u64 + 5;

const TABLE: &[Durable] = &[
    open_sync("open with O_SYNC", |_| {}),
    open_sync("a small write with O_SYNC", |case| case.write(SMALL_BYTES, 10)),
    open_sync("a large write with O_SYNC", |case| case.write(LARGE_BYTES, 0)),
    open_sync("a small write with O_SYNC behind a hole", |case| case.write(SMALL_BYTES, LARGE_BYTES)),
    open_sync("an append with O_SYNC", |case| {
        let data = noise(&mut case.random, LARGE_BYTES);
        case.file.append(&data).unwrap();
    }),
    open_sync("a write with O_SYNC through a file that another open made striped", |case| {
        let other = case.client.open("/f", &OpenOptions::new().write(true)).unwrap();
        other.allocate(0, 100, true).unwrap();
        // The read tells this open that the file is striped.
        case.file.read_at(&mut [0; 1], 0).unwrap();
        case.write(SMALL_BYTES, 0);
    }),
    open_sync("a write with O_SYNC after an allocation made the file striped", |case| {
        case.file.allocate(0, 100, true).unwrap();
        case.write(SMALL_BYTES, 0);
    }),
    open("a small write and fsync", |case| {
        case.write(SMALL_BYTES, 10);
        case.file.sync_data().unwrap();
    }),
    open("a large write and fsync", |case| {
        case.write(LARGE_BYTES, 0);
        case.file.sync_data().unwrap();
    }),
    open("an fsync of a file that another client writes to", |case| {
        let options = OpenOptions::new().write(true);
        let other = case.client.open("/f", &options).unwrap();
        other.write_at(&noise(&mut case.random, LARGE_BYTES), 0).unwrap();
        other.close().unwrap();
        case.file.sync_data().unwrap();
    }),
    open("a truncation and fsync", |case| {
        case.file.truncate(case.end() / 2).unwrap();
        case.file.sync_data().unwrap();
    }),
    open("an extension and fsync", |case| {
        case.file.truncate(LARGE_BYTES * 2).unwrap();
        case.file.sync_data().unwrap();
    }),
    open("an allocation and fsync", |case| {
        case.file.allocate(0, LARGE_BYTES * 2, false).unwrap();
        case.file.sync_data().unwrap();
    }),
    open("a punched hole and fsync", |case| {
        case.file.punch(0, 100).unwrap();
        case.file.sync_data().unwrap();
    }),
    open("a zeroed range and fsync", |case| {
        case.file.zero(50, LARGE_BYTES, false).unwrap();
        case.file.sync_data().unwrap();
    }),
    open("a copied range and fsync", |case| {
        let options = OpenOptions::new().read(true).write(true).create(true);
        let source = case.client.open("/other", &options).unwrap();
        source.write_at(&noise(&mut case.random, LARGE_BYTES), 0).unwrap();
        case.client.copy_range(&source, 0, case.file, 0, LARGE_BYTES).unwrap();
        case.file.sync_data().unwrap();
        case.client.unlink("/other").unwrap();
    }),
    open("a rename and fsync of the directory", |case| {
        case.client.rename("/f", "/renamed", 0).unwrap();
        case.client.sync_names().unwrap();
    }),
    open("a link and fsync", |case| {
        case.client.link("/f", false, "/linked").unwrap();
        case.file.sync_data().unwrap();
    }),
    open("a removal and fsync of the directory", |case| {
        case.client.unlink("/f").unwrap();
        case.client.sync_names().unwrap();
    }),
    open("chmod and fsync", |case| {
        let changes = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        case.client.setattr("/f", false, &changes).unwrap();
        case.file.sync_data().unwrap();
    }),
    open("an extended attribute and fsync", |case| {
        case.client.set_xattr(case.file.ino(), b"user.x", b"value", 0).unwrap();
        case.file.sync_data().unwrap();
    }),
    open("small and large writes and syncfs", |case| {
        case.write(SMALL_BYTES, 0);
        case.client.sync_all().unwrap();
        case.write(LARGE_BYTES, 9);
        case.client.sync_all().unwrap();
    }),
    open("a large write to a small file that was synced, and syncfs after its close", |case| {
        let options = OpenOptions::new().write(true);
        let other = case.client.open("/f", &options).unwrap();
        other.write_at(&noise(&mut case.random, LARGE_BYTES), 0).unwrap();
        other.close().unwrap();
        case.client.sync_all().unwrap();
    }),
];

/// A file of this kind, named `/f`, all of it durable.
fn prepare(client: &Client, kind: Kind, random: &mut Random) {
    let options = OpenOptions::new().write(true).create(true).striped(kind == Kind::Striped);
    let file = client.open("/f", &options).unwrap();
    let bytes = if kind == Kind::Small { SMALL_BYTES } else { LARGE_BYTES };
    file.write_at(&noise(random, bytes), 0).unwrap();
    file.close().unwrap();
    client.sync_all().unwrap();
}

fn found(client: &Client) -> Option<Found> {
    let entries = client.read_dir("/").unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| String::from_utf8(entry.unwrap().name).unwrap())
        .filter(|name| name != "other")
        .collect();
    names.sort();
    let path = format!("/{}", names.first()?);
    let file = client.open(path.as_str(), &OpenOptions::new().read(true)).unwrap();
    let attr = file.stat().unwrap();
    let mut bytes = vec![0; attr.size as usize];
    let read = file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(read, bytes.len(), "the file is as long as its size says");
    let xattr = client.get_xattr(file.ino(), b"user.x").ok();
    Some(Found { names, mode: attr.mode, xattr, bytes })
}

/// Does one operation on a new cluster; what is seen then, and what the cuts leave.
fn images(
    config: &ClusterConfig,
    key: &Key,
    (durable, kind): (&Durable, Option<Kind>),
    cuts: &[Vec<&str>],
) -> (Option<Found>, Vec<Image>) {
    let mut random = Random(seed());
    let mut disk = Disk::new();
    disk.machines = config.servers.iter().map(|server| server.name.clone()).collect();
    let recorder = Recorder::mount(disk, 0, Random(random.next()), 0);
    let cluster = Cluster::start_at(&recorder.directory(), config, key);
    let client = cluster.client(Transport::Tcp);
    let options = OpenOptions::new().read(true).write(true).create(true).sync(durable.sync);
    let mut before = Vec::new();
    match kind {
        Some(kind) => {
            prepare(&client, kind, &mut random);
            before = found(&client).expect("it was made").bytes;
        }
        // The file is new, and its name is made durable with whatever else the operation is.
        None => client.sync_all().unwrap(),
    }
    let file = client.open("/f", &options).unwrap();
    (durable.run)(&mut Case { client: &client, file: &file, before: &before, random });
    let images = {
        let disk = recorder.disk.lock().unwrap();
        cuts.iter().map(|machines| disk.worst_cut(machines)).collect()
    };
    (found(&client), images)
}

/// Cuts after each operation of the table on a file of this kind; a new one, if there is none.
fn survives(kind: Option<Kind>) {
    let keys = tempfile::tempdir().unwrap();
    let key = weft_server::create_keys(keys.path()).unwrap();
    let config = Cluster::describe(IO_SERVERS, STRIP_BYTES, SyncMode::Nosync);
    let (meta, io, all) = (vec!["meta0"], vec!["io0", "io1"], vec!["meta0", "io0", "io1"]);
    let mut lost = Vec::new();
    for (number, durable) in TABLE.iter().enumerate() {
        let cuts = [meta.clone(), if number % 2 == 0 { io.clone() } else { all.clone() }];
        let (wanted, images) = images(&config, &key, (durable, kind), &cuts);
        for (machines, image) in cuts.iter().zip(images) {
            let directory = tempfile::tempdir_in(scratch()).unwrap();
            image.write_to(directory.path());
            let cluster = Cluster::start_at(&directory.path().join("store"), &config, &key);
            let left = found(&cluster.client(Transport::Tcp));
            if left != wanted {
                let short = |found: &Option<Found>| {
                    found.as_ref().map(|found| {
                        format!("{:?} {:o} {} bytes", found.names, found.mode, found.bytes.len())
                    })
                };
                let (left, wanted) = (short(&left), short(&wanted));
                lost.push(format!("{}, cut of {machines:?}: {left:?} is left of {wanted:?}", durable.name));
            }
        }
    }
    assert!(lost.is_empty(), "of a file that was {kind:?}:\n{}", lost.join("\n"));
}

#[test]
fn every_durable_operation_on_a_new_file_survives_the_worst_cut() {
    survives(None);
}

#[test]
fn every_durable_operation_on_a_small_file_survives_the_worst_cut() {
    survives(Some(Kind::Small));
}

#[test]
fn every_durable_operation_on_a_spread_file_survives_the_worst_cut() {
    survives(Some(Kind::Spread));
}

#[test]
fn every_durable_operation_on_a_striped_file_survives_the_worst_cut() {
    survives(Some(Kind::Striped));
}
