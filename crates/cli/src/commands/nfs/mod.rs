//! `weft nfs`: files of NFSv3 servers of anyone, without a mount; and the gateways of a cluster.

mod bench;
mod cat;
mod cp;
mod gateways;
mod ls;
mod place;
mod rates;
mod stat;

use anyhow::Result;

/// List, copy and measure files of NFS servers, Weft's or others, and show Weft's NFS gateways.
///
/// exports, clients and status are for the gateways of a cluster on this machine; see `weft help nfs`. The other
/// commands are for NFS servers of anyone, which speak NFS version 3 over TCP or RDMA. Nothing is mounted, and root is not
/// needed. A URL is `nfs://HOST[:PORT]/PATH[?mountport=PORT&transport=rdma&rdma-memory=HOW&rdma-design=WHICH]`, where PATH
/// begins with that of an export. Without ports the server's portmapper is asked; over RDMA NFS is at port 20049.
/// nfs://HOST/ stands for all exports. `weft help nfs` has the ways in which memory is used over RDMA (HOW), and the designs
/// (WHICH).
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List directories, or the exports of a server.
    Ls(ls::Args),
    /// Write files to standard output.
    Cat(cat::Args),
    /// Copy files from or to a server.
    ///
    /// The last argument is the target; if it is a directory, files are copied into it. Either all sources are
    /// on a server and the target is local, or the other way round. Data written to a server are on its stable
    /// storage when the command ends. Below the arguments no symbolic link is followed: links are copied as links.
    #[command(after_help = "\
Examples:
  weft nfs cp nfs://nas/export/a.bin .        from a server
  weft nfs cp -r results nfs://nas/export     a directory to a server")]
    Cp(cp::Args),
    /// Show the attributes of files, and what the server says of the file system.
    Stat(stat::Args),
    /// Measure how fast a server is.
    ///
    /// In a new directory, which is removed in the end: sequential writing (with the COMMIT) and reading; random
    /// reading and writing of 4 KiB; and how many files are created, looked up, asked for their attributes and
    /// removed a second. Each figure is the median of all runs. The server's cache is not emptied in between.
    ///
    /// Over RDMA it also tells how data moved, and how much memory was registered for that.
    Bench(bench::Args),
    /// Show what the gateways of a cluster export: what is in force, which is that of the cluster file unless the
    /// file is wrong.
    Exports(gateways::Args),
    /// Show who is connected to the gateways of a cluster, and what each client has said that it mounts.
    ///
    /// A client that vanished without unmounting is shown with its mounts and without a connection.
    Clients(gateways::Args),
    /// Show the gateways of a cluster: processes, clients, calls, bytes, open files.
    ///
    /// "under way" counts operations of the cluster, "refused" calls of clients that no export is for.
    Status(gateways::Args),
}

/// Runs the command.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Ls(args) => ls::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Cp(args) => cp::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Exports(args) => gateways::exports(&args),
        Command::Clients(args) => gateways::clients(&args),
        Command::Status(args) => gateways::status(&args),
    }
}
