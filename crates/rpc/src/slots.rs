//! Exactly-once slots: places in which the metadata server keeps the last reply of a request that must not be
//! done twice.
//!
//! ```text
//!   request 17, slot 3 ── reply lost ── 17 again, slot 3: the kept reply ── 18, slot 3: 17 is forgotten
//! ```

use std::sync::{Arc, Mutex};

use crate::wait::lock;

/// Changing operations of one session that may be under way at once; the metadata server keeps a reply for
/// each.
pub(crate) const EXACTLY_ONCE_SLOTS: u16 = 512;
/// Of these, what each process has of a session that it shares.
const MEMBER_SLOTS: u16 = 8;

/// The slots of one session at one metadata server.
#[derive(Default, Clone)]
pub(crate) struct Slots(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    free: Vec<u16>,
    used: u16,
}

impl Slots {
    /// All slots, or the share of the process that is number `member` of its session.
    pub(crate) fn of(member: Option<u16>) -> Slots {
        let Some(member) = member else { return Slots::default() };
        let first = member % (EXACTLY_ONCE_SLOTS / MEMBER_SLOTS) * MEMBER_SLOTS;
        let state = State { free: (first..first + MEMBER_SLOTS).collect(), used: EXACTLY_ONCE_SLOTS };
        Slots(Arc::new(Mutex::new(state)))
    }

    /// A free one; `None` while all are in use.
    pub(crate) fn lease(&self) -> Option<SlotLease> {
        let mut state = lock(&self.0);
        let number = match state.free.pop() {
            Some(number) => number,
            None if state.used < EXACTLY_ONCE_SLOTS => {
                state.used += 1;
                state.used - 1
            }
            None => return None,
        };
        Some(SlotLease { number, slots: self.clone() })
    }
}

/// A slot of a session, held by one request until it is answered.
pub(crate) struct SlotLease {
    number: u16,
    slots: Slots,
}

impl SlotLease {
    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        lock(&self.slots.0).free.push(self.number);
    }
}
