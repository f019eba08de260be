//! `weft nfs ls`

use super::place::{ConnectArgs, attr_json, kind, name_text, time_text};
use crate::exit::Failures;
use anyhow::Result;
use serde_json::json;
use std::io::Write;
use weft_cli_common::output;
use weft_nfs_client::{Export, FileKind, Located, NfsClient, NfsUrl};

/// Options of `ls`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files, directories, or whole servers.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Show mode, links, owner, group, size and time.
    #[arg(short)]
    long: bool,
    /// Include names that begin with a dot.
    #[arg(short)]
    all: bool,
    /// List everything below, too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// What is listed of one directory.
struct Listing {
    heading: String,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    path: String,
    file: Located,
    target: Option<String>,
}

/// Lists.
pub fn run(args: &Args) -> Result<()> {
    let mut failures = Failures::default();
    let (mut listings, mut exports) = (Vec::new(), Vec::new());
    for place in &args.places {
        if let Err(error) = list_place(args, place, &mut listings, &mut exports, &mut failures) {
            failures.report(&error);
        }
    }
    if args.json {
        let rows = listings.iter().flat_map(|listing| &listing.rows);
        let rows = rows.map(|row| attr_json(&row.path, &row.file.attr));
        let exports = exports.iter().map(|export| {
            let clients: Vec<_> = export.clients.iter().map(|client| name_text(client)).collect();
            json!({ "export": name_text(&export.path), "clients": clients })
        });
        output::print_json(&exports.chain(rows).collect::<Vec<_>>())?;
        return failures.result();
    }
    let mut out = output::stdout();
    for export in &exports {
        let clients: Vec<_> = export.clients.iter().map(|client| name_text(client)).collect();
        let clients = if clients.is_empty() { "(everyone)".into() } else { clients.join(",") };
        writeln!(out, "{}  {clients}", name_text(&export.path))?;
    }
    let with_headings = listings.len() > 1;
    for (index, listing) in listings.iter().enumerate() {
        if with_headings {
            writeln!(out, "{}{}:", if index > 0 { "\n" } else { "" }, listing.heading)?;
        }
        print(&mut out, listing, args.long)?;
    }
    out.flush()?;
    failures.result()
}

fn list_place(
    args: &Args,
    place: &str,
    listings: &mut Vec<Listing>,
    exports: &mut Vec<Export>,
    failures: &mut Failures,
) -> Result<()> {
    let url = NfsUrl::parse(place)?;
    let options = args.connect.options();
    if url.path == "/"
        && let Ok(listed) = NfsClient::exports(&url, &options)
        && listed.iter().all(|export| export.path != b"/")
    {
        exports.extend(listed);
        return Ok(());
    }
    let client = NfsClient::connect(&url, &options)?;
    let file = client.resolve_link(&url.path)?;
    let path = url.path;
    if file.attr.kind != FileKind::Directory {
        let target = target_of(args, &client, &file)?;
        let rows = vec![Row { name: path.clone(), path: path.clone(), file, target }];
        listings.push(Listing { heading: path, rows });
        return Ok(());
    }
    let mut left = vec![(path, file)];
    while let Some((path, dir)) = left.pop() {
        match list_directory(args, &client, &path, &dir) {
            Ok(listing) => {
                if args.recursive {
                    let below = listing.rows.iter().rev();
                    let below = below.filter(|row| row.file.attr.kind == FileKind::Directory);
                    left.extend(below.map(|row| (row.path.clone(), row.file.clone())));
                }
                listings.push(listing);
            }
            Err(error) => failures.report(&error),
        }
    }
    Ok(())
}

fn target_of(args: &Args, client: &NfsClient, file: &Located) -> Result<Option<String>> {
    let is_shown = args.long && !args.json && file.attr.kind == FileKind::Symlink;
    Ok(if is_shown { Some(name_text(&client.readlink(&file.handle)?)) } else { None })
}

fn list_directory(args: &Args, client: &NfsClient, path: &str, dir: &Located) -> Result<Listing> {
    let mut entries = client.list(&dir.handle)?;
    entries.retain(|(name, _)| args.all || !name.starts_with(b"."));
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    let mut rows = Vec::with_capacity(entries.len());
    for (name, file) in entries {
        let name = name_text(&name);
        let path = format!("{}/{name}", path.trim_end_matches('/'));
        let target = target_of(args, client, &file)?;
        rows.push(Row { name, path, file, target });
    }
    Ok(Listing { heading: path.to_string(), rows })
}

fn print(out: &mut impl Write, listing: &Listing, long: bool) -> Result<()> {
    if !long {
        listing.rows.iter().try_for_each(|row| writeln!(out, "{}", row.name))?;
        return Ok(());
    }
    let rows: Vec<_> = listing.rows.iter().map(long_row).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (links, owner, group, size) = (width(1), width(2), width(3), width(4));
    for [mode, count, user, in_group, bytes, time, name] in &rows {
        writeln!(out, "{mode} {count:>links$} {user:owner$} {in_group:group$} {bytes:>size$} {time} {name}")?;
    }
    Ok(())
}

fn long_row(row: &Row) -> [String; 7] {
    let attr = &row.file.attr;
    let target = row.target.as_ref().map(|target| format!(" -> {target}"));
    [
        output::mode_text(kind(attr.kind), attr.mode),
        attr.nlink.to_string(),
        output::user_name(attr.uid),
        output::group_name(attr.gid),
        attr.size_bytes.to_string(),
        time_text(attr.mtime, false),
        format!("{}{}", row.name, target.unwrap_or_default()),
    ]
}
