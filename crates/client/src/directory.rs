//! Reading a directory from its beginning to its end.
//!
//! ```text
//!   metadata server ─► page 3 ─► ahead ─► page 2 ─► next(): its entries, one after the other
//!                        ▲                  │
//!                        └ asked for when the first entry of page 2 is handed out
//! ```

use std::vec::IntoIter;

use weft_wire::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_wire::messages::{Entry, ReadDirReply};

use crate::calls::PendingCall;
use crate::{Client, Result};

/// Entries of a directory, without `.` and `..`, fetched page by page, a page ahead. What is removed meanwhile may be seen or
/// not; what is there throughout is seen once, and what is renamed in the directory by its old name or its new one. What is added
/// after the first page is not seen, until [`ReadDir::seek`] to the beginning.
pub struct ReadDir {
    client: Client,
    ino: u64,
    name: String,
    /// Whether pages have attributes.
    with_attrs: bool,
    page: IntoIter<Entry>,
    /// The next page, under way.
    ahead: Option<PendingCall<ReadDirReply>>,
    /// The cookie of the last entry that was handed out …
    seen: u64,
    /// … and of the last one that was fetched.
    fetched: u64,
    /// Where it ends, once the first page is there.
    until: u64,
    end: bool,
}

impl ReadDir {
    pub(crate) fn new(client: Client, ino: u64, name: String, with_attrs: bool) -> ReadDir {
        let page = Vec::new().into_iter();
        ReadDir {
            client,
            ino,
            name,
            with_attrs,
            page,
            ahead: None,
            seen: 0,
            fetched: 0,
            until: 0,
            end: false,
        }
    }

    /// The directory's inode.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Goes on after the entry with this cookie, or begins anew after 0.
    pub fn seek(&mut self, cookie: u64) {
        self.page = Vec::new().into_iter();
        self.ahead = None;
        (self.seen, self.fetched, self.end) = (cookie, cookie, false);
        if cookie == 0 {
            self.until = 0;
        }
    }

    /// Whether entries have attributes, from the next one on.
    pub fn set_attributes(&mut self, with_attrs: bool) {
        if with_attrs && !self.with_attrs {
            // What was fetched has none.
            self.seek(self.seen);
        }
        self.with_attrs = with_attrs;
    }

    /// Fetches a page, if none of the last one is left: whether the directory can be read.
    ///
    /// # Errors
    /// Those of [`Client::read_dir_page`].
    pub fn fill(&mut self) -> Result<()> {
        if self.page.len() > 0 || self.end {
            return Ok(());
        }
        let reply = match self.ahead.take() {
            // A forked child asks by itself.
            Some(page) if !page.is_parents() => page.wait(),
            _ => {
                let place = (self.fetched, self.until);
                self.client.page(self.ino, place, DIRECTORY_PAGE_ENTRIES_MAX, self.with_attrs)
            }
        };
        let reply = reply.map_err(|error| error.on(&self.name))?;
        self.end = reply.end || reply.entries.is_empty();
        self.until = reply.until.0;
        self.fetched = reply.entries.last().map_or(self.fetched, |entry| entry.cookie);
        self.page = reply.entries.into_iter();
        Ok(())
    }

    fn read_ahead(&mut self) {
        if self.ahead.is_none() && !self.end {
            let (ino, place) = (self.ino, (self.fetched, self.until));
            let (client, entries_max) = (&self.client, DIRECTORY_PAGE_ENTRIES_MAX);
            self.ahead = Some(client.start_read_dir_page(ino, place, entries_max, self.with_attrs));
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<Entry>;

    /// The next entry. After an error there are none, unless [`ReadDir::seek`] is called.
    fn next(&mut self) -> Option<Result<Entry>> {
        if let Err(error) = self.fill() {
            self.end = true;
            return Some(Err(error));
        }
        let entry = self.page.next()?;
        self.seen = entry.cookie;
        self.read_ahead();
        Some(Ok(entry))
    }
}
