//! Privileges that a file loses when it is written: set-id bits unless root writes, and capabilities always.
//!
//! ```text
//!   open to write: a new file ──► NONE    an old one ──► CAPABILITY    with set-id bits ──► BOTH
//!   chmod, setxattr by this process ────────────────────────────────────────────────────►  ▲
//!   first write: queried and removed ──► NONE, or if root keeps set-id bits ──► FOR_OTHERS
//! ```
//!
//! So a new file costs nothing, and an existing one costs one query at the first write through each open
//! file.

use std::sync::atomic::Ordering;

use weft_client::{At, SetAttr};
use weft_wire::messages::Attr;

use crate::guard::Outcome;
use crate::table::{self, Open, Use};

const NONE: u32 = 0;
/// The file may have capabilities.
const CAPABILITY: u32 = 1;
/// The file may also have set-id bits.
const BOTH: u32 = 2;
/// The file has set-id bits that are cleared when a user other than root writes.
const FOR_OTHERS: u32 = 3;

const CAPABILITY_NAME: &[u8] = b"security.capability";

/// Records, when a file is opened, what it may lose.
pub(crate) fn note(open: &Open, attr: &Attr, created: bool) {
    let state = match without_set_id(attr.mode) == attr.mode {
        _ if created => NONE,
        true => CAPABILITY,
        false => BOTH,
    };
    open.shared().privileges.store(state, Ordering::Release);
}

/// Records that this process has given a file new privileges.
pub(crate) fn given(ino: u64) {
    table::each(|open| {
        if open.shared().ino == ino {
            open.shared().privileges.store(BOTH, Ordering::Release);
        }
    });
}

/// Removes privileges before a write.
pub(crate) fn take_away(open: &Use) -> Outcome<()> {
    let left = &open.shared().privileges;
    let state = left.load(Ordering::Acquire);
    if state == NONE {
        return Ok(());
    }
    // SAFETY: no preconditions.
    let by_root = unsafe { libc::geteuid() } == 0;
    if state == FOR_OTHERS && by_root {
        return Ok(());
    }
    let client = &open.mount.made()?.as_root;
    let ino = open.shared().ino;
    if state != FOR_OTHERS && client.get_xattr(ino, CAPABILITY_NAME).is_ok() {
        client.remove_xattr(ino, CAPABILITY_NAME)?;
    }
    left.store(NONE, Ordering::Release);
    if state == CAPABILITY {
        return Ok(());
    }
    let mode = client.getattr(ino)?.mode;
    let remaining = without_set_id(mode);
    if remaining != mode && by_root {
        left.store(FOR_OTHERS, Ordering::Release);
    } else if remaining != mode {
        client.setattr(At::ino(ino), false, &SetAttr { mode: Some(remaining), ..SetAttr::default() })?;
    }
    Ok(())
}

/// A set-group-id bit without group execution means mandatory locking, and stays.
fn without_set_id(mode: u32) -> u32 {
    let group_bit = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    mode & !(libc::S_ISUID | group_bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_for_mandatory_locking_is_no_set_group_id() {
        assert_eq!(without_set_id(0o6755), 0o755);
        assert_eq!(without_set_id(0o6745), 0o2745);
        assert_eq!(without_set_id(0o1644), 0o1644);
    }
}
