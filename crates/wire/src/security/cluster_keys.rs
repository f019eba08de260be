//! The file of a cluster's keys, and the steps in which they are replaced.

use super::key::{Key, KeyError};

/// The keys of a cluster: the one in use and, during a rotation, another one that is accepted too.
///
/// ```text
///   cluster.key        old          old, new         new, old          new
///                   ───────────► add ───────► switch ─────────► drop ──────►
///   signs, proves      old          old              new               new
///   is accepted        old          old and new      new and old       new
/// ```
///
/// Servers may have files of adjacent states at the same time: keys and proofs of each are accepted by all
/// others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterKeys {
    in_use: DatedKey,
    other: Option<DatedKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DatedKey {
    key: Key,
    /// Start of its use, in seconds since 1970; 0: never used.
    since_s: u64,
}

/// Why the file of a cluster's keys cannot be read, or a step of the rotation cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClusterKeysError {
    /// A line is not valid.
    #[error(
        "line {line} is not a cluster key: 64 hexadecimal digits, and perhaps the time since when it is in use"
    )]
    Line {
        /// The line number, from 1.
        line: usize,
    },
    /// There is no key, there are too many, or one is there twice.
    #[error("it must have one cluster key, or two different ones during a rotation")]
    Count,
    /// There are two keys already.
    #[error("a rotation of the cluster key is already in progress")]
    Two,
    /// There is no other key to switch to or to drop.
    #[error("there is no other key than the one in use")]
    One,
    /// The other key was in use before, so the switch is done.
    #[error("the new key is already in use")]
    Switched,
}

impl ClusterKeys {
    /// The keys of a cluster without a rotation, whose key is in use since `since_s`, in seconds since 1970.
    pub fn new(key: Key, since_s: u64) -> ClusterKeys {
        ClusterKeys { in_use: DatedKey { key, since_s: since_s.max(1) }, other: None }
    }

    /// The key that signs, proves and issues.
    pub fn in_use(&self) -> &Key {
        &self.in_use.key
    }

    /// Start of its use, in seconds since 1970; 1: unknown.
    pub fn since_s(&self) -> u64 {
        self.in_use.since_s
    }

    /// The other key that is accepted.
    pub fn other(&self) -> Option<&Key> {
        self.other.as_ref().map(|other| &other.key)
    }

    /// Whether the other key was not in use yet.
    pub fn is_other_new(&self) -> bool {
        self.other.as_ref().is_some_and(|other| other.since_s == 0)
    }

    /// All accepted keys, the one in use first.
    pub fn all(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(self.in_use()).chain(self.other())
    }

    /// Adds a key that is accepted too.
    ///
    /// # Errors
    /// [`ClusterKeysError::Two`], and [`ClusterKeysError::Count`] if it is the key in use.
    pub fn with(self, key: Key) -> Result<ClusterKeys, ClusterKeysError> {
        match self.other {
            Some(_) => Err(ClusterKeysError::Two),
            None if key == self.in_use.key => Err(ClusterKeysError::Count),
            None => Ok(ClusterKeys { other: Some(DatedKey { key, since_s: 0 }), ..self }),
        }
    }

    /// Puts the new key into use from `now_s` on. The previous one is still accepted.
    ///
    /// # Errors
    /// [`ClusterKeysError::One`] and [`ClusterKeysError::Switched`].
    pub fn switched(self, now_s: u64) -> Result<ClusterKeys, ClusterKeysError> {
        match self.other {
            None => Err(ClusterKeysError::One),
            Some(DatedKey { key, since_s: 0 }) => {
                let in_use = DatedKey { key, since_s: now_s.max(1) };
                Ok(ClusterKeys { in_use, other: Some(self.in_use) })
            }
            Some(_) => Err(ClusterKeysError::Switched),
        }
    }

    /// Removes the other key.
    ///
    /// # Errors
    /// [`ClusterKeysError::One`].
    pub fn without_other(self) -> Result<ClusterKeys, ClusterKeysError> {
        self.other.ok_or(ClusterKeysError::One)?;
        Ok(ClusterKeys { other: None, ..self })
    }

    /// The text of a key file: one line per key, the one in use first, with the start of its use.
    pub fn to_text(&self) -> String {
        let line = |key: &DatedKey| match key.since_s {
            0 => format!("{}\n", key.key.to_hex()),
            since_s => format!("{} {since_s}\n", key.key.to_hex()),
        };
        line(&self.in_use) + &self.other.as_ref().map(line).unwrap_or_default()
    }

