//! A table of values under small integer keys that are never mistaken for an earlier owner of the slot.
//!
//! A key is `generation << 32 | index`. A freed slot is reused with the next generation, so an event or
//! completion that arrives late for the old owner finds nothing.

pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Slab { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        (u64::from(slot.generation) << 32) | u64::from(index)
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let slot = self.slots.get_mut(key as u32 as usize)?;
        if slot.generation == (key >> 32) as u32 { slot.value.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let slot = self.slots.get_mut(key as u32 as usize)?;
        if slot.generation != (key >> 32) as u32 {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key as u32);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_a_new_key() {
        let mut slab = Slab::new();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_ne!(first, second);
        assert_eq!(slab.remove(first), None);
        assert!(slab.get_mut(first).is_none());
        assert_eq!(slab.get_mut(second), Some(&mut "b"));
        assert_eq!(slab.len(), 1);
    }
}
