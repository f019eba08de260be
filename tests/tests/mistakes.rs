//! Operators' mistakes with real processes and files, in random histories: directories wrong, empty, swapped, formatted anew, put back
//! from older copies; servers started twice; cluster files edited on one machine; keys mixed up, each while all goes on elsewhere.
//!
//! ```text
//!   WEFT_MISTAKES_HISTORIES=100 cargo test -p weft-tests --test mistakes     more of them
//!   WEFT_MISTAKES_SEED=17 …                                                  from this seed on
//! ```
//!
//! Each server has a machine of its own: a cluster file, a cluster key and a log. After a mistake it says what it found, or serves; what
//! is read is right or an error. When the mistake is undone, everything reads right, and no data file is gone.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft_client::{Client, ConnectOptions, OpenOptions, Url};
use weft_test_random::{Random, seeds};
use weft_tests::pattern::scattered;
use weft_tests::{Served, ServedOptions, end_with_parent, gauge, signal, wait_until, weft_bin};

const PATIENCE: Duration = Duration::from_secs(30);
const STRIP_BYTES: usize = 4096;
const IO_SERVERS: u64 = 3;
const MISTAKES: usize = 4;
const HISTORIES_DEFAULT: u64 = 3;
/// An I/O server hears of a run of the metadata server within a second.
const HEARD: Duration = Duration::from_millis(1300);

/// What a server is started with, and its process.
struct Machine {
    dir: PathBuf,
    child: Option<Child>,
}

/// A mistake that is made, and how it is undone.
struct Mistake {
    what: String,
    /// Which servers must say which words.
    told: Vec<(String, &'static [&'static str])>,
    undo: Vec<Undo>,
}

enum Undo {
    /// A directory comes back to its place, and what is there now goes.
    Directory { place: PathBuf, from: PathBuf },
    /// A file of a machine is put right.
    File(PathBuf, &'static str),
    /// A process that was started besides is ended.
    End(String),
}

struct World {
    served: Served,
    other: PathBuf,
    machines: BTreeMap<String, Machine>,
    files: BTreeMap<String, Vec<u8>>,
    random: Random,
    story: Vec<String>,
    number: u64,
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp can be run");
    assert!(copied.success());
}

/// Files that go meanwhile are not in it.
fn copy_of_what_is_used(from: &Path, to: &Path) {
    let _ = Command::new("cp").arg("-a").arg(from).arg(to).stderr(Stdio::null()).status();
}

/// Contents of all data files below a server's directory, by inode number.
fn data_files(directory: &Path) -> BTreeMap<u64, Vec<u8>> {
    let (mut files, mut directories) = (BTreeMap::new(), vec![directory.join("data")]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let ino = u64::from_str_radix(&entry.file_name().to_string_lossy(), 16);
            match (path.is_dir(), ino) {
                (true, _) => directories.push(path),
                (false, Ok(ino)) => drop(files.insert(ino, fs::read(&path).unwrap_or_default())),
                _ => {}
            }
        }
    }
    files
}

impl World {
    fn new(seed: u64) -> World {
        let options = ServedOptions { io_servers: IO_SERVERS as u16, ..ServedOptions::default() };
        let served = Served::init(ServedOptions { strip_bytes: STRIP_BYTES as u32, ..options });
        let lines = fs::read_to_string(served.config_path()).expect("weft init wrote it");
        let quick = lines.lines().map(|line| match line.split(' ').next() {
            Some("scrub_interval_s") => "scrub_interval_s = 1\n".into(),
            Some("orphan_age_s") => "orphan_age_s = 0\n".into(),
            _ => format!("{line}\n"),
        });
        fs::write(served.config_path(), quick.collect::<String>()).expect("it is ours");
        let other = served.scratch().join("other");
        let mut init = Command::new(weft_bin());
        init.args(["init", "--dir"]).arg(&other).args(["--meta", "127.0.0.1:1:/nowhere/m", "--io"]);
        weft_tests::expect_success(
            "weft init",
            &init.arg("127.0.0.1:2:/nowhere/i").output().expect("it runs"),
        );
        let mut machines = BTreeMap::new();
        for name in served.names() {
            let dir = served.scratch().join(format!("machine of {name}"));
            fs::create_dir(&dir).expect("a new one");
            machines.insert(name, Machine { dir, child: None });
        }
        let (files, story) = (BTreeMap::new(), Vec::new());
        let mut world = World { served, other, machines, files, random: Random(seed), story, number: 0 };
        for name in world.names() {
            world.put_right(&name, "weft.toml");
            world.put_right(&name, "cluster.key");
            world.start(&name);
        }
        world.wait_until_all_serve();
        world
    }

