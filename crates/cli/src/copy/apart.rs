//! Files under temporary names: a copy is written there, and gets its own name when it is complete.
//!
//! ```text
//!   .big.bin.weft-1f3a…9c-3       3 units of 256 MiB are there, in order; the digits are of the source's size and time
//!        └──── rename ────► big.bin
//! ```
//!
//! A copy that was killed leaves such a file. The next copy of the same source goes on behind the units that the name counts; of
//! another source, or of one that has changed, it is a leftover.

use super::side::Meta;
use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::BuildHasher;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What the name counts.
pub(super) const UNIT_BYTES: u64 = 256 << 20;
const MARK: &[u8] = b".weft-";
const DIGITS: usize = 16;
const NAME_BYTES_MAX: usize = 255;
/// The longest number of units, with its hyphen.
const UNITS_BYTES_MAX: usize = 12;

/// Names of one file's copy while it is incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Apart {
    /// All but the number of units.
    stem: Vec<u8>,
}

impl Apart {
    /// Of the copy of a source with these attributes to the name `to`.
    pub(super) fn of(to: &OsStr, source: &Meta) -> Apart {
        Apart { stem: stem(to, version_of(source), UNITS_BYTES_MAX) }
    }

    /// The name while so many units are there.
    pub(super) fn name(&self, units: u64) -> OsString {
        OsString::from_vec([&self.stem[..], format!("-{units}").as_bytes()].concat())
    }

    /// How many units a file of this name has; `None` if it is another one.
    pub(super) fn units_of(&self, name: &OsStr) -> Option<u64> {
        let digits = name.as_bytes().strip_prefix(&self.stem[..])?.strip_prefix(b"-")?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

/// All but the number of units of a temporary name for `to`, which leaves room for that many bytes.
fn stem(to: &OsStr, number: u64, room_bytes: usize) -> Vec<u8> {
    let name = to.as_bytes();
    let name = &name[..name.len().min(NAME_BYTES_MAX - 1 - MARK.len() - DIGITS - room_bytes)];
    [b".", name, MARK, format!("{number:0DIGITS$x}").as_bytes()].concat()
}

/// The name of a copy of a stream, which cannot be gone on with.
pub(super) fn of_stream(to: &OsStr) -> OsString {
    Apart { stem: stem(to, 0, UNITS_BYTES_MAX) }.name(0)
}

/// A temporary name that another process hardly chooses for the same file. `weft sync` takes it for a leftover.
pub fn random_name(to: &OsStr) -> OsString {
    Apart { stem: stem(to, RandomState::new().hash_one(to), b"-0".len()) }.name(0)
}

/// Whether a name is that of an incomplete copy.
pub(super) fn is_apart(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let Some(at) = name.windows(MARK.len()).rposition(|part| part == MARK) else { return false };
    let rest = &name[at + MARK.len()..];
    let is_right = |digits: &[u8], units: &[u8]| {
        digits.len() == DIGITS
            && digits.iter().all(u8::is_ascii_hexdigit)
            && !units.is_empty()
            && units.iter().all(u8::is_ascii_digit)
    };
    name.starts_with(b".")
        && rest.split(|byte| *byte == b'-').count() == 2
        && rest.split_at_checked(DIGITS).is_some_and(|(digits, units)| is_right(digits, &units[1..]))
}

/// A number that changes with a file's size and time (FNV-1a).
fn version_of(source: &Meta) -> u64 {
    let mtime = source.mtime();
    let numbers = [source.size, mtime.seconds as u64, mtime.nanoseconds.into()];
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised_and_belong_to_one_version_of_one_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let meta = |path| super::super::Side::Local.meta(path, false).unwrap();
        let first = Apart::of(OsStr::new("f"), &meta(&path));
        assert_eq!(first.units_of(&first.name(3)), Some(3));
        assert_eq!(Apart::of(OsStr::new("g"), &meta(&path)).units_of(&first.name(3)), None);
        std::fs::write(&path, "xy").unwrap();
        assert_eq!(Apart::of(OsStr::new("f"), &meta(&path)).units_of(&first.name(3)), None);
        assert!(is_apart(&first.name(0)) && is_apart(&first.name(1 << 30)));
        for name in [
            "f",
            ".f",
            ".f.weft-",
            ".f.weft-1-2",
            ".f.weft-0123456789abcdef",
            ".f.weft-0123456789abcdef-",
            ".f.weft-0123456789abcdeg-1",
            "f.weft-0123456789abcdef-1",
            ".f.weft-0123456789abcdef-x",
        ] {
            assert!(!is_apart(OsStr::new(name)), "{name}");
        }
        let long = "n".repeat(255);
        let apart = Apart::of(OsStr::new(&long), &meta(&path));
        assert!(apart.name(u64::from(u32::MAX)).len() <= 255 && is_apart(&apart.name(7)));
    }

    #[test]
    fn temporary_names_fit() {
        let long = "n".repeat(NAME_BYTES_MAX);
        assert_eq!(random_name(OsStr::new(&long)).len(), NAME_BYTES_MAX);
        assert_ne!(random_name(OsStr::new("a")), random_name(OsStr::new("a")));
    }
}
