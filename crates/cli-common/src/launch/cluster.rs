//! A running cluster: the processes that this process has started or supervises.

use super::directory::log_of;
use super::options::{Lifetime, StartOptions};
use super::process::{ProcessHandle, ProcessId, end_clients_first};
use super::readiness::{Patience, READY_POLL, READY_TIMEOUT, Readiness};
use super::run_state::RunState;
use super::signals;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft_server::config::Member;
use weft_server::{CLIENT_KEY_FILE, ClusterConfig};

/// Time for servers to end before they are killed.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running cluster, or the servers of it that this process supervises.
#[derive(Debug)]
pub struct LocalCluster {
    /// The servers that run.
    pub state: RunState,
    /// What has changed.
    pub news: News,
    pub(super) config: ClusterConfig,
    pub(super) dir: PathBuf,
    /// The program that servers run, by its path: a newer version at the same path runs after a restart.
    pub(super) program: PathBuf,
    pub(super) lifetime: Lifetime,
    pub(super) watched: Vec<Watched>,
}

/// What `weft up` has done.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct News {
    /// Servers that were started.
    pub started: Vec<String>,
    /// Servers that ran before and are now supervised.
    pub adopted: Vec<String>,
    /// Servers that ran before and stay unsupervised.
    pub left: Vec<String>,
}

/// A server process that this process waits for.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) name: String,
    pub(super) since: Instant,
    pub(super) handle: ProcessHandle,
    /// Set if this process started it.
    pub(super) child: Option<Child>,
}

