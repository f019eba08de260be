//! Random calls of several clients, compared with system calls in a directory of this host: results, attributes,
//! listings and data. Connections are lost meanwhile, and calls come twice.
//!
//! `WEFT_TEST_STEPS=20000 cargo test -p weft-nfs --test random` runs for longer.

mod common;
mod cutting;
mod pair;
mod serving;

use common::Cluster;
use cutting::Cutting;
use pair::Pair;
use weft_nfs::Serving;
use weft_nfs_client::{AuthSys, ConnectOptions, NfsClient, NfsUrl, SetAttr, Stable};
use weft_test_random::seed;

/// Clients that use one directory by turns, or each its own at once.
const CLIENTS: usize = 3;

fn steps() -> usize {
    std::env::var("WEFT_TEST_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(400)
}

fn serve(cluster: &Cluster) -> Serving {
    serving::serve(serving::options(cluster.client(), &cluster.key, "/"))
}

fn connect(port: u16) -> NfsClient {
    let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/?mountport={port}")).unwrap();
    let root = AuthSys { machine: b"random".to_vec(), ..AuthSys::default() };
    let options = ConnectOptions { credential: Some(root), ..ConnectOptions::default() };
    // A connection that is lost while it is being made is not made again.
    (0..20).find_map(|_| NfsClient::connect(&url, &options).ok()).expect("the gateway answers")
}

fn pair(name: &str, cluster: &Cluster, clients: Vec<NfsClient>, seed: u64) -> Pair {
    let local = cluster.directory().join(name);
    std::fs::create_dir(&local).unwrap();
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let top = clients[0].mkdir(clients[0].root(), name.as_bytes(), &set).unwrap().handle.unwrap();
    Pair::new(clients, top, local, seed)
}

/// Nothing was done twice, and there was something that could have been.
fn check(proxy: &Cutting) {
    let seen = proxy.seen.lock().unwrap();
    assert!(seen.different.is_empty(), "two replies to one call: {:#?}", seen.different);
    assert!(seen.cuts > 0 && seen.repeated > 0, "{} cuts, {} repeated", seen.cuts, seen.repeated);
}

#[test]
fn clients_of_one_gateway_see_what_a_local_directory_would_show() {
    let cluster = Cluster::start(3, 16 << 10);
    let serving = serve(&cluster);
    let proxy = Cutting::before(serving.addresses()[0], seed());
    let clients = (0..CLIENTS).map(|_| connect(proxy.port)).collect();
    let mut pair = pair("shared", &cluster, clients, seed());
    pair.run(steps());
    pair.check_by(connect(serving.addresses()[0].port()));
    check(&proxy);
    // What was written is in the file system, for others too.
    drop(pair);
    serving.stop();
}

#[test]
fn clients_of_two_gateways_see_the_same_files() {
    let cluster = Cluster::start(2, 64 << 10);
    let serving = [serve(&cluster), serve(&cluster)];
    let ports = serving.each_ref().map(|serving| serving.addresses()[0].port());
    let clients = (0..CLIENTS + 1).map(|number| connect(ports[number % 2])).collect();
    let mut pair = pair("shared", &cluster, clients, seed());
    // Unstable data of another gateway's clients are seen after their COMMIT.
    pair.least_stable = Stable::File;
    pair.run(steps() / 2);
    pair.check_by(connect(ports[0]));
}

#[test]
fn clients_at_once_do_not_disturb_each_other() {
    let cluster = Cluster::start(2, 4 << 10);
    let serving = serve(&cluster);
    let proxy = Cutting::before(serving.addresses()[0], seed());
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (cluster, port) = (&cluster, proxy.port);
            scope.spawn(move || {
                let seed = seed().wrapping_add(number as u64);
                let mut pair = pair(&format!("own-{number}"), cluster, vec![connect(port)], seed);
                pair.run(steps() / 2);
                pair.check_by(connect(port));
            });
        }
    });
    check(&proxy);
}
