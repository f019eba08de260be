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
//! The same work is done on real ext4 and XFS, whose devices record what is written to them (`powercut_local`).
//!
//! `WEFT_CLUSTER_POWERCUT_IMAGES` says how many images there are to be.

mod durable;
mod work;

use weft_client::{OpenOptions, Transport};
use weft_power_cut::{Cut, Disk, History, Image, Recorder, Shared, from_environment, scratch};
use weft_server::{ClusterConfig, SyncMode};
use weft_test_cluster::Cluster;
use weft_test_random::{Random, seed, seeds};
use weft_wire::security::Key;
use work::{files_of, work};

const IMAGES_DEFAULT: usize = 160;
const IMAGES_PER_CYCLE: usize = 16;
const IO_SERVERS: u16 = 2;
const STRIP_BYTES: u32 = 4096;

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
    work(&client, &history, random, sync_mode);
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
    let begun = std::time::Instant::now();
    let mut seen = 0;
    let keys = tempfile::tempdir().unwrap();
    let key = weft_server::create_keys(keys.path()).unwrap();
    for seed in seeds() {
        if seen >= wanted {
            break;
        }
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
    }
    println!(
        "{seen} images, seeds {} and those that follow, in {:.1} s: nothing was lost",
        seed(),
        begun.elapsed().as_secs_f64()
    );
}

/// The disk fails one sync and takes the pages for clean, as Linux does.
#[test]
fn a_failed_sync_is_told_to_all_clients_that_wrote() {
    let recorder = Recorder::mount(Disk::new(), 0, Random(seed()), 0);
    let keys = tempfile::tempdir().unwrap();
    let key = weft_server::create_keys(keys.path()).unwrap();
    let config = Cluster::describe(1, STRIP_BYTES, SyncMode::Nosync);
    let cluster = Cluster::start_at(&recorder.directory(), &config, &key);
    let (one, other) = (cluster.client(Transport::Tcp), cluster.client(Transport::Shm));
    let options = OpenOptions::new().read(true).write(true).create(true).striped(true);
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

#[test]
fn a_failed_sync_is_told_to_whoever_has_closed_a_file_and_syncs_all() {
    let recorder = Recorder::mount(Disk::new(), 0, Random(seed()), 0);
    let keys = tempfile::tempdir().unwrap();
    let key = weft_server::create_keys(keys.path()).unwrap();
    let config = Cluster::describe(1, STRIP_BYTES, SyncMode::Nosync);
    let cluster = Cluster::start_at(&recorder.directory(), &config, &key);
    let (one, other) = (cluster.client(Transport::Tcp), cluster.client(Transport::Tcp));
    let options = OpenOptions::new().read(true).write(true).create(true).striped(true);
    let fail_sync_of = |ino: u64| {
        let name: &'static str = Box::leak(format!("{ino:016x}").into_boxed_str());
        recorder.disk.lock().unwrap().fail_sync_of = Some(name);
    };
    let write_and_close = |path: &str| {
        let file = one.open(path, &options).unwrap();
        file.write_at(&[1; 100], 0).unwrap();
        let ino = file.ino();
        file.close().unwrap();
        ino
    };
    one.sync_all().unwrap();
    // Another client is told first.
    let ino = write_and_close("/f");
    let theirs = other.open("/f", &options).unwrap();
    fail_sync_of(ino);
    theirs.sync_data().unwrap_err();
    theirs.close().unwrap();
    let error = one.sync_all().unwrap_err();
    assert!(error.errno() == libc::EIO && error.to_string().contains("io0"), "{error}");
    one.sync_all().unwrap();
    // Nobody is told but who syncs all.
    fail_sync_of(write_and_close("/g"));
    assert_eq!(one.sync_all().unwrap_err().errno(), libc::EIO);
    assert!(one.sync_all().is_err(), "what was lost is not durable now");
    one.sync_all().unwrap();
    // It was told when it synced, and has closed nothing else.
    other.sync_all().unwrap();
}

/// Stops the metadata server, and starts it with what a power cut of its machine alone leaves at its worst.
fn cut_meta(recorder: &Recorder, cluster: &mut Cluster) {
    let image = recorder.disk.lock().unwrap().worst_cut(&["meta0"]);
    cluster.stop_server(0);
    let left = tempfile::tempdir_in(scratch()).unwrap();
    image.write_to(left.path());
    let (from, to) = (left.path().join("store/meta0"), recorder.directory().join("meta0"));
    std::fs::remove_dir_all(&to).unwrap();
    let copied = std::process::Command::new("cp").arg("-r").args([&from, &to]).status().unwrap();
    assert!(copied.success());
    cluster.start_server(0);
}

#[test]
fn a_sync_fails_where_the_metadata_server_has_forgotten_the_file_or_that_it_is_striped() {
    let recorder = Recorder::mount(Disk::new(), 0, Random(seed()), 0);
    let keys = tempfile::tempdir().unwrap();
    let key = weft_server::create_keys(keys.path()).unwrap();
    let config = Cluster::describe(1, STRIP_BYTES, SyncMode::Nosync);
    recorder.disk.lock().unwrap().machines =
        config.servers.iter().map(|server| server.name.clone()).collect();
    let mut cluster = Cluster::start_at(&recorder.directory(), &config, &key);
    let client = cluster.client(Transport::Tcp);
    let options = OpenOptions::new().read(true).write(true).create(true);
    let small = client.open("/small", &options).unwrap();
    small.write_at(&[1; 100], 0).unwrap();
    client.sync_all().unwrap();
    // All of this is forgotten: that a file is striped, and another one altogether.
    small.write_at(&[2; 10_000], 0).unwrap();
    let new = client.open("/new", &options.clone().striped(true)).unwrap();
    new.write_at(&[3; 100], 0).unwrap();
    new.flush().unwrap();
    cut_meta(&recorder, &mut cluster);
    for file in [&small, &new] {
        let error = file.sync_data().unwrap_err();
        assert!(error.errno() == libc::EIO && error.to_string().contains("meta0"), "{error}");
        assert!(file.sync_data().is_err(), "what was lost is not durable now");
    }
    // The file has the synced bytes, and can be written again.
    let again = client.open("/small", &options).unwrap();
    let mut bytes = [0; 100];
    assert!(again.stat().unwrap().size == 100 && again.read_at(&mut bytes, 0).unwrap() == 100);
    assert_eq!(bytes, [1; 100]);
    again.write_at(&[4; 10_000], 0).unwrap();
    again.sync_data().unwrap();
}
