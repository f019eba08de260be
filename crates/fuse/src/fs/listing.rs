//! Open directories.

use super::WeftFs;
use crate::directory::{AFTER_DOTS, DirItem, DirStream};
use crate::outcome::{Errno, Outcome, Told};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use weft_client::At;
use weft_gateway::Process;

impl WeftFs {
    /// Whether an open directory may be listed is decided here; nobody asks later.
    pub(crate) fn open_directory(&self, who: Process, node: u64) -> Outcome<u64> {
        if who.uid != 0 {
            self.callers.client(who).access(At::ino(self.ino(node)), false, libc::R_OK as u32)?;
        }
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Mutex::new(DirStream::new(self.ino(node))));
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
        stream.seek(client, &self.coherence, position, with_attrs)?;
        let (dir, asked) = (stream.ino(), stream.asked().unwrap_or_else(|| self.coherence.ask()));
        // Some of these names may be gone: the kernel asks again for those that it is led to use.
        let names_hold = !self.reports.changed_since(dir, asked.at());
        let name_valid = if names_hold { self.behaviour.entry_timeout } else { Duration::ZERO };
        stream.emit(|mut item| {
            let ino = item.node;
            // With attributes it counts as if it had been looked up, if there is still room for it.
            let counts = with_attrs && item.position > AFTER_DOTS;
            if counts {
                self.coherence.looked_up(ino);
            }
            if let Some(attr) = item.attr {
                let attr = self.with_own_changes(client, &asked, attr.clone());
                let entry_valid = || self.coherence.may_cache_name(&asked, dir, name_valid);
                let told = |attr| Told { entry_valid: entry_valid(), ..self.tell(&asked, attr) };
                item.told = attr.map(told).ok();
            }
            item.node = self.node(ino);
            let full = emit(item);
            if counts && full {
                self.coherence.let_go(ino, 1);
            }
            full
        });
        Ok(())
    }

    pub(crate) fn release_directory(&self, handle: u64) {
        self.directories.lock(&handle).remove(&handle);
    }
}
