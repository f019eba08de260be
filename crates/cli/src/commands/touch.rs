//! `weft touch`

use crate::args::LongHelp;
use crate::exit::Failures;
use crate::moments;
use crate::new_files::umask;
use anyhow::{Context, Result, anyhow};
use std::os::unix::fs::MetadataExt;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{Place, WeftPath, expand_all};
use weft_cli_common::told::Told;
use weft_client::{Client, OpenOptions, SetAttr, SetTime};
use weft_wire::messages::Time;

/// Sets the times of files to now, or to a given time. Makes files that do not exist.
///
/// As with touch, a symbolic link stands for what it points to.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  weft touch weft:/data/new
  weft touch -d '2027-01-31 12:00' weft:/data/old
  weft touch -m -d '3 days ago' weft:/data/old
  weft touch -c -r results.txt weft:/data/results.txt"
)]
pub struct Args {
    /// Files and directories; missing ones are created empty.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Make no files.
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Only the time of the last access.
    #[arg(short = 'a', long = "access")]
    access: bool,
    /// Only the time of the last change.
    #[arg(short = 'm', long = "modification")]
    modification: bool,
    /// The time: a date, a time of day, both, @SECONDS since 1970, or words such as 3 days ago.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["stamp", "reference"])]
    date: Option<String>,
    /// The time, as `[[CC]YY]MMDDhhmm[.ss]`.
    #[arg(short = 't', value_name = "STAMP", conflicts_with = "reference")]
    stamp: Option<String>,
    /// The times of this file, in Weft or local.
    #[arg(short, long, value_name = "PLACE")]
    reference: Option<String>,
    /// Change symbolic links themselves; make no files.
    #[arg(short = 'h', long)]
    no_dereference: bool,
    #[command(flatten)]
    help: LongHelp,
    #[command(flatten)]
    connect: ConnectArgs,
}

const WHAT: &str = "touch";

/// Sets the times of all arguments, and creates missing files.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let changes = changes(&args, &connections)?;
    let mut failures = Failures::default();
    for argument in &args.places {
        let Some(found) = failures.ok(expand_all(&connections, std::slice::from_ref(argument))) else {
            continue;
        };
        for (client, place) in found {
            failures.ok(touch(&args, &client, &place, &changes));
        }
    }
    failures.result()
}

/// The times to set, from the options.
fn changes(args: &Args, connections: &Connections) -> Result<SetAttr> {
    let (atime, mtime) = match (&args.date, &args.stamp, &args.reference) {
        (Some(text), ..) => both(moments::parse(text, &now()).map_err(|error| anyhow!(error))?),
        (_, Some(text), _) => both(moments::parse_stamp(text, &now()).map_err(|error| anyhow!(error))?),
        (.., Some(reference)) => {
            let (atime, mtime) = times_of(connections, reference, !args.no_dereference)?;
            (SetTime::To(atime), SetTime::To(mtime))
        }
        _ => (SetTime::Now, SetTime::Now),
    };
    Ok(SetAttr {
        atime: Some(atime).filter(|_| args.access || !args.modification),
        mtime: Some(mtime).filter(|_| args.modification || !args.access),
        ..SetAttr::default()
    })
}

fn both(time: Time) -> (SetTime, SetTime) {
    (SetTime::To(time.clone()), SetTime::To(time))
}

fn now() -> Time {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

/// When a file was accessed and changed.
fn times_of(connections: &Connections, place: &str, follow: bool) -> Result<(Time, Time)> {
    match Place::from_argument(place)? {
        Place::Weft(place) => {
            let client = connections.client(&place.url)?;
            let attr = client.stat(at(&place.path), follow).told("read the times of", &place)?;
            Ok((attr.atime, attr.mtime))
        }
        Place::Local(path) => {
            let meta = if follow { std::fs::metadata(&path) } else { std::fs::symlink_metadata(&path) };
            let meta = meta.with_context(|| format!("cannot read the times of {}", path.display()))?;
            let time = |seconds, nanoseconds: i64| Time { seconds, nanoseconds: nanoseconds as u32 };
            Ok((time(meta.atime(), meta.atime_nsec()), time(meta.mtime(), meta.mtime_nsec())))
        }
    }
}

fn touch(args: &Args, client: &Client, place: &WeftPath, changes: &SetAttr) -> Result<()> {
    let set = |changes: &SetAttr| client.setattr(at(&place.path), !args.no_dereference, changes);
    match set(changes) {
        Err(error) if error.errno() == libc::ENOENT && args.no_create => Ok(()),
        Err(error) if error.errno() == libc::ENOENT && !args.no_dereference => {
            let options = OpenOptions::new().write(true).create(true).mode(0o666 & !umask());
            let made = client.open(at(&place.path), &options).and_then(|file| file.close());
            made.told(WHAT, place)?;
            let is_now = |time: &Option<SetTime>| time.as_ref().is_none_or(|time| *time == SetTime::Now);
            if is_now(&changes.atime) && is_now(&changes.mtime) {
                return Ok(());
            }
            set(changes).map(drop).told(WHAT, place)
        }
        set => set.map(drop).told(WHAT, place),
    }
}
