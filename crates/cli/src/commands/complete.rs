//! `weft complete`: what the shells' completions ask.

use crate::help::SUBJECTS;
use anyhow::Result;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use weft_cli_common::connections::at;
use weft_cli_common::output;
use weft_cli_common::place::WeftPath;
use weft_client::{Client, ConnectOptions, Url};
use weft_wire::messages::FileKind;

/// A user waits at a prompt. After this time there are no candidates, wherever the time went.
const PATIENCE: Duration = Duration::from_millis(1500);
/// More names than a shell would show.
const NAMES_MAX: usize = 2000;

/// Prints how a word could go on, one candidate on each line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the word is.
    what: What,
    /// Its beginning.
    #[arg(default_value = "", allow_hyphen_values = true)]
    word: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// A path in a Weft file system.
    Path,
    /// A subject of `weft help`.
    Subject,
}

/// Prints candidates. Without a connection, or a key, there are none: a prompt is no place for errors.
pub fn run(args: Args) -> Result<()> {
    let candidates = match args.what {
        What::Subject => SUBJECTS.iter().map(|subject| subject.name.to_owned()).collect(),
        What::Path => in_time(args.word.clone()),
    };
    candidates.iter().filter(|candidate| candidate.starts_with(&args.word)).try_for_each(output::print_line)
}

/// [`paths`], or nothing if that fails or takes too long. The thread ends with this program.
fn in_time(word: String) -> Vec<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(paths(&word).unwrap_or_default()));
    receiver.recv_timeout(PATIENCE).unwrap_or_default()
}

/// `weft:/da` becomes `weft:/data/` and `weft:/dates`.
fn paths(word: &str) -> Result<Vec<String>> {
    let (front, begun) = word.rfind('/').map_or((word, ""), |at| word.split_at(at + 1));
    let place = WeftPath::from_argument(front)?;
    let patience_ms = PATIENCE.as_millis() as u64;
    let options = ConnectOptions {
        retry_timeout_ms: patience_ms,
        connect_timeout_ms: patience_ms,
        reply_timeout_ms: patience_ms,
        ..ConnectOptions::default()
    };
    let client = Client::connect(&Url::parse(&place.url)?, options)?;
    names(&client, &place.path, begun).map(|names| {
        let slash = if front.ends_with('/') { "" } else { "/" };
        names.into_iter().map(|name| format!("{front}{slash}{name}")).collect()
    })
}

/// Names in a directory that begin so, those of directories with a slash. Hidden ones only where the beginning is hidden.
fn names(client: &Client, dir: &Path, begun: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in client.read_dir(at(dir))? {
        let entry = entry?;
        let Ok(name) = String::from_utf8(entry.name) else { continue };
        if !name.starts_with(begun) || name.starts_with('.') && begun.is_empty() || name.contains('\n') {
            continue;
        }
        let kind = entry.attr.map(|attr| attr.kind);
        let is_dir = match kind {
            // What it leads to counts.
            Some(FileKind::Symlink) | None => {
                client.stat(at(&dir.join(&name)), true).is_ok_and(|attr| attr.kind == FileKind::Directory)
            }
            Some(kind) => kind == FileKind::Directory,
        };
        found.push(if is_dir { name + "/" } else { name });
        if found.len() == NAMES_MAX {
            break;
        }
    }
    found.sort();
    Ok(found)
}
