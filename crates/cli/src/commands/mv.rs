//! `weft mv`

use crate::exit::Failures;
use anyhow::{Result, anyhow, bail};
use std::collections::HashSet;
use std::path::Path;
use weft_cli_common::connections::{ConnectArgs, Connections, at, is_directory};
use weft_cli_common::place::{WeftPath, expand_all};
use weft_cli_common::told::Told;
use weft_client::Client;
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

/// Whether both are names of one file, or `from` is a link to `to`: the move would lose one of them, or do nothing.
fn are_same(client: &Client, from: &Path, to: &Path) -> bool {
    let ino = |path: &Path, follow| client.stat(at(path), follow).ok().map(|attr| attr.ino);
    let there = ino(to, false);
    there.is_some() && (ino(from, false) == there || ino(from, true) == there)
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
        bail!("{} is not a directory; it cannot take {} sources", to.typed(), sources.len());
    }
    let mut failures = Failures::default();
    let mut made = HashSet::new();
    for (_, from) in sources {
        if from.url != to.url {
            bail!(
                "{} and {} are in different file systems; use weft cp, then weft rm",
                from.typed(),
                to.typed()
            );
        }
        let target = if into_dir { to.path.join(from.name()) } else { to.path.clone() };
        if !made.insert(target.clone()) {
            let target = to.with_path(target);
            failures.report(&anyhow!(
                "{} is not replaced by {}: it was just moved there",
                target.typed(),
                from.typed()
            ));
            continue;
        }
        if are_same(&client, &from.path, &target) {
            failures.report(&anyhow!("{} and {} are the same file", from.typed(), to.typed()));
            continue;
        }
        let flags = if args.no_clobber { rename_flags::NOREPLACE } else { 0 };
        let moved = client.rename(at(&from.path), at(&target), flags);
        let target = to.with_path(target);
        failures.ok(moved.told_as(|| format!("move {} to {}", from.typed(), target.typed())));
    }
    failures.result()
}
