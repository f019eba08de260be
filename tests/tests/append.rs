//! Appends of several clients: each has its place, whatever others do to the file.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use weft_client::{Client, OpenOptions, Transport};
use weft_tests::{Cluster, Served};

const RECORDS: usize = 500;

/// A record of some length: who, which, and the same letters.
fn record(writer: usize, number: usize) -> String {
    let letter = char::from(b'a' + writer as u8);
    format!("{writer} {number} {}\n", letter.to_string().repeat(1 + (writer * 37 + number * 61) % 300))
}

/// Every line is a record, every record is there once, and those of a writer are in their order.
#[track_caller]
fn check(text: &str, writers: usize, records: usize) {
    let mut seen = BTreeSet::new();
    let mut last = vec![None; writers];
    for line in text.split_inclusive('\n') {
        let mut words = line.split(' ').map(|word| word.parse::<usize>().ok());
        let (Some(Some(writer)), Some(Some(number))) = (words.next(), words.next()) else {
            panic!("no record: {line:?}");
        };
        assert_eq!(line, record(writer, number), "torn");
        assert!(seen.insert((writer, number)), "record {number} of {writer} is there twice");
        assert!(last[writer] < Some(number), "record {number} of {writer} comes late");
        last[writer] = Some(number);
    }
    assert_eq!(seen.len(), writers * records);
}

fn append(client: &Client, path: &str, writer: usize, records: usize) {
    let options = OpenOptions::new().write(true).create(true).append(true);
    let file = client.open(path, &options).expect("a file");
    for number in 0..records {
        let record = record(writer, number);
        assert_eq!(file.write(record.as_bytes()).expect("an append"), record.len());
    }
    file.close().expect("what was written is reported");
}

#[test]
fn appends_of_mounts_and_clients_are_all_there_and_whole() {
    let cluster = Cluster::start(3);
    let mounts = [cluster.mount(), cluster.mount()];
    std::thread::scope(|scope| {
        for (writer, mount) in mounts.iter().enumerate() {
            scope.spawn(move || {
                let path = mount.join("log");
                let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
                (0..RECORDS).for_each(|number| file.write_all(record(writer, number).as_bytes()).unwrap());
            });
        }
        for writer in 2..4 {
            let client = cluster.client();
            scope.spawn(move || append(&client, "/log", writer, RECORDS));
        }
    });
    for mount in &mounts {
        check(&fs::read_to_string(mount.join("log")).unwrap(), 4, RECORDS);
    }
}

#[test]
fn an_append_goes_behind_what_others_write_anywhere() {
    let cluster = Cluster::start(2);
    let (one, two) = (cluster.client(), cluster.client());
    let plain = one.open("/f", &OpenOptions::new().write(true).create(true)).unwrap();
    let log = two.open("/f", &OpenOptions::new().read(true).write(true).append(true)).unwrap();
    assert_eq!(log.append(b"first").unwrap(), 0);
    plain.write_at(b"far", 1_000_000).unwrap();
    assert_eq!(log.append(b"second").unwrap(), 1_000_003);
    plain.write_at(b"within", 5).unwrap();
    assert_eq!(log.append(b"third").unwrap(), 1_000_009);
    plain.truncate(7).unwrap();
    assert_eq!(log.append(b"fourth").unwrap(), 7);
    assert_eq!(plain.append(b"fifth").unwrap(), 13);
    plain.truncate(100).unwrap();
    assert_eq!(log.append(b"").unwrap(), 100);
    assert_eq!(log.write(b"sixth").unwrap(), 5);
    assert_eq!(log.stat().unwrap().size, 105);
    let mut head = [0; 18];
    log.read_at(&mut head, 0).unwrap();
    assert_eq!(&head, b"firstwifourthfifth");
}

/// The mount caches this file, so that the kernel takes the end to be where the mount last saw it.
#[test]
fn an_append_that_was_turned_on_after_the_open_goes_behind_what_another_mount_wrote() {
    let cluster = Cluster::start(2);
    let (one, two) = (cluster.mount(), cluster.mount());
    fs::write(one.join("log"), "base").unwrap();
    let mut file = fs::OpenOptions::new().read(true).write(true).open(one.join("log")).unwrap();
    set_flags(&file, libc::O_APPEND);
    let mut expected = String::from("base");
    for round in 0..20 {
        let other = format!("<{round} of another mount>");
        let mut log = fs::OpenOptions::new().append(true).open(two.join("log")).unwrap();
        log.write_all(other.as_bytes()).unwrap();
        drop(log);
        let own = format!("<{round} of this mount>");
        file.write_all(own.as_bytes()).unwrap();
        expected += &other;
        expected += &own;
        for mount in [&one, &two] {
            assert_eq!(fs::read_to_string(mount.join("log")).unwrap(), expected);
        }
    }
    set_flags(&file, 0);
    file.write_all_at(b"BASE", 0).unwrap();
    assert_eq!(fs::read_to_string(two.join("log")).unwrap(), expected.replace("base", "BASE"));
}

