//! Points in local time as touch takes them.
//!
//! ```text
//!   2027-01-31                    midnight
//!   2027-01-31 12:00:00.5         also with T between, and with Z or +01:00 behind
//!   @1800000000                   seconds since 1970
//!   yesterday, 3 days ago, 2 hours, 2027-01-31 + 1 month
//!   202701311200.30               of `-t`: [[CC]YY]MMDDhhmm[.ss]
//! ```

use std::mem::MaybeUninit;
use weft_wire::messages::Time;

/// Nanoseconds have nine digits.
const FRACTION_DIGITS: usize = 9;
const DAY_S: i64 = 86_400;

/// A date and a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Civil {
    /// What the clocks show at this time; `zone_s`: in that zone.
    fn of(seconds: i64, zone_s: Option<i64>) -> Option<Civil> {
        let mut parts = MaybeUninit::<libc::tm>::zeroed();
        let shifted = seconds.checked_add(zone_s.unwrap_or(0))?;
        // SAFETY: both pointers are to live values; what is not filled in is not read.
        let parts = unsafe {
            let filled = match zone_s {
                None => libc::localtime_r(&shifted, parts.as_mut_ptr()),
                Some(_) => libc::gmtime_r(&shifted, parts.as_mut_ptr()),
            };
            (!filled.is_null()).then(|| parts.assume_init())
        }?;
        Some(Civil {
            year: i64::from(parts.tm_year) + 1900,
            month: i64::from(parts.tm_mon) + 1,
            day: parts.tm_mday.into(),
            hour: parts.tm_hour.into(),
            minute: parts.tm_min.into(),
            second: parts.tm_sec.into(),
        })
    }

    /// Seconds since 1970. Days and months may be beyond their ranges.
    fn seconds(self, zone_s: Option<i64>) -> Option<i64> {
        // SAFETY: all zeros are a valid value.
        let mut parts: libc::tm = unsafe { std::mem::zeroed() };
        parts.tm_year = i32::try_from(self.year - 1900).ok()?;
        parts.tm_mon = i32::try_from(self.month - 1).ok()?;
        parts.tm_mday = i32::try_from(self.day).ok()?;
        parts.tm_hour = i32::try_from(self.hour).ok()?;
        parts.tm_min = i32::try_from(self.minute).ok()?;
        parts.tm_sec = i32::try_from(self.second).ok()?;
        parts.tm_isdst = -1;
        // SAFETY: the pointer is to a live value.
        let seconds = unsafe {
            match zone_s {
                None => libc::mktime(&mut parts),
                Some(zone_s) => libc::timegm(&mut parts).checked_sub(zone_s)?,
            }
        };
        // An error is -1, too; the second before 1970 is not supported.
        (seconds != -1).then_some(seconds)
    }

    /// Whether the clocks show this once.
    fn is_there(self, zone_s: Option<i64>) -> bool {
        self.seconds(zone_s).and_then(|seconds| Civil::of(seconds, zone_s)) == Some(self)
    }
}

/// The parts of a text.
#[derive(Debug, Default)]
struct Said {
    date: Option<[i64; 3]>,
    time: Option<([i64; 3], u32)>,
    zone_s: Option<i64>,
    months: i64,
    days: i64,
    seconds: i64,
}

/// Parses the argument of `-d`; `now` is the present time.
pub fn parse(text: &str, now: &Time) -> Result<Time, String> {
    let wrong = || {
        format!(
            "`{text}` is not a time; write 2027-01-31, 2027-01-31T12:00:00, @SECONDS, yesterday or 3 days ago"
        )
    };
    if let Some(seconds) = text.trim().strip_prefix('@') {
        return since_1970(seconds).ok_or_else(wrong);
    }
    let said = Said::parse(text).ok_or_else(wrong)?;
    said.resolve(now).ok_or_else(wrong)
}

/// Parses the argument of `-t`.
pub fn parse_stamp(text: &str, now: &Time) -> Result<Time, String> {
    let wrong = || format!("`{text}` is not [[CC]YY]MMDDhhmm[.ss]");
    stamp(text, now).ok_or_else(wrong)
}

fn stamp(text: &str, now: &Time) -> Option<Time> {
    let (digits, second) = match text.split_once('.') {
        Some((digits, second)) if second.len() == 2 => (digits, digits_of(second)?),
        Some(_) => return None,
        None => (text, 0),
    };
    digits_of(digits)?;
    let (year, rest) = digits.split_at_checked(digits.len().checked_sub(8)?)?;
    let year = match (year.len(), digits_of(year)) {
        (0, _) => Civil::of(now.seconds, None)?.year,
        (2, Some(year)) => year + if year < 69 { 2000 } else { 1900 },
        (4, Some(year)) => year,
        _ => return None,
    };
    let part = |number: usize| digits_of(&rest[2 * number..2 * number + 2]);
    let [month, day, hour, minute] = [part(0)?, part(1)?, part(2)?, part(3)?];
    let civil = Civil { year, month, day, hour, minute, second };
    let seconds = civil.seconds(None).filter(|_| civil.is_there(None))?;
    Some(Time { seconds, nanoseconds: 0 })
}

