//! Figures of memory: servers that idle, servers with many clients, and client processes.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;
use weft_client::{Client, OpenOptions, Transport};
use weft_layout::{Extent, Regions};
use weft_tests::{Load, Served, expect_success, resident_bytes, wait_until, weft_bin};

const MIB: u64 = 1 << 20;

#[test]
fn servers_stay_small_idle_and_with_a_hundred_clients() {
    let cluster = Served::start(2);
    for name in cluster.names() {
        let bytes = resident_bytes(cluster.pid(&name));
        eprintln!("{name} idle: {} KiB", bytes >> 10);
        assert!(bytes < 64 * MIB, "{name}: {bytes} bytes");
    }
    let clients: Vec<Client> =
        (0..100).map(|at| cluster.client([Transport::Tcp, Transport::Shm][at % 2])).collect();
    let files: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(at, client)| {
            let options = OpenOptions::new().read(true).write(true).create(true);
            let file = client.open(&format!("/file-{at}"), &options).expect("open");
            file.write_at(&vec![1; 300_000], 0).expect("written");
            file
        })
        .collect();
    wait_until("all are known", Duration::from_secs(5), || {
        let servers = clients[0].server_status(false);
        servers.into_iter().all(|(_, status)| status.expect("every server answers").clients >= 100)
    });
    for name in cluster.names() {
        let bytes = resident_bytes(cluster.pid(&name));
        eprintln!("{name} with 100 idle clients: {} KiB", bytes >> 10);
        assert!(bytes < 128 * MIB, "{name}: {bytes} bytes");
    }
    drop(files);
}

#[test]
fn a_client_process_takes_little_over_its_buffers() {
    let cluster = Served::start(4);
    let buffer_bytes = 96 * MIB;
    for transport in ["tcp", "shm"] {
        let load = Load::start(
            &cluster,
            "memory",
            transport,
            &[&format!("/{transport}"), &buffer_bytes.to_string()],
        );
        let lines = load.finish();
        let bytes: u64 = lines[0].parse().expect("a number");
        let over = bytes.saturating_sub(buffer_bytes);
        eprintln!("client over {transport}: {} KiB over its buffer", over >> 10);
        assert!(over < 16 * MIB, "{transport}: {over} bytes over a buffer of {buffer_bytes}");
    }
}

/// The most memory that a process has had.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a living process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn long_list_takes_little_memory(pieces: u64, transports: &[Transport]) {
    const BYTES: u64 = 64;
    let cluster = Served::start(4);
    let order = |factor: u64| (0..pieces).map(move |at| at * factor % 1_000_003 % pieces);
    let list = |factor, room| {
        Regions::list(order(factor).map(|at| Extent::new(at * room, BYTES)).collect::<Vec<_>>())
    };
    // Factors without a common divisor with the prime; a few pieces come twice, so writes are from a constant.
    let (file_side, memory_side) = (list(7919, 2 * BYTES), list(104_729, BYTES + 8));
    let mut memory = vec![7u8; (pieces * (BYTES + 8)) as usize];
    for transport in transports {
        let client = cluster.client(*transport);
        let options = OpenOptions::new().read(true).write(true).create(true);
        let file = client.open("/million", &options).expect("open");
        file.truncate(pieces * 2 * BYTES).expect("extended");
        let pids: Vec<u32> =
            cluster.names().iter().map(|name| cluster.pid(name)).chain([std::process::id()]).collect();
        let before: Vec<u64> = pids.iter().map(|pid| peak_bytes(*pid)).collect();
        // SAFETY: the regions lie within the buffer.
        unsafe {
            file.write_raw(memory.as_ptr(), &memory_side, &file_side).expect("written");
            file.read_raw(memory.as_mut_ptr(), &memory_side, &file_side).expect("read");
        }
        assert!(memory.iter().all(|byte| *byte == 7));
        for (pid, before) in pids.iter().zip(before) {
            let grown = peak_bytes(*pid) - before;
            eprintln!("{transport}: process {pid} grew by {} KiB", grown >> 10);
            assert!(grown < 64 * MIB, "{transport}: {grown} bytes");
        }
    }
}

#[test]
fn a_list_of_a_million_pieces_takes_little_memory_on_both_sides() {
    long_list_takes_little_memory(1_000_000, &[Transport::Tcp, Transport::Shm]);
}

#[test]
#[ignore = "needs an RDMA adapter; tests/rdma.rs runs it in a guest that has one"]
fn a_long_list_takes_little_memory_on_both_sides_over_rdma() {
    long_list_takes_little_memory(100_000, &[Transport::Rdma]);
}

#[test]
#[ignore = "needs an RDMA adapter; tests/rdma.rs runs it in a guest that has one"]
fn who_may_lock_little_memory_moves_all_data_over_rdma() {
    const BYTES: usize = 24 << 20;
    let cluster = Served::start(2);
    cluster.client(Transport::Rdma).mkdir("/open", 0o777).expect("a directory");
    let file = cluster.scratch().join("file");
    let data: Vec<u8> = (0..BYTES).map(|at| (at / 4096 * 31 + at) as u8).collect();
    std::fs::write(&file, &data).expect("written");
    let copies = cluster.scratch().join("copies");
    std::fs::create_dir(&copies).expect("a directory");
    std::fs::set_permissions(&copies, std::fs::Permissions::from_mode(0o777)).expect("for everybody");
    // As an ordinary user, with the usual limit of 8 MiB.
    let copy = |from: &str, to: &str| {
        let mut command = Command::new("prlimit");
        command.args(["--memlock=8388608:8388608", "setpriv", "--reuid=65534", "--regid=65534"]);
        command.args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
        command.arg(weft_bin()).args(["cp", from, to]);
        let key = std::fs::read_to_string(cluster.key_file()).expect("a key");
        command.env("WEFT_KEY", key.trim()).env("WEFT_TRANSPORT", "rdma").env("HOME", &copies);
        expect_success("weft cp", &command.output().expect("it can be run"));
    };
    copy(&file.to_string_lossy(), &cluster.at("/open/file"));
    copy(&cluster.at("/open/file"), &copies.join("back").to_string_lossy());
    assert!(std::fs::read(copies.join("back")).expect("it can be read") == data, "other data came back");
}
