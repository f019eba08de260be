//! The ledger of quotas, in memory: what each owner has, what each subject may have, and what is promised to writers.
//!
//! ```text
//!   an operation's inodes, before and after ─► stage: who has more, who has less; refused if a limit is in the way
//!                                                 │
//!                                              commit: usage records in the same batch
//!                                                 │
//!                                              apply
//!
//!   a file that is being written        size ├──── reserved ────┤ end of its grant
//!                                        counted as used, so that writers together never exceed a limit
//! ```
//!
//! A *grant* is how far the writers of a file may extend it without asking again. It ends with the last writer, if the size is known
//! then. I/O servers enforce it, as it is in the capability that they are shown.
//!
//! Before usage is known it is counted in pages, along the inode numbers: what is below the cursor is counted, and kept right by each
//! commit; what is above will be.

use crate::quota::{
    LimitRecord, Limits, OverSince, Owner, QuotaExceeded, Subject, Sum, bound_below, bound_reaching, shown,
};
use rustc_hash::FxHashMap;

/// What a writer that asks may get beyond what it asks for.
const AHEAD_BYTES_MAX: u64 = 256 << 20;
/// What it may get of what is left, as a divisor.
const AHEAD_PART: u64 = 16;
/// What an open gives without being asked.
const OPEN_AHEAD_BYTES_MAX: u64 = 4 << 20;
const OPEN_AHEAD_PART: u64 = 256;

/// Whether usage is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Counting {
    /// Nobody has asked for it.
    #[default]
    Off,
    /// That of inodes with smaller numbers is.
    Below(u64),
    /// All is.
    Done,
}

/// A subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    pub used: Sum,
    /// Bytes promised to writers beyond the sizes of files.
    pub reserved_bytes: u128,
    /// Its own limits.
    pub limits: Option<Limits>,
    pub over: OverSince,
    /// The grace is over: the soft limit is a hard one.
    bytes_expired: bool,
    files_expired: bool,
}

/// How far a file may be extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grant {
    end: u64,
    owner: Owner,
    reserved_bytes: u64,
}

/// An inode before and after an operation; `None`: it does not exist.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub ino: u64,
    pub before: Option<(Owner, u64)>,
    pub after: Option<(Owner, u64)>,
    /// Bytes of its extended attributes, before and after. Those that stay with their owner may be left out of both.
    pub xattr_bytes: (u64, u64),
}

/// A change of a file's grant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub ino: u64,
    /// How far the file may be extended; at least, unless it `cuts`.
    pub end: u64,
    /// What was granted beyond `end` is given back.
    pub cuts: bool,
}

/// What a commit does to the ledger.
#[derive(Debug, Default)]
pub(crate) struct LedgerChange {
    /// By owner: bytes and files more.
    owners: Vec<(Owner, i128, i64)>,
    grants: Vec<(u64, Option<Grant>)>,
}

impl LedgerChange {
    fn add(&mut self, owner: Owner, bytes: i128, files: i64) {
        match self.owners.iter_mut().find(|(known, ..)| *known == owner) {
            Some((_, has_bytes, has_files)) => {
                *has_bytes += bytes;
                *has_files += files;
            }
            None => self.owners.push((owner, bytes, files)),
        }
    }

    /// Files with a grant that it changes.
    pub fn granted(&self) -> impl Iterator<Item = u64> {
        self.grants.iter().map(|(ino, _)| *ino)
    }
}

/// Usage and limits of everybody.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub counting: Counting,
    owners: FxHashMap<Owner, Sum>,
    standings: FxHashMap<Subject, Standing>,
    grants: FxHashMap<u64, Grant>,
}

impl Ledger {
    pub fn is_off(&self) -> bool {
        self.counting == Counting::Off
    }

    /// Begins to count anew.
    pub fn begin_count(&mut self) {
        self.counting = Counting::Below(0);
        self.owners.clear();
        self.standings.values_mut().for_each(|standing| standing.used = Sum::default());
    }

    /// Adds what an owner has, as stored or as counted.
    pub fn add_used(&mut self, owner: Owner, used: Sum) {
        self.change_used(owner, used.bytes.try_into().unwrap_or(i128::MAX), used.files as i64);
    }

