//! Changes of attributes: of files that are given, and with `-R` of everything below them.

use crate::exit::Failures;
use anyhow::Result;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, expand_all};
use weft_cli_common::told::Told;
use weft_client::{At, Client};
use weft_wire::messages::{Attr, Caller, FileKind};

/// Whom the command acts for.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ActArgs {
    /// Act as root. This needs a key that permits it, such as client.key.
    #[arg(long)]
    as_root: bool,
}

impl ActArgs {
    /// Whether root was asked for.
    pub fn is_root(&self) -> bool {
        self.as_root
    }

    fn client(&self, client: Client) -> Client {
        match self.as_root {
            true => client.with_caller(Caller { uid: 0, gid: 0, groups: Vec::new() }),
            false => client,
        }
    }
}

/// How a command reaches what it changes.
pub struct Reach<'a> {
    /// Typed names of files and directories.
    pub places: &'a [String],
    /// Also everything below directories. Symbolic links below are never followed.
    pub recursive: bool,
    /// Whether a symbolic link that is given stands for what it points to.
    pub follow: bool,
    /// Completes "cannot …".
    pub what: &'a str,
    pub act: &'a ActArgs,
    pub connect: &'a ConnectArgs,
}

/// A file that is to be changed.
pub struct Found<'a> {
    pub client: &'a Client,
    pub place: &'a WeftPath,
    pub attr: &'a Attr,
}

impl Reach<'_> {
    /// Passes everything to `change`. Failures are reported, and the rest is still changed.
    ///
    /// Inodes are changed by their numbers: a directory that is replaced by a symbolic link meanwhile leads nowhere else.
    pub fn each(&self, change: &mut dyn FnMut(&Found<'_>) -> Result<()>) -> Result<()> {
        let connections = Connections::new(self.connect);
        let mut failures = Failures::default();
        for argument in self.places {
            let Some(found) = failures.ok(expand_all(&connections, std::slice::from_ref(argument))) else {
                continue;
            };
            for (client, place) in found {
                let client = self.act.client(client);
                let attr = client.stat(at(&place.path), self.follow).told(self.what, &place);
                let Some(attr) = failures.ok(attr) else { continue };
                self.walk(&client, place, attr, change, &mut failures);
            }
        }
        failures.result()
    }

    fn walk(
        &self,
        client: &Client,
        place: WeftPath,
        attr: Attr,
        change: &mut dyn FnMut(&Found<'_>) -> Result<()>,
        failures: &mut Failures,
    ) {
        let mut waiting = vec![(place, attr)];
        while let Some((place, attr)) = waiting.pop() {
            failures.ok(change(&Found { client, place: &place, attr: &attr }));
            if !self.recursive || attr.kind != FileKind::Directory {
                continue;
            }
            let entries = list(client, attr.ino).told("list", &place);
            let entries = failures.ok(entries).unwrap_or_default();
            let below =
                entries.into_iter().map(|(name, attr)| (place.with_path(place.path.join(name)), attr));
            waiting.extend(below);
        }
    }
}

/// The entries of a directory.
fn list(client: &Client, ino: u64) -> weft_client::Result<Vec<(OsString, Attr)>> {
    let mut all = Vec::new();
    for entry in client.read_dir(At::ino(ino))? {
        let entry = entry?;
        let attr = match entry.attr {
            Some(attr) => attr,
            None => client.getattr(entry.ino)?,
        };
        all.push((OsString::from_vec(entry.name), attr));
    }
    // The last one is visited first.
    all.sort_by(|a, b| b.0.cmp(&a.0));
    Ok(all)
}
