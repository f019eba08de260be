//! Progress for those who wait: a line on standard error now and then, on terminals, pipes and in log files.

use std::sync::Mutex;
use std::time::{Duration, Instant};

const TELL_EVERY: Duration = Duration::from_secs(5);

struct Told {
    begun: Instant,
    last: Instant,
    measurements: u64,
}

static TOLD: Mutex<Option<Told>> = Mutex::new(None);

/// Counts a measurement, and prints it if nothing was printed for a while.
pub fn tell() {
    let now = Instant::now();
    let mut told = TOLD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let told = told.get_or_insert(Told { begun: now, last: now, measurements: 0 });
    told.measurements += 1;
    if let Some(text) = told.due(now) {
        eprintln!("{text}");
    }
}

impl Told {
    /// The line that is due now, if one is.
    fn due(&mut self, now: Instant) -> Option<String> {
        if now.duration_since(self.last) < TELL_EVERY {
            return None;
        }
        self.last = now;
        let seconds = now.duration_since(self.begun).as_secs();
        Some(format!("weft: {} measurements in {seconds} s", self.measurements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_now_and_then() {
        let begun = Instant::now();
        let mut told = Told { begun, last: begun, measurements: 7 };
        let at = |told: &mut Told, s| told.due(begun + Duration::from_secs(s));
        assert_eq!(at(&mut told, 4), None);
        assert_eq!(at(&mut told, 6).as_deref(), Some("weft: 7 measurements in 6 s"));
        assert_eq!(at(&mut told, 10), None);
        assert!(at(&mut told, 11).is_some());
    }
}
