//! `weft mount`

use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;
use weft_cli_common::place::WeftPath;
use weft_cli_common::session::{ConnectArgs, Session};
use weft_cli_common::size::parse_bytes;
use weft_client::{ConnectOptions, Url};
use weft_fuse::{CacheMode, IdMap, Identities, MountOptions, RingUse, Squash};
use weft_log::Filter;

/// Mounts a file system, or a directory of it, so that any program can use it. Needs no root where fusermount3 (package fuse3)
/// is installed.
///
/// Returns when the mount is there and goes on in the background until `weft umount DIR`; with --foreground it stays. SIGTERM and
/// SIGINT unmount. SIGHUP has it open the file of --log-file anew, and does nothing without one; it never ends a mount.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Through mount(8) and /etc/fstab, where `weft` is linked as /sbin/mount.weft (make install does it):
  mount -t weft 10.0.0.1:7400:/data /mnt -o noexec,cache=never
  10.0.0.1:7400:/data  /mnt  weft  noexec,key=/etc/weft/client.key,_netdev,nofail  0 0"
)]
pub struct Args {
    /// What to mount: weft://HOST:PORT/ or a directory below it.
    url: String,
    /// Where to; an empty directory.
    dir: PathBuf,
    /// Stay in the foreground.
    #[arg(long)]
    foreground: bool,
    /// Refuse all changes.
    #[arg(long)]
    read_only: bool,
    /// More options, separated by commas: those of this command without their dashes (cache=never), and words as other file
    /// systems have them: ro, rw, noexec, suid, dev, direct, root_squash, all_squash, noatime, _netdev and the like.
    #[arg(short = 'o', value_name = "WORDS")]
    #[allow(dead_code, reason = "for --help; mount_words takes the words apart before the line is parsed")]
    words: Option<String>,
    /// Let set-id bits and file capabilities of programs work; only root can.
    #[arg(long)]
    suid: bool,
    /// Let device files work; only root can.
    #[arg(long)]
    dev: bool,
    /// Refuse to run programs.
    #[arg(long)]
    noexec: bool,
    /// Do requests of root, or of everybody, as the anonymous user.
    #[arg(long, value_name = "WHOM", default_value = "none")]
    squash: SquashArg,
    /// The anonymous user's number in the file system.
    #[arg(long, value_name = "UID", default_value_t = Identities::NOBODY)]
    anonuid: u32,
    /// The anonymous user's group.
    #[arg(long, value_name = "GID", default_value_t = Identities::NOBODY)]
    anongid: u32,
    /// Users that have other numbers in the file system than here: 1000:5001+1001:5002 are HERE:THERE.
    #[arg(long, value_name = "MAP")]
    map_users: Option<IdMap>,
    /// The same for groups.
    #[arg(long, value_name = "MAP")]
    map_groups: Option<IdMap>,
    /// Let other users of this machine in; their own permissions apply. Root does it anyway; others need user_allow_other in
    /// /etc/fuse.conf.
    #[arg(long)]
    allow_other: bool,
    /// Which files the kernel's page cache keeps.
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    cache: Cache,
    /// From which size on --cache auto takes a file as large [default: a 32nd of this machine's memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    stream_from: Option<u64>,
    /// How long attributes may be remembered, in milliseconds; 0: not at all. What others change is forgotten at once whatever
    /// this is; a shorter time only asks the servers more often.
    #[arg(long, value_name = "MS", default_value_t = MountOptions::TIMEOUT_DEFAULT.as_millis() as u64)]
    attr_timeout_ms: u64,
    /// How long names, and names that are missing, may be remembered, in milliseconds; 0: not at all. What others change is
    /// forgotten at once. (Before Linux 6.16 the kernel remembers no names.)
    #[arg(long, value_name = "MS", default_value_t = MountOptions::TIMEOUT_DEFAULT.as_millis() as u64)]
    entry_timeout_ms: u64,
    /// How long one system call waits in all for servers that do not answer, in milliseconds, before it gets an error (ETIMEDOUT). A
    /// server that was waited for so long is dead: what needs it fails at once (EHOSTDOWN) until it is back, which is noticed within
    /// 2 seconds.
    #[arg(long, value_name = "MS", default_value_t = ConnectOptions::default().retry_timeout_ms)]
    retry_timeout_ms: u64,
    /// Wait for ever for servers that do not answer. The opposite is the word soft, the default.
    #[arg(long)]
    hard: bool,
    /// Whether the kernel's requests come through an io_uring: fewer system calls. It needs Linux 6.14, and Y in
    /// /sys/module/fuse/parameters/enable_uring, where root can write it.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    ring: Ring,
    /// Threads that serve the kernel; with an io_uring, of each processor.
    #[arg(long, value_name = "COUNT", default_value_t = MountOptions::THREADS_DEFAULT)]
    threads: usize,
    /// Requests that the kernel may have under way in the background, such as read-ahead.
    #[arg(long, value_name = "COUNT", default_value_t = MountOptions::MAX_BACKGROUND_DEFAULT)]
    max_background: u16,
    /// Write what is wrong to the end of this file; without it, a mount in the background writes to the system's log (syslog).
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// What to log: a level (off, error, warn, info, debug, trace), and others for some targets, as in info,weft_client=debug; see
    /// `weft help logs`.
    #[arg(long, value_name = "LEVELS", env = "WEFT_LOG", default_value_t)]
    log_level: Filter,
    /// From how many milliseconds on a system call is slow: it is logged with the servers that it waited for; 0: never.
    #[arg(long, value_name = "MS", default_value_t = MountOptions::SLOW_MS_DEFAULT)]
    slow_ms: u64,
    /// Unmount when the serving process dies, however it dies.
    #[arg(long)]
    auto_unmount: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Cache {
    /// All but large files (--stream-from) that are opened only for reading (programs apart): these are read ahead past it.
    Auto,
    /// All.
    Always,
    /// None, and nothing is read ahead: every read sees what others wrote at once.
    Never,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum SquashArg {
    /// Nobody.
    None,
    /// Root.
    Root,
    /// Everybody; the servers alone check permissions then.
    All,
}

impl From<SquashArg> for Squash {
    fn from(squash: SquashArg) -> Squash {
        match squash {
            SquashArg::None => Squash::None,
            SquashArg::Root => Squash::Root,
            SquashArg::All => Squash::All,
        }
    }
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Ring {
    /// Where the kernel offers it.
    Auto,
    /// Never.
    Off,
    /// Always, or there is no mount.
    Require,
}

impl From<Ring> for RingUse {
    fn from(ring: Ring) -> RingUse {
        match ring {
            Ring::Auto => RingUse::Auto,
            Ring::Off => RingUse::Never,
            Ring::Require => RingUse::Require,
        }
    }
}

impl From<Cache> for CacheMode {
    fn from(cache: Cache) -> CacheMode {
        match cache {
            Cache::Auto => CacheMode::Auto,
            Cache::Always => CacheMode::Always,
            Cache::Never => CacheMode::Never,
        }
    }
}

/// Mounts.
pub fn run(args: Args) -> Result<()> {
    let place = WeftPath::from_argument(&args.url)?;
    let session = Session::new(&args.connect);
    let mut options = MountOptions::new(Url::parse(&place.display())?, &args.dir);
    options.connect =
        ConnectOptions { retry_timeout_ms: args.retry_timeout_ms, hard: args.hard, ..session.options()? };
    options.background = !args.foreground;
    options.read_only = args.read_only;
    options.allow_other |= args.allow_other;
    options.set_id = args.suid;
    options.devices = args.dev;
    options.no_exec = args.noexec;
    options.identities = Identities {
        squash: args.squash.into(),
        anonymous: (args.anonuid, args.anongid),
        users: args.map_users.unwrap_or_default(),
        groups: args.map_groups.unwrap_or_default(),
    };
    options.cache = args.cache.into();
    options.stream_bytes_min = args.stream_from.unwrap_or(options.stream_bytes_min);
    options.attr_timeout = Duration::from_millis(args.attr_timeout_ms);
    options.entry_timeout = Duration::from_millis(args.entry_timeout_ms);
    options.ring = args.ring.into();
    options.threads = args.threads;
    options.max_background = args.max_background;
    options.log_file = args.log_file;
    options.levels = args.log_level;
    options.slow_ms = args.slow_ms;
    options.auto_unmount = args.auto_unmount;
    Ok(weft_fuse::mount(options)?)
}
