//! The cluster's map changes under programs that work: servers are added and move, and nobody connects or mounts anew.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use weft_client::{Client, ConnectOptions, OpenOptions, Transport, Url};
use weft_tests::pattern::{MOUNT_FILE_BYTES as FILE_BYTES, same, scattered};
use weft_tests::{Cluster, Load, Served, free_ports, host, signal, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

type Worked = Result<(), String>;

/// Somebody who works until told to stop.
struct Worker {
    name: &'static str,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<Worked>,
}

impl Worker {
    fn start(
        name: &'static str,
        stop: &Arc<AtomicBool>,
        mut round: impl FnMut(u64) -> Worked + Send + 'static,
    ) -> Worker {
        let rounds = Arc::new(AtomicU64::new(0));
        let (stop, counted) = (stop.clone(), rounds.clone());
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let number = counted.load(Ordering::Relaxed);
                round(number).map_err(|error| format!("{name}, round {number}: {error}"))?;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Worker { name, rounds, thread }
    }
}

/// A new file each round, read back; one of before is read again, and its middle is written over.
fn client_round(client: &Client, dir: &str, round: u64, seed: u64) -> Worked {
    let told = |error: weft_client::Error| error.to_string();
    let (path, wanted) = (format!("{dir}/{round}"), scattered(seed + round, FILE_BYTES));
    let file =
        client.open(&path, &OpenOptions::new().read(true).write(true).create_new(true)).map_err(told)?;
    file.write_at(&wanted, 0).map_err(told)?;
    let mut found = vec![0; FILE_BYTES];
    let count = file.read_at(&mut found, 0).map_err(told)?;
    same(&path, &found[..count], &wanted)?;
    file.close().map_err(told)?;
    let old = format!("{dir}/{}", round / 2);
    let file = client.open(&old, &OpenOptions::new().read(true).write(true)).map_err(told)?;
    let wanted = scattered(seed + round / 2, FILE_BYTES);
    file.write_at(&wanted[1000..200_000], 1000).map_err(told)?;
    let count = file.read_at(&mut found, 0).map_err(told)?;
    same(&old, &found[..count], &wanted)?;
    file.close().map_err(told)?;
    match client.stat(&old, true).map_err(told)?.size {
        size if size == FILE_BYTES as u64 => Ok(()),
        size => Err(format!("{old} has {size} bytes")),
    }
}

/// Waits until each has done some more, and none has failed.
#[track_caller]
fn progress(workers: &mut Vec<Worker>, mounted: &mut Load, rounds: u64) {
    let wanted: Vec<u64> =
        workers.iter().map(|worker| worker.rounds.load(Ordering::Relaxed) + rounds).collect();
    for (at, wanted) in wanted.into_iter().enumerate() {
        let what = format!("{} goes on", workers[at].name);
        wait_until(&what, PATIENCE, || {
            if let Some(ended) = workers.iter().position(|worker| worker.thread.is_finished()) {
                let worker = workers.swap_remove(ended);
                panic!("{:?}", worker.thread.join());
            }
            workers[at].rounds.load(Ordering::Relaxed) >= wanted
        });
    }
    mounted.wait_progress(rounds as usize);
}

fn client_over(cluster: &Served, transport: Transport) -> Client {
    cluster.client_with(ConnectOptions { transport: Some(transport), ..ConnectOptions::default() })
}

fn config(cluster: &Served) -> String {
    cluster.config_path().to_str().expect("UTF-8").to_string()
}

fn new_address() -> String {
    format!("{}:{}", host(), free_ports(1))
}

/// `weft server add`, and the steps on its machine.
fn add(cluster: &mut Served, name: &str) {
    let (address, directory) = (new_address(), cluster.scratch().join(name));
    let said = cluster.weft(&[
        "server",
        "add",
        name,
        "--config",
        &config(cluster),
        "--address",
        &address,
        "--directory",
        directory.to_str().expect("UTF-8"),
        "--json",
    ]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert!(said["map_version"].as_u64().is_some_and(|version| version > 1), "{said}");
    cluster.place(name, &address, &directory);
    cluster.format(name);
    cluster.spawn(name);
    cluster.wait_ready(name);
}

/// `weft server move`, and the restart.
fn relocate(cluster: &mut Served, name: &str) {
    let address = new_address();
    cluster.weft(&["server", "move", name, "--config", &config(cluster), "--address", &address]);
    cluster.stop(name);
    let directory = cluster.directory(name).to_path_buf();
    cluster.place(name, &address, &directory);
    cluster.spawn(name);
    cluster.wait_ready(name);
}

/// The servers as `weft server ls` tells them, by name.
fn listed(cluster: &Served) -> BTreeMap<String, serde_json::Value> {
    let said = cluster.weft(&["server", "ls", "--json", "--config", &config(cluster)]);
    let servers: Vec<serde_json::Value> = serde_json::from_str(&said).expect("JSON");
    servers.into_iter().map(|server| (server["name"].as_str().expect("a name").to_string(), server)).collect()
}

fn addresses(server: &serde_json::Value) -> Vec<String> {
    let endpoints = server["endpoints"].as_array().expect("a list").iter();
    let tcp = endpoints.filter(|one| one["transport"] == "tcp");
    tcp.map(|one| one["address"].as_str().expect("an address").to_string()).collect()
}

fn ring(client: &Client, path: &str) -> u16 {
    client
        .open(path, &OpenOptions::new().write(true).create_new(true))
        .expect("it is new")
        .close()
        .expect("closed");
    client.stat(path, true).expect("it is there").layout.expect("a file has one").ring_servers()
}

#[test]
fn all_goes_on_while_a_server_is_added_addresses_change_and_every_server_is_restarted() {
    let mut cluster = Served::start(2);
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    let kinds = [
        ("a client over TCP", Transport::Tcp),
        ("a client over shared memory", Transport::Shm),
        ("a client", Transport::Auto),
        ("another client over TCP", Transport::Tcp),
    ];
    for (number, (name, transport)) in kinds.into_iter().enumerate() {
        let client = client_over(&cluster, transport);
        let (dir, seed) = (format!("/client{number}"), (number as u64 + 1) << 32);
        client.mkdir(&dir, 0o755).expect("it is new");
        workers.push(Worker::start(name, &stop, move |round| client_round(&client, &dir, round, seed)));
    }
    let mount = cluster.mount();
    let dir = mount.join("mount");
    fs::create_dir(&dir).expect("it is new");
    // A process of its own: one that is started by whoever has files open waits, at its exec, until these are flushed.
    let seed = (9u64 << 32).to_string();
    let mut mounted = Load::start(&cluster, "files", "auto", &[dir.to_str().expect("UTF-8"), &seed]);
    progress(&mut workers, &mut mounted, 2);

    add(&mut cluster, "io2");
    let observer = client_over(&cluster, Transport::Auto);
    let mut tries = 0;
    wait_until("new files are striped over the new server", PATIENCE, || {
        tries += 1;
        ring(&observer, &format!("/ring{tries}")) == 3
    });
    progress(&mut workers, &mut mounted, 3);
    relocate(&mut cluster, "io1");
    progress(&mut workers, &mut mounted, 3);
    relocate(&mut cluster, "meta0");
    progress(&mut workers, &mut mounted, 3);
    for (name, is_kill) in [("io0", true), ("io2", false), ("meta0", true), ("io1", false)] {
        match is_kill {
            true => cluster.kill(name),
            false => cluster.stop(name),
        }
        cluster.spawn(name);
        cluster.wait_ready(name);
        progress(&mut workers, &mut mounted, 2);
    }

    stop.store(true, Ordering::Relaxed);
    let mut rounds = Vec::new();
    for worker in workers {
        worker.thread.join().expect("it returns its errors").unwrap_or_else(|error| panic!("{error}"));
        rounds.push(worker.rounds.load(Ordering::Relaxed));
    }
    rounds.push(mounted.finish().len() as u64);
    // All of it is there for who comes now.
    let client = client_over(&cluster, Transport::Auto);
    let seeds = (0..4u64).map(|number| (format!("/client{number}"), (number + 1) << 32));
    for ((dir, seed), rounds) in seeds.chain([("/mount".to_string(), 9 << 32)]).zip(&rounds) {
        for round in 0..*rounds {
            let mut found = vec![0; FILE_BYTES + 1];
            let file =
                client.open(&format!("{dir}/{round}"), &OpenOptions::new().read(true)).expect("it is there");
            let count = file.read_at(&mut found, 0).expect("it can be read");
            same(&format!("{dir}/{round}"), &found[..count], &scattered(seed + round, FILE_BYTES))
                .expect("as written");
        }
    }
    let said = cluster.weft(&["fsck", &cluster.url()]);
    assert!(said.contains("nothing is wrong"), "{said}");
    eprintln!("rounds: {rounds:?}");
}

#[test]
fn a_client_that_knows_one_server_only_finds_the_others_where_they_are_now() {
    let mut cluster = Served::start(2);
    let client = client_over(&cluster, Transport::Tcp);
    assert_eq!(ring(&client, "/before"), 2);
    relocate(&mut cluster, "io0");
    relocate(&mut cluster, "meta0");
    add(&mut cluster, "io2");
    // It has the newest map, whichever server it asks for it.
    for name in ["meta0", "io0", "io1", "io2"] {
        let url = Url::parse(&format!("weft://{}/", cluster.address(name))).expect("a URL");
        let key = Some(cluster.key());
        let there = Client::connect(&url, ConnectOptions { key, ..ConnectOptions::default() });
        let there = there.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(there.stat("/before", true).is_ok(), "{name}");
    }
    let servers = listed(&cluster);
    for (name, server) in &servers {
        assert_eq!(server["state"], "up", "{server}");
        assert_eq!(addresses(server), [cluster.address(name)], "{server}");
    }
    let newest = servers["meta0"]["map_version"].as_u64().expect("it is up");
    wait_until("all have the same map", PATIENCE, || {
        listed(&cluster).values().all(|server| server["map_version"].as_u64() == Some(newest))
    });
}

#[test]
fn a_server_of_weft_up_is_added_and_moved_by_one_command() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    mount.sh("seq 100000 > numbers");
    let dir = cluster.storage();
    let dir = dir.to_str().expect("UTF-8");
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&cluster.weft(arguments)).expect("JSON")
    };
    let added = json(&["server", "add", "--dir", dir, "--json"]);
    assert_eq!((added["name"].as_str(), added["id"].as_u64()), (Some("io2"), Some(2)), "{added}");
    assert_eq!(added["started"], true, "{added}");
    let client = cluster.client();
    let mut tries = 0;
    wait_until("new files are striped over it", PATIENCE, || {
        tries += 1;
        ring(&client, &format!("/ring{tries}")) == 3
    });
    mount.sh("seq 200000 > more; seq 200000 | cmp - more; seq 100000 | cmp - numbers");
    let port = free_ports(1).to_string();
    let address = format!("{}:{port}", host());
    let moved = json(&["server", "move", "io0", "--dir", dir, "--address", &address, "--json"]);
    assert_eq!(moved["restarted"], true, "{moved}");
    assert_eq!(moved["not_heard"].as_array().map(Vec::len), Some(0), "{moved}");
    mount.sh(
        "seq 200000 | cmp - more; seq 100000 | cmp - numbers; seq 300000 > most; seq 300000 | cmp - most",
    );
    let servers = json(&["server", "ls", "--dir", dir, "--json"]);
    let io0 = &servers.as_array().expect("a list")[1];
    assert_eq!((io0["state"].as_str(), addresses(io0)), (Some("up"), vec![address]), "{servers}");
    // All of it is in the cluster file for the next start.
    drop(mount);
    cluster.down();
    let text = fs::read_to_string(cluster.storage().join("weft.toml")).expect("it is there");
    assert!(text.contains(&port) && text.contains("\"io2\""), "{text}");
}

