//! File modes as chmod takes them: `755`, `u+rw,g-w`, `a=rX`, `g=u`.
//!
//! The rules are those of coreutils:
//!
//! - without `u`, `g`, `o` or `a` the umask protects bits;
//! - an octal number of fewer than five digits leaves the set-id bits of a directory that it does not name.

use std::fmt;

const ALL_BITS: u32 = 0o7777;
const SET_IDS: u32 = 0o6000;
const STICKY: u32 = 0o1000;
const EXECUTE: u32 = 0o111;
/// From this many digits on, a number names all bits.
const DIGITS_OF_ALL: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Add,
    Remove,
    Assign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bits {
    These(u32),
    /// These, and execution where it makes sense (`X`).
    AndSearch(u32),
    /// What the user, the group or the others have; the bits select whose.
    Copied(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    operator: Operator,
    /// The bits of `u`, `g` and `o`; 0 if none was given.
    affected: u32,
    bits: Bits,
    /// What the text names, also if it is to be cleared.
    mentioned: u32,
}

/// A change of file modes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mode {
    text: String,
    changes: Vec<Change>,
}

impl Mode {
    /// Parses a mode.
    ///
    /// # Errors
    /// It is not one; the text says so.
    pub fn parse(text: &str) -> Result<Mode, String> {
        let changes = match octal(text.as_bytes()) {
            Some((value, digits, [])) => Some(vec![number(value, digits)]),
            Some(_) => None,
            None => symbolic(text.as_bytes()),
        };
        let wrong = || format!("`{text}` is not a mode; write 755 or u+rw,g-w");
        Ok(Mode { text: text.into(), changes: changes.ok_or_else(wrong)? })
    }

    /// The permission bits of a file that had the bits `old`.
    pub fn apply(&self, old: u32, is_directory: bool, umask: u32) -> u32 {
        let first = (old & ALL_BITS, 0);
        self.changes.iter().fold(first, |(mode, _), change| change.apply(mode, is_directory, umask)).0
    }

    /// The permission bits of a new directory. As with mkdir, the umask counts only if no permission is named.
    pub fn of_new_directory(&self, umask: u32) -> u32 {
        let (mode, named) = self.changes.iter().fold((0o777, 0), |(mode, named), change| {
            let (mode, more) = change.apply(mode, true, umask);
            (mode, named | more)
        });
        if named & 0o777 == 0 { mode & !umask } else { mode }
    }

