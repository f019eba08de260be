//! What was perhaps meant by a command that does not exist.
//!
//! A name is suggested if few of its letters differ. A command that removes, moves or stops something is suggested only if what was
//! typed can hardly be anything else: a short word that is one letter off is not.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};
use std::ffi::OsString;

/// Of this many letters, one may be wrong.
const LETTERS_PER_ERROR: usize = 3;
/// From this many letters on, a word that is one letter off is a typo for a dangerous command.
const LETTERS_OF_DANGEROUS: usize = 5;
/// Commands, on any level, that remove, replace, move or stop something.
const DANGEROUS: [&str; 10] =
    ["down", "load", "move", "mv", "replace", "revoke", "rm", "rotate", "stop", "umount"];

/// Parses a command line of `program`. Ends the process if it is wrong, or asks for help.
pub fn parse_or_exit<Line: Parser>(line: &[OsString], program: &Command) -> Line {
    let parsed =
        program.clone().try_get_matches_from(line).and_then(|matches| Line::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| with_own_suggestions(error, line, program.clone()).exit())
}

/// The error with the suggestions of this module instead of clap's.
fn with_own_suggestions(mut error: clap::Error, line: &[OsString], program: Command) -> clap::Error {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand).cloned() else {
        return error;
    };
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let known = commands_where(&typed, line, program);
    error.remove(ContextKind::SuggestedSubcommand);
    let near = nearest(&typed, known.iter().map(String::as_str));
    if !near.is_empty() {
        let near = near.into_iter().map(str::to_owned).collect();
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near));
    }
    error
}

/// The commands that there are in the place of `typed`.
fn commands_where(typed: &str, line: &[OsString], program: Command) -> Vec<String> {
    let mut command = program;
    for word in line.iter().skip(1).filter_map(|word| word.to_str()) {
        if word == typed {
            break;
        }
        if let Some(found) = command.find_subcommand(word) {
            command = found.clone();
        }
    }
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| command.get_name().to_owned()).collect()
}

/// The names that are nearest to what was typed, if they are near.
fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let near = known.filter_map(|name| {
        let errors = distance(typed, name);
        let letters = typed.chars().count().max(name.chars().count());
        let is_safe =
            !DANGEROUS.contains(&name) || (errors == 1 && typed.chars().count() >= LETTERS_OF_DANGEROUS);
        (errors * LETTERS_PER_ERROR <= letters && is_safe).then_some((errors, name))
    });
    let near: Vec<_> = near.collect();
    let least = near.iter().map(|(errors, _)| *errors).min();
    near.into_iter().filter(|(errors, _)| Some(*errors) == least).map(|(_, name)| name).collect()
}

/// How many letters must be inserted, removed, replaced, or exchanged with the next one, to make one word the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn distances_count_letters() {
        for (one, other, errors) in [
            ("", "", 0),
            ("a", "", 1),
            ("status", "stauts", 1),
            ("rn", "rm", 1),
            ("cpoy", "cp", 2),
            ("abc", "cab", 2),
        ] {
            assert_eq!((distance(one, other), distance(other, one)), (errors, errors), "{one} {other}");
        }
    }

    #[test]
    fn typos_lead_to_near_commands_and_short_ones_never_to_dangerous_ones() {
        for (line, tip) in [
            ("weft stauts", &["status", "stats"][..]),
            ("weft statsu", &["status", "stats"]),
            ("weft mkdri weft:/x", &["mkdir"]),
            ("weft rn weft:/x", &["run"]),
            ("weft lss", &["ls"]),
            ("weft chwon 1 weft:/x", &["chown"]),
            ("weft unmount /mnt", &["umount"]),
            ("weft remove weft:/x", &[]),
            ("weft rmm weft:/x", &[]),
            ("weft rmdir weft:/x", &[]),
            ("weft mvv weft:/x weft:/y", &[]),
            ("weft dwn", &[]),
            ("weft server rm io1", &[]),
            ("weft server mv io1", &[]),
            ("weft key revok 1", &["revoke"]),
            ("weft key isue", &["issue"]),
            ("weft quota sett", &["set"]),
            ("weft xyzzy", &[]),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = Cli::try_parse_from(&words).expect_err(line);
            let error = with_own_suggestions(error, &words, Cli::command());
            let suggested = match error.get(ContextKind::SuggestedSubcommand) {
                Some(ContextValue::Strings(names)) => names.clone(),
                other => panic_unless_none(other),
            };
            assert_eq!(suggested, tip, "{line}");
            let told = error.to_string();
            assert!(tip.iter().all(|name| told.contains(&format!("'{name}'"))), "{told}");
        }
    }

    fn panic_unless_none(value: Option<&ContextValue>) -> Vec<String> {
        assert_eq!(value, None);
        Vec::new()
    }

    #[test]
    fn dangerous_commands_exist() {
        fn names(command: &clap::Command) -> Vec<String> {
            let below = command.get_subcommands();
            below
                .flat_map(|command| names(command).into_iter().chain([command.get_name().to_owned()]))
                .collect()
        }
        let all = names(&Cli::command());
        for name in DANGEROUS {
            assert!(all.iter().any(|known| known == name), "{name}");
        }
    }
}
