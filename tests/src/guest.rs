//! Jobs in guests that have RDMA: tests/guest/guest.sh boots them, emulated, with this host's files as their root.
//!
//! ```no_run
//! use weft_tests::guest::{self, Job};
//! let job = Job::new("hello", "/bin/echo", &["hello"]).env("LANG", "C");
//! for outcome in guest::run(&[job]) {
//!     println!("{}: {}", outcome.name, outcome.passed);
//! }
//! ```
//!
//! All jobs of one call run one after the other in one guest (a boot takes seconds). A job may not provoke a receiver that is not
//! ready, as no part of Weft may, unless it says so.

use crate::{end_with_parent, temporary_dir};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The address of a guest that is alone, and of the server of a pair.
pub const SERVER: &str = "10.0.0.1";
/// The same as IPv6.
pub const SERVER_6: &str = "fd00::1";
/// The address of a pair's client.
pub const CLIENT: &str = "10.0.0.2";

/// Time that a job has, if it does not say so.
const JOB_SECONDS: u32 = 180;
/// Time for a boot, besides the jobs' own.
const BOOT_SECONDS: u32 = 60;
/// Status of a job that has provoked a receiver that is not ready.
const STARVED: &str = "98";

/// What a job runs.
#[derive(Debug, Clone)]
pub enum Program {
    /// A program of this host.
    At(PathBuf),
    /// A program of tests, built when it is needed: of a package's library (`None`), or of one of its tests.
    Tests(&'static str, Option<&'static str>),
}

impl From<&str> for Program {
    fn from(path: &str) -> Program {
        Program::At(path.into())
    }
}

impl Program {
    fn path(&self) -> PathBuf {
        match self {
            Program::At(path) => path.clone(),
            Program::Tests(package, test) => test_program(package, *test),
        }
    }
}

/// A program that runs in a guest as root.
#[derive(Debug, Clone)]
pub struct Job {
    name: String,
    program: Program,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    seconds: u32,
    may_starve: bool,
    is_slow: bool,
    uses_weft: bool,
}

