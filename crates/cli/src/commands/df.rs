//! `weft df`

use super::status::shared_disks;
use crate::exit::Failures;
use anyhow::Result;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, or_default};
use weft_cli_common::{output, size};

/// Shows the total and free space of a file system and of each I/O server.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file systems [default: the file system of WEFT_URL].
    #[arg(value_name = "URL")]
    places: Vec<String>,
    /// Print as JSON, in bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Space of a file system or of one of its servers.
#[derive(serde::Serialize)]
struct Space {
    url: String,
    /// `None` for the whole file system.
    server: Option<String>,
    space_bytes: u64,
    free_bytes: u64,
    files: Option<u64>,
    /// The server whose disk is the same; the whole file system counts it once.
    on_disk_of: Option<String>,
}

/// Shows total and free space.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let mut failures = Failures::default();
    let mut rows = Vec::new();
    for argument in &or_default(&args.places)? {
        let place = WeftPath::from_argument(argument)?;
        let client = connections.client(&place.url)?;
        let ino = client.stat(at(&place.path), true)?.ino;
        let (url, whole) = (place.url.clone(), client.statfs_at(ino)?);
        let (space_bytes, free_bytes) = (whole.space_bytes, whole.free_bytes);
        rows.push(Space {
            url: url.clone(),
            server: None,
            space_bytes,
            free_bytes,
            files: Some(whole.files),
            on_disk_of: None,
        });
        let shared = shared_disks(&client);
        for (server, answer) in client.server_status(false) {
            match answer {
                Ok(status) if status.role == "io" => rows.push(Space {
                    url: url.clone(),
                    on_disk_of: shared.get(&server.name).cloned(),
                    server: Some(server.name),
                    space_bytes: status.space_bytes,
                    free_bytes: status.free_bytes,
                    files: None,
                }),
                Ok(_) => {}
                Err(error) => failures.report(&error.into()),
            }
        }
    }
    if args.json {
        output::print_json(&rows)?;
        return failures.result();
    }
    let mut table = output::table(&["file system", "size", "used", "free", "use", "files"], &[1, 2, 3, 4, 5]);
    for row in rows {
        let used = row.space_bytes.saturating_sub(row.free_bytes);
        let percent = (used * 100).div_ceil(row.space_bytes.max(1));
        table.add_row([
            row.server.map_or(row.url, |name| format!("  {name}")),
            size::format_bytes(row.space_bytes),
            size::format_bytes(used),
            size::format_bytes(row.free_bytes),
            format!("{percent} %"),
            match (&row.on_disk_of, row.files) {
                (Some(other), _) => format!("on {other}'s disk"),
                (None, files) => files.map_or(String::new(), |files| files.to_string()),
            },
        ]);
    }
    output::print_table(&table)?;
    failures.result()
}
