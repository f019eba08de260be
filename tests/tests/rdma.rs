//! What needs RDMA or a kernel's NFS client, in guests that have them (tests/guest/guest.sh). Each job of a guest is a test here.
//!
//! ```text
//!   test bindings ... ok                    on this host, against the headers of rdma-core
//!   test verbs ... ok (35 tests)       ┐
//!   test transport ... ok (90 tests)   │
//!   test whole-random ... ok           │     the whole system, servers and clients as processes
//!   test model ... ok                  │     requests of all shapes against a model
//!   test nfs-kernel ... ok             │     slow: the kernel's NFS client on a gateway, tests/guest/nfs-kernel.sh
//!   test nfs-posix ... ok              │     slow: the rules of POSIX on such a mount
//!   test nfs-faults ... ok             │     slow: servers are killed, and the network is cut, under load of such a mount
//!   test nfs-locks ... ok              │     slow: its locks against a mount's, tests/guest/nfs-locks.sh
//!   test nfs-rdma ... ok               │     slow: the same client over RDMA, tests/guest/nfs-rdma.sh
//!   test nfs-rdma-client ... ok        │     slow: `weft nfs` over RDMA on two servers, tests/guest/nfs-rdma-client.sh
//!   test nfs-rdma-designs ... ok       │     slow: `weft nfs` on a gateway of both designs, tests/guest/nfs-rdma-designs.sh
//!   test tools ... ok (8 tests)        │     slow: tests that are there for all transports, over RDMA
//!   test verbs-flood ... ok            ├─   one boot: `alone`
//!   test verbs-removal ... ok          ┘
//!   test nfs-pair-serves ... ok        ┐     slow: a mount of Weft's in one guest, and one by NFS in another, count in one file
//!   test nfs-pair-asks ... ok          │
//!   test suite-serves ... ok           │
//!   test suite-asks ... ok (85 tests)  │     slow: the transport's suite, asked of another guest
//!   test verbs-serves ... ok           │
//!   test verbs-asks ... ok             │
//!   test whole-serves ... ok           │
//!   test whole-asks ... ok             ┴─   two guests on a link that loses packets: `pair`
//! ```
//!
//! A new job is a line in [`alone`] (a program with arguments, environment and time), or a pair of them in [`pairs`]. Programs are built here, when
//! they are needed, and run in guests as they are; [`Program::Tests`] are those of other packages' tests.
//! Only adapters of software are there: tests of what they do not do are in the unit tests of who relies on it.
//!
//! Jobs that take more than a minute under emulation are ignored; they run with `--include-ignored`, `--ignored`, or by their whole name. The others
//! took 434 s together, measured on two processors that had other work as well.

use std::process::{Command, ExitCode};
use std::time::Instant;
use weft_tests::guest::{self, Job, Outcome, Program, SERVER, SERVER_6};
use weft_tests::suite::{NOT_IN_NFS, by_nfs};

/// Percent of the packets between two guests that are lost.
const LOSS_PERCENT: u32 = 1;

const VERBS: Program = Program::Tests("weft-verbs", "real");
const CONFORMANCE: Program = Program::Tests("weft-transport", "conformance");

