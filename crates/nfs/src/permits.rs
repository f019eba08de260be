//! Whether a client may change the contents of a file, by the locks that it has or has lost.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use nfs3_types::nfs3::nfsstat3;
use weft_client::Guard;

/// What each request of a change must ask before it is sent, if anything.
pub(crate) type Permit = Option<Arc<dyn Guard>>;

/// The locks of clients, for those who change files.
pub(crate) trait Permits {
    /// Whether the client at this address may change a file.
    ///
    /// # Errors
    /// `NFS3ERR_IO` once the client has lost locks of the file. `NFS3ERR_JUKEBOX` while that is not certain, or it may reclaim
    /// them: it sends the call again after some seconds.
    fn for_change(
        self: Rc<Self>,
        address: IpAddr,
        ino: u64,
    ) -> Pin<Box<dyn Future<Output = Result<Permit, nfsstat3>>>>;
}
