//! What has happened to watched memory, in order.

use super::kernel;
use crate::registration::group::PageRange;

/// Changes that the log holds; a cache that is further behind drops everything.
const LOG_CHANGES: usize = 4096;

/// What has happened to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The pages that were there are not any more.
    Unmapped(PageRange),
    /// The pages that are there were given back, or are just about to be.
    Emptied(PageRange),
    /// So much that it is not known.
    Unknown,
}

#[derive(Clone, Copy)]
pub enum Record {
    Change(Change),
    /// Watched memory is there now, for nobody.
    Moved(PageRange),
}

/// What was read, in order; number n lies at n modulo the length. Nothing here allocates.
pub struct Log {
    records: Box<[Record; LOG_CHANGES]>,
    pub next: u64,
    /// The teller is asked to look at what is watched and was left.
    pub is_left: bool,
}

impl Log {
    pub fn new() -> Log {
        let records = Box::new([Record::Change(Change::Unknown); LOG_CHANGES]);
        Log { records, next: 0, is_left: false }
    }

    pub fn push(&mut self, record: Record) {
        self.records[(self.next % LOG_CHANGES as u64) as usize] = record;
        self.next += 1;
    }

    /// The next one that a reader has not seen; `None` in the option if it is too late for some.
    pub fn after(&self, seen: &mut u64) -> Option<Option<Record>> {
        if *seen == self.next {
            return None;
        }
        if self.next - *seen > LOG_CHANGES as u64 {
            *seen = self.next;
            return Some(None);
        }
        *seen += 1;
        Some(Some(self.records[((*seen - 1) % LOG_CHANGES as u64) as usize]))
    }
}

/// Enters an event into the log.
pub fn record(message: &kernel::Message, log: &mut Log) {
    let [first, second, third] = message.arguments;
    let range = PageRange { start: first, end: second };
    match message.event {
        kernel::EVENT_UNMAP => log.push(Record::Change(Change::Unmapped(range))),
        kernel::EVENT_REMOVE => log.push(Record::Change(Change::Emptied(range))),
        kernel::EVENT_REMAP => {
            let end = first.saturating_add(third);
            log.push(Record::Change(Change::Unmapped(PageRange { start: first, end })));
            log.push(Record::Moved(PageRange { start: second, end: second.saturating_add(third) }));
        }
        _ => log.push(Record::Change(Change::Unknown)),
    }
}
