//! `weft mkdir`

use crate::exit::Failures;
use crate::new_files::{LayoutArgs, umask};
use anyhow::Result;
use weft_cli_common::connections::{ConnectArgs, Connections, at, is_directory};
use weft_cli_common::place::WeftPath;
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
    /// Permission bits, in octal [default: 777 minus the umask].
    #[arg(short, long, value_parser = parse_mode)]
    mode: Option<u32>,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Parses permission bits.
fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(format!("`{text}` is not a mode in octal, such as 755")),
    }
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
            tree::make_dirs(&client, above, plain_mode | 0o300)?;
        }
        if is_directory(&client, &place.path) {
            return Ok(());
        }
    }
    let mode = args.mode.unwrap_or(plain_mode);
    match args.layout.wish()? {
        Some(layout) => client.mkdir_with_layout(at(&place.path), mode, &layout)?,
        None => client.mkdir(at(&place.path), mode)?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn modes_are_octal() {
        assert_eq!(super::parse_mode("0755"), Ok(0o755));
        assert_eq!(super::parse_mode("1777"), Ok(0o1777));
        assert!(super::parse_mode("8").is_err() && super::parse_mode("77777").is_err());
    }
}
