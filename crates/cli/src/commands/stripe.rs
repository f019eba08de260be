//! `weft stripe`

use crate::exit::Failures;
use crate::new_files::{LayoutArgs, umask};
use anyhow::{Result, bail};
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, expand_all};
use weft_cli_common::told::Told;
use weft_cli_common::{output, size};
use weft_client::OpenOptions;
use weft_wire::messages::{Attr, FileKind};

/// Show or set how files are striped.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show how files are striped, or a directory's default for new files.
    Get(GetArgs),
    /// Set the striping of a new file, or a directory's default for new files.
    ///
    /// A file that does not exist is created, empty. The striping of an existing file can be changed only if
    /// it was never written. To change the striping of a file that has data, copy it (`weft cp`).
    Set(SetArgs),
}

/// Options of `get`.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    /// Files and directories.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Options of `set`.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// A file or directory.
    #[arg(value_name = "URL")]
    place: String,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Remove a directory's default: the file system's default applies again.
    #[arg(long, conflicts_with_all = ["strip_bytes", "servers", "first"])]
    reset: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Shows or sets striping.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Get(args) => get(args),
        Command::Set(args) => set(args),
    }
}

fn get(args: GetArgs) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let mut failures = Failures::default();
    let mut shown = Vec::new();
    for (client, place) in expand_all(&connections, &args.places)? {
        let attr = failures.ok(client.stat(at(&place.path), true).told("look up", &place));
        shown.extend(attr.map(|attr| (client, place, attr)));
    }
    if args.json {
        let row = |place: &WeftPath, attr: &Attr| {
            let layout = attr.layout.map(|layout| output::layout_json(&layout));
            serde_json::json!({ "path": place.display(), "kind": output::kind_text(attr.kind), "layout": layout })
        };
        let all: Vec<_> = shown.iter().map(|(_, place, attr)| row(place, attr)).collect();
        output::print_json(&all)?;
        return failures.result();
    }
    let mut table = output::table(&["strip", "servers", "first", "path"], &[0, 1, 2]);
    for (client, place, attr) in &shown {
        let own = attr.layout;
        let layout = own.unwrap_or(client.map().default_layout);
        let first = match (attr.kind, own) {
            (FileKind::File, Some(layout)) => layout.first_server().to_string(),
            _ => "any".to_string(),
        };
        let note = if own.is_none() { "  (the file system's default)" } else { "" };
        table.add_row([
            size::format_bytes(layout.strip_bytes().into()),
            layout.server_count().to_string(),
            first,
            format!("{}{note}", place.display()),
        ]);
    }
    output::print_table(&table)?;
    failures.result()
}

fn set(args: SetArgs) -> Result<()> {
    let wish = args.layout.wish()?;
    if wish.is_none() && !args.reset {
        bail!("nothing to set; give --strip-bytes, --servers, --first or --reset");
    }
    let place = WeftPath::from_argument(&args.place)?;
    let client = Connections::new(&args.connect).client(&place.url)?;
    let path = place.path.as_path();
    match client.stat(at(path), true) {
        Err(error) if error.errno() == libc::ENOENT && !args.reset => {
            let options = OpenOptions::new().write(true).create_new(true).mode(0o666 & !umask());
            let options = wish.into_iter().fold(options, OpenOptions::layout);
            client.open(at(path), &options).told("create", &place)?;
        }
        attr => {
            if args.reset && attr.told("look up", &place)?.kind != FileKind::Directory {
                bail!("{} is not a directory; --reset is for directories only", place.typed());
            }
            client.set_layout(at(path), wish.as_ref()).told("set the striping of", &place)?;
        }
    }
    Ok(())
}
