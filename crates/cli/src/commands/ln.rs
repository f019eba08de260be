//! `weft ln`

use crate::copy::random_name;
use crate::exit::Failures;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{Place, WeftPath, expand_all, last_component};
use weft_cli_common::told::Told;
use weft_client::Client;
use weft_wire::messages::FileKind;

/// Makes links: other names of files, or with -s symbolic links.
///
/// As with ln, the last argument is the new name, or a directory in which links get the names of their targets.
///
/// The target of a symbolic link is kept unchanged: a relative one starts at the directory of the link. A
/// target that is written as weft:/PATH or weft://… becomes a relative one, so that it is right on every mount.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  weft ln weft:/data/a weft:/data/b             another name of a file
  weft ln -s ../data/a weft:/work/a             a symbolic link
  weft ln -s weft:/data weft:/work/             the link /work/data, to ../data
  weft ln -sfn run42 weft:/runs/latest          replace a link to a directory, at once for all clients")]
pub struct Args {
    /// The targets, and the new name or a directory.
    #[arg(required = true, num_args = 2.., value_name = "PLACE")]
    places: Vec<String>,
    /// Make symbolic links.
    #[arg(short, long)]
    symbolic: bool,
    /// Replace files that have the new name. Directories are never replaced.
    #[arg(short, long)]
    force: bool,
    /// If the last argument is a symbolic link to a directory, it is the new name, not the directory.
    #[arg(short, long)]
    no_dereference: bool,
    /// The last argument is the new name, also if it is a directory.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Without -s: if a target is a symbolic link, make another name of what it points to.
    #[arg(short = 'L', long, conflicts_with = "symbolic")]
    logical: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The target of a link.
enum Target {
    /// A symbolic link with this text.
    Text(Vec<u8>),
    /// Another name of this file.
    File(WeftPath),
}

/// A link that is to be made.
struct Link {
    target: Target,
    /// The target in words of the user.
    typed: String,
    place: WeftPath,
}

/// Makes a link for each argument, and reports those that could not be made.
pub fn run(args: Args) -> Result<()> {
    let connections = Connections::new(&args.connect);
    let (last, first) = args.places.split_last().expect("two at least");
    let to = WeftPath::from_argument(last)?;
    let client = connections.client(&to.url)?;
    let into_dir = !args.no_target_directory
        && client.stat(at(&to.path), !args.no_dereference).is_ok_and(|attr| attr.kind == FileKind::Directory);
    let mut failures = Failures::default();
    let mut made = HashSet::new();
    let targets = match args.symbolic {
        true => first.iter().map(|text| (text.clone(), None)).collect(),
        false => files(&connections, first, &to)?,
    };
    if targets.len() > 1 && !into_dir {
        bail!("{} is not a directory; it cannot take {} links", to.typed(), targets.len());
    }
    for (typed, file) in targets {
        let name = file.as_ref().map_or(Path::new(&typed), |file| &file.path);
        let path = if into_dir { to.path.join(last_component(name)) } else { to.path.clone() };
        let place = to.with_path(path);
        // As with ln, of several symbolic links with one name the last one stays.
        if !made.insert(place.path.clone()) && file.is_some() {
            failures.report(&anyhow!("{} is not replaced: it was just made", place.typed()));
            continue;
        }
        let target = match file {
            Some(file) => Ok(Target::File(file)),
            None => text_of(&connections, &client, &typed, &place).map(Target::Text),
        };
        let Some(target) = failures.ok(target) else { continue };
        failures.ok(make(&args, &client, &Link { target, typed, place }));
    }
    failures.result()
}

/// The files that get another name, each with its typed text.
fn files(
    connections: &Connections,
    arguments: &[String],
    to: &WeftPath,
) -> Result<Vec<(String, Option<WeftPath>)>> {
    let found = expand_all(connections, arguments)
        .with_context(|| "without -s, the targets are files in Weft")?
        .into_iter()
        .map(|(_, file)| file);
    let mut all = Vec::new();
    for file in found {
        if file.url != to.url {
            bail!("{} and {} are in different file systems", file.typed(), to.typed());
        }
        all.push((file.typed(), Some(file)));
    }
    Ok(all)
}

/// The text of a symbolic link.
fn text_of(connections: &Connections, client: &Client, typed: &str, link: &WeftPath) -> Result<Vec<u8>> {
    let Place::Weft(target) = Place::from_argument(typed)? else { return Ok(typed.as_bytes().to_vec()) };
    if connections.client(&target.url)?.map().cluster_id != client.map().cluster_id {
        bail!("{} and {} are in different file systems", target.typed(), link.typed());
    }
    let directory = link.path.parent().unwrap_or(Path::new("/"));
    let text = relative(&link.with_path(directory.into()).tidied().path, &target.tidied().path);
    let ino = |path: &Path| client.stat(at(path), true).ok().map(|attr| attr.ino);
    let meant = ino(&target.path);
    if meant.is_some() && ino(&directory.join(&text)) != meant {
        let shown = text.display();
        bail!(
            "{}: {shown} would lead elsewhere, because of symbolic links; write the text of the link",
            link.typed()
        );
    }
    Ok(text.into_os_string().into_encoded_bytes())
}

/// The path from a directory to a target. Both are absolute and have no dots.
fn relative(directory: &Path, target: &Path) -> PathBuf {
    let common = directory.components().zip(target.components()).take_while(|(a, b)| a == b).count();
    let up = directory.components().skip(common).map(|_| OsStr::new(".."));
    let path: PathBuf = up.chain(target.components().skip(common).map(|part| part.as_os_str())).collect();
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
}

fn make(args: &Args, client: &Client, link: &Link) -> Result<()> {
    let make_at = |path: &Path| match &link.target {
        Target::Text(text) => client.symlink(at(path), text).map(drop),
        Target::File(file) => client.link(at(&file.path), args.logical, at(path)).map(drop),
    };
    let what = || format!("link {} to {}", link.place.typed(), link.typed);
    match make_at(&link.place.path) {
        Err(error) if error.errno() == libc::EEXIST && args.force => {
            refuse_to_replace(args, client, link)?;
            replace(client, &link.place.path, &make_at).told_as(what)
        }
        made => made.told_as(what),
    }
}

/// Directories stay, and so does the only name of a file.
fn refuse_to_replace(args: &Args, client: &Client, link: &Link) -> Result<()> {
    let path = &link.place.path;
    let there = client.stat(at(path), false).told("look up", &link.place)?;
    if there.kind == FileKind::Directory {
        bail!("{} is a directory; it is not replaced", link.place.typed());
    }
    let Target::File(file) = &link.target else { return Ok(()) };
    let source = client.stat(at(&file.path), args.logical).told("look up", file)?;
    let directory =
        |path: &Path| client.stat(at(path.parent().unwrap_or(path)), true).ok().map(|attr| attr.ino);
    let is_same_name =
        last_component(path) == last_component(&file.path) && directory(path) == directory(&file.path);
    if source.ino == there.ino && (source.nlink == 1 || is_same_name) {
        bail!("{} and {} are the same file", file.typed(), link.place.typed());
    }
    Ok(())
}

/// Makes the link under a temporary name and gives it its own, at once for all clients.
fn replace(
    client: &Client,
    path: &Path,
    make_at: &dyn Fn(&Path) -> weft_client::Result<()>,
) -> weft_client::Result<()> {
    let temporary = path.with_file_name(random_name(last_component(path)));
    make_at(&temporary)?;
    let renamed = client.rename(at(&temporary), at(path), 0);
    // Names of one file are not renamed, and after an error the temporary one is left.
    match client.unlink(at(&temporary)) {
        Err(error) if error.errno() != libc::ENOENT => renamed.and(Err(error)),
        _ => renamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_targets_lead_from_the_directory_of_the_link() {
        for (directory, target, text) in [
            ("/", "/a", "a"),
            ("/a", "/a/b", "b"),
            ("/a/b", "/a", ".."),
            ("/a/b", "/c/d", "../../c/d"),
            ("/a", "/a", "."),
            ("/a", "/ab", "../ab"),
        ] {
            assert_eq!(
                relative(Path::new(directory), Path::new(target)),
                Path::new(text),
                "{directory} {target}"
            );
        }
    }
}
