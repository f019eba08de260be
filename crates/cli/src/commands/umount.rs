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
}

/// Unmounts.
pub fn run(args: Args) -> Result<()> {
    let unmount = if args.lazy { weft_fuse::umount_lazy } else { weft_fuse::umount };
    Ok(unmount(&args.dir)?)
}
