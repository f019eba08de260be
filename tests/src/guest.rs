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

mod programs;

use crate::{end_with_parent, temporary_dir};
use programs::{Places, places};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use programs::{Program, library_tests};

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
    uses: Vec<(&'static str, Program)>,
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
            uses: Vec::new(),
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

    /// It runs the `weft` program, which `$WEFT_BIN` names, of this host or of the guest.
    pub fn uses_weft(self) -> Job {
        let program = std::env::var_os("WEFT_BIN");
        self.uses(
            "WEFT_BIN",
            program.map_or(Program::Built("weft-cli", "weft"), |path| Program::At(path.into())),
        )
    }

    /// It runs another program, which `variable` of its environment names.
    pub fn uses(mut self, variable: &'static str, program: Program) -> Job {
        self.uses.push((variable, program));
        self
    }

    /// All programs that it runs.
    fn programs(&self) -> impl Iterator<Item = &Program> {
        self.uses.iter().map(|(_, program)| program).chain([&self.program])
    }

    /// A line of a job script.
    fn line(&self, places: &Places) -> String {
        let mut line = format!("job {} {} {} env", self.name, self.seconds, u8::from(self.may_starve));
        for (name, value) in &self.environment {
            let _ = write!(line, " {}", quoted(&format!("{name}={value}")));
        }
        for (variable, program) in &self.uses {
            let _ = write!(line, " {}", quoted(&format!("{variable}={}", places[program].display())));
        }
        let _ = write!(line, " {}", quoted(&places[&self.program].display().to_string()));
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
    /// How long it took, if it ended.
    pub seconds: Option<u32>,
    /// What it said, and why it failed.
    pub output: String,
}

/// What a job script begins with: how a job is run, and what it leaves in the shared directory.
const PRELUDE: &str = r#"
starved() { cat /sys/class/infiniband/*/ports/*/hw_counters/{send,rcvd}_rnr_err 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }'; }
job() {
    local name=$1 seconds=$2 may_starve=$3 before status=0 start=$SECONDS
    shift 3
    before=$(starved)
    timeout -k 5 "$seconds" "$@" > "/share/$name.out" 2>&1 < /dev/null || status=$?
    [ $status != 124 ] || echo "it did not end in $seconds s" >> "/share/$name.out"
    if [ $may_starve = 0 ] && [ $status = 0 ] && [ "$(starved)" != "$before" ]; then
        echo "a receiver was not ready: $before before, $(starved) after" >> "/share/$name.out"
        status=98
    fi
    [ $status = 0 ] || grep . /sys/class/infiniband/*/ports/*/hw_counters/* >> "/share/$name.out" 2>/dev/null
    echo $status $((SECONDS - start)) > "/share/$name.done"
}
"#;

fn script(jobs: &[Job], places: &Places) -> String {
    let lines: Vec<_> = jobs.iter().map(|job| job.line(places)).collect();
    format!("{PRELUDE}{}\n", lines.join("\n"))
}

/// Runs jobs in one guest.
pub fn run(jobs: &[Job]) -> Vec<Outcome> {
    let share = temporary_dir();
    let path = share.path().join("solo.script");
    let places = places(jobs.iter().flat_map(Job::programs));
    let said = match std::fs::write(&path, script(jobs, &places)) {
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
    let places = places(all.iter().flat_map(Job::programs));
    let written = std::fs::write(&paths[0], script(servers, &places))
        .and_then(|()| std::fs::write(&paths[1], script(clients, &places)));
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
        let done = read("done").map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let (status, seconds) = done.trim().split_once(' ').unzip();
        match status {
            Some("0" | STARVED) => {}
            Some(status) => {
                let _ = writeln!(output, "it ended with status {status}");
            }
            None => {
                let _ = writeln!(output, "the guest ended before it did:\n{said}");
            }
        }
        let seconds = seconds.and_then(|seconds| seconds.parse().ok());
        Outcome { name: job.name.clone(), passed: status == Some("0"), seconds, output }
    };
    jobs.iter().map(outcome).collect()
}
