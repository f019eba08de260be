//! Names that a program looks up one after the other in a directory that it has listed: `rm -r`, `find`, `tar`, `cp -r`.
//!
//! ```text
//!   opendir, listing     lookup 1 … 8 ─► servers
//!                        lookup 9 ─► a page of the listing, with attributes ─► answers 9, 10, 11 … of this thread
//!                        the page is used up ─► the next one
//! ```
//!
//! The kernel lists without attributes where nobody looks at them at first, and would ask for each name alone. A page costs the
//! metadata server a tenth of as many lookups. Whose lookups do not follow the listing is left alone.
//!
//! A sequence is one thread's, whose first lookups the servers have allowed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weft_gateway::{Asked, Process};
use weft_wire::messages::{Attr, Entry, ReadDirReply};

/// Lookups that the servers answer first.
const BEGIN: u32 = 8;
/// Lookups of names that are not in the page, until it is taken for no sequence.
const MISSES_MAX: u32 = 32;
/// Misses that a page counts for that held no longer.
const MISSES_OF_OLD: u32 = 8;
/// Of a page, so much may be left when the next one is asked for: one part in so many.
const LEFT: usize = 4;
/// Threads remembered.
const THREADS_MAX: usize = 64;

/// What a lookup is answered by.
#[derive(Debug)]
pub(crate) enum By<A = Asked> {
    /// These attributes, as the reply had them.
    Page(A, Box<Attr>),
    /// A page that is to be asked for: after this cookie, and where the listing ends.
    NextPage((u64, u64)),
    /// The servers.
    Servers,
}

struct Sequence<A> {
    who: Process,
    dir: u64,
    asked: u32,
    misses: u32,
    page: HashMap<Vec<u8>, Attr>,
    page_asked: Option<A>,
    page_names: usize,
    next: Option<(u64, u64)>,
}

/// See the module. `A`: how a page was asked for.
pub(crate) struct Lookups<A = Asked> {
    sequences: Mutex<HashMap<u32, Sequence<A>>>,
}

impl<A> Default for Lookups<A> {
    fn default() -> Self {
        Lookups { sequences: Mutex::default() }
    }
}

impl<A: Copy> Lookups<A> {
    fn sequences(&self) -> MutexGuard<'_, HashMap<u32, Sequence<A>>> {
        self.sequences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A directory is being listed.
    pub(crate) fn listed(&self, who: Process, dir: u64) {
        let mut sequences = self.sequences();
        if sequences.len() >= THREADS_MAX && !sequences.contains_key(&who.pid) {
            sequences.clear();
        }
        let sequence = Sequence {
            who,
            dir,
            asked: 0,
            misses: 0,
            page: HashMap::new(),
            page_asked: None,
            page_names: 0,
            next: Some((0, 0)),
        };
        sequences.insert(who.pid, sequence);
    }

    /// What answers a lookup.
    pub(crate) fn next(&self, who: Process, dir: u64, name: &[u8]) -> By<A> {
        let mut sequences = self.sequences();
        match sequences.get_mut(&who.pid).filter(|sequence| sequence.is_of(who, dir)) {
            Some(sequence) => sequence.next(name),
            None => By::Servers,
        }
    }

    /// The page that was asked for.
    pub(crate) fn page(&self, who: Process, dir: u64, asked: A, reply: ReadDirReply) {
        let mut sequences = self.sequences();
        if let Some(sequence) = sequences.get_mut(&who.pid).filter(|sequence| sequence.is_of(who, dir)) {
            sequence.take(asked, reply);
        }
    }

    /// What the page said holds no longer.
    pub(crate) fn page_is_old(&self, who: Process) {
        if let Some(sequence) = self.sequences().get_mut(&who.pid) {
            sequence.page.clear();
            sequence.page_names = 0;
            sequence.miss(MISSES_OF_OLD);
        }
    }
}

impl<A: Copy> Sequence<A> {
    fn is_of(&self, who: Process, dir: u64) -> bool {
        self.dir == dir && (self.who.uid, self.who.gid) == (who.uid, who.gid)
    }

    fn next(&mut self, name: &[u8]) -> By<A> {
        if let (Some(attr), Some(asked)) = (self.page.remove(name), self.page_asked) {
            return By::Page(asked, Box::new(attr));
        }
        self.asked += 1;
        let is_used_up = self.page.len() * LEFT <= self.page_names;
        if let Some(place) = self.next
            && self.asked > BEGIN
            && is_used_up
        {
            return By::NextPage(place);
        }
        if self.page_names > 0 {
            self.miss(1);
        }
        By::Servers
    }

