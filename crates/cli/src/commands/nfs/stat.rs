//! `weft nfs stat`

use super::place::{ConnectArgs, attr_json, kind, name_text, time_text};
use crate::exit::Failures;
use anyhow::Result;
use serde_json::{Value, json};
use std::io::Write;
use weft_cli_common::{output, size};
use weft_nfs_client::{FileKind, FsStat, Located, NfsClient};

/// Options of `stat`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

struct Shown {
    client: NfsClient,
    path: String,
    file: Located,
    space: FsStat,
    target: Option<String>,
}

/// Shows the attributes of files.
pub fn run(args: &Args) -> Result<()> {
    let mut failures = Failures::default();
    let shown: Vec<Shown> = args.places.iter().filter_map(|place| failures.ok(look(args, place))).collect();
    if args.json {
        output::print_json(&shown.iter().map(to_json).collect::<Vec<_>>())?;
        return failures.result();
    }
    let mut out = output::stdout();
    shown.iter().try_for_each(|shown| print(&mut out, shown))?;
    out.flush()?;
    failures.result()
}

fn look(args: &Args, place: &str) -> Result<Shown> {
    let (client, url) = args.connect.connect(place)?;
    let file = client.resolve_link(&url.path)?;
    let space = client.fsstat(&file.handle)?;
    let target = match file.attr.kind {
        FileKind::Symlink => Some(name_text(&client.readlink(&file.handle)?)),
        _ => None,
    };
    Ok(Shown { client, path: url.path, file, space, target })
}

fn to_json(shown: &Shown) -> Value {
    let (info, space) = (shown.client.info(), &shown.space);
    let mut value = attr_json(&shown.path, &shown.file.attr);
    value["target"] = json!(shown.target);
    value["export"] = json!(shown.client.export());
    value["server"] = json!({
        "name": shown.client.server(),
        "read_bytes_max": info.read_bytes_max,
        "write_bytes_max": info.write_bytes_max,
        "total_bytes": space.total_bytes,
        "free_bytes": space.free_bytes,
        "available_bytes": space.available_bytes,
        "total_files": space.total_files,
        "free_files": space.free_files,
    });
    value
}

fn print(out: &mut impl Write, shown: &Shown) -> Result<()> {
    let (attr, info) = (&shown.file.attr, shown.client.info());
    let bytes = size::format_bytes;
    writeln!(out, "{}", shown.path)?;
    if let Some(target) = &shown.target {
        writeln!(out, "  target    {target}")?;
    }
    writeln!(out, "  kind      {}", output::kind_text(kind(attr.kind)))?;
    writeln!(out, "  size      {} bytes ({})", attr.size_bytes, bytes(attr.size_bytes))?;
    writeln!(out, "  space     {} bytes ({})", attr.used_bytes, bytes(attr.used_bytes))?;
    writeln!(out, "  inode     {}, {} links", attr.fileid, attr.nlink)?;
    let mode = output::mode_text(kind(attr.kind), attr.mode);
    writeln!(out, "  mode      {:04o} {mode}", attr.mode & 0o7777)?;
    let owner = format!("{} ({})", output::user_name(attr.uid), attr.uid);
    writeln!(out, "  owner     {owner}, group {} ({})", output::group_name(attr.gid), attr.gid)?;
    for (name, time) in [("accessed", attr.atime), ("modified", attr.mtime), ("changed", attr.ctime)] {
        writeln!(out, "  {name:9} {}", time_text(time, true))?;
    }
    writeln!(out, "  server    {}, export {}", shown.client.server(), shown.client.export())?;
    let (read, write) = (bytes(info.read_bytes_max.into()), bytes(info.write_bytes_max.into()));
    writeln!(out, "  transfers READ to {read}, WRITE to {write}")?;
    let (free, total) = (bytes(shown.space.available_bytes), bytes(shown.space.total_bytes));
    Ok(writeln!(out, "  free      {free} of {total}")?)
}
