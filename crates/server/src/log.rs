//! One line per noteworthy event to standard error; nothing per request.
//!
//! ```text
//! 2026-01-31T12:00:00.123Z info  io0: listens on 127.0.0.1:7401
//! ```
//!
//! An event that an outsider can cause at will (a wrong key, a foreign protocol) goes through [`once_a_minute`], so that it
//! fills no disk.

use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Good to know.
    Info,
    /// Somebody should look.
    Warn,
}

const PERIOD: Duration = Duration::from_secs(60);
/// Keys remembered; beyond it, events without a remembered key are dropped until the minute is over.
const KEYS_MAX: usize = 1024;

/// Writes a line.
pub(crate) fn log(level: Level, server: &str, event: fmt::Arguments<'_>) {
    let level = match level {
        Level::Info => "info ",
        Level::Warn => "warn ",
    };
    let line = line(level, server, event);
    // A server whose standard error is gone goes on serving.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The time as the lines of a log begin with it.
pub fn timestamp_now() -> String {
    timestamp(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// One line, whatever others have put into the event: control characters are escaped.
fn line(level: &str, server: &str, event: fmt::Arguments<'_>) -> String {
    let mut line = format!("{} {level} {server}: ", timestamp_now());
    for character in event.to_string().chars() {
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line.push('\n');
    line
}

/// Whether an event with this key was not let through within the last minute.
pub(crate) fn once_a_minute(key: &str) -> bool {
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

fn timestamp(since_1970: Duration) -> String {
    let whole = time(since_1970.as_secs());
    format!("{}.{:03}Z", whole.trim_end_matches('Z'), since_1970.subsec_millis())
}

/// A time in seconds since 1970, as in the log.
pub(crate) fn time(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01. Years are taken to begin in March, so that the leap day is last;
/// 153 days make five months from March on.
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

macro_rules! info {
    ($server:expr, $($event:tt)*) => { $crate::log::log($crate::log::Level::Info, $server, format_args!($($event)*)) };
}
macro_rules! warning {
    ($server:expr, $($event:tt)*) => { $crate::log::log($crate::log::Level::Warn, $server, format_args!($($event)*)) };
}
pub(crate) use {info, warning};

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
    fn an_event_is_one_line_without_control_characters() {
        let line = line("info ", "io0", format_args!("refused {}", "a\nfalse line \x1b[2Jä"));
        assert!(line.ends_with("Z info  io0: refused a\\nfalse line \\u{1b}[2Jä\n"), "{line}");
    }

    #[test]
    fn an_event_is_let_through_once() {
        assert!(once_a_minute("test a"));
        assert!(!once_a_minute("test a"));
        assert!(once_a_minute("test b"));
    }
}
