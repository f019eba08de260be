//! Which keys get no leases for a while, because a client with them let a lease run out.
//!
//! ```text
//!   a change waits 11 s for a client ─► its session gets no leases: 30 s, next time 60 s, … 10 min
//!                                       a user's key: none of its sessions does, new ones included
//!                                       a host's key: the same from the third time on
//! ```
//!
//! A user's key is one user's, who could start a new session each time. A host's key may be used by many mounts, and one of them may
//! lose its network.

use super::leases::LEASE;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use weft_wire::security::Holder;

/// How long the first penalty lasts. Each further one lasts twice as long.
const FIRST: Duration = Duration::from_secs(30);
const MAX: Duration = Duration::from_secs(600);
/// After so long without another lapse the next penalty is a first one.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);
/// Lapses of clients with one host's key that concern no other clients with it.
const HOST_LAPSES: u32 = 2;

/// Whom a session belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Party {
    pub holder: Holder,
    /// It acts for one user.
    pub is_user: bool,
}

/// The penalty for a lapse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Penalty {
    pub time: Duration,
    /// For all sessions with the key.
    pub all: bool,
}

#[derive(Debug)]
struct Record {
    lapses: u32,
    last: Instant,
    penalty: Penalty,
}

impl Record {
    fn end(&self) -> Instant {
        self.last + self.penalty.time
    }
}

/// All that are remembered.
#[derive(Debug, Default)]
pub(super) struct Penalties {
    records: HashMap<[u8; 8], Record>,
    /// Since the start of the server.
    lapses: u64,
}

impl Penalties {
    /// A client of `party` let a lease run out. `None` if that is part of a lapse that was counted already.
    pub fn lapse(&mut self, party: Party, now: Instant) -> Option<Penalty> {
        self.records.retain(|_, record| now < record.end() + FORGIVEN_AFTER);
        let before = self.records.get(&party.holder.0);
        if before.is_some_and(|record| now < record.last + LEASE || record.penalty.all && now < record.end())
        {
            return None;
        }
        let lapses = before.map_or(0, |record| record.lapses) + 1;
        let time = (FIRST * (1 << (lapses - 1).min(10))).min(MAX);
        let penalty = Penalty { time, all: party.is_user || lapses > HOST_LAPSES };
        self.records.insert(party.holder.0, Record { lapses, last: now, penalty });
        self.lapses += 1;
        Some(penalty)
    }

    /// For how much longer no session with this key gets leases.
    pub fn left(&self, party: Party, now: Instant) -> Option<Duration> {
        let record = self.records.get(&party.holder.0).filter(|record| record.penalty.all)?;
        Some(record.end().saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// Lapses since the start of the server, and keys without leases.
    pub fn counts(&self, now: Instant) -> (u64, usize) {
        let barred = self.records.values().filter(|record| record.penalty.all && now < record.end());
        (self.lapses, barred.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Party = Party { holder: Holder([1; 8]), is_user: true };
    const HOST: Party = Party { holder: Holder([2; 8]), is_user: false };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_users_penalty_is_for_all_its_sessions_and_doubles_up_to_ten_minutes() {
        let (mut penalties, mut now) = (Penalties::default(), Instant::now());
        for time in [30, 60, 120, 240, 480, 600, 600] {
            assert_eq!(penalties.lapse(USER, now), Some(Penalty { time: seconds(time), all: true }));
            assert_eq!(penalties.lapse(USER, now + seconds(20)), None, "a lease from before the penalty");
            assert_eq!(penalties.left(USER, now + seconds(10)), Some(seconds(time - 10)));
            assert_eq!(penalties.counts(now).1, 1);
            now += seconds(time);
            assert_eq!((penalties.left(USER, now), penalties.counts(now).1), (None, 0));
        }
        now += FORGIVEN_AFTER;
        assert_eq!(penalties.lapse(USER, now), Some(Penalty { time: FIRST, all: true }));
        assert_eq!(penalties.left(HOST, now), None);
    }

    #[test]
    fn two_lapses_with_a_hosts_key_concern_no_other_mount_with_it() {
        let (mut penalties, mut now) = (Penalties::default(), Instant::now());
        for (time, all) in [(30, false), (60, false), (120, true)] {
            assert_eq!(penalties.lapse(HOST, now), Some(Penalty { time: seconds(time), all }));
            assert_eq!(penalties.left(HOST, now).is_some(), all);
            assert_eq!(
                penalties.lapse(HOST, now + seconds(5)),
                None,
                "mounts that lost their network together"
            );
            now += seconds(20);
        }
    }
}
