//! What the I/O servers have told of lost writes to one file, for all opens of the file in this process.
//!
//! Every answer to a change, and to a sync, has the *loss epoch* of the server's data file. It is another number once the server
//! may have lost changes that it had acknowledged and not yet made durable: a sync failed, whoever asked for it, or the machine
//! was started again.
//!
//! ```text
//!   this client    write ─► epoch 7        write ─► epoch 7        sync ─► epoch 8: one of the writes may be lost
//!   another one                                 sync ─► EIO
//! ```
//!
//! Every open of that time is told, at each sync from then on: a second attempt that succeeds would say that what was lost is
//! durable. A file that is opened again begins anew.
//!
//! A successful sync ends the matter for what was written before it: the epoch is forgotten until the next change.
//!
//! Of files that are closed each server's connections know one number together ([`ServerLosses`]), which changes with a loss of any
//! file: it may have been one of theirs.

use std::sync::Mutex;

use weft_wire::messages::LOSS_EPOCH_DURABLE;

use crate::inner::{Inner, OfProcess};
use crate::wait::lock;

/// The losses of one file.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How often something was lost, and on which slot's server the last time.
    count: u64,
    last_slot: u16,
    /// Answers to changes so far.
    changes: u64,
    /// The epoch in the last answer of each slot's server to a change that no sync has made durable since.
    epochs: Vec<Option<u64>>,
}

impl Losses {
    /// How often something was lost so far.
    pub(crate) fn count(&self) -> u64 {
        lock(&self.state).count
    }

    /// The slot whose server has lost something last, if that was after `count`.
    pub(crate) fn last_slot_since(&self, count: u64) -> Option<u16> {
        let state = lock(&self.state);
        (state.count != count).then_some(state.last_slot)
    }

    /// The slots whose servers have acknowledged changes that no sync has made durable.
    pub(crate) fn unsynced_slots(&self) -> Vec<u16> {
        let state = lock(&self.state);
        (0..).zip(&state.epochs).filter(|(_, epoch)| epoch.is_some()).map(|(slot, _)| slot).collect()
    }

    /// To be asked before a sync, for [`Losses::note_sync`].
    pub(crate) fn changes(&self) -> u64 {
        lock(&self.state).changes
    }

    /// Notes the epoch in an answer to a change.
    pub(crate) fn note_change(&self, slot: u16, epoch: u64) {
        if epoch == LOSS_EPOCH_DURABLE {
            return;
        }
        let mut state = lock(&self.state);
        state.changes += 1;
        let before = state.epoch_mut(slot).replace(epoch);
        if before.is_some_and(|before| before != epoch) {
            state.note_loss(slot);
        }
    }

    /// Notes the epoch in an answer to a sync, before which there had been so many changes.
    pub(crate) fn note_sync(&self, slot: u16, epoch: u64, changes: u64) {
        let mut state = lock(&self.state);
        let is_newest = state.changes == changes;
        let known = state.epoch_mut(slot);
        let is_loss = known.is_some_and(|before| before != epoch);
        *known = known.filter(|_| !is_newest).map(|_| epoch);
        if is_loss {
            state.note_loss(slot);
        }
    }

    /// Notes that a slot's server could not make changes durable. The next epoch that it tells is taken as it is.
    pub(crate) fn note_failed_sync(&self, slot: u16) {
        let mut state = lock(&self.state);
        *state.epoch_mut(slot) = None;
        state.note_loss(slot);
    }
}

impl Inner {
    /// What the I/O server with this index has told of losses of any file.
    pub(crate) fn losses_at(&self, server: usize) -> &ServerLosses {
        let all = &self.of_process.get_or_make(OfProcess::default).losses;
        while all.len() <= server {
            all.push(ServerLosses::default());
        }
        let losses = all.get(server).expect("there are as many as servers");
        if let Some(proven) = self.session().server(server).first_proven() {
            losses.note_arrival(proven.loss_epoch);
        }
        losses
    }
}

/// What one server has told of losses of any file, for the files that are closed.
#[derive(Debug, Default)]
pub(crate) struct ServerLosses {
    state: Mutex<ServerState>,
}

#[derive(Debug, Default)]
struct ServerState {
    /// The last one that is known.
    epoch: Option<u64>,
    /// Files that were closed with changes that no sync has made durable since.
    closed: u64,
}

