//! Sizes as text: `64K`, `1.5M`, `2GiB`, `4096`.

/// Parses a size in bytes. Suffixes K, M, G, T (with or without `B` or `iB`, in any case) are powers of 1024.
///
/// ```text
/// 4096 -> 4096      64K -> 65536      1.5MiB -> 1572864      2gb -> 2147483648
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write for example 65536, 64K, 1.5M or 2GiB");
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    if !number.contains('.') {
        let whole: u64 = number.parse().map_err(|_| wrong())?;
        return whole.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is more than 2^64 bytes"));
    }
    let value: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = value * (1u64 << shift) as f64;
    if bytes.fract() != 0.0 || bytes >= u64::MAX as f64 {
        return Err(format!("`{text}` is not a whole number of bytes"));
    }
    Ok(bytes as u64)
}

/// Formats a size with two to four digits and its unit: `1.5 MiB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// MiB/s of `bytes` in `seconds`.
pub fn mib_per_s(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / (1u64 << 20) as f64 / seconds.max(1e-9)
}

/// A time as text with about three digits.
pub fn format_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_suffix() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("1.5MiB", 1_572_864),
            ("2 GB", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "K", "-1", "1.0001K", "1X", "1..5M", "99999999999T", "1e6"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_shortly() {
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(1024), "1.0 KiB");
        assert_eq!(format_bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(format_bytes(64 << 20), "64 MiB");
        assert_eq!(format_bytes(u64::MAX), "16 EiB");
    }

    #[test]
    fn times_are_short() {
        for (ns, text) in
            [(12, "12 ns"), (1_234, "1.2 µs"), (45_600_000, "45.6 ms"), (3_456_000_000, "3.46 s")]
        {
            assert_eq!(format_ns(ns), text);
        }
    }
}
