//! `weft ls`

use crate::args::LongHelp;
use crate::exit::Failures;
use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, expand_all, or_default};
use weft_cli_common::told::Told;
use weft_cli_common::{output, size, tree};
use weft_client::Client;
use weft_wire::messages::{Attr, FileKind};

/// Lists directories, sorted by name.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Files and directories [default: the file system of WEFT_URL].
    #[arg(value_name = "URL")]
    places: Vec<String>,
    /// Show mode, links, owner, group, size and time.
    #[arg(short)]
    long: bool,
    /// Include names that begin with a dot.
    #[arg(short)]
    all: bool,
    /// List directories themselves, not their contents.
    #[arg(short)]
    directory: bool,
    /// With -l: print sizes in KiB, MiB and so on.
    #[arg(short = 'h', long = "human-readable")]
    human: bool,
    /// List directories and everything in them.
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    help: LongHelp,
    /// Print attributes as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The entries under one heading.
struct Listing {
    heading: String,
    rows: Vec<(String, std::path::PathBuf, Attr)>,
}

/// Lists files.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let mut failures = Failures::default();
    let mut single = Listing { heading: String::new(), rows: Vec::new() };
    let mut listings = Vec::new();
    let places = expand_all(&connections, &or_default(&args.places)?)?;
    let mut waiting: Vec<_> = places.iter().rev().cloned().collect();
    while let Some((client, place)) = waiting.pop() {
        match list(&args, &client, &place) {
            Ok(mut listing) if listing.heading.is_empty() => single.rows.append(&mut listing.rows),
            Ok(listing) => {
                let directories = listing.rows.iter().filter(|(_, _, attr)| attr.kind == FileKind::Directory);
                let inside = directories.map(|(_, path, _)| (client.clone(), place.with_path(path.clone())));
                if args.recursive {
                    waiting.extend(inside.collect::<Vec<_>>().into_iter().rev());
                }
                listings.push(listing);
            }
            Err(error) => failures.report(&error),
        }
    }
    if !single.rows.is_empty() {
        listings.insert(0, single);
    }
    if args.json {
        let all = listings.iter().flat_map(|listing| &listing.rows);
        let all: Vec<_> = all.map(|(name, _, attr)| output::attr_json(name, attr)).collect();
        output::print_json(&all)?;
        return failures.result();
    }
    let mut out = output::stdout();
    let many = listings.len() > 1 || args.recursive;
    for (index, listing) in listings.iter().enumerate() {
        if many && !listing.heading.is_empty() {
            writeln!(out, "{}{}:", if index > 0 { "\n" } else { "" }, listing.heading)?;
        }
        if args.long {
            print_long(&mut out, &places[0].0, listing, args.human)?;
        } else {
            for (name, ..) in &listing.rows {
                writeln!(out, "{name}")?;
            }
        }
    }
    out.flush()?;
    failures.result()
}

/// Lists a directory under its name, or a file without a heading.
fn list(args: &Args, client: &Client, place: &WeftPath) -> Result<Listing> {
    let follow = !args.long && !args.directory;
    let attr = client.stat(at(&place.path), follow).told("list", place)?;
    if attr.kind != FileKind::Directory || args.directory {
        return Ok(Listing {
            heading: String::new(),
            rows: vec![(place.display(), place.path.clone(), attr)],
        });
    }
    let entries = tree::list(client, at(&place.path))
        .with_context(|| format!("cannot list {}", place.typed()))?
        .into_iter();
    let shown = entries.filter(|entry| args.all || !entry.name.as_encoded_bytes().starts_with(b"."));
    let rows = shown
        .map(|entry| (entry.name.to_string_lossy().into_owned(), place.path.join(&entry.name), entry.attr))
        .collect();
    Ok(Listing { heading: place.display(), rows })
}

fn print_long(out: &mut impl Write, client: &Client, listing: &Listing, human: bool) -> Result<()> {
    let rows: Vec<_> =
        listing.rows.iter().map(|(name, path, attr)| long_row(client, name, path, attr, human)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (links, owner, group, size) = (width(1), width(2), width(3), width(4));
    for [mode, link_count, user, in_group, bytes, time, name] in &rows {
        writeln!(
            out,
            "{mode} {link_count:>links$} {user:owner$} {in_group:group$} {bytes:>size$} {time} {name}"
        )?;
    }
    Ok(())
}

fn long_row(client: &Client, name: &str, path: &Path, attr: &Attr, human: bool) -> [String; 7] {
    let mut name = name.to_string();
    if attr.kind == FileKind::Symlink
        && let Ok(target) = client.readlink(at(path))
    {
        name.push_str(&format!(" -> {}", String::from_utf8_lossy(&target)));
    }
    [
        output::mode_text(attr.kind, attr.mode),
        attr.nlink.to_string(),
        output::user_name(attr.uid),
        output::group_name(attr.gid),
        if human { size::format_bytes(attr.size) } else { attr.size.to_string() },
        output::time_text(&attr.mtime, false),
        name,
    ]
}
