//! Work that other threads have the metadata thread do, each piece in one turn.

use crate::answer::Refusal;
use crate::peer::PeerError;
use std::sync::mpsc;
use weft_meta::{Engine, MetaError, Namespace};
use weft_reactor::MailSender;

/// A piece of work for the metadata thread.
pub(crate) type Letter<E> = Box<dyn FnOnce(&mut Namespace<E>) + Send>;

/// Why a step of background work was not finished.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("{0}")]
    Peer(#[from] PeerError),
    #[error("{}", .0.text)]
    Namespace(Refusal),
    #[error("the cluster's map has no I/O server {0}")]
    NoServer(u16),
    #[error("the metadata thread has ended")]
    Ended,
    #[error("the kernel gives no random number: {0}")]
    Random(#[from] std::io::Error),
}

impl From<MetaError> for StepError {
    fn from(error: MetaError) -> StepError {
        StepError::Namespace(error.into())
    }
}

/// Has the metadata thread do something, and waits for the result.
pub(crate) fn ask<E: Engine, R: Send + 'static>(
    namespace: &MailSender<Letter<E>>,
    work: impl FnOnce(&mut Namespace<E>) -> Result<R, MetaError> + Send + 'static,
) -> Result<R, StepError> {
    let (sender, receiver) = mpsc::channel();
    let letter: Letter<E> = Box::new(move |namespace| {
        // Nobody listens any more only where the asking thread has ended.
        let _ = sender.send(work(namespace));
    });
    namespace.send(letter).map_err(|_| StepError::Ended)?;
    Ok(receiver.recv().map_err(|_| StepError::Ended)??)
}
