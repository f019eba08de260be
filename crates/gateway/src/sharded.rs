//! A map in shards, so that event-loop threads seldom wait for each other.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 16;

/// `HashMap`s behind a lock each; a key always falls to the same one.
pub struct Sharded<K, V> {
    hasher: RandomState,
    shards: [Mutex<HashMap<K, V>>; SHARDS],
}

impl<K, V> Default for Sharded<K, V> {
    fn default() -> Self {
        Sharded { hasher: RandomState::new(), shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl<K: Hash + Eq, V> Sharded<K, V> {
    /// The shard that `key` belongs to, locked.
    pub fn lock(&self, key: &K) -> MutexGuard<'_, HashMap<K, V>> {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All keys.
    pub fn keys(&self) -> Vec<K>
    where
        K: Copy,
    {
        let of = |shard: &Mutex<HashMap<K, V>>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.keys().copied().collect::<Vec<K>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Takes everything out.
    pub fn drain(&self) -> Vec<V> {
        let take = |shard: &Mutex<HashMap<K, V>>| {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.drain().map(|(_, value)| value).collect::<Vec<V>>()
        };
        self.shards.iter().flat_map(take).collect()
    }
}
