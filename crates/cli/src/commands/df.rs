//! `weft df`

use crate::args::LongHelp;
use crate::exit::Failures;
use crate::load::shared_disks;
use anyhow::Result;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, or_default};
use weft_cli_common::told::Told;
use weft_cli_common::{output, size};
use weft_wire::messages::server_role;

/// Shows the total and free space of a file system and of each I/O server.
///
/// Free space is the space that users other than root can write. For the file system it is the growth that is left
/// to files striped over all servers. The server with the least room limits it, so it may be less than the sum.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The file systems [default: the file system of WEFT_URL].
    #[arg(value_name = "URL")]
    places: Vec<String>,
    /// Print sizes in KiB, MiB and so on.
    #[arg(short = 'h', long = "human-readable", overrides_with = "bytes")]
    human: bool,
    /// Print sizes in bytes.
    #[arg(short, long, overrides_with = "human")]
    bytes: bool,
    #[command(flatten)]
    help: LongHelp,
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
    used_bytes: u64,
    /// What users other than root can write.
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
        let ino = client.stat(at(&place.path), true).told("look up", &place)?.ino;
        let (url, whole) = (place.url.clone(), client.statfs_at(ino)?);
        rows.push(Space {
            url: url.clone(),
            server: None,
            space_bytes: whole.space_bytes,
            used_bytes: whole.space_bytes.saturating_sub(whole.free_bytes),
            free_bytes: whole.available_bytes,
            files: Some(whole.files),
            on_disk_of: None,
        });
        let spaces = client.server_spaces();
        let answers =
            spaces.iter().filter_map(|(server, space)| Some((&*server.name, space.as_ref().ok()?.disk_id)));
        let shared = shared_disks(answers);
        for (server, answer) in spaces {
            if server.role != server_role::IO {
                continue;
            }
            let Some(space) = failures.ok(answer) else { continue };
            rows.push(Space {
                url: url.clone(),
                on_disk_of: shared.get(&server.name).cloned(),
                server: Some(server.name),
                space_bytes: space.space_bytes,
                used_bytes: space.space_bytes.saturating_sub(space.free_bytes),
                free_bytes: space.available_bytes,
                files: None,
            });
        }
    }
    if args.json {
        output::print_json(&rows)?;
        return failures.result();
    }
    let mut table = output::table(&["file system", "size", "used", "free", "use", "files"], &[1, 2, 3, 4, 5]);
    let text = |bytes: u64| if args.bytes { bytes.to_string() } else { size::format_bytes(bytes) };
    for row in rows {
        let of_users = row.used_bytes.saturating_add(row.free_bytes);
        let percent = (row.used_bytes.saturating_mul(100)).div_ceil(of_users.max(1));
        table.add_row([
            row.server.map_or(row.url, |name| format!("  {name}")),
            text(row.space_bytes),
            text(row.used_bytes),
            text(row.free_bytes),
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
