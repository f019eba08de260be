//! Which servers the calls of this thread have waited for, to report why one was slow.

use std::cell::Cell;
use std::time::Duration;

/// Servers that are remembered of one operation.
const SERVERS: usize = 4;
/// Shorter waits are not worth a word.
const WORTH_TELLING_MS: u64 = 10;

thread_local! {
    /// Index of a server + 1, and for how many milliseconds it was waited for, at most, by one request.
    static WAITS: Cell<[(u32, u32); SERVERS]> = const { Cell::new([(0, 0); SERVERS]) };
}

/// A new operation begins.
pub fn begin() {
    WAITS.set([(0, 0); SERVERS]);
}

/// A request to this server has ended after so long.
pub fn note(server: usize, ms: u64) {
    if ms < WORTH_TELLING_MS {
        return;
    }
    let (server, ms) = (server as u32 + 1, ms.min(u64::from(u32::MAX)) as u32);
    let mut waits = WAITS.get();
    // Its own place, else that of the shortest wait; free ones are the shortest.
    let mine = waits.iter().position(|(known, _)| *known == server);
    let shortest = || (0..SERVERS).min_by_key(|at| waits[*at].1).unwrap_or(0);
    let at = mine.unwrap_or_else(shortest);
    if ms > waits[at].1 {
        waits[at] = (server, ms);
    }
    WAITS.set(waits);
}

/// The servers that this thread's present operation has waited for, by their index, the longest first.
pub fn longest() -> Vec<(usize, Duration)> {
    let mut waits: Vec<_> = WAITS.get().into_iter().filter(|(server, _)| *server > 0).collect();
    waits.sort_by_key(|(_, ms)| std::cmp::Reverse(*ms));
    waits.into_iter().map(|(server, ms)| (server as usize - 1, Duration::from_millis(ms.into()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_waits_are_remembered() {
        begin();
        for (server, ms) in [(0, 5), (1, 20), (2, 900), (1, 30), (3, 40), (4, 50), (5, 60), (6, 11)] {
            note(server, ms);
        }
        let told: Vec<_> = longest().iter().map(|(server, wait)| (*server, wait.as_millis())).collect();
        assert_eq!(told, [(2, 900), (5, 60), (4, 50), (3, 40)]);
        begin();
        assert!(longest().is_empty());
    }
}
