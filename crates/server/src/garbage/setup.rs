//! What all tasks have that remove data files.

use crate::config::ClusterSection;
use crate::current::Peers;
use crate::log;
use crate::meta::durable::Durability;
use crate::meta::registry::Restore;
use crate::poke::Poke;
use crate::shared::Shared;
use crate::step::StepError;
use crate::stop::StopFlag;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use weft_meta::{Engine, MetaError, Namespace};
use weft_wire::limits::OBJECTS_PER_MESSAGE_MAX;

/// Files removed in one step: a message has room for as many that are new and as many that were postponed.
pub(super) const BATCH: usize = 1024;
const _: () = assert!(2 * BATCH <= OBJECTS_PER_MESSAGE_MAX);
/// How long pokes are gathered before their work is done.
pub(super) const GATHER: Duration = Duration::from_millis(20);
/// How long a server that is down or slow is left alone.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// What the tasks need.
pub(crate) struct Setup<E: Engine> {
    pub cluster: ClusterSection,
    pub peers: Rc<Peers>,
    pub stop: StopFlag,
    pub poke: Poke,
    pub namespace: Rc<RefCell<Namespace<E>>>,
    pub durability: Rc<Durability>,
    pub shared: Arc<Shared>,
    pub restore: Restore,
}

impl<E: Engine> Setup<E> {
    /// Waits until the I/O servers have agreed with the names.
    pub async fn confirmed(&self) {
        while !self.shared.confirmed.is() {
            weft_reactor::sleep(GATHER).await;
        }
    }

    /// Does something with the names.
    pub fn ask<R>(
        &self,
        work: impl FnOnce(&mut Namespace<E>) -> Result<R, MetaError>,
    ) -> Result<R, StepError> {
        Ok(work(&mut self.namespace.borrow_mut())?)
    }

    /// Makes durable what was committed.
    pub async fn sync(&self) -> Result<(), StepError> {
        let committed = self.namespace.borrow().committed();
        self.durability.wait(committed).await.map_err(StepError::Store)
    }

    /// Logs a failure, unless the server is stopping.
    pub fn failed(&self, what: &str, error: &StepError) {
        if !self.stop.is_stopped() && log::once_a_minute(&format!("{what} {error}")) {
            log::warning!(&self.shared.name, "cannot {what} now, will try again: {error}");
        }
    }
}
