//! `weft mkdir`

use crate::exit::Failures;
use crate::modes::Mode;
use crate::new_files::{LayoutArgs, umask};
use anyhow::{Context, Result};
use weft_cli_common::connections::{ConnectArgs, Connections, at, is_directory};
use weft_cli_common::place::WeftPath;
use weft_cli_common::told::Told;
use weft_cli_common::tree;

/// Makes directories.
///
/// With --strip-bytes, --servers or --first, new files in these directories are striped that way (see `weft
/// help striping`).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directories.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Also make missing parent directories, and accept directories that exist.
    #[arg(short, long)]
    parents: bool,
    /// The mode, in octal or as for `weft chmod` [default: 777 minus the umask].
    #[arg(short, long, value_parser = Mode::parse)]
    mode: Option<Mode>,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Makes directories.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let mut failures = Failures::default();
    for argument in &args.places {
        let place = WeftPath::from_argument(argument)?;
        failures.ok(make(&args, &connections, &place));
    }
    failures.result()
}

fn make(args: &Args, connections: &Connections, place: &WeftPath) -> Result<()> {
    let client = connections.client(&place.url)?;
    let plain_mode = 0o777 & !umask();
    if args.parents {
        if let Some(above) = place.path.parent() {
            let made = tree::make_dirs(&client, above, plain_mode | 0o300);
            made.with_context(|| format!("cannot make the directory {}", place.typed()))?;
        }
        if is_directory(&client, &place.path) {
            return Ok(());
        }
    }
    let mode = args.mode.as_ref().map_or(plain_mode, |mode| mode.of_new_directory(umask()));
    let made = match args.layout.wish()? {
        Some(layout) => client.mkdir_with_layout(at(&place.path), mode, &layout),
        None => client.mkdir(at(&place.path), mode),
    };
    made.map(drop).told("make the directory", place)
}
