//! Open directories.

use super::WeftFs;
use crate::directory::{DirItem, DirStream};
use crate::lookups::By;
use crate::outcome::{Errno, Outcome, Told};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use weft_client::At;
use weft_gateway::{Asked, Process};
use weft_wire::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_wire::messages::{Attr, FileKind};

impl WeftFs {
    /// Whether an open directory may be listed is decided here; nobody asks later.
    pub(crate) fn open_directory(&self, who: Process, node: u64) -> Outcome<u64> {
        let ino = self.ino(node);
        if who.uid != 0 {
            let allowed = self.callers.client(who).access(At::ino(ino), false, libc::R_OK as u32);
            let is_gone = |errno| errno == libc::ESTALE && self.coherence.last_of_directory(ino).is_some();
            allowed.or_else(|error| if is_gone(error.errno()) { Ok(()) } else { Err(error) })?;
        }
        self.lookups.listed(who, ino);
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Mutex::new(DirStream::new(ino)));
        self.directories.lock(&handle).insert(handle, stream);
        Ok(handle)
    }

    /// Passes entries from `position` on to `emit`, until it says that it is full (and did not take the last one).
    pub(crate) fn read_directory(
        &self,
        handle: u64,
        position: u64,
        with_attrs: bool,
        mut emit: impl FnMut(DirItem<'_>) -> bool,
    ) -> Outcome<()> {
        let stream = self.directories.lock(&handle).get(&handle).cloned().ok_or(Errno(libc::EBADF))?;
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        let client = self.callers.root();
        stream.seek(client, &self.coherence, position, with_attrs).map_err(of_listing)?;
        let (dir, asked) = (stream.ino(), stream.asked().unwrap_or_else(|| self.coherence.ask()));
        // Some of these names may be gone: the kernel asks again for those that it is led to use.
        let names_hold = !self.reports.changed_since(dir, asked.at());
        let name_valid = if names_hold { self.behaviour.entry_timeout } else { Duration::ZERO };
        stream.emit(|mut item| {
            let ino = item.node;
            item.told = self.listed(&asked, dir, &item).map(|attr| {
                // It counts as if it had been looked up, if there is still room for it.
                self.coherence.looked_up(ino);
                let told = self.tell(&asked, attr);
                Told { entry_valid: self.coherence.may_cache_name(&asked, dir, name_valid), ..told }
            });
            let counts = item.told.is_some();
            item.node = self.node(ino);
            let full = emit(item);
            if counts && full {
                self.coherence.let_go(ino, 1);
            }
            full
        });
        Ok(())
    }

    /// Attributes of an entry of a page, if the kernel may be told of it as if it had looked it up: the name may lead elsewhere by
    /// now, what it leads to may have lost another name, and a directory may have got one.
    fn listed(&self, asked: &Asked, dir: u64, item: &DirItem<'_>) -> Option<Attr> {
        let attr = item.attr?;
        if self.names_taken.changed_since(name_key(dir, item.name), asked.at()) {
            return None;
        }
        let is_directory = attr.kind == FileKind::Directory;
        if is_directory && !self.coherence.may_list_directory(attr.ino, &(dir, item.name.into())) {
            return None;
        }
        let is_old = match is_directory {
            true => self.coherence.directory_changed_since(asked, attr),
            false => self.may_have_lost_a_name(asked, attr),
        };
        let client = self.callers.root();
        let attr = if is_old { client.getattr(attr.ino).ok()? } else { attr.clone() };
        self.with_own_changes(client, asked, attr).ok()
    }

    fn may_have_lost_a_name(&self, asked: &Asked, attr: &Attr) -> bool {
        attr.nlink > 1 && self.names_taken.any_since(asked.at())
    }

    /// Attributes of a file for a lookup that follows a listing (`lookups.rs`), with how they were asked for.
    pub(super) fn listed_before(&self, who: Process, dir: u64, name: &OsStr) -> Option<(Asked, Attr)> {
        let mut by = self.lookups.next(who, dir, name.as_bytes());
        if let By::NextPage(place) = by {
            let asked = self.coherence.ask();
            let client = self.callers.client(who);
            let page = client.read_dir_page(dir, place, DIRECTORY_PAGE_ENTRIES_MAX, true).ok()?;
            self.lookups.page(who, dir, asked, page);
            by = self.lookups.next(who, dir, name.as_bytes());
        }
        let By::Page(asked, attr) = by else { return None };
        if self.coherence.valid(&asked).is_zero() {
            self.lookups.page_is_old(who);
            return None;
        }
        let is_sure = attr.kind != FileKind::Directory
            && !attr.size_live
            && !self.names_taken.changed_since(name_key(dir, name.as_bytes()), asked.at())
            && !self.may_have_lost_a_name(&asked, &attr)
            && !self.reports.changed_since(attr.ino, asked.at())
            && self.writers_of(attr.ino).is_empty();
        is_sure.then_some((asked, *attr))
    }

    pub(crate) fn release_directory(&self, handle: u64) {
        self.directories.lock(&handle).remove(&handle);
    }
}

/// What stands for a name in [`Changes`](weft_gateway::Changes).
pub(super) fn name_key(dir: u64, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (dir, name).hash(&mut hasher);
    hasher.finish()
}

/// As a local file system has it where a directory that is open has been removed.
fn of_listing(errno: Errno) -> Errno {
    if errno.0 == libc::ESTALE { Errno(libc::ENOENT) } else { errno }
}
