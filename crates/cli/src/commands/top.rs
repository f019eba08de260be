//! `weft top`

use super::stats::parse_seconds;
use crate::busy_files::Paths;
use crate::load::{EndedLoad, InternalLoad, Load, Look};
use crate::terminal::Keys;
use anyhow::{Result, bail};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::place::WeftPath;
use weft_cli_common::{output, size};

/// Lines for clients, and for files, where the height of the terminal is not known.
const LINES_SHOWN: usize = 20;

/// Shows servers, clients and files by their load, live.
///
/// Keys: q quits; l sorts servers by load, n by name; space shows it anew at once. Where standard output is no
/// terminal it is shown once.
///
/// Servers count for the busiest inodes; their paths are looked for among all names, which takes a second for each
/// million of files. Until then, and for files that were removed, the number of the inode is shown.
///
/// Connections of servers to each other, and those of this command, are one row: "internal". A mount or an NFS gateway
/// acts for any user.
///
/// The lists of clients and files take an administrator's key (`weft help keys`).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system.
    #[arg(value_name = "URL", env = "WEFT_URL")]
    url: String,
    /// Seconds between two looks.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 2.0, value_parser = parse_seconds)]
    interval: f64,
    /// Show it once and end.
    #[arg(long)]
    once: bool,
    /// Print it once as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Shows the load.
pub fn run(args: Args) -> Result<()> {
    let place = WeftPath::from_argument(&args.url)?;
    let client = Connections::new(&args.connect).client(&place.url)?;
    let mut before = Look::at(&client);
    if !before.has_any() {
        bail!("no server of {} says how it is", place.url);
    }
    let interval = Duration::from_secs_f64(args.interval);
    if args.once || args.json || !std::io::stdout().is_terminal() {
        std::thread::sleep(interval);
        let mut load = Load::between(&before, &Look::at(&client));
        Paths::new().fill(&client, &mut load.files);
        return match args.json {
            true => output::print_json(&load),
            false => show(&place.url, &load, false, LINES_SHOWN),
        };
    }
    let mut paths = Paths::new();
    let keys = Keys::read()?;
    let mut by_load = false;
    let mut shown: Option<Load> = None;
    loop {
        let until = Instant::now() + interval;
        match keys.wait(until) {
            Some(b'q' | b'Q' | 3 | 4) => return Ok(()),
            Some(b'l') => by_load = true,
            Some(b'n') => by_load = false,
            Some(b' ') | None => {
                let now = Look::at(&client);
                let mut load = Load::between(&before, &now);
                paths.fill(&client, &mut load.files);
                shown = Some(load);
                before = now;
            }
            Some(_) => continue,
        }
        if let Some(load) = &shown {
            print!("\x1b[H\x1b[J");
            // Headings, empty lines and the internal connections take nine.
            let left = keys.rows().saturating_sub(load.servers.len() + 9);
            show(&place.url, load, by_load, (left / 3).max(1))?;
        }
    }
}

fn show(url: &str, load: &Load, by_load: bool, lines: usize) -> Result<()> {
    let mut out = output::stdout();
    let (total, capacity) = (load.total(), load.capacity());
    writeln!(
        out,
        "{url}: {:.0} operations/s, {}/s read, {}/s written, {} free of {}",
        total.operations_per_s,
        size::format_bytes(total.read_bytes_per_s as u64),
        size::format_bytes(total.written_bytes_per_s as u64),
        size::format_bytes(capacity.free_bytes),
        size::format_bytes(capacity.space_bytes)
    )?;
    out.flush()?;
    let headings =
        ["server", "role", "ops/s", "errors/s", "read/s", "written/s", "active", "cpus", "clients", "free"];
    let mut table = output::table(&headings, &[2, 3, 4, 5, 6, 7, 8, 9]);
    let mut servers: Vec<_> = load.servers.iter().collect();
    if by_load {
        servers.sort_by(|one, other| other.operations_per_s.total_cmp(&one.operations_per_s));
    }
    for server in servers {
        if !server.up {
            table.add_row([server.server.as_str(), "does not answer"]);
            continue;
        }
        table.add_row([
            server.server.clone(),
            server.role.clone(),
            format!("{:.0}", server.operations_per_s),
            format!("{:.0}", server.errors_per_s),
            size::format_bytes(server.read_bytes_per_s as u64),
            size::format_bytes(server.written_bytes_per_s as u64),
            server.active_requests.to_string(),
            format!("{:.2}", server.processors),
            server.clients.to_string(),
            match &server.on_disk_of {
                Some(first) => format!("on {first}'s"),
                None => size::format_bytes(server.free_bytes),
            },
        ]);
    }
    output::print_table(&table)?;
    let headings = ["client", "user", "host", "process", "transport", "requests/s", "read/s", "written/s"];
    let mut table = output::table(&headings, &[3, 5, 6, 7]);
    let rates = |requests: f64, read: f64, written: f64| {
        let bytes = |bytes: f64| size::format_bytes(bytes as u64);
        [format!("{requests:.0}"), bytes(read), bytes(written)]
    };
    for client in load.clients.iter().take(lines) {
        let who = [
            output::visible(&client.program),
            client.user.clone(),
            output::visible(&client.host),
            client.process_id.to_string(),
            output::visible(&client.transport),
        ];
        let used = rates(client.requests_per_s, client.read_bytes_per_s, client.written_bytes_per_s);
        table.add_row(who.into_iter().chain(used));
    }
    let none = String::new;
    for ended in load.ended.iter().take(lines) {
        let used = rates(ended.requests_per_s, ended.read_bytes_per_s, ended.written_bytes_per_s);
        let who = [EndedLoad::WORDS.to_owned(), ended.user.clone(), none(), none(), none()];
        table.add_row(who.into_iter().chain(used));
    }
    let internal = &load.internal;
    if internal.connections > 0 {
        let used = rates(internal.requests_per_s, internal.read_bytes_per_s, internal.written_bytes_per_s);
        let who = [InternalLoad::WORDS.to_owned(), none(), none(), none(), none()];
        table.add_row(who.into_iter().chain(used));
    }
    if !load.clients.is_empty() || internal.connections > 0 {
        println!();
        output::print_table(&table)?;
    }
    let mut table = output::table(&["file", "requests/s", "read/s", "written/s"], &[1, 2, 3]);
    for file in load.files.iter().take(lines) {
        table.add_row([
            output::visible(&file.name()),
            format!("{:.0}", file.requests_per_s),
            size::format_bytes(file.read_bytes_per_s as u64),
            size::format_bytes(file.written_bytes_per_s as u64),
        ]);
    }
    if !load.files.is_empty() {
        println!();
        output::print_table(&table)?;
    }
    Ok(())
}
