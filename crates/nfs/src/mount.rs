//! The MOUNT protocol, version 3 (RFC 1813, 5): from the path of a directory to its handle.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use nfs3_types::nfs3::nfsstat3;
use weft_client::At;
use weft_onc_rpc::xdr::{Reader, Writer, XdrError};
use weft_wire::messages::FileKind;

use crate::procedures::Files;
use crate::status::{Named, status_of};
use crate::target::Sender;

/// The longest path (RFC 1813, 5.1.1).
const PATH_BYTES_MAX: usize = 1024;
/// Mounts that are remembered for who asks.
const MOUNTS_MAX: usize = 4096;
/// Those of one client, so that it cannot keep others off the list.
const MOUNTS_OF_CLIENT_MAX: usize = 64;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// Procedures (RFC 1813, 5.2).
mod procedure {
    pub(super) const NULL: u32 = 0;
    pub(super) const MNT: u32 = 1;
    pub(super) const DUMP: u32 = 2;
    pub(super) const UMNT: u32 = 3;
    pub(super) const UMNTALL: u32 = 4;
    pub(super) const EXPORT: u32 = 5;
}

/// Who has said that it mounts what. It is for people only: a client that is gone says nothing.
#[derive(Default)]
pub(crate) struct Mounts(RefCell<BTreeSet<(IpAddr, Vec<u8>)>>);

impl Mounts {
    fn add(&self, client: IpAddr, path: &[u8]) {
        let mut mounts = self.0.borrow_mut();
        let own = mounts.range((client, Vec::new())..).take_while(|(other, _)| *other == client);
        if mounts.len() < MOUNTS_MAX && own.count() < MOUNTS_OF_CLIENT_MAX {
            mounts.insert((client, path.to_vec()));
        }
    }

    /// Who mounts what.
    pub(crate) fn list(&self) -> Vec<(IpAddr, String)> {
        let mounts = self.0.borrow();
        mounts.iter().map(|(client, path)| (*client, String::from_utf8_lossy(path).into_owned())).collect()
    }
}

/// The results of a procedure; `None` if there is no such procedure.
pub(crate) async fn call(
    files: &Files,
    mounts: &Mounts,
    sender: &Sender,
    procedure: u32,
    args: &[u8],
) -> Result<Option<Vec<u8>>, XdrError> {
    let client = sender.peer.ip();
    let mut args = Reader::new(args);
    let results = match procedure {
        procedure::NULL => Vec::new(),
        procedure::MNT => {
            let path = args.opaque(PATH_BYTES_MAX)?;
            let found = find(files, sender, path).await;
            match &found {
                Ok(_) => mounts.add(client, path),
                // That no export is for this client was said already.
                Err(nfsstat3::NFS3ERR_ACCES) => {}
                Err(status) => say_refused(files, client, path, &status.to_string()),
            }
            match found {
                Ok(handle) => {
                    Writer::new().u32(0).opaque(&handle).u32(2).u32(AUTH_SYS).u32(AUTH_NONE).into_bytes()
                }
                Err(status) => Writer::new().u32(mount_status(status)).into_bytes(),
            }
        }
        procedure::DUMP => dump(mounts),
        procedure::UMNT => {
            let path = args.opaque(PATH_BYTES_MAX)?;
            mounts.0.borrow_mut().remove(&(client, path.to_vec()));
            Vec::new()
        }
        procedure::UMNTALL => {
            mounts.0.borrow_mut().retain(|(other, _)| *other != client);
            Vec::new()
        }
        procedure::EXPORT => exports(files),
        _ => return Ok(None),
    };
    Ok(Some(results))
}

fn say_refused(files: &Files, client: IpAddr, path: &[u8], why: &str) {
    let client = client.to_canonical();
    if files.refusals.is_news(client, 0, Instant::now()) {
        let path = String::from_utf8_lossy(path);
        tracing::warn!(%client, %path, "a mount was refused: {why}");
    }
}

/// The handle of a directory in an export. Symbolic links are not followed, as they may lead out of it.
async fn find(files: &Files, sender: &Sender, path: &[u8]) -> Result<Vec<u8>, nfsstat3> {
    let path = std::str::from_utf8(path).map_err(|_| nfsstat3::NFS3ERR_NOENT)?;
    let exports = files.exports.borrow().clone();
    let Some((export, names)) = exports.by_path(path) else {
        say_refused(files, sender.peer.ip(), path.as_bytes(), "it is in no export");
        return Err(nfsstat3::NFS3ERR_ACCES);
    };
    files.admit(export, sender.peer)?;
    let of = |error: weft_client::Error| status_of(&error, Named::Name);
    // A directory of the same path may be another one by now.
    export.root.set(None);
    let mut ino = files.root_of(export).await.map_err(of)?;
    let mut kind = files.call(files.client.start_getattr(ino)).await.map_err(of)?.kind;
    for name in names {
        if name == ".." {
            return Err(nfsstat3::NFS3ERR_ACCES);
        }
        let stat = files.client.start_stat(At::child(ino, name.as_bytes()), false);
        let attr = files.call(stat).await.map_err(of)?;
        (ino, kind) = (attr.ino, attr.kind);
    }
    match kind {
        FileKind::Directory => Ok(export.handle(&files.keys, ino, kind).data.to_vec()),
        _ => Err(nfsstat3::NFS3ERR_NOTDIR),
    }
}

/// A status in the words of MOUNT, which has fewer.
fn mount_status(status: nfsstat3) -> u32 {
    const SERVER_FAULT: u32 = 10006;
    match status {
        nfsstat3::NFS3ERR_PERM
        | nfsstat3::NFS3ERR_NOENT
        | nfsstat3::NFS3ERR_IO
        | nfsstat3::NFS3ERR_ACCES
        | nfsstat3::NFS3ERR_NOTDIR
        | nfsstat3::NFS3ERR_INVAL
        | nfsstat3::NFS3ERR_NAMETOOLONG
        | nfsstat3::NFS3ERR_NOTSUPP => status as u32,
        nfsstat3::NFS3ERR_STALE => nfsstat3::NFS3ERR_NOENT as u32,
        _ => SERVER_FAULT,
    }
}

fn dump(mounts: &Mounts) -> Vec<u8> {
    let mounts = mounts.0.borrow();
    let list = mounts.iter().fold(Writer::new(), |list, (client, path)| {
        list.u32(1).opaque(client.to_canonical().to_string().as_bytes()).opaque(path)
    });
    list.u32(0).into_bytes()
}

fn exports(files: &Files) -> Vec<u8> {
    let exports = files.exports.borrow().clone();
    let list = exports.iter().fold(Writer::new(), |list, export| {
        let list = list.u32(1).opaque(export.path.as_bytes());
        let clients = export.admissions.iter().map(|admission| admission.rule.clients.to_string());
        clients.fold(list, |list, client| list.u32(1).opaque(client.as_bytes())).u32(0)
    });
    list.u32(0).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_room_in_the_list_for_others() {
        let mounts = Mounts::default();
        let client = |number: u32| IpAddr::V4(number.into());
        for path in 0..2 * MOUNTS_MAX {
            mounts.add(client(7), path.to_string().as_bytes());
        }
        assert_eq!(mounts.list().len(), MOUNTS_OF_CLIENT_MAX);
        for number in 0..2 * MOUNTS_MAX as u32 {
            mounts.add(client(number), b"/");
        }
        assert_eq!(mounts.list().len(), MOUNTS_MAX);
    }
}
