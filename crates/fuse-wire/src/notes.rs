//! Notifications from the file system to the kernel, through the device.
//!
//! ```text
//!   header: u32 length, i32 code, u64 0     then by code:
//!     2 an inode     u64 node, i64 offset (negative: attributes only), i64 length (0: to the end)
//!     3 a name       u64 directory, u32 length of the name, u32 flags (1: expire, 0: drop), the name, 0
//!     8 all names    nothing
//! ```

use std::ops::Range;

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const INC_EPOCH: i32 = 8;
const EXPIRE_ONLY: u32 = 1;
const HEADER_BYTES: usize = 16;

/// Invalidates the attributes of an inode and its cached pages that overlap the range.
pub fn forget_inode(node: u64, pages: Option<Range<u64>>) -> Vec<u8> {
    let (offset, length) = match pages {
        None => (-1, 0),
        // File offsets fit in an i64.
        Some(bytes) => (bytes.start as i64, (bytes.end - bytes.start).try_into().unwrap_or(0)),
    };
    note(INVAL_INODE, &[&node.to_ne_bytes(), &i64::to_ne_bytes(offset), &i64::to_ne_bytes(length)])
}

/// Expires a name, so that the kernel looks it up again. A directory that a process is in is not affected.
pub fn ask_again(dir: u64, name: &[u8]) -> Vec<u8> {
    name_note(dir, name, EXPIRE_ONLY)
}

/// Drops a name with all that is cached below it, but for what a process uses.
pub fn drop_name(dir: u64, name: &[u8]) -> Vec<u8> {
    name_note(dir, name, 0)
}

fn name_note(dir: u64, name: &[u8], flags: u32) -> Vec<u8> {
    let length = name.len() as u32;
    note(INVAL_ENTRY, &[&dir.to_ne_bytes(), &length.to_ne_bytes(), &flags.to_ne_bytes(), name, &[0]])
}

/// Expires all names (Linux 6.16).
pub fn ask_all_again() -> Vec<u8> {
    note(INC_EPOCH, &[])
}

fn note(code: i32, parts: &[&[u8]]) -> Vec<u8> {
    let bytes = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut note = Vec::with_capacity(bytes);
    note.extend_from_slice(&(bytes as u32).to_ne_bytes());
    note.extend_from_slice(&code.to_ne_bytes());
    note.extend_from_slice(&0u64.to_ne_bytes());
    parts.iter().for_each(|part| note.extend_from_slice(part));
    note
}
