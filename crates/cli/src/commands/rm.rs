//! `weft rm`

use crate::exit::Failures;
use anyhow::{Result, bail};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, ends_with_dots, ends_with_slash, expand_all, last_component};
use weft_cli_common::told::Told;
use weft_cli_common::tree::{self, Visit};
use weft_client::{At, Client};
use weft_wire::messages::FileKind;

/// Removes files and, with -r, directories and everything in them.
///
/// As with rm, a path that ends with `.` or `..` is refused. So is one that leads through a symbolic link because of the
/// slash at its end.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files and directories.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Remove directories and everything in them.
    #[arg(short, long)]
    recursive: bool,
    /// Ignore names that do not exist.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Removes files.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let mut failures = Failures::default();
    for argument in &args.places {
        let places = match expand_all(&connections, std::slice::from_ref(argument)) {
            Err(error) if args.force && error.to_string().contains("no file matches") => continue,
            places => places?,
        };
        for (client, place) in places {
            let removed = remove(&args, &client, &place, &mut failures);
            failures.ok(removed);
        }
    }
    failures.result()
}

/// The path without slashes at its end.
fn without_slash(path: &Path) -> PathBuf {
    path.components().collect()
}

/// The name of a path in the last of the directories.
fn in_last<'a>(dirs: &[u64], path: &'a Path) -> At<'a> {
    At::child(*dirs.last().expect("the parent is at the bottom"), last_component(path).as_bytes())
        .shown_as(path)
}

fn remove(args: &Args, client: &Client, place: &WeftPath, failures: &mut Failures) -> Result<()> {
    if place.path.parent().is_none() {
        bail!("{}: the root of a file system cannot be removed", place.typed());
    }
    let attr = match client.stat(at(&place.path), false) {
        Err(error) if args.force && matches!(error.errno(), libc::ENOENT | libc::ENOTDIR) => return Ok(()),
        attr => attr.told("remove", place)?,
    };
    if ends_with_dots(&place.path) {
        bail!("{}: `.` and `..` are not removed; give the directory's name", place.typed());
    }
    if attr.kind == FileKind::Directory && !args.recursive {
        bail!("{} is a directory; use -r to remove it with everything in it", place.typed());
    }
    if ends_with_slash(&place.path) && client.readlink(at(&without_slash(&place.path))).is_ok() {
        bail!("{} is a symbolic link; leave out the slash at the end to remove it", place.typed());
    }
    let mut errors = Vec::new();
    let mut unread = Vec::new();
    // The directories on the way, by their inode numbers: a link that is swapped in does not lead elsewhere.
    let parent = place.path.parent().unwrap_or(Path::new("/"));
    let mut dirs = vec![client.stat(at(parent), true).told("remove", place)?.ino];
    let mut visit = |visit: Visit<'_>| {
        let (removed, path) = match visit {
            Visit::Enter(path, attr) if attr.kind == FileKind::Directory => {
                dirs.push(attr.ino);
                (Ok(()), path)
            }
            Visit::Enter(path, _) => (client.unlink(in_last(&dirs, path)), path),
            Visit::Leave(path) => {
                dirs.pop();
                (client.rmdir(in_last(&dirs, path)), path)
            }
        };
        match removed {
            Err(error) if error.errno() != libc::ENOENT => {
                let failed: weft_client::Result<()> = Err(error);
                errors.extend(failed.told("remove", &place.with_path(path.into())).err());
            }
            _ => {}
        }
        Ok(())
    };
    tree::walk(client, &place.path, &attr, &mut visit, &mut |path, error| {
        let directory = place.with_path(path.into());
        unread.push(error.context(format!("cannot list {}", directory.typed())));
    })?;
    errors.iter().chain(&unread).for_each(|error| failures.report(error));
    Ok(())
}
