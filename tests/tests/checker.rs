//! Several processes and clients at random operations on the same files, every byte compared with a model.
//!
//! ```text
//!   WEFT_CHECK_S=3600 cargo test -p weft-tests --test checker       for an hour, with new seeds
//!   WEFT_TEST_SEED=123 cargo test -p weft-tests --test checker           with the operations of a run
//!
//!              mount A        mount B        library, TCP   library, shared memory   mount A
//!   round 0    regions 0 5…   regions 1 6…   …              …                        …
//!              own0           own1           own2           own3                     own4
//!              ───── all have closed ───────────────────────────────────────────────────────────────────
//!   round 1    other regions, another's own file; what it finds must be what the owner before has left
//! ```
//!
//! Operations: reads, writes, lists of pieces, fallocate in all modes, copies, shared and private mappings with and without msync,
//! data and holes, appends, truncations, fsync, reopening. `tests/src/bin/weft-check.rs` does them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use weft_tests::check::{REGION_BYTES, REGIONS, SHARED, own_name};
use weft_tests::{Cluster, end_with_parent, target_dir};

/// How long it works unless told otherwise.
const WORK_TIME: Duration = Duration::from_secs(12);
/// Rounds with one seed, on one cluster.
const ROUNDS: u64 = 40;

struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    fn start(models: &Path, index: usize, of: usize, seed: u64, way: &[String]) -> Process {
        let mut command = Command::new(target_dir().join("weft-check"));
        command.args([index.to_string(), of.to_string(), seed.to_string()]);
        command.arg(models).args(way);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        end_with_parent(&mut command);
        let mut child = command.spawn().expect("weft-check is built with the tests");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Process { child, to, from: BufReader::new(from) }
    }

    fn begin(&mut self, round: u64) {
        writeln!(self.to, "{round}").expect("it takes the next round");
    }

    /// What it said on standard error is what went wrong.
    fn end(&mut self, round: u64) {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("its standard output");
        assert_eq!(line.trim(), round.to_string(), "a process failed in round {round}");
    }
}

fn run(seed: u64, until: Instant) -> u64 {
    let cluster = Cluster::start(3);
    let (first, second) = (cluster.mount(), cluster.mount());
    let models = cluster.scratch("models");
    let on_mount = |mount: &weft_tests::Mount| vec!["mount".to_string(), mount.path().display().to_string()];
    let library = |transport: &str| {
        let url = format!("{}?transport={transport}", cluster.url());
        vec!["library".to_string(), url, cluster.key_file().display().to_string()]
    };
    let ways = [on_mount(&first), on_mount(&second), library("tcp"), library("shm"), on_mount(&first)];

    let shared_bytes = REGIONS * REGION_BYTES;
    for (dir, name, bytes) in std::iter::once((SHARED.to_string(), shared_bytes))
        .chain((0..ways.len() as u64).map(|index| (own_name(index), 0)))
        .flat_map(|(name, bytes)| [(first.path(), name.clone(), bytes), (&models, name, bytes)])
    {
        let file = fs::File::create(dir.join(name)).expect("a new file");
        file.set_len(bytes).expect("a size");
    }
    let mut processes: Vec<Process> =
        (0..ways.len()).map(|index| Process::start(&models, index, ways.len(), seed, &ways[index])).collect();
    let mut rounds = 0;
    while rounds < ROUNDS && (rounds == 0 || Instant::now() < until) {
        processes.iter_mut().for_each(|process| process.begin(rounds));
        processes.iter_mut().for_each(|process| process.end(rounds));
        rounds += 1;
    }
    for Process { mut child, to, .. } in processes {
        drop(to);
        assert!(child.wait().expect("a child").success());
    }
    for name in std::iter::once(SHARED.to_string()).chain((0..ways.len() as u64).map(own_name)) {
        let (found, model) = (fs::read(second.join(&name)), fs::read(models.join(&name)));
        assert!(found.expect("a file") == model.expect("a model"), "{name} at the end");
    }
    rounds
}

#[test]
fn processes_on_mounts_and_by_the_library_leave_each_other_what_they_wrote() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + number("WEFT_CHECK_S").map_or(WORK_TIME, Duration::from_secs);
    for seed in weft_test_random::seeds() {
        let rounds = run(seed, until);
        eprintln!("{rounds} rounds with seed {seed}");
        if Instant::now() >= until {
            return;
        }
    }
}
