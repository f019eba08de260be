//! Processes killed at any moment, full disks, servers that stay away: what was acknowledged is there, others go on, and errors
//! are clear and come in bounded time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use weft_client::{Client, ConnectOptions, OpenOptions, Transport};
use weft_tests::pattern::{self, Stamp};
use weft_tests::{Load, Served, ServedOptions, wait_until};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const WRITERS: u64 = 3;
/// Over the strips of several servers.
const BLOCK_BYTES: u64 = 200 * KIB;
const SLOTS: u64 = 24;

fn read_write() -> OpenOptions {
    OpenOptions::new().read(true).write(true)
}

fn start_writers(cluster: &Served, path: &str, transport: &str) -> Vec<Load> {
    let writer = |writer: u64| {
        let words =
            [path, &writer.to_string(), &BLOCK_BYTES.to_string(), &SLOTS.to_string()].map(str::to_string);
        Load::start(cluster, "write", transport, &words.each_ref().map(String::as_str))
    };
    (0..WRITERS).map(writer).collect()
}

/// Every block that was acknowledged is there, whole, and from the last acknowledged round or a later one.
fn check_blocks(client: &Client, path: &str, writer: u64, acknowledged: &[String]) {
    let mut rounds: BTreeMap<u64, u64> = BTreeMap::new();
    for line in acknowledged {
        let (slot, round) = line.split_once(' ').expect("a slot and a round");
        rounds.insert(slot.parse().expect("a number"), round.parse().expect("a number"));
    }
    let file = client.open(path, &read_write()).expect("the file is there");
    let mut block = vec![0; BLOCK_BYTES as usize];
    for (slot, round) in rounds {
        let read = file.read_at(&mut block, (slot * WRITERS + writer) * BLOCK_BYTES).expect("it can be read");
        assert_eq!(read, block.len(), "block {slot} of writer {writer} is short");
        let stamp =
            pattern::read(&block).unwrap_or_else(|torn| panic!("block {slot} of writer {writer}: {torn}"));
        assert_eq!((stamp.writer, stamp.slot), (writer as u32, slot as u32));
        assert!(
            stamp.round >= round,
            "block {slot} of writer {writer}: round {} of {round} is back",
            stamp.round
        );
    }
}

/// End of the last block that was acknowledged.
fn end_of(acknowledged: &[String], writer: u64, block_bytes: u64) -> u64 {
    let slot = |line: &String| line.split_once(' ')?.0.parse::<u64>().ok();
    acknowledged.iter().filter_map(slot).max().map_or(0, |slot| (slot * WRITERS + writer + 1) * block_bytes)
}

fn io_server_killed_under_writes(transport: &str) {
    let mut cluster = Served::start(3);
    let mut writers = start_writers(&cluster, "/shared", transport);
    for server in ["io1", "io0", "io1"] {
        writers.iter_mut().for_each(|writer| writer.wait_progress(20));
        cluster.kill(server);
        std::thread::sleep(Duration::from_millis(300));
        cluster.spawn(server);
        cluster.wait_ready(server);
    }
    writers.iter_mut().for_each(|writer| writer.wait_progress(20));
    let acknowledged: Vec<_> = writers.into_iter().map(Load::finish).collect();
    let client = cluster.client(Transport::Auto);
    for (writer, lines) in acknowledged.iter().enumerate() {
        check_blocks(&client, "/shared", writer as u64, lines);
    }
}

#[test]
fn clients_go_on_through_a_killed_io_server_over_tcp() {
    io_server_killed_under_writes("tcp");
}

#[test]
fn clients_go_on_through_a_killed_io_server_over_shared_memory() {
    io_server_killed_under_writes("shm");
}

#[test]
#[ignore = "needs an RDMA adapter; tests/rdma.rs runs it in a guest that has one"]
fn clients_go_on_through_a_killed_io_server_over_rdma() {
    io_server_killed_under_writes("rdma");
}

fn names_in(client: &Client, dir: &str) -> Vec<String> {
    let entries = client.read_dir(dir).expect("a directory can be read");
    entries.map(|entry| String::from_utf8(entry.expect("every page comes").name).expect("ASCII")).collect()
}

