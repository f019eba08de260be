//! What needs RDMA, in guests that have it (tests/guest/guest.sh). Each job of a guest is a test here.
//!
//! ```text
//!   test bindings ... ok                    on this host, against the headers of rdma-core
//!   test verbs ... ok (35 tests)       ┐
//!   test transport ... ok (80 tests)   │
//!   test whole-random ... ok           │     the whole system, servers and clients as processes
//!   test verbs-flood ... ok            ├─   one boot: `alone`
//!   test verbs-removal ... ok          ┘
//!   test verbs-serves ... ok           ┐
//!   test verbs-asks ... ok             │
//!   test whole-serves ... ok           │
//!   test whole-asks ... ok             ┴─   two guests on a link that loses packets: `pair`
//! ```
//!
//! A new job is a line in [`alone`] (a program with arguments, environment and time), or one for each side in [`pair`]. Programs are built here and
//! run in guests as they are; [`test_program`] finds those of other packages' tests, `weft_tests::weft_bin` the one under test.
//! Only adapters of software are there: tests of what they do not do are in the unit tests of who relies on it.

use std::process::{Command, ExitCode};
use std::time::Instant;
use weft_tests::guest::{self, Job, Outcome, SERVER, SERVER_6, test_program};
use weft_tests::weft_bin;

/// Percent of the packets between two guests that are lost.
const LOSS_PERCENT: u32 = 1;

/// Jobs of one guest, in order; the last one takes its adapter away.
fn alone() -> Vec<Job> {
    let verbs = test_program("weft-verbs", Some("real"));
    let (flood, removal) = ("a_flood_harms_only_its_own_connection", "an_adapter_may_go_and_come_back");
    let not_here = [flood, removal, "loses_its_adapter", "hosts_talk", "a_host_that_vanishes_is_noticed"];
    let skips: Vec<_> = not_here.iter().flat_map(|name| ["--skip", name]).collect();
    let only = |name| ["--ignored", "--exact", "--nocapture", name];
    let transport = test_program("weft-transport", Some("conformance"));
    let one_by_one = ["--ignored", "--test-threads", "1"];
    vec![
        Job::new("verbs", &verbs, &[&one_by_one, &skips[..]].concat())
            .env("WEFT_TEST_RDMA", SERVER)
            .env("WEFT_TEST_RDMA_6", SERVER_6),
        Job::new("transport", transport, &one_by_one).env("WEFT_TEST_RDMA", SERVER).seconds(600),
        whole("random"),
        whole("faults"),
        whole("memory"),
        Job::new("verbs-flood", &verbs, &only(flood)).env("WEFT_TEST_RDMA_FLOOD", SERVER).may_starve(),
        Job::new("verbs-removal", &verbs, &only(removal))
            .env("WEFT_TEST_RDMA", SERVER)
            .env("WEFT_TEST_INTERFACE", "eth0")
            .may_starve(),
    ]
}

/// The tests of one file here that are for hosts with an adapter: servers and clients as processes, over RDMA.
fn whole(file: &str) -> Job {
    let weft = weft_bin().display().to_string();
    // Other tests than those for two hosts.
    let arguments = ["--ignored", "--test-threads", "1", "--skip", "another"];
    Job::new(&format!("whole-{file}"), test_program("weft-tests", Some(file)), &arguments)
        .env("WEFT_TEST_HOST", SERVER)
        .env("WEFT_BIN", &weft)
        .seconds(300)
}

