//! What the kernel does not tell of a process that asks for a lock, read from `/proc` while the process waits for the reply.
//!
//! ```text
//!   flock(2) or fcntl(2)?     /proc/TID/syscall   "73 0x3 …"                    a lock on the whole file, or on its bytes
//!   is it to be woken?        /proc/TID/status    (SigPnd | ShdPnd) & !SigBlk   a signal has come: its wait is over
//! ```
//!
//! The kernel has a flag for the first and a message for the second, but the crate `fuser` passes neither on. A process that waits
//! for a reply has its signals pending until the reply is there, also the one that is to kill it. Who has two looks in a row at a
//! signal that is pending has seen one that no other thread of the process has taken.

use std::time::Duration;

/// How often a thread is looked at that is not asleep in its call yet, and the pause in between.
const LOOKS_MAX: u32 = 200;
const LOOK_PAUSE: Duration = Duration::from_micros(500);
/// Number of flock(2) for 32-bit programs on a 64-bit kernel.
const SYS_FLOCK_32: i64 = 143;

/// The call that a thread is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockCall {
    /// flock(2).
    Flock,
    /// Any other: fcntl(2).
    Fcntl,
    /// It cannot be told, where this process may not look.
    Unknown,
}

/// Which call a thread is in that waits for the reply to a request for a lock.
pub(crate) fn lock_call(tid: u32) -> LockCall {
    for _ in 0..LOOKS_MAX {
        let Ok(text) = std::fs::read_to_string(format!("/proc/{tid}/syscall")) else {
            return LockCall::Unknown;
        };
        if let Some(call) = parse_call(&text) {
            return call;
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    LockCall::Unknown
}

/// `None`: it runs still.
fn parse_call(text: &str) -> Option<LockCall> {
    let number = text.split_ascii_whitespace().next()?.parse::<i64>().ok()?;
    let is_flock = number == libc::SYS_flock || number == SYS_FLOCK_32;
    Some(if is_flock { LockCall::Flock } else { LockCall::Fcntl })
}

/// Looks whether a waiting thread has a signal to handle.
pub(crate) struct Signalled {
    tid: u32,
    /// Whether it could be looked at to begin with, and had a signal at the last look.
    seen: std::cell::Cell<(bool, bool)>,
}

impl Signalled {
    /// For a thread.
    pub(crate) fn new(tid: u32) -> Signalled {
        Signalled { tid, seen: Default::default() }
    }

    /// Whether its wait is over: it had a signal to handle twice in a row, or is gone.
    pub(crate) fn look(&self) -> bool {
        let (was_there, was_signalled) = self.seen.get();
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.tid));
        let Ok(status) = status else { return was_there };
        let is_signalled = has_signal(&status);
        self.seen.set((true, is_signalled));
        was_signalled && is_signalled
    }
}

fn has_signal(status: &str) -> bool {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_counts_unless_it_is_blocked() {
        let status = |own: &str, shared: &str, blocked: &str| {
            format!(
                "Name:\tx\nSigQ:\t0/7\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\t0\n"
            )
        };
        assert!(has_signal(&status("0000000000000100", "0", "0")));
        assert!(has_signal(&status("0", "0000000000004000", "0000000000000200")));
        assert!(!has_signal(&status("0", "0000000000004000", "0000000000004000")));
        assert!(!has_signal(&status("0", "0", "0")) && !has_signal(""));
    }

    #[test]
    fn calls_are_told_apart_and_a_running_thread_is_looked_at_again() {
        assert_eq!(
            parse_call(&format!("{} 0x3 0x2 0x0 0x0 0x0 0x0 0x7ff 0x7ff\n", libc::SYS_flock)),
            Some(LockCall::Flock)
        );
        assert_eq!(parse_call(&format!("{} 0x3 0x7\n", libc::SYS_fcntl)), Some(LockCall::Fcntl));
        assert_eq!(parse_call("running\n"), None);
    }

    #[test]
    fn a_thread_that_is_gone_waits_no_more_and_one_that_was_never_seen_does() {
        let signalled = Signalled::new(0);
        assert!(!signalled.look());
        signalled.seen.set((true, false));
        assert!(signalled.look());
    }
}
