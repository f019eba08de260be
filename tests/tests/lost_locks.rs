//! Lock holders that stand still or are cut off while their locks are given to others: nothing that they write afterwards arrives,
//! until they have locked again.
//!
//! ```text
//!   away: a mount, clients of the library, programs under `weft run`      each holds a lock
//!     │ stopped, or its cable is cut
//!   meta0 is started again ─► 20 s without word of them ─► other: takes the locks and writes
//!     │ goes on
//!     ├─ the first change, whatever it is, and all after it: EIO
//!     └─ other unlocks ─► they lock again, and write
//! ```

use std::process::Command;
use std::time::Duration;
use weft_client::{Client, File, LockKind, LockTarget, LockWait, OpenOptions, Transport};
use weft_test_needs::Need;
use weft_tests::{
    Locker, Mount, Network, Served, ServedOptions, freeze, signal, wait_until, weft_bin, weft_locker,
};

const PATIENCE: Duration = Duration::from_secs(60);
const TEXT: &str = "first";
const THEIRS: &[u8] = b"OTHER";
/// Every way to change a file through a descriptor, and fsync after a change through a mapping.
const CHANGES: [&str; 7] = ["write", "truncate", "punch", "zero", "allocate", "copy", "sync"];

/// How a process uses a file.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Mount,
    Library,
    Program,
}

/// A process with a lock on a file of its own.
struct Holder {
    by: By,
    path: String,
    /// The first change that it makes when it goes on.
    change: &'static str,
    locker: Locker,
}

impl Holder {
    fn order(&self, change: &str, text: &str) -> String {
        match (self.by, change) {
            (By::Library, "write") => format!("put 0 {text}"),
            (By::Library, "read") => format!("get 0 {text}"),
            (_, "write" | "read") => format!("{change} 0 {text}"),
            _ => format!("{change} 0"),
        }
    }

    #[track_caller]
    fn lock(&mut self) {
        let how = if self.by == By::Library { "lock" } else { "fcntl" };
        self.locker.must(&format!("{how} 0 w 0 10 try"));
    }
}

/// Processes with locks on the files. (Fields are dropped in this order: processes end before their mount.)
struct Holders {
    all: Vec<Holder>,
    mount: Mount,
}

/// The paths of the files that are locked.
fn paths() -> Vec<String> {
    let changes = |by: &'static str| CHANGES.iter().map(move |change| format!("/{by}-{change}"));
    let mapped_by_library = |path: &String| path != "/library-sync";
    ["mount", "library", "program"].into_iter().flat_map(changes).filter(mapped_by_library).collect()
}

impl Holders {
    /// `through` takes them to their host.
    #[track_caller]
    fn start(cluster: &Served, through: &[&str]) -> Holders {
        let mount = cluster.mount_through(through, &["--transport", "tcp"]);
        let by = |words: &[&str]| {
            let words: Vec<&str> = through.iter().chain(words).copied().collect();
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).env("WEFT_KEY_FILE", cluster.key_file()).env("WEFT_TRANSPORT", "tcp");
            Locker::start_by(command)
        };
        let (weft, url, locker) = (weft_bin().display().to_string(), cluster.url(), weft_locker());
        let locker = locker.to_str().expect("UTF-8");
        let holder = |path: String| {
            let (name, change) = path[1..].split_once('-').expect("one of those above");
            let change = CHANGES.into_iter().find(|known| *known == change).expect("one of those above");
            let (by, open, locker) = match name {
                "mount" => {
                    (By::Mount, format!("open 0 {}", mount.join(&path[1..]).display()), Locker::start())
                }
                "library" => {
                    let open = format!("weft 0 {url} {} {path}", cluster.key_file().display());
                    (By::Library, open, by(&[locker]))
                }
                _ => {
                    let open = format!("open 0 /weft{path}");
                    (By::Program, open, by(&[&weft, "run", "--url", &url, "--", locker]))
                }
            };
            let mut holder = Holder { by, path, change, locker };
            holder.locker.must(&open);
            holder.locker.must(&holder.order("write", TEXT));
            holder.locker.must(&holder.order("allocate", ""));
            if change == "sync" {
                holder.locker.must("poke 0 s");
            }
            holder.lock();
            if change == "sync" && by == By::Mount {
                // The lock had the first change written.
                holder.locker.must("poke 0 s");
            }
            holder
        };
        Holders { all: paths().into_iter().map(holder).collect(), mount }
    }

    fn pids(&self) -> Vec<u32> {
        let others = self.all.iter().filter(|holder| holder.by != By::Mount);
        others.map(|holder| holder.locker.pid()).chain([self.mount.pid()]).collect()
    }

    #[track_caller]
    fn change_in_vain(&mut self) {
        for holder in &mut self.all {
            for change in [holder.change].iter().chain(&CHANGES[..6]) {
                let order = holder.order(change, "stale");
                assert_eq!(
                    holder.locker.ask(&order),
                    format!("errno {}", libc::EIO),
                    "{}: {order}",
                    holder.path
                );
            }
        }
    }

    #[track_caller]
    fn lock_again(&mut self) {
        for holder in &mut self.all {
            holder.lock();
            assert_eq!(holder.locker.ask(&holder.order("read", "5")), "OTHER", "{}", holder.path);
        }
    }

    #[track_caller]
    fn write(&mut self, text: &str) {
        for holder in &mut self.all {
            let order = holder.order("write", text);
            assert_eq!(holder.locker.ask(&order), "ok", "{}: {order}", holder.path);
            if holder.by != By::Library {
                holder.locker.ask("sync 0");
            }
        }
    }
}

