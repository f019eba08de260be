//! Which events are logged: levels by target, as in `info,weft_server::io=debug`.

use std::fmt;
use std::str::FromStr;
use tracing::Metadata;
use tracing::level_filters::LevelFilter;

/// Levels by target. Of several that match, the longest applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The level of all other targets.
    rest: LevelFilter,
    /// Targets with levels of their own, longest first.
    targets: Vec<(String, LevelFilter)>,
}

/// The text is not a [`Filter`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not off, error, warn, info, debug or trace, nor TARGET=LEVEL (info,weft_server::io=debug)")]
pub struct FilterError(String);

impl Default for Filter {
    /// [`LEVELS_DEFAULT`](crate::LEVELS_DEFAULT).
    fn default() -> Filter {
        Filter { rest: LevelFilter::INFO, targets: Vec::new() }
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        let mut filter = Filter { rest: LevelFilter::OFF, targets: Vec::new() };
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let wrong = || FilterError(word.to_owned());
            match word.split_once('=') {
                None => filter.rest = level(word).ok_or_else(wrong)?,
                Some((target, given)) if is_target(target.trim()) => {
                    let level = level(given.trim()).ok_or_else(wrong)?;
                    filter.targets.retain(|(known, _)| known != target.trim());
                    filter.targets.push((target.trim().to_owned(), level));
                }
                Some(_) => return Err(wrong()),
            }
        }
        filter.targets.sort_by_key(|(target, _)| std::cmp::Reverse(target.len()));
        Ok(filter)
    }
}

fn is_target(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "_:".contains(character))
}

fn level(text: &str) -> Option<LevelFilter> {
    const NAMES: [(&str, LevelFilter); 6] = [
        ("off", LevelFilter::OFF),
        ("error", LevelFilter::ERROR),
        ("warn", LevelFilter::WARN),
        ("info", LevelFilter::INFO),
        ("debug", LevelFilter::DEBUG),
        ("trace", LevelFilter::TRACE),
    ];
    NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, level)| *level)
}

impl Filter {
    /// The level up to which events of a target are logged.
    fn level_of(&self, target: &str) -> LevelFilter {
        let begins = |prefix: &str| {
            target.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        self.targets.iter().find(|(prefix, _)| begins(prefix)).map_or(self.rest, |(_, level)| *level)
    }

    pub(crate) fn lets_through(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level_of(metadata.target())
    }

    pub(crate) fn max_level(&self) -> LevelFilter {
        self.targets.iter().map(|(_, level)| *level).fold(self.rest, Ord::max)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rest)?;
        self.targets.iter().try_for_each(|(target, level)| write!(f, ",{target}={level}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_target_counts() {
        let filter: Filter = "warn, weft_server::io=DEBUG ,weft_server=info".parse().unwrap();
        assert_eq!(filter.level_of("weft_server::io::write"), LevelFilter::DEBUG);
        assert_eq!(filter.level_of("weft_server::io"), LevelFilter::DEBUG);
        assert_eq!(filter.level_of("weft_server::ios"), LevelFilter::INFO);
        assert_eq!(filter.level_of("weft_client"), LevelFilter::WARN);
        assert_eq!(filter.max_level(), LevelFilter::DEBUG);
        assert_eq!(filter.to_string().parse::<Filter>().unwrap(), filter);
    }

    #[test]
    fn the_default_is_what_is_said_to_be_it() {
        assert_eq!(crate::LEVELS_DEFAULT.parse(), Ok(Filter::default()));
    }

    #[test]
    fn only_what_is_asked_for_is_said() {
        let filter: Filter = "weft_fuse=info".parse().unwrap();
        assert_eq!(filter.level_of("weft_server"), LevelFilter::OFF);
        assert_eq!("".parse::<Filter>().unwrap().max_level(), LevelFilter::OFF);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for text in ["loud", "info,weft_server=loud", "=debug", "a b=debug", "info,a=b=c"] {
            let error = text.parse::<Filter>().unwrap_err().to_string();
            assert!(error.contains("TARGET=LEVEL"), "{text}: {error}");
        }
    }

    #[test]
    fn damaged_filters_are_refused_or_written_back_the_same() {
        let right = b"warn, weft_server::io=DEBUG ,weft_server=info".to_vec();
        weft_test_fuzz::run("log-filter", &[right], |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Ok(filter) = text.parse::<Filter>() {
                assert_eq!(filter.to_string().parse::<Filter>().unwrap(), filter);
            }
        });
    }
}
