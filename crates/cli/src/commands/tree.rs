//! `weft tree`

use crate::exit::Failures;
use anyhow::{Context, Result};
use std::io::Write;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, expand_all, or_default};
use weft_cli_common::told::Told;
use weft_cli_common::{output, tree};
use weft_client::{At, Client};
use weft_wire::messages::FileKind;

/// Shows a directory as a tree.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directories [default: the file system of WEFT_URL].
    #[arg(value_name = "URL")]
    places: Vec<String>,
    /// Include names that begin with a dot.
    #[arg(short, long)]
    all: bool,
    /// Show directories only.
    #[arg(short, long)]
    directories: bool,
    /// Show at most this many levels.
    #[arg(short = 'L', long, value_name = "COUNT", default_value_t = usize::MAX, hide_default_value = true)]
    levels: usize,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Default)]
struct Counts {
    directories: usize,
    files: usize,
}

/// Shows directories as trees.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let mut failures = Failures::default();
    let mut counts = Counts::default();
    let mut out = output::stdout();
    for (client, place) in expand_all(&connections, &or_default(&args.places)?)? {
        let attr = client.stat(at(&place.path), true).told("list", &place)?;
        writeln!(out, "{}", place.display())?;
        if attr.kind == FileKind::Directory {
            branch(&args, &client, (attr.ino, &place), "", 1, &mut counts, &mut failures, &mut out)?;
        }
    }
    writeln!(out, "\n{} directories, {} files", counts.directories, counts.files)?;
    out.flush()?;
    failures.result()
}

#[expect(clippy::too_many_arguments, reason = "a recursion carries its state")]
fn branch(
    args: &Args,
    client: &Client,
    (ino, place): (u64, &WeftPath),
    indent: &str,
    level: usize,
    counts: &mut Counts,
    failures: &mut Failures,
    out: &mut impl Write,
) -> Result<()> {
    if level > args.levels {
        return Ok(());
    }
    let listed = tree::list(client, At::ino(ino).shown_as(&place.path))
        .with_context(|| format!("cannot list {}", place.typed()));
    let Some(mut entries) = failures.ok(listed) else { return Ok(()) };
    entries.retain(|entry| args.all || !entry.name.as_encoded_bytes().starts_with(b"."));
    entries.retain(|entry| !args.directories || entry.attr.kind == FileKind::Directory);
    let last = entries.len().saturating_sub(1);
    for (index, entry) in entries.iter().enumerate() {
        let (mark, more) = if index == last { ("└── ", "    ") } else { ("├── ", "│   ") };
        let path = place.path.join(&entry.name);
        write!(out, "{indent}{mark}{}", entry.name.to_string_lossy())?;
        match entry.attr.kind {
            FileKind::Symlink => {
                let target = client.readlink(at(&path)).unwrap_or_default();
                writeln!(out, " -> {}", String::from_utf8_lossy(&target))?;
            }
            _ => writeln!(out)?,
        }
        if entry.attr.kind == FileKind::Directory {
            counts.directories += 1;
            let below = (entry.attr.ino, &place.with_path(path));
            branch(args, client, below, &format!("{indent}{more}"), level + 1, counts, failures, out)?;
        } else {
            counts.files += 1;
        }
    }
    Ok(())
}
