//! Recently used things, bounded: open data files and mapped windows.
//!
//! What is in use elsewhere (its `Arc` has other owners) is never put out.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

pub(crate) struct RecentlyUsed<K, V> {
    capacity: usize,
    entries: HashMap<K, Entry<V>>,
    /// Use times, oldest first. No two uses have the same time.
    order: BTreeMap<u64, K>,
    clock: u64,
}

struct Entry<V> {
    value: Arc<V>,
    used_at: u64,
}

impl<K: Copy + Eq + Hash, V> RecentlyUsed<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        RecentlyUsed { capacity, entries: HashMap::new(), order: BTreeMap::new(), clock: 0 }
    }

    pub(crate) fn get(&mut self, key: K) -> Option<Arc<V>> {
        let entry = self.entries.get_mut(&key)?;
        if entry.used_at != self.clock {
            self.clock += 1;
            self.order.remove(&entry.used_at);
            self.order.insert(self.clock, key);
            entry.used_at = self.clock;
        }
        Some(entry.value.clone())
    }

    /// Whether another one finds room, after the longest unused was put out if need be. What was put
    /// out is returned, to be dropped outside of any lock.
    pub(crate) fn make_room(&mut self) -> (bool, Option<Arc<V>>) {
        if self.entries.len() < self.capacity {
            return (true, None);
        }
        let unused =
            |key: &&K| self.entries.get(key).is_some_and(|entry| Arc::strong_count(&entry.value) == 1);
        let Some(key) = self.order.values().find(unused).copied() else { return (false, None) };
        (true, self.remove(key))
    }

    pub(crate) fn insert(&mut self, key: K, value: Arc<V>) {
        self.remove(key);
        self.clock += 1;
        self.order.insert(self.clock, key);
        self.entries.insert(key, Entry { value, used_at: self.clock });
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<Arc<V>> {
        let entry = self.entries.remove(&key)?;
        self.order.remove(&entry.used_at);
        Some(entry.value)
    }

    pub(crate) fn remove_where(&mut self, mut condition: impl FnMut(&K) -> bool) -> Vec<Arc<V>> {
        let keys: Vec<K> = self.entries.keys().filter(|key| condition(key)).copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Removes what nobody has used since `time`, a former result of [`RecentlyUsed::time`].
    pub(crate) fn remove_unused_since(&mut self, time: u64) -> Vec<Arc<V>> {
        let mut removed = Vec::new();
        let old: Vec<K> = self.order.range(..=time).map(|(_, key)| *key).collect();
        for key in old {
            if self.entries.get(&key).is_some_and(|entry| Arc::strong_count(&entry.value) == 1) {
                removed.extend(self.remove(key));
            }
        }
        removed
    }

    /// Does something to each of them, which counts as no use.
    pub(crate) fn for_each(&self, action: impl Fn(&V)) {
        self.entries.values().for_each(|entry| action(&entry.value));
    }

    /// The time of the latest use.
    pub(crate) fn time(&self) -> u64 {
        self.clock
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes_first_and_used_ones_stay() {
        let mut recent = RecentlyUsed::new(2);
        recent.insert(1, Arc::new("one"));
        recent.insert(2, Arc::new("two"));
        recent.get(1);
        assert_eq!(recent.make_room().1.as_deref(), Some(&"two"));
        recent.insert(3, Arc::new("three"));
        let (one, three) = (recent.get(1), recent.get(3));
        assert_eq!(recent.make_room(), (false, None));
        drop(one);
        assert_eq!(recent.make_room().1.as_deref(), Some(&"one"));
        drop(three);
        assert_eq!(recent.remove_unused_since(recent.time()).len(), 1);
        assert_eq!(recent.len(), 0);
    }
}
