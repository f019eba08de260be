//! `weft cat`

use crate::exit::Failures;
use anyhow::Result;
use std::io::Write;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, expand_all};
use weft_cli_common::told::Told;
use weft_client::{Client, OpenOptions};

const CHUNK_BYTES: usize = 8 << 20;

/// Writes files to standard output, one after the other.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Writes files to standard output.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let mut failures = Failures::default();
    for (client, place) in expand_all(&connections, &args.places)? {
        match copy_out(&client, &place) {
            Err(error) if error.is::<std::io::Error>() => return Err(error),
            Err(error) => failures.report(&error),
            Ok(()) => {}
        }
    }
    failures.result()
}

fn copy_out(client: &Client, place: &WeftPath) -> Result<()> {
    let file = client.open(at(&place.path), &OpenOptions::new().read(true)).told("open", place)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut out = std::io::stdout().lock();
    let mut offset = 0;
    loop {
        let bytes = file.read_at(&mut buffer, offset).told("read", place)?;
        if bytes == 0 {
            return Ok(out.flush()?);
        }
        out.write_all(&buffer[..bytes])?;
        offset += bytes as u64;
    }
}
