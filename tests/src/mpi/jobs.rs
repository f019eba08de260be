//! Compiling a program of `tests/mpi`, running it as a job, and saying where it hangs.

use super::{Mpi, is_own};
use crate::{Cluster, Served, expect_success, target_dir};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Marks the processes of one job, wherever its launcher starts them.
const MARK: &str = "WEFT_MPI_TEST_JOB";
/// A program itself says where it is, and ends, this long before its job is ended.
const GRACE: Duration = Duration::from_secs(15);
/// What a job may take unless its test says otherwise.
const USUAL_LIMIT: Duration = Duration::from_secs(150);
/// The processes of a job that has ended may need so long to go.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// `target/mpi`.
pub(super) fn cache_dir() -> PathBuf {
    let target = target_dir();
    target.parent().unwrap_or(&target).join("mpi")
}

/// `tests/mpi`.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi")
}

/// One of these at a time: a job takes more processors than there are.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn changed(path: &Path) -> SystemTime {
    path.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The newest of all sources: programs share headers.
fn newest_source() -> SystemTime {
    let entries = std::fs::read_dir(sources()).expect("tests/mpi is there").flatten();
    entries.map(|entry| changed(&entry.path())).max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The program with this name in `tests/mpi`, compiled for this MPI. `fortran1` to `fortran3` are the bindings of Fortran.
pub(super) fn compiled(mpi: Mpi, name: &str) -> PathBuf {
    // Tests of one process want the same program.
    static COMPILER: Mutex<()> = Mutex::new(());
    let _turn = COMPILER.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = cache_dir().join("programs").join(mpi.name());
    std::fs::create_dir_all(&dir).expect("a directory below target");
    let program = dir.join(name);
    if program.exists() && changed(&program) > newest_source() {
        return program;
    }
    let fresh = dir.join(format!("{name}.{}", std::process::id()));
    let mut command = match name.strip_prefix("fortran") {
        Some(binding) => fortran_compiler(mpi, binding),
        None => {
            let mut command = Command::new(mpi.compiler());
            command.args(["-O1", "-g", "-Wall", "-Wextra", "-Wno-stringop-overflow"]);
            command.arg(sources().join(name).with_extension("c"));
            command
        }
    };
    command.arg("-o").arg(&fresh).args(["-lpthread", "-ldl"]).current_dir(&dir);
    match name {
        "pnetcdf" => drop(command.arg("-lpnetcdf")),
        "netcdf" => {
            // Debian keeps the headers of its builds for several MPIs apart.
            let libraries = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
            command.arg(format!("-I{libraries}/netcdf/mpi/include")).arg("-lnetcdf_mpi");
        }
        _ => {}
    }
    expect_success(&format!("compiling {name} for {}", mpi.name()), &command.output().expect("a compiler"));
    std::fs::rename(&fresh, &program).expect("a new program takes the old one's name");
    program
}

fn fortran_compiler(mpi: Mpi, binding: &str) -> Command {
    let modules = cache_dir().join("programs").join(mpi.name()).join(format!("modules{binding}"));
    std::fs::create_dir_all(&modules).expect("a directory below target");
    let object = modules.join("c.o");
    let mut of_c = Command::new(mpi.compiler());
    of_c.arg("-c").arg(sources().join("fortran.c")).arg("-o").arg(&object);
    expect_success("compiling fortran.c", &of_c.output().expect("a compiler"));
    let mut command = Command::new(mpi.fortran().expect("an MPI that has Fortran"));
    command.args(["-O1", "-g", "-cpp", "-ffree-line-length-none", "-fallow-argument-mismatch"]);
    command.arg(format!("-DBINDING={binding}")).arg("-J").arg(&modules);
    command.arg(sources().join("fortran.F90")).arg(object);
    command
}

/// Where the file of a job is.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// In a directory of this machine, by the MPI's own MPI-IO.
    Local(&'a Path),
    /// In Weft, by `libweft_mpi.so`.
    Weft(&'a Cluster),
    /// The same, where the servers are single processes.
    Served(&'a Served),
    /// In a directory below a mount of this cluster, by `libweft_mpi.so`.
    Below(&'a Cluster, &'a Path),
}

/// A program that is run by several processes.
pub struct Job {
    command: Command,
    what: String,
    limit: Duration,
    mark: String,
    _scratch: tempfile::TempDir,
    output: PathBuf,
}

/// What came of a job.
pub struct Ended {
    what: String,
    /// Everything that it printed.
    pub said: String,
    /// `None`: it was ended because it hung.
    pub status: Option<ExitStatus>,
    /// How long it took.
    pub took: Duration,
}

/// What follows is a program whose MPI-IO goes to this cluster; the launcher and its helpers are left alone.
fn on_weft(command: &mut Command, url: &str, key_file: &Path) {
    let mut library = OsString::from("LD_PRELOAD=");
    library.push(super::mpi_library());
    command.env("WEFT_URL", url).env("WEFT_KEY_FILE", key_file).arg("env").arg(library);
}

impl Job {
    /// A program of `tests/mpi` by four processes, on a file of its own.
    pub fn new(mpi: Mpi, program: &str, place: &Place) -> Job {
        let path = compiled(mpi, program);
        Job::of(mpi, program, &[path.into_os_string()], place, 4, Some(program))
    }

    /// `words` by so many processes. `file` says what the name of the job's file begins with, which is added as an argument.
    pub fn of(
        mpi: Mpi,
        program: &str,
        words: &[OsString],
        place: &Place,
        processes: usize,
        file: Option<&str>,
    ) -> Job {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let scratch = crate::temporary_dir();
        let mut command = mpi.launcher(processes);
        let mut left_out = mpi.known_bugs_elsewhere().to_string();
        let name = match place {
            Place::Local(dir) => {
                left_out = format!("{left_out} {}", mpi.known_bugs(program));
                command.env("WEFT_MPI_TEST_LENIENT", "1");
                dir.join("f").display().to_string()
            }
            Place::Weft(cluster) => {
                on_weft(&mut command, cluster.url(), &cluster.key_file());
                format!("weft:/{}-{}", mpi.name(), file.unwrap_or("f"))
            }
            Place::Served(cluster) => {
                on_weft(&mut command, &cluster.url(), &cluster.key_file());
                format!("weft:/{}-{}", mpi.name(), file.unwrap_or("f"))
            }
            Place::Below(cluster, dir) => {
                on_weft(&mut command, cluster.url(), &cluster.key_file());
                dir.join("f").display().to_string()
            }
        };
        command.args(words);
        if file.is_some() {
            command.arg(name);
        }
        command.env("WEFT_MPI_TEST_SKIP", left_out).env("WEFT_MPI_TEST_LOCAL", scratch.path());
        command.env("HOME", scratch.path()).env(MARK, &mark).env("LC_ALL", "C").env("TMPDIR", scratch.path());
        let output = scratch.path().join("output");
        let what = format!("{} with {}", program, mpi.name());
        let mut job = Job { command, what, limit: USUAL_LIMIT, mark, _scratch: scratch, output };
        job.limit(USUAL_LIMIT);
        job
    }

    /// More arguments for the program.
    pub fn arguments<'a>(&mut self, arguments: impl IntoIterator<Item = &'a str>) -> &mut Job {
        self.command.args(arguments);
        self
    }

    /// More environment for the program.
    pub fn env(&mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> &mut Job {
        self.command.env(name, value);
        self
    }

    /// Longer than that it hangs.
    pub fn limit(&mut self, limit: Duration) -> &mut Job {
        self.limit = limit;
        let own = limit.saturating_sub(GRACE).as_secs().max(5);
        self.command.env("WEFT_MPI_TEST_SECONDS", own.to_string());
        self
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Ended {
        let _alone = alone();
        let child = self.spawn();
        self.wait(child)
    }

    /// Runs it; `meanwhile` is called once it has printed `text`.
    pub fn run_and(mut self, text: &str, meanwhile: impl FnOnce()) -> Ended {
        let _alone = alone();
        let child = self.spawn();
        let start = Instant::now();
        while !self.said().contains(text) && start.elapsed() < self.limit {
            std::thread::sleep(Duration::from_millis(20));
        }
        meanwhile();
        self.wait(child)
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    fn spawn(&mut self) -> Child {
        let output = File::create(&self.output).expect("a file in a new directory");
        self.command.stdin(Stdio::null()).stdout(output.try_clone().expect("a descriptor")).stderr(output);
        self.command.process_group(0);
        self.command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.what))
    }

    fn wait(self, mut child: Child) -> Ended {
        let start = Instant::now();
        let mut status = None;
        while status.is_none() && start.elapsed() < self.limit {
            status = child.try_wait().expect("a child can be waited for");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut hangs = String::new();
        if status.is_none() {
            hangs = format!("hangs after {} s\n{}", self.limit.as_secs(), where_all_are(&self.mark));
        }
        let end = Instant::now() + END_TIMEOUT;
        while status.is_some() && !processes_of(&self.mark).is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        for pid in processes_of(&self.mark) {
            crate::signal(pid, libc::SIGKILL);
        }
        let _ = child.wait();
        Ended { said: self.said() + &hangs, what: self.what.clone(), status, took: start.elapsed() }
    }
}

impl Ended {
    /// Why the job is no success, if it is none: it did not end well, or did not say "ok" as the last word.
    pub fn complaint(&self) -> Option<String> {
        let is_good = self.status.is_some_and(|status| status.success());
        if is_good && self.said.lines().any(|line| line == "ok") {
            return None;
        }
        let status = self.status.map_or_else(|| "ended by the test".to_string(), |status| status.to_string());
        Some(format!("{}: {status} after {:.1} s\n{}", self.what, self.took.as_secs_f64(), self.said))
    }

    /// Panics unless the job was a success.
    #[track_caller]
    pub fn expect_ok(&self) {
        if let Some(complaint) = self.complaint() {
            panic!("{complaint}");
        }
    }
}

/// All processes of a job.
fn processes_of(mark: &str) -> Vec<u32> {
    let line = format!("{MARK}={mark}");
    let is_meant = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == line.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_meant).collect()
}

/// What each process of a job is doing, as far as the kernel tells.
fn where_all_are(mark: &str) -> String {
    let mut text = String::new();
    let read = |path: String| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    for pid in processes_of(mark) {
        let command = read(format!("/proc/{pid}/cmdline")).replace('\0', " ");
        let _ = writeln!(text, "process {pid}: {command}");
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks.map(|task| task.path()) {
            let state = read(format!("{}/stat", task.display()));
            let state = state.rsplit(')').next().unwrap_or_default().trim().chars().next().unwrap_or('?');
            let call = read(format!("{}/syscall", task.display()));
            let place = read(format!("{}/wchan", task.display()));
            let _ = writeln!(text, "  thread {}: {state} in {place}, call {}", task.display(), call.trim());
        }
    }
    text
}

impl<'a> Place<'a> {
    /// `$WEFT_TEST_MPI_OWN` decides.
    pub fn of_mode(cluster: &'a Option<Cluster>, dir: &'a Path) -> Place<'a> {
        debug_assert_eq!(cluster.is_none(), is_own());
        cluster.as_ref().map_or(Place::Local(dir), Place::Weft)
    }
}