/// What must be there: the names that were added and not taken away.
fn names_left(acknowledged: &[String]) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    for line in acknowledged {
        match line.split_at(1) {
            ("+", name) => assert!(left.insert(name.to_string()), "{name} was made twice"),
            (_, name) => assert!(left.remove(name), "{name} was taken twice"),
        }
    }
    left
}

/// How often a server is killed: `WEFT_KILL_CYCLES`, or a few times.
fn kill_cycles(few: u64) -> u64 {
    std::env::var("WEFT_KILL_CYCLES").map_or(few, |cycles| cycles.parse().expect("a number of cycles"))
}

fn metadata_server_killed_under_changes(transports: [&str; 3]) {
    let mut cluster = Served::start(2);
    cluster.client(Transport::Auto).mkdir("/names", 0o755).expect("a directory");
    let start =
        |(index, transport)| Load::start(&cluster, "names", transport, &["/names", &format!("{index}")]);
    let mut workers: Vec<_> = transports.into_iter().enumerate().map(start).collect();
    for _ in 0..kill_cycles(4) {
        workers.iter_mut().for_each(|worker| worker.wait_progress(50));
        cluster.crash("meta0");
    }
    workers.iter_mut().for_each(|worker| worker.wait_progress(50));
    let acknowledged: Vec<_> = workers.into_iter().flat_map(Load::finish).collect();
    let client = cluster.client(Transport::Auto);
    let mut found = names_in(&client, "/names");
    found.sort();
    let expected: Vec<_> = names_left(&acknowledged).into_iter().collect();
    assert_eq!(found, expected);
    for name in &found {
        client
            .stat(&format!("/names/{name}"), false)
            .unwrap_or_else(|error| panic!("{name} is listed: {error}"));
    }
}

#[test]
fn every_acknowledged_name_survives_a_killed_metadata_server() {
    metadata_server_killed_under_changes(["tcp", "shm", "tcp"]);
}

#[test]
#[ignore = "needs an RDMA adapter; tests/rdma.rs runs it in a guest that has one"]
fn every_acknowledged_name_survives_a_killed_metadata_server_over_rdma() {
    metadata_server_killed_under_changes(["rdma"; 3]);
}

#[test]
fn writes_go_on_through_a_killed_metadata_server() {
    let mut cluster = Served::start(2);
    let mut writers = start_writers(&cluster, "/shared", "auto");
    writers.iter_mut().for_each(|writer| writer.wait_progress(20));
    cluster.kill("meta0");
    // The metadata server is not in the data path: open files go on without it.
    writers.iter_mut().for_each(|writer| writer.wait_progress(20));
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    writers.iter_mut().for_each(|writer| writer.wait_progress(20));
    let acknowledged: Vec<_> = writers.into_iter().map(Load::finish).collect();
    let client = cluster.client(Transport::Auto);
    for (writer, lines) in acknowledged.iter().enumerate() {
        check_blocks(&client, "/shared", writer as u64, lines);
    }
    let ends =
        acknowledged.iter().enumerate().map(|(writer, lines)| end_of(lines, writer as u64, BLOCK_BYTES));
    let size = client.stat("/shared", true).expect("it is there").size;
    assert!(size >= ends.max().expect("three"), "{size} bytes are less than what was acknowledged");
}

#[test]
fn a_killed_client_leaves_a_consistent_file_and_no_session() {
    let cluster = Served::start(3);
    let big = (16 * MIB).to_string();
    let mut victims: Vec<_> = (0..2)
        .map(|index| {
            let (path, transport) = (format!("/half-{index}"), ["tcp", "shm"][index]);
            Load::start(&cluster, "write", transport, &[&path, "0", &big, "4"])
        })
        .collect();
    let mut others = start_writers(&cluster, "/shared", "auto");
    victims.iter_mut().for_each(|victim| victim.wait_progress(1));
    std::thread::sleep(Duration::from_millis(37));
    let pids: Vec<_> = victims.iter().map(Load::pid).collect();
    let lost: Vec<_> = victims.into_iter().map(Load::kill).collect();
    others.iter_mut().for_each(|other| other.wait_progress(30));
    let others: Vec<_> = others.into_iter().map(Load::finish).collect();

    let (one, two) = (cluster.client(Transport::Tcp), cluster.client(Transport::Shm));
    others.iter().enumerate().for_each(|(writer, lines)| check_blocks(&one, "/shared", writer as u64, lines));
    wait_until("the servers forget the killed clients", Duration::from_secs(10), || {
        let servers = one.server_status(true).into_iter();
        let mut clients = servers.flat_map(|(_, status)| status.expect("every server answers").client_list);
        !clients.any(|client| pids.contains(&client.process_id))
    });
    for (index, acknowledged) in lost.iter().enumerate() {
        let path = format!("/half-{index}");
        let size = one.stat(&path, true).expect("it is there").size;
        assert_eq!(two.stat(&path, true).expect("it is there").size, size, "all see one size");
        assert!(
            size >= end_of(acknowledged, 0, 16 * MIB),
            "{size} bytes are less than what was acknowledged"
        );
        let file = two.open(&path, &read_write()).expect("it can be opened");
        let mut bytes = vec![0; size as usize + 1];
        assert_eq!(file.read_at(&mut bytes, 0).expect("it can be read") as u64, size);
        // It can be used as if nothing had happened.
        file.truncate(5).expect("it can be cut");
        file.write_at(b"after", 0).expect("it can be written");
        assert_eq!(one.stat(&path, true).expect("it is there").size, 5);
    }
}

