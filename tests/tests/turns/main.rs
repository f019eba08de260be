//! Random system calls, each by turns in one of two places of a cluster, compared with the same in a plain local directory: two
//! mounts, or a mount and `weft run`.
//!
//! ```text
//!   WEFT_TEST_SEED=123 cargo test -p weft-tests --test turns     repeats the operations of a run
//!   WEFT_TURNS_S=600 cargo test -p weft-tests --test turns  for ten minutes
//! ```
//!
//! Each call has returned before the next one begins, mostly in the other place, on some thread, and as some user. So whatever
//! differs was cached for too long, or is a rule of its own. Between the calls servers are killed and started again.

mod handles;
mod names;
mod outcome;
mod sys;
mod workers;

use handles::Open;
use names::{OFFSETS, Op, some_name};
use outcome::{Outcome, Seen, errno, outcome};
use std::collections::VecDeque;
use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_test_random::Random;
use weft_tests::{Cluster, Served, expect_success, temporary_dir};
use workers::Workers;

const WORK_TIME: Duration = Duration::from_secs(10);
const HANDLES_MAX: usize = 6;
/// Operations told about when one differs.
const TOLD: usize = 200;
/// When files were changed by what file systems differ about.
const SET_AT: i64 = 5000;
/// Operations after which a long run says how far it is.
const TOLD_EVERY: u64 = 100_000;
/// Operations between two restarts, on average.
const RESTART_EVERY: u64 = 3000;
/// One of the threads works as this user, if the test is root's.
const USER: u32 = 1000;
/// Of a process under `weft run`: the two places that it works in.
const PLACES: &str = "WEFT_TURNS_PLACES";

/// A name open in the local directory and in a place.
struct Pair {
    name: String,
    place: usize,
    local: Arc<Open>,
    there: Arc<Open>,
}

struct World {
    local: PathBuf,
    places: [PathBuf; 2],
    /// A mapping is a copy there, and attributes of removed directories are lost.
    is_under_weft_run: bool,
    servers: Option<Served>,
    workers: Workers,
    open: Vec<Pair>,
    random: Random,
    told: VecDeque<String>,
    steps: u64,
}

impl World {
    fn same(&mut self, what: String, local: &Outcome, there: &Outcome) {
        let brief = format!("{local:?}").chars().take(60).collect::<String>();
        self.tell(format!("{what}: {brief}"));
        if local != there {
            let before: Vec<_> = self.told.iter().map(String::as_str).collect();
            let text = |outcome: &Outcome| format!("{outcome:?}").chars().take(300).collect::<String>();
            panic!(
                "{what}: {} locally, {} there, after {} operations\n{}",
                text(local),
                text(there),
                self.steps,
                before.join("\n")
            );
        }
    }

    fn tell(&mut self, what: String) {
        self.told.push_back(what);
        if self.told.len() > TOLD {
            self.told.pop_front();
        }
    }

    fn step(&mut self) {
        if self.random.one_in(RESTART_EVERY) {
            self.restart();
        }
        match self.random.below(10) {
            0 => self.open_or_close(),
            1 if !self.open.is_empty() && self.random.one_in(3) => self.copy(),
            1..=4 if !self.open.is_empty() => self.use_a_handle(),
            _ => self.use_a_name(),
        }
    }

    fn worker(&mut self) -> usize {
        self.random.below(self.workers.count() as u64) as usize
    }

    fn use_a_name(&mut self) {
        let (worker, place) = (self.worker(), self.random.below(2) as usize);
        let (name, op) = names::some_op(&mut self.random);
        let what = format!("thread {worker}, place {place}: {name} {op:?}");
        // Which of two errors is told, where both names have one, POSIX leaves open; what the kernel does not decide may tell the other.
        let any_error = self.is_under_weft_run && matches!(op, Op::Rename(..) | Op::Link(_));
        let (local, root) = (self.local.clone(), self.places[place].clone());
        let (local, there) = self.workers.run(worker, move || {
            let here = outcome(names::apply(&local, &name, &op));
            let mut there = outcome(names::apply(&root, &name, &op));
            if there != here && is_unsure(&there, Some(&op)) {
                op.look(&root, &name);
                there = outcome(names::apply(&root, &name, &op));
            }
            (here, there)
        });
        let same_enough = any_error && local.is_err() && there.is_err();
        self.same(what, &local, if same_enough { &local } else { &there });
    }

