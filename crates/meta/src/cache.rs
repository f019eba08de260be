//! A bounded map that forgets what was not used lately: the clock algorithm (Corbató 1968), one bit per item.

use rustc_hash::FxBuildHasher;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

struct Slot<K, V> {
    key: K,
    value: V,
    used: bool,
}

/// Keys of other people's choice need the standard hash, with which they cannot choose many that fall together.
pub(crate) struct Clock<K, V, H = RandomState> {
    index: HashMap<K, usize, H>,
    slots: Vec<Slot<K, V>>,
    hand: usize,
    capacity: usize,
}

/// For keys of this server's choice.
pub(crate) type FastClock<K, V> = Clock<K, V, FxBuildHasher>;

impl<K: Hash + Eq + Clone, V, H: BuildHasher + Default> Clock<K, V, H> {
    pub fn new(capacity: usize) -> Self {
        Clock { index: HashMap::default(), slots: Vec::new(), hand: 0, capacity: capacity.max(1) }
    }

    pub fn get<Q: ?Sized + Hash + Eq>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let slot = &mut self.slots[*self.index.get(key)?];
        slot.used = true;
        Some(&slot.value)
    }

    pub fn insert(&mut self, key: K, value: V) {
        if let Some(&at) = self.index.get(&key) {
            self.slots[at].value = value;
            self.slots[at].used = true;
        } else if self.slots.len() < self.capacity {
            self.index.insert(key.clone(), self.slots.len());
            self.slots.push(Slot { key, value, used: false });
        } else {
            let at = self.victim();
            self.index.remove(&self.slots[at].key);
            self.index.insert(key.clone(), at);
            self.slots[at] = Slot { key, value, used: false };
        }
    }

    pub fn remove<Q: ?Sized + Hash + Eq>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(at) = self.index.remove(key) {
            self.slots.swap_remove(at);
            if let Some(moved) = self.slots.get(at) {
                self.index.insert(moved.key.clone(), at);
            }
        }
    }

    /// The next slot not used since the hand last passed it. Ends within two rounds, as each step clears a bit.
    fn victim(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if !std::mem::replace(&mut slot.used, false) {
                return self.hand;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_used_and_stays_bounded() {
        let mut cache = FastClock::new(8);
        for number in 0..1000u32 {
            cache.insert(number, number * 2);
            assert_eq!(cache.get(&0), Some(&0), "used all the time");
            assert!(cache.slots.len() <= 8 && cache.index.len() == cache.slots.len());
        }
        cache.remove(&0);
        assert_eq!(cache.get(&0), None);
        for (key, at) in &cache.index {
            assert_eq!(cache.slots[*at].key, *key);
        }
    }
}