/// Jobs of one guest, in order; the last one takes its adapter away.
fn alone() -> Vec<Job> {
    let (flood, removal) = ("a_flood_harms_only_its_own_connection", "an_adapter_may_go_and_come_back");
    let not_here = [flood, removal, "loses_its_adapter", "hosts_talk", "a_host_that_vanishes_is_noticed"];
    let skips: Vec<_> = not_here.iter().flat_map(|name| ["--skip", name]).collect();
    let only = |name| ["--ignored", "--exact", "--nocapture", name];
    let one_by_one = ["--ignored", "--test-threads", "1"];
    vec![
        Job::new("verbs", VERBS, &[&one_by_one, &skips[..]].concat())
            .env("WEFT_TEST_RDMA", SERVER)
            .env("WEFT_TEST_RDMA_6", SERVER_6),
        Job::new("transport", CONFORMANCE, &[&one_by_one[..], &["--skip", "another_host"]].concat())
            .env("WEFT_TEST_RDMA", SERVER)
            .seconds(900),
        whole("random"),
        whole("faults"),
        whole("memory"),
        model("model").env("PROPTEST_CASES", "10"),
        nfs("nfs-kernel", "nfs-kernel.sh", &[]).seconds(400),
        nfs_posix(),
        nfs("nfs-faults", "nfs-faults.sh", &[]).seconds(600),
        nfs("nfs-locks", "nfs-locks.sh", &[]).seconds(400),
        nfs("nfs-rdma", "nfs-rdma.sh", &[]).env("WEFT_TEST_HOST", SERVER).seconds(400),
        nfs("nfs-rdma-client", "nfs-rdma-client.sh", &[]).seconds(900),
        nfs("nfs-rdma-designs", "nfs-rdma-designs.sh", &[]).env("WEFT_TEST_HOST", SERVER).seconds(900),
        model("model-all").slow(),
        black_box("mount", &["a_large_"]).slow(),
        black_box("tools", &["without_rdma_libraries", "nothing_needs_root", "measurements"]).slow(),
        black_box("cli", &["measurements", "servers_end_with_a_foreground_up"]).slow(),
        Job::new("verbs-flood", VERBS, &only(flood)).env("WEFT_TEST_RDMA_FLOOD", SERVER).may_starve(),
        Job::new("verbs-removal", VERBS, &only(removal))
            .env("WEFT_TEST_RDMA", SERVER)
            .env("WEFT_TEST_INTERFACE", "eth0")
            .may_starve(),
    ]
}

/// The tests of one file here that are for hosts with an adapter: servers and clients as processes, over RDMA.
fn whole(file: &'static str) -> Job {
    // Other tests than those for two hosts.
    let arguments = ["--ignored", "--test-threads", "1", "--skip", "another"];
    Job::new(&format!("whole-{file}"), Program::Tests("weft-tests", file), &arguments)
        .env("WEFT_TEST_HOST", SERVER)
        .uses_weft()
        .seconds(300)
}

/// All tests of one file here, whatever transport they are for usually, but what is about other transports, other users, or clusters on
/// the loopback, and what takes many minutes under emulation.
fn black_box(file: &'static str, not_here: &[&str]) -> Job {
    let skips = not_here.iter().flat_map(|name| ["--skip", name]);
    let arguments: Vec<_> = ["--include-ignored", "--test-threads", "1"].into_iter().chain(skips).collect();
    Job::new(file, Program::Tests("weft-tests", file), &arguments)
        .env("WEFT_TEST_HOST", SERVER)
        .env("WEFT_TRANSPORT", "rdma")
        .uses_weft()
        // What `weft bench` becomes, beside it.
        .uses("WEFT_BENCH", Program::Built("weft-bench", "weft-bench"))
        .seconds(1800)
}

/// A script of tests/guest that uses NFS.
fn nfs(name: &str, script: &str, arguments: &[&str]) -> Job {
    let script = format!("{}/guest/{script}", env!("CARGO_MANIFEST_DIR"));
    Job::new(name, "/bin/bash", &[&[script.as_str()], arguments].concat()).uses_weft().slow()
}

