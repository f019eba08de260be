//! `weft cp`

use crate::copy::{self, Existing, Kind, Options, Outcome, Pair, Side};
use crate::new_files::{LayoutArgs, umask};
use crate::part::{Part, Subarray};
use crate::progress::progress_bar;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Instant;
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::place::{Place, WeftPath, ends_with_dots, last_component};
use weft_cli_common::{Reported, size};

/// Copies files into, out of and between Weft file systems.
///
/// It copies several files at once, and several parts of a large file. Sparse files stay sparse.
///
/// As with cp, the last argument is the target; if it is a directory, files are copied into it. With -r
/// symbolic links are copied as links, otherwise they are followed. A slash at the end of the target asks for a
/// directory. Two sources of one name are not copied over each other. If something cannot be copied, the rest
/// is still copied, the failures are counted and the exit code is 1.
///
/// Unlike cp, it follows only links that are arguments. If the target directory has a link with the name of a source, the copy is
/// refused; cp would write to the file behind it. So root can copy into trees of users, who may swap directories for links
/// meanwhile. A directory is not copied into itself, not even in part.
///
/// A file that is there is emptied and written anew, and keeps its striping and its other names. A new file gets its
/// name when it is complete: until then it is `.NAME.weft-…` (`weft sync` removes what a killed copy leaves). A copy
/// of a large file that was killed goes on where it was, if the source has not changed.
///
/// `-` as the source is standard input, as the target standard output.
///
/// With --subarray, one side is an array in a Weft file, and the other a local file that holds one block of
/// it.
///
/// From Weft: the local file is created or overwritten. The whole block must be in the Weft file.
///
/// To Weft: the local file must have exactly the block's size. The Weft file is created if it does not exist.
/// Otherwise it keeps everything outside the block, and grows if the block ends beyond its end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  weft cp -r results weft:/                                   a directory into the root
  tar c src | weft cp - weft:/src.tar                         from standard input
  weft cp --subarray 1000,500:10,0:2,8:f64 weft:/a block.bin  a[10:12, 0:8] of doubles
  weft cp --subarray 1000,500:10,0:2,8:f64 block.bin weft:/a  and back again")]
pub struct Args {
    /// The sources and the target, each as weft://HOST:PORT/PATH or a local path.
    #[arg(required = true, num_args = 2.., value_name = "PLACE")]
    places: Vec<String>,
    /// Copy directories and everything in them.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep modes and times, and owners and groups where permitted.
    #[arg(short, long)]
    preserve: bool,
    /// Leave files alone that are there and not older than the source.
    #[arg(short, long)]
    update: bool,
    /// Leave all files alone that are there.
    #[arg(short, long, conflicts_with = "update")]
    no_clobber: bool,
    /// How many files, or parts of large files, to copy at once.
    #[arg(short, long, value_name = "COUNT", default_value_t = 4, value_parser = parse_jobs)]
    jobs: usize,
    /// Show no progress bar.
    #[arg(short, long)]
    quiet: bool,
    /// Copy one block of an array, given as DIMS:STARTS:COUNTS:ELEMENT[:C|F]; see `weft help dump`.
    #[arg(long, value_name = "SPEC", value_parser = Subarray::parse,
          conflicts_with_all = ["recursive", "preserve", "jobs", "update", "no_clobber"])]
    subarray: Option<Subarray>,
    /// With --subarray: the offset of the array in the Weft file.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes, requires = "subarray")]
    offset: Option<u64>,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) fn parse_jobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(jobs @ 1..=256) => Ok(jobs),
        _ => Err("must be from 1 to 256".into()),
    }
}

/// Standard input or output.
const STREAM: &str = "-";

/// One side of the copy, and a path on it.
pub(super) struct End {
    pub side: Side,
    pub path: PathBuf,
}

/// Copies.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    if args.places.iter().any(|place| place == STREAM) {
        return copy_stream(&connections, &args);
    }
    let (last, first) = args.places.split_last().expect("two at least");
    let to = ends(&connections, last)?.swap_remove(0);
    let mut from = Vec::new();
    for argument in first {
        from.extend(ends(&connections, argument)?);
    }
    let mut pairs = pair_up(from, &to)?;
    let options = Options {
        recursive: args.recursive,
        preserve: args.preserve,
        owner: args.preserve,
        existing: match &args {
            Args { update: true, .. } => Existing::Update,
            Args { no_clobber: true, .. } => Existing::Keep,
            _ => Existing::Overwrite,
        },
        dry_run: false,
        verbose: false,
        jobs: args.jobs,
        layout: args.layout.wish()?,
        umask: umask(),
    };
    let bar = progress_bar(args.quiet);
    let begun = Instant::now();
    let outcome = match &args.subarray {
        None => copy::copy(pairs, &options, &bar),
        Some(_) if pairs.len() > 1 => bail!("--subarray copies one file, but {} were given", pairs.len()),
        Some(subarray) => {
            let part = Part::array(args.offset.unwrap_or(0), subarray)?;
            copy::copy_part(&pairs.swap_remove(0), &part, &options, &bar)?
        }
    };
    bar.finish_and_clear();
    report(&outcome, begun.elapsed().as_secs_f64(), !args.quiet && !bar.is_hidden())
}

