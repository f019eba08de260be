//! The command line: all commands, and what each runs. Help, completions and man pages are generated from it.

use crate::commands::*;
use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

/// A parallel file system in user space.
///
/// Files are striped over I/O servers. Programs use all of these at once, over RDMA, TCP or, on one machine,
/// shared memory. `weft up --dir DIR` starts a whole cluster on this machine. `weft help SUBJECT` explains
/// the rest.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    disable_help_subcommand = true,
    max_term_width = 90,
    after_help = "Subjects of `weft help`: start, urls, striping, transports, rdma, pieces, mpi, python, nfs, keys, semantics, \
                  cluster, hosts, cluster-file, recovery, backup, quota, logs, scripts, and every command."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Declares all commands: the help of each, its file in `commands`, its arguments, and what else its `run`
/// gets.
macro_rules! commands {
    ($($(#[$help:meta])* $name:ident => $file:ident::$arguments:ident $(with $more:expr)?,)*) => {
        /// What to do.
        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($(#[$help])* $name($file::$arguments),)*
        }

        impl Command {
            /// Runs the command.
            pub fn run(self) -> Result<()> {
                match self {
                    $(Command::$name(arguments) => $file::run(arguments $(, $more)?),)*
                }
            }
        }
    };
}

commands! {
    /// Start a whole cluster, on this machine or on several hosts.
    Up => up::Args,
    /// Stop a cluster, or some of its servers.
    Down => down::Args,
    /// Start and stop a file system for one job, on its hosts.
    #[command(subcommand)]
    Job => job::Command,
    /// Write the cluster file and the keys of a cluster on several machines.
    Init => init::Args,
    /// Issue, list, revoke and rotate keys.
    #[command(subcommand)]
    Key => key::Command,
    /// Run one server in the foreground.
    Serve => serve::Args,
    /// List, add, move and replace servers.
    #[command(subcommand)]
    Server => server::ServerCommand,
    /// Back up all names and attributes, and restore them.
    #[command(subcommand)]
    Meta => meta::MetaCommand,
    /// Mount a file system.
    Mount => mount::Args,
    /// Unmount a file system.
    Umount => umount::Args,
    /// Run a program that accesses a file system without a mount.
    Run => run::Args,
    /// Copy files into, out of and between file systems.
    Cp => cp::Args,
    /// Make a tree the same as another.
    Sync => sync::Args,
    /// List directories.
    Ls => ls::Args,
    /// Write files to standard output.
    Cat => cat::Args,
    /// Print a range of a file, or a block of an array in it.
    Dump => dump::Args,
    /// Remove files and directories.
    Rm => rm::Args,
    /// Make directories.
    Mkdir => mkdir::Args,
    /// Move or rename.
    Mv => mv::Args,
    /// Make links, symbolic or not.
    Ln => ln::Args,
    /// Change the permission bits of files.
    Chmod => chmod::Args,
    /// Change the owner and the group of files.
    Chown => chown::Args,
    /// Set the times of files, and make empty ones.
    Touch => touch::Args,
    /// Show a file's attributes, striping and servers.
    Stat => stat::Args,
    /// Show the space that files use.
    Du => du::Args,
    /// Show the total and free space of a file system and its servers.
    Df => df::Args,
    /// Show a directory as a tree.
    Tree => tree::Args,
    /// Show or set how files are striped.
    #[command(subcommand)]
    Stripe => stripe::Command,
    /// Limit what users, groups and directory trees may use.
    #[command(subcommand)]
    Quota => quota::Command,
    /// Show the versions of this program and of servers.
    Version => version::Args,
    /// Show servers, space, load and clients.
    Status => status::Args,
    /// Print the load of a file system, second by second.
    Stats => stats::Args,
    /// Show servers and clients by their load, live.
    Top => top::Args,
    /// Serve a page with servers, load and alarms of the last hours.
    Dashboard => dashboard::Args,
    /// Explain how servers would access pieces of a file, and the expected cost.
    Explain => explain::Args,
    /// Look for what is wrong on this host, with a cluster or a file system.
    Doctor => doctor::Args,
    /// Check a file system, and repair it, while it is in use.
    Fsck => fsck::Args,
    /// Verify the checksums of all data, and list what is damaged.
    Scrub => scrub::Args,
    /// Show or measure again what disk accesses cost on each I/O server.
    Calibrate => calibrate::Args,
    /// List, copy and measure files of NFS servers, Weft's or others.
    #[command(subcommand)]
    Nfs => nfs::Command,
    /// Measure Weft's performance beside the limits of this machine.
    #[command(subcommand)]
    Bench => bench::Args,
    /// Explain a subject or a command.
    Help => help::Args with Cli::command(),
    /// Print how a word could go on, for the completions of shells.
    #[command(hide = true)]
    Complete => complete::Args,
    /// Print completions for a shell.
    Completions => completions::Args with Cli::command(),
    /// Write the man pages.
    Man => man::Args with Cli::command(),
}

/// `--help` of commands in which `-h` means something else. Such a command disables clap's own flag.
#[derive(Debug, clap::Args)]
pub struct LongHelp {
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_lines_of_the_documentation_are_understood() {
        for line in [
            "weft up --dir D",
            "weft up --dir D --io 2 --port 7500 --bind 10.0.0.1 --sync --detach --json",
            "weft up --dir D --metrics 9400",
            "weft serve --config weft.toml --name io0 --metrics 127.0.0.1:9400",
            "weft mount weft://a:7400/ /mnt --metrics 127.0.0.1:9410",
            "weft stats weft:/ --interval 2 --count 3 --json",
            "weft top --once --json weft:/",
            "weft top --interval 5 weft:/",
            "weft dashboard weft:/ --listen 0.0.0.0:80 --interval 2 --hours 24",
            "weft version --json weft:/",
            "weft doctor weft:/ --json -q",
            "weft doctor --config weft.toml --name io0 --report r.txt",
            "weft doctor --dir D --report -",
            "weft ls -lhR",
            "weft df",
            "weft df -h weft:/",
            "weft df --bytes",
            "weft du -sh",
            "weft du -bh weft:/",
            "weft du -s",
            "weft tree",
            "weft status weft:/ -v",
            "weft up --dir D --only io1 --only io2 --detach",
            "weft up --dir D --hosts node[01-16],a=10.0.0.1 --io 32 --mount /mnt/weft --ssh rsh --json",
            "weft job start --dir D --hosts a,b --io 4 --port 7500 --mount /m --stage-in a /a --stage-in b /b --json",
            "weft job hosts --hosts a[1-3]",
            "weft job stop --dir D --stage-out /a b --keep --json",
            "weft down --dir D --json",
            "weft down --dir D --only io1",
            "weft status --dir D --json",
            "weft init --dir D --meta a:7400:/s/m --io a:7401:/s/0 --io b:7401:/s/1 --sync",
            "weft serve --config weft.toml --name io0",
            "weft serve --config weft.toml --name io0 --format",
            "weft serve --config weft.toml --name io0 --log-level info,weft_server::io=debug",
            "weft mount weft://a:7400/ /mnt --log-level debug --slow-ms 0",
            "weft serve --config weft.toml --name meta0 --accept-older",
            "weft serve --config weft.toml --name io1 --accept-loss",
            "weft server ls --dir D --json",
            "weft server replace io0 --config weft.toml --cluster-key cluster.key",
            "weft serve --config weft.toml --name io0 --log-file io0.log",
            "weft key issue --uid 1000 --gid 1000 --gid 27 --expires 90d --name alice --out alice.key",
            "weft key issue --host node7 --no-root-squash --config weft.toml",
            "weft key list --json",
            "weft key revoke 0123abcd alice.key --config /etc/weft/weft.toml",
            "weft mount weft://h:7400/ /mnt --foreground",
            "weft umount /mnt",
            "weft run -- bash -c x",
            "weft run --url weft://h:7400/ --at /data --transport shm -- cat /data/x",
            "weft cp -r a b weft://h:7400/c",
            "weft cp -rp weft://h:7400/c . --jobs 8",
            "weft cp --subarray 1000,1000:0,500:10,10:f64 weft:/x block.bin",
            "weft cp --subarray 1000,1000:0,500:10,10:f64:F --offset 512 block.bin weft:/x --servers 2",
            "weft cp -u a b weft:/c",
            "weft cp -n --recursive a weft:/c",
            "weft cp - weft:/c",
            "weft sync a weft:/a",
            "weft sync weft:/a a --delete --checksum -n --exclude x --include y --owner -v --jobs 8 --quiet --json",
            "weft dump --bytes 64 weft:/x",
            "weft dump --subarray 1000,500:10,0:2,8:f64be weft:/x --format hex -q",
            "weft dump --offset 1M --bytes 4K --format u16 weft:/x",
            "weft ls -la weft:/x",
            "weft rm -rf weft:/x",
            "weft mkdir -p weft:/x/y",
            "weft chmod -R u+rwX,go= weft:/x weft:/y",
            "weft chmod -w weft:/x",
            "weft chmod 4755 weft:/x --as-root",
            "weft chown -Rh root:root weft:/x --as-root",
            "weft chown :0 weft:/x",
            "weft ln weft:/a weft:/b",
            "weft ln -sfn ../a weft:/x",
            "weft ln -sT a weft:/x",
            "weft touch -c -a -m -h weft:/x",
            "weft touch -d -2hours weft:/x",
            "weft touch -t 202701311200.30 weft:/x",
            "weft touch -r local weft:/x",
            "weft mkdir -m u=rwx,go= weft:/x",
            "weft stripe set weft:/x --strip-bytes 1M --servers 2 --first 1",
            "weft stripe get weft:/x --json",
            "weft quota set --user alice --bytes 1T --soft-bytes 900G --files 100 --soft-files 90 --grace 14d weft:/",
            "weft quota set --tree weft:/p --bytes 1T --df --no-wait",
            "weft quota set --each-user --bytes 1G",
            "weft quota get",
            "weft quota get --group chem --json weft:/",
            "weft quota ls --users --json",
            "weft quota ls --groups",
            "weft quota ls --trees",
            "weft quota rm --each-group",
            "weft quota count --no-wait",
            "weft status weft:/ --clients",
            "weft status weft:/ --transport rdma --json",
            "weft explain weft:/x --bytes 4K --offset 1M",
            "weft explain weft:/x --subarray 1000,1000:0,500:10,10:f64 --run --json",
            "weft explain weft:/x --stride 0:64:256:100000 --write --sync",
            "weft explain weft:/x --list -",
            "weft explain weft:/x --bytes 1M --rdma --in-place --transport tcp",
            "weft explain weft:/x --mpi --array 4096,4096:f64 --grid 1,4 --json",
            "weft explain --servers 4 --strip-bytes 64K --mpi --processes 64 --per-node 16 --interleaved 4K:9",
            "weft explain weft:/x --mpi --processes 8 --processors 4 --stride 0:64:512:9 --shift 64 --in-place",
            "weft calibrate weft:/ --measure --json",
            "weft fsck weft:/ --repair --json",
            "weft scrub weft:/ --rate 50M --json",
            "weft scrub --dir /srv/weft --rate 0",
            "weft bench limits --runs 3 --json",
            "weft bench shared-file --clients 4 --io 4 --bytes 64M --transport tcp",
            "weft bench shared-file --transport shm --memory alloc --scale",
            "weft bench latency",
            "weft bench meta --sync",
            "weft bench tile --element 24 --counters --svg tile.svg",
            "weft bench block-column --size 512,8192 --transport shm",
            "weft bench tile --over tcp,rdma --url weft:/",
            "weft bench registration-costs --pages 64 --svg costs.svg",
            "weft bench group-registration --runs 3 --json",
            "weft bench small --size 128,64K --transport shm,tcp --counters",
            "weft bench bulk --unit 64K,32M --way read --rounds 2",
            "weft bench subarray --array 1024",
            "weft bench subarray --tile --transport rdma --url weft:/",
            "weft bench random --piece 64 --uncached --dir /var/tmp",
            "weft nfs ls -alR nfs://nas/export --json",
            "weft nfs cp -r --depth 16 nfs://nas:2049/export/a?mountport=20048 . -q",
            "weft nfs cat nfs://nas/export/a --uid 1000 --gid 1000 --group 27 --timeout 5",
            "weft nfs stat nfs://nas/export/a --hard --json",
            "weft nfs bench nfs://nas/export --bytes 64M --block 1M --depth 8 --small-depth 32 --json",
            "weft help striping",
            "weft help stripe set",
            "weft completions bash",
            "weft complete path weft:/da",
            "weft complete subject",
            "weft man D",
        ] {
            if let Err(error) = parse(line) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "weft up",
            "weft cp a",
            "weft run bash",
            "weft up --dir D --sync --nosync",
            "weft up --dir D --only io1 --io 3",
            "weft up --dir D --hosts a[1-",
            "weft up --dir D --hosts a --bind b",
            "weft job start --hosts a --stage-in b",
            "weft job",
            "weft status --dir D --clients",
            "weft key issue",
            "weft key issue --uid 0",
            "weft key issue --uid 1 --host h",
            "weft key issue --uid 1 --no-root-squash",
            "weft key revoke",
            "weft cp -r a b --jobs 0",
            "weft cp a b --offset 5",
            "weft cp -u -n a b",
            "weft chmod 999 weft:/x",
            "weft chmod 755",
            "weft chown no-such-user weft:/x",
            "weft ln weft:/x",
            "weft ln -sL a weft:/x",
            "weft touch -d now -t 01311200 weft:/x",
            "weft touch",
            "weft sync a",
            "weft doctor --dir D --config weft.toml",
            "weft doctor --name io0",
            "weft cp -r --subarray 10:0:1:1 a b",
            "weft dump --subarray 10:0:1:1 --bytes 5 a",
            "weft dump --subarray 10:0:11:1 a",
            "weft dump --format f80 a",
            "weft explain weft:/x",
            "weft explain weft:/x --bytes 1 --list f",
            "weft explain weft:/x --bytes 1 --write --run",
            "weft explain weft:/x --bytes 1 --mpi",
            "weft explain weft:/x --bytes 1 --processes 4",
            "weft explain weft:/x --mpi --processes 4 --grid 2,2 --array 9,9:1",
            "weft explain weft:/x --mpi --processes 4 --array 9,9:1",
            "weft explain weft:/x --mpi --processes 4 --interleaved 4K:9 --write",
            "weft explain weft:/x --servers 4 --mpi --processes 4 --interleaved 4K:9",
            "weft explain --servers 4 --bytes 1",
            "weft nfs cp nfs://h/a",
            "weft nfs ls nfs://h/a --hard --timeout 5",
            "weft nfs bench nfs://h/a --depth 0",
            "weft quota set --user alice --group chem --bytes 1",
            "weft quota set --user alice --grace 5",
            "weft quota ls --users --trees",
            "weft nothing",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
