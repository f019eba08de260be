//! What a task costs: its start and end, and processor time.

use super::super::access::method::Counters;
use super::super::adapters::Counts;
use super::super::numbers::percentile;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A part of a file.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Block {
    pub offset: u64,
    pub bytes: u64,
}

/// The cost of a task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Done {
    /// The start, on the clock that all processes of this machine share.
    pub begin_ns: u64,
    /// The end, on the same clock.
    pub end_ns: u64,
    /// Processor time of this process.
    pub cpu_s: f64,
    /// Median of single operations, if they were timed.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// Costs of the accesses, if they were counted.
    pub counters: Counters,
    /// Operations of RDMA adapters meanwhile.
    pub adapter: Counts,
}

impl Done {
    /// Median of single operations, in microseconds.
    pub fn p50_us(&self) -> f64 {
        self.p50_ns as f64 / 1e3
    }

    /// Their 99th percentile, in microseconds.
    pub fn p99_us(&self) -> f64 {
        self.p99_ns as f64 / 1e3
    }
}

/// Reports that a task is prepared, and returns when the measured part begins.
pub type Ready<'a> = &'a mut dyn FnMut(String) -> Result<()>;

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result is written to a live value.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Times a piece of work.
pub fn measure(work: impl FnOnce() -> Result<()>) -> Result<Done> {
    let (begin_ns, cpu_ns) = (clock_ns(libc::CLOCK_MONOTONIC), clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID));
    work()?;
    let cpu_s = (clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu_ns) as f64 / 1e9;
    Ok(Done { begin_ns, end_ns: clock_ns(libc::CLOCK_MONOTONIC), cpu_s, ..Done::default() })
}

/// Repeats a piece of work and times each repetition.
pub fn measure_each(rounds: usize, work: impl FnMut() -> Result<()>) -> Result<Done> {
    measure_each_after(Duration::ZERO, rounds, work)
}

/// As [`measure_each`], with a pause before each repetition, which is not timed.
pub fn measure_each_after(
    pause: Duration,
    rounds: usize,
    mut work: impl FnMut() -> Result<()>,
) -> Result<Done> {
    let mut took_ns = Vec::with_capacity(rounds);
    let done = measure(|| {
        for _ in 0..rounds {
            std::thread::sleep(pause);
            let begun = Instant::now();
            work()?;
            took_ns.push(begun.elapsed().as_nanos() as u64);
        }
        Ok(())
    })?;
    took_ns.sort_unstable();
    Ok(Done { p50_ns: percentile(&took_ns, 0.5), p99_ns: percentile(&took_ns, 0.99), ..done })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_before_each_repetition() {
        let pause = Duration::from_millis(2);
        let mut rounds = 0;
        let done = measure_each_after(pause, 3, || {
            rounds += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(rounds, 3);
        assert!(done.end_ns - done.begin_ns >= 3 * pause.as_nanos() as u64);
    }
}
