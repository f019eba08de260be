//! The counter of an open file: whose it is, and how it changes.

use crate::caller::SessionId;
use std::ops::RangeInclusive;

/// The greatest value: a position in a file, or a number of something in it.
pub const COUNTER_MAX: u64 = i64::MAX as u64;

/// The open that a counter belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterId {
    /// The file.
    pub ino: u64,
    /// Who has it open.
    pub session: SessionId,
    /// The number of the open in its session.
    pub number: u64,
}

impl CounterId {
    /// All counters of a file.
    pub(crate) fn all_of(ino: u64) -> RangeInclusive<CounterId> {
        let [first, last] = [0, u8::MAX].map(|byte| SessionId([byte; 16]));
        CounterId { ino, session: first, number: 0 }..=CounterId { ino, session: last, number: u64::MAX }
    }

    /// Those of one session.
    pub(crate) fn all_by(ino: u64, session: SessionId) -> RangeInclusive<CounterId> {
        CounterId { ino, session, number: 0 }..=CounterId { ino, session, number: u64::MAX }
    }
}

/// How a counter changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterChange {
    /// By so much.
    Add(i64),
    /// To this value.
    Set(u64),
}

impl CounterChange {
    /// What a counter of `before` is afterwards; `None` outside of 0 to [`COUNTER_MAX`].
    pub(crate) fn after(self, before: u64) -> Option<u64> {
        let after = match self {
            CounterChange::Add(add) => before.checked_add_signed(add),
            CounterChange::Set(value) => Some(value),
        };
        after.filter(|after| *after <= COUNTER_MAX)
    }
}

impl std::fmt::Display for CounterChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CounterChange::Add(add) => write!(f, "adding {add}"),
            CounterChange::Set(value) => write!(f, "setting it to {value}"),
        }
    }
}
