//! Exports that lie in other exports: which one a handle belongs to.
//!
//! ```text
//!   handle of /a ─► no export lies in /a ──────────────────────────────► /a
//!               └─► of a directory: which export's root is above it? ──► /a, or /a/b
//!               └─► of a file: were the exports in /a the same when the handle was made? ─► /a, else stale
//! ```
//!
//! **Directories** have one place, so the nearest export above one is asked for with every call. The answer comes
//! from what is known under leases. A directory that is moved into another export follows that one's rules at once.
//!
//! **Other inodes** may have several names and do not know any. A file belongs to the export through whose directory
//! its handle was found, as an open file belongs to its mount. The handle names the exports that lay in that export at
//! the time. If they have changed since, the handle is stale, and the client looks the name up again.
//!
//! LOOKUP of the root of an inner export leads into that export. No name on the way to it can be moved or removed
//! through an outer one, or the inner export would end.

use std::rc::Rc;

use nfs3_types::nfs3::{fattr3, nfs_fh3, nfsstat3};
use weft_client::{At, Client};
use weft_wire::Status;
use weft_wire::messages::{Attr, FileKind, ROOT_INO};

use super::{Files, by_handle, by_name};
use crate::export::Export;
use crate::handle::Handle;
use crate::target::{Sender, Target};

/// Directories on the way from one to the root at most, before it is given up.
const DEPTH_MAX: usize = 4096;

/// Where the path of an export leads.
struct Way {
    /// The names on it, each with its directory.
    names: Vec<(u64, Vec<u8>)>,
    /// The inode at its end, if there is one.
    end: Option<u64>,
}

impl Files {
    /// The export and inode that a handle leads to, for a client that may use it.
    pub(crate) async fn target(&self, sender: &Sender, handle: &[u8]) -> Result<Target, nfsstat3> {
        let handle = self.keys.open(handle).ok_or(nfsstat3::NFS3ERR_BADHANDLE)?;
        let found = self.exports.borrow().by_id(handle.export).cloned();
        let export = found.ok_or(nfsstat3::NFS3ERR_STALE)?;
        let admission = self.admit(&export, sender.peer)?;
        if export.inner.is_empty() {
            return Ok(Target::new(&export, admission, sender, handle.ino));
        }
        let nearest = Box::pin(self.export_of(&export, admission.callers.root(), &handle)).await?;
        let admission = self.admit(&nearest, sender.peer)?;
        Ok(Target { fsid: export.id, ..Target::new(&nearest, admission, sender, handle.ino) })
    }

    /// The export that a handle of one in which others lie belongs to.
    async fn export_of(
        &self,
        export: &Rc<Export>,
        root: &Client,
        handle: &Handle,
    ) -> Result<Rc<Export>, nfsstat3> {
        if !handle.mark.is_directory() {
            if handle.mark.exports() == export.mark {
                return Ok(export.clone());
            }
            let attr = self.opens.attr(root, handle.ino).await.map_err(by_handle)?;
            if attr.kind != FileKind::Directory {
                return Err(nfsstat3::NFS3ERR_STALE);
            }
        }
        let inner = self.inner_roots(export, root).await?;
        let mut above = handle.ino;
        for _ in 0..DEPTH_MAX {
            if let Some((_, nearest)) = inner.iter().find(|(ino, _)| *ino == above) {
                return Ok(nearest.clone());
            }
            if above == ROOT_INO {
                return Ok(export.clone());
            }
            above = self.above(root, above).await?;
        }
        Err(nfsstat3::NFS3ERR_STALE)
    }

    /// The directory above a directory.
    async fn above(&self, root: &Client, dir: u64) -> Result<u64, nfsstat3> {
        if let Some(parent) = self.known.parent(dir) {
            return Ok(parent);
        }
        let asked = self.known.ask();
        let attr = self.call(root.start_stat(At::child(dir, b".."), false)).await.map_err(by_handle)?;
        self.known.learn_parent(&asked, dir, attr.ino);
        Ok(attr.ino)
    }

