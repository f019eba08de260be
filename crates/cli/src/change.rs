//! Changes of attributes: of files that are given, and with `-R` of everything below them.

use crate::exit::Failures;
use anyhow::Result;
use std::cell::RefCell;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::{WeftPath, expand_all};
use weft_cli_common::told::Told;
use weft_cli_common::tree::{self, Visit};
use weft_client::Client;
use weft_wire::messages::{Attr, Caller};

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
                self.walk(&client, &place, &attr, change, &mut failures)?;
            }
        }
        failures.result()
    }

    fn walk(
        &self,
        client: &Client,
        place: &WeftPath,
        attr: &Attr,
        change: &mut dyn FnMut(&Found<'_>) -> Result<()>,
        failures: &mut Failures,
    ) -> Result<()> {
        if !self.recursive {
            failures.ok(change(&Found { client, place, attr }));
            return Ok(());
        }
        let failures = RefCell::new(failures);
        let mut visit = |visit: Visit<'_>| {
            if let Visit::Enter(path, attr) = visit {
                let changed = change(&Found { client, place: &place.with_path(path.into()), attr });
                failures.borrow_mut().ok(changed);
            }
            Ok(())
        };
        tree::walk(client, &place.path, attr, &mut visit, &mut |path, error| {
            let directory = place.with_path(path.into());
            let error = error.context(format!("cannot list {}", directory.typed()));
            failures.borrow_mut().report(&error);
        })
    }
}
