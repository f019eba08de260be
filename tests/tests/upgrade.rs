//! A cluster is upgraded to the next release one server at a time, and back, while clients of both work.
//!
//! The next release is this one with the feature `next`: it speaks one more version of the protocol, and every body of its
//! messages has one more field (crates/wire/src/body.rs).

use std::fs;
use std::path::Path;
use std::process::Command;
use weft_client::Transport;
use weft_tests::raw::{Raw, hello_of};
use weft_tests::{Load, Served, ServedOptions, expect_success, next_weft_bin};
use weft_wire::messages::{HelloReply, HelloRequest};
use weft_wire::{Status, VERSIONS};

/// Acknowledged operations of each client between two steps.
const PROGRESS: usize = 8;

/// The version that a server and a client of the next release use.
fn version_with_next(cluster: &Served, server: &str) -> u8 {
    let mut raw = Raw::tcp(cluster.address(server)).expect("it accepts connections");
    let greeting = HelloRequest { version_max: VERSIONS.1 + 1, ..hello_of(&cluster.key()) };
    let reply: HelloReply = raw.must(&greeting);
    reply.version
}

/// Runs a server as the given release from its next start on.
fn restart_as(cluster: &mut Served, server: &str, next: bool) {
    cluster.stop(server);
    // In the place of the program that the cluster would start.
    let instead = format!("shift; exec {} \"$@\"", next_weft_bin().display());
    let through = if next { vec!["sh".into(), "-c".into(), instead, "sh".into()] } else { Vec::new() };
    cluster.start_through(server, through);
    cluster.wait_ready(server);
    let version = if next { VERSIONS.1 + 1 } else { VERSIONS.1 };
    assert_eq!(version_with_next(cluster, server), version, "{server} runs as the other release");
}

/// A copy into and out of the cluster by a program of each release, which reads what the other has written.
fn copy_both_ways(cluster: &Served, programs: [&Path; 2], round: usize) {
    let from = cluster.scratch().join("data");
    let back = cluster.scratch().join("back");
    let at = cluster.at(&format!("/copies/{round}"));
    for [writer, reader] in [programs, [programs[1], programs[0]]] {
        for (program, source, target) in
            [(writer, from.to_str().unwrap(), at.as_str()), (reader, at.as_str(), back.to_str().unwrap())]
        {
            let mut copy = Command::new(program);
            copy.args(["cp", source, target]).env("WEFT_KEY_FILE", cluster.key_file());
            expect_success(&format!("{copy:?}"), &copy.output().expect("it can be run"));
        }
        assert!(fs::read(&from).unwrap() == fs::read(&back).unwrap(), "round {round}: the copies differ");
        fs::remove_file(&back).unwrap();
    }
}

#[test]
fn a_cluster_is_upgraded_server_by_server_under_load_and_back() {
    let programs = [weft_tests::weft_bin(), next_weft_bin()];
    let mut cluster = Served::start_with(ServedOptions { sync: true, ..ServedOptions::default() });
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ at >> 9) as u8).collect();
    fs::write(cluster.scratch().join("data"), data).unwrap();
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/copies", 0o755).expect("a directory");
    client.mkdir("/names", 0o755).expect("a directory");
    let mounts = [cluster.mount(), cluster.mount_by(next_weft_bin())];
    let mut loads = vec![
        Load::start(&cluster, "names", "tcp", &["/names", "0"]),
        Load::start(&cluster, "names", "shm", &["/names", "1"]),
        Load::start(&cluster, "write", "tcp", &["/shared", "0", "100000", "4"]),
        Load::start(&cluster, "write", "shm", &["/other", "0", "100000", "4"]),
    ];
    for (seed, mount) in mounts.iter().enumerate() {
        let dir = mount.join(format!("mounted{seed}"));
        fs::create_dir(&dir).unwrap();
        loads.push(Load::start(&cluster, "files", "auto", &[dir.to_str().unwrap(), &seed.to_string()]));
    }
    let steps =
        [("io0", true), ("meta0", true), ("io1", true), ("meta0", false), ("io1", false), ("io0", false)];
    for (round, (server, next)) in steps.into_iter().enumerate() {
        loads.iter_mut().for_each(|load| load.wait_progress(PROGRESS));
        restart_as(&mut cluster, server, next);
        copy_both_ways(&cluster, programs, round);
    }
    loads.iter_mut().for_each(|load| load.wait_progress(PROGRESS));
    for load in loads {
        load.finish();
    }
    drop(mounts);
    cluster.weft(&["fsck", &cluster.url()]);
}

#[test]
fn a_program_without_a_common_version_is_refused_in_words() {
    let cluster = Served::start(1);
    let mut raw = Raw::tcp(cluster.address("io0")).expect("it accepts connections");
    let (version_min, version_max) = (VERSIONS.1 + 1, VERSIONS.1 + 3);
    let greeting = HelloRequest { version_min, version_max, ..hello_of(&cluster.key()) };
    let reply = raw.ask(&greeting).expect("a refusal");
    assert_eq!(reply.header.status, Status::Version);
    let text = reply.error_text();
    assert!(
        text.contains(&format!("versions {version_min} to {version_max}")) && text.contains("upgrade"),
        "{text}"
    );
}
