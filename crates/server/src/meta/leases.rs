//! Who holds a lease on what, and until when: a table without I/O and without a clock.
//!
//! ```text
//!   inode 7 ─► [session A until 11 s, session B until 14 s]      a lease on its attributes and data, and if it is a directory
//!   inode 9 ─► [session B until 14 s]                            on all its names, those that are missing included
//!
//!   time  0 ──────── turn ──────── turn ──────── turn
//!         young          old          gone                       a lease lasts at most from one turn to the next but one
//! ```
//!
//! A lease on a file ends when its holder is told of a change: then it knows nothing of it any more. One on a directory goes on, for of
//! its names only one is told; after [`TELLS_MAX`] changes in which the holder asked for nothing there, it ends with the word that
//! all names may be wrong.

use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};
use weft_meta::SessionId;
use weft_wire::limits::LEASE_MS;

/// How long a lease lasts, from the moment of telling. It outlasts what the client makes of it by a second, in which a reply
/// may lie in the client's kernel before its time is counted from there.
pub(crate) const LEASE: Duration = Duration::from_millis(LEASE_MS + 1000);
/// Changes that a holder is told of in one directory before the lease on it ends.
const TELLS_MAX: u8 = 16;

/// A lease that a change ends, or that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Who holds it.
    pub session: SessionId,
    /// Until when.
    pub until: Instant,
    tells: u8,
}

/// Somebody who is to be told of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Concerned {
    /// Who.
    pub session: SessionId,
    /// When its lease ends.
    pub until: Instant,
    /// The lease on this directory is over: all names are to be forgotten.
    pub all_names: bool,
}

/// By inode; the numbers are of this server's choice.
type Table = FxHashMap<u64, Vec<Holder>>;

/// All leases.
pub(crate) struct Leases {
    young: Table,
    old: Table,
    turned: Instant,
}

impl Leases {
    pub fn new(now: Instant) -> Leases {
        Leases { young: Table::default(), old: Table::default(), turned: now }
    }

    /// Leases of which something is kept; some may be over.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// `session` is told of `ino` now, and gets a lease on it until then, at most [`LEASE`] from now.
    pub fn grant(&mut self, ino: u64, session: SessionId, now: Instant, until: Instant) {
        self.turn(now);
        let holders = self.young.entry(ino).or_default();
        let fresh = Holder { session, until: until.min(now + LEASE), tells: 0 };
        match holders.iter_mut().find(|holder| holder.session == session) {
            Some(holder) => *holder = fresh,
            None => holders.push(fresh),
        }
    }

