//! What is mounted, as a process sees it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A line of `/proc/self/mountinfo` (proc(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the device.
    pub device: String,
    /// Which directory of the file system is seen; not `/` where a part of a mount is mounted again.
    pub root: PathBuf,
    /// Mount point.
    pub dir: PathBuf,
    /// Kind of file system: `ext4`, `fuse.weft`.
    pub kind: String,
    /// What is mounted, as the file system names it.
    pub source: String,
}

impl Mount {
    /// Whether it is a mount of Weft.
    pub fn is_weft(&self) -> bool {
        self.kind == "fuse.weft"
    }
}

/// What is mounted in this process's view, in order of mounting.
pub fn mounts() -> Vec<Mount> {
    mounts_in(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// The lines of such a table.
pub fn mounts_in(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

// Not fuzzed: the text is the kernel's.
/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/root rw`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = fields.nth(2)?;
    let (root, dir) = (fields.next()?, fields.next()?);
    let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (behind.next()?, behind.next()?);
    let path = |field| PathBuf::from(OsString::from_vec(unescaped(field)));
    let text = |field| String::from_utf8_lossy(&unescaped(field)).into_owned();
    let (device, kind, source) = (text(device), text(kind), text(source));
    Some(Mount { device, root: path(root), dir: path(dir), kind, source })
}

/// Undoes the kernel's `\040` for space, tab, newline and backslash.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_mounts_is_read() {
        let table = b"36 35 0:52 / /mnt/a\\040b rw,noatime - fuse.weft weft://h:7400/a\\134b rw,user_id=0\n\
                      37 35 0:5 / / rw - ext4 /dev/x rw\n\
                      38 36 0:52 /part /bound rw shared:7 master:1 - fuse.weft weft://h:7400/ rw\n\
                      36 35 0:52\n\n39 36 0:52 / /cut rw - fuse.weft\n";
        let mounts = mounts_in(table);
        assert_eq!(mounts.len(), 3);
        assert_eq!(
            mounts[0],
            Mount {
                device: "0:52".into(),
                root: "/".into(),
                dir: "/mnt/a b".into(),
                kind: "fuse.weft".into(),
                source: "weft://h:7400/a\\b".into(),
            }
        );
        assert!(mounts[0].is_weft() && !mounts[1].is_weft());
        assert_eq!(
            (mounts[2].root.as_path(), mounts[2].dir.as_path()),
            ("/part".as_ref(), "/bound".as_ref())
        );
    }

    #[test]
    fn names_that_are_no_text_keep_their_bytes() {
        assert_eq!(unescaped(b"a\\011\xff\\04"), b"a\t\xff\\04");
    }

    #[test]
    fn this_process_has_a_root() {
        assert!(mounts().iter().any(|mount| mount.dir.as_os_str() == "/"));
    }
}
