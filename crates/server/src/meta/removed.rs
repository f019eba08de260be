//! The moment for which files that were removed under somebody's eyes can still be opened by number; see `Op::rename_keeping`.
//!
//! ```text
//!   turn ──────────── turn ──────────── turn          TURN apart, or as soon as many are kept
//!     removed: young    old               let go      so it is kept for one to two turns
//! ```

use super::MetaPart;
use std::rc::Rc;
use std::time::Duration;
use weft_meta::{Engine, MetaError};

/// Longer than a process waits for a processor between its look at a name and its use of the inode, on a machine that is busy.
const TURN: Duration = Duration::from_millis(500);
/// Inodes let go in one commit; others are served in between.
const BATCH: usize = 64;

impl<E: Engine + 'static> MetaPart<E> {
    /// Has turns end for as long as the server runs.
    pub(super) fn let_go_of_removed_in_turns(self: &Rc<Self>) {
        let (weak, many_removed) = (Rc::downgrade(self), self.many_removed.clone());
        weft_reactor::spawn(async move {
            loop {
                let Some(part) = weak.upgrade() else { return };
                if let Err(error) = part.end_turn_of_removed().await {
                    crate::log::warning!("meta", "cannot remove files that were kept for a moment: {error}");
                    part.look_for_failure();
                }
                drop(part);
                let _ = weft_reactor::timeout(TURN, many_removed.notified()).await;
            }
        });
    }

    async fn end_turn_of_removed(&self) -> Result<(), MetaError> {
        let mut any = false;
        while self.namespace.borrow_mut().let_go_of_removed(BATCH)? > 0 {
            any = true;
            weft_reactor::yield_now().await;
        }
        if any {
            self.poke_garbage();
        }
        self.namespace.borrow_mut().turn_removed();
        Ok(())
    }
}
