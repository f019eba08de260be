//! What follows from what an I/O server says of its storage, and when names may be served: pure, without I/O or a clock.
//!
//! ```text
//!   what it says                                    what follows
//!   its data belong to other metadata               refused; a store that has no I/O server yet ends itself
//!   it knows a greater mark of this store           this store is an older copy: the metadata server ends
//!   it knows a mark of this store by a run that
//!     this store never had                          refused: all was put back from copies, and one of the two later once more
//!   its storage is not the one noted                refused, until an operator has said `weft server replace`
//!   its mark is smaller than the one noted,
//!     or the same by another run                    refused: an older copy, or a second one
//!   its storage is in use by another run            asked to try again
//!   else                                            noted, durably, then confirmed
//! ```

use weft_meta::{OwnStorage, ServerRecord};
use weft_wire::keys::id_text;
use weft_wire::messages::RegisterRequest;

pub(super) const NOBODY: [u8; 16] = [0; 16];

/// What becomes of a server that says which storage it has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is as noted.
    Known,
    /// It is the one that is noted, in a later run.
    Later,
    /// It is taken for what this server has from now on.
    Adopted,
    /// Another run has the storage at the moment.
    InUse,
    Refused(String),
    /// This store is not the newest.
    OwnIsOlder(String),
    /// It knows of a history that an operator has given up for this store.
    GivenUp,
}

/// What else counts when a server is judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances {
    /// Another connection has its storage at the moment.
    pub in_use: bool,
    /// The mark that it knows of this store was written by a run of this store's history, as far as is known.
    pub is_of_this_history: bool,
    /// An operator has said that this store goes on, whatever came after it.
    pub restoring: bool,
}

/// How far a store is that was just opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More I/O servers must come.
    Waits,
    /// They have agreed: the mark is to be counted up.
    Agreed,
    /// They know this run: names are served.
    Noted,
}

/// How many I/O servers the store knows, how many of these have agreed, and how many of these know this run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub known: usize,
    pub agreed: usize,
    pub knowing: usize,
}

impl Round {
    /// What follows. `waited`: since the store was opened, long enough for the rest; `told`: the mark is this run's, and it was
    /// waited long enough since.
    pub fn progress(self, waited: bool, told: Option<bool>) -> Progress {
        let Round { known, agreed, knowing } = self;
        match told {
            // There is nobody yet who could know anything.
            None if known == 0 => Progress::Noted,
            _ if agreed < known && (agreed == 0 || !waited) => Progress::Waits,
            None => Progress::Agreed,
            Some(waited) if knowing == agreed || knowing > 0 && waited => Progress::Noted,
            Some(_) => Progress::Waits,
        }
    }
}

pub(super) fn short(id: &[u8; 16]) -> String {
    id_text(id)[..8].to_string()
}

pub(super) fn seen(request: &RegisterRequest) -> OwnStorage {
    OwnStorage { storage: request.storage, mark: request.mark, run: request.run }
}

/// Compares what a server says with what is noted.
pub(super) fn judge(
    own: &OwnStorage,
    noted: Option<&ServerRecord>,
    asked: &RegisterRequest,
    circumstances: Circumstances,
) -> Verdict {
    if asked.meta_storage != NOBODY && asked.meta_storage != own.storage {
        return Verdict::Refused(format!(
            "its data belong to the metadata storage {}, and this metadata server has {}: check the directories of both in the \
             cluster file, and that their disks are mounted",
            short(&asked.meta_storage),
            short(&own.storage)
        ));
    }
    let is_newer = asked.meta_mark > own.mark || (asked.meta_mark == own.mark && asked.meta_run != own.run);
    let is_other = asked.meta_storage == own.storage && !circumstances.is_of_this_history;
    if circumstances.restoring && (is_other || asked.meta_storage == own.storage && is_newer) {
        // What this store knows of a server may be of before its storage was replaced. The same storage does not go back.
        let copy = noted.filter(|noted| !noted.expected && is_older(asked, &noted.seen));
        return match copy {
            Some(noted) => Verdict::Refused(is_a_copy(asked.mark, noted.seen.mark)),
            None if circumstances.in_use => Verdict::InUse,
            None => Verdict::GivenUp,
        };
    }
    if asked.meta_storage == own.storage && is_newer {
        return Verdict::OwnIsOlder(format!(
            "has seen this metadata storage at mark {}, and here it is at {}",
            asked.meta_mark, own.mark
        ));
    }
    if is_other {
        return Verdict::Refused(format!(
            "it last met a run of the metadata server ({}) that the directory of the metadata server knows nothing of: all \
             directories were put back from copies, and this one, or that of the metadata server, later once more. Put those \
             back that belong together",
            short(&asked.meta_run)
        ));
    }
    let Some(noted) = noted else { return Verdict::Adopted };
    if noted.seen.storage != asked.storage {
        return if noted.expected {
            Verdict::Adopted
        } else {
            Verdict::Refused(format!(
                "it has the storage {}, and the cluster knows {} of it: check its directory in the cluster file, and that its \
                 disk is mounted. If the old storage is gone for ever: weft server replace",
                short(&asked.storage),
                short(&noted.seen.storage)
            ))
        };
    }
    if !is_older(asked, &noted.seen) {
        return match circumstances.in_use {
            true => Verdict::InUse,
            false if asked.mark > noted.seen.mark => Verdict::Later,
            false => Verdict::Known,
        };
    }
    if noted.expected {
        return Verdict::Adopted;
    }
    Verdict::Refused(is_a_copy(asked.mark, noted.seen.mark))
}

