//! Steps of background work of the metadata server, which reads and changes names and asks I/O servers.

use crate::answer::Refusal;
use crate::peer::PeerError;
use std::pin::pin;
use weft_log::trace::{Scope, fresh};
use weft_meta::MetaError;

/// Why a step of background work was not finished.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("{0}")]
    Peer(#[from] PeerError),
    #[error("{}", .0.text)]
    Namespace(Refusal),
    #[error("{0}")]
    Store(String),
    #[error("the cluster's map has no I/O server {0}")]
    NoServer(u16),
    #[error("nobody waits for it any more")]
    Ended,
    #[error("the kernel gives no random number: {0}")]
    Random(#[from] std::io::Error),
}

impl From<MetaError> for StepError {
    fn from(error: MetaError) -> StepError {
        StepError::Namespace(error.into())
    }
}

/// Does `work` as a part of the call with this trace id; 0: of a new one.
pub(crate) async fn on_behalf_of<F: Future>(trace: u64, work: F) -> F::Output {
    let trace = if trace == 0 { fresh() } else { trace };
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let _scope = Scope::on_behalf_of(trace);
        work.as_mut().poll(context)
    })
    .await
}
