//! `weft mount`

use crate::place::WeftPath;
use crate::session::{ConnectArgs, Session};
use crate::size::parse_bytes;
use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;
use weft_client::Url;
use weft_fuse::{CacheMode, MountOptions};

/// Mounts a file system, or a directory of it, so that any program can use it. Needs no root where fusermount3 (package fuse3)
/// is installed.
///
/// Returns when the mount is there and goes on in the background until `weft umount DIR`; with --foreground it stays.
#[derive(Debug, clap::Args)]
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
    /// How long attributes may be remembered, in milliseconds; 0: not at all.
    #[arg(long, value_name = "MS", default_value_t = MountOptions::TIMEOUT_DEFAULT.as_millis() as u64)]
    attr_timeout_ms: u64,
    /// How long names may be remembered, in milliseconds; 0: not at all.
    #[arg(long, value_name = "MS", default_value_t = MountOptions::TIMEOUT_DEFAULT.as_millis() as u64)]
    entry_timeout_ms: u64,
    /// Threads that serve the kernel.
    #[arg(long, value_name = "COUNT", default_value_t = MountOptions::THREADS_DEFAULT)]
    threads: usize,
    /// Requests that the kernel may have under way in the background, such as read-ahead.
    #[arg(long, value_name = "COUNT", default_value_t = MountOptions::MAX_BACKGROUND_DEFAULT)]
    max_background: u16,
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
    options.connect = session.options()?;
    options.background = !args.foreground;
    options.read_only = args.read_only;
    options.allow_other |= args.allow_other;
    options.cache = args.cache.into();
    options.stream_bytes_min = args.stream_from.unwrap_or(options.stream_bytes_min);
    options.attr_timeout = Duration::from_millis(args.attr_timeout_ms);
    options.entry_timeout = Duration::from_millis(args.entry_timeout_ms);
    options.threads = args.threads;
    options.max_background = args.max_background;
    options.auto_unmount = args.auto_unmount;
    Ok(weft_fuse::mount(options)?)
}