#[test]
fn a_server_that_stays_down_is_named_within_the_retry_time() {
    let mut cluster = Served::start(2);
    for transport in [Transport::Tcp, Transport::Shm] {
        let options = ConnectOptions {
            transport: Some(transport),
            retry_timeout_ms: 1500,
            ..ConnectOptions::default()
        };
        let client = cluster.client_with(options);
        let file = client.open("/file", &read_write().create(true)).expect("all servers run");
        let data = vec![7; 1 << 20];
        file.write_at(&data, 0).expect("all servers run");

        cluster.kill("io1");
        let mut back = vec![0; 1 << 20];
        let read = || file.read_at(&mut back, 0).map(|_| ());
        let write = || file.write_at(&data, 0).map(|_| ());
        for attempt in [Box::new(read) as Box<dyn FnMut() -> _>, Box::new(write)] {
            let mut attempt = attempt;
            let start = Instant::now();
            let error = attempt().expect_err("a server is away").to_string();
            assert!(error.contains("io1"), "{transport}: the error does not name the server: {error}");
            assert!(
                start.elapsed() < Duration::from_secs(8),
                "{transport}: {error} took {:?}",
                start.elapsed()
            );
        }
        // What the other servers have is within reach.
        client.mkdir(&format!("/{transport}"), 0o755).expect("the metadata server runs");
        cluster.spawn("io1");
        cluster.wait_ready("io1");
        wait_until("the same open file works again", Duration::from_secs(10), || {
            file.write_at(&data, 0).is_ok()
        });

        cluster.kill("meta0");
        let start = Instant::now();
        let error = client.stat("/", true).expect_err("the metadata server is away").to_string();
        assert!(error.contains("meta0"), "{transport}: the error does not name the server: {error}");
        assert!(start.elapsed() < Duration::from_secs(8), "{transport}: {error} took {:?}", start.elapsed());
        cluster.spawn("meta0");
        cluster.wait_ready("meta0");
        wait_until("the same client works again", Duration::from_secs(10), || client.stat("/", true).is_ok());
    }
}

