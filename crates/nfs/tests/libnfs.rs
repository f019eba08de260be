//! A gateway, and the programs of libnfs, another implementation of NFS.

mod common;
mod serving;

use std::process::{Command, Output};

use common::Cluster;
use weft_client::OpenOptions;
use weft_nfs::Serving;
use weft_test_needs::Need;
use weft_test_random::{Random, seed};

fn serve(cluster: &Cluster) -> Serving {
    serving::serve(serving::options(cluster.client(), &cluster.key, "/"))
}

fn url(serving: &Serving, path: &str) -> String {
    let port = serving.addresses()[0].port();
    format!("nfs://127.0.0.1{path}?version=3&nfsport={port}&mountport={port}&uid=0&gid=0")
}

fn run(program: &str, arguments: &[&str]) -> Output {
    // A program that waits for ever is ended.
    let output = Command::new("timeout").arg("60").arg(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    output
}

#[test]
fn files_are_listed_copied_and_read_by_libnfs() {
    if !Need::Libnfs.is_met() {
        return;
    }
    let cluster = Cluster::start(3, 64 << 10);
    let serving = serve(&cluster);
    let client = cluster.client();
    client.mkdir("/d", 0o755).unwrap();
    for at in 0..700 {
        client.mkdir(format!("/d/directory-{at}").as_str(), 0o755).unwrap();
    }
    let listed = run("nfs-ls", &[&url(&serving, "/d")]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout).matches("directory-").count(), 700);
    let data = Random(seed()).bytes(5_000_001);
    let here = cluster.directory().join("data");
    std::fs::write(&here, &data).unwrap();
    run("nfs-cp", &[here.to_str().unwrap(), &url(&serving, "/d/copy")]);
    let copy = client.open("/d/copy", &OpenOptions::new().read(true)).unwrap();
    let mut seen = vec![0; data.len() + 1];
    assert_eq!(copy.read_at(&mut seen, 0).unwrap(), data.len());
    assert!(seen[..data.len()] == data[..]);
    assert!(run("nfs-cat", &[&url(&serving, "/d/copy")]).stdout == data);
    let counts = serving.counts();
    assert!(counts.read_bytes >= data.len() as u64 && counts.written_bytes == data.len() as u64);
    serving.stop();
}
