//! What the threads of this process are doing, as the system tells.
//!
//! ```text
//!   /proc/self/task/17/syscall      7 0x7ffd2c… 0x2 …      asleep in this system call (7: poll)
//!                                   running                 somewhere: nobody knows
//! ```

use std::fs;

/// `process_madvise(2)`, which can do what `madvise(2)` does.
const PROCESS_MADVISE: i64 = 440;
/// Threads of the system that carry out requests of `io_uring`, among which is `madvise` too, …
const RING_WORKERS: &str = "iou-";
/// … and where they sleep if they have none.
const IDLE_WORKER: &str = "io_wq_worker";

/// Whether every thread but this one is known not to be in a call that gives memory back. What such a call
/// has begun before this is asked, is over then.
pub fn none_gives_memory_back() -> bool {
    // SAFETY: no memory is passed.
    let own = unsafe { libc::gettid() }.to_string();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    tasks.into_iter().all(|task| {
        let Ok(task) = task else { return false };
        if task.file_name().to_str() == Some(&own) {
            return true;
        }
        let read = |name: &str| fs::read_to_string(task.path().join(name));
        match (read("comm"), read("syscall")) {
            (Ok(name), _) if name.starts_with(RING_WORKERS) => {
                read("wchan").is_ok_and(|place| place == IDLE_WORKER)
            }
            (Ok(_), Ok(doing)) => is_elsewhere(&doing),
            // It has ended.
            _ => !task.path().exists(),
        }
    })
}

/// Whether a thread that is said to do this is surely not giving memory back.
fn is_elsewhere(doing: &str) -> bool {
    let number = doing.split_whitespace().next().and_then(|word| word.parse::<i64>().ok());
    number.is_some_and(|number| number != libc::SYS_madvise && number != PROCESS_MADVISE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_sleeps_in_another_call_is_elsewhere() {
        assert!(is_elsewhere("7 0x7f 0x2 0xffff 0x0 0x0 0x0 0x7ffd 0x7f21\n"));
        assert!(is_elsewhere("-1 0x7ffd 0x7f21\n"), "stopped outside of any");
        assert!(!is_elsewhere("running\n"));
        assert!(!is_elsewhere(&format!("{} 0x1000 0x1000 0x4\n", libc::SYS_madvise)));
        assert!(!is_elsewhere("440 0x3\n") && !is_elsewhere(""));
    }
}