/// Servers' and clients' jobs of two guests. Those at the same place in both run at the same time.
fn pair() -> (Vec<Job>, Vec<Job>) {
    let verbs = test_program("weft-verbs", Some("real"));
    let only = |name| ["--ignored", "--exact", "--nocapture", name];
    let serves = |name, test| Job::new(name, &verbs, &only(test)).env("WEFT_TEST_RDMA_SERVES", SERVER);
    let asks = |name, part, port| {
        let peer = format!("{SERVER}:{port}");
        Job::new(name, &verbs, &only("plays_the_peer"))
            .env("WEFT_TEST_PART", part)
            .env("WEFT_TEST_PEER", &peer)
    };
    let many = |job: Job| job.env("WEFT_TEST_PINGS", "500").seconds(180);
    let random = test_program("weft-tests", Some("random"));
    let side = |name, test| {
        Job::new(name, &random, &only(test))
            .env("WEFT_TEST_SHARE", "/share")
            .env("WEFT_TEST_HOST", SERVER)
            .env("WEFT_BIN", &weft_bin().display().to_string())
            .seconds(300)
    };
    let servers = vec![
        many(serves("verbs-serves", "hosts_talk")),
        side("whole-serves", "a_host_serves_another_one"),
        serves("verbs-misses", "a_host_that_vanishes_is_noticed"),
    ];
    let clients = vec![
        many(asks("verbs-asks", "ping", 7171)),
        side("whole-asks", "random_operations_on_another_host_match_a_local_directory"),
        asks("verbs-vanishes", "vanish", 7172),
    ];
    (servers, clients)
}

/// The bindings are compared here, where a compiler is fast.
fn bindings() -> Outcome {
    let output = Command::new(test_program("weft-verbs", None))
        .args(["--ignored", "bindings_are_as_in_the_headers"])
        .output()
        .expect("a test's program can be run");
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    Outcome { name: "bindings".to_string(), passed: output.status.success(), output: said }
}

/// What is asked for on the command line, as other tests are.
struct Asked {
    filter: Option<String>,
    list: bool,
    /// Tests that are ignored; there are none here.
    ignored: bool,
}

impl Asked {
    fn read() -> Asked {
        let mut asked = Asked { filter: None, list: false, ignored: false };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => asked.list = true,
                "--ignored" => asked.ignored = true,
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
}

/// Tests so far.
struct Tally {
    passed: usize,
    failed: Vec<Outcome>,
    start: Instant,
}

impl Tally {
    fn add(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            let verdict = if outcome.passed { "ok" } else { "FAILED" };
            println!("test {} ... {verdict}{}", outcome.name, inner_tests(&outcome.output));
            if outcome.passed { self.passed += 1 } else { self.failed.push(outcome) }
        }
    }

    fn finish(self, names: usize) -> ExitCode {
        for outcome in &self.failed {
            // Indented: results of tests within a job are not results of this program.
            let output = outcome.output.replace('\n', "\n    ");
            println!("\n---- {} ----\n    {output}", outcome.name);
        }
        let (passed, failed) = (self.passed, self.failed.len());
        let (verdict, seconds) = (if failed == 0 { "ok" } else { "FAILED" }, self.start.elapsed().as_secs());
        let rest = names - passed - failed;
        println!(
            "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {rest} filtered out; \
                  finished in {seconds} s\n"
        );
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// How many tests a job consisted of, if it was a program of tests.
fn inner_tests(output: &str) -> String {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: "));
    let passed = |result: &str| result.split_whitespace().nth(1)?.parse::<usize>().ok();
    match results.filter_map(passed).sum::<usize>() {
        0 | 1 => String::new(),
        count => format!(" ({count} tests)"),
    }
}

fn main() -> ExitCode {
    let asked = Asked::read();
    let (alone, (servers, clients)) = (alone(), pair());
    let jobs = alone.iter().chain(&servers).chain(&clients);
    let names: Vec<_> = std::iter::once("bindings").chain(jobs.map(Job::name)).collect();
    if asked.list {
        names.iter().for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", names.len());
    let mut tally = Tally { passed: 0, failed: Vec::new(), start: Instant::now() };
    if asked.ignored {
        return tally.finish(names.len());
    }
    if let Err(output) = guest::prepare() {
        tally.add(vec![Outcome { name: "guests-can-be-made".to_string(), passed: false, output }]);
        return tally.finish(names.len());
    }
    if asked.wants("bindings") {
        tally.add(vec![bindings()]);
    }
    let wanted: Vec<_> = alone.iter().filter(|job| asked.wants(job.name())).cloned().collect();
    if !wanted.is_empty() {
        tally.add(guest::run(&wanted));
    }
    if servers.iter().chain(&clients).any(|job| asked.wants(job.name())) {
        tally.add(guest::run_pair(LOSS_PERCENT, &servers, &clients));
    }
    tally.finish(names.len())
}