/// Takes all the locks once they are given away, and writes under them.
#[track_caller]
fn take_over(client: &Client) -> Vec<File> {
    let take = |path: String| {
        let file = client.open(path.as_str(), &OpenOptions::new().read(true).write(true)).unwrap();
        file.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Forever).unwrap();
        file.write_at(THEIRS, 0).unwrap();
        file
    };
    paths().into_iter().map(take).collect()
}

#[track_caller]
fn expect(files: &[File], expected: &str) {
    for (file, path) in files.iter().zip(paths()) {
        let mut text = [0; THEIRS.len()];
        file.read_at(&mut text, 0).unwrap();
        assert_eq!(String::from_utf8_lossy(&text), expected, "{path}");
    }
}

#[test]
fn who_was_stopped_while_its_locks_were_given_away_writes_nothing() {
    let mut cluster = Served::start(2);
    let mut holders = Holders::start(&cluster, &["env"]);
    let pids = holders.pids();
    pids.iter().for_each(|pid| freeze(*pid));
    cluster.crash("meta0");
    let files = take_over(&cluster.client(Transport::Auto));
    pids.iter().for_each(|pid| signal(*pid, libc::SIGCONT));
    holders.change_in_vain();
    expect(&files, "OTHER");
    files.iter().for_each(|file| file.unlock(LockTarget::range(..)).unwrap());
    holders.lock_again();
    expect(&files, "OTHER");
    holders.write("fresh");
    expect(&files, "fresh");
}

/// Its connections look alive when the cable is mended: nothing was sent that could have failed.
#[test]
fn who_was_cut_off_while_its_locks_were_given_away_writes_nothing() {
    if !Need::NetworkNamespaces.is_met() {
        return;
    }
    let network = Network::new(&["servers", "away"]);
    let address = network.address("servers");
    let hosts = ["meta0", "io0", "io1"].map(|name| (name.to_string(), address.clone()));
    let options = ServedOptions { io_servers: 2, hosts: hosts.into(), ..ServedOptions::default() };
    let mut cluster = Served::init(options);
    let [here, away] =
        ["servers", "away"].map(|host| format!("--net=/run/netns/{}", network.namespace(host)));
    for name in cluster.names() {
        cluster.start_through(&name, vec!["nsenter".into(), here.clone()]);
    }
    let status = || {
        let mut command = Command::new("nsenter");
        command.arg(&away).arg(weft_bin()).args(["status", &cluster.url()]);
        command.env("WEFT_KEY_FILE", cluster.key_file()).output().is_ok_and(|output| output.status.success())
    };
    wait_until("all servers answer", PATIENCE, status);
    let mut holders = Holders::start(&cluster, &["nsenter", &away]);
    network.link("away", "down");
    cluster.kill("meta0");
    cluster.spawn("meta0");
    // This process is on no host of that network, and needs none: the servers' Unix sockets are here.
    let mut other = Locker::start_by({
        let mut command = Command::new("nsenter");
        command.arg(&here).arg(weft_locker());
        command
    });
    for (slot, path) in paths().iter().enumerate() {
        let open = format!("weft {slot} {} {} {path}", cluster.url(), cluster.key_file().display());
        wait_until("the server is back", PATIENCE, || other.ask(&open) == "ok");
        other.must(&format!("lock {slot} w 0 10 wait"));
        other.must(&format!("put {slot} OTHER"));
    }
    network.link("away", "up");
    holders.change_in_vain();
    for (slot, path) in paths().iter().enumerate() {
        assert_eq!(other.ask(&format!("get {slot} 5")), "OTHER", "{path}");
        other.must(&format!("lock {slot} u 0 10 try"));
    }
    holders.lock_again();
    for (slot, path) in paths().iter().enumerate() {
        assert_eq!(other.ask(&format!("get {slot} 5")), "OTHER", "{path}");
    }
    holders.write("fresh");
    for (slot, path) in paths().iter().enumerate() {
        assert_eq!(other.ask(&format!("get {slot} 5")), "fresh", "{path}");
    }
}