impl LocalCluster {
    pub(super) fn new(
        dir: &Path,
        config: ClusterConfig,
        mut state: RunState,
        options: &StartOptions,
    ) -> Result<LocalCluster> {
        let log = dir.join("log");
        std::fs::create_dir_all(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let program = match &options.program {
            Some(program) => program.clone(),
            None => {
                std::env::current_exe().context("cannot find the path of this program, which servers run")?
            }
        };
        state.supervisor = ProcessId::of(std::process::id()).filter(|_| options.supervised);
        Ok(LocalCluster {
            state,
            news: News::default(),
            config,
            dir: dir.to_owned(),
            program,
            lifetime: options.lifetime,
            watched: Vec::new(),
        })
    }

    /// Starts these servers, and stops them again if they do not come up.
    pub(super) fn begin(
        &mut self,
        names: Vec<String>,
        pause: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<()> {
        let begun = (|| {
            for name in &names {
                let process = self.spawn(name)?;
                let log = log_of(&self.dir, name);
                self.state.want(self.config.member(name)?, log).process = process;
            }
            self.state.save(&self.dir)?;
            self.wait_until_ready(&names, pause)
        })();
        match begun {
            Ok(()) => self.news.started = names,
            Err(_) => self.stop(),
        }
        begun
    }

    /// Starts a server and watches it.
    pub(super) fn spawn(&mut self, name: &str) -> Result<ProcessId> {
        let log = log_of(&self.dir, name);
        let child = spawn_server(&self.program, &self.config.path, name, &log, self.lifetime)?;
        let ended = || format!("server {name} ended at once");
        let process = ProcessId::of(child.id()).with_context(ended)?;
        // Not by its identity: a process that has already ended is watched too, so that its end is reported.
        let handle = ProcessHandle::open(child.id()).with_context(ended)?;
        let (name, since) = (name.to_string(), Instant::now());
        self.watched.push(Watched { name, since, handle, child: Some(child) });
        Ok(process)
    }

    /// Waits until these servers answer.
    fn wait_until_ready(&mut self, names: &[String], pause: &mut dyn FnMut(Duration) -> bool) -> Result<()> {
        let config = self.config.clone();
        let readiness = Readiness::new(&config, &self.dir)?;
        let mut patience = Patience::new();
        loop {
            if let Some(ended) = self.take_ended(|name| names.contains(&name.to_string())).pop() {
                bail!("server {} {}", ended.name, ended.text);
            }
            let Some(reason) = readiness.lacks(names) else { return Ok(()) };
            if !patience.lasts(&self.dir, names, &reason) {
                let (waited, dir) = (READY_TIMEOUT.as_secs(), self.dir.display());
                bail!("the cluster is not ready after {waited} s: {reason}; see {dir}/log");
            }
            if !pause(READY_POLL) {
                bail!("interrupted while the servers were starting");
            }
        }
    }

    /// Takes the servers that ended since the last call, of those for which `meant` holds.
    pub(super) fn take_ended(&mut self, meant: impl Fn(&str) -> bool) -> Vec<Ended> {
        let (mut ended, mut watched) = (Vec::new(), Vec::new());
        for mut server in self.watched.drain(..) {
            if !meant(&server.name) || !server.handle.wait(Duration::ZERO) {
                watched.push(server);
                continue;
            }
            let status = server.child.as_mut().and_then(|child| child.wait().ok());
            let how = status
                .map_or("its exit status is unknown, since another process started it".into(), |how| {
                    how.to_string()
                });
            let log = log_of(&self.dir, &server.name);
            let text = format!("has ended ({how}); {} says: {}", log.display(), last_line(&log));
            let (pid, ran) = (server.handle.pid(), server.since.elapsed());
            ended.push(Ended { name: server.name, pid, status, ran, text });
        }
        self.watched = watched;
        ended
    }

    /// Stops all servers that this process started, and forgets them.
    pub fn stop(&mut self) {
        let own: Vec<_> = self.watched.iter().filter(|server| server.child.is_some()).collect();
        let handles: Vec<_> = own.iter().map(|server| &server.handle).collect();
        let is_client = |at: usize| matches!(self.config.member(&own[at].name), Ok(Member::Gateway(_)));
        end_clients_first(&handles, is_client, STOP_TIMEOUT);
        for server in &mut self.watched {
            if let Some(child) = &mut server.child {
                // It has ended; this only frees its number.
                let _ = child.wait();
            }
        }
        self.watched.clear();
        self.leave();
    }

    /// Records that this process no longer supervises.
    pub(super) fn leave(&mut self) {
        self.state.supervisor = None;
        self.state.servers.retain(|server| server.process.handle().is_some());
        let noted = if self.state.servers.is_empty() { None } else { Some(self.state.save(&self.dir)) };
        // An outdated state is recognised: processes in it are identified by their start time too.
        if !matches!(noted, Some(Ok(()))) {
            RunState::remove(&self.dir);
        }
    }

    /// This host's key file.
    pub fn client_key_path(&self) -> PathBuf {
        self.dir.join(CLIENT_KEY_FILE)
    }
}

/// A server that ended.
pub(super) struct Ended {
    pub(super) name: String,
    /// Its process id.
    pub(super) pid: u32,
    /// Set if this process started it.
    pub(super) status: Option<std::process::ExitStatus>,
    pub(super) ran: Duration,
    /// "has ended (…)", and what its log says.
    pub(super) text: String,
}

fn spawn_server(program: &Path, config: &Path, name: &str, log: &Path, lifetime: Lifetime) -> Result<Child> {
    let open = OpenOptions::new().create(true).append(true).open(log);
    let log_file = open.with_context(|| format!("cannot write the log {}", log.display()))?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(config).arg("--name").arg(name).arg("--log-file").arg(log);
    command.stdin(Stdio::null()).stdout(log_file.try_clone()?).stderr(log_file);
    match lifetime {
        Lifetime::WithParent => end_with_parent(&mut command),
        Lifetime::Detached => {
            // SAFETY: between fork and exec only async-signal-safe system calls are made.
            unsafe {
                command.pre_exec(|| {
                    libc::setsid();
                    signals::unblock_all()
                });
            }
        }
    }
    command.spawn().with_context(|| format!("cannot start {} for server {name}", program.display()))
}

/// Makes the process of `command` get SIGTERM when the calling thread ends for any reason. Ctrl-C in the
/// terminal does not reach it: the parent stops its children in order.
pub fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe system calls are made.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            if libc::getppid() as u32 != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            signals::unblock_all()
        });
    }
}

/// The last line of a log that is not empty.
fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim().to_string()
}
