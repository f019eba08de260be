//! Finding what is registered already of a request's pieces.

use std::ops::Deref;
use std::sync::Arc;

use weft_verbs::Device;
use weft_wire::messages::MemoryRun;

use super::cache::{Shared, add};
use super::entry::Entry;
use super::error::PinError;
use super::group::PageRange;
use super::page::page_bytes;
use super::pinned::Pinned;
use super::state::{Dead, State};
use super::wanted::{Among, Wanted};
use crate::runs::span;

/// A run of so many pieces whose pages touch is looked at as a whole.
const MANY_PIECES: u64 = 64;

impl<D: Device> Shared<D> {
    /// Finds what is registered of the pieces, and returns the pages of those that are not.
    pub(super) fn look_up(
        &self,
        wanted: &Wanted<'_, D>,
        among: Among,
        found: &mut Vec<Arc<Entry<D::Registration>>>,
    ) -> Result<Vec<PageRange>, PinError> {
        let watcher = self.watcher.get().and_then(|watcher| watcher.as_ref().ok());
        let is_settled = watcher.is_none_or(|(watcher, _)| watcher.settle());
        let among = if is_settled { among } else { Among::Arenas };
        let mut state = self.lock();
        let dead = self.catch_up(&mut state);
        let lasting = wanted.lasting;
        let mut lookup =
            Lookup { shared: self, state: &mut state, among, write: wanted.write, lasting, found, dead };
        let mut missing = Vec::new();
        let looked = wanted.runs.iter().try_for_each(|run| lookup.run(run, &mut missing));
        let dead = lookup.dead;
        drop(state);
        self.bury(dead);
        looked.map(|()| missing)
    }
}

/// One look at the index, with the lock held.
struct Lookup<'a, D: Device> {
    shared: &'a Shared<D>,
    state: &'a mut State<D::Registration>,
    /// What is cached may be used only if all that was unmapped is known.
    among: Among,
    write: bool,
    lasting: Option<&'a Pinned<D>>,
    found: &'a mut Vec<Arc<Entry<D::Registration>>>,
    dead: Dead<D::Registration>,
}

impl<D: Device> Lookup<'_, D> {
    fn run(&mut self, run: &MemoryRun, missing: &mut Vec<PageRange>) -> Result<(), PinError> {
        if run.segment != 0 {
            return Err(PinError::Segment(run.segment));
        }
        if run.bytes == 0 || run.count == 0 {
            return Ok(());
        }
        let (low, end) = span(run).ok_or(PinError::Overflow)?;
        let whole = PageRange::around(low, end - low).ok_or(PinError::Overflow)?;
        // With `verify` every piece is looked at: what is between them may have changed.
        if !self.shared.options.verify && self.is_registered(low, end) {
            return Ok(());
        }
        let has_holes = run.stride_bytes.unsigned_abs() >= run.bytes.saturating_add(page_bytes());
        if run.count >= MANY_PIECES && !has_holes {
            missing.push(whole);
            return Ok(());
        }
        for piece in 0..run.count {
            let address = run.address.wrapping_add((run.stride_bytes as u64).wrapping_mul(piece));
            if !self.is_registered(address, address + run.bytes) {
                missing.extend(PageRange::around(address, run.bytes));
            }
        }
        Ok(())
    }

    /// Whether something holds these bytes; it is added to what was found.
    fn is_registered(&mut self, address: u64, end: u64) -> bool {
        let holds = |entry: &Entry<_>| entry.start <= address && end <= entry.end;
        if !self.shared.options.verify && self.found.last().is_some_and(|last| holds(last.deref())) {
            return true;
        }
        let mut lasting = self.lasting.iter().flat_map(|lasting| lasting.entries.iter());
        if let Some(entry) = lasting.find(|entry| holds(entry)) {
            self.found.push(entry.clone());
            return true;
        }
        let index = &mut self.state.index;
        let entry = match self.among {
            Among::All => index.find(address, end, self.write),
            Among::Arenas => index.find_arena(address, end, self.write),
        };
        match entry {
            Some(entry) if self.is_right(&entry, address, end) => {
                self.found.push(entry);
                true
            }
            _ => false,
        }
    }

    /// In the `verify` mode: whether the pages are those that were registered.
    fn is_right(&mut self, entry: &Entry<D::Registration>, address: u64, end: u64) -> bool {
        let pages = PageRange::around(address, end - address);
        let (Some(frames), Some(pages)) = (&entry.frames, pages) else { return true };
        if frames.are_still(&pages).unwrap_or(true) {
            return true;
        }
        add(&self.shared.counts.wrong, 1);
        self.dead.extend(self.state.index.take_touched(&pages));
        false
    }
}
