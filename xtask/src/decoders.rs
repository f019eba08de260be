//! Rule for what reads bytes or texts from outside: it is fuzzed.
//!
//! A decoder is a function whose name begins with `decode`, `parse`, `from_bytes` or `from_text` and that takes bytes or a text. Its
//! file has a call of `weft_test_fuzz::run`, or a line that names the target of another file, or the reason why there is none:
//!
//! ```text
//! // Fuzzed by bodies: the decoder is part of those of all messages.
//! // Not fuzzed: the text is the kernel's.
//! ```

use crate::{Complaint, SourceFile};

const NAMES: [&str; 4] = ["decode", "parse", "from_bytes", "from_text"];
const TAKEN: [&str; 3] = ["&[u8]", "&str", "&[u8; "];
/// What is typed by those whose process it is: arguments of the command line and of benchmarks.
const TYPED: [&str; 4] = ["crates/cli/", "crates/cli-common/", "crates/bench/", "crates/bench-args/"];

/// Complains about decoders that nothing fuzzes.
pub fn check(files: &[SourceFile]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in files {
        let place = file.path.display().to_string();
        let is_source = place.starts_with("crates/") && place.contains("/src/") && place.ends_with(".rs");
        if !is_source || TYPED.iter().any(|typed| place.starts_with(typed)) {
            continue;
        }
        let code = file.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let Some((line, name)) =
            code.lines().enumerate().find_map(|(line, text)| Some((line, decoder(text)?)))
        else {
            continue;
        };
        match excuse(&file.text, files) {
            Excuse::Good => {}
            Excuse::None => complaints.push(Complaint::new(
                format!("{place}:{}", line + 1),
                format!("`{name}` is not fuzzed: call weft_test_fuzz::run in a test beside it"),
            )),
            Excuse::Stale(target) => complaints
                .push(Complaint::new(place, format!("there is no target {target} for weft_test_fuzz::run"))),
        }
    }
    complaints
}

/// The name of the decoder that a line begins.
fn decoder(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    let (name, arguments) = rest.split_once('(')?;
    let name = name.split('<').next().unwrap_or(name);
    let is_named = NAMES.iter().any(|known| name == *known || name.starts_with(&format!("{known}_")));
    let is_code = !line.trim_start().starts_with("//");
    (is_code && is_named && TAKEN.iter().any(|taken| arguments.contains(taken))).then_some(name)
}

enum Excuse {
    Good,
    None,
    Stale(String),
}

fn excuse(text: &str, files: &[SourceFile]) -> Excuse {
    if text.contains("weft_test_fuzz::run(\"") || text.contains("// Not fuzzed: ") {
        return Excuse::Good;
    }
    let Some((_, rest)) = text.split_once("// Fuzzed by ") else { return Excuse::None };
    let target = rest.split([':', '\n']).next().unwrap_or_default();
    let call = format!("weft_test_fuzz::run(\"{target}\"");
    match files.iter().any(|file| file.text.contains(&call)) {
        true => Excuse::Good,
        false => Excuse::Stale(target.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str) -> Vec<String> {
        let other = "weft_test_fuzz::run(\"bodies\", &[], |_| {});";
        let files = [("crates/x/src/a.rs", text), ("crates/x/src/b.rs", other)];
        let files = files.map(|(path, text)| SourceFile { path: path.into(), text: text.into() });
        check(&files).into_iter().map(|complaint| complaint.text).collect()
    }

    #[test]
    fn decoders_are_found_by_their_names_and_arguments() {
        assert_eq!(decoder("    pub fn decode(bytes: &[u8]) -> Option<X> {"), Some("decode"));
        assert_eq!(decoder("fn parse_line<'a>(line: &'a str, n: &str) -> X {"), Some("parse_line"));
        assert_eq!(decoder("pub fn from_bytes(bytes: &[u8; 64]) -> X {"), Some("from_bytes"));
        for line in ["fn decoder(bytes: &[u8])", "/// fn parse(text: &str)", "fn decode(from: &mut Reader)"] {
            assert_eq!(decoder(line), None, "{line}");
        }
    }

    #[test]
    fn a_decoder_is_fuzzed_here_or_elsewhere_or_says_why_not() {
        let decoder = "fn decode(bytes: &[u8]) {}\n";
        assert!(
            complaints(&format!("{decoder}#[cfg(test)]\nmod tests {{ weft_test_fuzz::run(\"x\") }}\n"))
                .is_empty()
        );
        assert!(complaints(&format!("// Fuzzed by bodies: they have it.\n{decoder}")).is_empty());
        assert!(complaints(&format!("// Not fuzzed: the kernel's.\n{decoder}")).is_empty());
        assert!(complaints(decoder)[0].contains("`decode` is not fuzzed"));
        assert!(
            complaints(&format!("// Fuzzed by others: they have it.\n{decoder}"))[0]
                .contains("no target others")
        );
        assert!(complaints("#[cfg(test)]\nmod tests {\n    fn decode(bytes: &[u8]) {}\n}\n").is_empty());
    }
}
