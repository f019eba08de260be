//! What an operation on the names comes to besides what it stages: a failure, or effects in the server.

use crate::answer::Refusal;
use crate::spent;
use weft_meta::{MayConflict, MetaError};
use weft_wire::messages::{At, OpenId};

/// Why an operation was not done.
#[derive(Debug)]
pub(super) enum Failure {
    /// The namespace said so.
    Names(MetaError),
    /// The server did.
    Refused(Refusal),
}

impl From<MetaError> for Failure {
    fn from(error: MetaError) -> Failure {
        Failure::Names(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        match failure {
            Failure::Names(error) => error.into(),
            Failure::Refused(refusal) => refusal,
        }
    }
}

impl MayConflict for Failure {
    fn is_conflict(&self) -> bool {
        matches!(self, Failure::Names(error) if error.is_conflict())
    }
}

/// What follows in the server from an operation, for the client that asked for it.
#[derive(Default)]
pub(super) struct Effects {
    /// The client watches, so it gets leases.
    watches: bool,
    /// Inodes that it gets leases on.
    pub leased: Vec<u64>,
    /// Numbers of opens that count from now on in this run of its session.
    pub reopened: Vec<u64>,
    /// Numbers of opens that have ended.
    pub closed: Vec<u64>,
    /// A part that was refused while the others were done: the reply says so.
    pub refusal: Option<Refusal>,
    /// What a repetition of the request is answered, where that is less than the reply: it is stored with each change.
    pub kept: Option<Vec<u8>>,
}

impl Effects {
    /// Forgets the last run.
    pub fn begin(&mut self, watches: bool) {
        self.watches = watches;
        self.leased.clear();
        self.reopened.clear();
        self.closed.clear();
        self.refusal = None;
        self.kept = None;
    }

    /// Whether the client watches.
    pub fn watches(&self) -> bool {
        self.watches
    }

    /// The reply shows an inode, or what a name in a directory leads to (or that it leads nowhere).
    pub fn lease(&mut self, at: Option<&At>, ino: Option<u64>) {
        let dir = at.filter(|at| !at.path.is_empty()).map(|at| at.dir);
        if let Some(about) = ino.or(dir) {
            spent::note_ino(about);
        }
        self.lease_all(dir.into_iter().chain(ino));
    }

    /// The reply shows these inodes.
    pub fn lease_all(&mut self, inos: impl IntoIterator<Item = u64>) {
        if self.watches {
            self.leased.extend(inos);
        }
    }

    /// An open of before this run of the session counts from now on.
    pub fn reopen(&mut self, open: &OpenId) {
        self.reopened.push(open.number);
    }

    /// An open ends.
    pub fn close(&mut self, open: &OpenId) {
        self.closed.push(open.number);
    }

    /// Opens that this operation ends.
    pub fn closed(&self) -> &[u64] {
        &self.closed
    }

    /// A part of the operation is refused; the first one is reported.
    pub fn refuse_part(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
    }
}
