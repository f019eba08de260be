//! Limits for lines that outsiders can cause at will.

use crate::time::coarse_ms;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(60);
/// Limit of remembered keys. Beyond it, events with other keys are dropped until the minute is over.
const KEYS_MAX: usize = 1024;

/// Whether no event with this key was let through within the last minute.
pub fn once_a_minute(key: &str) -> bool {
    static SEEN: Mutex<Option<HashMap<String, Instant>>> = Mutex::new(None);
    let now = Instant::now();
    let mut seen = SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let seen = seen.get_or_insert_default();
    if seen.get(key).is_some_and(|last| now.duration_since(*last) < PERIOD) {
        return false;
    }
    if seen.len() >= KEYS_MAX {
        seen.retain(|_, last| now.duration_since(*last) < PERIOD);
        if seen.len() >= KEYS_MAX {
            return false;
        }
    }
    seen.insert(key.to_owned(), now);
    true
}

/// Limits lines per minute. The rest is counted and reported with the next line.
#[derive(Debug)]
pub struct Budget {
    lines_per_minute: u64,
    /// The minute of the coarse clock in the upper half, and the lines logged in it in the lower half.
    said: AtomicU64,
    left_out: AtomicU64,
}

impl Budget {
    /// A budget of this many lines per minute.
    pub const fn new(lines_per_minute: u32) -> Budget {
        Budget {
            lines_per_minute: lines_per_minute as u64,
            said: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// Takes a line from the budget, if one is left. Returns how many lines were dropped since the last one.
    pub fn take(&self) -> Option<u64> {
        self.take_at(coarse_ms())
    }

    fn take_at(&self, now_ms: u64) -> Option<u64> {
        let minute = now_ms / 60_000 + 1;
        let take = |said: u64| {
            let lines = if said >> 32 == minute { said & 0xffff_ffff } else { 0 };
            (lines < self.lines_per_minute).then_some(minute << 32 | (lines + 1))
        };
        if self.said.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_let_through_once() {
        assert!(once_a_minute("test a"));
        assert!(!once_a_minute("test a"));
        assert!(once_a_minute("test b"));
    }

    #[test]
    fn what_is_beyond_the_budget_is_counted() {
        let budget = Budget::new(2);
        let told: Vec<_> = [10, 20, 30, 40, 60_001, 60_002].map(|now_ms| budget.take_at(now_ms)).into();
        assert_eq!(told, [Some(0), Some(0), None, None, Some(2), Some(0)]);
    }
}
