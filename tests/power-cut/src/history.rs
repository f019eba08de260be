//! What data files have been, and what of it must be there after a power cut.
//!
//! ```text
//!   states of a file    none  aaaa  aabb  aabbcc  none  dd           each is noted before the change to it begins
//!   durable                         ^                                by the last sync that returned
//!   an image may have               aabb, aabbcc or a mixture; nothing; or dd: never aaaa, and no mixture with dd
//! ```

use crate::disk::{Content, Image};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of a file; `None`: there is none.
type State = Option<Arc<Vec<u8>>>;

enum Entry {
    /// Storage is open.
    Begun,
    /// A change to this state begins.
    Change(u64, State),
    /// The state with this index is durable.
    Durable(u64, usize),
    /// That there is the file is noted durably beside it, until it is removed.
    Marked(u64),
}

/// Everything that was done, in order.
pub struct History {
    entries: Vec<Entry>,
}

/// A history that is being made.
pub struct Shared {
    history: Mutex<History>,
    /// The number of entries, for whoever takes images.
    length: Arc<AtomicI64>,
}

/// The inode numbers and bytes of the data files of an image.
pub fn data_files(image: &Image) -> BTreeMap<u64, &Content> {
    let mut found = BTreeMap::new();
    for (path, content) in image.files() {
        let (above, name) = path.rsplit_once('/').expect("all is in the directory of the store");
        if above.contains("/data/") {
            found.insert(u64::from_str_radix(name, 16).expect("data files have numbers"), content);
        }
    }
    found
}

impl Shared {
    /// Begins with what an image has, which is durable.
    pub fn after(image: &Image, length: Arc<AtomicI64>) -> Shared {
        let shared = Shared { history: Mutex::new(History { entries: Vec::new() }), length };
        for (ino, content) in data_files(image) {
            let bytes = content.read(0, content.bytes as usize);
            // The length is told to nobody before storage is open.
            let mut history = shared.history();
            history.entries.push(Entry::Change(ino, Some(Arc::new(bytes))));
            history.entries.push(Entry::Durable(ino, 1));
        }
        shared
    }

    /// Storage is open.
    pub fn begin(&self) {
        self.push(Entry::Begun);
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, entry: Entry) {
        let mut history = self.history();
        history.entries.push(entry);
        self.length.store(history.entries.len() as i64, Ordering::SeqCst);
    }

    /// What the file is, with the change that was begun last.
    pub fn now(&self, ino: u64) -> Option<Vec<u8>> {
        let (states, _) = self.history().states(ino, usize::MAX);
        states.last().expect("there is a first state").as_deref().cloned()
    }

    /// The file is about to become this; `None`: it is removed.
    pub fn change(&self, ino: u64, state: Option<Vec<u8>>) {
        self.push(Entry::Change(ino, state.map(Arc::new)));
    }

    /// The index of the state that the file is in.
    pub fn last_state(&self, ino: u64) -> usize {
        self.history().states(ino, usize::MAX).0.len() - 1
    }

    /// Whether every byte of the file as it is now is durable.
    pub fn is_all_durable(&self, ino: u64) -> bool {
        let (states, durable) = self.history().states(ino, usize::MAX);
        let is_empty = states.last().is_none_or(|state| state.as_ref().is_none_or(|bytes| bytes.is_empty()));
        durable + 1 == states.len() || is_empty
    }

    /// The state of the file with this index is durable.
    pub fn is_durable(&self, ino: u64, state: usize) {
        self.push(Entry::Durable(ino, state));
    }

    /// That there is the file is noted durably beside it.
    pub fn is_marked(&self, ino: u64) {
        self.push(Entry::Marked(ino));
    }