/// Copies from standard input, or to standard output.
fn copy_stream(connections: &Connections, args: &Args) -> Result<()> {
    let [from, to] = args.places.as_slice() else {
        bail!("`-` is one source and one target at a time");
    };
    if args.recursive || args.preserve || args.update || args.no_clobber || args.subarray.is_some() {
        bail!("`-` has no attributes, and is no directory or array: leave out -r, -p, -u, -n and --subarray");
    }
    if from == STREAM && to == STREAM {
        bail!("both are `-`; use cat");
    }
    let weft = |place: &str| -> Result<(weft_client::Client, WeftPath)> {
        match Place::from_argument(place)? {
            Place::Weft(place) => Ok((connections.client(&place.url)?, place)),
            Place::Local(path) => bail!("{} is local; use cat", path.display()),
        }
    };
    if to == STREAM {
        let (client, place) = weft(from)?;
        return copy::to_stdout(&client, &place.path).with_context(|| place.typed());
    }
    let (client, place) = weft(to)?;
    let bytes = copy::from_stdin(&client, &place.path, args.layout.wish()?.as_ref(), 0o666 & !umask());
    bytes.map(drop).with_context(|| place.typed())
}

/// The one file or directory that an argument names.
pub(super) fn end_of(connections: &Connections, argument: &str) -> Result<End> {
    match Place::from_argument(argument)? {
        Place::Local(path) => Ok(End { side: Side::Local, path }),
        Place::Weft(place) => {
            let client = connections.client(&place.url)?;
            let path = place.path.clone();
            Ok(End { side: Side::Weft { client, given: place }, path })
        }
    }
}

/// The files that an argument names, wildcards expanded.
fn ends(connections: &Connections, argument: &str) -> Result<Vec<End>> {
    match Place::from_argument(argument)? {
        Place::Local(path) => Ok(vec![End { side: Side::Local, path }]),
        Place::Weft(place) => {
            let client = connections.client(&place.url)?;
            let end = |found: weft_cli_common::place::WeftPath| End {
                side: Side::Weft { client: client.clone(), given: place.clone() },
                path: found.path,
            };
            Ok(place.expand(&client)?.into_iter().map(end).collect())
        }
    }
}

/// Pairs each source with its target's name: `to` itself, or a name in it if it is a directory.
fn pair_up(from: Vec<End>, to: &End) -> Result<Vec<Pair>> {
    let into_dir = to.side.meta(&to.path, true).is_ok_and(|meta| meta.kind == Kind::Directory);
    if from.len() > 1 && !into_dir {
        bail!("{} is not a directory; it cannot take {} sources", to.side.display(&to.path), from.len());
    }
    let mut pairs = Vec::new();
    for end in from {
        if matches!((&end.side, &to.side), (Side::Local, Side::Local)) {
            bail!("{} and {} are both local; use cp to copy them", end.path.display(), to.path.display());
        }
        // The contents of `DIR/.` and `DIR/..` go into the target itself.
        let is_dots = ends_with_dots(&end.path);
        let name = if is_dots { OsStr::new(".") } else { last_component(&end.path) };
        let to_path = if into_dir { to.path.join(name) } else { to.path.clone() };
        let is_in_dir = into_dir && !is_dots && !name.is_empty();
        let (from_side, from, to_side) = (end.side, end.path.clone(), to.side.clone());
        pairs.push(Pair { from_side, from, to_side, to: to_path, is_in_dir });
    }
    Ok(pairs)
}

fn report(outcome: &Outcome, seconds: f64, with_summary: bool) -> Result<()> {
    if with_summary {
        let rate = size::mib_per_s(outcome.bytes, seconds);
        let bytes = size::format_bytes(outcome.bytes);
        let files = outcome.files;
        let plural = if files == 1 { "" } else { "s" };
        eprintln!("{files} file{plural}, {bytes} in {seconds:.1} s, {rate:.0} MiB/s");
    }
    if outcome.failed.is_empty() {
        return Ok(());
    }
    eprintln!("weft: {} could not be copied", outcome.failed.len());
    Err(Reported.into())
}
