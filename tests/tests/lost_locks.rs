//! Lock holders that stand still or are cut off while their locks are given to others: nothing that they write afterwards arrives.
//!
//! ```text
//!   away: a mount, a client of the library, a program under `weft run`      each holds a lock
//!     │ stopped, or its cable is cut
//!   meta0 is started again ─► 20 s without word of them ─► other: takes the locks and writes
//!     │ goes on
//!     └─ the first write, and all after it: EIO
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

/// The paths of the files that are locked.
const FILES: [&str; 4] = ["/mount", "/mapped", "/library", "/program"];

/// Processes with locks on the files. (Fields are dropped in this order: processes end before their mount.)
struct Holders {
    on_mount: Locker,
    mapped: Locker,
    library: Locker,
    program: Locker,
    mount: Mount,
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
        let mut on_mount = Locker::start();
        on_mount.must(&format!("open 0 {}", mount.join("mount").display()));
        let mut mapped = Locker::start();
        mapped.must(&format!("open 0 {}", mount.join("mapped").display()));
        let mut program = by(&[&weft, "run", "--url", &url, "--", locker]);
        program.must("open 0 /weft/program");
        for holder in [&mut on_mount, &mut mapped, &mut program] {
            holder.must(&format!("write 0 {TEXT}"));
            holder.must("fcntl 0 w 0 10 try");
        }
        mapped.must("poke 0 s");
        let mut library = by(&[locker]);
        library.must(&format!("weft 0 {url} {} /library", cluster.key_file().display()));
        library.must(&format!("put 0 {TEXT}"));
        library.must("lock 0 w 0 10 try");
        Holders { on_mount, mapped, library, program, mount }
    }

    fn pids(&self) -> [u32; 3] {
        [self.mount.pid(), self.library.pid(), self.program.pid()]
    }

    /// The first thing that each does is to write.
    #[track_caller]
    fn write_in_vain(&mut self) {
        self.on_mount.must_fail("write 0 stale", libc::EIO);
        self.library.must_fail("put 0 stale", libc::EIO);
        self.program.must_fail("write 0 stale", libc::EIO);
        self.mapped.must_fail("sync 0", libc::EIO);
        self.on_mount.must_fail("sync 0", libc::EIO);
        self.on_mount.must_fail("write 0 again", libc::EIO);
    }
}

/// Takes all the locks once they are given away, and writes under them.
#[track_caller]
fn take_over(client: &Client) -> Vec<File> {
    let take = |path: &&str| {
        let file = client.open(*path, &OpenOptions::new().read(true).write(true)).unwrap();
        file.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Forever).unwrap();
        file.write_at(THEIRS, 0).unwrap();
        file
    };
    FILES.iter().map(take).collect()
}

#[track_caller]
fn nothing_else_was_written(files: &[File]) {
    for (file, path) in files.iter().zip(FILES) {
        let mut text = [0; THEIRS.len()];
        file.read_at(&mut text, 0).unwrap();
        assert_eq!(text, THEIRS, "{path}");
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
    holders.write_in_vain();
    nothing_else_was_written(&files);
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
    for (slot, path) in FILES.iter().enumerate() {
        let open = format!("weft {slot} {} {} {path}", cluster.url(), cluster.key_file().display());
        wait_until("the server is back", PATIENCE, || other.ask(&open) == "ok");
        other.must(&format!("lock {slot} w 0 10 wait"));
        other.must(&format!("put {slot} OTHER"));
    }
    network.link("away", "up");
    holders.write_in_vain();
    for (slot, path) in FILES.iter().enumerate() {
        assert_eq!(other.ask(&format!("get {slot} 5")), "OTHER", "{path}");
    }
}
