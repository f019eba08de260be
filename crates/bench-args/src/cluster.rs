//! The machine's limits, and a cluster as a whole.

use crate::{CommonArgs, Memory, Transport};
use std::path::PathBuf;
use weft_cli_common::session::KeyArgs;
use weft_cli_common::size::parse_bytes;

/// Memory copy on one core and two, loopback TCP with 1 and 4 streams for every congestion control there is, process_vm_readv, 4
/// processes on one local file, and ping-pongs of 4 KiB between two processes that sleep while they wait.
#[derive(Debug, clap::Args)]
pub struct LimitsArgs {
    /// Processes of the local file and process_vm measurements.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: u16,
    /// Bytes of each of them.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// All clients write, then read, disjoint parts of one file, each client a process of its own.
///
/// Without --transport and --memory: TCP, and shared memory with ordinary memory and with memory from weft_mem_alloc. With --transport
/// rdma, the cluster is started on this host's first RDMA adapter, and what adapters were asked is told; with --url, the servers may
/// be elsewhere.
#[derive(Debug, clap::Args)]
pub struct SharedFileArgs {
    /// Client processes.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// I/O servers of the cluster that is started [default: 4].
    #[arg(long, value_name = "COUNT", conflicts_with = "url", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub io: Option<u16>,
    /// Bytes that each client writes and reads.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_bytes)]
    pub bytes: u64,
    /// These transports only [default: tcp,shm].
    #[arg(long, alias = "over", value_enum, value_name = "TRANSPORT", value_delimiter = ',')]
    pub transport: Vec<Transport>,
    /// One kind of memory only.
    #[arg(long, value_enum)]
    pub memory: Option<Memory>,
    /// From 1 to 8 clients and from 1 to 8 I/O servers, as two tables of MiB/s.
    #[arg(long, conflicts_with_all = ["url", "io"])]
    pub scale: bool,
    /// Measure this cluster instead of one of its own.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The key.
    #[command(flatten)]
    pub connect: KeyArgs,
}

/// 4 KiB reads of a cached file by one client over TCP and over shared memory, next to 4 KiB ping-pongs over a TCP and a Unix socket
/// whose ends wait in the same way.
#[derive(Debug, clap::Args)]
pub struct LatencyArgs {
    /// Reads in each repetition.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Measure this cluster instead of one of its own.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The key.
    #[command(flatten)]
    pub connect: KeyArgs,
}

/// Files created, examined and removed per second, each client a process with a directory of its own. Next to it, the same by as many
/// processes on the local file system and, with --mount, through a mount; with --sync, the rate at which the disk can make single small writes durable.
#[derive(Debug, clap::Args)]
pub struct MetaArgs {
    /// Client processes.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Threads of each, which work on its directory together [default: 1; with --sync 16].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Files of each client [default: 5000; with --sync 1600].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub files: Option<u32>,
    /// Over TCP instead of shared memory.
    #[arg(long)]
    pub tcp: bool,
    /// Acknowledge only what is on the disk. The scratch directory is in /var/tmp where --dir does not say otherwise.
    #[arg(long, conflicts_with = "url")]
    pub sync: bool,
    /// Measure this cluster instead of one of its own.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The same by system calls in this directory of a mount, by turns with the library.
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Only make the files, in this new directory of the cluster, and leave them there.
    #[arg(long, value_name = "PATH", requires = "url", conflicts_with = "mount")]
    pub make: Option<PathBuf>,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The key.
    #[command(flatten)]
    pub connect: KeyArgs,
}

/// Copies a tree into a cluster and out again, through a mount and with weft cp, has 4 processes write and read one shared file, and
/// prints one table. Leaves the copies, so that they can be compared: MOUNT/by-mount and MOUNT/by-cp in the cluster, OUT/by-mount
/// and OUT/by-cp out of it again.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// The cluster.
    #[arg(long)]
    pub url: String,
    /// Where it is mounted.
    #[arg(long)]
    pub mount: PathBuf,
    /// The process that serves the mount; its processor time counts as the client's.
    #[arg(long, value_name = "PID")]
    pub mount_pid: u32,
    /// The tree to copy.
    #[arg(long)]
    pub source: PathBuf,
    /// Where to copy it to from the cluster; a directory on the disk that the servers use.
    #[arg(long)]
    pub out: PathBuf,
    /// Bytes that each of the 4 processes writes and reads.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The key.
    #[command(flatten)]
    pub connect: KeyArgs,
}

/// System calls on a mount, each timed: reads, writes, syncs, opens, listings, df, files made and removed, all at once. Each line of
/// standard input begins a phase of this name; the end of input ends it. `bench/dead-server.sh` stops a server meanwhile.
#[derive(Debug, clap::Args)]
pub struct CallsArgs {
    /// A directory of a mount whose files are on the server that something happens to.
    #[arg(long, value_name = "DIR")]
    pub needs: PathBuf,
    /// One whose files are on others.
    #[arg(long, value_name = "DIR")]
    pub spared: PathBuf,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}
