//! Times in log lines, and a clock that costs almost nothing.

use std::time::{Duration, SystemTime};

/// The current time as in log lines.
pub fn timestamp_now() -> String {
    timestamp(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn timestamp(since_1970: Duration) -> String {
    let whole = time(since_1970.as_secs());
    format!("{}.{:03}Z", whole.trim_end_matches('Z'), since_1970.subsec_millis())
}

/// A time in seconds since 1970, as in the log.
pub fn time(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01. Years begin in March here, so that the leap day is
/// last; from March on, every five months have 153 days.
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, of_year - (153 * march_month + 2) / 5 + 1)
}

/// Milliseconds of a monotonic clock, exact to a tick of the kernel's (1 to 10 ms), and read in a few
/// nanoseconds: to detect slow calls.
pub fn coarse_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is live and writable. Without such a clock it stays 0, and nothing counts as slow.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(timestamp(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn the_coarse_clock_goes_forward() {
        let begun = coarse_ms();
        std::thread::sleep(Duration::from_millis(60));
        assert!((40..5_000).contains(&(coarse_ms() - begun)));
    }
}
