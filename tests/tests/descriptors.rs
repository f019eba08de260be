//! Servers and gateways that may have few file descriptors, and more clients than those are enough for.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weft_tests::{Served, ServedOptions, free_ports, signal, wait_until, weft_bin};

/// `ulimit -n` of each server.
const DESCRIPTORS: usize = 96;
const CLIENTS: usize = 39;
const FILES: usize = 40;
/// How long the clients work.
const CROWDED: Duration = Duration::from_secs(8);
/// How soon all goes on when they are gone, on a busy machine.
const BACK_MAX: Duration = Duration::from_secs(10);

/// Copies a directory to the cluster and removes it, again and again, each time by new processes.
fn busy_client(cluster: &Served, number: usize) -> Child {
    let target = cluster.at(&format!("copy{number}"));
    let errors = File::create(cluster.scratch().join(format!("client{number}.log"))).expect("a log");
    let mut command = Command::new("sh");
    command.arg("-c").arg("while :; do \"$1\" cp -r \"$2\" \"$3\"; \"$1\" rm -r \"$3\"; done").arg("sh");
    command.arg(weft_bin()).arg(cluster.scratch().join("source")).arg(target);
    command.env("WEFT_KEY_FILE", cluster.key_file()).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(errors).process_group(0).spawn().expect("sh can be run")
}

/// Kills a client with all its processes.
fn kill_group(mut client: Child) {
    // SAFETY: no memory is passed.
    unsafe { libc::kill(-(client.id() as libc::pid_t), libc::SIGKILL) };
    client.wait().expect("a child can be waited for");
}

fn open_descriptors(cluster: &Served, name: &str) -> usize {
    fs::read_dir(format!("/proc/{}/fd", cluster.pid(name))).expect("it runs").count()
}

/// A command that runs another with few descriptors.
fn with_few_descriptors() -> Vec<String> {
    ["sh", "-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$@\""), "few"].map(String::from).to_vec()
}

#[test]
fn servers_without_descriptors_tell_clients_so_and_go_on_when_these_are_gone() {
    let mut cluster = Served::init(ServedOptions::default());
    cluster.names().iter().for_each(|name| cluster.start_through(name, with_few_descriptors()));
    cluster.names().iter().for_each(|name| cluster.wait_ready(name));
    let source = cluster.scratch().join("source");
    fs::create_dir(&source).expect("a directory in a new one");
    let bytes: Vec<u8> = (0..200_000u32).map(|at| (at / 7) as u8).collect();
    (0..FILES).for_each(|at| fs::write(source.join(format!("f{at}")), &bytes).expect("room for it"));
    cluster.weft(&["ls", &cluster.url()]);
    let idle: Vec<usize> = cluster.names().iter().map(|name| open_descriptors(&cluster, name)).collect();

    let clients: Vec<Child> = (0..CLIENTS).map(|number| busy_client(&cluster, number)).collect();
    std::thread::sleep(CROWDED);
    clients.into_iter().for_each(kill_group);

    for name in cluster.names() {
        assert!(cluster.is_running(&name), "{name} has ended");
    }
    let copied = cluster.at("copied");
    wait_until("a new client is served", BACK_MAX, || {
        let copy = cluster.command(&["cp", &source.join("f0").display().to_string(), &copied]).output();
        copy.expect("weft can be run").status.success()
    });
    assert_eq!(cluster.command(&["cat", &copied]).output().expect("weft can be run").stdout, bytes);
    let log = |number| fs::read_to_string(cluster.scratch().join(format!("client{number}.log")));
    let told =
        (0..CLIENTS).filter_map(|number| log(number).ok()).any(|log| log.contains("raise LimitNOFILE"));
    assert!(told, "no client was told why it was refused");
    assert!(cluster.logs().contains("raise LimitNOFILE"), "no server has told of it");
    for (name, idle) in cluster.names().iter().zip(idle) {
        wait_until("the descriptors are free again", BACK_MAX, || {
            // What stays open are data files, and connections among servers.
            open_descriptors(&cluster, name) < idle + DESCRIPTORS / 2
        });
    }
    cluster.names().iter().for_each(|name| signal(cluster.pid(name), libc::SIGTERM));
    for name in cluster.names() {
        assert!(cluster.ended(&name).success(), "{name}");
    }
}

#[test]
fn idle_clients_of_a_gateway_leave_descriptors_for_others() {
    let mut cluster = Served::start(1);
    let (name, port) = ("nfs0", free_ports(1));
    let (address, directory) = (format!("127.0.0.1:{port}"), cluster.scratch().join(name));
    let mut file = fs::read_to_string(cluster.config_path()).expect("weft init wrote it");
    file +=
        &format!("\n[[gateway]]\nname = {name:?}\naddresses = [{address:?}]\ndirectory = {directory:?}\n");
    file += "\n[[export]]\npath = \"/\"\nclients = [\"127.0.0.0/8\"]\nsquash = \"none\"\n";
    fs::write(cluster.config_path(), file).expect("the test's own file");
    cluster.place(name, &address, &directory);
    cluster.start_through(name, with_few_descriptors());
    cluster.wait_ready(name);
    let connect = |_| {
        TcpStream::connect(&address)
            .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}\n{}", cluster.log(name)))
    };
    let idle: Vec<TcpStream> = (0..2 * DESCRIPTORS).map(connect).collect();
    let url = format!("nfs://{address}/?mountport={port}");
    wait_until("another client is served", BACK_MAX, || {
        let listed = Command::new("timeout").arg("5").arg(weft_bin()).args(["nfs", "ls", &url]).output();
        listed.expect("weft can be run").status.success()
    });
    assert!(cluster.log(name).contains("raise LimitNOFILE"), "{}", cluster.log(name));
    drop(idle);
}