impl Job {
    /// A job with a name of its own, of letters, digits and dashes.
    pub fn new(name: &str, program: impl Into<Program>, arguments: &[&str]) -> Job {
        Job {
            name: name.to_string(),
            program: program.into(),
            arguments: arguments.iter().map(|argument| argument.to_string()).collect(),
            environment: Vec::new(),
            seconds: JOB_SECONDS,
            may_starve: false,
            is_slow: false,
            uses_weft: false,
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds to its environment.
    pub fn env(mut self, name: &str, value: &str) -> Job {
        self.environment.push((name.to_string(), value.to_string()));
        self
    }

    /// How long it may take.
    pub fn seconds(mut self, seconds: u32) -> Job {
        self.seconds = seconds;
        self
    }

    /// It may find receivers that are not ready.
    pub fn may_starve(mut self) -> Job {
        self.may_starve = true;
        self
    }

    /// It takes more than a minute, and is left out unless it is asked for.
    pub fn slow(mut self) -> Job {
        self.is_slow = true;
        self
    }

    /// Whether it takes more than a minute.
    pub fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// It runs the `weft` program.
    pub fn uses_weft(mut self) -> Job {
        self.uses_weft = true;
        self
    }

    /// A line of a job script.
    fn line(&self) -> String {
        let mut line = format!("job {} {} {} env", self.name, self.seconds, u8::from(self.may_starve));
        for (name, value) in &self.environment {
            let _ = write!(line, " {}", quoted(&format!("{name}={value}")));
        }
        if self.uses_weft {
            let _ = write!(line, " {}", quoted(&format!("WEFT_BIN={}", crate::weft_bin().display())));
        }
        let _ = write!(line, " {}", quoted(&self.program.path().display().to_string()));
        for argument in &self.arguments {
            let _ = write!(line, " {}", quoted(argument));
        }
        line
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// How a job ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The job's name.
    pub name: String,
    /// Whether it ended well.
    pub passed: bool,
    /// What it said, and why it failed.
    pub output: String,
}

/// What a job script begins with: how a job is run, and what it leaves in the shared directory.
const PRELUDE: &str = r#"
starved() { cat /sys/class/infiniband/*/ports/*/hw_counters/{send,rcvd}_rnr_err 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }'; }
job() {
    local name=$1 seconds=$2 may_starve=$3 before status=0
    shift 3
    before=$(starved)
    timeout -k 5 "$seconds" "$@" > "/share/$name.out" 2>&1 < /dev/null || status=$?
    [ $status != 124 ] || echo "it did not end in $seconds s" >> "/share/$name.out"
    if [ $may_starve = 0 ] && [ $status = 0 ] && [ "$(starved)" != "$before" ]; then
        echo "a receiver was not ready: $before before, $(starved) after" >> "/share/$name.out"
        status=98
    fi
    [ $status = 0 ] || grep . /sys/class/infiniband/*/ports/*/hw_counters/* >> "/share/$name.out" 2>/dev/null
    echo $status > "/share/$name.done"
}
"#;

fn script(jobs: &[Job]) -> String {
    let lines: Vec<_> = jobs.iter().map(Job::line).collect();
    format!("{PRELUDE}{}\n", lines.join("\n"))
}

/// Runs jobs in one guest.
pub fn run(jobs: &[Job]) -> Vec<Outcome> {
    let share = temporary_dir();
    let path = share.path().join("solo.script");
    let said = match std::fs::write(&path, script(jobs)) {
        Ok(()) => boot(share.path(), jobs, &["run".to_string()], &[path]),
        Err(error) => error.to_string(),
    };
    outcomes(share.path(), jobs, &said)
}

/// Runs servers' jobs in one guest, and clients' jobs in another on the same link, where `loss_percent` of all packets are lost.
/// The outcomes are in that order. Each job waits itself for what it needs of the other guest; the servers' last job has to
/// end when the clients' have.
pub fn run_pair(loss_percent: u32, servers: &[Job], clients: &[Job]) -> Vec<Outcome> {
    let share = temporary_dir();
    let all = [servers, clients].concat();
    let paths = ["server", "client"].map(|name| share.path().join(format!("{name}.script")));
    let written =
        std::fs::write(&paths[0], script(servers)).and_then(|()| std::fs::write(&paths[1], script(clients)));
    let said = match written {
        Ok(()) => {
            let command = ["pair".to_string(), "--loss".to_string(), loss_percent.to_string()];
            boot(share.path(), &all, &command, &paths)
        }
        Err(error) => error.to_string(),
    };
    outcomes(share.path(), &all, &said)
}

/// Has everything that guests need.
///
/// # Errors
/// What is missing.
pub fn prepare() -> Result<(), String> {
    let output = guest_program().arg("prepare").output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

fn guest_program() -> Command {
    let mut command = Command::new("bash");
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/guest/guest.sh")).stdin(Stdio::null());
    end_with_parent(&mut command);
    command
}

/// Returns what the guests said, besides their jobs.
fn boot(share: &Path, jobs: &[Job], command: &[String], scripts: &[PathBuf]) -> String {
    let seconds = BOOT_SECONDS + jobs.iter().map(|job| job.seconds + 5).sum::<u32>();
    let mut guest = guest_program();
    guest.args(command).arg("--share").arg(share).arg("--seconds").arg(seconds.to_string()).args(scripts);
    match guest.output() {
        Ok(output) => {
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat()
        }
        Err(error) => format!("guest.sh cannot be run: {error}"),
    }
}

fn outcomes(share: &Path, jobs: &[Job], said: &str) -> Vec<Outcome> {
    let outcome = |job: &Job| {
        let read = |end: &str| std::fs::read(share.join(format!("{}.{end}", job.name)));
        let mut output =
            read("out").map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let status = read("done").map(|bytes| String::from_utf8_lossy(&bytes).trim().to_string());
        match status.as_deref() {
            Ok("0" | STARVED) => {}
            Ok(status) => {
                let _ = writeln!(output, "it ended with status {status}");
            }
            Err(_) => {
                let _ = writeln!(output, "the guest ended before it did:\n{said}");
            }
        }
        Outcome { name: job.name.clone(), passed: status.is_ok_and(|status| status == "0"), output }
    };
    jobs.iter().map(outcome).collect()
}

/// A program of tests, built as the running one is: of a package's library (`None`), or of one of its tests. Each is asked for once.
pub fn test_program(package: &'static str, test: Option<&'static str>) -> PathBuf {
    type Built = BTreeMap<(&'static str, Option<&'static str>), PathBuf>;
    static BUILT: Mutex<Built> = Mutex::new(Built::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.entry((package, test)).or_insert_with(|| build(package, test)).clone()
}

fn build(package: &str, test: Option<&str>) -> PathBuf {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["test", "--no-run", "--quiet", "--message-format=json", "--package", package]);
    match test {
        Some(test) => build.args(["--test", test]),
        None => build.arg("--lib"),
    };
    build.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
    if crate::target_dir().ends_with("release") {
        build.arg("--release");
    }
    let output = build.stderr(Stdio::inherit()).output().expect("cargo can be run");
    assert!(output.status.success(), "the tests of {package} cannot be built");
    let messages = String::from_utf8(output.stdout).expect("cargo says text");
    let program = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        // A package's programs are built with its tests.
        .filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    program.unwrap_or_else(|| panic!("{package} has no such tests"))
}