impl ServerLosses {
    /// The epoch when the server was reached.
    pub(crate) fn note_arrival(&self, epoch: u64) {
        lock(&self.state).epoch.get_or_insert(epoch);
    }

    /// A file was closed whose changes are not durable.
    pub(crate) fn note_closed(&self) {
        lock(&self.state).closed += 1;
    }

    /// To be asked before a sync of all files, for [`ServerLosses::note_sync`]: how many files must be made durable by it.
    pub(crate) fn closed(&self) -> u64 {
        lock(&self.state).closed
    }

    /// All files were synced, of which so many were closed. Whether some of these may be lost.
    pub(crate) fn note_sync(&self, epoch: u64, closed: u64) -> bool {
        let mut state = lock(&self.state);
        let before = state.epoch.replace(epoch);
        state.closed = state.closed.saturating_sub(closed);
        closed > 0 && before != Some(epoch)
    }
}

impl State {
    fn note_loss(&mut self, slot: u16) {
        self.count += 1;
        self.last_slot = slot;
    }

    fn epoch_mut(&mut self, slot: u16) -> &mut Option<u64> {
        let slot = usize::from(slot);
        if self.epochs.len() <= slot {
            self.epochs.resize(slot + 1, None);
        }
        &mut self.epochs[slot]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_epoch_is_a_loss_once() {
        let losses = Losses::default();
        losses.note_change(0, 7);
        losses.note_change(3, 100);
        losses.note_change(0, 7);
        losses.note_change(0, LOSS_EPOCH_DURABLE);
        assert_eq!(losses.count(), 0, "every server counts for itself");
        losses.note_change(3, 101);
        losses.note_sync(3, 101, losses.changes());
        assert_eq!(losses.count(), 1);
        assert_eq!((losses.last_slot_since(0), losses.last_slot_since(1)), (Some(3), None));
    }

    #[test]
    fn what_was_synced_before_cannot_be_lost_any_more() {
        let losses = Losses::default();
        losses.note_change(0, 7);
        losses.note_sync(0, 7, losses.changes());
        losses.note_sync(0, 8, losses.changes());
        losses.note_change(0, 9);
        assert_eq!(losses.count(), 0);
        losses.note_sync(0, 10, losses.changes());
        assert_eq!(losses.count(), 1);
    }

    #[test]
    fn a_change_beside_a_sync_is_not_taken_for_synced() {
        let losses = Losses::default();
        losses.note_change(0, 7);
        let changes = losses.changes();
        losses.note_change(0, 7);
        losses.note_sync(0, 7, changes);
        assert_eq!(losses.count(), 0);
        losses.note_sync(0, 8, losses.changes());
        assert_eq!(losses.count(), 1, "the second change had not been synced");
    }

    #[test]
    fn a_failed_sync_is_a_loss_and_its_epoch_is_no_second_one() {
        let losses = Losses::default();
        losses.note_change(0, 7);
        losses.note_failed_sync(0);
        losses.note_change(0, 8);
        assert_eq!(losses.count(), 1);
        losses.note_change(0, 9);
        assert_eq!(losses.count(), 2);
    }

    #[test]
    fn a_loss_is_told_once_to_who_has_closed_files_that_were_not_synced() {
        let losses = ServerLosses::default();
        losses.note_arrival(7);
        losses.note_arrival(8);
        assert!(!losses.note_sync(9, losses.closed()), "nothing was closed");
        losses.note_closed();
        assert_eq!(losses.closed(), 1);
        assert!(!losses.note_sync(9, 1));
        losses.note_closed();
        assert!(losses.note_sync(10, 1));
        losses.note_closed();
        losses.note_closed();
        assert!(!losses.note_sync(10, 1));
        assert_eq!(losses.closed(), 1, "it was closed while the sync went on");
    }

    #[test]
    fn what_no_sync_has_made_durable_is_known() {
        let losses = Losses::default();
        losses.note_change(2, 7);
        losses.note_change(0, LOSS_EPOCH_DURABLE);
        assert_eq!(losses.unsynced_slots(), [2]);
        losses.note_sync(2, 7, losses.changes());
        assert!(losses.unsynced_slots().is_empty());
    }

    #[test]
    fn an_answer_that_was_late_tells_of_the_loss_again() {
        let losses = Losses::default();
        losses.note_change(0, 7);
        losses.note_change(0, 8);
        // A write that began before the loss.
        losses.note_change(0, 7);
        assert_eq!(losses.count(), 2, "it may be lost");
    }
}
