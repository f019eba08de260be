//! `weft umount`

use anyhow::Result;
use std::path::PathBuf;

/// Unmounts a file system.
///
/// When it returns, all data that was written is on the servers.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mount point.
    dir: PathBuf,
    /// Detach the mount now, even while it is in use; it ends when its last user closes it.
    #[arg(long)]
    lazy: bool,
    /// As --lazy, and fail all calls that wait for it: for servers that are gone.
    #[arg(long)]
    force: bool,
}

/// Unmounts a file system.
pub fn run(args: Args) -> Result<()> {
    let unmount = match (args.force, args.lazy) {
        (true, _) => weft_fuse::umount_by_force,
        (false, true) => weft_fuse::umount_lazy,
        (false, false) => weft_fuse::umount,
    };
    Ok(unmount(&args.dir)?)
}
