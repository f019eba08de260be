//! `weft sync`

use crate::copy::{self, Existing, Options, Outcome, Pair, Pattern, Rules};
use crate::new_files::LayoutArgs;
use crate::progress::progress_bar;
use anyhow::{Context, Result, bail};
use clap::ArgMatches;
use serde_json::json;
use std::time::Instant;
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::{Reported, output, size};

use super::cp::{End, end_of, parse_jobs};

/// Makes a tree the same as another.
///
/// `weft sync A B` makes B what A is: what A has and B has not, or has otherwise, is copied; with --delete what
/// only B has is removed. A and B are directories, or files. One of them at least is in Weft. Unlike with rsync, a slash at the
/// end of a directory's name means nothing: the contents of A go into B. A file goes into a directory that is there, and into a new one if the
/// target ends with a slash. A directory does not take the place of a file that is given as the target, nor of a dangling link, and a
/// file that of a directory only with --delete, even if that is empty. Nothing is made for a source that cannot be read.
///
/// A file is taken for the same if it has the same size and modification time, to the nanosecond; with
/// --checksum, if it has the same contents. The I/O servers are asked once for each directory whether they have lost data of
/// its files. Where one has, or does not answer, the contents are compared, and a file that cannot be read is copied again.
///
/// Modes, times and symbolic links are kept, with --owner also owners and groups. Devices, sockets and pipes are left out. Sparse
/// files stay sparse.
///
/// Links in A and B are never followed, only those in the arguments. So root can sync into and out of trees of users, who may swap
/// directories for links meanwhile.
///
/// A file is written under a temporary name, and gets its own when it is complete, with its times. So a sync
/// can be stopped at any time, also by kill -9, and run again: it goes on with what is missing, and with a
/// large file where that was. Each run removes what a killed one has left.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  weft sync ~/data weft:/data                        once more later: only what has changed
  weft sync weft:/results ./results --delete -v
  weft sync src weft:/src --exclude target --exclude '*.o' --dry-run")]
pub struct Args {
    /// What the target is to be like, as weft://HOST:PORT/PATH or a local path.
    #[arg(value_name = "SOURCE")]
    source: String,
    /// What is made the same.
    #[arg(value_name = "TARGET")]
    target: String,
    /// Remove what the source does not have. Nothing is removed if something could not be read or copied.
    #[arg(long)]
    delete: bool,
    /// Compare the contents of files that have the same size, not their times.
    #[arg(short, long)]
    checksum: bool,
    /// Only say what would be done.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Leave out what matches, and do not remove it; may be repeated. A pattern with a slash is for the path below
    /// the source, one without for names in any directory.
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Do not leave out what matches; counts before patterns of --exclude that come after it.
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Keep owners and groups, where permitted.
    #[arg(short, long)]
    owner: bool,
    /// Say what is done, line by line.
    #[arg(short, long)]
    verbose: bool,
    /// How many files, or parts of large files, to copy at once.
    #[arg(short, long, value_name = "COUNT", default_value_t = 4, value_parser = parse_jobs)]
    jobs: usize,
    /// Show no progress bar and no summary.
    #[arg(short, long)]
    quiet: bool,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Makes the target the same.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let (from, to) = (end_of(&connections, &args.source)?, end_of(&connections, &args.target)?);
    if let (copy::Side::Local, copy::Side::Local) = (&from.side, &to.side) {
        bail!("{} and {} are both local; use rsync for these", args.source, args.target);
    }
    let rules = Rules { delete: args.delete, checksum: args.checksum, patterns: patterns(&args)? };
    let options = Options {
        recursive: true,
        preserve: true,
        owner: args.owner,
        existing: Existing::Overwrite,
        dry_run: args.dry_run,
        verbose: (args.verbose || args.dry_run) && !args.json,
        jobs: args.jobs,
        layout: args.layout.wish()?,
        umask: 0,
    };
    let End { side: from_side, path: from } = from;
    let pair = Pair { from_side, from, to_side: to.side, to: to.path, is_in_dir: false };
    let bar = progress_bar(args.quiet || args.json || options.verbose);
    let begun = Instant::now();
    let outcome = copy::sync(&pair, &rules, &options, &bar)?;
    bar.finish_and_clear();
    report(&args, &outcome, begun.elapsed().as_secs_f64())
}

/// In the order of the command line, as the first that matches counts.
fn patterns(args: &Args) -> Result<Vec<Pattern>> {
    let matches = sub_matches();
    let places =
        |name: &str| matches.as_ref().and_then(|matches| matches.indices_of(name)).into_iter().flatten();
    let mut all = Vec::new();
    for (globs, places, excludes) in
        [(&args.exclude, places("exclude"), true), (&args.include, places("include"), false)]
    {
        let mut places = places;
        for glob in globs {
            let pattern =
                Pattern::parse(glob, excludes).with_context(|| format!("`{glob}` is not a pattern"))?;
            all.push((places.next().unwrap_or(usize::from(excludes)), pattern));
        }
    }
    all.sort_by_key(|(place, _)| *place);
    Ok(all.into_iter().map(|(_, pattern)| pattern).collect())
}

/// This command's arguments with their places.
fn sub_matches() -> Option<ArgMatches> {
    use clap::CommandFactory;
    let matches = crate::args::Cli::command().try_get_matches().ok()?;
    matches.subcommand_matches("sync").cloned()
}

fn report(args: &Args, outcome: &Outcome, seconds: f64) -> Result<()> {
    let Outcome { files, same, removed, bytes, failed } = outcome;
    if args.json {
        output::print_json(&json!({
            "copied": files,
            "same": same,
            "removed": removed,
            "bytes": bytes,
            "seconds": seconds,
            "dry_run": args.dry_run,
            "failed": failed,
        }))?;
    } else if !args.quiet {
        let bytes = size::format_bytes(*bytes);
        let would = if args.dry_run { " (nothing was changed)" } else { "" };
        eprintln!("{files} copied ({bytes}), {same} the same, {removed} removed in {seconds:.1} s{would}");
    }
    if failed.is_empty() {
        return Ok(());
    }
    eprintln!("weft: {} could not be copied", failed.len());
    Err(Reported.into())
}