/// Programs in the current directory write by a descriptor that they inherit.
const FLAGS_OVER_EXEC: &str = r#"
import fcntl, os, shutil, subprocess, sys
shutil.copy("/bin/sh", "sh")
log = os.open("log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(log, b"----------")
os.set_inheritable(log, True)
def told():
    with open("log") as file:
        print(file.read(), "appends" if fcntl.fcntl(log, fcntl.F_GETFL) & os.O_APPEND else "anywhere", flush=True)
def in_child(act):
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
def by_programs(first):
    os.lseek(log, 3, os.SEEK_SET)
    subprocess.run(["./sh", "-c", f"printf {first} >&{log}"], close_fds=False, check=True)
    in_child(lambda: os.execv("./sh", ["./sh", "-c", f"printf {first}{first} >&{log}"]))
told()
for flags, letters in (0, "ABCD"), (os.O_APPEND, "EFGH"), (os.O_NONBLOCK, "IJKL"):
    fcntl.fcntl(log, fcntl.F_SETFL, flags)
    copy = os.dup(log)
    os.pwrite(log, letters[0].encode(), 0)
    os.pwrite(copy, letters[1].encode(), 1)
    in_child(lambda: os.pwrite(log, letters[2].encode(), 2))
    os.close(copy)
    by_programs(letters[3])
    told()
# What an executed program sets holds for this one.
for flags in os.O_APPEND, 0:
    program = f"import fcntl, os; fcntl.fcntl({log}, fcntl.F_SETFL, {flags}); os.pwrite({log}, b'!', 0)"
    subprocess.run([sys.executable, "-c", program], close_fds=False, check=True)
    os.pwrite(log, b"?", 1)
    told()
"#;

#[test]
fn flags_that_were_changed_after_the_open_hold_over_dup_fork_and_exec() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    let run = |directory: &std::path::Path| {
        let mut command = std::process::Command::new("python3");
        command.args(["-c", FLAGS_OVER_EXEC]).current_dir(directory);
        weft_tests::expect_success("python3", &command.output().expect("python3 can be run"))
    };
    let local = weft_tests::temporary_dir();
    let expected = run(local.path());
    assert!(expected.contains("ABCDDD---- anywhere") && expected.lines().count() == 6, "{expected}");
    assert_eq!(run(mount.path()), expected);
    weft_tests::preload_library();
    let script = "mkdir /weft/run; cd /weft/run; exec python3 -c \"$0\"";
    let mut command = cluster.command(&["run", "--url", cluster.url(), "--", "bash", "-c", script]);
    let output = command.arg(FLAGS_OVER_EXEC).output().expect("weft can be run");
    assert_eq!(weft_tests::expect_success("weft run", &output), expected);
}

fn set_flags(file: &fs::File, flags: i32) {
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) }, 0);
}

#[test]
fn appends_go_on_through_a_killed_metadata_server() {
    const KILLED: usize = 3;
    let mut cluster = Served::start(2);
    let records = 150;
    let clients: Vec<Client> = (0..3).map(|_| cluster.client(Transport::Auto)).collect();
    std::thread::scope(|scope| {
        let appenders: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(writer, client)| scope.spawn(move || append(client, "/log", writer, records)))
            .collect();
        let size = || clients[0].stat("/log", true).map_or(0, |attr| attr.size);
        for kill in 1..=KILLED as u64 {
            // At a third, a half and so on of what is to come; a record has some 150 bytes.
            while size() < kill * 10_000 && !appenders.iter().all(|appender| appender.is_finished()) {
                std::thread::yield_now();
            }
            cluster.crash("meta0");
        }
        appenders.into_iter().for_each(|appender| appender.join().expect("it appends through all"));
    });
    let file = clients[0].open("/log", &OpenOptions::new().read(true)).unwrap();
    let mut text = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut text, 0).unwrap();
    check(&String::from_utf8(text).expect("no holes are left, for nobody died"), 3, records);
}