/// The rules of POSIX, but for what NFS and Linux's client of it do otherwise.
fn nfs_posix() -> Job {
    let exceptions =
        by_nfs().into_iter().flat_map(|(name, reason)| ["--except".into(), format!("{name}={reason}")]);
    let groups =
        NOT_IN_NFS.iter().flat_map(|(name, reason)| ["--without".into(), format!("{name}={reason}")]);
    let arguments: Vec<String> = exceptions.chain(groups).collect();
    // As few names and rounds as an emulated gateway makes in minutes.
    let arguments: Vec<_> =
        ["--verbose", "--fewer", "4"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    nfs("nfs-posix", "nfs-posix.sh", &arguments)
        .uses("WEFT_POSIX", Program::Built("weft-posix", "weft-posix"))
        .seconds(600)
}

/// Random requests of many shapes, each byte compared with a model of it.
fn model(name: &str) -> Job {
    let test = "every_byte_is_where_the_model_has_it_over_rdma";
    Job::new(name, Program::Tests("weft-capi", "model"), &["--ignored", "--exact", test])
        .env("WEFT_TEST_HOST", SERVER)
        .uses_weft()
        .seconds(600)
}

/// Jobs of two guests, a server's and a client's, which run at the same time.
fn pairs() -> Vec<(Job, Job)> {
    let only = |name| ["--ignored", "--exact", "--nocapture", name];
    let serves = |name, test| Job::new(name, VERBS, &only(test)).env("WEFT_TEST_RDMA_SERVES", SERVER);
    let asks = |name, part, port| {
        let peer = format!("{SERVER}:{port}");
        Job::new(name, VERBS, &only("plays_the_peer"))
            .env("WEFT_TEST_PART", part)
            .env("WEFT_TEST_PEER", &peer)
    };
    let many = |job: Job| job.env("WEFT_TEST_PINGS", "500").seconds(180);
    let side = |name, test| {
        Job::new(name, Program::Tests("weft-tests", "random"), &only(test))
            .env("WEFT_TEST_SHARE", "/share")
            .env("WEFT_TEST_HOST", SERVER)
            .uses_weft()
            .seconds(300)
    };
    let lend = |name, test| {
        let job = Job::new(name, CONFORMANCE, &only(test)).env("WEFT_TEST_RDMA", SERVER);
        job.env("WEFT_TEST_SHARE", "/share").seconds(240)
    };
    // Every test of the transport's suite but the one that says how soon the end of a server is noticed: what tells of it may be lost.
    let suite = |name, arguments: &[&str]| {
        let job = Job::new(name, CONFORMANCE, &[&["--ignored", "--test-threads", "1"], arguments].concat());
        job.env("WEFT_TEST_RDMA", SERVER)
            .env("WEFT_TEST_SHARE", "/share")
            .seconds(1800)
            .slow()
            // A job leaves this when it has ended.
            .env("WEFT_TEST_UNTIL", "suite-asks.done")
    };
    vec![
        (
            nfs("nfs-pair-serves", "nfs-pair.sh", &["serves"]).seconds(600),
            nfs("nfs-pair-asks", "nfs-pair.sh", &["asks"]).seconds(500),
        ),
        (
            suite("suite-serves", &["another_host::is_served_the_suite"]),
            suite("suite-asks", &["another_host_", "--skip", "vanishes_is_noticed"]),
        ),
        (
            lend("lend-serves", "another_host::is_served_and_lent_memory"),
            lend("lend-asks", "another_host::lends_memory"),
        ),
        (many(serves("verbs-serves", "hosts_talk")), many(asks("verbs-asks", "ping", 7171))),
        (
            side("whole-serves", "a_host_serves_another_one"),
            side("whole-asks", "random_operations_on_another_host_match_a_local_directory"),
        ),
        (serves("verbs-misses", "a_host_that_vanishes_is_noticed"), asks("verbs-vanishes", "vanish", 7172)),
    ]
}

/// The bindings are compared here, where a compiler is fast.
fn bindings() -> Outcome {
    let start = Instant::now();
    let output = Command::new(guest::library_tests("weft-verbs"))
        .args(["--ignored", "bindings_are_as_in_the_headers"])
        .output()
        .expect("a test's program can be run");
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    let (passed, seconds) = (output.status.success(), u32::try_from(start.elapsed().as_secs()).ok());
    Outcome { name: "bindings".to_string(), passed, seconds, output: said }
}

/// What is asked for on the command line, as other tests are.
struct Asked {
    filter: Option<String>,
    list: bool,
    /// Slow jobs, …
    ignored: bool,
    /// … and others.
    usual: bool,
}

impl Asked {
    fn read() -> Asked {
        let mut asked = Asked { filter: None, list: false, ignored: false, usual: true };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => asked.list = true,
                "--ignored" => (asked.ignored, asked.usual) = (true, false),
                "--include-ignored" => asked.ignored = true,
                "--skip" | "--test-threads" | "--color" | "--format" => drop(arguments.next()),
                flag if flag.starts_with('-') => {}
                _ => asked.filter = Some(argument),
            }
        }
        asked
    }

    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    /// What is done with a job.
    fn fate(&self, job: &Job) -> Fate {
        match (self.wants(job.name()), job.is_slow()) {
            (false, _) => Fate::LeftOut,
            (true, false) if self.usual => Fate::Run,
            (true, true) if self.ignored || self.filter.as_deref() == Some(job.name()) => Fate::Run,
            (true, false) => Fate::LeftOut,
            (true, true) => Fate::Ignored,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Run,
    Ignored,
    LeftOut,
}

/// Tests so far.
struct Tally {
    passed: usize,
    ignored: usize,
    failed: Vec<Outcome>,
    start: Instant,
}

impl Tally {
    fn add(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            let verdict = if outcome.passed { "ok" } else { "FAILED" };
            println!("test {} ... {verdict}{}", outcome.name, details(&outcome));
            if outcome.passed { self.passed += 1 } else { self.failed.push(outcome) }
        }
    }

    fn ignore(&mut self, job: &Job) {
        println!("test {} ... ignored, it takes more than a minute", job.name());
        self.ignored += 1;
    }

    fn finish(self, names: usize) -> ExitCode {
        for outcome in &self.failed {
            // Indented: results of tests within a job are not results of this program.
            let output = outcome.output.replace('\n', "\n    ");
            println!("\n---- {} ----\n    {output}", outcome.name);
        }
        let (passed, failed, ignored) = (self.passed, self.failed.len(), self.ignored);
        let (verdict, seconds) = (if failed == 0 { "ok" } else { "FAILED" }, self.start.elapsed().as_secs());
        let rest = names - passed - failed - ignored;
        println!(
            "\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; {rest} filtered out; \
                  finished in {seconds} s\n"
        );
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// How many tests a job consisted of, if it was a program of tests, and how long it took: ` (90 tests, 312 s)`.
fn details(outcome: &Outcome) -> String {
    let results = outcome.output.lines().filter_map(|line| line.strip_prefix("test result: "));
    let passed = |result: &str| result.split_whitespace().nth(1)?.parse::<usize>().ok();
    let tests = Some(results.filter_map(passed).sum::<usize>()).filter(|count| *count > 1);
    let all =
        [tests.map(|count| format!("{count} tests")), outcome.seconds.map(|seconds| format!("{seconds} s"))];
    let all: Vec<_> = all.into_iter().flatten().collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

fn main() -> ExitCode {
    let asked = Asked::read();
    let (alone, pairs) = (alone(), pairs());
    let jobs: Vec<&Job> =
        alone.iter().chain(pairs.iter().flat_map(|(server, client)| [server, client])).collect();
    let names: Vec<_> = std::iter::once("bindings").chain(jobs.iter().map(|job| job.name())).collect();
    if asked.list {
        names.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", names.len());
    let mut tally = Tally { passed: 0, ignored: 0, failed: Vec::new(), start: Instant::now() };
    // Of a pair neither side runs without the other.
    let runs_pair =
        |(server, client): &&(Job, Job)| [server, client].into_iter().any(|job| asked.fate(job) == Fate::Run);
    let alone: Vec<_> = alone.iter().filter(|job| asked.fate(job) == Fate::Run).cloned().collect();
    let (servers, clients): (Vec<_>, Vec<_>) = pairs.iter().filter(runs_pair).cloned().unzip();
    let is_run =
        |job: &&&Job| alone.iter().chain(&servers).chain(&clients).any(|run| run.name() == job.name());
    for job in jobs.iter().filter(|job| asked.fate(job) == Fate::Ignored && !is_run(job)) {
        tally.ignore(job);
    }
    let wants_bindings = asked.wants("bindings") && asked.usual;
    if !wants_bindings && alone.is_empty() && servers.is_empty() {
        return tally.finish(names.len());
    }
    // The headers come with what guests are made of.
    if let Err(output) = guest::prepare() {
        tally.add(vec![Outcome {
            name: "guests-can-be-made".to_string(),
            passed: false,
            seconds: None,
            output,
        }]);
        return tally.finish(names.len() + 1);
    }
    if wants_bindings {
        tally.add(vec![bindings()]);
    }
    if !alone.is_empty() {
        tally.add(guest::run(&alone));
    }
    if !servers.is_empty() {
        tally.add(guest::run_pair(LOSS_PERCENT, &servers, &clients));
    }
    tally.finish(names.len())
}
