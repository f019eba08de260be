//! FSSTAT, FSINFO and PATHCONF (RFC 1813, 3.3.18 to 3.3.20).

use nfs3_types::nfs3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FSINFO3res, FSINFO3resfail, FSINFO3resok,
    FSSTAT3res, FSSTAT3resfail, FSSTAT3resok, Nfs3Option, Nfs3Result, PATHCONF3res, PATHCONF3resfail,
    PATHCONF3resok, fattr3, nfsstat3, nfstime3,
};
use weft_client::StatFs;
use weft_wire::limits::NAME_BYTES_MAX;

use super::limits::{DIRECTORY_BYTES_MAX, FILE_BYTES_MAX, IO_BYTES_MAX};
use super::{Files, by_handle};
use crate::attributes::post_op;
use crate::target::Sender;

/// Inodes that there can be, as far as clients are told: the store has no fixed number.
const FILES_FREE: u64 = 1 << 40;
/// READs and WRITEs had best begin and end at these.
const MULTIPLE_BYTES: u32 = 4096;
/// Hard links to one file.
const LINKS_MAX: u32 = 65_000;

impl Files {
    async fn attributes_of(&self, sender: &Sender, object: &[u8]) -> Result<fattr3, nfsstat3> {
        let target = self.target(sender, object).await?;
        let attr = self.opens.attr(target.root(), target.ino).await.map_err(by_handle)?;
        Ok(self.tell(&target, attr).await)
    }

    /// FSSTAT, of any object.
    pub(crate) async fn fsstat(&self, sender: &Sender, object: &[u8]) -> FSSTAT3res {
        let fail = |status, attributes| {
            Nfs3Result::Err((status, FSSTAT3resfail { obj_attributes: post_op(attributes) }))
        };
        let attributes = match self.attributes_of(sender, object).await {
            Ok(attributes) => attributes,
            Err(status) => return fail(status, None),
        };
        match self.statfs(attributes.fileid).await {
            Ok(space) => Nfs3Result::Ok(FSSTAT3resok {
                obj_attributes: post_op(Some(attributes)),
                tbytes: space.space_bytes,
                fbytes: space.free_bytes,
                abytes: space.available_bytes,
                tfiles: space.files.saturating_add(FILES_FREE),
                ffiles: FILES_FREE,
                afiles: FILES_FREE,
                invarsec: 0,
            }),
            Err(status) => fail(status, Some(attributes)),
        }
    }

    /// As it is seen by the inode.
    async fn statfs(&self, ino: u64) -> Result<StatFs, nfsstat3> {
        if let Some(space) = self.space.get(ino) {
            return Ok(space);
        }
        let client = self.client.clone();
        let space = self.workers.run(move || client.statfs_at(ino)).await.map_err(by_handle)?;
        self.space.set(ino, space);
        Ok(space)
    }

    /// FSINFO, of any object.
    pub(crate) async fn fsinfo(&self, sender: &Sender, object: &[u8]) -> FSINFO3res {
        match self.attributes_of(sender, object).await {
            Ok(attributes) => Nfs3Result::Ok(FSINFO3resok {
                obj_attributes: post_op(Some(attributes)),
                rtmax: IO_BYTES_MAX,
                rtpref: IO_BYTES_MAX,
                rtmult: MULTIPLE_BYTES,
                wtmax: IO_BYTES_MAX,
                wtpref: IO_BYTES_MAX,
                wtmult: MULTIPLE_BYTES,
                dtpref: DIRECTORY_BYTES_MAX,
                maxfilesize: FILE_BYTES_MAX,
                time_delta: nfstime3 { seconds: 0, nseconds: 1 },
                properties: FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
            }),
            Err(status) => Nfs3Result::Err((status, FSINFO3resfail { obj_attributes: Nfs3Option::None })),
        }
    }

    /// PATHCONF, of any object.
    pub(crate) async fn pathconf(&self, sender: &Sender, object: &[u8]) -> PATHCONF3res {
        match self.attributes_of(sender, object).await {
            Ok(attributes) => Nfs3Result::Ok(PATHCONF3resok {
                obj_attributes: post_op(Some(attributes)),
                linkmax: LINKS_MAX,
                name_max: NAME_BYTES_MAX as u32,
                no_trunc: true,
                chown_restricted: true,
                case_insensitive: false,
                case_preserving: true,
            }),
            Err(status) => Nfs3Result::Err((status, PATHCONF3resfail { obj_attributes: Nfs3Option::None })),
        }
    }
}
