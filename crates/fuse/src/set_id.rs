//! What is known of the set-id bits of an open file, which a write by another user than root may have to clear.
//!
//! Who may set bits is not asked at each write: that there are none is known for as long as this mount would be told of a change.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// See the module.
#[derive(Default)]
pub(crate) struct SetIdBits(Mutex<State>);

#[derive(Default)]
struct State {
    known: Option<Known>,
    /// How often bits may have been set by others than the one who looks.
    changes: u64,
}

struct Known {
    until: Instant,
    /// The user whose writes leave the bits that there are; `None`: there are none.
    left_by: Option<u32>,
}

/// That the attributes have to be looked at, and which changes they show.
pub(crate) struct Unknown(u64);

impl SetIdBits {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of a file that was opened a moment ago.
    pub(crate) fn look(&self) -> Unknown {
        Unknown(self.state().changes)
    }

    /// Why nothing is to be cleared for a write by `uid`: `None`. Otherwise attributes are to be looked at.
    pub(crate) fn to_clear(&self, uid: u32) -> Option<Unknown> {
        let state = self.state();
        let known = state.known.as_ref().filter(|known| Instant::now() < known.until);
        let nothing = known.is_some_and(|known| known.left_by.is_none_or(|user| user == uid));
        (!nothing).then_some(Unknown(state.changes))
    }

    /// The attributes that were looked at say this, until then.
    pub(crate) fn found(&self, looked: &Unknown, left_by: Option<u32>, until: Instant) {
        let mut state = self.state();
        if state.changes == looked.0 {
            state.known = Some(Known { until, left_by });
        }
    }

    /// Bits may have been set, or the group of the file is another.
    pub(crate) fn changed(&self) {
        let mut state = self.state();
        state.known = None;
        state.changes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_was_found_holds_until_its_time_is_over_or_something_has_changed() {
        let (bits, later) = (SetIdBits::default(), Instant::now() + Duration::from_secs(60));
        let looked = bits.to_clear(1).expect("nothing is known");
        bits.found(&looked, None, later);
        assert!(bits.to_clear(1).is_none());
        bits.changed();
        let looked = bits.to_clear(1).expect("it has changed");
        bits.found(&looked, Some(1), later);
        assert!(bits.to_clear(1).is_none(), "the user leaves them");
        assert!(bits.to_clear(2).is_some(), "another does not");
        bits.found(&looked, None, Instant::now());
        assert!(bits.to_clear(1).is_some(), "its time is over");
    }

    #[test]
    fn what_was_looked_at_before_a_change_does_not_count() {
        let bits = SetIdBits::default();
        let looked = bits.look();
        bits.changed();
        bits.found(&looked, None, Instant::now() + Duration::from_secs(60));
        assert!(bits.to_clear(1).is_some());
    }
}
