//! Points in time as text, in UTC, and durations.

/// As `2027-01-31T12:00:00Z`.
pub fn utc(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days as i64);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// From `2027-01-31` or `2027-01-31T12:00:00Z`.
pub fn parse_utc(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00Z"));
    let numbers = |text: &str, by: char| -> Option<[i64; 3]> {
        let parts: Option<Vec<i64>> = text
            .split(by)
            .map(|part| part.parse().ok().filter(|_| part.bytes().all(|byte| byte.is_ascii_digit())))
            .collect();
        parts?.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time.strip_suffix('Z')?, ':')?;
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    let is_there = civil(days) == (year, month, day) && hour < 24 && minute < 60 && second < 60;
    is_there.then_some((days * 86_400 + hour * 3600 + minute * 60 + second) as u64)
}

/// Days since 1970 of a date in the Gregorian calendar. Years are counted from March, so that the leap day is
/// the last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

/// The date that is this many days after 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A length of time in its two largest units: `1h01m`.
pub fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (0, hours, minutes, _) => format!("{hours}h{minutes:02}m"),
        (days, hours, ..) => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_survives_its_text() {
        for day in 0..100_000u64 {
            let seconds = day * 86_400 + day % 86_400;
            assert_eq!(parse_utc(&utc(seconds)), Some(seconds));
        }
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(parse_utc("2000-02-29"), Some(951_782_400));
        for text in [
            "2001-02-29",
            "2001-00-01",
            "2001-1",
            "2001-01-01T24:00:00Z",
            "2001-01-01T00:00:00",
            "+001-01-01",
        ] {
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_short() {
        for (ms, text) in [(999, "0s"), (61_000, "1m01s"), (3_660_000, "1h01m"), (90_000_000, "1d01h")] {
            assert_eq!(duration(ms), text);
        }
    }
}
