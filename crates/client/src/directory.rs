//! Reading a directory from its beginning to its end.

use std::vec::IntoIter;

use weft_wire::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_wire::messages::Entry;

use crate::error::Error;
use crate::{Client, Result};

/// Entries of a directory with their attributes, without `.` and `..`, fetched page by page. What is added or removed meanwhile
/// may be seen or not; what is there throughout is seen once.
pub struct ReadDir {
    client: Client,
    ino: u64,
    name: String,
    page: IntoIter<Entry>,
    after: u64,
    end: bool,
}

impl ReadDir {
    pub(crate) fn new(client: Client, ino: u64, name: String) -> ReadDir {
        ReadDir { client, ino, name, page: Vec::new().into_iter(), after: 0, end: false }
    }

    /// The directory's inode.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    fn next_page(&mut self) -> std::result::Result<(), Error> {
        let reply = self.client.page(self.ino, self.after, DIRECTORY_PAGE_ENTRIES_MAX, true);
        let reply = reply.map_err(|error| error.on(&self.name))?;
        self.end = reply.end || reply.entries.is_empty();
        self.after = reply.entries.last().map_or(self.after, |entry| entry.cookie);
        self.page = reply.entries.into_iter();
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            if let Some(entry) = self.page.next() {
                return Some(Ok(entry));
            }
            if self.end {
                return None;
            }
            if let Err(error) = self.next_page() {
                self.end = true;
                return Some(Err(error));
            }
        }
    }
}
