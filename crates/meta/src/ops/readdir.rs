//! Listing a directory in pages.
//!
//! Each entry has a cookie, given out in ascending order and never again. A page says "all with cookies above this
//! one, so many of them", so entries created or removed while the listing runs neither disturb the others nor make
//! one appear twice. One that is renamed within its directory keeps its cookie. `.` and `..` are the client's, with
//! cookies below 16, which no entry has.
//!
//! ```text
//!   first page    16 17 18      until 40: the next entry of any directory gets it
//!   last page     38 39         what was made meanwhile, from 40 on, is left out
//! ```
//!
//! Otherwise a listing would never end where its reader makes an entry for each one that it sees.

use crate::MetaError;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::inode::{Attr, Entry, Kind};
use crate::keys;
use crate::op::Op;
use crate::permission::{READ, require};

/// What an entry counts against a page's byte limit besides its name: a generous bound for attributes and cookie.
const ENTRY_OVERHEAD_BYTES: usize = 160;

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without slash or NUL.
    pub name: Vec<u8>,
    /// The inode.
    pub ino: u64,
    /// What it is.
    pub kind: Kind,
    /// Where to go on after this entry.
    pub cookie: u64,
    /// Its attributes, if they were asked for.
    pub attr: Option<Attr>,
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// In ascending order of cookies.
    pub entries: Vec<DirEntry>,
    /// Nothing comes after these.
    pub eof: bool,
    /// The directory that holds this one, for `..`.
    pub parent: u64,
    /// No entry has this cookie or a higher one as yet.
    pub until: u64,
}

impl<E: Engine> Op<'_, E> {
    /// The entries of directory `ino` after the cookie `after` (0 to begin): at most `max_entries`, and as many as
    /// fit `max_bytes` of names and 160 bytes each, but at least one. Inodes are only looked at for attributes: that is most of the work
    /// for an entry, and inodes in use would leave the cache.
    pub fn readdir(
        &mut self,
        caller: &Caller,
        ino: u64,
        after: u64,
        max_entries: usize,
        max_bytes: usize,
        with_attrs: bool,
    ) -> Result<Page, MetaError> {
        let dir = self.need_dir(ino)?;
        require(caller, &dir, READ)?;
        let room = max_entries.min(max_bytes / ENTRY_OVERHEAD_BYTES + 1).max(1);
        let prefix = keys::numbered(keys::ORDER, ino);
        let records = self.records_after(&prefix, &keys::order(ino, after), room + 1)?;
        let mut eof = records.len() <= room;
        let mut entries: Vec<DirEntry> = Vec::with_capacity(records.len().min(room));
        let mut bytes = 0;
        for (key, value) in records.iter().take(room) {
            let (Entry { ino, kind, cookie }, name) = Entry::decode_order(key, value)?;
            bytes += ENTRY_OVERHEAD_BYTES + name.len();
            if bytes > max_bytes && !entries.is_empty() {
                eof = false;
                break;
            }
            entries.push(DirEntry { name, ino, kind, cookie, attr: None });
        }
        if with_attrs {
            self.ns.read_inodes_ahead(entries.iter().map(|entry| entry.ino).collect())?;
            for entry in &mut entries {
                entry.attr = Some(self.getattr(entry.ino)?);
            }
        }
        Ok(Page { entries, eof, parent: dir.parent, until: self.ns.next_cookie })
    }

    /// Keeps the names of a page of `dir` in memory, for a caller that is likely to look each of them up, or to remove it.
    pub fn keep_names(&mut self, dir: u64, page: &Page) {
        for DirEntry { name, ino, kind, cookie, .. } in &page.entries {
            self.ns.keep_entry(dir, name, Entry { ino: *ino, kind: *kind, cookie: *cookie });
        }
    }
}
