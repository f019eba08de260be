//! An open directory.
//!
//! The kernel takes as many entries as fit its buffer, the server sends pages; what is left of a page waits here for the
//! kernel's next call. Positions are the server's cookies, moved up to make room for two names that it does not store:
//!
//! ```text
//!   position  0      1       2        18        19
//!             │  .   │  ..   │  a     │  b      │ ...        a has cookie 16, b has cookie 17
//! ```

use crate::coherence::Coherence;
use crate::outcome::{Outcome, Told};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use weft_client::Client;
use weft_gateway::Asked;
use weft_wire::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_wire::messages::{Attr, Entry, FileKind};

const AFTER_DOT: u64 = 1;
/// Position after the names that are not stored.
pub(crate) const AFTER_DOTS: u64 = 2;
/// A page that was read longer ago is read again.
const PAGE_AGE_MAX: Duration = Duration::from_secs(1);

/// One name, on its way to the kernel.
pub(crate) struct DirItem<'a> {
    /// The name.
    pub(crate) name: &'a [u8],
    /// Its inode.
    pub(crate) node: u64,
    /// What it is.
    pub(crate) kind: FileKind,
    /// Where to go on after it.
    pub(crate) position: u64,
    /// Attributes from the page, if asked for.
    pub(crate) attr: Option<&'a Attr>,
    /// The same in the kernel's terms.
    pub(crate) told: Option<Told>,
}

/// The rest of a page, and where it belongs.
pub(crate) struct DirStream {
    ino: u64,
    parent: u64,
    position: u64,
    page: VecDeque<Entry>,
    /// Where the listing ends that began at the directory's beginning.
    until: u64,
    /// Nothing comes after the page.
    is_last: bool,
    with_attrs: bool,
    /// When the page was read, if one was.
    read: Option<(Instant, Asked)>,
}

impl DirStream {
    pub(crate) fn new(ino: u64) -> DirStream {
        DirStream {
            ino,
            parent: ino,
            position: 0,
            page: VecDeque::new(),
            until: 0,
            is_last: false,
            with_attrs: false,
            read: None,
        }
    }

    /// The directory.
    pub(crate) fn ino(&self) -> u64 {
        self.ino
    }

    /// How the page was asked for, if there is one.
    pub(crate) fn asked(&self) -> Option<Asked> {
        self.read.map(|(_, asked)| asked)
    }

    /// Makes the page begin at `position`: goes on with what is there if it fits and is young, else asks the server.
    pub(crate) fn seek(
        &mut self,
        client: &Client,
        coherence: &Coherence,
        position: u64,
        with_attrs: bool,
    ) -> Outcome<()> {
        let fits = position == self.position && position != 0 && (self.with_attrs || !with_attrs);
        let young = self.read.is_some_and(|(at, _)| at.elapsed() < PAGE_AGE_MAX);
        if fits && young && (self.is_last || !self.page.is_empty()) {
            return Ok(());
        }
        let asked = coherence.ask();
        let cookie = position.saturating_sub(AFTER_DOTS);
        let until = if cookie == 0 { 0 } else { self.until };
        let reply =
            client.read_dir_page(self.ino, (cookie, until), DIRECTORY_PAGE_ENTRIES_MAX, with_attrs)?;
        self.parent = reply.parent;
        self.page = reply.entries.into();
        (self.until, self.is_last) = (reply.until.0, reply.end);
        self.position = position;
        self.with_attrs = with_attrs;
        self.read = Some((Instant::now(), asked));
        Ok(())
    }

    /// Hands out entries until `emit` returns true; the one it refused stays.
    pub(crate) fn emit(&mut self, mut emit: impl FnMut(DirItem<'_>) -> bool) {
        for (name, ino, position) in [(".", self.ino, AFTER_DOT), ("..", self.parent, AFTER_DOTS)] {
            let item = DirItem {
                name: name.as_bytes(),
                node: ino,
                kind: FileKind::Directory,
                position,
                attr: None,
                told: None,
            };
            if self.position < position {
                if emit(item) {
                    return;
                }
                self.position = position;
            }
        }
        while let Some(entry) = self.page.front() {
            let position = entry.cookie + AFTER_DOTS;
            let item = DirItem {
                name: &entry.name,
                node: entry.ino,
                kind: entry.kind,
                position,
                attr: entry.attr.as_ref(),
                told: None,
            };
            if emit(item) {
                return;
            }
            self.position = position;
            self.page.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(cookies: &[u64]) -> DirStream {
        let entry = |cookie: &u64| Entry {
            name: format!("f{cookie}").into_bytes(),
            ino: 100 + cookie,
            kind: FileKind::File,
            cookie: *cookie,
            attr: None,
        };
        DirStream { parent: 7, page: cookies.iter().map(entry).collect(), ..DirStream::new(9) }
    }

    fn take(stream: &mut DirStream, room: usize) -> Vec<(String, u64)> {
        let mut taken = Vec::new();
        stream.emit(|item| {
            if taken.len() == room {
                return true;
            }
            taken.push((String::from_utf8_lossy(item.name).into_owned(), item.position));
            false
        });
        taken
    }

    #[test]
    fn a_page_is_handed_out_in_pieces_of_any_size() {
        let all =
            [(".", 1), ("..", 2), ("f1", 3), ("f2", 4), ("f40", 42)].map(|(name, at)| (name.to_string(), at));
        for room in 1..=6 {
            let mut stream = stream(&[1, 2, 40]);
            let mut taken = Vec::new();
            for _ in 0..all.len() {
                taken.extend(take(&mut stream, room));
            }
            assert_eq!(taken, all, "{room} at a time");
            assert_eq!(stream.position, 42);
        }
    }
}
