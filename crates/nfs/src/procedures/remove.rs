//! REMOVE, RMDIR, RENAME and LINK (RFC 1813, 3.3.12 to 3.3.15).

use nfs3_types::nfs3::{
    LINK3res, LINK3resfail, LINK3resok, Nfs3Result, REMOVE3res, REMOVE3resfail, REMOVE3resok, RENAME3res,
    RENAME3resfail, RENAME3resok, RMDIR3res, RMDIR3resfail, RMDIR3resok, nfsstat3,
};
use weft_client::At;
use weft_wire::messages::FileKind;

use super::{Files, by_handle, by_name, new_name, old_name};
use crate::attributes::post_op;
use crate::known::Scope;
use crate::place::Place;
use crate::target::{Sender, Target};

impl Files {
    /// REMOVE.
    pub(crate) async fn remove(&self, sender: &Sender, place: Place<'_>) -> REMOVE3res {
        let target = self.target_to_change(sender, place.dir).await;
        let removed = async {
            let target = target.as_ref().map_err(|status| *status)?;
            let name = old_name(place.name)?;
            self.may_take(target, name).await?;
            let lost = self.known.name_for_root(target.ino, name).flatten();
            let change = self.known.change().loses(target.ino, name);
            let at = At::child(target.ino, name);
            let dir = self.call(target.client.start_unlink(at)).await.map_err(by_name)?;
            self.opens.lost_name(lost);
            change.made(|learn| dir.iter().for_each(|dir| learn.attr(&dir.after)));
            Ok(dir)
        };
        let removed = removed.await;
        let dir_wcc = self.dir_wcc(target.as_ref().ok(), removed.clone().ok().flatten()).await;
        match removed {
            Ok(_) => Nfs3Result::Ok(REMOVE3resok { dir_wcc }),
            Err(status) => Nfs3Result::Err((status, REMOVE3resfail { dir_wcc })),
        }
    }

    /// RMDIR.
    pub(crate) async fn rmdir(&self, sender: &Sender, place: Place<'_>) -> RMDIR3res {
        let target = self.target_to_change(sender, place.dir).await;
        let removed = async {
            let target = target.as_ref().map_err(|status| *status)?;
            let name = old_name(place.name)?;
            self.may_take(target, name).await?;
            let change = self.known.change().loses(target.ino, name);
            let at = At::child(target.ino, name);
            let dir = self.call(target.client.start_rmdir(at)).await.map_err(by_name)?;
            change.made(|learn| dir.iter().for_each(|dir| learn.attr(&dir.after)));
            Ok(dir)
        };
        let removed = removed.await;
        let dir_wcc = self.dir_wcc(target.as_ref().ok(), removed.clone().ok().flatten()).await;
        match removed {
            Ok(_) => Nfs3Result::Ok(RMDIR3resok { dir_wcc }),
            Err(status) => Nfs3Result::Err((status, RMDIR3resfail { dir_wcc })),
        }
    }

    /// RENAME.
    pub(crate) async fn rename(&self, sender: &Sender, from: Place<'_>, to: Place<'_>) -> RENAME3res {
        let old = self.target_to_change(sender, from.dir).await;
        let new = self.target_to_change(sender, to.dir).await;
        let renamed = async {
            let (old, new) = both(&old, &new)?;
            let is_dots = |name: &[u8]| name == b"." || name == b"..";
            if is_dots(from.name) || is_dots(to.name) {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            let (from, to) = (old_name(from.name)?, new_name(to.name)?);
            self.may_take(old, from).await?;
            self.may_take(new, to).await?;
            let lost = self.known.name_for_root(new.ino, to).flatten();
            let change = self.known.change().loses(old.ino, from).loses(new.ino, to);
            let places = (At::child(old.ino, from), At::child(new.ino, to));
            let dirs = self.call(old.client.start_rename(places.0, places.1, 0)).await.map_err(by_name)?;
            self.opens.lost_name(lost);
            change.made(|learn| dirs.iter().flatten().for_each(|dir| learn.attr(&dir.after)));
            Ok(dirs)
        };
        let renamed = renamed.await;
        let [from, to] = renamed.clone().unwrap_or_default();
        let fromdir_wcc = self.dir_wcc(old.as_ref().ok(), from).await;
        let todir_wcc = self.dir_wcc(new.as_ref().ok(), to).await;
        match renamed {
            Ok(_) => Nfs3Result::Ok(RENAME3resok { fromdir_wcc, todir_wcc }),
            Err(status) => Nfs3Result::Err((status, RENAME3resfail { fromdir_wcc, todir_wcc })),
        }
    }

    /// LINK.
    pub(crate) async fn link(&self, sender: &Sender, file: &[u8], place: Place<'_>) -> LINK3res {
        let object = self.target_to_change(sender, file).await;
        let dir = self.target_to_change(sender, place.dir).await;
        let linked = async {
            let (object, dir) = both(&object, &dir)?;
            let name = new_name(place.name)?;
            let attr = self.opens.attr(object.root(), object.ino).await.map_err(by_handle)?;
            if attr.kind == FileKind::Directory {
                return Err(nfsstat3::NFS3ERR_ISDIR);
            }
            let change = self.known.change().name(dir.ino, name).inode(object.ino, Scope::Attributes);
            let to = At::child(dir.ino, name);
            let link = object.client.start_link(At::ino(object.ino), false, to);
            let made = self.call(link).await.map_err(by_name)?;
            change.made(|learn| {
                learn.attr(&made.attr);
                learn.name(dir.ino, name, object.ino);
                made.dir.iter().for_each(|dir| learn.attr(&dir.after));
            });
            Ok(made)
        };
        let linked = linked.await;
        let change = linked.as_ref().ok().and_then(|made| made.dir.clone());
        let linkdir_wcc = self.dir_wcc(dir.as_ref().ok(), change).await;
        let file_attributes = post_op(self.after_on(&object.ok()).await);
        match linked {
            Ok(_) => Nfs3Result::Ok(LINK3resok { file_attributes, linkdir_wcc }),
            Err(status) => Nfs3Result::Err((status, LINK3resfail { file_attributes, linkdir_wcc })),
        }
    }
}

/// Two targets of one export.
fn both<'a>(
    one: &'a Result<Target, nfsstat3>,
    other: &'a Result<Target, nfsstat3>,
) -> Result<(&'a Target, &'a Target), nfsstat3> {
    let (one, other) = (one.as_ref().map_err(|status| *status)?, other.as_ref().map_err(|status| *status)?);
    if one.export.id == other.export.id { Ok((one, other)) } else { Err(nfsstat3::NFS3ERR_XDEV) }
}
