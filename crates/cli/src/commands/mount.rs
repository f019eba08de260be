//! `weft mount`

use crate::load::MOUNT_PROGRAM;
use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::place::WeftPath;
use weft_cli_common::size::parse_bytes;
use weft_client::{ConnectOptions, Url};
use weft_fuse::{CacheMode, IdMap, Identities, MountOptions, RingUse, Squash};
use weft_log::Filter;

/// Mounts a file system, or a directory of it, for use by any program.
///
/// It needs no root if fusermount3 (package fuse3) is installed.
///
/// The command returns when the mount is ready. The mount runs in the background until `weft umount DIR`;
/// with --foreground it runs in the foreground. SIGTERM and SIGINT unmount it. SIGHUP reopens the file of
/// --log-file; it never ends a mount.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With mount(8) and /etc/fstab, if /sbin/mount.weft is a link to weft (`make install`):
  mount -t weft 10.0.0.1:7400:/data /mnt -o noexec,cache=never
  10.0.0.1:7400:/data  /mnt  weft  noexec,key=/etc/weft/client.key,_netdev,nofail  0 0")]
pub struct Args {
    /// The file system: weft://HOST:PORT/, or a directory below it.
    url: String,
    /// The mount point: an empty directory.
    dir: PathBuf,
    /// Stay in the foreground.
    #[arg(long)]
    foreground: bool,
    /// Refuse all changes.
    #[arg(long)]
    read_only: bool,
    /// Mount options, separated by commas: those of this command without their dashes (cache=never), and
    /// those that other file systems have: ro, rw, noexec, suid, dev, direct, root_squash, all_squash,
    /// noatime, _netdev and others.
    #[arg(short = 'o', value_name = "WORDS")]
    #[allow(dead_code, reason = "for --help; mount_words replaces the words before the line is parsed")]
    words: Option<String>,
    /// Honour set-id bits and file capabilities; for root only.
    #[arg(long)]
    suid: bool,
    /// Allow device files to be used; for root only.
    #[arg(long)]
    dev: bool,
    /// Do not allow programs on the mount to be executed.
    #[arg(long)]
    noexec: bool,
    /// Make the requests of root, or of everybody, as the anonymous user.
    #[arg(long, value_name = "WHOM", default_value = "none")]
    squash: SquashArg,
    /// The anonymous user's id in the file system.
    #[arg(long, value_name = "UID", default_value_t = Identities::NOBODY)]
    anonuid: u32,
    /// The anonymous user's group id in the file system.
    #[arg(long, value_name = "GID", default_value_t = Identities::NOBODY)]
    anongid: u32,
    /// Users whose id in the file system differs from their id here: 1000:5001+1001:5002 are HERE:THERE.
    #[arg(long, value_name = "MAP")]
    map_users: Option<IdMap>,
    /// The same for groups.
    #[arg(long, value_name = "MAP")]
    map_groups: Option<IdMap>,
    /// Let other users of this machine use the mount; their own permissions apply. This is the default for
    /// root; others need user_allow_other in /etc/fuse.conf.
    #[arg(long)]
    allow_other: bool,
    /// Which files are cached in the kernel's page cache.
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    cache: Cache,
    /// The size from which --cache auto treats a file as large [default: a 32nd of this machine's memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    stream_from: Option<u64>,
    /// How long the kernel may cache attributes, in milliseconds; 0: not at all. Changes by others invalidate
    /// them at once in any case. A shorter time only adds requests.
    #[arg(long, value_name = "MS", default_value_t = MountOptions::TIMEOUT_DEFAULT.as_millis() as u64)]
    attr_timeout_ms: u64,
    /// How long the kernel may cache names, and the absence of names, in milliseconds; 0: not at all. Changes
    /// by others invalidate them at once in any case. Before Linux 6.16 the kernel caches no names.
    #[arg(long, value_name = "MS", default_value_t = MountOptions::TIMEOUT_DEFAULT.as_millis() as u64)]
    entry_timeout_ms: u64,
    /// How long one system call waits in total for servers that do not answer, in milliseconds. Then it fails
    /// with ETIMEDOUT, and the server counts as dead: calls that need it fail at once with EHOSTDOWN until it
    /// is back, which is noticed within 2 seconds.
    #[arg(long, value_name = "MS", default_value_t = ConnectOptions::default().retry_timeout_ms)]
    retry_timeout_ms: u64,
    /// Wait without limit for servers that do not answer. The opposite is the mount option soft, the default.
    #[arg(long)]
    hard: bool,
    /// Whether to receive the kernel's requests through an io_uring, which saves system calls. This needs
    /// Linux 6.14, and Y in /sys/module/fuse/parameters/enable_uring, which root can set.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    ring: Ring,
    /// Threads that serve the kernel; with an io_uring, threads per processor.
    #[arg(long, value_name = "COUNT", default_value_t = MountOptions::THREADS_DEFAULT)]
    threads: usize,
    /// Limit of the kernel's concurrent background requests, such as read-ahead.
    #[arg(long, value_name = "COUNT", default_value_t = MountOptions::MAX_BACKGROUND_DEFAULT)]
    max_background: u16,
    /// Serve metrics to Prometheus over HTTP at HOST:PORT, to anybody who can reach it.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Append logs to this file [default: in the background, the system log (syslog)].
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// What to log: a level (off, error, warn, info, debug, trace), and levels of single targets, as in
    /// info,weft_rpc=debug; see `weft help logs`.
    #[arg(long, value_name = "LEVELS", env = "WEFT_LOG", default_value_t)]
    log_level: Filter,
    /// Log system calls that take at least this many milliseconds, with the servers that they waited for; 0:
    /// never.
    #[arg(long, value_name = "MS", default_value_t = MountOptions::SLOW_MS_DEFAULT)]
    slow_ms: u64,
    /// Unmount when the serving process dies for any reason.
    #[arg(long)]
    auto_unmount: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Cache {
    /// All files except large ones (--stream-from) that are opened only for reading and are not programs.
    /// Those are read ahead without the page cache.
    Auto,
    /// All files.
    Always,
    /// No files, and no read-ahead: every read sees what others wrote at once.
    Never,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum SquashArg {
    /// Nobody.
    None,
    /// Root.
    Root,
    /// Everybody; then only the servers check permissions.
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
    /// If the kernel supports it.
    Auto,
    /// Never.
    Off,
    /// Always; fail to mount without it.
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

/// Mounts a file system.
pub fn run(args: Args) -> Result<()> {
    let place = WeftPath::from_argument(&args.url)?.tidied();
    let connections = Connections::new(&args.connect);
    let mut options = MountOptions::new(Url::parse(&place.display())?, &args.dir);
    options.connect = ConnectOptions {
        retry_timeout_ms: args.retry_timeout_ms,
        hard: args.hard,
        program: Some(format!("{MOUNT_PROGRAM}{}", args.dir.display())),
        ..connections.options()?
    };
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
    options.metrics = args.metrics;
    options.log_file = args.log_file;
    options.levels = args.log_level;
    options.slow_ms = args.slow_ms;
    options.auto_unmount = args.auto_unmount;
    Ok(weft_fuse::mount(options)?)
}
