//! Which refusals are logged: a client that is refused again and again is one line a minute.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a client's next refusals of the same kind are not logged.
const QUIET: Duration = Duration::from_secs(60);
/// Clients that are remembered. With more, the log is quiet about all new ones for as long.
const CLIENTS_MAX: usize = 1024;

/// Refusals so far.
#[derive(Default)]
pub(crate) struct Refusals {
    logged: RefCell<HashMap<(IpAddr, u64), Instant>>,
    count: Cell<u64>,
}

impl Refusals {
    /// Counts a refusal, and says whether to log it; `what` tells it from other refusals of this client.
    pub(crate) fn is_news(&self, client: IpAddr, what: u64, now: Instant) -> bool {
        self.count.set(self.count.get() + 1);
        let mut logged = self.logged.borrow_mut();
        let is_quiet = |at: &Instant| now.duration_since(*at) < QUIET;
        if logged.get(&(client, what)).is_some_and(is_quiet) {
            return false;
        }
        if logged.len() >= CLIENTS_MAX {
            logged.retain(|_, at| is_quiet(at));
        }
        let has_room = logged.len() < CLIENTS_MAX;
        if has_room {
            logged.insert((client, what), now);
        }
        has_room
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_client_is_logged_once_a_minute_for_each_kind() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert!(refusals.is_news(CLIENT, 1, at(0)) && !refusals.is_news(CLIENT, 1, at(59)));
        assert!(refusals.is_news(CLIENT, 2, at(59)), "another export");
        assert!(refusals.is_news("10.0.0.1".parse().unwrap(), 1, at(59)), "another client");
        assert!(refusals.is_news(CLIENT, 1, at(60)) && !refusals.is_news(CLIENT, 1, at(61)));
        assert_eq!(refusals.count(), 6);
    }

    #[test]
    fn many_clients_fill_neither_the_log_nor_the_memory() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let client = |number: u32| IpAddr::V4(number.into());
        let logged = (0..5000).filter(|number| refusals.is_news(client(*number), 0, start)).count();
        assert_eq!(logged, CLIENTS_MAX);
        assert!(refusals.is_news(client(9000), 0, start + QUIET));
        assert_eq!(refusals.logged.borrow().len(), 1);
    }
}
