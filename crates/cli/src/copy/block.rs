//! Copies between a part of a Weft file and a local file that holds just this part.

use super::job::{Options, Outcome, Pair};
use super::side::Side;
use super::spot::{Ends, Parents};
use crate::part::{self, Part};
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use weft_cli_common::connections::at;
use weft_client::{Client, OpenOptions};

/// Copies `part` of the pair's Weft file to or from the local file. `bar` counts the bytes.
pub fn copy_part(pair: &Pair, part: &Part, options: &Options, bar: &ProgressBar) -> Result<Outcome> {
    bar.set_length(part.bytes());
    match (&pair.from_side, &pair.to_side) {
        (Side::Weft { client, .. }, Side::Local) => extract(client, pair, part, options, bar),
        (Side::Local, Side::Weft { client, .. }) => place(client, pair, part, options, bar),
        _ => bail!("--subarray needs one Weft file and one local file"),
    }?;
    Ok(Outcome { files: 1, bytes: part.bytes(), ..Outcome::default() })
}

fn extract(client: &Client, pair: &Pair, part: &Part, options: &Options, bar: &ProgressBar) -> Result<()> {
    let name = pair.from_side.display(&pair.from);
    let file = client.open(at(&pair.from), &OpenOptions::new().read(true))?;
    let attr = file.stat()?;
    part.check_within(&name, attr.size)?;
    let to = || format!("cannot write {}", pair.to.display());
    let mode = attr.mode & 0o777 & !options.umask;
    let mut local = Ends::of(pair, &mut Parents::default())?.to.create_local(mode).with_context(to)?;
    part::read(&file, part, |data| {
        local.write_all(data).with_context(to)?;
        bar.inc(data.len() as u64);
        Ok(())
    })
    .with_context(|| name.clone())
}

fn place(client: &Client, pair: &Pair, part: &Part, options: &Options, bar: &ProgressBar) -> Result<()> {
    let mut local = open_exactly(&pair.from, part.bytes())?;
    let wanted = OpenOptions::new().write(true).create(true).mode(0o666 & !options.umask);
    let wanted = options.layout.clone().into_iter().fold(wanted, OpenOptions::layout);
    let file = client.open(at(&pair.to), &wanted)?;
    part::write(&file, part, |room| {
        local.read_exact(room).with_context(|| format!("cannot read {}", pair.from.display()))?;
        bar.inc(room.len() as u64);
        Ok(())
    })
    .with_context(|| pair.to_side.display(&pair.to))?;
    Ok(file.close()?)
}

/// Opens a local file that must have `bytes` bytes. The length of a pipe cannot be checked.
fn open_exactly(path: &Path, bytes: u64) -> Result<File> {
    let local = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let meta = local.metadata()?;
    if meta.is_dir() {
        bail!("{} is a directory", path.display());
    }
    if meta.is_file() && meta.len() != bytes {
        bail!(
            "{} has {} bytes, but the subarray has {bytes}; the sizes must be equal",
            path.display(),
            meta.len()
        );
    }
    Ok(local)
}
