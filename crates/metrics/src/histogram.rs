//! Times by how long they were, in buckets that double.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets with an upper bound. The first one is 8 µs, each further one twice the one before, the last 16.8 s.
pub const BUCKETS: usize = 22;
const FIRST_NS: u64 = 8 << 10;

/// Counts of times. Threads add without a lock; who reads sees each count as it is at some moment.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The last one is of what is longer than all bounds.
    counts: [AtomicU64; BUCKETS + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Adds a time.
    pub fn note(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// By bucket: its upper bound in seconds (`None`: there is none), and how many times were at most so long. The last is all of
    /// them.
    pub fn cumulative(&self) -> Vec<(Option<f64>, u64)> {
        let mut sum = 0;
        let bound = |bucket: usize| (bucket < BUCKETS).then(|| (FIRST_NS << bucket) as f64 / 1e9);
        let counts = self.counts.iter().enumerate();
        counts
            .map(|(bucket, count)| {
                sum += count.load(Ordering::Relaxed);
                (bound(bucket), sum)
            })
            .collect()
    }

    /// The sum of all times, in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// The first bucket whose bound is not smaller.
fn bucket_of(ns: u64) -> usize {
    let above = ns.saturating_sub(1) / FIRST_NS;
    ((u64::BITS - above.leading_zeros()) as usize).min(BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_it_fits_in() {
        for (ns, bucket) in [
            (0, 0),
            (FIRST_NS, 0),
            (FIRST_NS + 1, 1),
            (2 * FIRST_NS, 1),
            (2 * FIRST_NS + 1, 2),
            (FIRST_NS << (BUCKETS - 1), BUCKETS - 1),
            ((FIRST_NS << (BUCKETS - 1)) + 1, BUCKETS),
            (u64::MAX, BUCKETS),
        ] {
            assert_eq!(bucket_of(ns), bucket, "{ns}");
        }
    }

    #[test]
    fn counts_add_up_to_the_last_one() {
        let histogram = Histogram::default();
        for us in [1, 7, 9, 100, 1_000_000, 60_000_000] {
            histogram.note(Duration::from_micros(us));
        }
        let all = histogram.cumulative();
        assert_eq!(all.len(), BUCKETS + 1);
        assert_eq!(all[0], (Some(8192.0 / 1e9), 2));
        assert_eq!(all.last(), Some(&(None, 6)));
        assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        assert!((histogram.sum_s() - 61.000117).abs() < 1e-9);
    }
}
