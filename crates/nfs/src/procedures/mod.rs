//! The procedures of NFSv3 (RFC 1813, 3.3): from arguments to results, one file for each group of them.
//!
//! ```text
//!   handle ─► Target: the export admits the client, its user is somebody here
//!          ─► calls of weft-client, on behalf of that user, through the bridge
//!          ─► attributes afterwards, and the result
//! ```

mod attributes;
mod boundaries;
mod create;
mod filesystem;
mod io;
pub(crate) mod limits;
mod listing;
mod lookup;
mod remove;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::io::Result as IoResult;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Instant;

use nfs3_types::nfs3::{fattr3, nfsstat3, wcc_data};
use weft_client::{Client, PendingCall};
use weft_wire::limits::NAME_BYTES_MAX;
use weft_wire::messages::{Attr, DirChange};

use crate::attributes::{dir_before_of, wcc};
use crate::export::{Admission, Export, ExportOptions, Exports};
use crate::handle::HandleKeys;
use crate::known::Known;
use crate::opens::Opens;
use crate::permits::{Permit, Permits};
use crate::refusals::Refusals;
use crate::space::SpaceCache;
use crate::status::{Named, status_of};
use crate::target::Target;
use crate::used::Used;
use crate::weft::Weft;
use crate::workers::Workers;

/// What all procedures use.
pub(crate) struct Files {
    pub(crate) client: Client,
    pub(crate) weft: Weft,
    pub(crate) workers: Workers,
    pub(crate) opens: Rc<Opens>,
    pub(crate) known: Rc<Known>,
    pub(crate) keys: HandleKeys,
    pub(crate) exports: RefCell<Rc<Exports>>,
    pub(crate) space: SpaceCache,
    pub(crate) used: Used,
    pub(crate) refusals: Refusals,
    /// The locks of clients, if there are any.
    pub(crate) permits: RefCell<Option<Weak<dyn Permits>>>,
}

/// A directory's export lets a client change it.
fn writable(target: Target) -> Result<Target, nfsstat3> {
    if target.admission.rule.read_only { Err(nfsstat3::NFS3ERR_ROFS) } else { Ok(target) }
}

/// A name of a directory entry that may be looked up.
fn checked_name(name: &[u8]) -> Result<&[u8], nfsstat3> {
    match name {
        b"" => Err(nfsstat3::NFS3ERR_INVAL),
        _ if name.len() > NAME_BYTES_MAX => Err(nfsstat3::NFS3ERR_NAMETOOLONG),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(nfsstat3::NFS3ERR_INVAL),
        _ => Ok(name),
    }
}

/// A name of something new.
fn new_name(name: &[u8]) -> Result<&[u8], nfsstat3> {
    match checked_name(name)? {
        b"." | b".." => Err(nfsstat3::NFS3ERR_EXIST),
        name => Ok(name),
    }
}

/// A name of something that is to go.
fn old_name(name: &[u8]) -> Result<&[u8], nfsstat3> {
    match checked_name(name)? {
        b"." => Err(nfsstat3::NFS3ERR_INVAL),
        b".." => Err(nfsstat3::NFS3ERR_EXIST),
        name => Ok(name),
    }
}

fn by_handle(error: weft_client::Error) -> nfsstat3 {
    status_of(&error, Named::Handle)
}

fn by_name(error: weft_client::Error) -> nfsstat3 {
    status_of(&error, Named::Name)
}

impl Files {
    /// Begins, on the current reactor.
    ///
    /// # Errors
    /// Those of `epoll_create1`, and of a thread's start.
    pub(crate) fn start(client: &Client, exports: &[ExportOptions], keys: &HandleKeys) -> IoResult<Files> {
        let (client, keys) = (client.clone(), keys.clone());
        let (weft, workers, known) = (Weft::new()?, Workers::default(), Rc::new(Known::start(&client)?));
        let opens = Rc::new(Opens::new(&client, &weft, &workers, &known));
        let exports = Rc::new(Exports::new(&client, exports)).into();
        let (space, used, refusals) = (SpaceCache::default(), Used::new(&workers), Refusals::default());
        let permits = RefCell::default();
        Ok(Files { client, weft, workers, opens, known, keys, exports, space, used, refusals, permits })
    }

    /// What a client may do with an export. A refusal is logged.
    pub(crate) fn admit<'a>(
        &self,
        export: &'a Export,
        peer: SocketAddr,
    ) -> Result<&'a Rc<Admission>, nfsstat3> {
        export.admit(peer).map_err(|refused| {
            let client = peer.ip().to_canonical();
            if self.refusals.is_news(client, export.id, Instant::now()) {
                tracing::warn!(%client, export = %export.path, "a client was refused: {refused}");
            }
            nfsstat3::NFS3ERR_ACCES
        })
    }

    pub(crate) async fn call<T: 'static>(&self, call: PendingCall<T>) -> weft_client::Result<T> {
        self.weft.finish(call).await.wait()
    }

    /// What each request of a change of the contents must ask before it is sent, by the locks that the client has or has lost.
    async fn for_change(&self, target: &Target) -> Result<Permit, nfsstat3> {
        let permits = self.permits.borrow().as_ref().and_then(Weak::upgrade);
        match permits {
            Some(permits) => permits.for_change(target.address, target.ino).await,
            None => Ok(None),
        }
    }

    /// Attributes after an operation, if they are to be had.
    pub(crate) async fn after(&self, target: &Target, ino: u64) -> Option<fattr3> {
        let attr = self.opens.attr(target.root(), ino).await.ok()?;
        Some(self.tell(target, attr).await)
    }

    /// Attributes as the client is told them.
    async fn tell(&self, target: &Target, attr: Attr) -> fattr3 {
        let used_bytes = self.used.of(target.root(), &attr).await;
        target.tell(attr, used_bytes)
    }

    /// A directory before and after a change of its names. Where the change does not say, or has failed, only
    /// what it is now is known.
    async fn dir_wcc(&self, target: Option<&Target>, change: Option<DirChange>) -> wcc_data {
        match (target, change) {
            (Some(target), Some(DirChange { before, after })) => {
                wcc(Some(dir_before_of(&before)), Some(self.tell(target, after).await))
            }
            (Some(target), None) => wcc(None, self.after(target, target.ino).await),
            (None, _) => wcc(None, None),
        }
    }

    /// As [`Files::after`], where there may be no target.
    async fn after_on(&self, target: &Option<Target>) -> Option<fattr3> {
        match target {
            Some(target) => self.after(target, target.ino).await,
            None => None,
        }
    }

    /// The inode of an export's root.
    pub(crate) async fn root_of(&self, export: &Export) -> weft_client::Result<u64> {
        if let Some(ino) = export.root.get() {
            return Ok(ino);
        }
        let attr = self.call(self.client.start_stat(export.path.as_str(), true)).await?;
        export.root.set(Some(attr.ino));
        Ok(attr.ino)
    }
}
