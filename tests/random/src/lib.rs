//! Seeds of random tests: fresh in each run, named by what fails, and used again on request.
//!
//! ```text
//!   cargo test …                           each process draws a seed; a panic prints "repeat with WEFT_TEST_SEED=2748193650"
//!   WEFT_TEST_SEED=2748193650 cargo test … the same random choices again
//! ```
//!
//! All tests of a process use one seed, so that the order in which they run does not matter. A test that tries many seeds
//! takes them from [`seeds`]: the printed seed is then the one that failed, and the repeat begins with it.

use proptest::test_runner::{Config, RngSeed};
use std::cell::Cell;
use std::sync::OnceLock;

/// Names the seed to use.
pub const SEED: &str = "WEFT_TEST_SEED";

thread_local! {
    /// The seed that this thread took last from [`seeds`].
    static CURRENT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The seed of this process: `$WEFT_TEST_SEED`, else a fresh one. From the first call on, panics print it.
///
/// # Panics
/// If `$WEFT_TEST_SEED` is no number.
pub fn seed() -> u64 {
    static OF_PROCESS: OnceLock<u64> = OnceLock::new();
    *OF_PROCESS.get_or_init(|| {
        let seed = match std::env::var(SEED) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED}={text} is no number")),
            Err(_) => fresh(),
        };
        let print_panic = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            print_panic(panic);
            eprintln!("repeat with {SEED}={}", CURRENT.get().unwrap_or(seed));
        }));
        seed
    })
}

/// [`seed`], and those that follow it. A panic of this thread prints the one that was taken last.
pub fn seeds() -> impl Iterator<Item = u64> {
    (seed()..).inspect(|seed| CURRENT.set(Some(*seed)))
}

/// A seed that is easily typed, and to which tests can add.
fn fresh() -> u64 {
    let mut bytes = [0; 4];
    // SAFETY: the kernel writes at most 4 bytes to `bytes`; so few come whole once the source is seeded.
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(count, 4, "the kernel gives random bytes");
    u32::from_le_bytes(bytes).into()
}

/// The configuration of proptest for so many cases of a test. `$PROPTEST_CASES` asks for more.
///
/// Proptest writes no files: the seed repeats a failure.
pub fn cases(cases: u32) -> Config {
    let defaults = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { defaults.cases.max(cases) } else { cases };
    Config { cases, rng_seed: RngSeed::Fixed(seed()), failure_persistence: None, ..defaults }
}

/// Random numbers that a seed repeats (splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
/// 2014).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`, or 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of them.
    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Random bytes over all of `buffer`.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for part in buffer.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }

    /// Random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;
    use std::process::Command;

    const PART: &str = "WEFT_TEST_RANDOM_PART";

    /// Fails in a process of its own with random numbers, the one way or the other; returns what it said.
    fn failing(part: &str, seed: Option<u64>) -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["tests::what_fails_names_its_seed", "--exact", "--nocapture"]).env(PART, part);
        command.env_remove("PROPTEST_CASES");
        match seed {
            Some(seed) => command.env(SEED, seed.to_string()),
            None => command.env_remove(SEED),
        };
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }

    fn part(part: &str) {
        match part {
            "loop" => seeds().enumerate().for_each(|(number, seed)| {
                assert_ne!(number, 3, "failed with {}", Random(seed).next());
            }),
            _ => {
                let mut runner = TestRunner::new(crate::cases(1000));
                let failure = runner.run(&any::<u64>(), |number| {
                    prop_assert!(number % 50 != 7, "failed with {number}");
                    Ok(())
                });
                failure.unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    fn line<'a>(said: &'a str, word: &str) -> &'a str {
        said.lines().find_map(|line| line.split_once(word)).map(|(_, rest)| rest).expect(said)
    }

    #[test]
    fn what_fails_names_its_seed() {
        if let Ok(name) = std::env::var(PART) {
            return part(&name);
        }
        for (name, word, later) in [("loop", "failed with ", 3), ("proptest", "failed with ", 0)] {
            let first = failing(name, None);
            let seed: u64 = line(&first, "repeat with WEFT_TEST_SEED=").parse().unwrap();
            let again = failing(name, Some(seed - later));
            assert_eq!(line(&first, word), line(&again, word), "{name}");
            assert_eq!(line(&again, "repeat with WEFT_TEST_SEED="), seed.to_string(), "{name}");
            assert_ne!(line(&first, word), line(&failing(name, None), word), "{name}: fresh seeds");
        }
    }
}