    fn open_or_close(&mut self) {
        if self.open.len() == HANDLES_MAX {
            let at = self.random.below(HANDLES_MAX as u64) as usize;
            let pair = self.open.swap_remove(at);
            // docs/semantics.md: the kernel tells the mount of a close a moment later.
            for open in [&pair.local, &pair.there] {
                let _ =
                    (sys::flock(&open.file, libc::LOCK_UN), sys::lock_range(&open.file, libc::F_UNLCK, 0, 0));
            }
            return self.tell(format!("place {}: {} closed", pair.place, pair.name));
        }
        let (worker, place) = (self.worker(), self.random.below(2) as usize);
        let name = some_name(&mut self.random);
        let how = [
            libc::O_RDWR | libc::O_CREAT,
            libc::O_RDWR | libc::O_CREAT,
            libc::O_RDWR | libc::O_APPEND,
            libc::O_RDWR | libc::O_TRUNC,
            libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL,
            libc::O_RDONLY,
        ];
        let flags = *self.random.choose(&how);
        let what = format!("thread {worker}, place {place}: {name} opened with {flags:#x}");
        let (local, root) = (self.local.join(&name), self.places[place].join(&name));
        let open = move |path: PathBuf| {
            let access = flags & libc::O_ACCMODE;
            let mut options = OpenOptions::new();
            options.read(access != libc::O_WRONLY).write(access != libc::O_RDONLY).mode(0o666);
            options.custom_flags(flags & !libc::O_ACCMODE).open(path)
        };
        let seen = |opened: &std::io::Result<fs::File>| opened.as_ref().map(|_| Seen::Done).map_err(errno);
        let (local, there) = self.workers.run(worker, move || {
            let (here, mut there) = (open(local), open(root.clone()));
            if seen(&there) != seen(&here) && is_unsure(&seen(&there), None) {
                let _ = fs::metadata(&root);
                there = open(root);
            }
            (here, there)
        });
        self.same(what, &seen(&local), &seen(&there));
        if let (Ok(local), Ok(there)) = (local, there) {
            if self.is_under_weft_run && local.metadata().is_ok_and(|data| data.is_dir()) {
                return;
            }
            let (local, there) = (Arc::new(Open::new(local)), Arc::new(Open::new(there)));
            self.open.push(Pair { name, place, local, there });
        }
    }

    fn use_a_handle(&mut self) {
        let op = handles::some_op(&mut self.random, !self.is_under_weft_run);
        let (worker, at) = (self.worker(), self.random.below(self.open.len() as u64) as usize);
        let pair = &self.open[at];
        if pair.local.is_directory() && (op.locks() || op.changes_time()) {
            // docs/semantics.md: FUSE leaves locks of directories to the kernel, and each mount has its own attributes of removed ones.
            return;
        }
        let what = format!("thread {worker}, place {}: {} as it was opened, {op:?}", pair.place, pair.name);
        let both = [Arc::clone(&pair.local), Arc::clone(&pair.there)];
        let [local, there] = both.clone();
        let leaves_any_time = op.leaves_any_time();
        let (local, there) = self.workers.run(worker, move || {
            let mut seen = outcome(handles::apply(&there, &op));
            if seen == Err(libc::EPERM) && there.file.metadata().and(there.file.metadata()).is_ok() {
                // docs/semantics.md: whose file it is, as of a name. What the first look brings to light is dropped where the kernel
                // has to forget pages with it.
                seen = outcome(handles::apply(&there, &op));
            }
            (outcome(handles::apply_locally(&local, &op)), seen)
        });
        self.same(what, &local, &there);
        if leaves_any_time {
            let set = |open: &Arc<Open>| sys::set_times_of(&open.file, SET_AT).expect("root may");
            both.iter().for_each(set);
        }
    }

    fn copy(&mut self) {
        let worker = self.worker();
        let mut some = || self.random.below(self.open.len() as u64) as usize;
        let (from, to) = (some(), some());
        let mut offset = || *self.random.choose(OFFSETS);
        let (start, end, bytes) = (offset(), offset(), *self.random.choose(names::LENGTHS) as usize);
        let (from, to) = (&self.open[from], &self.open[to]);
        if from.place != to.place {
            // The kernel does not know whether two files of two places are one, of which bytes are copied onto themselves.
            return;
        }
        let what = format!(
            "thread {worker}, places {} and {}: {bytes} bytes at {start} of {} copied to {end} of {}",
            from.place, to.place, from.name, to.name
        );
        let copy = move |from: Arc<Open>, to: Arc<Open>| {
            move || outcome(handles::copy((&from, start), (&to, end), bytes))
        };
        let locally = copy(Arc::clone(&from.local), Arc::clone(&to.local));
        let there = copy(Arc::clone(&from.there), Arc::clone(&to.there));
        let (local, there) = self.workers.run(worker, move || (locally(), there()));
        self.same(what, &local, &there);
    }