    fn names(&self) -> Vec<String> {
        self.served.names()
    }

    fn tell(&mut self, what: impl ToString) {
        self.story.push(what.to_string());
    }

    fn story(&self) -> String {
        let log = |name: &String| {
            let said = self.log(name);
            let last: Vec<&str> = said.lines().rev().take(12).collect();
            format!("--- {name}\n{}\n", last.into_iter().rev().collect::<Vec<_>>().join("\n"))
        };
        let logs: String = self.machines.keys().map(log).collect();
        format!("{}\n{logs}", self.story.join("\n"))
    }

    fn put_right(&self, name: &str, file: &str) {
        let to = self.machines[name].dir.join(file);
        let fresh = to.with_extension("new");
        fs::copy(self.served.config_path().with_file_name(file), &fresh).expect("it is there");
        fs::rename(fresh, to).expect("it is ours");
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.machines[name].dir.join("log")).unwrap_or_default()
    }

    fn start(&mut self, name: &str) {
        let server = name.trim_end_matches(" again");
        let machine = self.machines.get_mut(name).expect("it is one of them");
        if machine.child.is_some() {
            return;
        }
        let log = fs::File::options().create(true).append(true).open(machine.dir.join("log"));
        let log = log.expect("it is ours");
        let mut command = Command::new(weft_bin());
        command.args(["serve", "--name", server, "--config"]).arg(machine.dir.join("weft.toml"));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        end_with_parent(&mut command);
        machine.child = Some(command.spawn().expect("weft can be run"));
    }

    fn runs(&mut self, name: &str) -> bool {
        let machine = self.machines.get_mut(name).expect("it is one of them");
        let has_ended =
            machine.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_some()));
        if has_ended {
            machine.child = None;
        }
        machine.child.is_some()
    }

    /// In order, or with SIGKILL.
    fn stop(&mut self, name: &str, in_order: bool) {
        let machine = self.machines.get_mut(name).expect("it is one of them");
        let Some(mut child) = machine.child.take() else { return };
        signal(child.id(), if in_order { libc::SIGTERM } else { libc::SIGKILL });
        child.wait().expect("it is ours");
    }

    fn client(&self) -> Result<Client, weft_client::Error> {
        let options = ConnectOptions {
            key: Some(self.served.key()),
            retry_timeout_ms: 1500,
            ..ConnectOptions::default()
        };
        Client::connect(&Url::parse(&self.served.url()).expect("a URL"), options)
    }

    /// Whether everything reads right; anything else but an error is none.
    fn reads_right(&self) -> Result<(), String> {
        let client = self.client().map_err(|error| error.to_string())?;
        for (path, contents) in &self.files {
            self.read_right(&client, path, contents)?;
        }
        Ok(())
    }

    fn read_right(&self, client: &Client, path: &str, contents: &[u8]) -> Result<(), String> {
        let read = || {
            let file = client.open(path, &OpenOptions::new().read(true))?;
            let mut bytes = vec![0xa5; contents.len() + 100];
            let count = file.read_at(&mut bytes, 0)?;
            bytes.truncate(count);
            Ok::<_, weft_client::Error>(bytes)
        };
        let bytes = read().map_err(|error| format!("{path}: {error}"))?;
        assert!(bytes == contents, "{path} has other bytes\n{}", self.story());
        Ok(())
    }

    #[track_caller]
    fn wait_until_all_serve(&mut self) {
        let start = Instant::now();
        loop {
            let wrong = match self.reads_right() {
                Ok(()) if self.are_all_up() => return,
                Ok(()) => "a server is not up".to_string(),
                Err(error) => error,
            };
            assert!(start.elapsed() < PATIENCE, "{wrong}\n{}", self.story());
            self.start_who_ended();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn are_all_up(&self) -> bool {
        let config = self.served.config_path();
        let listed = self.served.command(&["server", "ls", "--json", "--config", text(&config)]).output();
        let listed = listed.expect("weft can be run");
        let servers: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let servers = servers.as_array().cloned().unwrap_or_default();
        servers.len() == self.names().len() && servers.iter().all(|server| server["state"] == "up")
    }

    /// New files, others' contents replaced, and some removed.
    fn work(&mut self) {
        let client = self.client().expect("all serve");
        for _ in 0..3 {
            self.number += 1;
            let known: Vec<String> = self.files.keys().cloned().collect();
            let path = match self.random.below(3) {
                0 if !known.is_empty() => self.random.choose(&known).clone(),
                _ => format!("/file{}", self.number),
            };
            let contents = self.contents();
            let options = OpenOptions::new().write(true).create(true).truncate(true);
            let file = client.open(path.as_str(), &options).expect("all serve");
            file.write_at(&contents, 0).expect("all serve");
            file.close().expect("all serve");
            self.files.insert(path, contents);
        }
        if self.files.len() > 4 {
            let known: Vec<String> = self.files.keys().cloned().collect();
            let path = self.random.choose(&known).clone();
            client.unlink(path.as_str()).expect("all serve");
            self.files.remove(&path);
        }
    }

    fn contents(&mut self) -> Vec<u8> {
        let count = self.random.below(9 * STRIP_BYTES as u64) as usize + 1;
        scattered(self.random.next(), count)
    }

    /// The data files of all files that have names, on each server.
    fn data_of_live_files(&self) -> BTreeMap<String, BTreeMap<u64, Vec<u8>>> {
        let client = self.client().expect("all serve");
        let ino = |path: &String| client.stat(path.as_str(), true).expect("it is there").ino;
        let live: Vec<u64> = self.files.keys().map(ino).collect();
        let names = (0..IO_SERVERS).map(|id| format!("io{id}"));
        let of = |name: String| {
            let mut files = data_files(self.served.directory(&name));
            files.retain(|ino, _| live.contains(ino));
            (name, files)
        };
        names.map(of).collect()
    }

    fn aside(&mut self, what: &str) -> PathBuf {
        self.number += 1;
        self.served.scratch().join(format!("{what} {}", self.number))
    }

    /// Moves a server's directory away.
    fn take_away(&mut self, name: &str) -> Undo {
        let (place, from) = (self.served.directory(name).to_path_buf(), self.aside("right one"));
        fs::rename(&place, &from).expect("it is ours");
        Undo::Directory { place, from }
    }

    fn edit(&mut self, name: &str, change: impl Fn(&mut Vec<String>)) -> Undo {
        let path = self.machines[name].dir.join("weft.toml");
        let whole = fs::read_to_string(&path).expect("it is there");
        let mut parts: Vec<String> = whole.split("[[server]]").map(str::to_string).collect();
        change(&mut parts);
        fs::write(&path, parts.join("[[server]]")).expect("it is ours");
        Undo::File(path, "weft.toml")
    }

    fn server(&mut self) -> String {
        format!("io{}", self.random.below(IO_SERVERS))
    }

    /// Makes one mistake, with the servers that it takes stopped before and started after it.
    fn make(&mut self) -> Mistake {
        let (one, in_order) = (self.server(), self.random.one_in(2));
        match self.random.below(12) {
            0 => self.directory_is_gone(in_order),
            1 => self.directories_are_swapped(in_order),
            2 | 3 => self.older_copy(&one),
            4 => self.older_names(),
            5 => self.formatted_anew(in_order),
            6 | 7 => self.started_twice(&one),
            8 | 9 => self.edited(&one, in_order),
            _ => self.keys_mixed_up(in_order),
        }
    }

    fn directory_is_gone(&mut self, in_order: bool) -> Mistake {
        let name = self.random.choose(&self.served.names()).clone();
        self.stop(&name, in_order);
        let undo = vec![self.take_away(&name)];
        let is_empty = self.random.one_in(2);
        if is_empty {
            fs::create_dir(self.served.directory(&name)).expect("a mount point");
        }
        self.start(&name);
        let what = format!("the directory of {name} is {}", if is_empty { "empty" } else { "missing" });
        Mistake { what, told: vec![(name, &["no such directory", "it is empty", "no store"])], undo }
    }

    fn directories_are_swapped(&mut self, in_order: bool) -> Mistake {
        let one = self.random.below(IO_SERVERS);
        let (one, other) = (format!("io{one}"), format!("io{}", (one + 1) % IO_SERVERS));
        self.stop(&one, in_order);
        self.stop(&other, in_order);
        let undo = vec![self.take_away(&one), self.take_away(&other)];
        for (undo, to) in undo.iter().zip([&other, &one]) {
            let Undo::Directory { from, .. } = undo else { continue };
            copy(from, self.served.directory(to));
        }
        let words: &[&str] = &["is expected"];
        self.start(&one);
        self.start(&other);
        let what = format!("the directories of {one} and {other} are swapped");
        Mistake { what, told: vec![(one, words), (other, words)], undo }
    }

    fn older_copy(&mut self, name: &str) -> Mistake {
        self.stop(name, true);
        let older = self.aside("older copy");
        copy(self.served.directory(name), &older);
        self.start(name);
        self.wait_until_all_serve();
        self.work();
        self.stop(name, true);
        let undo = vec![self.take_away(name)];
        fs::rename(older, self.served.directory(name)).expect("it is ours");
        self.start(name);
        let what = format!("an older copy of {name} is put back");
        Mistake { what, told: vec![(name.into(), &["its storage is a copy"])], undo }
    }

    fn older_names(&mut self) -> Mistake {
        self.stop("meta0", true);
        let older = self.aside("older copy");
        copy(self.served.directory("meta0"), &older);
        self.start("meta0");
        self.wait_until_all_serve();
        self.work();
        std::thread::sleep(HEARD);
        self.stop("meta0", true);
        let undo = vec![self.take_away("meta0")];
        fs::rename(older, self.served.directory("meta0")).expect("it is ours");
        self.start("meta0");
        let told = vec![("meta0".into(), &["put back from an older copy"] as &[_])];
        Mistake { what: "an older copy of meta0 is put back".into(), told, undo }
    }

    fn formatted_anew(&mut self, in_order: bool) -> Mistake {
        let name = self.random.choose(&self.served.names()).clone();
        self.stop(&name, in_order);
        let undo = vec![self.take_away(&name)];
        self.served.format(&name);
        self.start(&name);
        let words: &[&str] = &["the cluster knows", "belong to the metadata storage"];
        Mistake { what: format!("{name} is formatted anew"), told: vec![(name, words)], undo }
    }

    fn started_twice(&mut self, name: &str) -> Mistake {
        let again = format!("{name} again");
        let dir = self.aside("second machine");
        copy(&self.machines[name].dir, &dir);
        fs::remove_file(dir.join("log")).expect("it is a copy");
        let is_on_copy = self.random.one_in(2);
        if is_on_copy {
            let twin = self.aside("copy");
            copy_of_what_is_used(self.served.directory(name), &twin);
            let config = fs::read_to_string(dir.join("weft.toml")).expect("it is there");
            let elsewhere = format!("127.0.0.1:{}", weft_tests::free_ports(1));
            let config = config
                .replace(
                    &format!("\"{}\"", text(self.served.directory(name))),
                    &format!("\"{}\"", text(&twin)),
                )
                .replace(self.served.address(name), &elsewhere);
            fs::write(dir.join("weft.toml"), config).expect("it is ours");
        }
        self.machines.insert(again.clone(), Machine { dir, child: None });
        self.start(&again);
        let on = if is_on_copy { "a copy of its" } else { "the same" };
        let told = vec![(again.clone(), &["another process", "in use"] as &[_])];
        Mistake {
            what: format!("{name} is started twice, on {on} directory"),
            told,
            undo: vec![Undo::End(again)],
        }
    }

    fn edited(&mut self, one: &str, in_order: bool) -> Mistake {
        let (what, name, words, undo): (_, _, &'static [&'static str], _) = match self.random.below(4) {
            0 => {
                let undo = self.edit("meta0", |parts| drop(parts.pop()));
                ("loses its last server", "meta0", &["holds data of this cluster"], undo)
            }
            1 => {
                let undo = self.edit("meta0", |parts| parts.swap(2, 3));
                ("has two servers in another order", "meta0", &["the order of servers"], undo)
            }
            2 => {
                let one = if one == "io2" { "io0" } else { one };
                let undo = self.edit(one, |parts| parts.swap(2, 3));
                ("has two servers in another order", one, &["is expected"], undo)
            }
            _ => {
                let (ours, other) = (self.served.address(one).to_string(), self.server());
                let theirs = self.served.address(&other).to_string();
                let undo = self.edit(one, |parts| {
                    let turned = |part: &String| {
                        part.replace(&ours, "between").replace(&theirs, &ours).replace("between", &theirs)
                    };
                    *parts = parts.iter().map(turned).collect();
                });
                let words: &[&str] = if ours == theirs { &[] } else { &["cannot listen"] };
                ("has two addresses swapped", one, words, undo)
            }
        };
        self.stop(name, in_order);
        self.start(name);
        let told = if words.is_empty() { Vec::new() } else { vec![(name.to_string(), words)] };
        Mistake { what: format!("the cluster file of {name} {what}"), told, undo: vec![undo] }
    }

    fn keys_mixed_up(&mut self, in_order: bool) -> Mistake {
        let name = self.random.choose(&self.served.names()).clone();
        let path = self.machines[&name].dir.join("cluster.key");
        let while_it_runs = self.random.one_in(2);
        if !while_it_runs {
            self.stop(&name, in_order);
        }
        let (what, words): (_, &'static [&'static str]) = match self.random.below(4) {
            0 => {
                fs::copy(self.other.join("cluster.key"), &path).expect("it is there");
                let words: &[&str] = match while_it_runs {
                    true => &["uses another cluster key"],
                    false => &["does not have this cluster's key"],
                };
                ("another cluster's key", words)
            }
            1 => {
                fs::copy(self.served.key_file(), &path).expect("it is there");
                ("a host's key", &["does not hold a key"])
            }
            2 => {
                let user = self.aside("user.key");
                let config = self.served.config_path();
                let numbers = ["--uid", "1000", "--gid", "1000"];
                let arguments = ["key", "issue", "--config", text(&config), "--out", text(&user)];
                self.served.weft(&[&arguments[..], &numbers[..]].concat());
                fs::copy(user, &path).expect("it is there");
                ("a user's key", &["does not hold a key"])
            }
            _ => {
                let fresh = path.with_extension("fresh");
                fs::copy(&path, &fresh).expect("it is there");
                fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644)).expect("it is ours");
                fs::rename(&fresh, &path).expect("it is ours");
                ("readable by all", &["can be read by others"])
            }
        };
        self.start(&name);
        // An I/O server asks the metadata server, and so it is the one that hears of it.
        let is_heard = name == "meta0" && words[0].starts_with("does not have");
        let teller = if is_heard { "io0".to_string() } else { name.clone() };
        let while_it_runs = if while_it_runs { ", while it runs" } else { "" };
        let undo = vec![Undo::File(path, "cluster.key")];
        let what = format!("cluster.key of {name} is {what}{while_it_runs}");
        Mistake { what, told: vec![(teller, words)], undo }
    }

    fn undo(&mut self, mistake: Mistake) {
        let in_order = self.random.one_in(2);
        for undo in mistake.undo {
            match undo {
                Undo::Directory { place, from } => {
                    let names = self.names();
                    let name = names.iter().find(|name| self.served.directory(name) == place);
                    self.stop(&name.expect("a server's").clone(), in_order);
                    if place.exists() {
                        fs::remove_dir_all(&place).expect("it is ours");
                    }
                    fs::rename(from, place).expect("it is ours");
                }
                Undo::File(path, file) => {
                    let names = self.names();
                    let name = names.iter().find(|name| path.starts_with(&self.machines[*name].dir));
                    let name = name.expect("a server's").clone();
                    if file == "weft.toml" {
                        self.stop(&name, in_order);
                    }
                    self.put_right(&name, file);
                }
                Undo::End(name) => {
                    self.stop(&name, in_order);
                    self.machines.remove(&name);
                }
            }
        }
        self.start_who_ended();
    }

    /// One may have been about to end.
    fn start_who_ended(&mut self) {
        for name in self.names() {
            if !self.runs(&name) {
                self.start(&name);
            }
        }
    }

    /// Each server that must say something has done so. It has ended, or does not serve.
    fn must_have_told(&mut self, said: &BTreeMap<String, usize>, mistake: &Mistake) {
        for (name, words) in &mistake.told {
            // What is said once a minute may have been said for the mistake before.
            let is_repeated = words[0].starts_with("does not have");
            let from = said.get(name).copied().filter(|_| !is_repeated).unwrap_or(0);
            let start = Instant::now();
            while !words.iter().any(|word| self.log(name)[from..].contains(word)) {
                assert!(
                    start.elapsed() < PATIENCE,
                    "{name} does not say any of {words:?}: {}\n{}",
                    mistake.what,
                    self.story()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Something new is tried while a server is away; whether it is done is known only if it is acknowledged.
    fn try_to_write(&mut self) {
        let Ok(client) = self.client() else { return };
        self.number += 1;
        let (path, contents) = (format!("/meanwhile{}", self.number), self.contents());
        let write = || {
            let options = OpenOptions::new().write(true).create(true);
            let file = client.open(path.as_str(), &options)?;
            file.write_at(&contents, 0)?;
            file.close()
        };
        if write().is_ok() {
            self.tell(format!("  {path} was written meanwhile"));
            self.files.insert(path, contents);
        }
    }

    fn one_mistake(&mut self) {
        self.work();
        let said = self.machines.keys().map(|name| (name.clone(), self.log(name).len())).collect();
        let mistake = self.make();
        self.tell(&mistake.what);
        self.must_have_told(&said, &mistake);
        if let Err(why) = self.reads_right() {
            self.tell(format!("  {why}"));
        }
        if self.random.one_in(3) {
            self.try_to_write();
        }
        self.undo(mistake);
        self.wait_until_all_serve();
        let there = self.data_of_live_files();
        let client = self.client().expect("all serve");
        let scans = gauge(&client, "orphan_scans");
        wait_until("a scan for orphans", PATIENCE, || gauge(&client, "orphan_scans") > scans);
        assert!(there == self.data_of_live_files(), "data files are gone, or others\n{}", self.story());
        if let Err(why) = self.reads_right() {
            panic!("{why}\n{}", self.story());
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in self.machines.values_mut().filter_map(|machine| machine.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn mistakes_are_told_or_harmless_and_nothing_is_lost_when_they_are_undone() {
    let count = number("WEFT_MISTAKES_HISTORIES").unwrap_or(HISTORIES_DEFAULT);
    for seed in seeds().take(count as usize) {
        let mut world = World::new(seed);
        (0..MISTAKES).for_each(|_| world.one_mistake());
        eprintln!("{}", world.story.join("\n"));
    }
}
