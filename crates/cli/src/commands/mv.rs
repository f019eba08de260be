//! `weft mv`

use crate::exit::Failures;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::HashSet;
use std::path::Path;
use weft_cli_common::connections::{ConnectArgs, Connections, at, is_directory};
use weft_cli_common::place::{WeftPath, expand_all};
use weft_client::Client;
use weft_wire::messages::{FileKind, rename_flags};

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

/// What two paths have in common.
enum Same {
    No,
    /// The file, which has two names.
    File,
    Name,
}

fn are_same(client: &Client, from: &Path, to: &Path) -> Result<Same> {
    let (Ok(one), Ok(other)) = (client.stat(at(from), false), client.stat(at(to), false)) else {
        return Ok(Same::No);
    };
    if one.ino != other.ino {
        return Ok(Same::No);
    }
    let place = |path: &Path| -> Result<_> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        Ok((client.stat(at(parent), true)?.ino, path.file_name().map(ToOwned::to_owned)))
    };
    let is_name = one.kind == FileKind::Directory || place(from)? == place(to)?;
    Ok(if is_name { Same::Name } else { Same::File })
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
    let mut made = HashSet::new();
    for (_, from) in sources {
        if from.url != to.url {
            bail!(
                "{} and {} are in different file systems; use weft cp, then weft rm",
                from.display(),
                to.display()
            );
        }
        let target = if into_dir { to.path.join(from.name()) } else { to.path.clone() };
        if !made.insert(target.clone()) {
            let target = to.with_path(target);
            failures.report(&anyhow!(
                "{} is not replaced by {}: it was just moved there",
                target.display(),
                from.display()
            ));
            continue;
        }
        if let Some(same) = failures.ok(are_same(&client, &from.path, &target)) {
            match same {
                Same::No => {}
                Same::Name => {
                    failures.report(&anyhow!("{} and {} are the same file", from.display(), to.display()));
                    continue;
                }
                Same::File if args.no_clobber => {}
                // rename(2) of two names of one file does nothing.
                Same::File => {
                    let removed = client.unlink(at(&from.path));
                    failures.ok(removed.with_context(|| format!("cannot move {}", from.display())));
                    continue;
                }
            }
        } else {
            continue;
        }
        let flags = if args.no_clobber { rename_flags::NOREPLACE } else { 0 };
        let moved = client.rename(at(&from.path), at(&target), flags);
        failures.ok(moved.with_context(|| format!("cannot move {}", from.display())));
    }
    failures.result()
}
