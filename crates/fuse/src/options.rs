//! What a mount can be told, and how it can fail.

use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use weft_client::{ConnectOptions, Url};
use weft_gateway::Identities;
use weft_log::Filter;

/// Which files the kernel's page cache keeps. Opens for writing only never use it, nor do opens for appending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// All but large files ([`MountOptions::stream_bytes_min`]) that are opened only for reading and are no programs. These
    /// are read ahead by the mount when they are read in order, and kept for no longer than attributes.
    #[default]
    Auto,
    /// All.
    Always,
    /// None, and nothing is read ahead: every read asks the servers.
    Never,
}

/// Whether the kernel's requests come through an io_uring: Linux 6.14 has that, where
/// `/sys/module/fuse/parameters/enable_uring` is Y.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RingUse {
    /// Where the kernel offers it.
    #[default]
    Auto,
    /// Never: through the FUSE device.
    Never,
    /// Always, or there is no mount.
    Require,
}

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The cluster, and the directory in it that becomes the root of the mount.
    pub url: Url,
    /// Where; an existing directory.
    pub dir: PathBuf,
    /// How to connect.
    pub connect: ConnectOptions,
    /// Refuse changes.
    pub read_only: bool,
    /// Let other users in. Users other than root need `user_allow_other` in `/etc/fuse.conf` for it.
    pub allow_other: bool,
    /// Let set-id bits and file capabilities of programs work. Only root can have it.
    pub set_id: bool,
    /// Let device files work. Only root can have it.
    pub devices: bool,
    /// Refuse to run programs.
    pub no_exec: bool,
    /// Who the users of this machine are in the file system.
    pub identities: Identities,
    /// Which files the kernel's page cache keeps.
    pub cache: CacheMode,
    /// From this size on a file is large for [`CacheMode::Auto`].
    pub stream_bytes_min: u64,
    /// How long the kernel caches attributes at most. What others change it is told to forget, whatever this is; so a shorter
    /// time than the servers' lease only makes it ask more often.
    pub attr_timeout: Duration,
    /// How long the kernel caches at most where a name leads, or that it is missing; otherwise as `attr_timeout`.
    pub entry_timeout: Duration,
    /// Whether the kernel's requests come through an io_uring.
    pub ring: RingUse,
    /// Threads that take requests from the kernel; with an io_uring, of each processor.
    pub threads: usize,
    /// Read-ahead and asynchronous requests that the kernel may have under way.
    pub max_background: u16,
    /// Go on in the background: the call returns when the mount is live, in a process whose child serves it.
    pub background: bool,
    /// Write to the end of this file instead of standard output and standard error; opened anew at SIGHUP. A mount in the
    /// background without one writes to the system's log.
    pub log_file: Option<PathBuf>,
    /// `HOST:PORT` at which metrics are served to Prometheus over HTTP.
    pub metrics: Option<String>,
    /// What is logged.
    pub levels: Filter,
    /// From how many milliseconds on a system call is slow, and logged with the servers that it waited for; 0: never.
    pub slow_ms: u64,
    /// Have a process of its own watch the serving process, and unmount when it dies.
    pub auto_unmount: bool,
}

impl MountOptions {
    /// Timeout of attributes and names where nothing else is said: that of the servers' leases.
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_millis(weft_wire::limits::LEASE_MS);
    /// From how many milliseconds on a system call is slow where nothing else is said.
    pub const SLOW_MS_DEFAULT: u64 = 1000;
    /// Threads where nothing else is said.
    pub const THREADS_DEFAULT: usize = 4;
    /// Requests in the background where nothing else is said.
    pub const MAX_BACKGROUND_DEFAULT: u16 = 64;

    /// A file that would take more than a 32nd of this machine's memory is large where nothing else is said: smaller ones are
    /// likely to be read again, or in small steps, and the page cache is better at both.
    pub fn stream_bytes_default() -> u64 {
        const SHARE: u64 = 32;
        const LEAST: u64 = 64 << 20;
        // SAFETY: asks for two numbers of the system.
        let (pages, page_bytes) =
            unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        (pages.max(0) as u64 * page_bytes.max(0) as u64 / SHARE).max(LEAST)
    }

    /// The usual options for mounting `url` on `dir`; other users are let in when root mounts.
    pub fn new(url: Url, dir: impl Into<PathBuf>) -> MountOptions {
        // SAFETY: geteuid has no preconditions and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        MountOptions {
            url,
            dir: dir.into(),
            connect: ConnectOptions::default(),
            read_only: false,
            set_id: false,
            devices: false,
            no_exec: false,
            identities: Identities::default(),
            allow_other: is_root,
            cache: CacheMode::default(),
            stream_bytes_min: Self::stream_bytes_default(),
            attr_timeout: Self::TIMEOUT_DEFAULT,
            entry_timeout: Self::TIMEOUT_DEFAULT,
            ring: RingUse::default(),
            threads: Self::THREADS_DEFAULT,
            max_background: Self::MAX_BACKGROUND_DEFAULT,
            background: false,
            log_file: None,
            metrics: None,
            levels: Filter::default(),
            slow_ms: Self::SLOW_MS_DEFAULT,
            auto_unmount: false,
        }
    }
}

/// Why a mount or an unmount did not come about.
#[derive(Debug, Error)]
pub enum MountError {
    /// The cluster, or the directory in it, could not be reached.
    #[error("cannot mount {url}: {source}")]
    Cluster {
        /// What was to be mounted.
        url: String,
        /// Why not.
        source: weft_client::Error,
    },
    /// The mount point cannot be used.
    #[error("cannot mount on {}: {reason}", dir.display())]
    MountPoint {
        /// The mount point.
        dir: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// The kernel or `fusermount3` refused.
    #[error("the kernel refused the mount on {}: {source}; is /dev/fuse there and allowed, or fusermount3 installed?", dir.display())]
    Kernel {
        /// The mount point.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The log file cannot be written.
    #[error("cannot write the log {}: {source}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The address for metrics cannot be listened at.
    #[error("cannot serve metrics at {address}: {source}")]
    Metrics {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The mount ended with an error.
    #[error("the mount on {} ended: {source}", dir.display())]
    Session {
        /// The mount point.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Going into the background failed, or the background process told why it could not mount.
    #[error("{0}")]
    Background(String),
    /// Nothing of Weft is mounted there.
    #[error("{} is not a Weft mount; `weft umount` takes the directory given to `weft mount`", .0.display())]
    NotMounted(PathBuf),
    /// Somebody uses the mount.
    #[error("{} is busy{}; end them, or take it away with --lazy, or with --force also from those that wait for servers",
        dir.display(), used_by(.users))]
    Busy {
        /// The mount point.
        dir: PathBuf,
        /// Processes that use it ("bash (712)"), as far as they can be seen.
        users: Vec<String>,
    },
    /// Unmounting failed otherwise.
    #[error("cannot unmount {}: {reason}", dir.display())]
    Unmount {
        /// The mount point.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
}

fn used_by(users: &[String]) -> String {
    if users.is_empty() { String::new() } else { format!(", used by {}", users.join(", ")) }
}
