//! `weft du`

use super::Failures;
use crate::place::expand_all;
use crate::session::{ConnectArgs, Session, at};
use crate::tree::{self, Visit};
use crate::{output, size};
use anyhow::{Context, Result};
use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use weft_wire::messages::FileKind;

/// Adds up the sizes of files, directory by directory. Holes count; a file with several names counts once.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to begin.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Only the sum for each argument.
    #[arg(short, long)]
    summarize: bool,
    /// Print bytes, not KiB, MiB and so on.
    #[arg(short, long)]
    bytes: bool,
    /// Print as JSON, in bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// A directory and everything in it.
#[derive(serde::Serialize)]
struct Sum {
    path: String,
    bytes: u64,
    files: u64,
}

/// Adds up.
pub fn run(args: Args) -> Result<()> {
    let session = Session::new(&args.connect);
    let mut failures = Failures::default();
    let mut sums = Vec::new();
    let mut seen = HashSet::new();
    for (client, place) in expand_all(&session, &args.places)? {
        let attr = client.stat(at(&place.path), false).with_context(|| place.display())?;
        let mut open: Vec<(PathBuf, u64, u64)> = vec![(place.path.clone(), 0, 0)];
        let mut visit = |visit: Visit<'_>| {
            match visit {
                Visit::Enter(path, attr) if attr.kind == FileKind::Directory => {
                    open.push((path.into(), 0, 0))
                }
                Visit::Enter(_, attr) => {
                    let (_, bytes, files) = open.last_mut().expect("the argument is at the bottom");
                    if attr.nlink < 2 || seen.insert((place.url.clone(), attr.ino)) {
                        *bytes += attr.size;
                        *files += 1;
                    }
                }
                Visit::Leave(..) => {
                    let (path, bytes, files) = open.pop().expect("it was entered");
                    let above = open.last_mut().expect("the argument is at the bottom");
                    (above.1, above.2) = (above.1 + bytes, above.2 + files);
                    if !args.summarize {
                        sums.push(Sum { path: place.with_path(path).display(), bytes, files });
                    }
                }
            }
            Ok(())
        };
        tree::walk(&client, &place.path, &attr, &mut visit, &mut |_, error| failures.tell(&error))?;
        let (_, bytes, files) = open.pop().expect("the argument is at the bottom");
        if args.summarize || attr.kind != FileKind::Directory {
            sums.push(Sum { path: place.display(), bytes, files });
        }
    }
    if args.json {
        output::print_json(&sums)?;
        return failures.result();
    }
    let mut out = output::stdout();
    for sum in sums {
        let bytes = if args.bytes { sum.bytes.to_string() } else { size::format_bytes(sum.bytes) };
        writeln!(out, "{bytes:>10}  {}", sum.path)?;
    }
    out.flush()?;
    failures.result()
}
