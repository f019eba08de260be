//! LOOKUP and READLINK (RFC 1813, 3.3.3 and 3.3.5).

use nfs3_types::nfs3::{
    LOOKUP3res, LOOKUP3resfail, LOOKUP3resok, Nfs3Result, READLINK3res, READLINK3resfail, READLINK3resok,
    fattr3, nfs_fh3, nfspath3, nfsstat3,
};
use weft_client::At;
use weft_wire::messages::{Attr, ROOT_INO};

use super::{Files, by_handle, by_name, checked_name};
use crate::attributes::post_op;
use crate::target::{Sender, Target};

/// Directories on the way from one to the root of its export at most, before it is given up.
const DEPTH_MAX: usize = 4096;

impl Files {
    /// LOOKUP.
    pub(crate) async fn lookup(&self, sender: &Sender, dir: &[u8], name: &[u8]) -> LOOKUP3res {
        let target = self.target(sender, dir).await;
        let found = match &target {
            Ok(target) => self.find(sender, target, name).await,
            Err(status) => Err(*status),
        };
        match found {
            Ok((object, attributes)) => Nfs3Result::Ok(LOOKUP3resok {
                object,
                obj_attributes: post_op(Some(attributes)),
                dir_attributes: post_op(self.known_of(&target).await),
            }),
            Err(status) => {
                let after = self.after_on(&target.ok()).await;
                Nfs3Result::Err((status, LOOKUP3resfail { dir_attributes: post_op(after) }))
            }
        }
    }

    /// Attributes of the directory, if they cost no message.
    async fn known_of(&self, dir: &Result<Target, nfsstat3>) -> Option<fattr3> {
        let dir = dir.as_ref().ok()?;
        let attr = self.known.attr(dir.ino)?;
        Some(self.tell(dir, attr).await)
    }

    async fn find(
        &self,
        sender: &Sender,
        target: &Target,
        name: &[u8],
    ) -> Result<(nfs_fh3, fattr3), nfsstat3> {
        let name = checked_name(name)?;
        if let Some((_, attr)) = self.known_by_name(target, name) {
            return self.shown(sender, target, attr).await;
        }
        let asked = self.known.ask();
        let attr = match name {
            b".." => self.parent_of(target).await?,
            _ => {
                let stat = target.client.start_stat(At::child(target.ino, name), false);
                let attr = self.call(stat).await.map_err(by_name)?;
                self.known.learn_name(&asked, (target.ino, name), attr.ino, &target.who());
                attr
            }
        };
        let attr = self.opens.brought_up_to_date(target.root(), &asked, attr).await.map_err(by_name)?;
        self.shown(sender, target, attr).await
    }

    fn known_by_name(&self, dir: &Target, name: &[u8]) -> Option<(u64, Attr)> {
        let ino = self.known.name(dir.ino, name, &dir.who())?;
        Some((ino, self.known.attr(ino)?))
    }

    /// The directory above one, which at the root of the export is that itself. A directory that was moved out
    /// of the export has none.
    async fn parent_of(&self, target: &Target) -> Result<Attr, nfsstat3> {
        let root = self.root_of(&target.export).await.map_err(by_handle)?;
        let up = |ino| self.call(target.client.start_stat(At::child(ino, b".."), false));
        if target.ino == root {
            return self.call(target.client.start_getattr(root)).await.map_err(by_handle);
        }
        let parent = up(target.ino).await.map_err(by_handle)?;
        let mut above = parent.ino;
        for _ in 0..DEPTH_MAX {
            if above == root {
                return Ok(parent);
            }
            if above == ROOT_INO {
                break;
            }
            let next = target.root().start_stat(At::child(above, b".."), false);
            above = self.call(next).await.map_err(by_handle)?.ino;
        }
        Err(nfsstat3::NFS3ERR_NOENT)
    }

    /// READLINK.
    pub(crate) async fn readlink(&self, sender: &Sender, link: &[u8]) -> READLINK3res<'static> {
        let target = self.target(sender, link).await;
        let read = match &target {
            Ok(target) => {
                self.call(target.client.start_readlink(At::ino(target.ino))).await.map_err(by_handle)
            }
            Err(status) => Err(*status),
        };
        let symlink_attributes = post_op(self.after_on(&target.ok()).await);
        match read {
            Ok(path) => Nfs3Result::Ok(READLINK3resok { symlink_attributes, data: nfspath3::from(path) }),
            Err(status) => Nfs3Result::Err((status, READLINK3resfail { symlink_attributes })),
        }
    }
}
