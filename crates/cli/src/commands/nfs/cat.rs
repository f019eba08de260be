//! `weft nfs cat`

use super::place::ConnectArgs;
use crate::exit::Failures;
use anyhow::Result;
use std::io::Write;

/// Bytes that are read before they are written.
const CHUNK_BYTES: usize = 8 << 20;
/// READs that are under way at a time.
const DEPTH: usize = 16;

/// Options of `cat`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Writes files to standard output.
pub fn run(args: &Args) -> Result<()> {
    let mut failures = Failures::default();
    for place in &args.places {
        match copy_out(args, place) {
            Err(error) if error.is::<std::io::Error>() => return Err(error),
            Err(error) => failures.report(&error),
            Ok(()) => {}
        }
    }
    failures.result()
}

fn copy_out(args: &Args, place: &str) -> Result<()> {
    let (client, url) = args.connect.connect(place)?;
    let file = client.resolve(&url.path)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut out = std::io::stdout().lock();
    let mut offset = 0;
    loop {
        let bytes = client.read_all(&file.handle, offset, &mut buffer, DEPTH)?;
        out.write_all(&buffer[..bytes])?;
        offset += bytes as u64;
        if bytes < buffer.len() {
            return Ok(out.flush()?);
        }
    }
}
