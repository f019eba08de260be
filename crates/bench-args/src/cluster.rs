//! Options of measurements of the machine, and of a cluster as a whole.

use crate::common::{CommonArgs, TestbedArgs};
use crate::kinds::{Memory, Transport};
use std::path::PathBuf;
use weft_cli_common::connections::KeyArgs;
use weft_cli_common::size::parse_bytes;

/// Measures what this machine can do, as a limit for other results.
///
/// Memory copies on one and two cores; loopback TCP with 1 and 4 streams, for every available congestion
/// control; process_vm_readv; 4 processes on one local file; and ping-pongs of 4 KiB between two processes
/// that sleep while they wait.
#[derive(Debug, clap::Args)]
pub struct LimitsArgs {
    /// Processes of the measurements of local files and of process_vm.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: u16,
    /// Bytes that each process moves.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Clients write, then read, disjoint parts of one file. Each client is a process.
///
/// By default it measures TCP, shared memory with ordinary memory, and shared memory with memory from
/// weft_mem_alloc. With --transport rdma the cluster is started on this host's first RDMA adapter, and the
/// operations of the adapters are reported. With --url the servers may be on other hosts.
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
    /// Only these transports [default: tcp,shm].
    #[arg(long, alias = "over", value_enum, value_name = "TRANSPORT", value_delimiter = ',')]
    pub transport: Vec<Transport>,
    /// Only this kind of memory.
    #[arg(long, value_enum)]
    pub memory: Option<Memory>,
    /// Use 1 to 8 clients and 1 to 8 I/O servers, and print two tables of MiB/s.
    #[arg(long, conflicts_with_all = ["url", "io"])]
    pub scale: bool,
    /// The cluster, and options of every measurement.
    #[command(flatten)]
    pub testbed: TestbedArgs,
}

/// One client reads a cached file in units of 4 KiB, over TCP and over shared memory.
///
/// Beside it: 4 KiB ping-pongs over a TCP and a Unix socket whose ends wait in the same way.
#[derive(Debug, clap::Args)]
pub struct LatencyArgs {
    /// Reads in each repetition.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Microseconds in which nothing happens before each read and each ping-pong: with 1000 and more the processors have
    /// fallen asleep.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=60_000_000))]
    pub pause_us: u64,
    /// The cluster, and options of every measurement.
    #[command(flatten)]
    pub testbed: TestbedArgs,
}

/// One client reads and writes at random places of a cached file: requests of 4 KiB, 64 KiB and 1 MiB, with 1, 4 and
/// 32 of them under way.
///
/// Beside it: a raw exchange of as many bytes over a socket of the same kind, with as many under way.
#[derive(Debug, clap::Args)]
pub struct RequestsArgs {
    /// Bytes of a request [default: 4K, 64K, 1M].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub size: Vec<u64>,
    /// Requests under way at once [default: 1, 4, 32].
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: Vec<u16>,
    /// Requests in each repetition [default: 64 MiB of them, 20,000 at most].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: Option<u32>,
    /// Bytes of the file.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_bytes)]
    pub file_bytes: u64,
    /// I/O servers of the cluster that is started [default: 4].
    #[arg(long, value_name = "COUNT", conflicts_with = "url", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub io: Option<u16>,
    /// Only these transports [default: tcp,shm].
    #[arg(long, alias = "over", value_enum, value_name = "TRANSPORT", value_delimiter = ',')]
    pub transport: Vec<Transport>,
    /// The kind of memory [default: any].
    #[arg(long, value_enum)]
    pub memory: Option<Memory>,
    /// The cluster, and options of every measurement.
    #[command(flatten)]
    pub testbed: TestbedArgs,
}

impl RequestsArgs {
    /// Bytes of the requests that are measured.
    pub fn sizes(&self) -> Vec<u64> {
        if self.size.is_empty() { vec![4 << 10, 64 << 10, 1 << 20] } else { self.size.clone() }
    }

    /// How many are under way at once.
    pub fn depths(&self) -> Vec<usize> {
        let depths = if self.depth.is_empty() { &[1, 4, 32][..] } else { &self.depth };
        depths.iter().copied().map(usize::from).collect()
    }
}

/// Measures how many files are created, queried and removed per second. Each client is a process with its own
/// directory.
///
/// Beside it: as many processes on the local file system and, with --mount, through a mount; with --sync, how
/// many small writes per second the disk can make durable.
#[derive(Debug, clap::Args)]
pub struct MetaArgs {
    /// Client processes.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Threads of each client, which share its directory [default: 1; with --sync 16].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Files of each client [default: 5000; with --sync 1600].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub files: Option<u32>,
    /// Use TCP instead of shared memory.
    #[arg(long)]
    pub tcp: bool,
    /// Acknowledge only what is on the disk. The default of --dir is then /var/tmp.
    #[arg(long, conflicts_with = "url")]
    pub sync: bool,
    /// Measure this cluster instead of starting one.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Alternate with system calls in this directory of a mount.
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Only create the files, in this new directory of the cluster, and leave them there.
    #[arg(long, value_name = "PATH", requires = "url", conflicts_with = "mount")]
    pub make: Option<PathBuf>,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The key.
    #[command(flatten)]
    pub connect: KeyArgs,
}

/// Measures how many entries of one directory are listed per second, by the library: names alone, and with attributes.
/// The first listing of each is not counted in the medians, but shown.
///
/// Beside it: readdir(3), and readdir(3) with fstatat(2) of each name, on the local file system.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Entries of the directory, which are empty files.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub entries: u32,
    /// List this directory of the cluster instead of making one. The local one is made with as many entries.
    #[arg(long, value_name = "PATH", requires = "url", conflicts_with = "entries")]
    pub path: Option<PathBuf>,
    /// Use TCP instead of shared memory.
    #[arg(long)]
    pub tcp: bool,
    /// The cluster, and options of every measurement.
    #[command(flatten)]
    pub testbed: TestbedArgs,
}

/// Copies a tree into a cluster and out again, through a mount and with weft cp; then 4 processes write and
/// read one shared file. It prints one table.
///
/// The copies remain, so that they can be compared: MOUNT/by-mount and MOUNT/by-cp in the cluster,
/// OUT/by-mount and OUT/by-cp outside.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// The cluster.
    #[arg(long)]
    pub url: String,
    /// Where the cluster is mounted.
    #[arg(long)]
    pub mount: PathBuf,
    /// The process that serves the mount. Its processor time counts as the client's.
    #[arg(long, value_name = "PID")]
    pub mount_pid: u32,
    /// The tree to copy.
    #[arg(long)]
    pub source: PathBuf,
    /// Where to copy the tree to from the cluster: a directory on the disk that the servers use.
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

/// Times system calls on a mount: reads, writes, syncs, opens, listings, df, files created and removed, all
/// at once.
///
/// Each line of standard input begins a phase of that name. The end of input ends the measurement.
/// `bench/dead-server.sh` stops a server meanwhile.
#[derive(Debug, clap::Args)]
pub struct CallsArgs {
    /// A directory of the mount whose files are on the server that is stopped.
    #[arg(long, value_name = "DIR")]
    pub needs: PathBuf,
    /// A directory of the mount whose files are on other servers.
    #[arg(long, value_name = "DIR")]
    pub spared: PathBuf,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}
