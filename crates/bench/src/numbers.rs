//! Medians, and numbers as text.

/// Formats an amount. Whole numbers have no decimals.
pub fn count(amount: f64) -> String {
    if amount.fract() == 0.0 { format!("{amount:.0}") } else { number(amount) }
}

/// Formats a number with three or more significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The median; of an even number of samples, the mean of the two in the middle. 0 if there are none.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// The value that this fraction of the sorted samples does not exceed.
pub fn percentile(sorted: &[u64], part: f64) -> u64 {
    match sorted.len() {
        0 => 0,
        count => sorted[((count as f64 * part).ceil() as usize).clamp(1, count) - 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let sorted: Vec<u64> = (1..=100).collect();
        assert_eq!((percentile(&sorted, 0.5), percentile(&sorted, 0.99)), (50, 99));
        assert_eq!(percentile(&[7], 0.01), 7);
    }
}