    fn change_used(&mut self, owner: Owner, bytes: i128, files: i64) {
        let used = self.owners.entry(owner).or_default();
        *used = used.plus(bytes, files);
        if *used == Sum::default() {
            self.owners.remove(&owner);
        }
        for subject in owner.subjects() {
            let standing = self.standings.entry(subject).or_default();
            standing.used = standing.used.plus(bytes, files);
        }
    }

    /// What all owners have.
    pub fn owners(&self) -> impl Iterator<Item = (&Owner, &Sum)> {
        self.owners.iter()
    }

    /// Sets the limits of a subject.
    pub fn set_limit(&mut self, subject: Subject, record: LimitRecord) {
        let standing = self.standings.entry(subject).or_default();
        (standing.limits, standing.over) = (record.limits, record.over);
        (standing.bytes_expired, standing.files_expired) = (false, false);
    }

    /// All subjects that use something or have limits, in order.
    pub fn standings(&self) -> Vec<(Subject, Standing)> {
        let is_shown = |standing: &Standing| {
            standing.used != Sum::default() || standing.limits.is_some() || standing.reserved_bytes > 0
        };
        let mut all: Vec<_> = self.standings.iter().filter(|(_, standing)| is_shown(standing)).collect();
        all.sort_unstable_by_key(|(subject, _)| **subject);
        all.into_iter().map(|(subject, standing)| (*subject, *standing)).collect()
    }

    /// How a subject stands.
    pub fn standing(&self, subject: Subject) -> Standing {
        self.standings.get(&subject).copied().unwrap_or_default()
    }

    /// The limits that count for a subject.
    pub fn limits_of(&self, subject: Subject) -> Option<Limits> {
        let own = |subject| self.standings.get(&subject).and_then(|standing| standing.limits);
        own(subject).or_else(|| subject.fallback().and_then(own))
    }

    fn is_limited(&self, owner: Owner) -> bool {
        owner.subjects().any(|subject| {
            self.limits_of(subject).is_some_and(|limits| limits.hard_bytes | limits.soft_bytes != 0)
        })
    }

    /// How many bytes a subject may have now.
    fn allowed_bytes(&self, subject: Subject) -> Option<u64> {
        let limits = self.limits_of(subject)?;
        least(limits.hard_bytes, limits.soft_bytes, self.standing(subject).bytes_expired)
    }

    fn allowed_files(&self, subject: Subject) -> Option<u64> {
        let limits = self.limits_of(subject)?;
        least(limits.hard_files, limits.soft_files, self.standing(subject).files_expired)
    }

    /// What an operation does. `checked`: it is refused where a limit would be exceeded.
    ///
    /// # Errors
    /// [`QuotaExceeded`].
    pub fn stage(
        &self,
        moves: &[Move],
        wishes: &[Wish],
        checked: bool,
    ) -> Result<LedgerChange, QuotaExceeded> {
        let mut change = LedgerChange::default();
        // By owner: bytes that are reserved more.
        let mut reserved = LedgerChange::default();
        for Move { ino, before, after, xattr_bytes } in moves {
            if self.counts(*ino) {
                if let Some((owner, bytes)) = before {
                    change.add(*owner, -i128::from(*bytes) - i128::from(xattr_bytes.0), -1);
                }
                if let Some((owner, bytes)) = after {
                    change.add(*owner, i128::from(*bytes) + i128::from(xattr_bytes.1), 1);
                }
            }
            let wished = wishes.iter().filter(|wish| wish.ino == *ino);
            let known = self.grants.get(ino).copied();
            if known.is_none() && wished.clone().next().is_none() {
                continue;
            }
            let grant_to = |end: u64| {
                let grant = |(owner, bytes)| Grant { end, owner, reserved_bytes: end.saturating_sub(bytes) };
                after.map(grant)
            };
            // What is granted now was checked when the grant was made.
            let kept = known.and_then(|grant| grant_to(grant.end));
            for (grant, sign) in [(known, -1), (kept, 1)] {
                if let Some(grant) = grant {
                    reserved.add(grant.owner, sign * i128::from(grant.reserved_bytes), 0);
                }
            }
            let end = wished.fold(known.map_or(0, |grant| grant.end), |end, wish| match wish.cuts {
                true => end.min(wish.end),
                false => end.max(wish.end),
            });
            change.grants.push((*ino, grant_to(end)));
        }
        change.owners.retain(|(_, bytes, files)| (*bytes, *files) != (0, 0));
        if checked && self.counting == Counting::Done {
            self.check(&change, &reserved)?;
        }
        Ok(change)
    }

