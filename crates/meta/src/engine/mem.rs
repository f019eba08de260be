//! The engine in memory, for tests and the simulator: what was not synced can be lost on purpose.

use super::{Batch, CommitSeq, Engine, Room, Scan, Syncer};
use crate::EngineError;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default, Clone)]
struct State {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    durable: BTreeMap<Vec<u8>, Vec<u8>>,
    unsynced: Vec<Batch>,
    committed: CommitSeq,
    full: bool,
    failing: bool,
    conflicting: bool,
    /// The next commit is the second of an operation.
    is_second: bool,
}

fn apply(map: &mut BTreeMap<Vec<u8>, Vec<u8>>, batch: &Batch) {
    for (key, value) in batch.writes() {
        match value {
            Some(value) => map.insert(key.to_vec(), value.to_vec()),
            None => map.remove(key),
        };
    }
}

/// A `BTreeMap` that remembers what has been synced.
#[derive(Debug, Default)]
pub struct MemEngine {
    state: Arc<Mutex<State>>,
    view: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl MemEngine {
    /// An empty store.
    pub fn new() -> MemEngine {
        MemEngine::default()
    }

    /// An independent copy of the present state.
    pub fn fork(&self) -> MemEngine {
        MemEngine { state: Arc::new(Mutex::new(self.lock().clone())), view: None }
    }

    /// How many commits a power cut could lose now.
    pub fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// Pretends that the disk is full, or no longer.
    pub fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// Pretends that the disk fails from now on.
    pub fn set_failing(&self) {
        self.lock().failing = true;
    }

    /// Pretends from now on that each operation's first commit meets a conflict, so that every operation is run twice.
    pub fn set_conflicting(&self) {
        self.lock().conflicting = true;
    }

    /// The store as it is after a power cut that kept only the first `kept` of the unsynced commits.
    pub fn after_crash(&self, kept: usize) -> MemEngine {
        let state = self.lock();
        let mut map = state.durable.clone();
        state.unsynced.iter().take(kept).for_each(|batch| apply(&mut map, batch));
        let fresh = State { durable: map.clone(), map, conflicting: state.conflicting, ..State::default() };
        MemEngine { state: Arc::new(Mutex::new(fresh)), view: None }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for MemEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.lock().map.get(key).cloned())
    }

    fn scan<'a>(&'a self, from: &[u8], to: &[u8]) -> Scan<'a> {
        let mut next = Bound::Included(from.to_vec());
        let end = Bound::Excluded(to.to_vec());
        if from >= to {
            return Box::new(std::iter::empty());
        }
        Box::new(std::iter::from_fn(move || {
            let state = self.lock();
            let (key, value) = state.map.range((next.clone(), end.clone())).next()?;
            next = Bound::Excluded(key.clone());
            Some(Ok((key.clone(), value.clone())))
        }))
    }

    fn hold_view(&mut self) -> Result<(), EngineError> {
        let map = self.lock().map.clone();
        self.view = Some(map);
        Ok(())
    }

    fn view<'a>(&'a self, from: &[u8]) -> Option<Scan<'a>> {
        let pairs = self.view.as_ref()?.range(from.to_vec()..);
        Some(Box::new(pairs.map(|(key, value)| Ok((key.clone(), value.clone())))))
    }

    fn drop_view(&mut self) {
        self.view = None;
    }

    fn commit(&mut self, batch: &Batch) -> Result<CommitSeq, EngineError> {
        let mut state = self.lock();
        if state.failing {
            return Err(EngineError::Poisoned);
        }
        if state.conflicting {
            state.is_second = !state.is_second;
            if state.is_second {
                return Err(EngineError::Conflict);
            }
        }
        apply(&mut state.map, batch);
        state.unsynced.push(batch.clone());
        state.committed += 1;
        Ok(state.committed)
    }

    fn committed(&self) -> CommitSeq {
        self.lock().committed
    }

    fn has_room(&mut self, room: Room) -> bool {
        room != Room::Growth || !self.lock().full
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(MemSyncer { state: Arc::clone(&self.state) })
    }
}

struct MemSyncer {
    state: Arc<Mutex<State>>,
}

impl Syncer for MemSyncer {
    fn sync(&self) -> Result<CommitSeq, EngineError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.failing {
            return Err(EngineError::Poisoned);
        }
        let unsynced = std::mem::take(&mut state.unsynced);
        unsynced.iter().for_each(|batch| apply(&mut state.durable, batch));
        Ok(state.committed)
    }
}
