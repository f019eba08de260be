//! Whether a signal that came for a process is one that ends its wait.
//!
//! The kernel says that a signal came for whoever made a request, and not which: also one for a timer of the program, which must not
//! make a call fail that would fail on no local disk. What has come and was not delivered yet is in `/proc/PID/status`; a signal
//! whose default is to end the process is there as `SIGKILL` (Linux `complete_signal`).

/// Those after which a user, or a supervisor, wants a process to stop.
const ENDING: [i32; 5] = [libc::SIGKILL, libc::SIGINT, libc::SIGTERM, libc::SIGQUIT, libc::SIGHUP];

/// Whether a signal has come for this thread that ends its wait. One that cannot be looked at, as it is gone or not of this
/// system's processes, is taken to be ended.
pub(crate) fn is_ended(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    status.map_or(true, |status| has_ending(&status))
}

fn has_ending(status: &str) -> bool {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = (set("SigPnd") | set("ShdPnd")) & !set("SigBlk");
    ENDING.iter().any(|signal| pending >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(own: u64, shared: u64, blocked: u64) -> String {
        format!("Name:\tcat\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n")
    }

    #[test]
    fn what_a_user_sends_to_stop_a_process_ends_its_wait_and_a_timer_does_not() {
        let bit = |signal: i32| 1 << (signal - 1);
        assert!(has_ending(&status(bit(libc::SIGKILL), 0, 0)));
        assert!(has_ending(&status(0, bit(libc::SIGINT) | bit(libc::SIGALRM), 0)));
        assert!(!has_ending(&status(bit(libc::SIGALRM), bit(libc::SIGCHLD) | bit(libc::SIGURG), 0)));
        assert!(
            !has_ending(&status(bit(libc::SIGALRM), bit(libc::SIGINT), bit(libc::SIGINT))),
            "it is blocked"
        );
        assert!(!is_ended(std::process::id()));
        assert!(is_ended(u32::MAX), "nobody has that number");
    }
}
