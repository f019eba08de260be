//! What all clones of a client share: state only.

use std::ops::Deref;
use std::sync::Arc;

use weft_rpc::fork::PerProcess;
use weft_rpc::rpc::Rpc;
use weft_rpc::table::Table;

use crate::Url;
use crate::batch;
use crate::closing::{self, Closing};
use crate::held::HeldFiles;
use crate::locks::LockBook;
use crate::losses::ServerLosses;
use crate::window::pack::PackPool;

/// See the module.
pub(crate) struct Inner {
    pub url: Url,
    pub rpc: Rpc,
    pub held: Arc<HeldFiles>,
    pub locks: Arc<LockBook>,
    pub pack_pool: Arc<PackPool>,
    pub of_process: PerProcess<OfProcess>,
}

/// What a forked child begins anew.
#[derive(Default)]
pub(crate) struct OfProcess {
    /// Files that are closed, of which the metadata server is still to be notified.
    pub closing: Closing,
    /// By the index of the server.
    pub losses: Table<ServerLosses>,
}

/// Calls to servers need no more than the connections.
impl Deref for Inner {
    type Target = Rpc;
    fn deref(&self) -> &Rpc {
        &self.rpc
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.is_unused_fork() {
            // Files that were closed last: the metadata server should hear of it before the connection ends.
            closing::send_all(self);
            batch::finish_detached(self);
        }
    }
}
