//! `weft cp`

use super::LayoutArgs;
use crate::copy::{self, Kind, Options, Outcome, Pair, Side};
use crate::place::Place;
use crate::session::{ConnectArgs, Session};
use crate::{Reported, size};
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Copies files into, out of and between weft file systems: several at once, and large ones in several parts at once. Sparse files
/// stay sparse.
///
/// As with cp, the last argument is where to: into it where it is a directory. Symbolic links are copied as links with -r and
/// followed without. Where something cannot be copied the rest goes on; what failed is listed and the exit code is 1.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to copy, and where to; on either side weft://HOST:PORT/PATH or a local path.
    #[arg(required = true, num_args = 2.., value_name = "PLACE")]
    places: Vec<String>,
    /// Directories too, with everything in them.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep mode and times, and owner and group where that is allowed.
    #[arg(short, long)]
    preserve: bool,
    /// Files, or parts of large files, at once.
    #[arg(short, long, value_name = "COUNT", default_value_t = 4, value_parser = parse_jobs)]
    jobs: usize,
    /// No progress bar.
    #[arg(short, long)]
    quiet: bool,
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
    let session = Session::new(&args.connect);
    let (last, first) = args.places.split_last().expect("two at least");
    let to = ends(&session, last)?.swap_remove(0);
    let mut from = Vec::new();
    for argument in first {
        let contents = argument.ends_with("/.") || argument == ".";
        from.extend(ends(&session, argument)?.into_iter().map(|end| (end, contents)));
    }
    let pairs = pair_up(from, &to)?;
    let options = Options {
        recursive: args.recursive,
        preserve: args.preserve,
        jobs: args.jobs,
        layout: args.layout.wish()?,
        umask: super::mkdir::umask(),
    };
    let bar = progress_bar(args.quiet);
    let begun = Instant::now();
    let outcome = copy::copy(pairs, &options, &bar);
    bar.finish_and_clear();
    report(&outcome, begun.elapsed().as_secs_f64(), !args.quiet && !bar.is_hidden())
}

/// What an argument stands for, wildcards expanded.
fn ends(session: &Session, argument: &str) -> Result<Vec<End>> {
    match Place::from_argument(argument)? {
        Place::Local(path) => Ok(vec![End { side: Side::Local, path }]),
        Place::Weft(place) => {
            let client = session.client(&place.url)?;
            let end = |found: crate::place::WeftPath| End {
                side: Side::Weft { client: client.clone(), url: place.url.clone() },
                path: found.path,
            };
            Ok(place.expand(&client)?.into_iter().map(end).collect())
        }
    }
}

/// The target's name for each source: `to` itself, or inside of it where it is a directory.
fn pair_up(from: Vec<(End, bool)>, to: &End) -> Result<Vec<Pair>> {
    let into_dir = to.side.meta(&to.path, true).is_ok_and(|meta| meta.kind == Kind::Directory);
    if from.len() > 1 && !into_dir {
        bail!("{} is not a directory, and there are {} to copy", to.side.display(&to.path), from.len());
    }
    let mut pairs = Vec::new();
    for (end, contents) in from {
        if matches!((&end.side, &to.side), (Side::Local, Side::Local)) {
            bail!("{} and {} are both local; use cp", end.path.display(), to.path.display());
        }
        let name = end.path.file_name().filter(|_| into_dir && !contents);
        let to_path = name.map_or_else(|| to.path.clone(), |name| to.path.join(Path::new(name)));
        pairs.push(Pair { from_side: end.side, from: end.path, to_side: to.side.clone(), to: to_path });
    }
    Ok(pairs)
}

fn progress_bar(quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(5) };
    let template = "{bar:30} {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is correct");
    ProgressBar::with_draw_target(Some(0), target).with_style(style)
}

fn report(outcome: &Outcome, seconds: f64, tell: bool) -> Result<()> {
    if tell {
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
