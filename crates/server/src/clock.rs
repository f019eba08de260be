//! The wall clock, and one that jumps of it do not change at once.

use std::cell::Cell;
use std::time::Duration;
pub(crate) use weft_host::{since_1970, unix_s};
use weft_meta::Timestamp;
use weft_wire::limits::CLOCK_SKEW_S_MAX;

/// A wall clock that moves further than this against the clock that counts from the boot has jumped.
const JUMP_S: u64 = 60;

/// Now, as the namespace keeps times.
pub(crate) fn now() -> Timestamp {
    let since = since_1970();
    Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

/// The wall clock, for periods of days that must not end because the clock was set. A jump counts once it has lasted for
/// [`CLOCK_SKEW_S_MAX`]; until then the time goes on without it.
#[derive(Debug, Default)]
pub(crate) struct SteadyClock(Cell<Option<Adopted>>);

#[derive(Debug, Clone, Copy)]
struct Adopted {
    /// Seconds since 1970 at the boot.
    boot_s: i64,
    /// When the wall clock was first seen to be elsewhere.
    jumped_at: Option<Duration>,
}

impl SteadyClock {
    /// Seconds since 1970.
    pub fn now_s(&self) -> u64 {
        self.at(unix_s(), weft_host::since_boot())
    }

    fn at(&self, wall_s: u64, since_boot: Duration) -> u64 {
        let boot_s = wall_s as i64 - since_boot.as_secs() as i64;
        let follows = Adopted { boot_s, jumped_at: None };
        let adopted = match self.0.get() {
            Some(before) if before.boot_s.abs_diff(boot_s) > JUMP_S => {
                let jumped_at = before.jumped_at.unwrap_or(since_boot);
                match since_boot.saturating_sub(jumped_at).as_secs() < CLOCK_SKEW_S_MAX {
                    true => Adopted { jumped_at: Some(jumped_at), ..before },
                    false => follows,
                }
            }
            _ => follows,
        };
        self.0.set(Some(adopted));
        adopted.boot_s.saturating_add_unsigned(since_boot.as_secs()).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 86_400;

    #[test]
    fn a_jump_of_the_wall_clock_counts_when_it_has_lasted() {
        let (wall_s, boot) = (1_800_000_000u64, Duration::from_secs(5_000));
        for ahead_s in [DAY_S as i64, 30 * DAY_S as i64, -(DAY_S as i64)] {
            let clock = SteadyClock::default();
            let steady = |elapsed_s: u64, ahead: i64| {
                let now_s = clock.at(
                    (wall_s + elapsed_s).saturating_add_signed(ahead),
                    boot + Duration::from_secs(elapsed_s),
                );
                now_s as i64 - wall_s as i64
            };
            assert_eq!(steady(0, 0), 0);
            assert_eq!(steady(100, ahead_s), 100);
            assert_eq!(steady(100 + CLOCK_SKEW_S_MAX - 1, ahead_s), 100 + CLOCK_SKEW_S_MAX as i64 - 1);
            assert_eq!(steady(100 + CLOCK_SKEW_S_MAX, ahead_s), 100 + CLOCK_SKEW_S_MAX as i64 + ahead_s);
        }
    }

    #[test]
    fn a_clock_that_is_set_right_again_has_never_jumped_and_small_steps_are_followed() {
        let (clock, wall_s, boot) = (SteadyClock::default(), 1_800_000_000, Duration::from_secs(5_000));
        let at =
            |elapsed_s: u64, wall_s: u64| clock.at(wall_s + elapsed_s, boot + Duration::from_secs(elapsed_s));
        assert_eq!(at(0, wall_s), wall_s);
        assert_eq!(at(10, wall_s + DAY_S), wall_s + 10);
        assert_eq!(at(20, wall_s), wall_s + 20);
        // The next jump has a time of its own.
        assert_eq!(at(CLOCK_SKEW_S_MAX + 15, wall_s + DAY_S), wall_s + CLOCK_SKEW_S_MAX + 15);
        assert_eq!(at(CLOCK_SKEW_S_MAX + 20, wall_s + 50), wall_s + CLOCK_SKEW_S_MAX + 70);
        assert_eq!(at(CLOCK_SKEW_S_MAX + 30, wall_s + 100), wall_s + CLOCK_SKEW_S_MAX + 130);
    }
}