    /// Whether it was written like an option, as in `chmod -w FILE`. Then the umask must not change what it means.
    pub fn is_like_an_option(&self) -> bool {
        self.text.starts_with('-')
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Change {
    /// The new mode, and the bits that the change names.
    fn apply(&self, mode: u32, is_directory: bool, umask: u32) -> (u32, u32) {
        let kept = if is_directory { SET_IDS & !self.mentioned } else { 0 };
        let value = match self.bits {
            Bits::These(value) => value,
            Bits::AndSearch(value) if is_directory || mode & EXECUTE != 0 => value | EXECUTE,
            Bits::AndSearch(value) => value,
            Bits::Copied(from) => {
                let has = |class: u32| if mode & from & class != 0 { class } else { 0 };
                has(0o444) | has(0o222) | has(EXECUTE)
            }
        };
        let value = value & if self.affected == 0 { !umask } else { self.affected } & !kept;
        match self.operator {
            Operator::Add => (mode | value, value),
            Operator::Remove => (mode & !value, value),
            Operator::Assign => {
                let stays = if self.affected == 0 { 0 } else { !self.affected } | kept;
                (mode & stays | value, ALL_BITS & !stays)
            }
        }
    }
}

/// An octal number at the start of a text: its value, its digits, and the rest.
fn octal(text: &[u8]) -> Option<(u32, usize, &[u8])> {
    let digits = text.iter().take_while(|byte| matches!(byte, b'0'..=b'7')).count();
    let value = text[..digits].iter().try_fold(0u32, |value, digit| {
        Some(value * 8 + u32::from(digit - b'0')).filter(|value| *value <= ALL_BITS)
    });
    value.filter(|_| digits > 0).map(|value| (value, digits, &text[digits..]))
}

/// A number alone.
fn number(value: u32, digits: usize) -> Change {
    let mentioned = if digits < DIGITS_OF_ALL { value & SET_IDS | STICKY | 0o777 } else { ALL_BITS };
    Change { operator: Operator::Assign, affected: ALL_BITS, bits: Bits::These(value), mentioned }
}

/// Clauses between commas.
fn symbolic(text: &[u8]) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    for clause in text.split(|byte| *byte == b',') {
        let classes = clause.iter().take_while(|byte| matches!(byte, b'u' | b'g' | b'o' | b'a')).count();
        let affected =
            clause[..classes].iter().map(|class| class_bits(*class)).fold(0, |all, bits| all | bits);
        let mut rest = &clause[classes..];
        if rest.is_empty() {
            return None;
        }
        while let Some((operator, behind)) = rest.split_first() {
            let operator = match operator {
                b'+' => Operator::Add,
                b'-' => Operator::Remove,
                b'=' => Operator::Assign,
                _ => return None,
            };
            let (change, behind) = operand(operator, affected, behind)?;
            changes.push(change);
            rest = behind;
        }
    }
    Some(changes)
}

fn class_bits(class: u8) -> u32 {
    match class {
        b'u' => 0o4700,
        b'g' => 0o2070,
        b'o' => 0o1007,
        _ => ALL_BITS,
    }
}

/// What follows `+`, `-` or `=`, and the rest of the clause.
fn operand(operator: Operator, affected: u32, text: &[u8]) -> Option<(Change, &[u8])> {
    if text.first().is_some_and(u8::is_ascii_digit) {
        let (value, _, rest) = octal(text)?;
        let all = ALL_BITS;
        let change = Change { operator, affected: all, bits: Bits::These(value), mentioned: all };
        return (affected == 0 && rest.is_empty()).then_some((change, rest));
    }
    if let Some((class @ (b'u' | b'g' | b'o'), rest)) = text.split_first() {
        let from = class_bits(*class) & 0o777;
        let mentioned = if affected == 0 { from } else { affected & from };
        return Some((Change { operator, affected, bits: Bits::Copied(from), mentioned }, rest));
    }
    let letters =
        text.iter().take_while(|byte| matches!(byte, b'r' | b'w' | b'x' | b'X' | b's' | b't')).count();
    let value = text[..letters].iter().fold(0, |value, letter| value | letter_bits(*letter));
    let bits = if text[..letters].contains(&b'X') { Bits::AndSearch(value) } else { Bits::These(value) };
    let mentioned = if affected == 0 { value } else { affected & value };
    Some((Change { operator, affected, bits, mentioned }, &text[letters..]))
}

fn letter_bits(letter: u8) -> u32 {
    match letter {
        b'r' => 0o444,
        b'w' => 0o222,
        b'x' => EXECUTE,
        b's' => SET_IDS,
        b't' => STICKY,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn what_is_not_a_mode_is_refused() {
        for text in
            ["", "8", "77777", "u", "u+", "u+q", ",", "u+r,", "a", "ug", "u+7", "+7w", "=8", "755x", "u+gr"]
        {
            let ours = Mode::parse(text);
            let theirs =
                Command::new("chmod").args(["--", text, "/nowhere"]).output().expect("chmod can be run");
            let is_valid = !String::from_utf8_lossy(&theirs.stderr).contains("invalid mode");
            assert_eq!(ours.is_ok(), is_valid, "{text}");
        }
    }

    /// Everything that a mode may have, on files and directories with everything that a mode changes.
    #[test]
    fn modes_mean_what_they_mean_to_chmod() {
        let directory = tempfile::tempdir().expect("a directory");
        let umask = crate::new_files::umask();
        let modes = [
            "0",
            "755",
            "0755",
            "00755",
            "4755",
            "02711",
            "1777",
            "7777",
            "u+rw,g-w,+X",
            "+x",
            "-w",
            "=r",
            "a+X",
            "go-rwx",
            "u=g",
            "g=u",
            "o=u-w",
            "u+s",
            "g-s",
            "+t",
            "a=rX,u+w",
            "g=",
            "ug+rw-x",
            "+7",
            "=755",
            "-022",
            "u=rwx,go=",
            "=",
            "u+o,o=g",
            "a-s",
            "u=s,+x",
            "g+u",
            "og=u",
            "u-u",
        ];
        let modes = modes.iter().filter(|text| Mode::parse(text).is_ok());
        let bits = [0o644, 0o755, 0o000, 0o6711, 0o1770, 0o027];
        for text in modes {
            let mode = Mode::parse(text).expect("it is one");
            let (mut paths, mut expected) = (Vec::new(), Vec::new());
            for (number, bits) in bits.iter().enumerate() {
                for is_directory in [false, true] {
                    let path = directory.path().join(format!("{number}{is_directory}"));
                    match is_directory {
                        true => drop(std::fs::create_dir(&path)),
                        false => std::fs::write(&path, "").expect("there is room"),
                    }
                    let set = std::fs::Permissions::from_mode(*bits);
                    std::fs::set_permissions(&path, set).expect("it is ours");
                    expected.push(mode.apply(*bits, is_directory, umask));
                    paths.push(path);
                }
            }
            let _ = Command::new("chmod").args(["--", text]).args(&paths).output().expect("chmod can be run");
            for (path, expected) in paths.iter().zip(expected) {
                let found = std::fs::metadata(path).expect("it is there").permissions().mode() & ALL_BITS;
                assert_eq!(format!("{expected:04o}"), format!("{found:04o}"), "{text} {}", path.display());
            }
        }
    }
}
