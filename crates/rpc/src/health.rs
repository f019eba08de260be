//! Whether a server is dead: calls that need it then fail at once, and one of them looks for its return now
//! and then.
//!
//! ```text
//!            failure             failing for a whole deadline
//!   well ──────────────► failing ─────────────────────────► dead ── probe every second, by one caller ─┐
//!    ▲                     │                                │ ▲                                        │
//!    ├──── reply ──────────┘                                │ └──────────────── no reply ──────────────┤
//!    └──────────────────────────────────────────────────────┴───────────────── reply ──────────────────┘
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::wait::lock;

/// Time between a probe and the next.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How long a caller that probes waits at first, and at most: a server that is far away and busy needs
/// longer.
const PROBE_WAIT_FIRST: Duration = Duration::from_millis(250);
const PROBE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Waits of a request that can do without its answer, from one try at a failing server to the next.
const TRIES_APART: u32 = 3;

/// What is known of a server's being reachable.
#[derive(Default)]
pub(crate) struct Health {
    /// It is not well: to be looked at.
    troubled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failing_since: Option<Instant>,
    /// When a request that can do without its answer was last sent although the server was failing.
    tried_at: Option<Instant>,
    dead: Option<Death>,
}

struct Death {
    since: Instant,
    since_unix_s: u64,
    cause: String,
    probe_at: Instant,
    probe_wait: Duration,
}

/// A server that is dead, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obituary {
    /// Since when it has not answered.
    pub since: Instant,
    /// The same in seconds since 1970.
    pub since_unix_s: u64,
    /// What the last attempt met.
    pub cause: String,
}

/// What to do for who needs the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Ask it.
    Well,
    /// Look whether it is back, for no longer than this: no other caller will for a while.
    Probe(Duration),
    /// Fail.
    Dead(Obituary),
}

impl Death {
    fn obituary(&self) -> Obituary {
        Obituary { since: self.since, since_unix_s: self.since_unix_s, cause: self.cause.clone() }
    }
}

impl Health {
    pub(crate) fn verdict(&self, now: Instant) -> Verdict {
        if !self.troubled.load(Ordering::Acquire) {
            return Verdict::Well;
        }
        match &mut lock(&self.state).dead {
            None => Verdict::Well,
            Some(death) if death.probe_at <= now => {
                death.probe_at = now + death.probe_wait + PROBE_EVERY;
                Verdict::Probe(death.probe_wait)
            }
            Some(death) => Verdict::Dead(death.obituary()),
        }
    }

    pub(crate) fn obituary(&self) -> Option<Obituary> {
        if !self.troubled.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.state).dead.as_ref().map(Death::obituary)
    }

    /// Whether the last that was heard of it is a failure.
    pub(crate) fn is_failing(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    /// It has answered. Says whether it was dead until now.
    pub(crate) fn note_answer(&self) -> bool {
        if !self.troubled.load(Ordering::Acquire) {
            return false;
        }
        let mut state = lock(&self.state);
        self.troubled.store(false, Ordering::Release);
        (state.failing_since, state.tried_at) = (None, None);
        state.dead.take().is_some()
    }

    /// Whether a request that can do without its answer is to be sent. Where the server has failed for as
    /// long as such a request waits, only one now and then is.
    pub(crate) fn is_worth_asking(&self, now: Instant, patience: Duration) -> bool {
        if !self.troubled.load(Ordering::Acquire) {
            return true;
        }
        let mut state = lock(&self.state);
        let failing_since = state.failing_since.unwrap_or(now);
        let tried_at = state.tried_at.unwrap_or(failing_since);
        if now.saturating_duration_since(failing_since) < patience {
            return true;
        }
        let is_due = now.saturating_duration_since(tried_at) >= TRIES_APART * patience;
        if is_due {
            state.tried_at = Some(now);
        }
        is_due
    }

    /// It has not answered since `since`, or was not to be reached. Where that lasts for `limit` it is dead:
    /// says whether it has become so now.
    pub(crate) fn note_failure(&self, since: Instant, limit: Option<Duration>, cause: &str) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.state);
        self.troubled.store(true, Ordering::Release);
        let failing_since = state.failing_since.map_or(since, |before| before.min(since));
        state.failing_since = Some(failing_since);
        if state.dead.is_some() || limit.is_none_or(|limit| now.duration_since(failing_since) < limit) {
            return false;
        }
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        state.dead = Some(Death {
            since: failing_since,
            since_unix_s: unix.saturating_sub(now.duration_since(failing_since)).as_secs(),
            cause: cause.to_string(),
            probe_at: now + PROBE_EVERY,
            probe_wait: PROBE_WAIT_FIRST,
        });
        true
    }

    /// A probe found nothing, after waiting in vain where `timed_out`.
    pub(crate) fn note_probe(&self, cause: &str, timed_out: bool) {
        if let Some(death) = &mut lock(&self.state).dead {
            death.cause = cause.to_string();
            death.probe_at = Instant::now() + PROBE_EVERY;
            if timed_out {
                death.probe_wait = (death.probe_wait * 2).min(PROBE_WAIT_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

    #[test]
    fn a_server_is_dead_after_a_whole_deadline_and_well_with_its_first_answer() {
        let health = Health::default();
        let now = Instant::now();
        let Some(long_ago) = now.checked_sub(Duration::from_secs(31)) else { return };
        assert_eq!(health.verdict(now), Verdict::Well);
        assert!(!health.note_failure(now, LIMIT, "refused"));
        assert_eq!(health.verdict(now), Verdict::Well, "not for long enough");
        assert!(health.note_failure(long_ago, LIMIT, "refused"));
        assert!(!health.note_failure(now, LIMIT, "refused"), "it is dead already");
        assert!(matches!(health.verdict(now), Verdict::Dead(obituary) if obituary.since == long_ago));
        assert!(health.note_answer() && !health.note_answer());
        assert_eq!(health.verdict(now), Verdict::Well);
        assert!(!health.note_failure(now, LIMIT, "refused"), "what was before is forgotten");
    }

    #[test]
    fn a_server_that_fails_is_asked_what_is_not_needed_only_now_and_then() {
        let health = Health::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        assert!(health.is_worth_asking(now, second));
        health.note_failure(now, LIMIT, "silent");
        assert!(health.is_worth_asking(now + second / 2, second), "not failing for long");
        assert!(!health.is_worth_asking(now + second, second));
        assert!(health.is_worth_asking(now + TRIES_APART * second, second));
        assert!(!health.is_worth_asking(now + TRIES_APART * second, second), "one at a time");
        health.note_answer();
        assert!(health.is_worth_asking(now + TRIES_APART * second, second));
    }

    #[test]
    fn nothing_is_dead_for_who_waits_for_ever() {
        let health = Health::default();
        let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(3600)) else { return };
        assert!(!health.note_failure(long_ago, None, "refused"));
        assert_eq!(health.verdict(Instant::now()), Verdict::Well);
    }

    #[test]
    fn of_many_callers_one_probes_and_the_wait_grows_where_it_is_in_vain() {
        let health = Health::default();
        let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(31)) else { return };
        health.note_failure(long_ago, LIMIT, "silent");
        let due = Instant::now() + PROBE_EVERY;
        assert_eq!(health.verdict(due), Verdict::Probe(PROBE_WAIT_FIRST));
        assert!(matches!(health.verdict(due), Verdict::Dead(_)));
        for _ in 0..9 {
            health.note_probe("silent", true);
        }
        assert_eq!(health.verdict(Instant::now() + PROBE_EVERY), Verdict::Probe(PROBE_WAIT_MAX));
    }
}
