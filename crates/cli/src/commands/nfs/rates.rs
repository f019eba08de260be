//! Many calls of a kind, so many at a time, and what they are a second.

use std::collections::VecDeque;
use std::time::Instant;
use weft_nfs_client::{PendingCall, Result};

/// Starts calls until there are none, waits for all, and keeps `depth` of them under way.
pub fn keep_under_way<T>(
    depth: usize,
    mut start: impl FnMut(usize) -> Option<PendingCall<T>>,
    mut finish: impl FnMut(usize, T) -> Result<()>,
) -> Result<()> {
    let mut under_way = VecDeque::with_capacity(depth);
    let (mut number, mut is_end) = (0, false);
    loop {
        while under_way.len() < depth && !is_end {
            match start(number) {
                Some(call) => under_way.push_back((number, call)),
                None => is_end = true,
            }
            number += 1;
        }
        let Some((number, call)) = under_way.pop_front() else { return Ok(()) };
        finish(number, call.wait()?)?;
    }
}

/// How much of `amount` is done in a second.
pub fn per_second(amount: f64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(amount / begun.elapsed().as_secs_f64().max(1e-9))
}

/// The one in the middle; of an even number, the mean of the two in the middle.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// Numbers without a pattern that a server could guess (xorshift).
pub struct Scattered(pub u64);

impl Scattered {
    /// One below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0]), median(&[])), (2.0, 2.5, 0.0));
    }

    #[test]
    fn numbers_are_scattered() {
        let mut numbers = Scattered(1);
        let mut seen = [false; 16];
        (0..200).for_each(|_| seen[numbers.below(16) as usize] = true);
        assert!(seen.iter().all(|seen| *seen));
    }
}
