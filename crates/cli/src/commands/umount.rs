//! `weft umount`

use anyhow::Result;
use std::path::PathBuf;

/// Unmounts what `weft mount` mounted. What was written is on the servers when it returns.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mount point.
    dir: PathBuf,
    /// Take it out of sight even while it is in use; it ends when its last user does.
    #[arg(long)]
    lazy: bool,
    /// As --lazy, and everybody who waits for it gets an error at once: for servers that are gone.
    #[arg(long)]
    force: bool,
}

/// Unmounts.
pub fn run(args: Args) -> Result<()> {
    let unmount = match (args.force, args.lazy) {
        (true, _) => weft_fuse::umount_by_force,
        (false, true) => weft_fuse::umount_lazy,
        (false, false) => weft_fuse::umount,
    };
    Ok(unmount(&args.dir)?)
}
