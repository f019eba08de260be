//! Rules for documents.
//!
//! A claim of docs/semantics.md is followed by the tests that show it, each as a line
//!
//! ```text
//! Test: tests/tests/semantics.rs::a_read_sees_every_write_that_has_returned
//! ```
//!
//! with the path of a file and the name of a `#[test]` function (or proptest) in it, or of one in a suite: `over_all_ways! { name … }`.

use crate::{Complaint, SourceFile};
use std::path::{Component, Path, PathBuf};

const SEMANTICS: &str = "docs/semantics.md";

/// Complains about claims without tests and links that lead nowhere.
pub fn check(files: &[SourceFile], exists: &dyn Fn(&Path) -> bool) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.extension().is_some_and(|extension| extension == "md")) {
        complaints.extend(check_links(file, exists));
        if file.path == Path::new(SEMANTICS) {
            complaints.extend(check_claims(file, files));
        }
    }
    complaints
}

fn check_claims(document: &SourceFile, files: &[SourceFile]) -> Vec<Complaint> {
    let mut complaints = untested(document);
    let mut tests = 0;
    for (index, line) in document.text.lines().enumerate() {
        let line = line.trim().trim_start_matches(['-', '*', ' ']);
        let Some(list) = line.strip_prefix("Test:").or_else(|| line.strip_prefix("Tests:")) else { continue };
        for test in list.split(',').map(|test| test.trim().trim_matches('`')) {
            tests += 1;
            if let Some(text) = missing(test, files) {
                complaints.push(Complaint::new(format!("{SEMANTICS}:{}", index + 1), text));
            }
        }
    }
    if tests == 0 {
        complaints.push(Complaint::new(SEMANTICS, "no claim names its test (a line `Test: path::name`)"));
    }
    complaints
}

/// Claims that end a section without a test. What begins with a word in italics, as `*Limits:*`, takes something back, and needs none.
fn untested(document: &SourceFile) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    // The line where the claim begins after which no test has come yet.
    let mut open: Option<usize> = None;
    let (mut section, mut is_behind_blank, mut takes_back) = (0, true, false);
    let lines = document.text.lines().enumerate().chain(std::iter::once((usize::MAX, "# end")));
    for (index, line) in lines {
        if line.starts_with('#') {
            let claim = open.take().filter(|_| section > 1);
            complaints.extend(claim.map(|at| {
                Complaint::new(format!("{SEMANTICS}:{}", at + 1), "no test is named for this claim")
            }));
            (section, takes_back) = (section + 1, false);
        } else if line.trim_start().starts_with("Test:") {
            (open, takes_back) = (None, false);
        } else if is_behind_blank && line.starts_with('*') {
            takes_back = true;
        } else if is_behind_blank && !takes_back && open.is_none() && !line.is_empty() {
            open = Some(index);
        }
        is_behind_blank = line.is_empty();
    }
    complaints
}

/// What is wrong with a reference to a test.
fn missing(test: &str, files: &[SourceFile]) -> Option<String> {
    let Some((path, name)) = test.rsplit_once("::") else {
        return Some(format!("`{test}` is not path::name"));
    };
    let Some(file) = files.iter().find(|file| file.path == Path::new(path)) else {
        return Some(format!("there is no file {path}"));
    };
    if is_in_suite(&file.text, name) {
        return None;
    }
    match test_of(&file.text, name) {
        None => Some(format!("{path} has no test named {name}")),
        Some(Run::Ignored) => Some(format!("{path}: {name} is ignored, and shows nothing")),
        Some(Run::Always) => None,
    }
}

/// Whether a test is run.
enum Run {
    Always,
    Ignored,
}

/// The function of this name with `#[test]` above it.
fn test_of(text: &str, name: &str) -> Option<Run> {
    let (mut marked, mut run) = (false, Run::Always);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") {
            (marked, run) = (true, Run::Always);
        } else if line.starts_with("#[ignore") {
            run = Run::Ignored;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            if marked && rest.strip_prefix(name).is_some_and(|rest| rest.starts_with('(')) {
                return Some(run);
            }
            marked = false;
        }
    }
    None
}

/// Whether a source names a test in a suite that is run over several ways.
fn is_in_suite(text: &str, name: &str) -> bool {
    let suites = text.split("over_all_ways! {").skip(1).filter_map(|behind| behind.split('}').next());
    suites.flat_map(str::split_whitespace).any(|test| test == name)
}

fn check_links(document: &SourceFile, exists: &dyn Fn(&Path) -> bool) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut in_code = false;
    for (index, line) in document.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in links(line) {
            let path = tidy(&document.path.parent().unwrap_or(Path::new("")).join(target));
            if !exists(&path) {
                let place = format!("{}:{}", document.path.display(), index + 1);
                complaints.push(Complaint::new(place, format!("the link to {target} leads nowhere")));
            }
        }
    }
    complaints
}

/// Targets of `[text](target)` that are files.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let files = targets.map(|target| target.split('#').next().unwrap_or(target));
    files.filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
}

fn tidy(path: &Path) -> PathBuf {
    let mut tidied = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(tidied.pop()),
            Component::CurDir => {}
            other => tidied.push(other),
        }
    }
    tidied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(document: &str) -> Vec<String> {
        let source = "#[test]\nfn it_holds() {}\n\n#[test]\n#[ignore]\nfn some_day() {}\n\nfn helper() {}\nfn both<W: Way>() {}\nover_all_ways! {\n    both\n}\n";
        let files = [
            SourceFile { path: SEMANTICS.into(), text: document.into() },
            SourceFile { path: "tests/a.rs".into(), text: source.into() },
        ];
        let exists = |path: &Path| path == Path::new("docs/formats.md") || path == Path::new("README.md");
        check(&files, &exists).into_iter().map(|complaint| complaint.text).collect()
    }

    #[test]
    fn a_claim_names_a_test_that_exists() {
        assert!(complaints("It holds.\nTest: `tests/a.rs::it_holds`, `tests/a.rs::both`\n").is_empty());
        assert!(complaints("It holds.\n- Test: tests/a.rs::helper\n")[0].contains("no test named helper"));
        assert!(complaints("Test: tests/b.rs::x\n")[0].contains("no file tests/b.rs"));
        assert!(complaints("Test: it_holds\n")[0].contains("not path::name"));
        assert!(complaints("It holds.\n")[0].contains("no claim names its test"));
        assert!(complaints("Test: tests/a.rs::some_day\n")[0].contains("is ignored"));
    }

    #[test]
    fn the_last_claim_of_a_section_has_a_test_too() {
        let (test, head) = ("Test: tests/a.rs::it_holds\n", "# Title\n\nWhat this page is.\n\n## One\n\n");
        let good = format!(
            "{head}It holds.\n\n- With a list.\n\n{test}\n*Limit:* not there.\n\nNor there.\n\n## Two\n"
        );
        assert!(complaints(&good).is_empty());
        let bad = format!("{head}It holds.\n\n{test}\nSo does this.\n\n## Two\n\nAnd this.\n");
        assert_eq!(complaints(&bad), ["no test is named for this claim"; 2]);
    }

    #[test]
    fn links_lead_somewhere() {
        let test = "Test: tests/a.rs::it_holds\n";
        let good = "[a](formats.md#x) [b](../README.md) [c](#here) [d](https://x.example/y) `[e](f)`";
        assert_eq!(complaints(&format!("{test}{good}\n")), ["the link to f leads nowhere"]);
        assert!(complaints(&format!("{test}```\n[a](gone.md)\n```\n")).is_empty());
        assert!(complaints(&format!("{test}[a](gone.md)\n"))[0].contains("gone.md"));
    }
}
