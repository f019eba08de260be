//! Which memory is registered: the structure behind the cache, without any system call.
//!
//! ```text
//!   writable    [────────]
//!                   [──────────]              they may overlap, but none lies in another: so the order of the starts is the
//!   read-only          [──────────────]       order of the ends, and the last one that starts before a piece is the only
//!                                             one that can hold it
//!   arenas      [──────]   [──]               kept until they are removed
//! ```
//!
//! A registration that may be written serves reads of memory too. One that a new one makes useless (it lies
//! in it, and has no more rights) is taken out. What is taken out lives on until the last request that uses
//! it has ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::group::PageRange;

/// What the index must know of a registration.
pub trait Span {
    /// Where it begins.
    fn start(&self) -> u64;
    /// Where it ends.
    fn end(&self) -> u64;
    /// Whether a server may write into it.
    fn is_writable(&self) -> bool;
}

struct Slot<T> {
    span: Arc<T>,
    used: u64,
}

/// See the module. `bytes` and `entries` count what is cached, not arenas.
pub struct Index<T> {
    writable: BTreeMap<u64, Slot<T>>,
    read_only: BTreeMap<u64, Slot<T>>,
    /// By last use: which.
    order: BTreeMap<u64, (bool, u64)>,
    uses: u64,
    bytes: u64,
    arenas: BTreeMap<u64, Arc<T>>,
    arena_bytes_longest: u64,
}

impl<T: Span> Index<T> {
    pub fn new() -> Index<T> {
        Index {
            writable: BTreeMap::new(),
            read_only: BTreeMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            bytes: 0,
            arenas: BTreeMap::new(),
            arena_bytes_longest: 0,
        }
    }

