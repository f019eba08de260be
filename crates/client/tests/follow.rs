//! Clients go on while servers are added and move: real servers, real sockets, every byte that was written is read back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weft_client::{Client, LockKind, LockTarget, LockWait, OpenOptions, Transport};
use weft_test_cluster::{Cluster, eventually, pattern};

const STRIP_BYTES: u32 = 16 << 10;
const BLOCK_BYTES: usize = 100_000;
const BLOCKS: usize = 8;

fn read_write() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

/// Writes and reads back, in one file that stays open and in new ones, until `is_over`; the rounds are counted.
fn work(client: &Client, name: &str, is_over: &AtomicBool, rounds: &AtomicUsize) {
    let file = client.open(format!("/{name}").as_str(), &read_write()).unwrap();
    file.lock(LockTarget::range(0..100), LockKind::Exclusive, LockWait::Never).unwrap();
    let mut blocks: Vec<Vec<u8>> = vec![Vec::new(); BLOCKS];
    let mut back = vec![0; BLOCK_BYTES];
    for round in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let at = round % BLOCKS;
        blocks[at] = pattern(round as u64 + 1, BLOCK_BYTES);
        file.write_at(&blocks[at], (at * BLOCK_BYTES) as u64).unwrap();
        let looked_at = (round * 5 + 3) % BLOCKS;
        if !blocks[looked_at].is_empty() {
            back.fill(0);
            assert_eq!(file.read_at(&mut back, (looked_at * BLOCK_BYTES) as u64).unwrap(), BLOCK_BYTES);
            assert!(back == blocks[looked_at], "{name}: round {round}, block {looked_at}");
        }
        let path = format!("/{name}-{}", round % 5);
        let fresh = client.open(path.as_str(), &read_write().truncate(true)).unwrap();
        fresh.write_at(&blocks[at], 0).unwrap();
        fresh.close().unwrap();
        let again = client.open(path.as_str(), &OpenOptions::new().read(true)).unwrap();
        assert_eq!(again.stat().unwrap().size, BLOCK_BYTES as u64);
        back.fill(0);
        assert_eq!(again.read_at(&mut back, 0).unwrap(), BLOCK_BYTES);
        assert!(back == blocks[at], "{path}: round {round}");
        again.close().unwrap();
        if round % 7 == 0 {
            client.statfs().unwrap();
            client.read_dir("/").unwrap().for_each(|entry| drop(entry.unwrap()));
            file.sync_data().unwrap();
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    assert!(file.lock_test(LockTarget::range(0..100), LockKind::Exclusive).unwrap().is_none());
    file.close().unwrap();
}

/// Does one thing after the other while clients work, each when all have done some rounds since.
fn while_clients_work(cluster: &mut Cluster, changes: &[&dyn Fn(&mut Cluster)]) {
    let clients =
        [Transport::Tcp, Transport::Auto, Transport::Tcp].map(|transport| cluster.client(transport));
    let is_over = AtomicBool::new(false);
    let rounds = [const { AtomicUsize::new(0) }; 3];
    std::thread::scope(|scope| {
        for (at, client) in clients.iter().enumerate() {
            let (is_over, rounds) = (&is_over, &rounds[at]);
            scope.spawn(move || {
                // The others are not to work for ever where one fails.
                let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    work(client, &format!("client{at}"), is_over, rounds);
                }));
                is_over.store(true, Ordering::Relaxed);
                worked.unwrap();
            });
        }
        let some_rounds = || {
            let before: Vec<_> = rounds.iter().map(|rounds| rounds.load(Ordering::Relaxed)).collect();
            let is_done =
                |(rounds, before): (&AtomicUsize, &usize)| rounds.load(Ordering::Relaxed) > before + 2;
            eventually("clients go on", || {
                is_over.load(Ordering::Relaxed) || rounds.iter().zip(&before).all(is_done)
            });
        };
        some_rounds();
        for change in changes {
            change(cluster);
            some_rounds();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let version = cluster.client(Transport::Tcp).map().version;
    for client in &clients {
        client.stat("/", true).unwrap();
        assert_eq!(client.map().version, version);
    }
}

#[test]
fn clients_go_on_while_a_server_is_added_and_every_server_moves() {
    let mut cluster = Cluster::start(2, STRIP_BYTES);
    while_clients_work(
        &mut cluster,
        &[
            &|cluster| cluster.add_server(),
            &|cluster| cluster.move_server(1),
            &|cluster| cluster.move_server(0),
            &|cluster| cluster.move_server(3),
            &|cluster| cluster.add_server(),
            &|cluster| cluster.move_server(2),
            &|cluster| cluster.move_server(0),
        ],
    );
}

#[test]
fn a_client_reads_what_another_wrote_to_a_server_that_it_did_not_know() {
    let mut cluster = Cluster::start(1, STRIP_BYTES);
    let old = cluster.client(Transport::Tcp);
    let before = old.statfs().unwrap();
    cluster.add_server();
    let data = pattern(1, 8 * STRIP_BYTES as usize);
    let new = cluster.client(Transport::Tcp);
    eventually("new files are on both servers", || {
        let file = new.open("/new", &read_write().truncate(true)).unwrap();
        let servers = file.layout().server_count();
        file.write_at(&data, 0).unwrap();
        file.close().unwrap();
        if servers < 2 {
            new.unlink("/new").unwrap();
        }
        servers == 2
    });
    assert_eq!(old.map().io_servers().count(), 1, "nothing has told it yet");
    let file = old.open("/new", &OpenOptions::new().read(true)).unwrap();
    let mut back = vec![0; data.len()];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), data.len());
    assert!(back == data);
    assert_eq!(old.map().io_servers().count(), 2);
    assert_eq!(old.server_status(false).len(), 3);
    assert!(old.statfs().unwrap().space_bytes >= before.space_bytes);
}

#[test]
fn a_map_from_before_is_brought_up_to_date_where_nothing_is_where_it_was() {
    let mut cluster = Cluster::start(2, STRIP_BYTES);
    let first = cluster.client(Transport::Tcp);
    let file = first.open("/file", &read_write()).unwrap();
    file.write_at(&pattern(2, 200_000), 0).unwrap();
    file.close().unwrap();
    let old_map = first.map();
    let old_version = old_map.version;
    let (url, options) = (cluster.url(), cluster.options(Transport::Tcp));
    cluster.move_server(0);
    cluster.move_server(1);
    // One of the servers that it knows is where it was.
    let late = Client::connect_with_map(&url, options, old_map).unwrap();
    let begin = Instant::now();
    let file = late.open("/file", &OpenOptions::new().read(true)).unwrap();
    let mut back = vec![0; 200_000];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), back.len());
    assert!(back == pattern(2, 200_000));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert!(late.map().version > old_version, "it goes by a newer map");
}
