//! Who has which file open: in memory only, as sessions tell it again after a restart (`Op::reopen`). Beside them what was removed a
//! moment ago (`lately.rs`).

use crate::caller::SessionId;
use crate::lately::LatelyRemoved;
use crate::open_counter::CounterId;
use crate::quota::QuotaEffect;
use crate::replies::StoredReply;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, HashMap};

/// Small files that are known to be promised to nobody.
const UNSYNCED_MAX: usize = 64 * 1024;

/// What one session holds of one file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handles {
    pub readers: u32,
    pub writers: u32,
    pub truncations: u32,
}

impl Handles {
    fn is_empty(self) -> bool {
        self == Handles::default()
    }

    /// How many of any kind.
    pub fn holders(self) -> u32 {
        self.opens() + self.truncations
    }

    /// How many to read or to write.
    pub fn opens(self) -> u32 {
        self.readers + self.writers
    }

    fn count(&mut self, hold: Hold) -> &mut u32 {
        match hold {
            Hold::Read => &mut self.readers,
            Hold::Write => &mut self.writers,
            Hold::Truncate => &mut self.truncations,
        }
    }
}

/// The ways to hold a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    Read,
    Write,
    Truncate,
}

/// One file with holders.
#[derive(Debug, Default)]
pub(crate) struct OpenFile {
    pub total: Handles,
    /// By session.
    held: Vec<(SessionId, Handles)>,
    /// What the writers report does not suffice to know the size once the last one closes.
    pub unclean: bool,
    /// Two truncations ran at once: neither's result is certain.
    pub overlapped: bool,
}

impl OpenFile {
    pub fn held_by(&self, session: SessionId) -> Handles {
        self.place_of(session).map_or(Handles::default(), |at| self.held[at].1)
    }

    /// Where the session's handles are, or belong.
    fn place_of(&self, session: SessionId) -> Result<usize, usize> {
        self.held.binary_search_by_key(&session, |(holder, _)| *holder)
    }

    /// How many handles of any kind exist.
    pub fn holders(&self) -> u32 {
        self.total.holders()
    }
}

/// What of a file is held, by everybody and by one session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holding {
    pub total: Handles,
    pub held: Handles,
    /// As [`OpenFile::unclean`].
    pub unclean: bool,
}

impl Holding {
    /// Goes on to what it is after `effect`, one of the file's; `by`: whose `held` is.
    fn after(&mut self, effect: &Effect, by: SessionId) {
        match effect {
            Effect::Take { session, hold, .. } => {
                *self.total.count(*hold) += 1;
                *self.held.count(*hold) += u32::from(*session == by);
            }
            Effect::Release { session, hold, .. } => {
                *self.total.count(*hold) -= 1;
                *self.held.count(*hold) -= u32::from(*session == by);
                self.unclean &= self.total.writers > 0;
            }
            Effect::SetUnclean { unclean, .. } => self.unclean = *unclean,
            Effect::SessionGone { .. }
            | Effect::SetTail { .. }
            | Effect::SetCounter { .. }
            | Effect::Keep { .. }
            | Effect::LetGo { .. }
            | Effect::Spread { .. }
            | Effect::FirstBytes { .. }
            | Effect::RemoveData
            | Effect::Quota(_) => {}
        }
    }
}

/// A change of the opens, applied once the operation it belongs to has committed. `Keep` and `LetGo`: for a moment, without its last name.
#[derive(Debug)]
pub(crate) enum Effect {
    Take {
        ino: u64,
        session: SessionId,
        hold: Hold,
    },
    Release {
        ino: u64,
        session: SessionId,
        hold: Hold,
    },
    SetUnclean {
        ino: u64,
        unclean: bool,
    },
    SessionGone {
        session: SessionId,
    },
    SetTail {
        ino: u64,
        tail: Option<u64>,
    },
    SetCounter {
        id: CounterId,
        value: Option<u64>,
    },
    Keep {
        ino: u64,
        bytes: u64,
    },
    LetGo {
        ino: u64,
    },
    /// The bytes of a small file go to its data file, or have got there.
    Spread {
        ino: u64,
        begins: bool,
    },
    /// A small file that had no bytes has some.
    FirstBytes {
        ino: u64,
    },
    /// An inode that has data is gone.
    RemoveData,
    /// A change of the ledger (`ledger.rs`), which has it instead.
    Quota(QuotaEffect),
}

impl Effect {
    /// Which file's handles it changes.
    fn concerns(&self) -> Option<u64> {
        match self {
            Effect::Take { ino, .. } | Effect::Release { ino, .. } | Effect::SetUnclean { ino, .. } => {
                Some(*ino)
            }
            Effect::SessionGone { .. }
            | Effect::SetTail { .. }
            | Effect::SetCounter { .. }
            | Effect::Keep { .. }
            | Effect::LetGo { .. }
            | Effect::Spread { .. }
            | Effect::FirstBytes { .. }
            | Effect::RemoveData
            | Effect::Quota(_) => None,
        }
    }
}

/// One session: its open files and the last reply per slot.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub files: FxHashSet<u64>,
    pub replies: FxHashMap<u16, StoredReply>,
}

/// What operations leave to the remover of data files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ToRemove {
    /// No data.
    #[default]
    Nothing,
    /// Data of inodes that are kept for a moment.
    Later,
    /// Data of inodes that are gone.
    Now,
}