    /// Whether the usage of an inode is part of what is counted so far.
    fn counts(&self, ino: u64) -> bool {
        match self.counting {
            Counting::Off => false,
            Counting::Below(below) => ino < below,
            Counting::Done => true,
        }
    }

    fn check(&self, change: &LedgerChange, reserved: &LedgerChange) -> Result<(), QuotaExceeded> {
        let mut more: Vec<(Subject, i128, i64)> = Vec::new();
        for (owner, bytes, files) in change.owners.iter().chain(&reserved.owners) {
            for subject in owner.subjects() {
                match more.iter_mut().find(|(known, ..)| *known == subject) {
                    Some((_, has_bytes, has_files)) => {
                        *has_bytes += bytes;
                        *has_files += files;
                    }
                    None => more.push((subject, *bytes, *files)),
                }
            }
        }
        for (subject, bytes, files) in more {
            let standing = self.standing(subject);
            let used = standing.used.bytes + standing.reserved_bytes;
            if bytes > 0
                && let Some(limit) = self.allowed_bytes(subject)
                && used.saturating_add_signed(bytes) > limit.into()
            {
                return Err(QuotaExceeded { subject, is_bytes: true, used: shown(used), limit });
            }
            let used = standing.used.files;
            if files > 0
                && let Some(limit) = self.allowed_files(subject)
                && used.saturating_add_signed(files) > limit
            {
                return Err(QuotaExceeded { subject, is_bytes: false, used, limit });
            }
        }
        Ok(())
    }

    /// Owners whose usage changes, and what it is then; `None`: nothing. While it is being counted none is stored.
    pub fn changed<'a>(
        &'a self,
        change: &'a LedgerChange,
    ) -> impl Iterator<Item = (Owner, Option<Sum>)> + 'a {
        let stored = self.counting == Counting::Done;
        change.owners.iter().filter(move |_| stored).map(|(owner, bytes, files)| {
            let used = self.owners.get(owner).copied().unwrap_or_default().plus(*bytes, *files);
            (*owner, (used != Sum::default()).then_some(used))
        })
    }

    /// The operation is committed.
    pub fn apply(&mut self, change: LedgerChange) {
        for (owner, bytes, files) in change.owners {
            self.change_used(owner, bytes, files);
        }
        for (ino, grant) in change.grants {
            self.set_grant(ino, grant);
        }
    }

    fn set_grant(&mut self, ino: u64, grant: Option<Grant>) {
        let before = match grant {
            Some(grant) => self.grants.insert(ino, grant),
            None => self.grants.remove(&ino),
        };
        for (grant, more) in [(before, false), (grant, true)] {
            let Some(Grant { owner, reserved_bytes, .. }) = grant else { continue };
            for subject in owner.subjects() {
                let standing = self.standings.entry(subject).or_default();
                standing.reserved_bytes = match more {
                    true => standing.reserved_bytes + u128::from(reserved_bytes),
                    false => standing.reserved_bytes.saturating_sub(reserved_bytes.into()),
                };
            }
        }
    }

    /// Nobody writes to the file any more.
    pub fn end_grant(&mut self, ino: u64) {
        self.set_grant(ino, None);
    }

    /// Files with a grant.
    pub fn granted(&self) -> Vec<u64> {
        self.grants.keys().copied().collect()
    }

    pub fn has_grant(&self, ino: u64) -> bool {
        self.grants.contains_key(&ino)
    }

    /// How far writers of a file of `file_bytes` bytes may extend it: at least to `end`, if that is given. `None`: as far as they like.
    ///
    /// # Errors
    /// [`QuotaExceeded`].
    pub fn bound(
        &self,
        ino: u64,
        owner: Owner,
        file_bytes: u64,
        end: Option<u64>,
    ) -> Result<Option<u64>, QuotaExceeded> {
        if self.is_off() || !self.is_limited(owner) {
            return Ok(None);
        }
        let mut left_bytes = u64::MAX;
        let mut tightest = None;
        if self.counting == Counting::Done {
            for subject in owner.subjects() {
                let Some(limit) = self.allowed_bytes(subject) else { continue };
                let standing = self.standing(subject);
                let used = shown(standing.used.bytes + standing.reserved_bytes);
                if limit.saturating_sub(used) < left_bytes {
                    left_bytes = limit.saturating_sub(used);
                    tightest = Some(QuotaExceeded { subject, is_bytes: true, used, limit });
                }
            }
        }
        let reached = self.grants.get(&ino).map_or(file_bytes, |grant| grant.end.max(file_bytes));
        let (wanted, ahead_bytes) = match end {
            Some(end) => {
                let more_bytes = end.saturating_sub(reached);
                if let Some(exceeded) = tightest.filter(|_| more_bytes > left_bytes) {
                    return Err(exceeded);
                }
                (end.max(reached), ((left_bytes - more_bytes) / AHEAD_PART).min(AHEAD_BYTES_MAX))
            }
            None => (reached, (left_bytes / OPEN_AHEAD_PART).min(OPEN_AHEAD_BYTES_MAX)),
        };
        let bound = bound_below(wanted.saturating_add(ahead_bytes).min(i64::MAX as u64));
        if bound >= wanted {
            return Ok(Some(bound));
        }
        // The end itself is between two bounds.
        let beyond = bound_reaching(wanted);
        match tightest {
            Some(exceeded) if beyond - reached > left_bytes => match end {
                Some(end) if end > reached => Err(exceeded),
                _ => Ok(Some(beyond)),
            },
            _ => Ok(Some(beyond)),
        }
    }

    /// Looks at the clock: since when is who over a soft limit, and for whom is the grace over? What is to be stored.
    pub fn tick(&mut self, now_s: u64) -> Vec<(Subject, LimitRecord)> {
        let mut changed = Vec::new();
        if self.counting != Counting::Done {
            return changed;
        }
        let subjects: Vec<_> = self.standings.keys().copied().collect();
        for subject in subjects {
            let limits = self.limits_of(subject).unwrap_or_default();
            let Some(standing) = self.standings.get_mut(&subject) else { continue };
            let since = |used: u128, soft: u64, since_s: u64| match soft > 0 && used > soft.into() {
                true if since_s == 0 => now_s,
                true => since_s,
                false => 0,
            };
            let over = OverSince {
                bytes_s: since(standing.used.bytes, limits.soft_bytes, standing.over.bytes_s),
                files_s: since(standing.used.files.into(), limits.soft_files, standing.over.files_s),
            };
            let expired =
                |since_s: u64| since_s > 0 && now_s >= since_s.saturating_add(limits.grace_s.into());
            (standing.bytes_expired, standing.files_expired) = (expired(over.bytes_s), expired(over.files_s));
            if over != standing.over {
                standing.over = over;
                changed.push((subject, LimitRecord { limits: standing.limits, over }));
            }
        }
        changed
    }
}