    pub fn entries(&self) -> usize {
        self.order.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What holds a piece of memory, with the rights that are needed; its use is noted.
    pub fn find(&mut self, address: u64, end: u64, write: bool) -> Option<Arc<T>> {
        self.find_arena(address, end, write)
            .or_else(|| self.find_cached(address, end, true))
            .or_else(|| if write { None } else { self.find_cached(address, end, false) })
    }

    /// The same, among the arenas only.
    pub fn find_arena(&self, address: u64, end: u64, write: bool) -> Option<Arc<T>> {
        let begun = self.arenas.range(..=address).rev();
        let mut near = begun.take_while(|(start, _)| address - **start < self.arena_bytes_longest);
        let holds = |arena: &&Arc<T>| end <= arena.end() && (arena.is_writable() || !write);
        near.find_map(|(_, arena)| Some(arena).filter(holds).cloned())
    }

    fn find_cached(&mut self, address: u64, end: u64, writable: bool) -> Option<Arc<T>> {
        let slots = if writable { &mut self.writable } else { &mut self.read_only };
        let (start, slot) = slots.range_mut(..=address).next_back()?;
        if end > slot.span.end() {
            return None;
        }
        self.uses += 1;
        self.order.remove(&slot.used);
        slot.used = self.uses;
        self.order.insert(slot.used, (writable, *start));
        Some(slot.span.clone())
    }

    /// Adds one, and says which others it makes useless; `None` if it is useless itself.
    pub fn insert(&mut self, span: Arc<T>) -> Option<Vec<Arc<T>>> {
        let (start, end, writable) = (span.start(), span.end(), span.is_writable());
        let held_by = |slots: &BTreeMap<u64, Slot<T>>| {
            slots.range(..=start).next_back().is_some_and(|(_, slot)| end <= slot.span.end())
        };
        if held_by(&self.writable) || !writable && held_by(&self.read_only) {
            return None;
        }
        let mut useless = self.take(false, start, end, Touch::Inside);
        if writable {
            useless.extend(self.take(true, start, end, Touch::Inside));
        }
        self.uses += 1;
        self.bytes += end - start;
        self.order.insert(self.uses, (writable, start));
        let slots = if writable { &mut self.writable } else { &mut self.read_only };
        slots.insert(start, Slot { span, used: self.uses });
        Some(useless)
    }

    /// Takes out everything that has a byte in common with a range.
    pub fn take_touched(&mut self, range: &PageRange) -> Vec<Arc<T>> {
        let mut taken = self.take(true, range.start, range.end, Touch::Any);
        taken.extend(self.take(false, range.start, range.end, Touch::Any));
        taken
    }

    /// Takes out the one that was not used for longest, of those that nobody uses now.
    pub fn take_oldest(&mut self) -> Option<Arc<T>> {
        let is_idle = |(writable, start): &(bool, u64)| {
            let slots = if *writable { &self.writable } else { &self.read_only };
            Arc::strong_count(&slots[start].span) == 1
        };
        let (writable, start) = *self.order.values().find(|place| is_idle(place))?;
        self.remove(writable, start)
    }

    /// Whether an arena begins there.
    pub fn has_arena(&self, address: u64) -> bool {
        self.arenas.contains_key(&address)
    }

    /// Adds an arena; `None` if one begins there already.
    pub fn insert_arena(&mut self, arena: Arc<T>) -> Option<()> {
        let (start, bytes) = (arena.start(), arena.end() - arena.start());
        if self.has_arena(start) {
            return None;
        }
        self.arenas.insert(start, arena);
        self.arena_bytes_longest = self.arena_bytes_longest.max(bytes);
        Some(())
    }

    /// Takes out the arena that begins there.
    pub fn remove_arena(&mut self, address: u64) -> Option<Arc<T>> {
        let arena = self.arenas.remove(&address);
        let bytes = self.arenas.values().map(|arena| arena.end() - arena.start());
        self.arena_bytes_longest = bytes.max().unwrap_or(0);
        arena
    }

    /// How many arenas, and their bytes.
    pub fn arenas(&self) -> (usize, u64) {
        (self.arenas.len(), self.arenas.values().map(|arena| arena.end() - arena.start()).sum())
    }

    fn take(&mut self, writable: bool, start: u64, end: u64, touch: Touch) -> Vec<Arc<T>> {
        let slots = if writable { &self.writable } else { &self.read_only };
        // Starts and ends rise together: whatever touches the range is a run of neighbours before its end.
        let begun = slots.range(..end).rev();
        let begun = begun.take_while(|(_, slot)| slot.span.end() > start);
        let is_meant = |slot: &Slot<T>| match touch {
            Touch::Any => true,
            Touch::Inside => start <= slot.span.start() && slot.span.end() <= end,
        };
        let starts: Vec<_> = begun.filter(|(_, slot)| is_meant(slot)).map(|(start, _)| *start).collect();
        starts.into_iter().filter_map(|start| self.remove(writable, start)).collect()
    }

    fn remove(&mut self, writable: bool, start: u64) -> Option<Arc<T>> {
        let slots = if writable { &mut self.writable } else { &mut self.read_only };
        let slot = slots.remove(&start)?;
        self.order.remove(&slot.used);
        self.bytes -= slot.span.end() - start;
        Some(slot.span)
    }
}

enum Touch {
    Any,
    Inside,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, PartialEq, Eq, Clone)]
    struct Plain(u64, u64, bool);

    impl Span for Plain {
        fn start(&self) -> u64 {
            self.0
        }
        fn end(&self) -> u64 {
            self.1
        }
        fn is_writable(&self) -> bool {
            self.2
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64, u64, bool),
        Touch(u64, u64),
        Find(u64, u64, bool),
        Arena(u64, u64, bool),
        RemoveArena(u64),
        Oldest,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0u64..40, 1u64..20, any::<bool>()).prop_map(|(at, n, w)| Step::Insert(at, at + n, w)),
            (0u64..40, 1u64..20, any::<bool>()).prop_map(|(at, n, w)| Step::Find(at, at + n, w)),
            (0u64..40, 1u64..9).prop_map(|(at, n)| Step::Touch(at, at + n)),
            (0u64..40, 1u64..20, any::<bool>()).prop_map(|(at, n, w)| Step::Arena(at, at + n, w)),
            (0u64..40).prop_map(Step::RemoveArena),
            Just(Step::Oldest),
        ];
        proptest::collection::vec(step, 0..60)
    }

    /// The same as a plain list, oldest use first.
    #[derive(Default)]
    struct Model {
        cached: Vec<Plain>,
        arenas: Vec<Plain>,
    }

    fn holds(outer: &Plain, inner: &Plain) -> bool {
        outer.0 <= inner.0 && inner.1 <= outer.1 && (outer.2 || !inner.2)
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn it_answers_as_a_plain_list_does(steps in steps()) {
            let mut index = Index::new();
            let mut model = Model::default();
            for step in steps {
                match step {
                    Step::Insert(start, end, write) => {
                        let new = Plain(start, end, write);
                        let is_useless = model.cached.iter().any(|old| holds(old, &new));
                        prop_assert_eq!(index.insert(Arc::new(new.clone())).is_none(), is_useless);
                        if !is_useless {
                            model.cached.retain(|old| !holds(&new, old));
                            model.cached.push(new);
                        }
                    }
                    Step::Touch(start, end) => {
                        let range = PageRange { start, end };
                        let taken = index.take_touched(&range).len();
                        let before = model.cached.len();
                        model.cached.retain(|old| end <= old.0 || old.1 <= start);
                        prop_assert_eq!(taken, before - model.cached.len());
                    }
                    Step::Find(start, end, write) => {
                        let wanted = Plain(start, end, write);
                        let in_arena = model.arenas.iter().any(|old| holds(old, &wanted));
                        prop_assert_eq!(index.find_arena(start, end, write).is_some(), in_arena);
                        let found = index.find(start, end, write);
                        let at = model.cached.iter().any(|old| holds(old, &wanted));
                        prop_assert_eq!(found.is_some(), in_arena || at);
                        if let Some(found) = found {
                            prop_assert!(holds(&found, &wanted));
                            if !in_arena {
                                let at = model.cached.iter().position(|old| *old == *found).unwrap();
                                let used = model.cached.remove(at);
                                model.cached.push(used);
                            }
                        }
                    }
                    Step::Arena(start, end, write) => {
                        let is_new = !model.arenas.iter().any(|old| old.0 == start);
                        let arena = Plain(start, end, write);
                        prop_assert_eq!(index.insert_arena(Arc::new(arena.clone())).is_some(), is_new);
                        if is_new {
                            model.arenas.push(arena);
                        }
                    }
                    Step::RemoveArena(start) => {
                        let is_there = model.arenas.iter().any(|old| old.0 == start);
                        model.arenas.retain(|old| old.0 != start);
                        prop_assert_eq!(index.remove_arena(start).is_some(), is_there);
                    }
                    Step::Oldest => {
                        let oldest = if model.cached.is_empty() { None } else { Some(model.cached.remove(0)) };
                        let taken = index.take_oldest();
                        prop_assert_eq!(taken.as_deref(), oldest.as_ref());
                    }
                }
                prop_assert_eq!(index.entries(), model.cached.len());
                prop_assert_eq!(index.bytes(), model.cached.iter().map(|old| old.1 - old.0).sum::<u64>());
                prop_assert_eq!(index.arenas().0, model.arenas.len());
            }
        }
    }

    #[test]
    fn what_is_used_is_not_taken_for_age() {
        let mut index = Index::new();
        index.insert(Arc::new(Plain(0, 10, true)));
        index.insert(Arc::new(Plain(20, 30, true)));
        let used = index.find(0, 10, true);
        let also_used = index.find(20, 30, false);
        assert!(index.take_oldest().is_none());
        drop(also_used);
        assert_eq!(index.take_oldest().map(|taken| taken.0), Some(20));
        drop(used);
        assert_eq!(index.take_touched(&PageRange { start: 0, end: 100 }).len(), 1);
    }
}