    /// The roots of the exports that lie in one, as far as they exist.
    pub(super) async fn inner_roots(
        &self,
        export: &Export,
        root: &Client,
    ) -> Result<Vec<(u64, Rc<Export>)>, nfsstat3> {
        let mut roots = Vec::with_capacity(export.inner.len());
        for inner in &export.inner {
            let end = self.way_to(inner, root).await?.end;
            roots.extend(end.map(|ino| (ino, inner.clone())));
        }
        Ok(roots)
    }

    async fn way_to(&self, export: &Export, root: &Client) -> Result<Way, nfsstat3> {
        let mut way = Way { names: Vec::new(), end: Some(ROOT_INO) };
        for name in export.path.split('/').filter(|name| !name.is_empty()) {
            let Some(dir) = way.end else { return Ok(way) };
            let name = name.as_bytes();
            way.names.push((dir, name.to_vec()));
            match self.name_in(root, dir, name).await {
                Ok(ino) => way.end = ino,
                // It is below a symbolic link.
                Err(error) if error.status() == Some(Status::NotDirectory) => {
                    way.end = self.end_of(export, root).await?;
                    return Ok(way);
                }
                Err(error) => return Err(by_name(error)),
            }
        }
        let Some(ino) = way.end else { return Ok(way) };
        // An inode that is a directory stays one.
        if export.root.get() != Some(ino) {
            match self.opens.attr(root, ino).await.map_err(by_name)?.kind {
                FileKind::Directory => export.root.set(Some(ino)),
                FileKind::Symlink => way.end = self.end_of(export, root).await?,
                _ => way.end = None,
            }
        }
        Ok(way)
    }

    /// Where a path leads that has symbolic links.
    async fn end_of(&self, export: &Export, root: &Client) -> Result<Option<u64>, nfsstat3> {
        match self.call(root.start_stat(export.path.as_str(), true)).await {
            Ok(attr) => Ok(Some(attr.ino)),
            Err(error) if matches!(error.status(), Some(Status::NotFound | Status::NotDirectory)) => Ok(None),
            Err(error) => Err(by_name(error)),
        }
    }

    async fn name_in(&self, root: &Client, dir: u64, name: &[u8]) -> weft_client::Result<Option<u64>> {
        if let Some(known) = self.known.name_for_root(dir, name) {
            return Ok(known);
        }
        let asked = self.known.ask();
        let found = match self.call(root.start_stat(At::child(dir, name), false)).await {
            Ok(attr) => Some(attr.ino),
            Err(error) if error.status() == Some(Status::NotFound) => None,
            Err(error) => return Err(error),
        };
        self.known.learn_name_for_root(&asked, (dir, name), found);
        Ok(found)
    }

    /// The handle and attributes of what has a name in a directory, for this client.
    pub(super) async fn shown(
        &self,
        sender: &Sender,
        dir: &Target,
        attr: Attr,
    ) -> Result<(nfs_fh3, fattr3), nfsstat3> {
        let target = match self.inner_export(dir, &attr).await? {
            Some(inner) => Target::new(&inner, self.admit(&inner, sender.peer)?, sender, attr.ino),
            None => dir.other(attr.ino),
        };
        Ok((target.handle(&self.keys, &attr), self.tell(&target, attr).await))
    }

    /// The export whose root an inode in a directory is, if it is one.
    async fn inner_export(&self, dir: &Target, attr: &Attr) -> Result<Option<Rc<Export>>, nfsstat3> {
        if attr.kind != FileKind::Directory || dir.export.inner.is_empty() {
            return Ok(None);
        }
        let roots = Box::pin(self.inner_roots(&dir.export, dir.root())).await?;
        Ok(roots.into_iter().find(|(ino, _)| *ino == attr.ino).map(|(_, inner)| inner))
    }

    /// Refuses to move or remove a name that leads to an export in this one.
    pub(super) async fn may_take(&self, dir: &Target, name: &[u8]) -> Result<(), nfsstat3> {
        for inner in &dir.export.inner {
            let way = Box::pin(self.way_to(inner, dir.root())).await?;
            if way.names.iter().any(|(of, one)| *of == dir.ino && one == name) {
                return Err(nfsstat3::NFS3ERR_ACCES);
            }
        }
        Ok(())
    }
}
