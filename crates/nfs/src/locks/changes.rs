//! Whether a client may change a file, by what it has locked.
//!
//! ```text
//!   WRITE, or a new size ─► lost locks of the file?   yes ─► JUKEBOX while it may reclaim them, then IO
//!                        ─► locks of the file?        no ──► go on
//!                           the metadata server confirmed the session a moment ago?   no ─► it is asked
//!                        ─► each request to an I/O server: only while that is so
//! ```
//!
//! NLM has no word for a lost lock. Linux reclaims after a NOTIFY; where that fails it logs "failed to reclaim lock" and writes on.
//! A refused WRITE is what tells it: the program's next write, fsync or close fails with EIO.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use nfs3_types::nfs3::nfsstat3;
use weft_client::{Client, Error, ErrorKind, Guard};
use weft_wire::Status as Answer;

use super::Locks;
use crate::permits::{Permit, Permits};

/// The locks of a session, for requests that rely on them. It sends no request, so that the reactor's thread can use it.
struct InSession(Client);

impl Guard for InSession {
    fn check(&self) -> Result<(), Error> {
        if self.0.holds_locks() {
            return Ok(());
        }
        let text = "the metadata server has not confirmed for a while that the locks are held";
        Err(Error::new("Write", ErrorKind::Status(Answer::Busy), text))
    }
}

impl Permits for Locks {
    fn for_change(
        self: Rc<Self>,
        address: IpAddr,
        ino: u64,
    ) -> Pin<Box<dyn Future<Output = Result<Permit, nfsstat3>>>> {
        Box::pin(async move { self.permit(address, ino).await })
    }
}

impl Locks {
    async fn permit(&self, address: IpAddr, ino: u64) -> Result<Permit, nfsstat3> {
        self.check_lost(address, ino)?;
        if !self.table.borrow().has_at(ino, address) {
            let may_reclaim = self.in_grace.get()
                && self.left.borrow().iter().any(|(left, _)| *left == ino)
                && self.monitored.borrow().iter().any(|host| host.address == address);
            return if may_reclaim { Err(nfsstat3::NFS3ERR_JUKEBOX) } else { Ok(None) };
        }
        let client = self.session.borrow().client.clone();
        if !client.holds_locks() {
            let asked = client.clone();
            let kept = self.files.workers.run(move || asked.keep_locks()).await;
            self.check_lost(address, ino)?;
            if kept.is_err() || !client.holds_locks() {
                return Err(nfsstat3::NFS3ERR_JUKEBOX);
            }
        }
        Ok(Some(Arc::new(InSession(client))))
    }

    fn check_lost(&self, address: IpAddr, ino: u64) -> Result<(), nfsstat3> {
        match (self.lost.borrow().has(ino, address), self.in_grace.get()) {
            (false, _) => Ok(()),
            (true, true) => Err(nfsstat3::NFS3ERR_JUKEBOX),
            (true, false) => Err(nfsstat3::NFS3ERR_IO),
        }
    }
}
