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
use weft_wire::messages::{Attr, CAPABILITY_XATTR};

use crate::guard::Outcome;
use crate::table::{self, Open, Use};

const NONE: u32 = 0;
/// The file may have capabilities.
const CAPABILITY: u32 = 1;
/// The file may also have set-id bits.
const BOTH: u32 = 2;
/// The file has set-id bits that are cleared when a user other than root writes.
const FOR_OTHERS: u32 = 3;

/// Records, when a file is opened, what it may lose.
pub(crate) fn note(open: &Open, attr: &Attr, created: bool) {
    let state = match attr.mode & (libc::S_ISUID | libc::S_ISGID) {
        _ if created => NONE,
        0 => CAPABILITY,
        _ => BOTH,
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
    let made = open.mount.made()?;
    let client = &made.as_root;
    let ino = open.shared().ino;
    if state != FOR_OTHERS && client.get_xattr(ino, CAPABILITY_XATTR).is_ok() {
        client.remove_xattr(ino, CAPABILITY_XATTR)?;
    }
    left.store(NONE, Ordering::Release);
    if state == CAPABILITY {
        return Ok(());
    }
    let attr = client.getattr(ino)?;
    let remaining = made.client.caller().mode_after_change(attr.mode, attr.gid);
    if by_root && attr.mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
        left.store(FOR_OTHERS, Ordering::Release);
    } else if remaining != attr.mode {
        client.setattr(At::ino(ino), false, &SetAttr { mode: Some(remaining), ..SetAttr::default() })?;
    }
    Ok(())
}