    /// All that was done.
    pub fn into_history(self) -> History {
        self.history.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl History {
    /// The states of a file among the first entries, from none on, and the index of the durable one.
    fn states(&self, ino: u64, entries: usize) -> (Vec<State>, usize) {
        let (mut states, mut durable) = (vec![None], 0);
        for entry in self.entries.iter().take(entries) {
            match entry {
                Entry::Change(of, state) if *of == ino => states.push(state.clone()),
                Entry::Durable(of, state) if *of == ino => durable = *state,
                _ => {}
            }
        }
        (states, durable)
    }

    /// Compares the marks of an image, taken after so many entries: every one has its file, and none is missing that was durable.
    pub fn check_marks(&self, marked: &BTreeSet<u64>, image: &Image, entries: usize, label: &str) {
        let there = data_files(image);
        for ino in marked {
            assert!(there.contains_key(ino), "{label}: file {ino:x} is marked, and is not there");
        }
        let mut wanted = BTreeSet::new();
        for entry in self.entries.iter().take(entries) {
            match entry {
                Entry::Marked(ino) => drop(wanted.insert(*ino)),
                Entry::Change(ino, None) => drop(wanted.remove(ino)),
                _ => {}
            }
        }
        let lost: Vec<&u64> = wanted.difference(marked).collect();
        assert!(lost.is_empty(), "{label}: the marks of {lost:x?} are lost");
    }

    /// Compares an image of storage, taken after so many entries, with what must be there.
    pub fn check(&self, image: &Image, entries: usize, label: &str) {
        let read = |(ino, content): (u64, &Content)| (ino, content.read(0, content.bytes as usize));
        self.check_files(&data_files(image).into_iter().map(read).collect(), entries, label);
    }

    /// The same for files that were found otherwise.
    pub fn check_files(&self, found: &BTreeMap<u64, Vec<u8>>, entries: usize, label: &str) {
        let mut inos: Vec<u64> = self
            .entries
            .iter()
            .take(entries)
            .filter_map(|entry| match entry {
                Entry::Change(ino, _) => Some(*ino),
                _ => None,
            })
            .collect();
        inos.sort_unstable();
        inos.dedup();
        for ino in found.keys() {
            assert!(inos.contains(ino), "{label}: file {ino:x} was never made");
        }
        for ino in inos {
            let (states, durable) = self.states(ino, entries);
            let Some(bytes) = found.get(&ino) else {
                let may_be_missing = states[durable..].iter().any(Option::is_none);
                assert!(may_be_missing, "{label}: file {ino:x} is gone; there are {:x?}", found.keys());
                continue;
            };
            let compared: Vec<Result<(), String>> = incarnations(&states)
                .filter(|lives| lives.end > durable)
                .map(|lives| compare(&states, lives, durable, bytes))
                .collect();
            assert!(compared.iter().any(Result::is_ok), "{label}: file {ino:x}: {compared:?}");
        }
    }
}

/// The ranges of states between which there was no file.
fn incarnations(states: &[State]) -> impl Iterator<Item = Range<usize>> {
    let is_there = |at: usize| states.get(at).is_some_and(Option::is_some);
    (0..states.len()).filter(move |at| is_there(*at) && (*at == 0 || !is_there(at - 1))).map(move |begin| {
        let end = (begin..states.len()).find(|at| !is_there(*at)).unwrap_or(states.len());
        begin..end
    })
}

/// Whether bytes can be what is left of one incarnation of a file.
fn compare(states: &[State], lives: Range<usize>, durable: usize, found: &[u8]) -> Result<(), String> {
    let base = lives.contains(&durable).then(|| states[durable].as_deref()).flatten();
    let first = if base.is_some() { durable } else { lives.start };
    let possible: Vec<&Vec<u8>> = states[first..lives.end].iter().filter_map(Option::as_deref).collect();
    let shortest = base.map_or(0, |_| possible.iter().map(|state| state.len()).min().unwrap_or(0));
    let longest = possible.iter().map(|state| state.len()).max().unwrap_or(0);
    if !(shortest..=longest).contains(&found.len()) {
        return Err(format!("{} bytes, not {shortest} to {longest}", found.len()));
    }
    const PART: usize = 512;
    for (number, part) in found.chunks(PART).enumerate() {
        let begin = number * PART;
        if possible.iter().any(|state| state.get(begin..begin + part.len()) == Some(part)) {
            continue;
        }
        for (at, byte) in (begin..).zip(part) {
            let is_known = possible.iter().any(|state| state.get(at) == Some(byte));
            // Where the file once ended before, it may have grown by a hole whose bytes are lost.
            if !is_known && (*byte != 0 || at < shortest) {
                return Err(format!("byte {at} is {byte}, which it never was since it was synced"));
            }
        }
    }
    Ok(())
}