/// The number that consists of these digits.
fn digits_of(text: &str) -> Option<i64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Nanoseconds from the digits behind a point.
fn fraction(digits: &str) -> Option<u32> {
    digits_of(digits)?;
    let digits = &digits[..digits.len().min(FRACTION_DIGITS)];
    format!("{digits:0<FRACTION_DIGITS$}").parse().ok()
}

/// Seconds and nanoseconds of `[-]SECONDS[.FRACTION]`.
fn since_1970(text: &str) -> Option<Time> {
    let (whole, part) = text.split_once(['.', ',']).unwrap_or((text, "0"));
    let (is_negative, digits) = (whole.starts_with('-'), whole.trim_start_matches(['-', '+']));
    if whole.len() - digits.len() > 1 {
        return None;
    }
    let (seconds, nanoseconds) = (digits_of(digits)?, fraction(part)?);
    Some(match (is_negative, nanoseconds) {
        (false, _) => Time { seconds, nanoseconds },
        (true, 0) => Time { seconds: -seconds, nanoseconds },
        (true, _) => Time { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

impl Said {
    fn parse(text: &str) -> Option<Said> {
        let mut said = Said::default();
        let text = text.to_ascii_lowercase();
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut words = words.as_slice();
        while let Some((word, rest)) = words.split_first() {
            words = rest;
            let is_known = match *word {
                "now" | "today" => true,
                "yesterday" => said.add(-1, "day"),
                "tomorrow" => said.add(1, "day"),
                _ if is_zone(word) && said.time.is_some() => {
                    zone_of(word).is_some_and(|zone_s| said.set_zone(zone_s))
                }
                _ if word.contains(':') || is_date(word) => said.date_or_time(word),
                "z" | "utc" | "gmt" => said.set_zone(0),
                _ => {
                    words = said.relative(word, rest)?;
                    true
                }
            };
            is_known.then_some(())?;
        }
        Some(said)
    }

    fn set_zone(&mut self, zone_s: i64) -> bool {
        self.zone_s.replace(zone_s).is_none()
    }

    /// `DATE`, `TIME[ZONE]` or both with a T between.
    fn date_or_time(&mut self, word: &str) -> bool {
        let (date, time) = match (is_date(word), word.split_once('t')) {
            (true, Some((date, time))) => (Some(date), Some(time)),
            (true, None) => (Some(word), None),
            (false, _) => (None, Some(word)),
        };
        date.is_none_or(|date| self.date(date).is_some()) && time.is_none_or(|time| self.time(time).is_some())
    }

    fn date(&mut self, text: &str) -> Option<()> {
        let parts: Vec<&str> = text.split('-').collect();
        let [year, month, day] = parts[..] else { return None };
        let date = [digits_of(year).filter(|_| year.len() == 4)?, digits_of(month)?, digits_of(day)?];
        self.date.replace(date).is_none().then_some(())
    }

    fn time(&mut self, text: &str) -> Option<()> {
        let (clock, zone) = match text.find(['z', '+', '-']) {
            Some(at) => (&text[..at], Some(&text[at..])),
            None => (text, None),
        };
        if let Some(zone) = zone {
            self.set_zone(zone_of(zone)?).then_some(())?;
        }
        let (clock, part) = clock.split_once(['.', ',']).unwrap_or((clock, "0"));
        let mut parts = clock.split(':').map(digits_of);
        let (hour, minute) = (parts.next()??, parts.next()??);
        let second = parts.next().unwrap_or(Some(0))?;
        parts.next().is_none().then_some(())?;
        self.time.replace(([hour, minute, second], fraction(part)?)).is_none().then_some(())
    }

    /// `[+-]COUNT UNIT [ago]`, in one word or several. Returns the words behind it.
    fn relative<'a, 'b>(&mut self, word: &'b str, mut rest: &'a [&'b str]) -> Option<&'a [&'b str]> {
        let mut next = || {
            let (word, behind) = rest.split_first()?;
            rest = behind;
            Some(*word)
        };
        let sign = if word.starts_with('-') { -1 } else { 1 };
        let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
        let unsigned = if unsigned.is_empty() { next()? } else { unsigned };
        let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
        let (count, unit) = unsigned.split_at(digits);
        let count = if count.is_empty() { 1 } else { digits_of(count)? };
        let unit = if unit.is_empty() { next()? } else { unit };
        let ago = rest.first() == Some(&"ago");
        if ago {
            rest = &rest[1..];
        }
        self.add(sign * if ago { -count } else { count }, unit.strip_suffix('s').unwrap_or(unit))
            .then_some(rest)
    }

    fn add(&mut self, count: i64, unit: &str) -> bool {
        let (sum, times) = match unit {
            "second" | "sec" => (&mut self.seconds, 1),
            "minute" | "min" => (&mut self.seconds, 60),
            "hour" => (&mut self.seconds, 3600),
            "day" => (&mut self.days, 1),
            "week" => (&mut self.days, 7),
            "month" => (&mut self.months, 1),
            "year" => (&mut self.months, 12),
            _ => return false,
        };
        let added = count.checked_mul(times).and_then(|count| sum.checked_add(count));
        added.map(|added| *sum = added).is_some()
    }

    fn resolve(&self, now: &Time) -> Option<Time> {
        let mut at = Civil::of(now.seconds, self.zone_s)?;
        let mut nanoseconds = now.nanoseconds;
        if let Some([year, month, day]) = self.date {
            (at.year, at.month, at.day) = (year, month, day);
        }
        if self.date.is_some() || self.time.is_some() {
            let ([hour, minute, second], part) = self.time.unwrap_or_default();
            (at.hour, at.minute, at.second) = (hour, minute, second);
            nanoseconds = part;
        }
        if !at.is_there(self.zone_s) {
            return None;
        }
        at.month = at.month.checked_add(self.months)?;
        at.day = at.day.checked_add(self.days)?;
        let seconds = at.seconds(self.zone_s)?.checked_add(self.seconds)?;
        // What the wire and the servers carry, far from overflow.
        let is_storable = seconds.unsigned_abs() < (DAY_S as u64) * 366 * 100_000;
        is_storable.then_some(Time { seconds, nanoseconds })
    }
}

/// Whether it begins like `2027-`.
fn is_date(word: &str) -> bool {
    word.len() > 4 && word.bytes().take(4).all(|byte| byte.is_ascii_digit()) && word.as_bytes()[4] == b'-'
}

/// Whether it looks like `+0100` or `+01:00`.
fn is_zone(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    word.starts_with(['+', '-']) && digits == 4 && word.len() <= 6 && zone_of(word).is_some()
}

/// The seconds that clocks in a zone are ahead of UTC: `z`, `+01`, `+0100` or `+01:00`.
fn zone_of(text: &str) -> Option<i64> {
    if text == "z" {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let digits = text.strip_prefix(['+', '-'])?.replace(':', "");
    let (hours, minutes) = match digits.len() {
        2 => (digits_of(&digits)?, 0),
        4 => (digits_of(&digits[..2])?, digits_of(&digits[2..])?),
        _ => return None,
    };
    (hours <= 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// 2026-03-15 10:20:30.25 UTC.
    const NOW: Time = Time { seconds: 1_773_570_030, nanoseconds: 250_000_000 };

    /// What date(1) makes of it; of relative texts by its own clock, so only of absolute ones.
    fn theirs(text: &str) -> Option<String> {
        let output = Command::new("date").args(["-d", text, "+%s.%N"]).output().expect("date can be run");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    #[test]
    fn absolute_times_are_read_as_by_date() {
        for text in [
            "2027-01-31",
            "2027-01-31 12:00",
            "2027-01-31T12:00:05",
            "2027-1-3 1:02:03.5",
            "2027-01-31T12:00:05.123456789Z",
            "2027-01-31 12:00:05+01:00",
            "2027-01-31 12:00:05 -0330",
            "2027-01-31 12:00 UTC",
            "2024-02-29",
            "@1800000000",
            "@1.5",
            "@-1.5",
            "2027-01-31 + 1 month",
            "2027-01-31 12:00 3 days ago",
            "2027-01-31 2 hours",
            "2027-01-31 +1week",
            "2027-01-31 1 year ago",
            "2027-01-31 tomorrow",
            "2027-02-29",
            "2027-13-01",
            "2027-01-31 25:00",
            "2027-01-31 12:60",
            "nonsense",
            "@",
            "@x",
            "2027-01",
            "2027-01-31 2027-01-31",
            "12:00 12:00",
            "3 furlongs",
        ] {
            let ours = parse(text, &NOW).ok().map(|time| format!("{}.{:09}", time.seconds, time.nanoseconds));
            assert_eq!(ours, theirs(text), "{text}");
        }
    }

    #[test]
    fn relative_times_start_now() {
        for (text, seconds) in
            [("now", 0), ("3 days ago", -259_200), ("-2 hours", -7200), ("+90sec", 90), ("hour ago", -3600)]
        {
            let time = parse(text, &NOW).expect(text);
            assert_eq!((time.seconds - NOW.seconds, time.nanoseconds), (seconds, NOW.nanoseconds), "{text}");
        }
        assert!(parse("9223372036854775807 days", &NOW).is_err());
        assert!(parse("9223372036854775807 years", &NOW).is_err());
    }

    #[test]
    fn stamps_have_a_year_or_not() {
        let at = |text: &str| parse_stamp(text, &NOW).map(|time| time.seconds).ok();
        let of = |text: &str| parse(text, &NOW).map(|time| time.seconds).ok();
        assert_eq!(at("202701311200.30"), of("2027-01-31 12:00:30"));
        assert_eq!(at("2701311200"), of("2027-01-31 12:00"));
        assert_eq!(at("7001311200"), of("1970-01-31 12:00"));
        assert_eq!(at("01311200"), of("2026-01-31 12:00"));
        for text in [
            "",
            "1",
            "0131120",
            "20270131120",
            "202713311200",
            "202702291200",
            "202701311200.3",
            "2027013112.00.00",
            "+1311200",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }
}