#[test]
fn a_cluster_file_that_was_edited_is_read_at_sighup_and_what_makes_no_sense_is_not_gone_by() {
    let mut cluster = Served::start(2);
    let client = client_over(&cluster, Transport::Auto);
    assert_eq!(ring(&client, "/before"), 2);
    wait_until("both have come", PATIENCE, || {
        listed(&cluster).values().all(|server| server["state"] == "up")
    });
    let path = cluster.config_path();
    let good = fs::read_to_string(&path).expect("weft init wrote it");
    let last = good.rfind("[[server]]").expect("there are three");
    fs::write(&path, &good[..last]).expect("it is ours");
    signal(cluster.pid("meta0"), libc::SIGHUP);
    wait_until("it says that a server is missing", PATIENCE, || {
        cluster.log("meta0").contains("io1 (I/O server 1) holds data of this cluster")
    });
    let (address, directory) = (new_address(), cluster.scratch().join("io2"));
    let io2 = format!(
        "\n# by hand\n[[server]]\nname = \"io2\"\nrole = \"io\"\naddresses = [\"{address}\"]\ndirectory = \"{}\"\n",
        directory.display()
    );
    fs::write(&path, good + &io2).expect("it is ours");
    signal(cluster.pid("meta0"), libc::SIGHUP);
    wait_until("it knows the new one", PATIENCE, || listed(&cluster).contains_key("io2"));
    assert_eq!(listed(&cluster)["io2"]["state"], "joining");
    assert_eq!(ring(&client, "/meanwhile"), 2, "a server that has not come has no files");
    cluster.place("io2", &address, &directory);
    cluster.format("io2");
    cluster.spawn("io2");
    wait_until("it has come", PATIENCE, || listed(&cluster)["io2"]["state"] == "up");
    assert_eq!(ring(&client, "/after"), 3);
    // An operator's edit keeps what is written there.
    cluster.weft(&["server", "move", "io0", "--config", &config(&cluster), "--address", &new_address()]);
    assert!(fs::read_to_string(&path).expect("it is there").contains("# by hand"));
}
