//! What a call is about: an inode of an export, and on whose behalf.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use nfs3_types::nfs3::{fattr3, nfs_fh3};
use weft_client::{Client, SetAttr};
use weft_wire::messages::Attr;

use crate::attributes::fattr_of;
use crate::credential::Credential;
use crate::export::{Admission, Export};
use crate::handle::HandleKeys;
use crate::known::Who;

/// Who sent a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// The client's address.
    pub peer: SocketAddr,
    /// Its user; `None` without AUTH_SYS.
    pub credential: Option<Credential>,
}

/// An inode of an export, and who asks for it.
pub(crate) struct Target {
    pub(crate) export: Rc<Export>,
    pub(crate) admission: Rc<Admission>,
    pub(crate) credential: Credential,
    /// Acts for the user.
    pub(crate) client: Client,
    pub(crate) ino: u64,
    /// The file system that the client has found it in: the id of the export in its handle.
    pub(crate) fsid: u64,
    /// The client's address.
    pub(crate) address: IpAddr,
}

impl Target {
    pub(crate) fn new(export: &Rc<Export>, admission: &Rc<Admission>, sender: &Sender, ino: u64) -> Target {
        let (export, admission, fsid) = (export.clone(), admission.clone(), export.id);
        let address = sender.peer.ip().to_canonical();
        let identities = admission.callers.identities();
        match sender.credential {
            Some(credential) => {
                let client = admission.callers.client(credential);
                Target { export, credential, client, ino, fsid, admission, address }
            }
            None => {
                let (uid, gid) = identities.anonymous;
                let caller = weft_wire::messages::Caller { uid, gid, groups: Vec::new() };
                let client = admission.callers.root().with_caller(caller);
                let credential = Credential::new(uid, gid, &[]);
                Target { export, credential, client, ino, fsid, admission, address }
            }
        }
    }

    /// Whose rights count.
    pub(crate) fn who(&self) -> Who {
        Who { export: self.export.id, credential: self.credential }
    }

    /// Acts for root.
    pub(crate) fn root(&self) -> &Client {
        self.admission.callers.root()
    }

    /// Attributes of what takes `used_bytes`, as the client is told them.
    pub(crate) fn tell(&self, attr: Attr, used_bytes: u64) -> fattr3 {
        let fsid = if attr.ino == self.ino { self.fsid } else { self.export.id };
        fattr_of(&self.admission.callers.identities().here(attr), used_bytes, fsid)
    }

    /// The handle of an inode in the same export.
    pub(crate) fn handle(&self, keys: &HandleKeys, attr: &Attr) -> nfs_fh3 {
        self.export.handle(keys, attr.ino, attr.kind)
    }

    /// The same user's target of another inode in the export.
    pub(crate) fn other(&self, ino: u64) -> Target {
        Target {
            export: self.export.clone(),
            admission: self.admission.clone(),
            credential: self.credential,
            client: self.client.clone(),
            ino,
            fsid: self.export.id,
            address: self.address,
        }
    }

    /// Changes with the owners' numbers of the file system.
    pub(crate) fn there(&self, changes: SetAttr) -> SetAttr {
        let identities = self.admission.callers.identities();
        SetAttr {
            uid: changes.uid.map(|uid| identities.users.there(uid)),
            gid: changes.gid.map(|gid| identities.groups.there(gid)),
            ..changes
        }
    }
}
