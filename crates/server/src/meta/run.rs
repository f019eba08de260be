//! Running an operation on the names: as often as it takes, and then its effects on the server.
//!
//! ```text
//!   run(op, effects) ─► commit ─┬─ conflict: nothing has happened, run again
//!                               └─ committed ─► apply(effects) ─► durable? lease holders notified? ─► reply
//! ```
//!
//! `run` only reads the names and the state of the server. What it stages takes effect with the commit. What is to
//! follow in the server (leases, opens that count) it notes in [`Effects`], which one function applies afterwards. So
//! it can be run any number of times. Of runs that were not committed only inode numbers and cookies are lost.

use super::effects::{Effects, Failure};
use super::watchers::LeaseHolder;
use super::{Call, MetaPart, translate as t};
use crate::answer::{Answer, Refusal};
use crate::config::SyncMode;
use crate::spent::{self, Part, during};
use weft_meta::{CommitSeq, Engine, Once, Op, SessionId, Timestamp, ToRemove, Touched, run_again};
use weft_wire::Wire;
use weft_wire::body;

/// A change that is committed.
struct Committed {
    body: Vec<u8>,
    seq: CommitSeq,
    /// Who has to forget something before the change is acknowledged.
    holders: Vec<LeaseHolder>,
    refusal: Option<Refusal>,
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Runs a reading operation that has no effects.
    pub(super) fn read<R: Wire>(
        &self,
        run: impl Fn(&mut Op<'_, E>) -> Result<R, Failure>,
    ) -> Result<Answer, Refusal> {
        let mut namespace = self.namespace.borrow_mut();
        Ok(Answer::of(&run_again(|| run(&mut namespace.begin()))?))
    }

    /// Runs a reading operation. Its effects follow also where it fails: that a name is missing is seen, too.
    pub(super) fn look<R: Wire>(
        &self,
        call: &Call,
        run: impl Fn(&mut Op<'_, E>, &mut Effects) -> Result<R, Failure>,
    ) -> Result<Answer, Refusal> {
        let mut namespace = self.namespace.borrow_mut();
        let effects = &mut *self.effects.borrow_mut();
        let watches = self.watchers.watches(call.session);
        let seen = run_again(|| {
            effects.begin(watches);
            run(&mut namespace.begin(), effects)
        });
        self.apply(call.session, effects);
        Ok(Answer::of(&seen?))
    }

    /// Runs a changing operation as one transaction, once per request, and waits until it may be acknowledged.
    pub(super) async fn change<R: Wire>(
        &self,
        call: &Call,
        run: impl Fn(&mut Op<'_, E>, Timestamp, &mut Effects) -> Result<R, Failure>,
    ) -> Result<Answer, Refusal> {
        if call.header.op != weft_wire::Op::Reopen {
            during(Part::Clients, self.watchers.all_returned()).await;
        }
        let committed = self.commit(call, run);
        let to_remove = self.namespace.borrow_mut().take_to_remove();
        if to_remove != ToRemove::Nothing {
            // Before the remover sees the records, as it may be at work.
            self.garbage.name_cause(spent::trace());
        }
        self.look_for_failure();
        let Committed { body, seq, holders, refusal } =
            committed.map_err(|failure| self.ask_again(failure.into()))?;
        if self.sync == SyncMode::Sync {
            self.durable(seq).await?;
        }
        during(Part::Mounts, self.watchers.acknowledged(holders)).await;
        if to_remove == ToRemove::Now {
            self.poke_garbage();
        }
        refusal.map_or(Ok(Answer { body, ..Answer::default() }), Err)
    }

    fn commit<R: Wire>(
        &self,
        call: &Call,
        run: impl Fn(&mut Op<'_, E>, Timestamp, &mut Effects) -> Result<R, Failure>,
    ) -> Result<Committed, Failure> {
        let now = t::now();
        let mut namespace = self.namespace.borrow_mut();
        let effects = &mut *self.effects.borrow_mut();
        let watches = self.watchers.watches(call.session);
        let before = namespace.committed();
        let header = &call.header;
        let (body, seq, touched) = run_again(|| {
            effects.begin(watches);
            let mut op = if header.op.idempotent() {
                namespace.begin()
            } else {
                match namespace.begin_once(now, call.session, u32::from(header.slot), header.request_id)? {
                    Once::Replay(body) => return Ok((body, before, None)),
                    Once::Fresh(op) => op,
                }
            };
            let body = body::encode(&run(&mut op, now, effects)?);
            let concerns_others = self.watchers.may_concern_others(call.session);
            let touched = if concerns_others { op.touched()? } else { Touched::default() };
            let seq = op.commit_with_reply(effects.kept.as_deref().unwrap_or(&body))?;
            Ok::<_, Failure>((body, seq, Some(touched)))
        })?;
        let Some(touched) = touched else {
            return Ok(Committed { body, seq, holders: self.watchers.unacknowledged(), refusal: None });
        };
        if namespace.keeps_many_removed() {
            self.many_removed.notify();
        }
        self.apply(call.session, effects);
        let holders = self.watchers.notify(call.session, touched);
        Ok(Committed { body, seq, holders, refusal: effects.refusal.take() })
    }

    fn apply(&self, session: SessionId, effects: &mut Effects) {
        if effects.watches() {
            self.watchers.grant(session, effects.leased.drain(..));
        }
        self.sessions.count_opens(session, &effects.reopened, &effects.closed);
    }
}