/// Whether it is the same storage as it was before, or a second one of it.
fn is_older(asked: &RegisterRequest, seen: &OwnStorage) -> bool {
    let is_as_seen = asked.mark == seen.mark && asked.run == seen.run;
    asked.storage == seen.storage && asked.mark <= seen.mark && !is_as_seen
}

fn is_a_copy(mark: u64, known: u64) -> String {
    format!(
        "its storage is a copy: it is at mark {mark}, and the cluster has seen it at {known}, so what was written since is not in \
         it. Put the newest back. If that is gone for ever: weft server replace"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const OWN: OwnStorage = OwnStorage { storage: [1; 16], mark: 10, run: [2; 16] };
    const THEIRS: OwnStorage = OwnStorage { storage: [3; 16], mark: 20, run: [4; 16] };

    fn noted() -> ServerRecord {
        let name = "io0".into();
        ServerRecord { name, seen: THEIRS, lost_below_ino: 0, vouched_below_ino: 0, expected: false }
    }

    fn asked(theirs: OwnStorage, own: OwnStorage) -> RegisterRequest {
        RegisterRequest {
            id: 0,
            storage: theirs.storage,
            mark: theirs.mark,
            run: theirs.run,
            meta_storage: own.storage,
            meta_mark: own.mark,
            meta_run: own.run,
            endpoints: Vec::new(),
            map_version: 0,
        }
    }

    const USUAL: Circumstances = Circumstances { in_use: false, is_of_this_history: true, restoring: false };
    const IN_USE: Circumstances = Circumstances { in_use: true, ..USUAL };

    fn verdict(theirs: OwnStorage, own: OwnStorage) -> Verdict {
        judge(&OWN, Some(&noted()), &asked(theirs, own), USUAL)
    }

    #[test]
    fn a_server_is_taken_as_it_was_or_later() {
        assert_eq!(verdict(THEIRS, OWN), Verdict::Known);
        let later = OwnStorage { mark: 21, run: [9; 16], ..THEIRS };
        assert_eq!(verdict(later, OWN), Verdict::Later);
        assert_eq!(verdict(later, OwnStorage { mark: 9, run: [8; 16], ..OWN }), Verdict::Later);
        assert_eq!(
            verdict(THEIRS, OwnStorage::default()),
            Verdict::Known,
            "it has met no metadata server yet"
        );
        assert_eq!(judge(&OWN, Some(&noted()), &asked(later, OWN), IN_USE), Verdict::InUse);
        assert_eq!(judge(&OWN, Some(&noted()), &asked(THEIRS, OWN), IN_USE), Verdict::InUse);
        assert_eq!(judge(&OWN, None, &asked(later, OWN), USUAL), Verdict::Adopted);
    }

    #[test]
    fn copies_and_other_storages_are_refused() {
        for theirs in [
            OwnStorage { mark: 19, ..THEIRS },
            OwnStorage { mark: 19, run: [9; 16], ..THEIRS },
            OwnStorage { run: [9; 16], ..THEIRS },
            OwnStorage { storage: [5; 16], mark: 1000, run: [9; 16] },
        ] {
            assert!(matches!(verdict(theirs, OWN), Verdict::Refused(_)), "{theirs:?}");
            let expected = ServerRecord { expected: true, ..noted() };
            assert_eq!(
                judge(&OWN, Some(&expected), &asked(theirs, OWN), USUAL),
                Verdict::Adopted,
                "{theirs:?}"
            );
        }
        let expected = ServerRecord { expected: true, ..noted() };
        assert_eq!(
            judge(&OWN, Some(&expected), &asked(THEIRS, OWN), USUAL),
            Verdict::Known,
            "the old one came back"
        );
    }

    #[test]
    fn a_store_that_is_older_than_a_server_knows_is_told_so() {
        for own in [OwnStorage { mark: 11, ..OWN }, OwnStorage { run: [9; 16], ..OWN }] {
            assert!(matches!(verdict(THEIRS, own), Verdict::OwnIsOlder(_)), "{own:?}");
        }
        let other = OwnStorage { storage: [9; 16], mark: 1, run: [0; 16] };
        assert!(matches!(verdict(THEIRS, other), Verdict::Refused(_)));
        assert!(matches!(judge(&OWN, None, &asked(THEIRS, other), USUAL), Verdict::Refused(_)));
    }

    #[test]
    fn a_server_of_another_history_is_refused_also_where_a_new_storage_is_expected() {
        let other = Circumstances { is_of_this_history: false, ..USUAL };
        let later = OwnStorage { mark: 21, run: [9; 16], ..THEIRS };
        let knows = OwnStorage { mark: 9, run: [8; 16], ..OWN };
        let expected = ServerRecord { expected: true, ..noted() };
        for noted in [Some(&noted()), Some(&expected), None] {
            let verdict = judge(&OWN, noted, &asked(later, knows), other);
            assert!(matches!(verdict, Verdict::Refused(_)), "{verdict:?}");
        }
        let stranger = asked(later, OwnStorage::default());
        assert_eq!(judge(&OWN, Some(&noted()), &stranger, other), Verdict::Later, "it has met nobody yet");
    }

    #[test]
    fn a_store_that_an_operator_goes_on_with_gives_up_what_came_after_it() {
        let restoring = Circumstances { restoring: true, ..USUAL };
        let newer = OwnStorage { mark: 11, run: [8; 16], ..OWN };
        let elsewhere = OwnStorage { storage: [5; 16], mark: 3, run: [9; 16] };
        for theirs in [THEIRS, elsewhere] {
            assert_eq!(judge(&OWN, Some(&noted()), &asked(theirs, newer), restoring), Verdict::GivenUp);
            let other = Circumstances { is_of_this_history: false, ..restoring };
            assert_eq!(judge(&OWN, Some(&noted()), &asked(theirs, OWN), other), Verdict::GivenUp);
            if theirs == THEIRS {
                let copy = OwnStorage { mark: THEIRS.mark - 1, ..THEIRS };
                let verdict = judge(&OWN, Some(&noted()), &asked(copy, newer), restoring);
                assert!(matches!(verdict, Verdict::Refused(_)), "{verdict:?}");
            }
            let twice = Circumstances { in_use: true, ..restoring };
            assert_eq!(judge(&OWN, Some(&noted()), &asked(theirs, newer), twice), Verdict::InUse);
        }
        let swapped = judge(&OWN, Some(&noted()), &asked(elsewhere, OWN), restoring);
        assert!(matches!(swapped, Verdict::Refused(_)), "{swapped:?}");
    }

    #[test]
    fn names_are_served_when_who_has_agreed_knows_the_run() {
        use Progress::*;
        let round = |agreed, knowing| Round { known: 3, agreed, knowing };
        for (round, waited, told, progress) in [
            (Round { known: 0, agreed: 0, knowing: 0 }, false, None, Noted),
            (round(0, 0), true, None, Waits),
            (round(2, 0), false, None, Waits),
            (round(2, 0), true, None, Agreed),
            (round(3, 0), false, None, Agreed),
            (round(3, 0), true, Some(true), Waits),
            (round(3, 2), true, Some(false), Waits),
            (round(3, 2), true, Some(true), Noted),
            (round(2, 2), true, Some(false), Noted),
            (round(3, 3), false, Some(false), Noted),
            (round(2, 2), false, Some(true), Waits),
        ] {
            assert_eq!(round.progress(waited, told), progress, "{round:?}, {waited}, {told:?}");
        }
    }

    /// A metadata server and an I/O server, one of which has its directory copied and put back in any order with all else;
    /// of some, also both together, so that what comes back later may be of another history.
    #[derive(Default)]
    struct World {
        meta: Meta,
        io: Io,
        meta_copies: Vec<Meta>,
        io_copies: Vec<Io>,
        /// Copies of both, made together.
        whole_copies: Vec<(Meta, Io)>,
        meta_runs: bool,
        /// The run of the metadata server, whether its store's mark is this run's, and whether it serves names.
        meta_run: [u8; 16],
        meta_told: bool,
        meta_confirmed: bool,
        /// The I/O server's directory was put back since the metadata server began.
        io_is_another: bool,
        io_runs: bool,
        io_confirmed: bool,
        runs: u64,
        /// Changes of either, in all histories.
        changes: u64,
        refused: u64,
        served: u64,
    }

    #[derive(Clone, Default)]
    struct Meta {
        own: OwnStorage,
        noted: Option<ServerRecord>,
        /// First marks of its runs.
        runs: BTreeMap<u64, [u8; 16]>,
        /// For the test alone: all changes of names in its history, and the last one of data that it saw itself.
        changes: Vec<u64>,
        last_of_data: u64,
    }

    impl Meta {
        fn raise_mark(&mut self, run: [u8; 16]) {
            self.own = OwnStorage { mark: self.own.mark + 1, run, ..OWN };
            if self.runs.values().next_back() != Some(&run) {
                self.runs.insert(self.own.mark, run);
            }
        }

        fn may_have_had(&self, mark: u64, run: [u8; 16]) -> bool {
            let of_mark = self.runs.range(..=mark).next_back();
            mark > self.own.mark || of_mark.is_none_or(|(_, of_mark)| *of_mark == run)
        }
    }

    #[derive(Clone, Default)]
    struct Io {
        theirs: OwnStorage,
        knows: OwnStorage,
        run: [u8; 16],
        /// For the test alone: all changes of its data, the run of the metadata server that knew of the last one, and the last
        /// change of names that it heard of.
        changes: Vec<u64>,
        changed_under: [u8; 16],
        last_of_names: u64,
        /// The last run that changed names while this directory was here, whether or not it was told of that.
        names_under: [u8; 16],
    }

    impl World {
        fn new() -> World {
            let mut world = World::default();
            world.meta.own.storage = OWN.storage;
            world.io.theirs.storage = THEIRS.storage;
            world
        }

        fn new_run(&mut self) -> [u8; 16] {
            self.runs += 1;
            u128::from(self.runs).to_be_bytes()
        }

        /// Calls of the I/O server until it serves and the names do, as `Member::register` and `MetaPart::register` do it. The
        /// reply that comes after `delivered` others is lost.
        fn register(&mut self, delivered: usize) {
            if !self.meta_runs || !self.io_runs {
                return;
            }
            let request = asked(self.io.theirs, self.io.knows);
            let is_of_this_history = self.meta.may_have_had(request.meta_mark, request.meta_run);
            let circumstances = Circumstances { is_of_this_history, ..USUAL };
            match judge(&self.meta.own, self.meta.noted.as_ref(), &request, circumstances) {
                Verdict::Known => {}
                Verdict::Later | Verdict::Adopted => {
                    self.meta.noted = Some(ServerRecord { seen: seen(&request), ..noted() });
                }
                Verdict::InUse | Verdict::GivenUp => return,
                Verdict::Refused(_) => {
                    self.refused += 1;
                    (self.io_runs, self.io_confirmed) = (false, false);
                    return;
                }
                Verdict::OwnIsOlder(_) => {
                    self.refused += 1;
                    (self.meta_runs, self.meta_confirmed) = (false, false);
                    return;
                }
            }
            let knowing = usize::from(request.meta_run == self.meta_run);
            let progress =
                Round { known: 1, agreed: 1, knowing }.progress(false, self.meta_told.then_some(false));
            self.meta_confirmed |= progress == Progress::Noted;
            if !self.meta_told && progress != Progress::Waits {
                self.meta_told = true;
                self.meta.raise_mark(self.meta_run);
            }
            let Some(delivered) = delivered.checked_sub(1) else { return };
            self.io.knows = self.meta.own;
            if self.io.theirs.run != self.io.run {
                self.io.theirs = OwnStorage { mark: self.io.theirs.mark + 1, run: self.io.run, ..THEIRS };
                return self.register(delivered);
            }
            self.io_confirmed = true;
            if !self.meta_confirmed {
                return self.register(delivered);
            }
            let last = self.io.last_of_names;
            assert!(last == 0 || self.meta.changes.contains(&last), "names of before, or others, are served");
            let under = self.io.names_under;
            let has_run = under == NOBODY || self.meta.runs.values().any(|run| *run == under);
            assert!(has_run, "names of before a run that changed some are served");
            let last = self.meta.last_of_data;
            assert!(last == 0 || self.io.changes.contains(&last), "data of before is served");
            let under = self.io.changed_under;
            let is_its_own = self.io.changes.is_empty() || self.meta.runs.values().any(|run| *run == under);
            assert!(is_its_own, "data of another history is served");
            self.served += 1;
        }

        fn step(&mut self, choice: u64, which: usize, copied: usize) {
            match choice {
                0 | 1 if !self.io_runs => {
                    self.io_runs = true;
                    self.io.run = self.new_run();
                }
                2 | 3 if !self.meta_runs => {
                    (self.meta_runs, self.meta_told, self.meta_confirmed) = (true, false, false);
                    (self.meta_run, self.io_is_another) = (self.new_run(), false);
                }
                4 if self.io_runs => {
                    // In order, once it has begun; else nothing is counted.
                    if self.io.theirs.run == self.io.run {
                        self.io.theirs.mark += 1;
                    }
                    (self.io_runs, self.io_confirmed) = (false, false);
                }
                5 => (self.io_runs, self.io_confirmed) = (false, false),
                6 => (self.meta_runs, self.meta_confirmed) = (false, false),
                // A change is told at once: for what was changed in the last seconds before a kill, or while the other one was
                // away, nothing is promised.
                7 | 8 if self.io_confirmed && self.meta_confirmed => {
                    self.changes += 1;
                    (self.meta.last_of_data, self.io.changed_under) = (self.changes, self.meta.own.run);
                    self.io.changes.push(self.changes);
                    self.io.theirs.mark += 1;
                    self.register(usize::MAX);
                }
                9 | 10 if self.meta_confirmed && self.io_confirmed => {
                    self.changes += 1;
                    self.meta.changes.push(self.changes);
                    self.io.last_of_names = self.changes;
                    let run = self.meta.own.run;
                    self.meta.raise_mark(run);
                    self.register(usize::MAX);
                }
                11 => self.io_copies.push(self.io.clone()),
                12 => self.meta_copies.push(self.meta.clone()),
                13 if matches!(copied, 0 | 2) && !self.io_runs && !self.io_copies.is_empty() => {
                    // What is replaced may come back, too.
                    let at = which % self.io_copies.len();
                    std::mem::swap(&mut self.io, &mut self.io_copies[at]);
                    self.io_is_another = true;
                }
                14 if matches!(copied, 1 | 3) && !self.meta_runs && !self.meta_copies.is_empty() => {
                    let at = which % self.meta_copies.len();
                    std::mem::swap(&mut self.meta, &mut self.meta_copies[at]);
                }
                15 if copied >= 2 && !self.meta_runs && !self.io_runs => {
                    self.whole_copies.push((self.meta.clone(), self.io.clone()));
                }
                16 if copied >= 2 && !self.meta_runs && !self.io_runs && !self.whole_copies.is_empty() => {
                    let (meta, io) = self.whole_copies[which % self.whole_copies.len()].clone();
                    // What goes on from here is another history; what is given up may come back, one at a time.
                    self.meta_copies.push(std::mem::replace(&mut self.meta, meta));
                    self.io_copies.push(std::mem::replace(&mut self.io, io));
                }
                // A run that ends in its first moments, and has changed names if it could.
                17 | 18 => {
                    self.register(which % 4);
                    if self.meta_confirmed && !self.io_is_another {
                        self.io.names_under = self.meta_run;
                    }
                    (self.meta_runs, self.meta_confirmed) = (false, false);
                }
                _ => self.register(usize::MAX),
            }
        }
    }

    #[test]
    fn whatever_is_copied_and_put_back_only_the_newest_serves() {
        let (mut refused, mut served) = (0, 0);
        for seed in weft_test_random::seeds().take(48_000) {
            let mut world = World::new();
            let mut state = seed;
            for _ in 0..80 {
                // Knuth's multiplicative generator; the upper bits are the random ones.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                world.step((state >> 33) % 22, (state >> 45) as usize, seed as usize % 4);
            }
            refused += world.refused;
            served += world.served;
        }
        assert!(refused > 10_000 && served > 400_000, "{refused} refused, {served} served");
    }
}
