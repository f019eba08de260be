//! `weft stat`

use crate::exit::Failures;
use anyhow::Result;
use serde_json::Value;
use std::io::Write;
use weft_cli_common::connections::{ConnectArgs, Connections, at, transport_of};
use weft_cli_common::place::{WeftPath, expand_all};
use weft_cli_common::told::Told;
use weft_cli_common::{output, size};
use weft_client::Client;
use weft_wire::messages::{Attr, FileKind};

/// Shows the attributes of files, how they are striped, and the transport from this machine to their servers.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Follow symbolic links.
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Shows the attributes of files.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let mut failures = Failures::default();
    let mut shown = Vec::new();
    for (client, place) in expand_all(&connections, &args.places)? {
        let attr = client.stat(at(&place.path), args.dereference).told("look up", &place);
        if let Some(attr) = failures.ok(attr)
            && let Some(space) = failures.ok(client.allocated_bytes([&attr]).told("get the space of", &place))
        {
            shown.push((client, place, attr, space[0]));
        }
    }
    if args.json {
        let all: Vec<_> =
            shown.iter().map(|(client, place, attr, space)| as_json(client, place, attr, *space)).collect();
        output::print_json(&all)?;
        return failures.result();
    }
    let mut out = output::stdout();
    for (client, place, attr, space) in &shown {
        print(&mut out, client, place, attr, *space)?;
    }
    out.flush()?;
    failures.result()
}

fn as_json(client: &Client, place: &WeftPath, attr: &Attr, allocated_bytes: u64) -> Value {
    let mut value = output::attr_json(&place.display(), attr);
    value["allocated_bytes"] = allocated_bytes.into();
    value["generation"] = attr.generation.into();
    value["servers"] = servers(client, attr)
        .into_iter()
        .map(|(name, transport)| serde_json::json!({ "name": name, "transport": transport }))
        .collect();
    value
}

/// The servers of a file in striping order, and the transport to each.
fn servers(client: &Client, attr: &Attr) -> Vec<(String, String)> {
    let Some(layout) = attr.layout.filter(|_| attr.kind == FileKind::File) else { return Vec::new() };
    let map = client.map();
    (0..layout.server_count())
        .filter_map(|slot| map.server_of_chain(layout.chain(slot)))
        .map(|server| match client.ping(&server.name, &[]) {
            Ok(_) => (server.name.clone(), transport_of(client, &server.name)),
            Err(error) => (server.name.clone(), error.to_string()),
        })
        .collect()
}

fn print(
    out: &mut impl Write,
    client: &Client,
    place: &WeftPath,
    attr: &Attr,
    allocated_bytes: u64,
) -> Result<()> {
    let owner = format!("{} ({})", output::user_name(attr.uid), attr.uid);
    let group = format!("{} ({})", output::group_name(attr.gid), attr.gid);
    writeln!(out, "{}", place.display())?;
    if attr.kind == FileKind::Symlink {
        let target = client.readlink(at(&place.path)).told("read the link", place)?;
        writeln!(out, "  target    {}", String::from_utf8_lossy(&target))?;
    }
    writeln!(out, "  kind      {}", output::kind_text(attr.kind))?;
    writeln!(out, "  size      {} bytes ({})", attr.size, size::format_bytes(attr.size))?;
    if attr.kind == FileKind::File {
        writeln!(out, "  space     {allocated_bytes} bytes ({})", size::format_bytes(allocated_bytes))?;
    }
    writeln!(out, "  inode     {}, generation {}, {} links", attr.ino, attr.generation, attr.nlink)?;
    writeln!(out, "  mode      {:04o} {}", attr.mode & 0o7777, output::mode_text(attr.kind, attr.mode))?;
    writeln!(out, "  owner     {owner}, group {group}")?;
    for (name, time) in [
        ("accessed", &attr.atime),
        ("modified", &attr.mtime),
        ("changed", &attr.ctime),
        ("created", &attr.btime),
    ] {
        writeln!(out, "  {name:9} {}", output::time_text(time, true))?;
    }
    if let Some(layout) = &attr.layout {
        let strip = size::format_bytes(layout.strip_bytes().into());
        let what = if attr.kind == FileKind::Directory { "default" } else { "striping" };
        writeln!(out, "  {what:9} strips of {strip} over {} servers", layout.server_count())?;
    }
    for (name, transport) in servers(client, attr) {
        writeln!(out, "  server    {name}, reached by {transport}")?;
    }
    Ok(())
}