    fn turn(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.turned);
        if since >= LEASE {
            self.old = if since >= 2 * LEASE { Table::default() } else { std::mem::take(&mut self.young) };
            self.young = Table::default();
            self.turned = now;
        }
    }

    /// Whether anybody but `author` has a lease on `ino`.
    pub fn is_leased(&self, ino: u64, author: Option<SessionId>, now: Instant) -> bool {
        let counts = |holder: &Holder| holder.until > now && Some(holder.session) != author;
        let held = |table: &Table| table.get(&ino).is_some_and(|holders| holders.iter().any(counts));
        held(&self.young) || held(&self.old)
    }

    /// `session` holds no lease any more.
    pub fn end(&mut self, session: SessionId) {
        for table in [&mut self.young, &mut self.old] {
            table.retain(|_, holders| {
                holders.retain(|holder| holder.session != session);
                !holders.is_empty()
            });
        }
    }

    /// Who but `author` has a lease on `ino`, which changes; `goes_on`: it is a directory, of which only one name changes.
    pub fn concerned(&mut self, ino: u64, author: SessionId, goes_on: bool, now: Instant) -> Vec<Concerned> {
        let mut all: Vec<Concerned> = Vec::new();
        for table in [&mut self.young, &mut self.old] {
            let Some(holders) = table.get_mut(&ino) else { continue };
            holders.retain_mut(|holder| {
                if holder.until <= now || holder.session == author {
                    return holder.until > now;
                }
                holder.tells = holder.tells.saturating_add(1);
                let stays = goes_on && holder.tells < TELLS_MAX;
                if !all.iter().any(|other| other.session == holder.session) {
                    all.push(Concerned {
                        session: holder.session,
                        until: holder.until,
                        all_names: goes_on && !stays,
                    });
                }
                stays
            });
            if holders.is_empty() {
                table.remove(&ino);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const A: SessionId = SessionId([1; 16]);
    const B: SessionId = SessionId([2; 16]);

    fn sessions(concerned: &[Concerned]) -> Vec<SessionId> {
        concerned.iter().map(|one| one.session).collect()
    }

    #[test]
    fn others_are_concerned_until_their_time_is_over() {
        let begin = Instant::now();
        let mut leases = Leases::new(begin);
        leases.grant(7, A, begin, begin + LEASE);
        leases.grant(7, B, begin + LEASE / 2, begin + LEASE / 2 + LEASE);
        let almost = begin + LEASE - Duration::from_millis(1);
        assert_eq!(sessions(&leases.concerned(7, B, true, almost)), [A]);
        assert_eq!(sessions(&leases.concerned(7, A, true, almost)), [B]);
        assert_eq!(sessions(&leases.concerned(7, SessionId([9; 16]), true, begin + LEASE)), [B]);
        assert!(leases.concerned(7, SessionId([9; 16]), true, begin + 2 * LEASE).is_empty());
    }

    #[test]
    fn a_lease_on_a_file_ends_when_its_holder_is_told() {
        let now = Instant::now();
        let mut leases = Leases::new(now);
        leases.grant(7, A, now, now + LEASE);
        assert_eq!(leases.concerned(7, B, false, now).len(), 1);
        assert!(leases.concerned(7, B, false, now).is_empty());
        assert_eq!(leases.len(), 0);
    }

    #[test]
    fn a_lease_on_a_directory_ends_with_all_its_names_when_its_holder_asks_for_nothing() {
        let now = Instant::now();
        let mut leases = Leases::new(now);
        leases.grant(7, A, now, now + LEASE);
        for _ in 1..TELLS_MAX {
            assert!(!leases.concerned(7, B, true, now)[0].all_names);
        }
        leases.grant(7, A, now, now + LEASE);
        for _ in 1..TELLS_MAX {
            assert!(!leases.concerned(7, B, true, now)[0].all_names);
        }
        assert!(leases.concerned(7, B, true, now)[0].all_names);
        assert!(leases.concerned(7, B, true, now).is_empty());
    }

    #[test]
    fn a_lease_lasts_over_a_turn_of_the_tables_and_is_told_of_once() {
        let begin = Instant::now();
        let mut leases = Leases::new(begin);
        let late = begin + LEASE - Duration::from_millis(1);
        leases.grant(7, A, late, late + LEASE);
        leases.grant(8, A, begin + LEASE, begin + LEASE + LEASE);
        leases.grant(7, A, begin + LEASE, begin + LEASE + LEASE);
        assert_eq!(sessions(&leases.concerned(7, B, false, begin + LEASE)), [A]);
        leases.grant(9, A, begin + 4 * LEASE, begin + 4 * LEASE + LEASE);
        assert_eq!(leases.len(), 1);
    }

    /// Something that happens to the table; inodes and sessions by number.
    #[derive(Debug, Clone)]
    enum Step {
        Grant { ino: u64, session: u8 },
        Change { ino: u64, author: u8, goes_on: bool },
        End { session: u8 },
        Pass { ms: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let (ino, session) = (0..3u64, 0..3u8);
        prop_oneof![
            4 => (ino.clone(), session.clone()).prop_map(|(ino, session)| Step::Grant { ino, session }),
            4 => (ino, session.clone(), any::<bool>())
                .prop_map(|(ino, author, goes_on)| Step::Change { ino, author, goes_on }),
            1 => session.prop_map(|session| Step::End { session }),
            2 => (0..9_000u64).prop_map(|ms| Step::Pass { ms }),
        ]
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        /// Against one map of leases without turns.
        #[test]
        fn exactly_those_are_concerned_who_were_told_and_have_not_forgotten(
            steps in proptest::collection::vec(step(), 1..200)
        ) {
            let mut now = Instant::now();
            let mut leases = Leases::new(now);
            let mut model: BTreeMap<(u64, u8), (Instant, u8)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Pass { ms } => now += Duration::from_millis(ms),
                    Step::Grant { ino, session } => {
                        leases.grant(ino, SessionId([session; 16]), now, now + LEASE);
                        model.insert((ino, session), (now + LEASE, 0));
                    }
                    Step::End { session } => {
                        leases.end(SessionId([session; 16]));
                        model.retain(|(_, holder), _| *holder != session);
                    }
                    Step::Change { ino, author, goes_on } => {
                        let leased = |author| {
                            let counts = |session| author != Some(session);
                            model.iter().any(|((of, session), (until, _))| *of == ino && *until > now && counts(*session))
                        };
                        let by = |author: Option<u8>| author.map(|author| SessionId([author; 16]));
                        for author in [None, Some(author)] {
                            prop_assert_eq!(leases.is_leased(ino, by(author), now), leased(author));
                        }
                        let mut found = leases.concerned(ino, SessionId([author; 16]), goes_on, now);
                        found.sort_by_key(|one| one.session);
                        let mut expected = Vec::new();
                        model.retain(|(of, session), (until, tells)| {
                            if *of != ino || *session == author || *until <= now {
                                return *until > now;
                            }
                            *tells += 1;
                            let stays = goes_on && *tells < TELLS_MAX;
                            let all_names = goes_on && !stays;
                            expected.push(Concerned { session: SessionId([*session; 16]), until: *until, all_names });
                            stays
                        });
                        prop_assert_eq!(found, expected);
                    }
                }
            }
        }
    }
}
