//! CREATE, MKDIR, SYMLINK and MKNOD (RFC 1813, 3.3.8 to 3.3.11).
//!
//! A CREATE never follows a symbolic link, which may lead out of the export: it makes a new file, or finds one
//! of this name.
//!
//! The verifier of an exclusive CREATE is kept in the times of the new file, all eight bytes of it, until the
//! client sets them.

use nfs3_types::nfs3::{
    CREATE3res, CREATE3resfail, CREATE3resok, MKDIR3res, MKDIR3resfail, MKDIR3resok, MKNOD3res,
    MKNOD3resfail, MKNOD3resok, Nfs3Option, Nfs3Result, SYMLINK3res, SYMLINK3resfail, SYMLINK3resok,
    createhow3, createverf3, fattr3, mknoddata3, nfs_fh3, nfsstat3, sattr3, specdata3, wcc_data,
};
use weft_client::{At, Made as New, PendingCall, SetAttr, SetTime};
use weft_wire::Status;
use weft_wire::messages::{Attr, FileKind, Time};

use super::{Files, by_handle, by_name, new_name};
use crate::attributes::{changes_of, device_of, mode_of, post_op, size_of};
use crate::known::Scope;
use crate::place::Place;
use crate::target::{Sender, Target};

/// How often a name that comes and goes is tried.
const ATTEMPTS_MAX: usize = 16;
/// Mode of a directory where nothing is said.
const DIRECTORY_MODE: u32 = 0o755;

/// What was made, and the directory after it.
struct Made {
    result: Result<(nfs_fh3, fattr3), nfsstat3>,
    dir_wcc: wcc_data,
}

/// Times that hold a verifier.
fn times_of(verifier: &createverf3) -> (Time, Time) {
    let half = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("4 bytes"));
    let time = |seconds: u32| Time { seconds: seconds.into(), nanoseconds: 0 };
    (time(half(&verifier.0[..4])), time(half(&verifier.0[4..])))
}

impl Files {
    /// Makes something in a directory by `make`, which has the directory and the checked name.
    async fn in_directory(
        &self,
        sender: &Sender,
        place: Place<'_>,
        make: impl AsyncFnOnce(&Target, &[u8]) -> Result<New, nfsstat3>,
    ) -> Made {
        let target = self.target_to_change(sender, place.dir).await;
        let made = match (&target, new_name(place.name)) {
            (Ok(target), Ok(name)) => make(target, name).await,
            (Err(status), _) => Err(*status),
            (_, Err(status)) => Err(status),
        };
        let mut change = None;
        let result = match (&target, made) {
            (Ok(target), Ok(New { attr, dir })) => {
                change = dir;
                self.shown(sender, target, attr).await
            }
            (_, Err(status)) => Err(status),
            (Err(status), _) => Err(*status),
        };
        let dir_wcc = self.dir_wcc(target.as_ref().ok(), change).await;
        Made { result, dir_wcc }
    }

    /// CREATE.
    pub(crate) async fn create(&self, sender: &Sender, place: Place<'_>, how: &createhow3) -> CREATE3res {
        let make = async |target: &Target, name: &[u8]| match how {
            createhow3::UNCHECKED(wanted) => self.create_unchecked(target, name, wanted).await,
            createhow3::GUARDED(wanted) => match self.create_new(target, name, wanted).await? {
                Some(new) => Ok(new),
                None => Err(nfsstat3::NFS3ERR_EXIST),
            },
            createhow3::EXCLUSIVE(verifier) => self.create_exclusive(target, name, verifier).await,
        };
        let Made { result, dir_wcc } = self.in_directory(sender, place, make).await;
        match result {
            Ok((handle, attributes)) => Nfs3Result::Ok(CREATE3resok {
                obj: Nfs3Option::Some(handle),
                obj_attributes: post_op(Some(attributes)),
                dir_wcc,
            }),
            Err(status) => Nfs3Result::Err((status, CREATE3resfail { dir_wcc })),
        }
    }

    /// A new file; `None` where the name is taken.
    async fn create_new(
        &self,
        target: &Target,
        name: &[u8],
        wanted: &sattr3,
    ) -> Result<Option<New>, nfsstat3> {
        changes_of(wanted).ok_or(nfsstat3::NFS3ERR_INVAL)?;
        let mode = mode_of(wanted).unwrap_or(0);
        // It is not opened: a file that is open to be written costs more to ask about.
        let made = || target.client.start_mknod(At::child(target.ino, name), FileKind::File, mode, 0);
        let New { attr, dir } = match self.make(target, name, made).await {
            Ok(new) => new,
            Err(error) if error.status() == Some(Status::Exists) => return Ok(None),
            Err(error) => return Err(by_name(error)),
        };
        let child = target.other(attr.ino);
        if let Some(bytes) = size_of(wanted).filter(|bytes| *bytes > 0) {
            self.truncate(&child, bytes).await?;
        }
        let attr = self.with_attributes_of(target, attr, wanted).await?;
        Ok(Some(New { attr, dir }))
    }

