//! Programs on a mount while the servers behind it are killed and started again: what they have open stays open, and what they were
//! doing meanwhile is done late, not wrong.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weft_client::Transport;
use weft_tests::{Served, gauge, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
const KIB: usize = 1 << 10;

fn read_write(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .expect("it can be opened")
}

fn kill_all(cluster: &mut Served) {
    cluster.names().iter().for_each(|name| cluster.kill(name));
}

fn start_all(cluster: &mut Served) {
    cluster.names().iter().for_each(|name| cluster.spawn(name));
    cluster.names().iter().for_each(|name| cluster.wait_ready(name));
}

/// Bytes that differ from place to place and from `seed` to `seed`.
fn bytes(seed: u8, count: usize) -> Vec<u8> {
    (0..count).map(|place| seed.wrapping_add((place % 251) as u8)).collect()
}

fn contents(file: &mut File) -> Vec<u8> {
    let mut all = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("a file can be read again");
    file.read_to_end(&mut all).expect("it can be read");
    all
}

/// A shell in `dir` that does `script` once it is told to.
fn waiting_shell(dir: &Path, script: &str) -> Child {
    let mut bash = Command::new("bash");
    bash.args(["-euc", &format!("read -r go; {script}")]).current_dir(dir).stdin(Stdio::piped());
    bash.spawn().expect("bash can be run")
}

fn go_on(shell: &mut Child) {
    shell.stdin.take().expect("it waits for this").write_all(b"go\n").expect("it reads");
}

#[test]
fn what_is_open_on_a_mount_stays_open_while_all_servers_are_killed_and_started_again() {
    let mut cluster = Served::start(3);
    let mount = cluster.mount();
    let mut kept = read_write(&mount.join("kept"));
    kept.write_all(&bytes(1, 700 * KIB)).unwrap();
    let mut nameless = read_write(&mount.join("nameless"));
    nameless.write_all(&bytes(2, 300 * KIB)).unwrap();
    fs::remove_file(mount.join("nameless")).unwrap();
    fs::create_dir(mount.join("dir")).unwrap();
    let mut inside =
        waiting_shell(&mount.join("dir"), "echo here > relative; test \"$(cat relative)\" = here");
    let mut holder = waiting_shell(mount.path(), "exec 9>>held; flock -n 9; echo more >&9; test -s held");

    kill_all(&mut cluster);
    start_all(&mut cluster);

    kept.write_all_at(&bytes(3, 100 * KIB), 650 * KIB as u64).unwrap();
    let all = contents(&mut kept);
    assert_eq!(all.len(), 750 * KIB);
    assert!(all[..650 * KIB] == bytes(1, 700 * KIB)[..650 * KIB], "what was written before is there");
    assert!(all[650 * KIB..] == bytes(3, 100 * KIB)[..], "what was written after is there");

    assert!(contents(&mut nameless) == bytes(2, 300 * KIB), "a file without a name has its contents");
    nameless.write_all(&bytes(4, 10 * KIB)).unwrap();
    assert_eq!(nameless.metadata().unwrap().len(), 310 * KIB as u64);
    assert_eq!(nameless.metadata().unwrap().nlink(), 0);
    assert!(!mount.join("nameless").exists());

    for shell in [&mut inside, &mut holder] {
        go_on(shell);
        assert!(
            shell.wait().unwrap().success(),
            "a shell that ran before the restart goes on in its directory"
        );
    }
    assert_eq!(fs::read(mount.join("dir/relative")).unwrap(), b"here\n");

    // With its last descriptor the file goes from the servers' disks, too.
    drop(nameless);
    let client = cluster.client(Transport::Auto);
    wait_until("the nameless file is removed", PATIENCE, || gauge(&client, "garbage_removed_files") > 0);
}

#[test]
fn a_program_that_writes_to_a_mount_waits_while_servers_are_away_and_loses_nothing() {
    let mut cluster = Served::start(2);
    let mount = cluster.mount();
    let source = cluster.scratch().join("source");
    fs::write(&source, bytes(5, 8 << 20)).unwrap();
    for server in ["io0", "meta0", "io1"] {
        let mut dd = Command::new("dd");
        dd.arg(format!("if={}", source.display())).arg(format!("of={}", mount.join("copy").display()));
        let mut dd = dd.args(["bs=64k", "conv=fsync", "status=none"]).spawn().expect("dd can be run");
        cluster.kill(server);
        cluster.spawn(server);
        cluster.wait_ready(server);
        assert!(dd.wait().unwrap().success(), "dd ended well though {server} was killed");
        assert!(fs::read(mount.join("copy")).unwrap() == bytes(5, 8 << 20), "{server} was killed");
    }
}