    /// Parses the text of a key file. White space around lines, and empty lines, are ignored.
    ///
    /// # Errors
    /// [`ClusterKeysError::Line`] and [`ClusterKeysError::Count`].
    pub fn from_text(text: &str) -> Result<ClusterKeys, ClusterKeysError> {
        let mut keys = Vec::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = ClusterKeysError::Line { line: at + 1 };
            let mut words = line.split_ascii_whitespace();
            let key = Key::from_hex(words.next().ok_or(wrong)?).map_err(|KeyError| wrong)?;
            let since_s = words.next().map_or(Ok(0), str::parse).map_err(|_| wrong)?;
            if words.next().is_some() {
                return Err(wrong);
            }
            keys.push(DatedKey { key, since_s });
        }
        let mut keys = keys.into_iter();
        let in_use = keys.next().ok_or(ClusterKeysError::Count)?;
        let other = keys.next();
        if keys.next().is_some() || other.as_ref().is_some_and(|other| other.key == in_use.key) {
            return Err(ClusterKeysError::Count);
        }
        Ok(ClusterKeys { other, ..ClusterKeys::new(in_use.key, in_use.since_s) })
    }
}

impl From<&Key> for ClusterKeys {
    fn from(key: &Key) -> ClusterKeys {
        ClusterKeys::new(key.clone(), 0)
    }
}

impl From<&ClusterKeys> for ClusterKeys {
    fn from(keys: &ClusterKeys) -> ClusterKeys {
        keys.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_step_of_a_rotation_makes_the_steps_beside_it_accept() {
        let (old, new) = (Key([1; 32]), Key([2; 32]));
        let first = ClusterKeys::new(old.clone(), 0);
        let added = first.clone().with(new.clone()).unwrap();
        let switched = added.clone().switched(77).unwrap();
        let last = switched.clone().without_other().unwrap();
        let steps = [first.clone(), added.clone(), switched.clone(), last.clone()];
        for pair in steps.windows(2) {
            for (one, other) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                assert!(other.all().any(|key| key == one.in_use()), "{one:?} {other:?}");
            }
        }
        assert_eq!((last.in_use(), last.since_s(), last.other()), (&new, 77, None));
        assert!(added.is_other_new() && !switched.is_other_new());
        assert_eq!(first.clone().switched(1), Err(ClusterKeysError::One));
        assert_eq!(switched.clone().switched(78), Err(ClusterKeysError::Switched));
        assert_eq!(last.without_other(), Err(ClusterKeysError::One));
        assert_eq!(added.with(Key([3; 32])), Err(ClusterKeysError::Two));
        assert_eq!(first.with(old), Err(ClusterKeysError::Count));
        for keys in steps {
            assert_eq!(ClusterKeys::from_text(&keys.to_text()), Ok(keys));
        }
    }

    #[test]
    fn a_file_of_cluster_keys_has_one_or_two_of_them() {
        let [a, b, c] = [1, 2, 3].map(|byte| Key([byte; 32]).to_hex());
        assert_eq!(ClusterKeys::from_text(&a).unwrap(), ClusterKeys::new(Key([1; 32]), 0));
        let two = ClusterKeys::from_text(&format!("\n  {a} 5 \n\n{b}\n")).unwrap();
        assert_eq!((two.since_s(), two.other()), (5, Some(&Key([2; 32]))));
        assert!(two.is_other_new());
        for (text, error) in [
            (String::new(), ClusterKeysError::Count),
            (format!("{a}\n{a}"), ClusterKeysError::Count),
            (format!("{a}\n{b}\n{c}"), ClusterKeysError::Count),
            (format!("{a}\nx"), ClusterKeysError::Line { line: 2 }),
            (format!("{a} soon"), ClusterKeysError::Line { line: 1 }),
            (format!("{a} 1 2"), ClusterKeysError::Line { line: 1 }),
            (a[1..].to_owned(), ClusterKeysError::Line { line: 1 }),
        ] {
            assert_eq!(ClusterKeys::from_text(&text), Err(error), "{text}");
        }
    }

    #[test]
    fn damaged_cluster_keys_are_refused_or_written_back_the_same() {
        let right = ClusterKeys::new(Key([7; 32]), 5).to_text().into_bytes();
        weft_test_fuzz::run("cluster-keys", &[right], |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Ok(keys) = ClusterKeys::from_text(text) {
                assert_eq!(ClusterKeys::from_text(&keys.to_text()).unwrap(), keys);
            }
        });
    }
}
