//! NFS procedures whose reply promises durability, and the worst power cut right after it: stable WRITEs and COMMIT in every
//! cluster, changes of names and attributes in one whose servers sync.
//!
//! A cluster serves one case only: the sync of another file would make durable what this one has forgotten.

mod serving;

use weft_client::{Client, OpenOptions, Transport};
use weft_nfs_client::{AuthSys, ConnectOptions, CreateHow, FileHandle, NfsClient, NfsUrl, SetAttr, Stable};
use weft_test_cluster::cut::{Described, run_all};
use weft_test_cluster::pattern;

const STRIP_BYTES: u32 = 4096;
const SMALL_BYTES: usize = 700;
const LARGE_BYTES: usize = 3 * STRIP_BYTES as usize + 5;

/// One case: the client, its root directory, and the file `f`.
struct Case<'a> {
    nfs: &'a NfsClient,
    top: &'a FileHandle,
    file: &'a FileHandle,
}

impl Case<'_> {
    fn write(&self, bytes: usize, offset: u64, stable: Stable) {
        let data = pattern(bytes as u64, bytes);
        assert_eq!(self.nfs.write(self.file, offset, &data, stable).unwrap().bytes, bytes);
    }

    fn set(&self, set: &SetAttr) {
        self.nfs.setattr(self.file, set, None).unwrap();
    }
}

type Run = fn(&Case<'_>);

const OF_DATA: &[(&str, Run)] = &[
    ("a small WRITE to stable storage", |case| case.write(SMALL_BYTES, 10, Stable::File)),
    ("a large WRITE to stable storage", |case| case.write(LARGE_BYTES, 3, Stable::File)),
    ("a WRITE with its size to stable storage", |case| case.write(LARGE_BYTES, 3, Stable::Data)),
    ("a WRITE behind a hole to stable storage", |case| case.write(SMALL_BYTES, 50_000, Stable::File)),
    ("a small WRITE and COMMIT", |case| {
        case.write(SMALL_BYTES, 10, Stable::Unstable);
        case.nfs.commit(case.file, 0, 0).unwrap();
    }),
    ("a large WRITE and COMMIT", |case| {
        case.write(LARGE_BYTES, 3, Stable::Unstable);
        case.nfs.commit(case.file, 0, 0).unwrap();
    }),
    ("CREATE, WRITE and COMMIT", |case| {
        let made = case.nfs.create(case.top, b"new", &CreateHow::Unchecked(SetAttr::default())).unwrap();
        let file = made.handle.unwrap();
        case.nfs.write(&file, 0, &pattern(3, LARGE_BYTES), Stable::Unstable).unwrap();
        case.nfs.commit(&file, 0, 0).unwrap();
    }),
];

const OF_NAMES: &[(&str, Run)] = &[
    ("SETATTR of the mode", |case| case.set(&SetAttr { mode: Some(0o640), ..SetAttr::default() })),
    ("SETATTR of a smaller size", |case| case.set(&SetAttr { size_bytes: Some(301), ..SetAttr::default() })),
    ("SETATTR of a larger size", |case| {
        case.set(&SetAttr { size_bytes: Some(60_000), ..SetAttr::default() })
    }),
    ("LINK", |case| {
        case.nfs.link(case.file, case.top, b"linked").unwrap();
    }),
    ("RENAME", |case| {
        case.nfs.rename((case.top, b"f"), (case.top, b"renamed")).unwrap();
    }),
    ("RENAME over another file", |case| {
        case.nfs.rename((case.top, b"f"), (case.top, b"other")).unwrap();
    }),
    ("REMOVE", |case| {
        case.nfs.remove(case.top, b"f").unwrap();
    }),
    ("CREATE", |case| {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        case.nfs.create(case.top, b"new", &CreateHow::Guarded(set)).unwrap();
    }),
    ("CREATE of a file that is there, which cuts it", |case| {
        let set = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
        case.nfs.create(case.top, b"f", &CreateHow::Unchecked(set)).unwrap();
    }),
    ("exclusive CREATE", |case| {
        case.nfs.create(case.top, b"new", &CreateHow::Exclusive([7; 8])).unwrap();
    }),
    ("MKDIR", |case| {
        case.nfs.mkdir(case.top, b"new", &SetAttr::default()).unwrap();
    }),
    ("SYMLINK", |case| {
        case.nfs.symlink(case.top, b"new", b"to/where", &SetAttr::default()).unwrap();
    }),
    ("RMDIR", |case| {
        case.nfs.rmdir(case.top, b"empty").unwrap();
    }),
];

/// `f`, `other` and an empty directory, all of them durable.
fn prepare(client: &Client, bytes: usize) {
    for (path, seed) in [("/f", 1), ("/other", 2)] {
        let file = client.open(path, &OpenOptions::new().write(true).create(true)).unwrap();
        file.write_at(&pattern(seed, bytes), 0).unwrap();
        file.close().unwrap();
    }
    client.mkdir("/empty", 0o755).unwrap();
    client.sync_all().unwrap();
}

fn survive(cases: &[(&str, Run)], sync: bool) {
    run_all(cases, |(name, run), random| {
        let bytes = if random.one_in(2) { SMALL_BYTES } else { LARGE_BYTES };
        let described = Described::new(STRIP_BYTES, sync);
        let cluster = described.start();
        prepare(&cluster.cluster().client(Transport::Tcp), bytes);
        let client = cluster.cluster().client(Transport::Tcp);
        let serving = serving::serve(serving::options(client, described.key(), "/"));
        let port = serving.addresses()[0].port();
        let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/?mountport={port}")).unwrap();
        let root = AuthSys { machine: b"cut".to_vec(), ..AuthSys::default() };
        let options = ConnectOptions { credential: Some(root), ..ConnectOptions::default() };
        let nfs = NfsClient::connect(&url, &options).unwrap();
        let file = nfs.lookup(nfs.root(), b"f").unwrap().handle;
        run(&Case { nfs: &nfs, top: nfs.root(), file: &file });
        let image = cluster.image(random);
        drop(nfs);
        serving.stop();
        let of_file = |lost| format!("{name}, with files of {bytes} bytes: {lost}");
        described.lost(cluster, &image).into_iter().map(of_file).collect()
    });
}

#[test]
fn committed_and_stable_data_survives_the_worst_cut_after_the_reply() {
    survive(OF_DATA, false);
}

#[test]
fn in_sync_mode_every_change_survives_the_worst_cut_after_its_reply() {
    survive(OF_NAMES, true);
}
