//! What came of tests, read from what their programs say.

use super::measured::Took;
use std::process::ExitStatus;

/// What came of the tests of one program, or of many.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub passed: usize,
    /// Tests that are there to be asked for by name.
    pub ignored: usize,
    /// With their programs.
    pub failed: Vec<String>,
    /// With what each lacked.
    pub skipped: Vec<String>,
    /// What each program took.
    pub took: Vec<Took>,
}

impl Outcome {
    /// Of a program that has ended: `text` is what it said, `skips` what its tests left in the file of skipped tests, and
    /// `status` is `None` where it had to be ended.
    pub fn of(program: &str, text: &str, skips: &str, status: Option<ExitStatus>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut failed = 0;
        for line in text.lines() {
            if let Some(name) = failure(line) {
                outcome.failed.push(format!("{program}: {name}"));
            }
            outcome.passed += count(line, "passed");
            outcome.ignored += count(line, "ignored");
            failed += count(line, "failed");
        }
        outcome.failed.sort();
        outcome.failed.dedup();
        if failed > outcome.failed.len() {
            // What a test's processes print may stand within its line.
            outcome.failed.push(format!("{program}: {} others", failed - outcome.failed.len()));
        }
        match status {
            None => outcome.failed.push(format!("{program}: was not over in time")),
            Some(status) if !status.success() && outcome.failed.is_empty() => {
                outcome.failed.push(format!("{program}: ended with {status}"));
            }
            Some(_) => {}
        }
        outcome.skipped = skips.lines().map(|line| format!("{program}: {line}")).collect();
        outcome.skipped.sort();
        outcome.skipped.dedup();
        outcome.passed = outcome.passed.saturating_sub(outcome.skipped.len());
        outcome
    }

    pub fn add(&mut self, other: Outcome) {
        self.passed += other.passed;
        self.ignored += other.ignored;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.took.extend(other.took);
    }

    /// What failed and what was skipped, by name; at the end a line with the sums.
    pub fn report(&self) -> String {
        let named = |word: &str, tests: &[String]| -> String {
            tests.iter().map(|test| format!("{word}: {test}\n")).collect()
        };
        format!(
            "{}{}{} passed, {} failed, {} skipped, {} ignored\n",
            named("skipped", &self.skipped),
            named("FAILED", &self.failed),
            self.passed,
            self.failed.len(),
            self.skipped.len(),
            self.ignored
        )
    }
}

/// Name of the test that a line says has failed: `test NAME ... FAILED`.
fn failure(line: &str) -> Option<&str> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let has_failed = result.ends_with("FAILED") || result.starts_with("FAILED");
    has_failed.then(|| name.split(" - should panic").next().unwrap_or(name))
}

/// The number before `word` in the line that ends a program's tests: `test result: ok. 3 passed; 0 failed; …`.
fn count(line: &str, word: &str) -> usize {
    let Some((_, sums)) = line.strip_prefix("test result: ").and_then(|line| line.split_once(". ")) else {
        return 0;
    };
    let of_word = sums.split("; ").filter_map(|part| part.strip_suffix(word)).next();
    of_word.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn ended(code: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn failures_are_read() {
        for (line, expected) in [
            ("test a::b ... FAILED", Some("a::b")),
            ("test a - should panic ... FAILED", Some("a")),
            ("test verbs ... FAILED (35 tests, 1 failed)", Some("verbs")),
            ("test a::b ... ok", None),
            ("test result: FAILED. 3 passed; 1 failed", None),
            ("running 3 tests", None),
        ] {
            assert_eq!(failure(line), expected, "{line}");
        }
    }

    #[test]
    fn sums_are_read() {
        let line = "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 9 filtered out; finished in 1.20s";
        assert_eq!(["passed", "failed", "ignored"].map(|word| count(line, word)), [3, 1, 2]);
        assert_eq!(count("3 passed; 1 failed", "passed"), 0);
    }

    #[test]
    fn a_test_that_lacked_something_has_not_passed() {
        let text = "test a ... ok\ntest result: ok. 2 passed; 0 failed; 1 ignored; finished in 1.20s\n";
        let outcome = Outcome::of("p", text, "b: needs root\nb: needs root\n", ended(0));
        assert_eq!((outcome.passed, outcome.ignored, outcome.failed.len()), (1, 1, 0));
        assert_eq!(outcome.skipped, ["p: b: needs root"]);
    }

    #[test]
    fn what_fails_is_told_once_and_a_program_that_dies_has_failed() {
        let text =
            "test a ... FAILED\ntest a ... FAILED\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\n";
        let mut sums = Outcome::of("p", text, "", ended(101));
        assert_eq!(sums.failed, ["p: a", "p: 1 others"]);
        let died = Outcome::of("q", "test a ... ok\n", "", Some(ExitStatus::from_raw(11)));
        assert_eq!((died.passed, died.failed.len()), (0, 1));
        sums.add(died);
        assert_eq!(Outcome::of("r", "", "", None).failed, ["r: was not over in time"]);
        let report = sums.report();
        assert!(
            report.starts_with("FAILED: p: a\nFAILED: p: 1 others\nFAILED: q: ended with signal: 11"),
            "{report}"
        );
        assert!(report.ends_with("\n1 passed, 3 failed, 0 skipped, 0 ignored\n"), "{report}");
    }
}