/// The limit that counts: the hard one, and the soft one where its grace is over.
fn least(hard: u64, soft: u64, expired: bool) -> Option<u64> {
    let soft = if expired { soft } else { 0 };
    [hard, soft].into_iter().filter(|limit| *limit != 0).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::EVERYONE;

    const ALICE: Owner = Owner { uid: 1, gid: 10, tree: 0 };
    const BOB: Owner = Owner { uid: 2, gid: 10, tree: 0 };

    fn limited(subject: Subject, limits: Limits) -> Ledger {
        let mut ledger = Ledger { counting: Counting::Done, ..Ledger::default() };
        ledger.set_limit(subject, LimitRecord { limits: Some(limits), ..LimitRecord::default() });
        ledger
    }

    fn bytes(hard_bytes: u64) -> Limits {
        Limits { hard_bytes, ..Limits::default() }
    }

    fn set(
        ledger: &mut Ledger,
        ino: u64,
        before: Option<(Owner, u64)>,
        after: Option<(Owner, u64)>,
    ) -> Result<(), QuotaExceeded> {
        let change = ledger.stage(&[Move { ino, before, after, xattr_bytes: (0, 0) }], &[], true)?;
        ledger.apply(change);
        Ok(())
    }

    fn grant(
        ledger: &mut Ledger,
        ino: u64,
        file_bytes: u64,
        end: Option<u64>,
    ) -> Result<Option<u64>, QuotaExceeded> {
        let bound = ledger.bound(ino, ALICE, file_bytes, end)?;
        if let Some(bound) = bound {
            let same = Some((ALICE, file_bytes));
            let change = ledger.stage(
                &[Move { ino, before: same, after: same, xattr_bytes: (0, 0) }],
                &[Wish { ino, end: bound, cuts: false }],
                false,
            )?;
            ledger.apply(change);
        }
        Ok(bound)
    }

    #[test]
    fn a_limit_of_a_group_counts_what_all_its_users_have() {
        let mut ledger = limited(Subject::Group(10), bytes(100));
        set(&mut ledger, 1, None, Some((ALICE, 60))).unwrap();
        let refused = set(&mut ledger, 2, None, Some((BOB, 60))).unwrap_err();
        assert_eq!(
            refused,
            QuotaExceeded { subject: Subject::Group(10), is_bytes: true, used: 60, limit: 100 }
        );
        set(&mut ledger, 2, None, Some((BOB, 40))).unwrap();
        // Less is always possible, and so is passing it on within the group.
        set(&mut ledger, 1, Some((ALICE, 60)), Some((BOB, 60))).unwrap();
        set(&mut ledger, 1, Some((BOB, 60)), Some((BOB, 50))).unwrap();
        assert_eq!(ledger.standing(Subject::User(2)).used, Sum { bytes: 90, files: 2 });
        assert_eq!(ledger.standing(Subject::User(1)).used, Sum::default());
    }

    #[test]
    fn own_limits_count_instead_of_those_of_everyone() {
        let mut ledger = limited(Subject::User(EVERYONE), bytes(10));
        set(&mut ledger, 1, None, Some((ALICE, 11))).unwrap_err();
        ledger.set_limit(
            Subject::User(1),
            LimitRecord { limits: Some(Limits::default()), ..LimitRecord::default() },
        );
        set(&mut ledger, 1, None, Some((ALICE, 11))).unwrap();
        set(&mut ledger, 2, None, Some((BOB, 11))).unwrap_err();
    }

    #[test]
    fn what_writers_may_extend_files_to_is_never_more_than_the_limit() {
        let mut ledger = limited(Subject::User(1), bytes(1 << 30));
        let mut ends = [0u64; 8];
        let mut refused = 0;
        for round in 0.. {
            let file = round % 8;
            let end = ends[file] + (1 << 20);
            match grant(&mut ledger, file as u64, 0, Some(end)) {
                Ok(bound) => ends[file] = bound.unwrap(),
                Err(_) => refused += 1,
            }
            assert!(ends.iter().sum::<u64>() <= 1 << 30);
            if refused == 8 {
                break;
            }
        }
        assert!(ends.iter().sum::<u64>() > (1 << 30) - (1 << 24), "most of it was given out: {ends:?}");
        assert_eq!(ledger.standing(Subject::User(1)).reserved_bytes, u128::from(ends.iter().sum::<u64>()));
        // The end of a grant that was not used gives it back.
        ledger.end_grant(3);
        grant(&mut ledger, 9, 0, Some(1 << 20)).unwrap();
    }

    #[test]
    fn a_grant_shrinks_as_the_file_grows_and_moves_with_its_owner() {
        let mut ledger = limited(Subject::User(1), bytes(1 << 30));
        let bound = grant(&mut ledger, 5, 0, Some(1 << 20)).unwrap().unwrap();
        set(&mut ledger, 5, Some((ALICE, 0)), Some((ALICE, 1 << 20))).unwrap();
        let standing = ledger.standing(Subject::User(1));
        assert_eq!((standing.used.bytes, standing.reserved_bytes), (1 << 20, u128::from(bound - (1 << 20))));
        set(&mut ledger, 5, Some((ALICE, 1 << 20)), Some((BOB, 1 << 20))).unwrap();
        assert_eq!(ledger.standing(Subject::User(1)).reserved_bytes, 0);
        assert_eq!(ledger.standing(Subject::User(2)).reserved_bytes, u128::from(bound - (1 << 20)));
        set(&mut ledger, 5, Some((BOB, 1 << 20)), None).unwrap();
        assert!(!ledger.has_grant(5) && ledger.standing(Subject::User(2)).reserved_bytes == 0);
    }

    #[test]
    fn who_is_over_the_limit_may_write_what_is_there() {
        let mut ledger = limited(Subject::User(1), bytes(100));
        ledger.add_used(ALICE, Sum { bytes: 1_000_001, files: 1 });
        assert!(ledger.bound(5, ALICE, 1_000_001, None).unwrap().unwrap() >= 1_000_001);
        assert!(ledger.bound(5, ALICE, 1_000_001, Some(1_000_001)).unwrap().unwrap() < 1_000_100);
        ledger.bound(5, ALICE, 1_000_001, Some(1_000_002)).unwrap_err();
        assert_eq!(ledger.bound(5, BOB, 0, Some(1 << 60)), Ok(None), "no limit is his");
    }

    #[test]
    fn a_soft_limit_becomes_hard_when_its_grace_is_over() {
        let limits = Limits { soft_bytes: 100, grace_s: 60, ..Limits::default() };
        let mut ledger = limited(Subject::User(1), limits);
        assert_eq!(ledger.tick(1000), []);
        set(&mut ledger, 1, None, Some((ALICE, 150))).unwrap();
        let over = OverSince { bytes_s: 1001, files_s: 0 };
        assert_eq!(ledger.tick(1001), [(Subject::User(1), LimitRecord { limits: Some(limits), over })]);
        assert_eq!(ledger.tick(1060), []);
        set(&mut ledger, 2, None, Some((ALICE, 1))).unwrap();
        assert_eq!(ledger.tick(1061), []);
        let refused = set(&mut ledger, 3, None, Some((ALICE, 1))).unwrap_err();
        assert_eq!((refused.used, refused.limit), (151, 100));
        ledger.bound(1, ALICE, 150, Some(151)).unwrap_err();
        // Below it again, and a new grace begins.
        set(&mut ledger, 1, Some((ALICE, 150)), None).unwrap();
        assert_eq!(ledger.tick(1062)[0].1.over, OverSince::default());
        set(&mut ledger, 3, None, Some((ALICE, 200))).unwrap();
    }

    #[test]
    fn sums_beyond_64_bits_exceed_limits_and_come_back() {
        const HUGE: u64 = i64::MAX as u64;
        let limits = Limits { soft_bytes: 100, hard_bytes: u64::MAX, grace_s: 60, ..Limits::default() };
        let mut ledger = limited(Subject::User(1), limits);
        for ino in 1..=2 {
            set(&mut ledger, ino, None, Some((ALICE, HUGE))).unwrap();
        }
        set(&mut ledger, 3, None, Some((ALICE, 2))).unwrap_err();
        // Root is not checked. The third file takes the sum beyond 2^64.
        for ino in 3..=4 {
            let file = Move { ino, before: None, after: Some((ALICE, HUGE)), xattr_bytes: (0, 0) };
            let change = ledger.stage(&[file], &[], false).unwrap();
            ledger.apply(change);
        }
        assert_eq!(ledger.tick(1000)[0].1.over.bytes_s, 1000, "a grace begins");
        assert_eq!(ledger.tick(1060), []);
        set(&mut ledger, 9, None, Some((ALICE, 1))).unwrap_err();
        ledger.bound(9, ALICE, 0, Some(1)).unwrap_err();
        for ino in 1..=4 {
            set(&mut ledger, ino, Some((ALICE, HUGE)), None).unwrap();
        }
        assert_eq!(ledger.standing(Subject::User(1)).used, Sum::default());
        // The same with what is promised to writers.
        let (file, ends) = (Some((ALICE, 0)), 1..=4);
        for ino in ends.clone() {
            let same = Move { ino, before: file, after: file, xattr_bytes: (0, 0) };
            let change = ledger.stage(&[same], &[Wish { ino, end: 1 << 63, cuts: false }], false).unwrap();
            ledger.apply(change);
        }
        assert_eq!(ledger.standing(Subject::User(1)).reserved_bytes, 1 << 65);
        set(&mut ledger, 9, None, Some((ALICE, 1))).unwrap_err();
        ends.for_each(|ino| ledger.end_grant(ino));
        assert_eq!(ledger.standing(Subject::User(1)).reserved_bytes, 0);
    }

    #[test]
    fn while_it_is_counted_only_what_the_cursor_has_passed_changes() {
        let mut ledger = limited(Subject::User(1), bytes(100));
        ledger.begin_count();
        ledger.counting = Counting::Below(50);
        ledger.add_used(ALICE, Sum { bytes: 70, files: 1 });
        set(&mut ledger, 49, Some((ALICE, 70)), Some((ALICE, 90))).unwrap();
        set(&mut ledger, 50, None, Some((ALICE, 1000))).unwrap();
        assert_eq!(ledger.standing(Subject::User(1)).used, Sum { bytes: 90, files: 1 });
        assert!(
            ledger.bound(7, ALICE, 0, Some(1 << 40)).unwrap().is_some(),
            "a writer is bound from the beginning"
        );
    }
}