#[test]
fn a_cluster_that_is_not_there_is_named_at_once() {
    let cluster = Served::init(ServedOptions::default());
    let start = Instant::now();
    let output = cluster.command(&["ls", &cluster.url()]).output().expect("weft can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(cluster.address("meta0")), "the error does not name the address: {said}");
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
}

#[test]
fn a_full_disk_reaches_the_writer_and_harms_nothing() {
    let Some(cluster) = Served::start_with_small_disk(24 * MIB) else { return };
    let client = cluster.client(Transport::Tcp);

    let earlier = client.open("/earlier", &read_write().create(true)).expect("there is room");
    let mut block = vec![0; 4 << 20];
    pattern::fill(&mut block, Stamp { writer: 1, slot: 2, round: 3 });
    earlier.write_at(&block, 0).expect("there is room");

    let big = client.open("/big", &read_write().create(true)).expect("names are elsewhere");
    let error = (0..64).find_map(|index| big.write_at(&block, index * block.len() as u64).err());
    let error = error.expect("the disk has no room for this");
    assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    assert!(error.to_string().contains("io1"), "the error does not name the server: {error}");
    let error = big.write_at(&block, 512 << 20).expect_err("it is still full");
    assert_eq!(error.errno(), libc::ENOSPC, "{error}");

    let mut back = vec![0; block.len()];
    assert_eq!(earlier.read_at(&mut back, 0).expect("earlier data can be read"), block.len());
    assert!(back == block, "earlier data is intact");
    client.mkdir("/still", 0o755).expect("names go on");
    let size = client.stat("/big", true).expect("it is there").size;
    let (mut offset, mut chunk) = (0, vec![0; 1 << 20]);
    while offset < size {
        let read = big.read_at(&mut chunk, offset).expect("a file that hit the end of the disk can be read");
        assert!(read > 0, "at {offset} of {size}");
        offset += read as u64;
    }

    big.close().expect("it can be closed");
    client.unlink("/big").expect("it can be removed");
    let after = client.open("/after", &read_write().create(true)).expect("names are elsewhere");
    wait_until("unlinking frees the space", Duration::from_secs(15), || after.write_at(&block, 0).is_ok());
    after.read_at(&mut back, 0).expect("it can be read");
    assert!(back == block, "what was written after is right");
}

/// Its last writes went to some servers and not to others: nothing of that stays.
#[test]
fn a_copy_that_fills_a_disk_leaves_only_what_is_whole() {
    let Some(cluster) = Served::start_with_small_disk(24 * MIB) else { return };
    let mut data = vec![0; 96 << 20];
    pattern::fill(&mut data, Stamp { writer: 1, slot: 2, round: 3 });
    let source = cluster.scratch().join("source");
    std::fs::write(&source, &data).expect("there is room here");
    let source = source.display().to_string();
    let fails = || {
        let output =
            cluster.command(&["cp", "-q", &source, &cluster.at("/copy")]).output().expect("weft can be run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("space left"), "{said}");
    };
    // A new file is there when it is complete, so it is not there, and takes no space.
    let client = cluster.client(Transport::Tcp);
    let free = || client.statfs().expect("the servers answer").available_bytes;
    let before = free();
    fails();
    assert_eq!(client.read_dir("/").expect("it is there").count(), 0);
    wait_until("its space is free again", Duration::from_secs(60), || free() + MIB >= before);
    // One that was there has what came through.
    client
        .open("/copy", &read_write().create(true))
        .expect("there is room for a name")
        .close()
        .expect("it ends");
    fails();
    let copy = client.open("/copy", &read_write()).expect("it was begun");
    let bytes = copy.stat().expect("it is there").size as usize;
    assert!((8 << 20..data.len()).contains(&bytes), "{bytes} bytes");
    let mut back = vec![0; bytes];
    assert_eq!(copy.read_at(&mut back, 0).expect("all of it can be read"), bytes);
    assert!(back == data[..bytes], "it is the beginning of the source");
}

/// What is left on the disk of a server, taken by somebody else; `dir` as the server sees it.
fn fill_disk_of(cluster: &Served, name: &str) -> std::path::PathBuf {
    let dir = cluster.directory(name).display();
    let path = std::path::PathBuf::from(format!("/proc/{}/root{dir}/hog", cluster.pid(name)));
    let mut hog = std::fs::File::create(&path).expect("the server's disk can be reached");
    for bytes in [MIB as usize, 4096] {
        while std::io::Write::write_all(&mut hog, &vec![7; bytes]).is_ok() {}
    }
    path
}

#[test]
fn a_full_metadata_disk_refuses_new_names_lets_removals_through_and_is_over_when_there_is_room() {
    for sync in [false, true] {
        let mut cluster = Served::init(ServedOptions { io_servers: 1, sync, ..ServedOptions::default() });
        let dir = cluster.directory("meta0").display().to_string();
        let Some(through) = weft_tests::with_small_disk(&dir, 24 * MIB) else { return };
        cluster.start_through("meta0", through);
        cluster.spawn("io0");
        cluster.names().iter().for_each(|name| cluster.wait_ready(name));
        let client = cluster.client(Transport::Tcp);
        for index in 0..200 {
            client.mkdir(&format!("/dir-{index}"), 0o755).expect("there is room");
        }
        let hog = fill_disk_of(&cluster, "meta0");
        let start = Instant::now();
        let error = wait_for_error(|index| client.mkdir(&format!("/more-{index}"), 0o755));
        assert_eq!(error.errno(), libc::ENOSPC, "{error}");
        assert!(start.elapsed() < Duration::from_secs(10), "{error} took {:?}", start.elapsed());
        assert!(names_in(&client, "/").len() >= 200, "names can be read");
        for index in 0..150 {
            client.rmdir(&format!("/dir-{index}")).expect("a removal finds room");
        }
        assert!(client.mkdir("/refused", 0o755).is_err(), "it is still full");
        assert!(cluster.is_running("meta0"), "{}", cluster.log("meta0"));
        std::fs::remove_file(hog).expect("it is there");
        wait_until("there is room again", Duration::from_secs(15), || client.mkdir("/after", 0o755).is_ok());
        client.stat("/dir-199", true).expect("it was never removed");
        client.stat("/dir-0", true).expect_err("it was removed");
    }
}

fn wait_for_error<T>(mut attempt: impl FnMut(u64) -> Result<T, weft_client::Error>) -> weft_client::Error {
    let mut index = 0;
    let start = Instant::now();
    loop {
        match attempt(index) {
            Err(error) => return error,
            Ok(_) => assert!(start.elapsed() < Duration::from_secs(30), "it is never refused"),
        }
        index += 1;
    }
}

/// Bytes of the journal are overwritten after an orderly stop: the server says so and does not start, and nothing is lost.
#[test]
fn a_damaged_journal_is_named_and_no_name_and_no_data_is_removed() {
    let mut cluster = Served::start(2);
    let client = cluster.client(Transport::Tcp);
    let data = vec![7; 300_000];
    for index in 0..7 {
        let file = client.open(&format!("/file-{index}"), &read_write().create(true)).expect("all is well");
        file.write_at(&data, 0).expect("all is well");
        file.close().expect("all is well");
    }
    cluster.stop("meta0");
    let journal = cluster.directory("meta0").join("names/0.jnl");
    let sound = std::fs::read(&journal).expect("the journal is there");
    let end = sound.iter().rposition(|byte| *byte != 0).expect("it holds names");
    let mut damaged = sound.clone();
    damaged[end / 3..end / 3 + 8].iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(&journal, &damaged).expect("the journal is there");

    cluster.spawn("meta0");
    wait_until("the server ends", Duration::from_secs(30), || !cluster.is_running("meta0"));
    assert!(!cluster.ended("meta0").success());
    let said = cluster.log("meta0");
    assert!(said.contains("0.jnl is damaged at byte") && said.contains("restore"), "{said}");
    assert_eq!(std::fs::read(&journal).expect("it is there"), damaged, "nothing is cut off");

    std::fs::write(&journal, &sound).expect("the journal is there");
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    for index in 0..7 {
        let file = client.open(&format!("/file-{index}"), &read_write()).expect("its name is there");
        let mut back = vec![0; data.len()];
        assert_eq!(file.read_at(&mut back, 0).expect("its data is there"), data.len());
        assert!(back == data);
    }
}

#[test]
fn a_disk_that_several_servers_use_counts_once() {
    let cluster = Served::start(3);
    let space = cluster.client(Transport::Tcp).statfs().expect("all servers run");
    let dir =
        std::ffi::CString::new(cluster.directory("io0").as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: all-zero bytes are a valid `statvfs`.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `dir` is a live C string, `stat` is live and writable.
    assert_eq!(unsafe { libc::statvfs(dir.as_ptr(), &mut stat) }, 0);
    assert_eq!(space.space_bytes, stat.f_blocks * stat.f_frsize);
}

#[test]
fn space_that_one_server_has_not_is_reserved_on_none_and_the_file_stays_whole() {
    let Some(cluster) = Served::start_with_small_disk(24 * MIB) else { return };
    let client = cluster.client(Transport::Tcp);
    let file = client.open("/whole", &read_write().create(true)).expect("there is room");
    let mut block = vec![0; 4 << 20];
    pattern::fill(&mut block, Stamp { writer: 1, slot: 2, round: 3 });
    file.write_at(&block, 0).expect("there is room");
    for (what, tried) in [
        ("extend", file.fallocate(0, 0, 400 * MIB)),
        ("keep the size", file.fallocate(libc::FALLOC_FL_KEEP_SIZE, 0, 400 * MIB)),
        ("zero", file.fallocate(libc::FALLOC_FL_ZERO_RANGE, MIB, 400 * MIB)),
    ] {
        assert_eq!(tried.expect_err("there is no room").errno(), libc::ENOSPC, "{what}");
        let mut back = vec![0; block.len()];
        assert_eq!(file.stat().expect("attributes").size, block.len() as u64, "{what}");
        assert_eq!(file.read_at(&mut back, 0).expect("it can be read"), block.len());
        assert!(back == block, "{what}");
    }
}

#[test]
fn in_sync_mode_everything_acknowledged_survives_the_loss_of_all_servers() {
    let mut cluster =
        Served::start_with(ServedOptions { io_servers: 2, sync: true, ..ServedOptions::default() });
    cluster.client(Transport::Auto).mkdir("/names", 0o755).expect("a directory");
    let mut writers = start_writers(&cluster, "/shared", "auto");
    let mut namer = Load::start(&cluster, "names", "tcp", &["/names", "0"]);
    for _ in 0..2 {
        writers.iter_mut().chain([&mut namer]).for_each(|worker| worker.wait_progress(10));
        let names = cluster.names();
        names.iter().for_each(|name| cluster.kill(name));
        names.iter().for_each(|name| cluster.spawn(name));
        names.iter().for_each(|name| cluster.wait_ready(name));
    }
    writers.iter_mut().chain([&mut namer]).for_each(|worker| worker.wait_progress(10));
    let acknowledged: Vec<_> = writers.into_iter().map(Load::finish).collect();
    let names = namer.finish();
    let last = cluster.names();
    last.iter().for_each(|name| cluster.kill(name));
    last.iter().for_each(|name| cluster.spawn(name));
    last.iter().for_each(|name| cluster.wait_ready(name));
    let client = cluster.client(Transport::Auto);
    for (writer, lines) in acknowledged.iter().enumerate() {
        check_blocks(&client, "/shared", writer as u64, lines);
    }
    let found: BTreeSet<_> = names_in(&client, "/names").into_iter().collect();
    assert_eq!(found, names_left(&names));
}

/// Its journal is gone, so that nothing can be made durable: the server ends and says why. What it had not acknowledged is asked
/// again by the client, of the server that runs then.
#[test]
fn a_metadata_server_whose_store_fails_ends_and_says_why() {
    let mut cluster =
        Served::start_with(ServedOptions { io_servers: 1, sync: true, ..ServedOptions::default() });
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/before", 0o755).expect("all is well");
    let names = cluster.directory("meta0").join("names");
    let journals: Vec<_> = std::fs::read_dir(&names)
        .expect("the store is there")
        .map(|entry| entry.expect("it can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
        .collect();
    let aside: Vec<_> = journals.iter().map(|path| path.with_extension("aside")).collect();
    journals
        .iter()
        .zip(&aside)
        .for_each(|(path, aside)| std::fs::rename(path, aside).expect("one directory"));
    let asked = client.clone();
    let waiting = std::thread::spawn(move || asked.mkdir("/after", 0o755));
    wait_until("the server ends", Duration::from_secs(60), || !cluster.is_running("meta0"));
    let said = cluster.log("meta0");
    assert!(said.contains("sync the journal") && said.contains("check the disk"), "{said}");
    assert_eq!(cluster.ended("meta0").code(), Some(1), "so that systemd starts it again");

    journals
        .iter()
        .zip(&aside)
        .for_each(|(path, aside)| std::fs::rename(aside, path).expect("one directory"));
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    waiting.join().expect("no panic").expect("the request is asked again");
    client.stat("/before", true).expect("it was durable");
}

#[test]
fn a_stopping_server_ends_well_under_load() {
    let mut cluster = Served::start(2);
    let mut writers = start_writers(&cluster, "/shared", "auto");
    for name in ["io0", "meta0", "io1"] {
        writers.iter_mut().for_each(|writer| writer.wait_progress(10));
        cluster.stop(name);
        cluster.spawn(name);
        cluster.wait_ready(name);
    }
    writers.iter_mut().for_each(|writer| writer.wait_progress(10));
    let acknowledged: Vec<_> = writers.into_iter().map(Load::finish).collect();
    let client = cluster.client(Transport::Auto);
    acknowledged
        .iter()
        .enumerate()
        .for_each(|(writer, lines)| check_blocks(&client, "/shared", writer as u64, lines));
}