    fn restart(&mut self) {
        let Some(servers) = &mut self.servers else { return };
        let mut names = servers.names();
        if !self.random.one_in(4) {
            names = vec![self.random.choose(&names).clone()];
        }
        names.iter().for_each(|name| servers.kill(name));
        names.iter().for_each(|name| servers.spawn(name));
        names.iter().for_each(|name| servers.wait_ready(name));
        self.tell(format!("{} killed and started again", names.join(", ")));
    }

    /// Works for some time.
    fn work(&mut self) {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let until = Instant::now() + number("WEFT_TURNS_S").map_or(WORK_TIME, Duration::from_secs);
        while Instant::now() < until {
            self.step();
            self.steps += 1;
            if self.steps.is_multiple_of(TOLD_EVERY) {
                eprintln!("{} operations", self.steps);
            }
        }
        eprintln!("{} operations", self.steps);
    }
}

/// Whether the kernel may have refused it by attributes that another mount has changed since: docs/semantics.md.
fn is_unsure(there: &Outcome, op: Option<&Op>) -> bool {
    match there {
        Err(libc::ESTALE | libc::EPERM | libc::EACCES) => true,
        // Of what is no directory in one with the sticky bit, and of what is one.
        Err(libc::ENOTDIR) => matches!(op, Some(Op::Rmdir)),
        Err(libc::EISDIR) => matches!(op, Some(Op::Unlink)),
        _ => false,
    }
}

/// A directory that everybody may change.
fn everybodys(path: &Path) -> PathBuf {
    fs::set_permissions(path, Permissions::from_mode(0o777)).expect("it is ours");
    path.to_path_buf()
}

#[test]
fn two_mounts_by_turns_are_like_one_local_directory() {
    let servers = Served::start(2);
    let local = temporary_dir();
    let mounts = [servers.mount(), servers.mount()];
    let as_user = || {
        if sys::is_root() {
            sys::act_as(USER).expect("root can be any user");
        }
    };
    let mut world = World {
        local: everybodys(local.path()),
        places: [everybodys(mounts[0].path()), mounts[1].path().to_path_buf()],
        is_under_weft_run: false,
        servers: Some(servers),
        workers: Workers::new(vec![Box::new(|| {}), Box::new(|| {}), Box::new(as_user)]),
        open: Vec::new(),
        random: Random(weft_test_random::seed()),
        told: VecDeque::new(),
        steps: 0,
    };
    world.work();
    world.open.clear();
    drop(mounts);
}

#[test]
fn a_mount_and_a_program_under_weft_run_by_turns_are_like_one_local_directory() {
    let name = "a_mount_and_a_program_under_weft_run_by_turns_are_like_one_local_directory";
    if let Ok(places) = std::env::var(PLACES) {
        return under_weft_run(&places);
    }
    let cluster = Cluster::start(2);
    weft_tests::preload_library();
    let (local, mount) = (temporary_dir(), cluster.mount());
    let places = [local.path(), mount.path(), Path::new("/weft")].map(|path| path.display().to_string());
    let mut command = cluster.command(&["run", "--url", cluster.url(), "--"]);
    command.env("WEFT_KEY", fs::read_to_string(cluster.key_file()).expect("weft up wrote it").trim());
    command.env(PLACES, places.join(":")).env(weft_test_random::SEED, weft_test_random::seed().to_string());
    command.arg(std::env::current_exe().expect("a test knows its own program"));
    let output = command.args(["--exact", name, "--nocapture"]).output().expect("weft can be run");
    expect_success("weft run", &output);
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
}

/// What the test of this name does there. (Mappings are copies under `weft run`.)
fn under_weft_run(places: &str) {
    let mut places = places.split(':').map(|path| everybodys(Path::new(path)));
    let mut next = || places.next().expect("three places");
    let mut world = World {
        local: next(),
        places: [next(), next()],
        is_under_weft_run: true,
        servers: None,
        workers: Workers::new(vec![Box::new(|| {}), Box::new(|| {}), Box::new(|| {})]),
        open: Vec::new(),
        random: Random(weft_test_random::seed()),
        told: VecDeque::new(),
        steps: 0,
    };
    world.work();
}
