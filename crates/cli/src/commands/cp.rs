//! `weft cp`

use crate::copy::{self, Kind, Options, Outcome, Pair, Side};
use crate::new_files::{LayoutArgs, umask};
use crate::part::{Part, Subarray};
use crate::progress::progress_bar;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::time::Instant;
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::place::Place;
use weft_cli_common::{Reported, size};

/// Copies files into, out of and between Weft file systems.
///
/// It copies several files at once, and several parts of a large file. Sparse files stay sparse.
///
/// As with cp, the last argument is the target; if it is a directory, files are copied into it. With -r
/// symbolic links are copied as links, otherwise they are followed. If something cannot be copied, the rest
/// is still copied, the failures are listed and the exit code is 1.
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
    /// How many files, or parts of large files, to copy at once.
    #[arg(short, long, value_name = "COUNT", default_value_t = 4, value_parser = parse_jobs)]
    jobs: usize,
    /// Show no progress bar.
    #[arg(short, long)]
    quiet: bool,
    /// Copy one block of an array, given as DIMS:STARTS:COUNTS:ELEMENT[:C|F]; see `weft help dump`.
    #[arg(long, value_name = "SPEC", value_parser = Subarray::parse,
          conflicts_with_all = ["recursive", "preserve", "jobs"])]
    subarray: Option<Subarray>,
    /// With --subarray: the offset of the array in the Weft file.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes, requires = "subarray")]
    offset: Option<u64>,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn parse_jobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(jobs @ 1..=256) => Ok(jobs),
        _ => Err("must be from 1 to 256".into()),
    }
}

/// One side of the copy, and a path on it.
struct End {
    side: Side,
    path: PathBuf,
}

/// Copies.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let (last, first) = args.places.split_last().expect("two at least");
    let to = ends(&connections, last)?.swap_remove(0);
    let mut from = Vec::new();
    for argument in first {
        let contents = argument.ends_with("/.") || argument == ".";
        from.extend(ends(&connections, argument)?.into_iter().map(|end| (end, contents)));
    }
    let mut pairs = pair_up(from, &to)?;
    let options = Options {
        recursive: args.recursive,
        preserve: args.preserve,
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

/// The files that an argument names, wildcards expanded.
fn ends(connections: &Connections, argument: &str) -> Result<Vec<End>> {
    match Place::from_argument(argument)? {
        Place::Local(path) => Ok(vec![End { side: Side::Local, path }]),
        Place::Weft(place) => {
            let client = connections.client(&place.url)?;
            let end = |found: weft_cli_common::place::WeftPath| End {
                side: Side::Weft { client: client.clone(), url: place.url.clone() },
                path: found.path,
            };
            Ok(place.expand(&client)?.into_iter().map(end).collect())
        }
    }
}

/// Pairs each source with its target's name: `to` itself, or a name in it if it is a directory.
fn pair_up(from: Vec<(End, bool)>, to: &End) -> Result<Vec<Pair>> {
    let into_dir = to.side.meta(&to.path, true).is_ok_and(|meta| meta.kind == Kind::Directory);
    if from.len() > 1 && !into_dir {
        bail!("{} is not a directory; it cannot take {} sources", to.side.display(&to.path), from.len());
    }
    let mut pairs = Vec::new();
    for (end, contents) in from {
        if matches!((&end.side, &to.side), (Side::Local, Side::Local)) {
            bail!("{} and {} are both local; use cp to copy them", end.path.display(), to.path.display());
        }
        let name = end.path.file_name().filter(|_| into_dir && !contents);
        let to_path = name.map_or_else(|| to.path.clone(), |name| to.path.join(Path::new(name)));
        pairs.push(Pair { from_side: end.side, from: end.path, to_side: to.side.clone(), to: to_path });
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
    eprintln!("weft: {} could not be copied:", outcome.failed.len());
    outcome.failed.iter().for_each(|failed| eprintln!("  {failed}"));
    Err(Reported.into())
}
