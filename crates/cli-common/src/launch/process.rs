//! Identities of processes that stay unique when a process number is reused.
//!
//! A process number alone does not identify a process: it is reused after the process has ended. The number
//! and the start time together do, within one boot. A [`ProcessHandle`] is a pidfd: a signal through it never
//! reaches another process.

use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime};

/// Identifies a process of this boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// Stands for no process.
    pub const NONE: ProcessId = ProcessId { pid: 0, start_ticks: 0 };

    /// The process that now has this number.
    pub fn of(pid: u32) -> Option<ProcessId> {
        Some(ProcessId { pid, start_ticks: start_ticks(pid)? })
    }

    /// A handle of the process if it runs. The handle is opened first, and the identity checked after that.
    pub fn handle(&self) -> Option<ProcessHandle> {
        let handle = ProcessHandle::open(self.pid)?;
        let is_same = start_ticks(self.pid) == Some(self.start_ticks);
        (is_same && !handle.wait(Duration::ZERO)).then_some(handle)
    }

    /// When it started.
    pub fn started(&self) -> Option<SystemTime> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let boot_s: u64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        // SAFETY: sysconf only returns a number.
        let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?.max(1);
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(boot_s + self.start_ticks / ticks_per_s))
    }
}

/// A descriptor of a process. It never refers to another process, even when the number is reused.
#[derive(Debug)]
pub struct ProcessHandle {
    fd: OwnedFd,
    pid: u32,
}

impl ProcessHandle {
    /// Opens a handle of the process with this number, if there is one.
    pub fn open(pid: u32) -> Option<ProcessHandle> {
        // SAFETY: the call takes two integers; a result that is not negative is a new descriptor, which
        // nobody else owns.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
            (fd >= 0).then(|| ProcessHandle { fd: OwnedFd::from_raw_fd(fd as i32), pid })
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal. It is not an error if the process has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and no information is passed.
        let sent =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), signal, no_info, 0) };
        match io::Error::last_os_error() {
            _ if sent == 0 => Ok(()),
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        }
    }

    /// Waits until the process has ended. Returns false after `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut entry = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is passed and it lives through the call.
        unsafe { libc::poll(&mut entry, 1, timeout.as_millis() as i32) > 0 }
    }

    /// Name of the user that the process runs as.
    pub fn user(&self) -> String {
        let owner = std::fs::metadata(format!("/proc/{}", self.pid));
        owner.map_or_else(|_| "another user".into(), |owner| crate::output::user_name(owner.uid()))
    }
}

impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The outcome of ending a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It ended on SIGTERM.
    InOrder,
    /// It had to be killed.
    ByForce,
    /// It is still running, for this reason.
    Failed(String),
}

/// Sends SIGTERM to all, and kills those that still run after `timeout`. Returns the outcomes in the same
/// order.
pub fn end_all(handles: &[&ProcessHandle], timeout: Duration) -> Vec<Ending> {
    let asked: Vec<_> = handles.iter().map(|handle| handle.signal(libc::SIGTERM)).collect();
    let deadline = Instant::now() + timeout;
    let mut endings = Vec::new();
    for (handle, asked) in handles.iter().zip(asked) {
        let left = deadline.saturating_duration_since(Instant::now());
        endings.push(match asked {
            Err(error) => Ending::Failed(format!("it runs as {}: {error}", handle.user())),
            Ok(()) if handle.wait(left) => Ending::InOrder,
            Ok(()) => match handle.signal(libc::SIGKILL) {
                Ok(()) if handle.wait(timeout) => Ending::ByForce,
                Ok(()) => Ending::Failed("it does not end even when it is killed".into()),
                Err(error) => Ending::Failed(error.to_string()),
            },
        });
    }
    endings
}

/// Ends clients of a cluster before its servers, which they still need: those for which `is_client` holds, then
/// the others, each as [`end_all`] does. Returns the outcomes in the order of `handles`.
pub fn end_clients_first(
    handles: &[&ProcessHandle],
    is_client: impl Fn(usize) -> bool,
    timeout: Duration,
) -> Vec<Ending> {
    let mut endings = vec![None; handles.len()];
    for stage in [true, false] {
        let meant: Vec<_> = (0..handles.len()).filter(|at| is_client(*at) == stage).collect();
        let ended = end_all(&meant.iter().map(|at| handles[*at]).collect::<Vec<_>>(), timeout);
        for (at, ending) in meant.into_iter().zip(ended) {
            endings[at] = Some(ending);
        }
    }
    endings.into_iter().flatten().collect()
}

/// Field 22 of /proc/PID/stat (proc(5)).
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    start_ticks_of(&stat)
}

/// Field 2, the program's name, is in parentheses and may contain anything. Fields are counted after it.
fn start_ticks_of(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_start_time_is_found_behind_any_program_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4 1 0 0 0 5 6 0 0 20 0 1 0 4242 1000 99";
        assert_eq!(start_ticks_of(stat), Some(4242));
        assert_eq!(start_ticks_of("nothing"), None);
    }

    #[test]
    fn clients_end_before_servers() {
        let spawn = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        // The client ends in order only as long as the server is there.
        let mut server = spawn("exec sleep 60");
        let pid = server.id();
        let mut client = spawn(&format!(
            "trap 'sleep 0.2; kill -0 {pid} && exit 0; exit 1' TERM; while :; do sleep 0.01; done"
        ));
        std::thread::sleep(Duration::from_millis(200));
        let handles = [pid, client.id()].map(|pid| ProcessHandle::open(pid).unwrap());
        // A child that has ended and was not waited for would still be found.
        let waited = std::thread::spawn(move || server.wait().unwrap());
        let handles: Vec<_> = handles.iter().collect();
        let endings = end_clients_first(&handles, |at| at == 1, Duration::from_secs(5));
        assert_eq!(endings, [Ending::InOrder, Ending::InOrder]);
        assert!(client.wait().unwrap().success());
        waited.join().unwrap();
    }

    #[test]
    fn a_stranger_with_the_same_number_is_left_alone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let own = ProcessId::of(child.id()).unwrap();
        let stranger = ProcessId { start_ticks: own.start_ticks + 1, ..own };
        assert!(stranger.handle().is_none());
        assert!(ProcessId::NONE.handle().is_none());
        let age = own.started().unwrap().elapsed().unwrap_or_default();
        assert!(age < Duration::from_secs(3600), "{age:?}");
        let handle = own.handle().unwrap();
        assert_eq!(end_all(&[&handle], Duration::from_secs(5)), [Ending::InOrder]);
        assert!(own.handle().is_none());
        child.wait().unwrap();
    }
}
