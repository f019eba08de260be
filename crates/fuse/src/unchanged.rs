//! Changes of attributes that change nothing.
//!
//! Programs that unpack archives give every new file the owner and the mode that it has already. Such a change has no effect but on
//! the status-change time, and where that time was set less than a tick ago, it would be the same by a clock that ticks, as the
//! clock of local file systems does. So it needs no server:
//!
//! ```text
//!   utimensat ──► SetAttr, reply: owner 0:0, mode 600 ──┐
//!   fchown 0:0 ──► nothing to change, 0.1 ms later ◄────┤ the last replies, each good for a tick
//!   fchmod 644 ──► SetAttr, reply … ────────────────────┘
//! ```
//!
//! Anything else that this mount does to an inode, or to any name, ends what was known; so does what others do, as
//! `coherence.rs` tells.

use crate::outcome::SET_ID_BITS;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_client::SetAttr;
use weft_gateway::Asked;
use weft_wire::messages::Attr;

/// The tick of a coarse clock (a kernel's with 250 Hz).
const TICK: Duration = Duration::from_millis(4);
/// Replies remembered.
const REPLIES_MAX: usize = 16;

struct Reply {
    at: Instant,
    asked: Asked,
    attr: Attr,
}

/// The last replies that set a status-change time.
#[derive(Default)]
pub(crate) struct LastReplies(Mutex<VecDeque<Reply>>);

impl LastReplies {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Reply>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the reply to a change that was asked for at `at`.
    pub(crate) fn note(&self, at: Instant, asked: &Asked, attr: &Attr) {
        let mut replies = self.lock();
        replies.retain(|reply| reply.attr.ino != attr.ino);
        if replies.len() == REPLIES_MAX {
            replies.pop_front();
        }
        replies.push_back(Reply { at, asked: *asked, attr: attr.clone() });
    }

    /// Something else is being done to an inode.
    pub(crate) fn forget(&self, ino: u64) {
        self.lock().retain(|reply| reply.attr.ino != ino);
    }

    /// Something is being done that may concern any inode.
    pub(crate) fn forget_all(&self) {
        self.lock().clear();
    }

    /// The attributes of `ino`, and when they were asked for, if `wanted` would leave all of them as they are.
    pub(crate) fn unchanged(&self, ino: u64, wanted: &SetAttr) -> Option<(Asked, Attr)> {
        let replies = self.lock();
        let reply = replies.iter().find(|reply| reply.attr.ino == ino)?;
        let is_same = changes_nothing(&reply.attr, wanted) && reply.at.elapsed() < TICK;
        is_same.then(|| (reply.asked, reply.attr.clone()))
    }
}

fn changes_nothing(attr: &Attr, wanted: &SetAttr) -> bool {
    let same = |wanted: Option<u32>, now: u32| wanted.is_none_or(|wanted| wanted == now);
    wanted.atime.is_none()
        && wanted.mtime.is_none()
        && attr.mode & SET_ID_BITS == 0
        && same(wanted.mode, attr.mode & 0o7777)
        && same(wanted.uid, attr.uid)
        && same(wanted.gid, attr.gid)
}
