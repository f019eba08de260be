//! How the receives of a port are divided among its connections (IB 3.3.1). Pure.
//!
//! A connection's *window* is the number of receives that its peer may use. The windows together are never
//! more than what is posted, less a reserve, so a message always finds a receive. A window grows while its
//! connection is at work and shrinks as connections come.
//!
//! ```text
//!   1024 receives, 64 in reserve │ 3 connections: 32 + 32 + 4 │ the rest is free to be given
//! ```

/// The smallest window: with fewer receives, credits and a message of several parts could wait for each
/// other.
pub const WINDOW_MIN: u32 = 4;
/// A connection's largest share of a port's receives.
const WINDOW_MAX: u32 = 32;
/// By how much a message makes its connection's window grow.
const WINDOW_STEP: u32 = 2;

/// The receives of a port, shared by its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    receives: u32,
    given: u32,
    connections: u32,
}

impl Shares {
    /// Of `receives` posted ones a sixteenth is kept back.
    pub fn new(receives: u32) -> Shares {
        Shares { receives: receives - receives / 16, given: 0, connections: 0 }
    }

    /// What is promised to all connections.
    pub fn given(&self) -> u32 {
        self.given
    }

    /// What a connection should have at most.
    fn fair(&self) -> u32 {
        (self.receives / (2 * self.connections).max(1)).clamp(WINDOW_MIN, WINDOW_MAX)
    }

    /// A connection comes: the window that it begins with. `None`: there is no room for it.
    pub fn join(&mut self) -> Option<u32> {
        if self.receives - self.given < WINDOW_MIN {
            return None;
        }
        self.given += WINDOW_MIN;
        self.connections += 1;
        Some(WINDOW_MIN)
    }

    /// The new window of a connection that is at work: larger, or smaller as far as its receives are not
    /// `in_use`.
    pub fn adjust(&mut self, window: u32, in_use: u32) -> u32 {
        let fair = self.fair();
        let wanted = if window > fair {
            fair.max(in_use)
        } else {
            window + (fair - window).min(WINDOW_STEP).min(self.receives - self.given)
        };
        self.given = self.given - window + wanted;
        wanted
    }

    /// A connection with this window has gone.
    pub fn leave(&mut self, window: u32) {
        self.given -= window;
        self.connections -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]

        #[test]
        fn shares_are_never_more_than_there_is(
            receives in 16u32..200,
            order in proptest::collection::vec((0usize..40, 0u8..4, 0u32..40), 0..400),
        ) {
            let mut shares = Shares::new(receives);
            let mut windows: Vec<u32> = Vec::new();
            for (which, what, in_use) in order {
                match what {
                    0 => windows.extend(shares.join()),
                    _ if windows.is_empty() => {}
                    1 => shares.leave(windows.swap_remove(which % windows.len())),
                    _ => {
                        let which = which % windows.len();
                        windows[which] = shares.adjust(windows[which], in_use.min(windows[which]));
                    }
                }
                prop_assert_eq!(shares.given, windows.iter().sum::<u32>());
                prop_assert!(shares.given <= receives - receives / 16);
                prop_assert!(windows.iter().all(|window| *window >= WINDOW_MIN));
            }
        }
    }
}
