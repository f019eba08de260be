//! `weft mv`

use crate::exit::Failures;
use anyhow::{Context, Result, bail};
use weft_cli_common::connections::{ConnectArgs, Connections, at, is_directory};
use weft_cli_common::place::{WeftPath, expand_all};
use weft_wire::messages::rename_flags;

/// Moves or renames files within a file system.
///
/// If the last argument is a directory, files are moved into it. A file that already has the new name is
/// replaced, at once for all clients.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sources and the target.
    #[arg(required = true, num_args = 2.., value_name = "URL")]
    places: Vec<String>,
    /// Fail if the new name exists.
    #[arg(short, long)]
    no_clobber: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Moves files.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let (last, first) = args.places.split_last().expect("two at least");
    let to = WeftPath::from_argument(last)?;
    let client = connections.client(&to.url)?;
    let into_dir = is_directory(&client, &to.path);
    let sources = expand_all(&connections, first)?;
    if sources.len() > 1 && !into_dir {
        bail!("{} is not a directory; it cannot take {} sources", to.display(), sources.len());
    }
    let mut failures = Failures::default();
    for (_, from) in sources {
        if from.url != to.url {
            bail!(
                "{} and {} are in different file systems; use weft cp, then weft rm",
                from.display(),
                to.display()
            );
        }
        let target = if into_dir { to.path.join(from.name()) } else { to.path.clone() };
        let flags = if args.no_clobber { rename_flags::NOREPLACE } else { 0 };
        let moved = client.rename(at(&from.path), at(&target), flags);
        failures.ok(moved.with_context(|| format!("cannot move {}", from.display())));
    }
    failures.result()
}
