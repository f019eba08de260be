//! Lists, walks and removes directories of a Weft file system.

use crate::connections::at;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use weft_client::{At, Client};
use weft_wire::messages::{Attr, FileKind};

/// A name in a directory.
#[derive(Debug, Clone)]
pub struct Named {
    /// The name.
    pub name: OsString,
    /// What it names.
    pub attr: Attr,
}

/// The entries of a directory with their attributes, sorted by name.
pub fn list<'a>(client: &Client, dir: impl Into<At<'a>>) -> Result<Vec<Named>> {
    let mut all = Vec::new();
    for entry in client.read_dir(dir)? {
        let entry = entry?;
        let name = <OsString as std::os::unix::ffi::OsStringExt>::from_vec(entry.name);
        let attr = match entry.attr {
            Some(attr) => attr,
            None => client.getattr(entry.ino)?,
        };
        all.push(Named { name, attr });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// What [`walk`] passes to its caller.
pub enum Visit<'a> {
    /// A file that is not a directory, or a directory before its entries.
    Enter(&'a Path, &'a Attr),
    /// A directory after its entries.
    Leave(&'a Path),
}

/// Visits `path`, which has these attributes, and everything below it. Directories that cannot be read are
/// passed to `failed`, and the walk continues. Directories are listed by their inode numbers, so a swapped link or directory does not
/// lead the walk elsewhere.
pub fn walk(
    client: &Client,
    path: &Path,
    attr: &Attr,
    visit: &mut dyn FnMut(Visit<'_>) -> Result<()>,
    failed: &mut dyn FnMut(&Path, anyhow::Error),
) -> Result<()> {
    enum Step {
        Enter(PathBuf, Attr),
        Leave(PathBuf),
    }
    let mut steps = vec![Step::Enter(path.to_owned(), attr.clone())];
    while let Some(step) = steps.pop() {
        match step {
            Step::Leave(path) => visit(Visit::Leave(&path))?,
            Step::Enter(path, attr) => {
                visit(Visit::Enter(&path, &attr))?;
                if attr.kind != FileKind::Directory {
                    continue;
                }
                let entries = list(client, At::ino(attr.ino).shown_as(&path)).unwrap_or_else(|error| {
                    failed(&path, error);
                    Vec::new()
                });
                let inside = entries.into_iter().rev();
                let inside: Vec<_> =
                    inside.map(|entry| Step::Enter(path.join(entry.name), entry.attr)).collect();
                steps.push(Step::Leave(path));
                steps.extend(inside);
            }
        }
    }
    Ok(())
}

/// Makes a directory and its missing parents.
pub fn make_dirs(client: &Client, path: &Path, mode: u32) -> Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|dir| client.stat(at(dir), true).is_err()).collect();
    for dir in missing.into_iter().rev() {
        match client.mkdir(at(dir), mode) {
            Err(error) if error.errno() == libc::EEXIST => {}
            made => {
                made.with_context(|| format!("cannot create {}", dir.display()))?;
            }
        }
    }
    Ok(())
}