#[derive(Debug, Default)]
pub(crate) struct Opens {
    files: FxHashMap<u64, OpenFile>,
    pub sessions: HashMap<SessionId, Session>,
    /// Ends of the places given out for appends (`ops/append.rs`).
    pub tails: FxHashMap<u64, u64>,
    /// Counters that are not 0, or were once (`ops/counter.rs`).
    pub counters: BTreeMap<CounterId, u64>,
    pub lately_removed: LatelyRemoved,
    /// Small files whose bytes are on their way to a data file (`ops/small.rs`).
    pub spreading: FxHashSet<u64>,
    /// Small files all of whose bytes came after the last sync, which is always of everything: nobody was told that they are
    /// durable. At most `UNSYNCED_MAX`.
    pub unsynced: FxHashSet<u64>,
    /// What the remover of data files does not know of yet.
    pub to_remove: ToRemove,
}

impl Opens {
    /// Nothing is open; these tails and counters are left from before.
    pub fn with_stored(tails: FxHashMap<u64, u64>, counters: BTreeMap<CounterId, u64>) -> Opens {
        Opens { tails, counters, ..Opens::default() }
    }

    pub fn file(&self, ino: u64) -> Option<&OpenFile> {
        self.files.get(&ino)
    }

    /// What of a file is held once `staged` is applied; `None` where nobody has it open now.
    pub fn holding(&self, ino: u64, session: SessionId, staged: &[Effect]) -> Option<Holding> {
        let file = self.file(ino)?;
        let mut holding = Holding { total: file.total, held: file.held_by(session), unclean: file.unclean };
        let own = staged.iter().filter(|effect| effect.concerns() == Some(ino));
        own.for_each(|effect| holding.after(effect, session));
        Some(holding)
    }

    /// Whether an inode without a name has to stay: it is open, or was removed a moment ago.
    pub fn is_held(&self, ino: u64) -> bool {
        self.files.contains_key(&ino) || self.lately_removed.contains(ino)
    }

    /// Whether the session has it open, to read or to write.
    pub fn is_opened_by(&self, ino: u64, session: SessionId) -> bool {
        self.file(ino).is_some_and(|file| file.held_by(session).opens() > 0)
    }

    pub fn has_writers(&self, ino: u64) -> bool {
        self.file(ino).is_some_and(|file| file.total.writers > 0)
    }

    pub fn files_of(&self, session: SessionId) -> Vec<u64> {
        self.sessions.get(&session).map(|session| session.files.iter().copied().collect()).unwrap_or_default()
    }

    /// Files open and sessions known.
    pub fn counts(&self) -> (usize, usize) {
        (self.files.len(), self.sessions.len())
    }

    pub fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Take { ino, session, hold } => self.take(ino, session, hold),
            Effect::Release { ino, session, hold } => self.release(ino, session, hold, 1),
            Effect::SetUnclean { ino, unclean } => {
                if let Some(file) = self.files.get_mut(&ino) {
                    file.unclean = unclean;
                }
            }
            Effect::SessionGone { session } => {
                for ino in self.files_of(session) {
                    let held = self.file(ino).map(|file| file.held_by(session)).unwrap_or_default();
                    self.release(ino, session, Hold::Read, held.readers);
                    self.release(ino, session, Hold::Write, held.writers);
                    self.release(ino, session, Hold::Truncate, held.truncations);
                }
                self.sessions.remove(&session);
            }
            Effect::SetTail { ino, tail } => match tail {
                Some(tail) => drop(self.tails.insert(ino, tail)),
                None => drop(self.tails.remove(&ino)),
            },
            Effect::SetCounter { id, value } => match value {
                Some(value) => drop(self.counters.insert(id, value)),
                None => drop(self.counters.remove(&id)),
            },
            Effect::Keep { ino, bytes } => {
                self.lately_removed.add(ino, bytes);
                self.to_remove = self.to_remove.max(ToRemove::Later);
            }
            Effect::LetGo { ino } => self.lately_removed.let_go(ino),
            Effect::RemoveData => self.to_remove = ToRemove::Now,
            Effect::Quota(_) => {}
            Effect::Spread { ino, begins: true } => drop(self.spreading.insert(ino)),
            Effect::Spread { ino, begins: false } => {
                self.spreading.remove(&ino);
                self.unsynced.remove(&ino);
            }
            Effect::FirstBytes { ino } => {
                // Of those that are forgotten it is taken that they are promised.
                if self.unsynced.len() >= UNSYNCED_MAX {
                    self.unsynced.clear();
                }
                self.unsynced.insert(ino);
            }
        }
    }

    fn take(&mut self, ino: u64, session: SessionId, hold: Hold) {
        let file = self.files.entry(ino).or_default();
        *file.total.count(hold) += 1;
        let at = file.place_of(session).unwrap_or_else(|at| {
            file.held.insert(at, (session, Handles::default()));
            at
        });
        *file.held[at].1.count(hold) += 1;
        file.overlapped |= file.total.truncations > 1;
        self.sessions.entry(session).or_default().files.insert(ino);
    }

    fn release(&mut self, ino: u64, session: SessionId, hold: Hold, handles: u32) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let Ok(at) = file.place_of(session) else { return };
        let own = &mut file.held[at].1;
        let released = handles.min(*own.count(hold));
        *own.count(hold) -= released;
        *file.total.count(hold) -= released;
        if file.total.truncations == 0 {
            file.overlapped = false;
        }
        if file.total.writers == 0 {
            file.unclean = false;
        }
        if own.is_empty() {
            file.held.remove(at);
            if let Some(session) = self.sessions.get_mut(&session) {
                session.files.remove(&ino);
            }
        }
        if file.held.is_empty() {
            self.files.remove(&ino);
        }
    }
}