    fn take(&mut self, asked: A, reply: ReadDirReply) {
        if self.page_names > 0 {
            self.misses = 0;
        }
        let last = reply.entries.last().map(|entry| (entry.cookie, reply.until.0));
        self.next = last.filter(|_| !reply.end);
        let with_attr = |entry: Entry| Some((entry.name, entry.attr?));
        self.page = reply.entries.into_iter().filter_map(with_attr).collect();
        self.page_names = self.page.len();
        self.page_asked = Some(asked);
    }

    fn miss(&mut self, misses: u32) {
        self.misses += misses;
        if self.misses > MISSES_MAX {
            self.page.clear();
            self.next = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::Added;
    use weft_wire::messages::{FileKind, Time};

    const WHO: Process = Process { uid: 1, gid: 1, pid: 5 };
    const DIR: u64 = 7;
    const NAMES: u64 = 100;

    fn attr(ino: u64) -> Attr {
        let zero = || Time { seconds: 0, nanoseconds: 0 };
        Attr {
            ino,
            kind: FileKind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            size_live: false,
            epoch: 0,
            atime: zero(),
            mtime: zero(),
            ctime: zero(),
            btime: zero(),
            generation: 0,
            rdev: 0,
            layout: None,
        }
    }

    fn page(after: u64, end: bool) -> ReadDirReply {
        let entry = |cookie| Entry {
            name: format!("{cookie}").into_bytes(),
            ino: 1000 + cookie,
            kind: FileKind::File,
            cookie,
            attr: Some(attr(1000 + cookie)),
        };
        ReadDirReply {
            entries: (after + 1..=after + NAMES).map(entry).collect(),
            end,
            parent: 1,
            until: Added(9),
        }
    }

    fn look(lookups: &Lookups<()>, name: u64) -> By<()> {
        lookups.next(WHO, DIR, format!("{name}").as_bytes())
    }

    /// As the mount does it, with pages of a directory without end.
    fn looked_up(lookups: &Lookups<()>, name: u64, pages: &mut u64) -> bool {
        let mut by = look(lookups, name);
        if let By::NextPage((after, _)) = by {
            *pages += 1;
            lookups.page(WHO, DIR, (), page(after, false));
            by = look(lookups, name);
        }
        matches!(by, By::Page(_, attr) if attr.ino == 1000 + name)
    }

    #[test]
    fn lookups_in_the_order_of_the_listing_are_answered_by_its_pages() {
        let (lookups, mut pages) = (Lookups::<()>::default(), 0);
        lookups.listed(WHO, DIR);
        let by_page = (1..=1000).filter(|name| looked_up(&lookups, *name, &mut pages)).count();
        assert_eq!((by_page, pages), (1000 - BEGIN as usize, 10));
    }

    #[test]
    fn an_end_is_not_asked_for_again() {
        let lookups = Lookups::<()>::default();
        lookups.listed(WHO, DIR);
        (0..BEGIN).for_each(|_| drop(look(&lookups, 0)));
        assert!(matches!(look(&lookups, 0), By::NextPage(_)));
        lookups.page(WHO, DIR, (), page(0, true));
        (1..=NAMES).for_each(|name| assert!(matches!(look(&lookups, name), By::Page(..))));
        assert!(matches!(look(&lookups, 0), By::Servers));
    }

    #[test]
    fn who_looks_elsewhere_or_has_listed_nothing_is_answered_by_the_servers() {
        let lookups = Lookups::<()>::default();
        (0..100).for_each(|name| assert!(matches!(look(&lookups, name), By::Servers)));
        lookups.listed(WHO, DIR);
        (0..100).for_each(|_| assert!(matches!(lookups.next(WHO, 8, b"1"), By::Servers)));
        let other = Process { uid: 2, ..WHO };
        (0..100).for_each(|_| assert!(matches!(lookups.next(other, DIR, b"1"), By::Servers)));
    }

    #[test]
    fn lookups_in_another_order_ask_for_one_page() {
        let (lookups, mut pages) = (Lookups::<()>::default(), 0);
        lookups.listed(WHO, DIR);
        for name in (1..=500).rev() {
            looked_up(&lookups, name, &mut pages);
        }
        assert_eq!(pages, 1);
    }

    #[test]
    fn pages_that_never_hold_are_asked_for_no_more() {
        let (lookups, mut pages) = (Lookups::<()>::default(), 0);
        lookups.listed(WHO, DIR);
        for name in 1..=500 {
            if looked_up(&lookups, name, &mut pages) {
                lookups.page_is_old(WHO);
            }
        }
        assert!(pages <= u64::from(MISSES_MAX / MISSES_OF_OLD) + 1, "{pages}");
    }
}
