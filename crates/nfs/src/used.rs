//! `used` of attributes: the space that files take, which only their I/O servers know.
//!
//! ```text
//!   attributes to be told ─►   no larger than a strip: as if without holes ───────────────► used
//!                          └─► larger: as asked before, if size and times are the same;
//!                              else their servers are asked, for a whole page at once
//! ```
//!
//! Who looks at many files asks their servers once for each large one, and once more after it has changed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use weft_client::Client;
use weft_wire::messages::{Attr, FileKind, Time};

use crate::workers::Workers;

/// Space is counted in these.
const BLOCK_BYTES: u64 = 512;
/// What local file systems give a file at least, as the mount has it.
const FILE_UNIT_BYTES: u64 = 4096;
/// Files remembered.
const KNOWN_MAX: usize = 1 << 16;
/// How long nobody asks after a server did not answer: each question would wait for it.
const SILENCE: Duration = Duration::from_secs(10);

/// What changes whenever the space does, but for what is reserved.
type State = (u64, Time, Time);

fn state_of(attr: &Attr) -> State {
    (attr.size, attr.mtime.clone(), attr.ctime.clone())
}

/// Drops a quarter of the files, in no order, as long as there is no room for so many more. If all went, a listing of
/// more files than there is room for would find none of them the next time.
fn make_room<T>(known: &mut HashMap<u64, T>, more: usize) {
    while !known.is_empty() && known.len() + more > KNOWN_MAX {
        let mut at = 0;
        known.retain(|_, _| {
            at += 1;
            at % 4 != 1
        });
    }
}

/// What was learnt about files.
pub(crate) struct Used {
    workers: Workers,
    known: RefCell<HashMap<u64, (State, u64)>>,
    silent_since: Cell<Option<Instant>>,
}

impl Used {
    pub(crate) fn new(workers: &Workers) -> Used {
        Used { workers: workers.clone(), known: RefCell::default(), silent_since: Cell::default() }
    }

    /// The bytes that what has these attributes takes. Where its servers do not answer, as many as its size
    /// needs.
    pub(crate) async fn of(&self, client: &Client, attr: &Attr) -> u64 {
        if !self.is_unknown(attr) {
            return self.known_or_by_size(attr);
        }
        self.of_all(client, std::slice::from_ref(attr)).await[0]
    }

    /// As [`Used::of`], of a file that is small: its bytes are with its inode. Sends no request.
    pub(crate) fn of_small(attr: &Attr) -> u64 {
        let is_large = attr.layout.is_some_and(|layout| attr.size > u64::from(layout.strip_bytes()));
        attr.size.next_multiple_of(if is_large { BLOCK_BYTES } else { FILE_UNIT_BYTES })
    }

    /// As [`Used::of`], of many: what is not known is asked for at once.
    pub(crate) async fn of_all(&self, client: &Client, attrs: &[Attr]) -> Vec<u64> {
        let unknown: Vec<Attr> = attrs.iter().filter(|attr| self.is_unknown(attr)).cloned().collect();
        if !unknown.is_empty() {
            self.ask(client, unknown).await;
        }
        attrs.iter().map(|attr| self.known_or_by_size(attr)).collect()
    }

    async fn ask(&self, client: &Client, attrs: Vec<Attr>) {
        let asking = client.clone();
        let (attrs, found) = self
            .workers
            .run(move || {
                let found = asking.allocated_bytes_known(&attrs);
                (attrs, found)
            })
            .await;
        let found = found.unwrap_or_else(|_| vec![None; attrs.len()]);
        let mut known = self.known.borrow_mut();
        make_room(&mut known, attrs.len());
        for (attr, bytes) in attrs.iter().zip(&found) {
            bytes.map(|bytes| known.insert(attr.ino, (state_of(attr), bytes)));
        }
        if found.contains(&None) {
            self.silent_since.set(Some(Instant::now()));
        }
    }

    /// Whether servers are to be asked.
    fn is_unknown(&self, attr: &Attr) -> bool {
        let is_large = attr.kind == FileKind::File
            && attr.layout.is_some_and(|layout| attr.size > u64::from(layout.strip_bytes()));
        let is_silent = || self.silent_since.get().is_some_and(|since| since.elapsed() < SILENCE);
        is_large && self.known(attr).is_none() && !is_silent()
    }

    fn known(&self, attr: &Attr) -> Option<u64> {
        let known = self.known.borrow();
        known.get(&attr.ino).filter(|(state, _)| *state == state_of(attr)).map(|(_, bytes)| *bytes)
    }

    fn known_or_by_size(&self, attr: &Attr) -> u64 {
        let unit_bytes = if attr.kind == FileKind::File { FILE_UNIT_BYTES } else { BLOCK_BYTES };
        self.known(attr).unwrap_or_else(|| attr.size.next_multiple_of(unit_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_too_many_files_is_known_in_part_the_next_time() {
        const FILES: u64 = 100_000;
        let (mut known, mut found) = (HashMap::new(), 0);
        for round in 0..4 {
            found = 0;
            for ino in 0..FILES {
                if known.contains_key(&ino) {
                    found += 1;
                    continue;
                }
                make_room(&mut known, 1);
                known.insert(ino, round);
                assert!(known.len() <= KNOWN_MAX);
            }
        }
        assert!(found > FILES / 4, "{found} of {FILES}");
        make_room(&mut known, 2 * KNOWN_MAX);
        assert!(known.is_empty());
    }
}
