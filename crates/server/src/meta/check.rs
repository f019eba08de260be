//! Operations of `weft fsck`: a check is a task of its own ([`crate::fsck`]); here it is begun, asked for its
//! findings, and told which of them to treat.

use super::MetaPart;
use crate::answer::{Answer, Refusal};
use crate::fsck::{self, Running, Setup};
use std::cell::RefCell;
use weft_meta::{Engine, Treatment, run_again};
use weft_reactor::mailbox;
use weft_wire::Status;
use weft_wire::limits::FINDINGS_PER_MESSAGE_MAX;
use weft_wire::messages::*;

/// The check that runs or has run last, and what another one needs; none where there are no other servers to ask.
pub(super) struct Checks<E: Engine> {
    setup: RefCell<Option<Setup<E>>>,
    running: RefCell<Option<Running>>,
}

impl<E: Engine> Default for Checks<E> {
    fn default() -> Self {
        Checks { setup: RefCell::default(), running: RefCell::default() }
    }
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Lets clients check the file system.
    pub fn allow_checks(&self, setup: Setup<E>) {
        *self.checks.setup.borrow_mut() = Some(setup);
    }

    /// Begins a check, or tells how far it is.
    pub fn check_names(&self, request: CheckRequest) -> Result<Answer, Refusal> {
        self.may_check(&request.caller)?;
        let mut running = self.checks.running.borrow_mut();
        if running.as_ref().is_none_or(|running| running.check != request.check) {
            if request.known > 0 {
                return Err(unknown());
            }
            if running.as_ref().is_some_and(Running::is_under_way) {
                let text = "another check of this file system is under way; wait for its end";
                return Err(Refusal::new(Status::Busy, text));
            }
            let setup = self.checks.setup.borrow().clone();
            let setup = setup.ok_or_else(|| Refusal::new(Status::Unsupported, "this server cannot check"))?;
            *running = Some(fsck::start(setup, request.check));
        }
        let running = running.as_ref().ok_or_else(unknown)?;
        Ok(Answer::of(&running.report(request.known as usize, FINDINGS_PER_MESSAGE_MAX)))
    }

    /// Treats one finding.
    pub async fn treat(&self, request: TreatRequest) -> Result<Answer, Refusal> {
        self.may_check(&request.caller)?;
        let (sender, mut answer) = mailbox(1);
        {
            let running = self.checks.running.borrow();
            let running = running.as_ref().filter(|running| running.check == request.check);
            running
                .ok_or_else(unknown)?
                .treat(request.finding as usize, request.accept_loss.0, sender)
                .map_err(|_| unknown())?;
        }
        let treated = answer.receive().await.ok_or_else(unknown)?;
        self.look_for_failure();
        let treatment = match treated.map_err(|reason| Refusal::new(Status::Io, reason))? {
            Treatment::Repaired => treatment::REPAIRED,
            Treatment::Gone => treatment::GONE,
            Treatment::Left => treatment::LEFT,
        };
        self.sync_all().await?;
        self.reset_all_clients().await;
        self.poke_garbage();
        Ok(Answer::of(&TreatReply { treatment }))
    }

    /// Root may, and whoever owns the root directory, as where a user runs a cluster of his own.
    pub(super) fn may_check(&self, caller: &Caller) -> Result<(), Refusal> {
        let mut namespace = self.namespace.borrow_mut();
        let root = run_again(|| namespace.begin().getattr(weft_meta::ROOT_INO));
        if caller.uid == 0 || root.is_ok_and(|root| root.uid == caller.uid) {
            return Ok(());
        }
        let text = "only root and the owner of the root directory may check the file system";
        Err(Refusal::new(Status::NotPermitted, text))
    }
}

fn unknown() -> Refusal {
    Refusal::new(Status::Stale, "the server does not know this check (any more); begin again")
}