    async fn create_unchecked(&self, target: &Target, name: &[u8], wanted: &sattr3) -> Result<New, nfsstat3> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(new) = self.create_new(target, name, wanted).await? {
                return Ok(new);
            }
            let Some(attr) = self.existing(target, name).await? else { continue };
            if attr.kind != FileKind::File {
                return Err(nfsstat3::NFS3ERR_EXIST);
            }
            if let Some(bytes) = size_of(wanted) {
                self.truncate(&target.other(attr.ino), bytes).await?;
            }
            let attr = self.opens.attr(target.root(), attr.ino).await.map_err(by_handle)?;
            return Ok(New { attr, dir: None });
        }
        Err(nfsstat3::NFS3ERR_JUKEBOX)
    }

    async fn create_exclusive(
        &self,
        target: &Target,
        name: &[u8],
        verifier: &createverf3,
    ) -> Result<New, nfsstat3> {
        let (atime, mtime) = times_of(verifier);
        for _ in 0..ATTEMPTS_MAX {
            if let Some(New { attr, dir }) = self.create_new(target, name, &sattr3::default()).await? {
                let changes = SetAttr {
                    atime: Some(SetTime::To(atime)),
                    mtime: Some(SetTime::To(mtime)),
                    ..SetAttr::default()
                };
                let attr = self.set_new(target, attr.ino, &changes).await?;
                return Ok(New { attr, dir });
            }
            let Some(attr) = self.existing(target, name).await? else { continue };
            let is_ours = attr.kind == FileKind::File && attr.atime == atime && attr.mtime == mtime;
            return if is_ours { Ok(New { attr, dir: None }) } else { Err(nfsstat3::NFS3ERR_EXIST) };
        }
        Err(nfsstat3::NFS3ERR_JUKEBOX)
    }

    /// What has the name already; `None` if it is gone again.
    async fn existing(&self, target: &Target, name: &[u8]) -> Result<Option<Attr>, nfsstat3> {
        match self.call(target.client.start_stat(At::child(target.ino, name), false)).await {
            Ok(attr) => Ok(Some(attr)),
            Err(error) if error.status() == Some(Status::NotFound) => Ok(None),
            Err(error) => Err(by_name(error)),
        }
    }

    /// Sets what is wanted beyond what something new has by itself.
    async fn with_attributes_of(
        &self,
        target: &Target,
        attr: Attr,
        wanted: &sattr3,
    ) -> Result<Attr, nfsstat3> {
        let changes = target.there(changes_of(wanted).ok_or(nfsstat3::NFS3ERR_INVAL)?);
        let changes = SetAttr {
            mode: None,
            uid: changes.uid.filter(|uid| *uid != attr.uid),
            gid: changes.gid.filter(|gid| *gid != attr.gid),
            ..changes
        };
        if changes == SetAttr::default() {
            return match size_of(wanted).filter(|bytes| *bytes > 0) {
                Some(_) => self.opens.attr(target.root(), attr.ino).await.map_err(by_handle),
                None => Ok(attr),
            };
        }
        self.opens.report(attr.ino).await.map_err(by_handle)?;
        self.set_new(target, attr.ino, &changes).await
    }

    async fn set_new(&self, target: &Target, ino: u64, changes: &SetAttr) -> Result<Attr, nfsstat3> {
        let change = self.known.change().inode(ino, Scope::Rights);
        let set = target.client.start_setattr(At::ino(ino), false, changes);
        let attr = self.call(set).await.map_err(by_name)?;
        change.made(|learn| learn.attr(&attr));
        Ok(attr)
    }

    /// Something new with a name in the directory, that `start` begins to make.
    async fn make(
        &self,
        target: &Target,
        name: &[u8],
        start: impl FnOnce() -> PendingCall<New>,
    ) -> weft_client::Result<New> {
        let change = self.known.change().name(target.ino, name);
        let new = self.call(start()).await?;
        change.made(|learn| {
            learn.attr(&new.attr);
            learn.name(target.ino, name, new.attr.ino);
            new.dir.iter().for_each(|dir| learn.attr(&dir.after));
        });
        Ok(new)
    }

    /// MKDIR.
    pub(crate) async fn mkdir(&self, sender: &Sender, place: Place<'_>, wanted: &sattr3) -> MKDIR3res {
        let make = async |target: &Target, name: &[u8]| {
            let mode = mode_of(wanted).unwrap_or(DIRECTORY_MODE);
            let made = || target.client.start_mkdir(At::child(target.ino, name), mode);
            let New { attr, dir } = self.make(target, name, made).await.map_err(by_name)?;
            let attr = self.with_attributes_of(target, attr, &without_size(wanted)).await?;
            Ok(New { attr, dir })
        };
        let Made { result, dir_wcc } = self.in_directory(sender, place, make).await;
        match result {
            Ok((handle, attributes)) => Nfs3Result::Ok(MKDIR3resok {
                obj: Nfs3Option::Some(handle),
                obj_attributes: post_op(Some(attributes)),
                dir_wcc,
            }),
            Err(status) => Nfs3Result::Err((status, MKDIR3resfail { dir_wcc })),
        }
    }

    /// SYMLINK. A link has no attributes that could be set.
    pub(crate) async fn symlink(&self, sender: &Sender, place: Place<'_>, path: &[u8]) -> SYMLINK3res {
        let make = async |target: &Target, name: &[u8]| {
            if path.is_empty() || path.contains(&0) {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            let made = || target.client.start_symlink(At::child(target.ino, name), path);
            self.make(target, name, made).await.map_err(by_name)
        };
        let Made { result, dir_wcc } = self.in_directory(sender, place, make).await;
        match result {
            Ok((handle, attributes)) => Nfs3Result::Ok(SYMLINK3resok {
                obj: Nfs3Option::Some(handle),
                obj_attributes: post_op(Some(attributes)),
                dir_wcc,
            }),
            Err(status) => Nfs3Result::Err((status, SYMLINK3resfail { dir_wcc })),
        }
    }

    /// MKNOD.
    pub(crate) async fn mknod(&self, sender: &Sender, place: Place<'_>, what: &mknoddata3) -> MKNOD3res {
        let make = async |target: &Target, name: &[u8]| match what {
            mknoddata3::NF3CHR(device) => {
                let new = (FileKind::Character, &device.dev_attributes, Some(&device.spec));
                self.special(target, name, new).await
            }
            mknoddata3::NF3BLK(device) => {
                let new = (FileKind::Block, &device.dev_attributes, Some(&device.spec));
                self.special(target, name, new).await
            }
            mknoddata3::NF3SOCK(wanted) => self.special(target, name, (FileKind::Socket, wanted, None)).await,
            mknoddata3::NF3FIFO(wanted) => self.special(target, name, (FileKind::Fifo, wanted, None)).await,
            mknoddata3::default => Err(nfsstat3::NFS3ERR_BADTYPE),
        };
        let Made { result, dir_wcc } = self.in_directory(sender, place, make).await;
        match result {
            Ok((handle, attributes)) => Nfs3Result::Ok(MKNOD3resok {
                obj: Nfs3Option::Some(handle),
                obj_attributes: post_op(Some(attributes)),
                dir_wcc,
            }),
            Err(status) => Nfs3Result::Err((status, MKNOD3resfail { dir_wcc })),
        }
    }

    async fn special(
        &self,
        target: &Target,
        name: &[u8],
        (kind, wanted, device): (FileKind, &sattr3, Option<&specdata3>),
    ) -> Result<New, nfsstat3> {
        let rdev = match device {
            Some(device) => device_of(device).ok_or(nfsstat3::NFS3ERR_INVAL)?,
            None => 0,
        };
        let mode = mode_of(wanted).unwrap_or(0);
        let made = || target.client.start_mknod(At::child(target.ino, name), kind, mode, rdev);
        let New { attr, dir } = self.make(target, name, made).await.map_err(by_name)?;
        let attr = self.with_attributes_of(target, attr, &without_size(wanted)).await?;
        Ok(New { attr, dir })
    }
}

/// What is no file has no size to be set.
fn without_size(wanted: &sattr3) -> sattr3 {
    sattr3 { size: Nfs3Option::None, ..wanted.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_verifier_is_kept() {
        let of = |bytes: [u8; 8]| times_of(&createverf3(bytes));
        let seconds = |(atime, mtime): (Time, Time)| (atime.seconds, mtime.seconds);
        assert_eq!(seconds(of([0xff; 8])), (u32::MAX.into(), u32::MAX.into()));
        for bit in 0..64 {
            assert_ne!(of((1u64 << bit).to_be_bytes()), of([0; 8]), "bit {bit}");
        }
    }
}
