//! Runs decoders on damaged input: for a moment in each test run, for hours with coverage in `make fuzz`.
//!
//! ```text
//!   inputs that are right, from the test  ─┐
//!   tests/fuzz/corpus/TARGET.hex, kept    ─┴─► pool ─► mutate one, or splice two ─► the decoder: it may refuse, not panic
//!                                               ▲                                         │
//!                                               └── an input that reaches new code ◄──────┘   where the build counts it
//! ```
//!
//! A target is a test beside its decoder, so that it reaches private ones:
//!
//! ```
//! weft_test_fuzz::run("example", &[b"12".to_vec()], |bytes| {
//!     let _ = std::str::from_utf8(bytes).map(|text| text.parse::<u32>());
//! });
//! ```
//!
//! | variable | meaning |
//! | --- | --- |
//! | `WEFT_FUZZ_SECONDS` | how long each target runs; without it, for [`SECONDS_DEFAULT`] and at most [`EXECUTIONS_DEFAULT`] |
//! | `WEFT_FUZZ_KEEP` | adds inputs that reached new code to the corpus in the repository |
//!
//! Code is counted in builds with `-C passes=sancov-module` (`scripts/fuzz.sh`). What fails prints its input, to be added to the
//! corpus.

mod coverage;
mod mutate;

use mutate::mutate;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft_test_random::{Random, seed};

/// Time of a target in a usual test run.
pub const SECONDS_DEFAULT: u64 = 1;
/// Executions of a target in a usual test run.
pub const EXECUTIONS_DEFAULT: u64 = 100_000;
/// Longer inputs are not kept: a corpus is small, and what matters in a format is in its first bytes.
const INPUT_BYTES_MAX: usize = 4096;
/// Inputs that a corpus in the repository has at most.
const CORPUS_INPUTS_MAX: usize = 200;

/// Runs `target` on the corpus, on `right` and on what mutations make of them.
///
/// # Panics
/// If the target panics, or the corpus cannot be read.
pub fn run(name: &str, right: &[Vec<u8>], target: impl Fn(&[u8])) {
    run_from(seed(), name, right, target);
}

/// [`run`], with this seed.
fn run_from(seed: u64, name: &str, right: &[Vec<u8>], target: impl Fn(&[u8])) {
    let corpus = Corpus::read(name);
    let mut pool: Vec<Vec<u8>> = right.iter().chain(&corpus.inputs).cloned().collect();
    pool.push(Vec::new());
    for input in &pool {
        try_one(name, input, &target);
    }
    coverage::find_new();
    let asked =
        std::env::var("WEFT_FUZZ_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
    let executions_max = if asked.is_some() { u64::MAX } else { EXECUTIONS_DEFAULT };
    let end = Instant::now() + Duration::from_secs(asked.unwrap_or(SECONDS_DEFAULT));
    let mut random = Random(seed);
    let (mut executions, mut found) = (pool.len() as u64, Vec::new());
    while executions < executions_max && Instant::now() < end {
        for _ in 0..100 {
            let input = mutate(&mut random, &pool);
            try_one(name, &input, &target);
            if coverage::find_new() && input.len() <= INPUT_BYTES_MAX {
                found.push(input.clone());
                pool.push(input);
            }
        }
        executions += 100;
    }
    if std::env::var_os("WEFT_FUZZ_KEEP").is_some() {
        corpus.keep(&found);
    }
    let (kept, new) = (corpus.inputs.len(), found.len());
    println!("fuzz {name}: {executions} executions, {kept} inputs kept, {new} reached new code, seed {seed}");
}

/// Says which input made the target panic.
fn try_one(name: &str, input: &[u8], target: &impl Fn(&[u8])) {
    struct Told<'a>(&'a str, &'a [u8]);
    impl Drop for Told<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("fuzz {}: fails with the input {}", self.0, to_hex(self.1));
            }
        }
    }
    let _told = Told(name, input);
    target(input);
}

/// The inputs of a target in the repository: one a line, in hexadecimal digits.
struct Corpus {
    path: PathBuf,
    inputs: Vec<Vec<u8>>,
}

impl Corpus {
    fn read(name: &str) -> Corpus {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{name}.hex"));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let inputs = text.lines().map(|line| from_hex(line).unwrap_or_else(|| panic!("{path:?}: {line}")));
        Corpus { inputs: inputs.collect(), path }
    }

    fn keep(&self, found: &[Vec<u8>]) {
        let mut all: Vec<&Vec<u8>> = self.inputs.iter().chain(found).collect();
        all.sort_by_key(|input| (input.len(), *input));
        all.dedup();
        all.truncate(CORPUS_INPUTS_MAX);
        let text: String = all.into_iter().map(|input| to_hex(input) + "\n").collect();
        let directory = self.path.parent().expect("it is in a directory");
        std::fs::create_dir_all(directory).expect("the repository can be written");
        std::fs::write(&self.path, text).unwrap_or_else(|error| panic!("{:?}: {error}", self.path));
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn hexadecimal_digits_are_the_bytes() {
        assert_eq!(from_hex(&to_hex(&[0, 0x1f, 255])).unwrap(), [0, 0x1f, 255]);
        assert_eq!(from_hex("zz"), None);
    }

    /// A length that is not checked, a flag that is not looked at, a cut: what decoders get wrong.
    ///
    /// The seed is fixed, for one seed of some thousands misses the rarest of them in so few executions.
    #[test]
    fn faults_are_found_within_a_moment() {
        let trusts_a_length = |bytes: &[u8]| {
            if let [length, rest @ ..] = bytes {
                let _ = &rest[..usize::from(*length)];
            }
        };
        let knows_no_flag = |bytes: &[u8]| assert!(bytes.get(2).is_none_or(|flags| flags & 0x40 == 0));
        let needs_all = |bytes: &[u8]| assert!(bytes.is_empty() || bytes.len() >= 8);
        let overflows = |bytes: &[u8]| {
            let word = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            assert!(word.checked_add(1).is_some());
        };
        let right = [vec![4, 1, 2, 3, 4, 0, 0, 0, 0], vec![1; 12]];
        for (name, target) in [
            ("length", &trusts_a_length as &dyn Fn(&[u8])),
            ("flag", &knows_no_flag),
            ("cut", &needs_all),
            ("overflow", &overflows),
        ] {
            let failed = catch_unwind(AssertUnwindSafe(|| run_from(1, name, &right, target)));
            assert!(failed.is_err(), "{name}");
        }
    }

    #[test]
    fn a_run_ends_and_executes_what_is_right_first() {
        let (first, executions) = (Cell::new(None), Cell::new(0u64));
        run("none", &[vec![7]], |bytes| {
            executions.set(executions.get() + 1);
            if first.get().is_none() {
                first.set(Some(bytes == [7]));
            }
        });
        assert_eq!(first.get(), Some(true));
        assert!(executions.get() > 1000);
    }
}
