//! `weft du`

use crate::args::LongHelp;
use crate::exit::Failures;
use anyhow::{Context, Result};
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, expand_all, or_default};
use weft_cli_common::told::Told;
use weft_cli_common::tree::{self, Visit};
use weft_cli_common::{output, size};
use weft_client::Client;
use weft_wire::messages::{Attr, FileKind};

/// Shows the space that files use on their servers, for each directory.
///
/// Holes use no space. A file with several names counts once.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Files and directories [default: the file system of WEFT_URL].
    #[arg(value_name = "URL")]
    places: Vec<String>,
    /// Show only the sum for each argument.
    #[arg(short, long)]
    summarize: bool,
    /// Add up file sizes, holes included, and print them in bytes.
    #[arg(short, long)]
    bytes: bool,
    /// Print sizes in KiB, MiB and so on [default, without --bytes].
    #[arg(short = 'h', long = "human-readable")]
    human: bool,
    #[command(flatten)]
    help: LongHelp,
    /// Print as JSON: sizes and space, in bytes.
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
    allocated_bytes: u64,
    files: u64,
}

/// A directory whose sum is not complete.
#[derive(Default)]
struct Open {
    path: PathBuf,
    bytes: u64,
    allocated_bytes: u64,
    files: u64,
    /// Files directly in it whose space has not been queried yet.
    found: Vec<Attr>,
}

impl Open {
    fn new(path: &Path) -> Open {
        Open { path: path.into(), ..Open::default() }
    }

    fn add(&mut self, attr: &Attr) {
        (self.bytes, self.files) = (self.bytes + attr.size, self.files + 1);
        if attr.kind == FileKind::File {
            self.found.push(attr.clone());
        }
    }

    /// Queries the space of its files, all at once. All directories below it are complete.
    fn complete(&mut self, client: &Client) -> Result<()> {
        let found = std::mem::take(&mut self.found);
        self.allocated_bytes += client.allocated_bytes(&found)?.iter().sum::<u64>();
        Ok(())
    }

    fn sum(&self, path: String) -> Sum {
        Sum { path, bytes: self.bytes, allocated_bytes: self.allocated_bytes, files: self.files }
    }
}

fn space_of(place: &WeftPath) -> String {
    format!("cannot get the space of files in {}", place.typed())
}

/// Adds up the space of files.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let mut failures = Failures::default();
    let mut sums = Vec::new();
    let mut seen = HashSet::new();
    for (client, place) in expand_all(&connections, &or_default(&args.places)?)? {
        let attr = client.stat(at(&place.path), false).told("look up", &place)?;
        let mut open = vec![Open::new(&place.path)];
        let mut visit = |visit: Visit<'_>| {
            match visit {
                Visit::Enter(path, attr) if attr.kind == FileKind::Directory => open.push(Open::new(path)),
                Visit::Enter(_, attr) => {
                    if attr.nlink < 2 || seen.insert((place.url.clone(), attr.ino)) {
                        open.last_mut().expect("the argument is at the bottom").add(attr);
                    }
                }
                Visit::Leave(..) => {
                    let mut done = open.pop().expect("it was entered");
                    done.complete(&client).with_context(|| space_of(&place))?;
                    let above = open.last_mut().expect("the argument is at the bottom");
                    above.bytes += done.bytes;
                    above.allocated_bytes += done.allocated_bytes;
                    above.files += done.files;
                    if !args.summarize {
                        sums.push(done.sum(place.with_path(done.path.clone()).display()));
                    }
                }
            }
            Ok(())
        };
        tree::walk(&client, &place.path, &attr, &mut visit, &mut |path, error| {
            let place = place.with_path(path.into());
            failures.report(&error.context(format!("cannot list {}", place.typed())));
        })?;
        let mut whole = open.pop().expect("the argument is at the bottom");
        whole.complete(&client).with_context(|| space_of(&place))?;
        if args.summarize || attr.kind != FileKind::Directory {
            sums.push(whole.sum(place.display()));
        }
    }
    if args.json {
        output::print_json(&sums)?;
        return failures.result();
    }
    let mut out = output::stdout();
    for sum in sums {
        let bytes = match (args.bytes, args.human) {
            (true, false) => sum.bytes.to_string(),
            (true, true) => size::format_bytes(sum.bytes),
            (false, _) => size::format_bytes(sum.allocated_bytes),
        };
        writeln!(out, "{bytes:>10}  {}", sum.path)?;
    }
    out.flush()?;
    failures.result()
}
