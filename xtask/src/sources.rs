//! Rules for every Rust source.

use crate::{Complaint, SourceFile};

/// Longer files are two.
const LINES_MAX: usize = 1000;
/// How far above an `unsafe` its reason may begin.
const REASON_LINES_MAX: usize = 12;
/// What gives proptest the seed of the run.
const CASES: &str = "weft_test_random::cases(";

/// Complains about a source file; other files are fine.
pub fn check(file: &SourceFile) -> Vec<Complaint> {
    if file.path.extension().is_none_or(|extension| extension != "rs") {
        return Vec::new();
    }
    let place = file.path.display().to_string();
    let lines: Vec<_> = file.text.lines().collect();
    let mut complaints = Vec::new();
    if is_crate_root(&place) && !lines.first().is_some_and(|line| line.starts_with("//!")) {
        complaints.push(Complaint::new(&place, "a crate begins with a header (//!) that says what it is"));
    }
    if lines.len() > LINES_MAX {
        let text = format!("{} lines; a file has at most {LINES_MAX}, split it by subject", lines.len());
        complaints.push(Complaint::new(&place, text));
    }
    for (index, line) in lines.iter().enumerate() {
        let here = format!("{place}:{}", index + 1);
        if let Some(word) = unfinished(line) {
            complaints.push(Complaint::new(&here, format!("{word}: finish it, or leave it out")));
        }
        if needs_reason(line) && !has_reason(&lines, index) {
            complaints.push(Complaint::new(&here, "unsafe without a `// SAFETY:` that says why it is sound"));
        }
    }
    complaints.extend(fixed_choices(&place, &lines));
    complaints
}

/// Random tests whose choices are the same in each run, or cannot be made again.
fn fixed_choices(place: &str, lines: &[&str]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = code_of(line);
        let next = lines.get(index + 1).unwrap_or(&"");
        let is_block = code.trim_end().ends_with("proptest! {") && !code.contains("macro_rules");
        let text = if is_block && !next.contains(CASES)
            || code.contains("TestRunner::")
                && ![CASES, "crate::cases("].iter().any(|cases| line.contains(cases))
        {
            format!("proptest without `{CASES}N)`: nobody could repeat what fails")
        } else if code.match_indices("Random(").any(|(at, name)| begins_with_digit(&code[at + name.len()..]))
        {
            "a fixed seed finds nothing new; take one of weft_test_random".to_string()
        } else {
            continue;
        };
        complaints.push(Complaint::new(format!("{place}:{}", index + 1), text));
    }
    complaints
}

fn begins_with_digit(text: &str) -> bool {
    text.starts_with(|character: char| character.is_ascii_digit())
}

fn is_crate_root(place: &str) -> bool {
    place.ends_with("src/lib.rs") || place.ends_with("src/main.rs")
}

/// The word by which a line says that something is missing. (Put together here, so that this file keeps the rule.)
fn unfinished(line: &str) -> Option<String> {
    let notes =
        ["TO", "FIX", "XX"].iter().zip(["DO", "ME", "X"]).map(|(front, back)| format!("{front}{back}"));
    let macros = ["todo", "unimplemented"].map(|name| format!("{name}!("));
    let is_word = |word: &String| {
        line.match_indices(word.as_str()).any(|(at, _)| {
            let edge =
                |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
            let bytes = line.as_bytes();
            edge(at.checked_sub(1).and_then(|before| bytes.get(before)))
                && (word.ends_with('(') || edge(bytes.get(at + word.len())))
        })
    };
    notes.chain(macros).find(is_word)
}

/// Whether a line has an unsafe block or implementation outside of comments and texts.
fn needs_reason(line: &str) -> bool {
    let code = code_of(line);
    ["unsafe {", "unsafe impl"].iter().any(|form| {
        code.find(form).is_some_and(|at| at == 0 || !code.as_bytes()[at - 1].is_ascii_alphanumeric())
    })
}

/// A line without its comment and without what is in quotation marks.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    let (mut quoted, mut escaped) = (false, false);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '/' if !quoted && characters.peek() == Some(&'/') => break,
            _ if !quoted => code.push(character),
            _ => {}
        }
    }
    code
}

/// Whether `SAFETY:` stands in the same line or shortly above, within the same block of lines.
fn has_reason(lines: &[&str], index: usize) -> bool {
    let above = lines[index.saturating_sub(REASON_LINES_MAX)..=index].iter().rev();
    above.take_while(|line| !line.trim().is_empty()).any(|line| line.contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        let file = SourceFile { path: path.into(), text: text.into() };
        check(&file).into_iter().map(|complaint| complaint.text).collect()
    }

    #[test]
    fn unsafe_needs_a_reason() {
        let good = "fn f() {\n    // SAFETY: it is a constant.\n    unsafe { g() }\n}\n";
        assert!(complaints("crates/x/src/a.rs", good).is_empty());
        let bad = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(complaints("crates/x/src/a.rs", bad).len(), 1);
        let far = "// SAFETY: of another.\n\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(complaints("crates/x/src/a.rs", far).len(), 1);
        assert_eq!(complaints("crates/x/src/a.rs", "unsafe impl Send for X {}\n").len(), 1);
        assert!(complaints("crates/x/src/a.rs", "let text = \"unsafe { }\"; // unsafe { }\n").is_empty());
        assert!(complaints("crates/x/src/a.rs", "unsafe fn f() {}\n").is_empty());
    }

    #[test]
    fn unfinished_work_is_found() {
        for text in
            [concat!("// TO", "DO: later\n"), concat!("fn f() { to", "do!() }\n"), concat!("// FIX", "ME\n")]
        {
            assert_eq!(complaints("crates/x/src/a.rs", text).len(), 1, "{text}");
        }
        assert!(complaints("crates/x/src/a.rs", "let mastodon = FIXMESS;\n").is_empty());
        assert!(complaints("notes.md", concat!("TO", "DO\n")).is_empty());
    }

    #[test]
    fn random_tests_take_their_seeds_from_one_place() {
        let good = "proptest! {\n    #![proptest_config(weft_test_random::cases(9))]\n}\n";
        assert!(complaints("crates/x/src/a.rs", good).is_empty());
        let good = "let runner = TestRunner::new(weft_test_random::cases(9));\nRandom(seed());\n";
        assert!(complaints("crates/x/src/a.rs", good).is_empty());
        for bad in ["proptest! {\n    #[test]\n}\n", "TestRunner::default();\n", "Random(7).below(3);\n"] {
            assert_eq!(complaints("crates/x/src/a.rs", bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn crates_have_headers_and_files_an_end() {
        assert_eq!(complaints("crates/x/src/lib.rs", "fn f() {}\n").len(), 1);
        assert!(complaints("crates/x/src/lib.rs", "//! What it is.\n").is_empty());
        assert!(complaints("crates/x/src/a.rs", "fn f() {}\n").is_empty());
        assert_eq!(complaints("crates/x/src/a.rs", &"\n".repeat(1001)).len(), 1);
    }
}
