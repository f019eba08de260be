//! Work that is posted with one ring of the doorbell.

use std::ops::Range;

use weft_verbs::{Endpoint, MemoryPiece, SendWork, VerbsError, Work};

struct Entry {
    id: u64,
    work: Work,
    pieces: Range<usize>,
    signalled: bool,
}

/// A chain of work in the making.
#[derive(Default)]
pub struct Batch {
    pieces: Vec<MemoryPiece>,
    entries: Vec<Entry>,
}

impl Batch {
    /// How many pieces of work it has.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds one, with a number of its own.
    pub fn add(
        &mut self,
        id: u64,
        work: Work,
        pieces: impl IntoIterator<Item = MemoryPiece>,
        signalled: bool,
    ) {
        let start = self.pieces.len();
        self.pieces.extend(pieces);
        self.entries.push(Entry { id, work, pieces: start..self.pieces.len(), signalled });
    }

    /// Posts all of it.
    ///
    /// # Safety
    /// As for [`Endpoint::post_send`].
    pub unsafe fn post(&self, endpoint: &mut impl Endpoint) -> Result<(), VerbsError> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let works: Vec<SendWork<'_>> = self
            .entries
            .iter()
            .map(|entry| SendWork {
                id: entry.id,
                work: entry.work,
                pieces: &self.pieces[entry.pieces.clone()],
                signalled: entry.signalled,
                fenced: false,
                inline: false,
            })
            .collect();
        // SAFETY: as the caller promises.
        unsafe { endpoint.post_send(&works) }
    }
}
