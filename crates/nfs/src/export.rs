//! Exports: which directories clients may mount, who they are there, and what they may do.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use nfs3_types::nfs3::nfs_fh3;
use weft_client::Client;
use weft_gateway::{Callers, Identities, Squash};
use weft_wire::messages::FileKind;

use crate::credential::Credential;
use crate::handle::{Handle, HandleKeys, Mark};
use crate::network::{Network, has_privileged_port};

/// What some clients may do with an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Which clients.
    pub clients: Network,
    /// They may change nothing.
    pub read_only: bool,
    /// They may come from ports that every user of their machines can use.
    pub insecure: bool,
    /// Who their users are here.
    pub identities: Identities,
}

impl Rule {
    /// What is usual: reading and writing, as root of the client nobody, and from ports of root only.
    pub fn for_clients(clients: Network) -> Rule {
        let identities = Identities { squash: Squash::Root, ..Identities::default() };
        Rule { clients, read_only: false, insecure: false, identities }
    }
}

/// A directory that clients may mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// Its path in the file system, which is also its name for clients.
    pub path: String,
    /// The first one for a client counts; a client without one is refused.
    pub rules: Vec<Rule>,
}

impl ExportOptions {
    /// The id of this export in handles: it stays the same as long as its path does.
    pub fn id(&self) -> u64 {
        let hash = blake3::derive_key("weft 1 nfs export id", normal_path(&self.path).as_bytes());
        u64::from_be_bytes(hash[..8].try_into().expect("8 of 32 bytes"))
    }
}

/// Whether one normal path is below another.
fn lies_in(path: &str, other: &str) -> bool {
    let below = path.strip_prefix(other.trim_end_matches('/'));
    path != other && below.is_some_and(|below| below.starts_with('/'))
}

/// A path with one slash at its beginning and none at its end.
pub(crate) fn normal_path(path: &str) -> String {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    format!("/{}", names.join("/"))
}

/// Why a client may not use an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// No rule is for it.
    #[error("the export's clients do not include it")]
    Outside,
    /// Any program of the client may have sent this.
    #[error(
        "it uses port {0}; the export accepts ports below 1024 only, unless it has insecure_ports = true"
    )]
    Port(u16),
}

/// A rule in use.
pub(crate) struct Admission {
    pub(crate) rule: Rule,
    pub(crate) callers: Callers<Credential>,
}

/// An export in use.
pub(crate) struct Export {
    pub(crate) id: u64,
    pub(crate) path: String,
    pub(crate) admissions: Vec<Rc<Admission>>,
    /// The exports that lie in this one.
    pub(crate) inner: Vec<Rc<Export>>,
    /// These in its handles.
    pub(crate) mark: Mark,
    /// The inode of its root, once that is known.
    pub(crate) root: Cell<Option<u64>>,
}

impl Export {
    fn new(client: &Client, options: &ExportOptions, others: &[Rc<Export>]) -> Export {
        let admit = |rule: &Rule| {
            let callers = Callers::new(client, rule.identities.clone());
            Rc::new(Admission { rule: rule.clone(), callers })
        };
        let path = normal_path(&options.path);
        let inner: Vec<_> = others.iter().filter(|other| lies_in(&other.path, &path)).cloned().collect();
        let ids: Vec<u64> = inner.iter().map(|other| other.id).collect();
        Export {
            id: options.id(),
            path,
            admissions: options.rules.iter().map(admit).collect(),
            inner,
            mark: Mark::of_inner(&ids),
            root: Cell::new(None),
        }
    }

    /// The handle of an inode in it.
    pub(crate) fn handle(&self, keys: &HandleKeys, ino: u64, kind: FileKind) -> nfs_fh3 {
        let mark = self.mark.on(kind == FileKind::Directory);
        keys.seal(Handle { export: self.id, ino, mark })
    }

    /// What a client may do, and as whom.
    pub(crate) fn admit(&self, peer: SocketAddr) -> Result<&Rc<Admission>, Refused> {
        let is_for = |admission: &&Rc<Admission>| admission.rule.clients.has(peer.ip());
        match self.admissions.iter().find(is_for) {
            None => Err(Refused::Outside),
            Some(found) if found.rule.insecure || has_privileged_port(peer) => Ok(found),
            Some(_) => Err(Refused::Port(peer.port())),
        }
    }
}

/// All exports.
pub(crate) struct Exports {
    list: Vec<Rc<Export>>,
}

impl Exports {
    pub(crate) fn new(client: &Client, options: &[ExportOptions]) -> Exports {
        let mut options: Vec<&ExportOptions> = options.iter().collect();
        // The longest path comes first, so that it is found before one that it lies in.
        options.sort_by_key(|one| std::cmp::Reverse(normal_path(&one.path).len()));
        let mut list = Vec::with_capacity(options.len());
        for one in options {
            list.push(Rc::new(Export::new(client, one, &list)));
        }
        Exports { list }
    }

    pub(crate) fn by_id(&self, id: u64) -> Option<&Rc<Export>> {
        self.list.iter().find(|export| export.id == id)
    }

    /// The export that a path is in, and the names that lead from its root to it.
    pub(crate) fn by_path<'a>(&self, path: &'a str) -> Option<(&Rc<Export>, Vec<&'a str>)> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        let names_of = |export: &Export| export.path.split('/').filter(|name| !name.is_empty()).count();
        self.list.iter().find_map(|export| {
            let own: Vec<&str> = export.path.split('/').filter(|name| !name.is_empty()).collect();
            names.starts_with(&own).then(|| (export, names[names_of(export)..].to_vec()))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rc<Export>> {
        self.list.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_paths() {
        let id = |path: &str| ExportOptions { path: path.into(), rules: Vec::new() }.id();
        assert_eq!(id("/a/b"), id("a//b/"));
        assert_ne!(id("/a"), id("/b"));
    }

    #[test]
    fn a_path_lies_in_those_above_it() {
        for (path, other, expected) in [
            ("/a/b", "/a", true),
            ("/a", "/", true),
            ("/a/b/c", "/a", true),
            ("/a", "/a", false),
            ("/", "/", false),
            ("/", "/a", false),
            ("/ab", "/a", false),
        ] {
            assert_eq!(lies_in(path, other), expected, "{path} in {other}");
        }
    }

    #[test]
    fn paths_have_one_form() {
        assert_eq!(["", "/", "a", "/a//b/./"].map(normal_path), ["/", "/", "/a", "/a/b"]);
    }
}
